//! `qdiff inspect`.

use super::{exit, say, setup};
use crate::tasks::request::{ModelArgument, model_path};
use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use qdiff_engine::gguf::{Gguf, Value};
use qdiff_engine::model::{Model, Role, Weight, row_len};
use qdiff_engine::ops::Op;
use std::collections::BTreeMap;
use std::fmt::Write as _;

pub(super) fn run(args: &ModelArgument) -> Result<u8> {
    let path = model_path(args.model.as_ref())?;
    let gguf = Gguf::open(&path)?;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: GGUF version {}, {} metadata keys, {} tensors, {} bytes\n\nmetadata",
        setup::show(&path),
        gguf.version(),
        gguf.metadata().len(),
        gguf.tensors().len(),
        gguf.file_len()
    );
    for (key, value) in gguf.metadata() {
        let _ = writeln!(out, "  {key} = {}", brief(value));
    }
    let mut types: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for t in gguf.tensors() {
        let entry = types.entry(t.ggml_type.to_string()).or_default();
        entry.0 += 1;
        entry.1 += t.size;
    }
    let _ = writeln!(out, "\nbytes per type");
    for (name, (count, bytes)) in &types {
        let _ = writeln!(out, "  {name:<6} {count:>5} tensors {bytes:>12} bytes");
    }
    let _ = writeln!(out, "\ntensors");
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for t in gguf.tensors() {
        let dims: Vec<String> = t.dims.iter().map(ToString::to_string).collect();
        table.add_row([
            format!("  {}", t.name),
            t.ggml_type.to_string(),
            format!("[{}]", dims.join(", ")),
            t.size.to_string(),
        ]);
    }
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = writeln!(out, "{table}");
    say(&out)?;

    // Whether it can be run is said last: what it is was asked for first.
    let model = Model::new(gguf).with_context(|| setup::show(&path))?;
    say(&usage(&model))?;
    Ok(exit::MATCH)
}

fn usage(model: &Model) -> String {
    let graph = model.graph();
    let c = &graph.config;
    let used = graph.weights();
    // Decoding a token reads every weight once, but of a table that is looked
    // up alone one row.
    let looked_up = |w: &Weight| {
        let mut readers = graph.nodes.iter().filter(|n| n.weights.contains(w));
        readers.all(|n| n.op == Op::Embed)
    };
    let size = |w: &Weight| {
        model.gguf().tensor(&w.name).map_or(0, |t| if looked_up(w) { t.size / t.rows() as u64 } else { t.size })
    };
    let read: u64 = used.iter().map(|w| size(w)).sum();
    let hidden = graph.first(Role::FfnHidden).map_or(0, row_len);
    let unused: Vec<&str> = model
        .gguf()
        .tensors()
        .iter()
        .map(|t| t.name.as_str())
        .filter(|name| !used.iter().any(|w| w.name == *name))
        .collect();
    let mut out = format!(
        "\ngraph\n  {} stages of {} kinds; {} layers, {} heads, {} KV heads of {}, width {}, feed-forward {}, vocabulary {}, {} head\n  \
         uses {} of {} tensors; reads {read} bytes a decoded token\n",
        graph.nodes.len(),
        graph.stage_names().len(),
        c.n_layers,
        c.n_heads,
        c.n_kv_heads,
        c.head_dim,
        c.n_embd,
        hidden,
        c.n_vocab,
        if graph.tied_head() { "tied" } else { "separate" },
        used.len(),
        model.gguf().tensors().len()
    );
    if !unused.is_empty() {
        let _ = writeln!(out, "  leaves over: {}", unused.join(" "));
    }
    let _ = writeln!(out, "  stages: {}", graph.stage_names().join(" "));
    out
}

fn brief(value: &Value) -> String {
    let text = match (value.as_str(), value.as_u64(), value.as_f64(), value.as_bool()) {
        (Some(s), ..) => format!("{s:?}"),
        (_, Some(n), ..) => n.to_string(),
        (_, _, Some(x), _) => x.to_string(),
        (.., Some(b)) => b.to_string(),
        _ => value.type_name().to_owned(),
    };
    if text.chars().count() > 80 {
        let head: String = text.chars().take(77).collect();
        format!("{head}…")
    } else {
        text
    }
}
