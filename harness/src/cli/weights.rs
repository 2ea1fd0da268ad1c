//! `qdiff weights`.

use super::args::ModelArg;
use super::{exit, say, session};
use crate::oracle::Oracle;
use crate::weights;
use anyhow::Result;

pub(super) fn run(args: &ModelArg) -> Result<u8> {
    session::threads(None)?;
    let opened = session::open(args.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.model.gguf().bytes(), &opened.llama)?;
    let check = weights::check(&opened.model, &oracle);
    if !check.unused.is_empty() {
        say(&format!(
            "left over: no stage reads {}\n",
            check.unused.join(" ")
        ))?;
    }
    for m in &check.mismatches {
        say(&format!(
            "DIVERGED {} ({}): {} rows differ, first row {} [{}]: engine {}, ggml {}\n",
            m.tensor, m.format, m.rows, m.row, m.index, m.got, m.want
        ))?;
    }
    if check.mismatches.is_empty() {
        say(&format!(
            "MATCH: {} tensors present, typed, shaped and read once; {} values equal ggml's bit for bit\n",
            check.tensors, check.values
        ))?;
        return Ok(exit::MATCH);
    }
    Ok(exit::DIVERGED)
}
