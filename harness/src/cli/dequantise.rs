//! `qdiff dequantise`: the same model in plain floats, to tell a bug of a block
//! format from one of the mathematics.

use super::args::DequantiseArgs;
use super::{exit, say, session};
use crate::llama::gguf::write_copy;
use crate::oracle::Oracle;
use crate::report::file;
use anyhow::{Context as _, Result};

pub(super) fn run(args: &DequantiseArgs) -> Result<u8> {
    file::check(&args.out, "--out")?;
    let opened = session::open(args.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    // Written beside and renamed: an interrupt leaves no half a model.
    let part = args.out.with_extension("part");
    let shown = session::show(&args.out);
    write_copy(&opened.path, &oracle.weights, args.to, &part)
        .and_then(|()| Ok(std::fs::rename(&part, &args.out)?))
        .inspect_err(|_| drop(std::fs::remove_file(&part)))
        .with_context(|| format!("cannot write {shown}; choose a folder with room"))?;
    let bytes = std::fs::metadata(&args.out)?.len();
    say(&format!("wrote {shown}, {bytes} bytes\n"))?;
    Ok(exit::MATCH)
}
