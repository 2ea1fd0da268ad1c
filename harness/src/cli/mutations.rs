//! `qdiff mutations`.

use super::{exit, say};
use crate::mutations::catalogue;

pub(super) fn run() -> anyhow::Result<u8> {
    for m in catalogue() {
        say(&format!(
            "{}\n  stages   {}\n  what     {}\n  remedy   {}\n",
            m.name,
            m.stages.join(" "),
            m.story,
            m.remedy
        ))?;
        if let Some(p) = &m.param {
            say(&format!(
                "  param    {}={}: {}\n",
                p.name, p.default, p.help
            ))?;
        }
    }
    Ok(exit::MATCH)
}
