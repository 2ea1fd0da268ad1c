//! `qdiff stages`.

use super::{exit, say};
use anyhow::Result;
use qdiff_engine::model::{ARCHITECTURES, KINDS, Node, described, skeleton, symbolic};

/// What stands before the table.
const HEAD: &str = "\
# Every stage

T tokens of this step, N tokens so far; E width of the residual stream, H query heads, G heads of keys and values, D width of
a head, F width of the feed-forward network, X experts, K of them that a token takes, V size of the vocabulary. Names of transformers and vLLM are those of modules,
whose output is meant where nothing else is said; vLLM's caches are those of its FlashAttention backend. A dash is what is
never materialised. `qdiff stages` prints this page.
";

/// Prints every stage, in order: what it is, its shape, and where it is in other engines.
pub(super) fn run() -> Result<u8> {
    let graphs: Vec<_> = ARCHITECTURES.iter().map(|(name, build)| (*name, skeleton(*build, KINDS))).collect();
    let mut names: Vec<&str> = Vec::new();
    for (_, graph) in &graphs {
        // What an earlier graph does not have stands after what comes before it here.
        let mut after = 0;
        for name in graph.stage_names() {
            match names.iter().position(|n| *n == name) {
                Some(at) => after = at + 1,
                None => {
                    names.insert(after, name);
                    after += 1;
                }
            }
        }
    }
    let mut table = format!(
        "{HEAD}\n| stage | shape | what it is | transformers | vLLM | llama.cpp |\n| --- | --- | --- | --- | --- | --- |\n"
    );
    for name in names {
        let having: Vec<(&str, &Node)> = graphs
            .iter()
            .filter_map(|(arch, graph)| Some((*arch, graph.nodes.iter().find(|n| n.id.name == name)?)))
            .collect();
        let Some((_, node)) = having.first() else { continue };
        let of: Vec<&str> = having.iter().map(|(arch, _)| *arch).collect();
        let only = if of.len() < graphs.len() { format!(" ({} only)", of.join(", ")) } else { String::new() };
        let told = described(node);
        fn dash(text: &str) -> &str {
            if text.is_empty() { "–" } else { text }
        }
        let shape = symbolic(node);
        let row =
            [&format!("`{name}`{only}"), &format!("[{shape}]"), told.what, dash(&told.transformers), dash(told.vllm)];
        table += &format!("| {} | {} |\n", row.join(" | "), emitted(node));
    }
    say(&table)?;
    Ok(exit::MATCH)
}

/// How llama.cpp's graph callback announces it.
fn emitted(node: &Node) -> String {
    let layer = node.id.layer.unwrap_or(0);
    let bare =
        |name: &str| name.trim_end_matches(&format!("-{layer}")).trim_end_matches(&format!("_l{layer}")).to_owned();
    let (name, source) = (bare(&node.emission.name), bare(&node.emission.source));
    let op = node.emission.op;
    match node.weights.first().filter(|_| name.is_empty()) {
        Some(weight) => format!("{op} with `{}`", weight.name.replace(&format!("blk.{layer}."), "blk.N.")),
        None if !source.is_empty() => format!("{op} of `{source}`"),
        None => format!("`{name}` {op}"),
    }
}
