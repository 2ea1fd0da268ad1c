//! `qdiff mutations`.

use super::args::{JsonArgs, MutationsArgs, MutationsCommand};
use super::{exit, say};
use crate::mutations::{Mutation, Part, catalogue, find};
use crate::nearest::hint;
use anyhow::Context as _;
use serde_json::json;
use std::fmt::Write as _;

pub(super) fn run(args: &MutationsArgs) -> anyhow::Result<u8> {
    match &args.command {
        None => list(None),
        Some(MutationsCommand::List { json }) => list(Some(json)),
        Some(MutationsCommand::Show { name, json }) => show(name, json),
        Some(MutationsCommand::Score(args)) => super::score::run(args),
    }
}

/// A line each.
fn list(json: Option<&JsonArgs>) -> anyhow::Result<u8> {
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
    json.map_or(Ok(()), JsonArgs::check)?;
    say(&out)?;
    json.map_or(Ok(()), |json| json.write(&catalogue().map(described).collect::<Vec<_>>()))?;
    Ok(exit::MATCH)
}

fn show(name: &str, json: &JsonArgs) -> anyhow::Result<u8> {
    let m = find(name).with_context(|| {
        let hint = hint(name, catalogue().map(|m| m.name), "`qdiff mutations` lists them");
        format!("no mutation is called `{name}`{hint}")
    })?;
    json.check()?;
    say(&page(m))?;
    json.write(&described(m))?;
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
    let _ = writeln!(out, "  inject     {command} --inject {}", m.with(&m.defaults()));
    out
}

/// A mutation as JSON.
fn described(m: &Mutation) -> serde_json::Value {
    let params = m.params.iter().map(|p| json!({"name": p.name, "default": p.default, "about": p.help}));
    json!({
        "name": m.name,
        "about": m.story,
        "stages": m.stages,
        "params": params.collect::<Vec<_>>(),
        "seen": m.seen,
        "remedy": m.remedy,
    })
}
