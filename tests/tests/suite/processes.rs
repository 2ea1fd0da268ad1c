//! The processes of a command, its pipes and its folder: nothing outlives qdiff, nothing makes it wait, nothing is written
//! elsewhere.

use qdiff_tests::synth::Synth;
use qdiff_tests::{Folder, Said, exact, files, folder_with};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// An engine that starts one process in a session of its own and one that is the child of nobody, notes their numbers, and goes on
/// as its argument says.
const ENGINE: &str = "\
(setsid sh -c 'echo $$ >one.part; mv one.part one; exec sleep 600' &)
setsid sh -c '(setsid sh -c \"echo \\$\\$ >two.part; mv two.part two; exec sleep 600\" &)'
while [ ! -e one ] || [ ! -e two ]; do sleep 0.01; done
touch started
eval \"$1\"
";

/// A run of it that nothing but the subject takes part in.
fn run(folder: &Folder, how: &str, more: &str) -> Command {
    folder.write("engine.sh", ENGINE);
    let mut command = folder.command(&format!("run -m model.gguf --tokens 3,4 -n 0 --reference none --tmp . {more}"));
    command.arg("--subject").arg(format!("cmd: sh engine.sh '{how}' {{ids}}"));
    command
}

/// Says that what the engine started is gone, and forgets it.
fn gone(folder: &Folder, how: &str) {
    for name in ["one", "two"] {
        let pid = folder.text(name);
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{how}: process {name} outlived qdiff");
    }
    for name in ["one", "two", "started"] {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    let left = files(folder);
    assert!(!left.iter().any(|f| f.starts_with(".qdiff-command-")), "{how}: {left:?}");
}

/// Neither a session of its own nor a parent that ended saves a process that a command started.
#[test]
fn what_leaves_its_group_ends_with_the_command() {
    let folder = folder_with(&exact());
    for (how, more, why) in [
        ("exit 3", "", "ended with exit status: 3"),
        ("kill -9 $$", "", "ended with exit status: 137"),
        ("sleep 600", "--timeout 1", "took longer than 1 s"),
    ] {
        let said = Said::from(run(&folder, how, more).output().unwrap()).exits(2);
        assert!(said.stderr.contains(why), "{how}: {said}");
        gone(&folder, how);
    }
}

/// Whoever is interrupted takes the engine with him, and all that it started; what his shell started before he leaves alone.
#[test]
fn an_interrupt_ends_the_engine_and_nobody_else() {
    let folder = folder_with(&exact());
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let inner = run(&folder, "sleep 600", "");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $! >theirs; exec \"$@\"", "sh"]).arg(inner.get_program());
        command.args(inner.get_args()).current_dir(&*folder).stdout(Stdio::null()).stderr(Stdio::null());
        let mut qdiff = command.spawn().unwrap();
        let begun = Instant::now();
        while !folder.join("started").exists() {
            assert!(qdiff.try_wait().unwrap().is_none(), "it ended before it was interrupted");
            assert!(begun.elapsed() < Duration::from_secs(60), "the engine never started");
            std::thread::sleep(Duration::from_millis(10));
        }
        // SIGKILL ends the one of qdiff's two processes that works.
        let theirs: i32 = folder.text("theirs").trim().parse().unwrap();
        let to = match signal {
            libc::SIGKILL => child_of(qdiff.id(), theirs),
            _ => qdiff.id() as i32,
        };
        // SAFETY: a plain call, on a process that was started here.
        unsafe { libc::kill(to, signal) };
        qdiff.wait().unwrap();
        gone(&folder, &format!("signal {signal}"));
        // SAFETY: the same.
        assert_eq!(unsafe { libc::kill(theirs, libc::SIGKILL) }, 0, "signal {signal} ended what is not qdiff's");
    }
}

/// The process below this one that is not `other`.
fn child_of(parent: u32, other: i32) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).find(|pid| *pid != other).unwrap()
}

/// More tokens than a pipe holds, to an engine that reads none of them; and one that talks and never answers.
#[test]
fn an_engine_that_does_not_listen_is_not_waited_for() {
    let folder = folder_with(&Synth { context: 32768, ..exact() });
    for command in ["serve: sleep 600", "serve: yes"] {
        let mut run = folder.command("run -m model.gguf --prompt long --raw --length 20000 -n 0 --reference none");
        let said = Said::from(run.args(["--timeout", "1", "--subject", command]).output().unwrap()).exits(2);
        assert!(said.stderr.contains("took longer than 1 s (see --timeout)"), "{command}: {said}");
    }
}

/// What an engine prints is passed over as fast as it comes.
#[test]
fn an_engine_may_print_a_million_lines() {
    let folder = folder_with(&exact());
    for command in ["cmd: seq 1000000; exit 7; {ids}", "serve: seq 1000000; exit 7"] {
        let mut run = folder.command("run -m model.gguf --tokens 3,4 -n 0 --reference none --timeout 20");
        let said = Said::from(run.args(["--subject", command]).output().unwrap()).exits(2);
        assert!(said.stderr.contains("ended with exit status: 7"), "{command}: {said}");
    }
}

