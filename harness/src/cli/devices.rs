//! `qdiff devices`.

use super::{exit, say};
use anyhow::Result;
use qdiff_engine::cuda;

pub(super) fn run() -> Result<u8> {
    say("cpu   always\n")?;
    match cuda::devices() {
        Ok(devices) => {
            for d in devices {
                let (major, minor) = d.capability;
                say(&format!(
                    "cuda  {}: {}, compute capability {major}.{minor}, {} MiB\n",
                    d.ordinal, d.name, d.memory
                ))?;
            }
        }
        Err(e) => say(&format!("cuda  none: {e}\n"))?,
    }
    Ok(exit::MATCH)
}
