//! `qdiff mutations`.

use super::args::JsonArgs;
use super::exit;
use super::say;
use crate::mutations::{CauseId, FaultSite, Mutation, catalogue, find};
use crate::nearest::hint;
use anyhow::Context as _;
use serde_json::json;
use std::fmt::Write as _;

/// A line each.
pub(super) fn list(json: Option<&JsonArgs>) -> anyhow::Result<u8> {
    let width = catalogue().map(|m| m.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    let (made, others): (Vec<&Mutation>, Vec<&Mutation>) = catalogue().partition(|m| m.of_ranks() || m.of_adapters());
    for m in others.into_iter().chain(made) {
        let stages = match m.site() {
            FaultSite::Tokenizer => "tokens".to_owned(),
            FaultSite::Samplers => "token".to_owned(),
            FaultSite::Ends => "end of text".to_owned(),
            FaultSite::Elsewhere => "--inject cannot plant it".to_owned(),
            FaultSite::Stage if m.of_ranks() => format!("with --ranks: {}", stages(m)),
            FaultSite::Stage if m.of_adapters() => format!("with --adapter: {}", stages(m)),
            FaultSite::Stage => stages(m),
        };
        let _ = writeln!(out, "{:width$}  {} ({stages})", m.name, m.of_first_stage(&m.choices()));
    }
    json.map_or(Ok(()), JsonArgs::check)?;
    say::page(&out)?;
    json.map_or(Ok(()), |json| json.write(&catalogue().map(described).collect::<Vec<_>>()))?;
    Ok(exit::MATCH)
}

/// The stages that it happens to, over all architectures.
fn stages(m: &Mutation) -> String {
    let (mut fitting, mut others) = (Vec::new(), false);
    for graph in m.graphs() {
        for node in &graph.nodes {
            match m.concerns(&graph, node) {
                true if !fitting.contains(&node.id.name) => fitting.push(node.id.name),
                true => {}
                false => others = true,
            }
        }
    }
    if others { fitting.join(" ") } else { "any stage".to_owned() }
}

/// All about one.
pub(super) fn show(name: &str, json: &JsonArgs) -> anyhow::Result<u8> {
    let m = find(name).with_context(|| {
        let hint = hint(name, catalogue().map(|m| m.name), "`qdiff mutations` lists them");
        format!("no mutation is called `{name}`{hint}")
    })?;
    json.check()?;
    say::page(&page(m))?;
    json.write(&described(m))?;
    Ok(exit::MATCH)
}

fn page(m: &Mutation) -> String {
    let mut out = format!("{}\n\n  what       {}\n", m.name, m.of_first_stage(&m.choices()));
    if m.fits.is_some() {
        let _ = writeln!(out, "  stages     {}", stages(m));
    }
    for p in m.params {
        let _ = writeln!(out, "  parameter  {} (default {}): {}", p.name, p.default, p.help);
    }
    let _ = writeln!(out, "  seen       {}", m.of_first_stage(m.seen));
    let _ = writeln!(out, "  remedy     {}", m.of_first_stage(m.remedy));
    let command = match m.site() {
        FaultSite::Elsewhere => return out,
        FaultSite::Stage if m.of_ranks() => "qdiff run --ranks 2",
        FaultSite::Stage if m.of_adapters() => "qdiff run --adapter lora.gguf",
        FaultSite::Stage => "qdiff run",
        // Where there are marks of turns to lose, and a system turn.
        FaultSite::Tokenizer => "qdiff run --template model",
        FaultSite::Samplers | FaultSite::Ends => "qdiff generate",
    };
    let _ = writeln!(out, "  inject     {command} --inject {}", CauseId::new(m, &m.defaults()));
    out
}

/// A mutation as JSON.
fn described(m: &Mutation) -> serde_json::Value {
    let params = m.params.iter().map(|p| json!({"name": p.name, "default": p.default, "about": p.help}));
    json!({
        "name": m.name,
        "about": m.of_first_stage(&m.choices()),
        "stages": stages(m),
        "params": params.collect::<Vec<_>>(),
        "seen": m.of_first_stage(m.seen),
        "remedy": m.of_first_stage(m.remedy),
    })
}
