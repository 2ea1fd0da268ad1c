//! docs/guard.md: every command in it, in order, on an engine in numpy under git.

use qdiff_tests::markdown::{read, root};
use qdiff_tests::{Said, binary, empty};
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

#[test]
fn every_command_of_the_guide_runs() {
    let folder = empty();
    let numpy = Said::from(Command::new(root().join("scripts/fetch-numpy")).output().unwrap()).exits(0).stdout;
    let path = format!("{}:{}", binary("qdiff").parent().unwrap().display(), std::env::var("PATH").unwrap());
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("QDIFF_") || n.starts_with("GIT")) {
            command.env_remove(name);
        }
        command.args(["-euc", script]).current_dir(&*folder).env("PATH", &path).env("MODEL", "tiny.gguf");
        command.env("ENGINE", root().join("tests/tap/engine.py")).env("PYTHONPATH", numpy.trim());
        command.env("OPENBLAS_NUM_THREADS", "1").env("OMP_WAIT_POLICY", "passive");
        Said::from(command.output().unwrap())
    };
    shell(HISTORY).exits(0);
    let page = read("docs/guard.md");
    let blocks: Vec<_> = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    for block in &blocks {
        // The guide bisects from where the branch is; here the work tree is at a good commit.
        shell(&block.replace("start HEAD good", "start newest good")).exits(0);
    }
    let found = shell("git bisect log").exits(0).stdout;
    assert!(found.contains("first bad commit") && found.trim_end().ends_with("commit 4"), "{found}");
    for report in ["tiny.xml", "tied.xml"] {
        assert!(folder.text(report).contains("failures=\"0\""), "{report}");
    }
    assert!(blocks.len() > 5, "{blocks:?}");
}
