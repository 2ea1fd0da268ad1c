//! `qdiff demo`: a first verdict without a download and without an engine.

use super::args::{Cli, Command, DemoRequest};
use super::exit;
use super::say::{QUIET, say};
use crate::tasks::quote;
use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use std::sync::atomic::Ordering;

/// Writes a small model, judges the engine as it is and with the bug, and prints each command before it runs.
///
/// # Errors
/// A folder that cannot be written, a mutation that does not exist, and a verdict that the demo does not expect: its
/// engine has no bug of its own, and a planted bug that changes nothing shows nothing.
pub(super) fn run(request: &DemoRequest, dispatch: &dyn Fn(&Command) -> Result<u8>) -> Result<u8> {
    let out = &request.out;
    std::fs::create_dir_all(out).with_context(|| {
        format!(
            "cannot create the folder {}; name one in a folder that you can write to, as in `qdiff demo /tmp/demo`",
            out.display()
        )
    })?;
    let file = |name: &str| out.join(name).display().to_string();
    // A build without llama.cpp reads the weights of a GGUF in one way only, and those of a folder in two.
    let llama = crate::llama::built_in().is_ok();
    let model = file(if llama { "model.gguf" } else { "model" });
    let (right, wrong) = (file("right.html"), file("wrong.html"));
    let judge = ["run", "-m", &model, "--prompt", "haiku", "--subject", "cpu", "-n", "2"];

    say("A small model with random weights:\n\n")?;
    let format: &[&str] = if llama { &[] } else { &["--format", "safetensors", "--weights", "F32"] };
    command(&[&["synth", &model], format].concat(), false, dispatch)?;
    let against = if llama { "llama.cpp" } else { "a float64 evaluation" };
    say(&format!("\nThe engine without a bug, compared with {against}:\n\n"))?;
    if command(&[&judge[..], &["--html", &right]].concat(), true, dispatch)? != exit::MATCH {
        bail!("qdiff's own engine does not match on this machine, see above; please report it");
    }
    say("\nThe same engine with a bug planted:\n\n")?;
    let found = command(&[&judge[..], &["--inject", &request.inject, "--html", &wrong]].concat(), false, dispatch)?;
    if found != exit::DIVERGED {
        bail!("--inject {}: the bug changes nothing on this model, see above. Leave --inject out", request.inject);
    }
    say(&format!(
        "\nOpen {wrong} in a browser for every stage of every layer. For your own engine:\n\n\
         qdiff run -m {model} --prompt haiku --subject 'cmd: ./your-engine {{model}} --tokens {{tokens}}'\n"
    ))?;
    Ok(exit::MATCH)
}

/// Prints a command of qdiff and has `dispatch` run it; gives its exit code. `brief` prints the verdict alone.
fn command(words: &[&str], brief: bool, dispatch: &dyn Fn(&Command) -> Result<u8>) -> Result<u8> {
    let shown: Vec<String> = words.iter().map(|word| quote(word)).collect();
    say(&format!("$ qdiff {}\n", shown.join(" ")))?;
    let line = Cli::try_parse_from(["qdiff"].iter().chain(words))?;
    let before = QUIET.load(Ordering::Relaxed);
    QUIET.store(before || brief, Ordering::Relaxed);
    let code = dispatch(&line.command);
    QUIET.store(before, Ordering::Relaxed);
    code
}
