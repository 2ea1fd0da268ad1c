//! `qdiff inspect`.

use super::args::{JsonArgs, Reported};
use super::exit;
use super::say::page;
use crate::tasks::inspect::{Entry, Inspection, Usage, inspect, load};
use crate::tasks::request::ModelRequest;
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write as _;

/// Characters of a value shown at most.
const WIDTH: usize = 80;

/// Describes the file, and at the end says whether qdiff can run it.
pub(super) fn run(args: &Reported<ModelRequest, JsonArgs>) -> Result<u8> {
    args.output.check()?;
    let (found, trouble) = inspect(&args.request)?;
    page(&file(&found))?;
    if let Some(graph) = &found.graph {
        page(&usage(graph))?;
    }
    args.output.write(&found)?;
    // Last, for llama.cpp may end the process.
    trouble.map_or_else(|| load(&args.request), Err)?;
    Ok(exit::MATCH)
}

fn file(found: &Inspection) -> String {
    let mut out = format!(
        "{}: {}, {} metadata keys, {} tensors, {} bytes{}\n\nmetadata\n",
        found.path,
        match found.version {
            0 => "folder of safetensors, with the names of a GGUF".to_owned(),
            version => format!("GGUF version {version}"),
        },
        found.metadata.len(),
        found.tensors.len(),
        found.bytes,
        if found.files.is_empty() { String::new() } else { format!(" in {} files", found.files.len()) }
    );
    for entry in &found.metadata {
        let _ = writeln!(out, "  {} = {}", entry.key, brief(entry));
    }
    let _ = writeln!(out, "\nbytes per type");
    for (name, (count, bytes)) in &found.types {
        let on_cuda = found.on_cuda.get(name).map_or_else(String::new, |(plain, bytes)| {
            format!("; no CUDA kernel reads it: the engine keeps its matrices on a GPU as {plain}, {bytes} bytes")
        });
        let _ = writeln!(out, "  {name:<7} {count:>5} tensors {bytes:>12} bytes{on_cuda}");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for t in &found.tensors {
        let dims: Vec<String> = t.dims.iter().map(ToString::to_string).collect();
        table.add_row([format!("  {}", t.name), t.of.clone(), format!("[{}]", dims.join(", ")), t.bytes.to_string()]);
    }
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = writeln!(out, "\ntensors\n{table}");
    if !found.not_finite.is_empty() {
        let _ = writeln!(out, "\nnot finite");
    }
    for damaged in &found.not_finite {
        let _ = writeln!(out, "  {damaged}");
    }
    out
}

fn usage(graph: &Usage) -> String {
    format!(
        "\ngraph\n  {} stages of {} kinds; {}\n  reads {} bytes a decoded token\n  stages: {}\n",
        graph.stages,
        graph.stage_names.len(),
        graph.shape,
        graph.bytes_a_token,
        graph.stage_names.join(" ")
    )
}

/// A value on a line: of an array how many of what, and the first.
fn brief(entry: &Entry) -> String {
    let text = match (&entry.value, entry.count) {
        (serde_json::Value::Array(first), Some(count)) => {
            let first: Vec<String> = first.iter().map(ToString::to_string).collect();
            let more = if first.len() < count { ", …" } else { "" };
            format!("{count} {}: {}{more}", entry.of, first.join(", "))
        }
        (value, _) => value.to_string(),
    };
    if text.chars().count() > WIDTH {
        let head: String = text.chars().take(WIDTH - 3).collect();
        format!("{head}…")
    } else {
        text
    }
}
