//! `qdiff dequantise`.

use super::args::DequantiseArgs;
use super::{exit, say};
use crate::tasks::dequantise::dequantise;
use anyhow::Result;

pub(super) fn run(args: &DequantiseArgs) -> Result<u8> {
    let bytes = dequantise(&args.request)?;
    say(&format!("wrote {}, {bytes} bytes\n", args.request.out.display()))?;
    Ok(exit::MATCH)
}
