//! `qdiff mutations`.

use super::args::{MutationsArgs, MutationsCommand};
use super::{exit, say};
use crate::mutations::{CauseId, Mutation, Part, catalogue, find};
use anyhow::Context as _;
use std::fmt::Write as _;

pub(super) fn run(args: &MutationsArgs) -> anyhow::Result<u8> {
    match &args.command {
        None | Some(MutationsCommand::List) => list(),
        Some(MutationsCommand::Show { name }) => show(name),
        Some(MutationsCommand::Score(args)) => super::score::run(args),
    }
}

/// A line each.
fn list() -> anyhow::Result<u8> {
    let width = catalogue().map(|m| m.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for m in catalogue() {
        let stages = match (m.part(), m.stages) {
            (Part::Tokenizer, _) => "tokens".to_owned(),
            (Part::Samplers, _) => "token".to_owned(),
            (Part::Elsewhere, _) => "not a stage's".to_owned(),
            (Part::Stage, ["*"]) => "any stage".to_owned(),
            (Part::Stage, some) => some.join(" "),
        };
        let _ = writeln!(out, "{:width$}  {} ({stages})", m.name, m.story);
    }
    say(&out)?;
    Ok(exit::MATCH)
}

fn show(name: &str) -> anyhow::Result<u8> {
    let m = find(name).with_context(|| format!("no mutation is called `{name}`; `qdiff mutations` lists them"))?;
    say(&page(m))?;
    Ok(exit::MATCH)
}

fn page(m: &Mutation) -> String {
    let mut out = format!("{}\n\n  what       {}\n", m.name, m.story);
    if m.of_a_stage() {
        let _ = writeln!(out, "  stages     {}", m.stages.join(" "));
    }
    for p in m.params {
        let _ = writeln!(out, "  parameter  {} (default {}): {}", p.name, p.default, p.help);
    }
    let _ = writeln!(out, "  seen       {}", m.seen);
    let _ = writeln!(out, "  remedy     {}", m.remedy);
    let command = match m.part() {
        Part::Elsewhere => return out,
        Part::Stage => "qdiff run",
        // Where there are marks of turns to lose, and a system turn.
        Part::Tokenizer => "qdiff run --template model",
        Part::Samplers => "qdiff generate",
    };
    let _ = writeln!(out, "  inject     {command} --inject {}", CauseId::new(m, &m.defaults()));
    out
}
