//! `qdiff demo`: a first verdict without a download and without an engine.

use super::args::Command;
use super::{CommandLine, QUIET, exit, say};
use crate::tasks::quote;
use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Where the demo writes, and which bug it plants.
#[derive(Clone, Debug, Args)]
pub struct DemoRequest {
    /// Folder for the model and the two reports; qdiff creates it
    #[arg(value_name = "DIR", default_value = "qdiff-demo")]
    pub out: PathBuf,
    /// Bug to plant in qdiff's own CPU engine, as `qdiff run --inject` takes it
    #[arg(long, value_name = "MUTATION", default_value = "rope-base:base=10000@L01")]
    pub inject: String,
}

/// Writes a small model, judges the engine as it is and with the bug, and prints each command before it runs.
///
/// # Errors
/// A folder that cannot be written, a mutation that does not exist, and a verdict that the demo does not expect: its
/// engine has no bug of its own, and a planted bug that changes nothing shows nothing.
pub(super) fn run(request: &DemoRequest) -> Result<u8> {
    let out = &request.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot create the folder {}", out.display()))?;
    let file = |name: &str| out.join(name).display().to_string();
    let (model, right, wrong) = (file("model.gguf"), file("right.html"), file("wrong.html"));
    let judge = ["run", "-m", &model, "--prompt", "haiku", "--subject", "cpu", "-n", "2"];

    say("A small model with random weights:\n\n")?;
    command(&["synth", &model], false)?;
    say("\nThe engine without a bug, held against llama.cpp:\n\n")?;
    if command(&[&judge[..], &["--html", &right]].concat(), true)? != exit::MATCH {
        bail!("qdiff's own engine does not match on this machine, see above; please report it");
    }
    say("\nThe same engine with a bug planted:\n\n")?;
    let found = command(&[&judge[..], &["--inject", &request.inject, "--html", &wrong]].concat(), false)?;
    if found != exit::DIVERGED {
        bail!("--inject {}: the bug changes nothing on this model, see above. Leave --inject out", request.inject);
    }
    say(&format!(
        "\nOpen {wrong} in a browser for every stage of every layer. For your own engine:\n\n\
         qdiff run -m {model} --prompt haiku --subject 'cmd: ./your-engine {{model}} {{tokens}} {{dir}}'\n"
    ))?;
    Ok(exit::MATCH)
}

/// Prints a command of qdiff and runs it; gives its exit code. `brief` prints the verdict alone.
fn command(words: &[&str], brief: bool) -> Result<u8> {
    let shown: Vec<String> = words.iter().map(|word| quote(word)).collect();
    say(&format!("$ qdiff {}\n", shown.join(" ")))?;
    let line = CommandLine::<Command>::try_parse_from(["qdiff"].iter().chain(words))?;
    let before = QUIET.load(Ordering::Relaxed);
    QUIET.store(before || brief, Ordering::Relaxed);
    let code = super::dispatch(&line.command);
    QUIET.store(before, Ordering::Relaxed);
    code
}
