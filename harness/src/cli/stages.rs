//! `qdiff stages`.

use super::args::StagesArgs;
use super::exit;
use super::say::say;
use anyhow::Result;
use qdiff_engine::model::{ARCHITECTURES, DIALECTS, Dialect, Graph, KINDS, Node, described, skeleton, symbolic};

/// What stands before the table.
const HEAD: &str = "\
# Every stage

T tokens of this step, N tokens so far; E width of the residual stream, H query heads, G heads of keys and values, D width of
a head, F width of the feed-forward network, X experts, K experts of a token, V size of the vocabulary, M any other width (two M in one
shape may differ). A name in an engine's column is that of a
module, function or variable, for llama.cpp that of a ggml tensor with its op, for GGUF that of a weight; the stage is its output
unless the cell says otherwise.
A dash means that the engine never materialises the value, or that its name is not known. `qdiff stages` prints this page from the
graphs in `engine/src/model` and the tables in `engine/src/model/dialect`.
";

/// What stands before the Python tables.
const PYTHON: &str = "\
\"\"\"Where engines have each stage. `qdiff stages --python` prints this file, from the tables of qdiff's graph.

A row is a stage, whether it is in a layer, what is taken (output, input, part, call, columns, ...), the module as the layer or
the decoder has it, which part, call or columns, and whether the module must have a bias for it (None: either way).\"\"\"
";

/// Prints every stage, in order: its meaning, its shape, and its name in other engines.
pub(super) fn run(args: &StagesArgs) -> Result<u8> {
    let graphs: Vec<(&str, Graph)> =
        ARCHITECTURES.iter().map(|(name, build)| (*name, skeleton(*build, KINDS))).collect();
    let stages = stages(&graphs);
    say(&if args.python { python(&stages) } else { page(&graphs, &stages) })?;
    Ok(exit::MATCH)
}

/// Every stage once, with the architectures that have it.
fn stages(graphs: &[(&'static str, Graph)]) -> Vec<(Vec<&'static str>, Node)> {
    let mut all: Vec<(Vec<&str>, Node)> = Vec::new();
    for (arch, graph) in graphs {
        // What an earlier graph does not have stands after what comes before it here.
        let mut after = 0;
        for node in &graph.nodes {
            match all.iter().position(|(_, n)| n.id.name == node.id.name) {
                Some(at) => {
                    if !all[at].0.contains(arch) {
                        all[at].0.push(arch);
                    }
                    after = at + 1;
                }
                None => {
                    all.insert(after, (vec![arch], node.clone()));
                    after += 1;
                }
            }
        }
    }
    all
}

/// The page of all stages.
fn page(graphs: &[(&str, Graph)], stages: &[(Vec<&str>, Node)]) -> String {
    let names: Vec<&str> = DIALECTS.iter().map(|dialect| dialect.name).collect();
    let rule = "| --- ".repeat(names.len() + 5);
    let mut table =
        format!("{HEAD}\n| stage | shape | meaning | llama.cpp | GGUF | {} |\n{rule}|\n", names.join(" | "));
    for (having, node) in stages {
        let only = if having.len() < graphs.len() { format!(" ({} only)", having.join(", ")) } else { String::new() };
        let shape = symbolic(node);
        let told = |dialect: &Dialect| dialect.place(node).map_or_else(|| "–".to_owned(), |place| place.to_string());
        let by_architecture = |told: fn(&Node) -> String| by_architecture(graphs, node.id.name, told);
        let own = [
            format!("`{}`{only}", node.id.name),
            format!("[{shape}]"),
            described(node).to_owned(),
            by_architecture(emitted),
            by_architecture(weight),
        ];
        let row: Vec<String> = own.into_iter().chain(DIALECTS.iter().map(told)).collect();
        table += &format!("| {} |\n", row.join(" | "));
    }
    table
}

/// What the graphs say of a stage: the first architecture's words, then other words with the architectures that have them.
fn by_architecture(graphs: &[(&str, Graph)], name: &str, told: fn(&Node) -> String) -> String {
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for (arch, graph) in graphs {
        let Some(node) = graph.nodes.iter().find(|node| node.id.name == name) else { continue };
        let words = told(node);
        match all.iter_mut().find(|(known, _)| *known == words) {
            Some((_, archs)) => archs.push(arch),
            None => all.push((words, vec![arch])),
        }
    }
    let others = all.iter().skip(1).map(|(words, archs)| format!("{words} ({})", archs.join(", ")));
    all.iter().take(1).map(|(words, _)| words.clone()).chain(others).collect::<Vec<_>>().join("; ")
}

/// The tensor of the node.
fn weight(node: &Node) -> String {
    node.weights.first().map_or_else(|| "–".to_owned(), |weight| format!("`{}`", in_any_layer(node, &weight.name)))
}

/// The tables of the Python package.
fn python(stages: &[(Vec<&str>, Node)]) -> String {
    let mut text = PYTHON.to_owned();
    for dialect in DIALECTS {
        text += &format!("\n# {}.\n{} = [\n", dialect.of, dialect.name.to_uppercase());
        for (_, node) in stages {
            let Some(place) = dialect.place(node) else { continue };
            let (site, path, which) = place.site.taken();
            let python = |flag: bool| if flag { "True" } else { "False" };
            text += &format!(
                "    (\"{}\", {}, \"{site}\", \"{path}\", {}, {}),\n",
                node.id.name,
                python(node.id.layer.is_some()),
                which.as_deref().unwrap_or("None"),
                place.bias.map_or("None", python)
            );
        }
        text += "]\n";
    }
    text
}

/// The name of a tensor of the node, for any layer.
fn in_any_layer(node: &Node, name: &str) -> String {
    name.replace(&format!("blk.{}.", node.id.layer.unwrap_or(0)), "blk.N.")
}

/// How llama.cpp's graph callback announces it.
fn emitted(node: &Node) -> String {
    let layer = node.id.layer.unwrap_or(0);
    let bare =
        |name: &str| name.trim_end_matches(&format!("-{layer}")).trim_end_matches(&format!("_l{layer}")).to_owned();
    let (name, source) = (bare(&node.emission.name), bare(&node.emission.source));
    let op = node.emission.op;
    match node.weights.first().filter(|_| name.is_empty()) {
        _ if op.is_empty() => "–".to_owned(),
        Some(weight) => format!("{op} with `{}`", in_any_layer(node, &weight.name)),
        None if !source.is_empty() => format!("{op} of `{source}`"),
        None => format!("`{name}` {op}"),
    }
}
