//! docs/guard.md and docs/skill/SKILL.md: every command in them, in order, on an engine in numpy.

use qdiff_tests::markdown::{read, root};
use qdiff_tests::{Folder, Said, binary, empty, numpy};
use std::process::Command;

/// Five commits of an engine; from the fourth on it has another rotary base. The work tree is at the first.
const HISTORY: &str = r#"
git init -q -b main && git config user.name a && git config user.email a@b
echo all: > Makefile
for n in 1 2 3 4 5; do
    bug=; [ $n -lt 4 ] || bug='--bug base'
    printf '#!/bin/sh\n# %s\nexec python3 "$ENGINE" "$@" %s\n' "$n" "$bug" > engine
    chmod +x engine
    git add engine Makefile && git commit -qm "commit $n"
    [ $n != 1 ] || git tag good
done
git branch -q newest && git checkout -q good
"#;

/// Runs a script of a page in `folder`, with `qdiff` on the path, numpy for Python, and the engine in ENGINE.
fn shell(folder: &Folder, script: &str) -> Said {
    let path = format!("{}:{}", binary("qdiff").parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("QDIFF_") || n.starts_with("GIT")) {
        command.env_remove(name);
    }
    command.args(["-euc", script]).current_dir(&**folder).env("PATH", &path).env("MODEL", "tiny.gguf");
    command.env("ENGINE", root().join("docs/engine/engine.py")).env("PYTHONPATH", numpy());
    command.env("OPENBLAS_NUM_THREADS", "1").env("OMP_WAIT_POLICY", "passive");
    Said::from(command.output().unwrap())
}

/// Writes the engine in numpy as a program of this name, with a bug or as it is.
fn engine(folder: &Folder, name: &str, bug: &str) {
    let script = format!("printf '#!/bin/sh\\nexec python3 \"$ENGINE\" \"$@\" {bug}\\n' > {name}; chmod +x {name}");
    shell(folder, &script).exits(0);
}

/// The shell blocks of a page.
fn blocks(page: &str) -> Vec<String> {
    read(page).split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn every_command_of_the_guide_runs() {
    let folder = empty();
    shell(&folder, HISTORY).exits(0);
    let blocks = blocks("docs/guard.md");
    for block in &blocks {
        // The guide bisects from where the branch is; here the work tree is at a good commit.
        shell(&folder, &block.replace("start HEAD good", "start newest good")).exits(0);
    }
    let found = shell(&folder, "git bisect log").exits(0).stdout;
    assert!(found.contains("first bad commit") && found.trim_end().ends_with("commit 4"), "{found}");
    for report in ["tiny.xml", "tied.xml"] {
        assert!(folder.text(report).contains("failures=\"0\""), "{report}");
    }
    assert!(blocks.len() > 5, "{blocks:?}");
}

/// An agent that follows the skill finds the wrong stage of a broken engine, and no fault in the mended one.
#[test]
fn every_command_of_the_skill_runs() {
    let folder = empty();
    let blocks = blocks("docs/skill/SKILL.md");
    let run = |block: &String| shell(&folder, block).exits(0);
    engine(&folder, "engine", "--bug base");
    let mut said: Vec<Said> = blocks[..2].iter().map(run).collect();
    // The patch.
    engine(&folder, "engine", "");
    said.extend(blocks[2..].iter().map(run));
    assert!(said[0].stdout.contains("DIVERGED") && said[0].stdout.contains("exit code 1"), "{}", said[0]);
    assert!(said[1].stdout.starts_with("diverged\nL00.attn_norm..L00.layer_out "), "{}", said[1]);
    assert!(said[2].stdout.starts_with("MATCH"), "{}", said[2]);
}

/// The step of the action judges an engine, fails where one is wrong, and leaves its reports.
#[test]
fn the_action_runs() {
    let documents = yaml_rust2::YamlLoader::load_from_str(&read("action.yml")).unwrap();
    let inputs = &documents[0]["inputs"];
    let steps = documents[0]["runs"]["steps"].as_vec().unwrap();
    let step = steps.iter().find(|step| step["name"].as_str() == Some("Judge every stage")).unwrap();
    let folder = empty();
    let judge = |bug: &str| {
        engine(&folder, "engine", bug);
        let value = |name: &str| match name {
            "SUBJECT" => "./engine {model} --tokens {tokens} --decoded {decoded}".to_owned(),
            "QDIFF" => "qdiff".to_owned(),
            input => inputs[input.to_lowercase().as_str()]["default"].as_str().unwrap().to_owned(),
        };
        let given = step["env"].as_hash().unwrap().keys().map(|name| name.as_str().unwrap());
        let exports: String = given.map(|name| format!("export {name}='{}'\n", value(name))).collect();
        let run = step["run"].as_str().unwrap();
        shell(&folder, &format!("export GITHUB_STEP_SUMMARY=$PWD/summary.md\n{exports}{run}"))
    };
    judge("").exits(0);
    assert!(folder.text("summary.md").contains("**MATCH:**"));
    let said = judge("--bug base").exits(1);
    assert!(said.stdout.contains("::error"), "{said}");
    for file in ["qdiff.html", "qdiff.md", "qdiff.xml"] {
        assert!(folder.join("qdiff-reports").join(file).is_file(), "{file}");
    }
}
