//! `qdiff dequantise`: the same model in plain floats, to tell a bug of a block
//! format from one of the mathematics.

use super::args::DequantiseArgs;
use super::{exit, say, setup};
use crate::cleanup;
use crate::llama::gguf::write_copy;
use crate::oracle::Oracle;
use crate::report::file;
use anyhow::{Context as _, Result};

pub(super) fn run(args: &DequantiseArgs) -> Result<u8> {
    file::check(&args.out, "--out")?;
    let opened = setup::open(args.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    let shown = setup::show(&args.out);
    let problem = || format!("cannot write {shown}; choose a folder with room");
    // Written beside, under a name of nobody else, and renamed.
    let part = file::temporary(&args.out)?;
    let _cleanup = cleanup::guard(part.path());
    write_copy(&opened.path, &oracle.weights, args.to, part.path()).with_context(problem)?;
    part.persist(&args.out).map_err(|e| e.error).with_context(problem)?;
    let bytes = std::fs::metadata(&args.out)?.len();
    say(&format!("wrote {shown}, {bytes} bytes\n"))?;
    Ok(exit::MATCH)
}
