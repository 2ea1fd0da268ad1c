//! `qdiff verify-oracle`.

use super::args::OracleArgs;
use super::output::Output;
use super::setup::console;
use crate::tasks::verify::verify_oracle;
use anyhow::Result;

/// Holds the oracle against llama.cpp; gives the exit code.
pub(super) fn run(args: &OracleArgs) -> Result<u8> {
    let output = Output::new(&args.output, 1)?;
    output.tell(&verify_oracle(&args.request, console())?)
}