/// A command or a checkout may put a link where qdiff writes: nothing is written where it leads.
#[test]
fn nothing_is_written_through_a_link_that_nobody_named() {
    let folder = folder_with(&exact());
    folder.create("elsewhere");
    let there = folder.join("elsewhere").display().to_string();
    // What the command dumps is whole; only its manifest is qdiff's to write.
    let lines = r#"echo '{"end":0,"first":0,"tokens":[3,4]}' >{dir}/capture.jsonl"#;
    for (link, why) in [
        (format!("rmdir {{dir}} && ln -s {there} {{dir}}"), "put something else in the place of {dir}"),
        // What a link in it leads to is as little touched.
        (format!("ln -s {there}/manifest.json {{dir}}/manifest.json"), "manifest.json"),
    ] {
        let mut run = folder.command("run -m model.gguf --tokens 3,4 -n 0 --reference none");
        run.arg("--subject").arg(format!("cmd: {link} && {lines} # {{ids}}"));
        let said = Said::from(run.output().unwrap()).exits(2);
        assert!(said.stderr.contains(why), "{link}: {said}");
    }
    std::os::unix::fs::symlink("elsewhere", folder.join("qdiff-report")).unwrap();
    let said = folder.qdiff("run -m model.gguf --subject cpu --tokens 3,4 -n 0").exits(0);
    assert!(said.stderr.contains("no report file: qdiff-report is a link or a file"), "{said}");
    folder.write("prompts", "haiku\nThe sky is\n");
    let said = folder.qdiff("run -m model.gguf --subject cpu --prompts prompts -n 0").exits(2);
    assert!(said.stderr.contains("qdiff-report is a link or a file"), "{said}");
    assert_eq!(files(&folder.join("elsewhere")), ["capture.jsonl"]);
}

/// Errors that need no reference are reported before llama.cpp runs.
#[test]
fn a_subject_that_fails_is_told_before_the_reference_runs() {
    let folder = folder_with(&exact());
    folder.record("cut", "--runner cpu -n 1");
    folder.edit("cut/capture.npz", |bytes| bytes.truncate(bytes.len() / 2));
    for (subject, more, why) in [
        ("cmd: exit 3; {ids}", "-n 0", "exit status: 3"),
        ("cmd: exit 3; {ids} {n}", "-n 2", "exit status: 3"),
        ("cmd: ./no-such-engine {ids} {decoded}", "-n 2", "there is no such program"),
        ("serve: exit 3", "-n 2", "exit status: 3"),
        ("capture:cut", "", "is no npz archive"),
    ] {
        let mut run = folder.command(&format!("run -v -m model.gguf {more}"));
        let said = Said::from(run.args(["--subject", subject]).output().unwrap()).exits(2);
        assert!(said.stderr.contains(why) && !said.stderr.contains("running llama"), "{subject}: {said}");
    }
    assert!(folder.qdiff("run -v -m model.gguf -n 0 --subject cpu").exits(0).stderr.contains("running llama"));
}

/// If the engine crashes, the report files say so too, and none of an earlier run stays.
#[test]
fn a_crash_of_the_engine_stands_in_every_report() {
    let folder = folder_with(&exact());
    let summary = folder.join("summary.md");
    folder.write("junit.xml", "<testsuites tests=\"1\" failures=\"0\"/>");
    let files = "--ci github --json told.json --junit junit.xml --markdown told.md --html told.html";
    let subject = "--subject 'cmd: echo no kernel >&2; exit 3; {ids}'";
    let line = format!("run -m model.gguf -n 0 {files} {subject}");
    let said = folder.qdiff_with(&[("GITHUB_STEP_SUMMARY", summary.to_str().unwrap())], &line).exits(2);
    assert!(
        said.stdout.contains("::error title=qdiff%3A run::FAILED: ") && said.stdout.contains("no kernel"),
        "{said}"
    );
    assert!(folder.text("summary.md").contains("no kernel") && folder.text("told.md").contains("no kernel"));
    assert!(folder.text("told.html").contains("no kernel"));
    let failure = folder.json("told.json");
    assert!(failure["kind"] == "failure" && failure["prompt"] == "run", "{failure}");
    assert!(failure["error"].as_str().unwrap().contains("exit status: 3: no kernel"), "{failure}");
    let junit = folder.text("junit.xml");
    let junit = roxmltree::Document::parse(&junit).unwrap();
    assert_eq!(junit.root_element().attribute("errors"), Some("1"));
    let error = junit.descendants().find(|n| n.has_tag_name("error")).unwrap().attribute("message").unwrap();
    assert!(error.contains("exit status: 3: no kernel"), "{error}");
    // Of several prompts, where none could be run.
    folder.write("prompts", "haiku\nThe sky is\n");
    let line = format!("run -m model.gguf -n 0 --ci github --junit junit.xml --prompts prompts {subject}");
    let said = folder.qdiff_with(&[("GITHUB_STEP_SUMMARY", summary.to_str().unwrap())], &line).exits(2);
    assert_eq!(said.stdout.matches("::error ").count(), 2, "{said}");
    assert_eq!(folder.text("junit.xml").matches("<error ").count(), 2);
}

/// Nothing is made below a home that does not exist, as a service's may not: a model is hashed, and nothing is kept.
#[test]
fn nothing_is_made_below_a_home_that_does_not_exist() {
    let folder = folder_with(&exact());
    let mut run = folder.command("run -m model.gguf --subject cpu -n 0");
    run.env_remove("XDG_CACHE_HOME").env("HOME", folder.join("absent"));
    Said::from(run.output().unwrap()).exits(0);
    assert!(!folder.join("absent").exists());
}
