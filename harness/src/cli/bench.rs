//! `qdiff bench`.

use super::args::BenchArgs;
use super::output::Output;
use super::setup::console;
use crate::report::bench::{Bench, BenchReport};
use crate::tasks::bench::bench;
use anyhow::{Context as _, Result};
use std::path::Path;

/// Measures; gives the exit code.
pub(super) fn run(args: &BenchArgs) -> Result<u8> {
    let output = Output::files(&args.output, 1)?;
    let earlier = args.baseline.as_deref().map(read).transpose()?;
    let mut measured = bench(&args.request, console())?;
    if let BenchReport::Cuda { before, .. } = &mut measured {
        *before = earlier;
    }
    output.tell(&measured)
}

/// Reads an earlier bench.
fn read(path: &Path) -> Result<Bench> {
    let shown = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{shown} is no file that `qdiff bench --measure cuda --json` wrote"))
}
