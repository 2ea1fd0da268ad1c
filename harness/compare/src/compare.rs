//! Two captures without a model: what they show, and no more.
//!
//! No stage can be held against its own mathematics, for there are no weights. What is left is how far the two are
//! apart, and what is wrong with any weights: values that are not finite, shapes that differ.

use crate::capture::manifest::Manifest;
use crate::capture::{Capture, Filter, Names, Shapes, Store, container};
use crate::verdict::{Global, compare_rows};
use anyhow::{Context as _, Result, bail, ensure};
use qdiff_engine::model::{ARCHITECTURES, Graph, MAX_LAYERS, StageId, skeleton};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// The result of a stage.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Row {
    /// The stage.
    #[serde(rename = "stage")]
    pub id: StageId,
    /// How far the two are apart; `None` where one of them does not have it.
    pub global: Option<Global>,
    /// The defect of the subject's or the reference's values that is one with any weights.
    pub wrong: Option<String>,
}

/// The result for two captures.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Comparison {
    /// Stages that either has, in graph order.
    pub rows: Vec<Row>,
    /// Engine of the subject, and of the reference.
    pub engines: [String; 2],
    /// Tokens of the run.
    pub tokens: usize,
}

/// Refuses two captures that cannot be held against each other.
///
/// # Errors
/// Another model, other tokens, or steps of another size.
pub fn comparable(a: (&Path, &Manifest), b: (&Path, &Manifest)) -> Result<()> {
    let ((a, x), (b, y)) = (a, b);
    let (a, b) = (a.display(), b.display());
    if let (Some(p), Some(q)) = (&x.model_sha256, &y.model_sha256) {
        ensure!(
            p == q,
            "{a} and {b} are captures of different models (sha256 {p} and {q}); record both on the same one"
        );
    }
    ensure!(x.sequences == y.sequences, "{a} and {b} are captures of other sequences; record both in the same passes");
    let otherwise = fed_otherwise(x, y);
    ensure!(
        otherwise || x.tokens == y.tokens && x.decoded == y.decoded,
        "{a} and {b} are captures of different tokens; record both on the same ones"
    );
    ensure!(
        !otherwise,
        "{a} and {b} are captures in steps of different size; `qdiff compare {a} {b} -m MODEL` judges each alone"
    );
    Ok(())
}

/// Whether two captures are of the same tokens, in steps of different size.
pub fn fed_otherwise(x: &Manifest, y: &Manifest) -> bool {
    let tokens = |m: &Manifest| [m.tokens.as_slice(), &m.decoded].concat();
    let steps = |m: &Manifest| m.steps().iter().map(|s| s.tokens.len()).collect::<Vec<_>>();
    tokens(x) == tokens(y) && steps(x) != steps(y)
}

/// Compares the captures in two folders.
///
/// # Errors
/// What is no capture; captures that cannot be held against each other; arrays that belong to no architecture.
pub fn compare(a: &Path, b: &Path, store: &Arc<Store>) -> Result<Comparison> {
    let manifests = [container::manifest(a)?, container::manifest(b)?];
    let [x, y] = &manifests;
    comparable((a, x), (b, y))?;
    let graph = architecture(&[a, b])?;
    let names = Names::of(&graph);
    let read = |folder, manifest| container::read(folder, manifest, (&graph, &names), Shapes::Unknown, store);
    let (subject, reference) = (read(a, x)?, read(b, y)?);
    let nodes = graph.nodes.iter().filter(|n| {
        let mut steps = subject.steps.iter().chain(&reference.steps);
        steps.any(|s| s.stages.contains_key(&n.id))
    });
    let rows = nodes
        .map(|node| Row {
            id: node.id,
            global: compare_rows(node, &subject, &reference, &Filter::default()),
            wrong: wrong(node.id, &subject, &reference),
        })
        .collect();
    store.trouble()?;
    Ok(Comparison { rows, tokens: x.tokens.len() + x.decoded.len(), engines: manifests.map(|m| m.name()) })
}

/// The defect of a stage that is one with any weights: of the subject's, or of the reference's.
fn wrong(id: StageId, subject: &Capture, reference: &Capture) -> Option<String> {
    let steps = subject.steps.iter().zip(&reference.steps);
    for (s, r) in steps {
        let (Some(a), Some(b)) = (s.get(id), r.get(id)) else {
            continue;
        };
        let label = s.label();
        if s.kept == r.kept && a.shape != b.shape {
            return Some(format!("shape {:?} in {label}, and the reference has {:?}", a.shape, b.shape));
        }
        let broken = |x: &[f32]| x.iter().position(|v| !v.is_finite());
        match (broken(&a.data), broken(&b.data)) {
            (Some(at), None) => return Some(format!("{} in {label}, element {at}", a.data[at])),
            (None, Some(at)) => return Some(format!("{} in the reference's {label}, element {at}", b.data[at])),
            _ => {}
        }
    }
    None
}

/// The architecture that has every stage of the captures.
fn architecture(folders: &[&Path]) -> Result<Graph> {
    let mut stages = HashSet::new();
    for folder in folders {
        stages.extend(container::stages(folder)?);
    }
    let layer = |name: &String| {
        let number = name.strip_prefix('L')?.split_once('.')?.0;
        number.parse::<usize>().ok()
    };
    let layers = stages.iter().filter_map(layer).max().map_or(1, |l| l.saturating_add(1));
    if layers > MAX_LAYERS {
        let shown = folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(" or ");
        bail!(
            "{shown} has arrays of layer {}, and a model has {MAX_LAYERS} layers at most: name its arrays by the layers of \
             the model, L00 for the first",
            layers - 1
        );
    }
    let graphs = ARCHITECTURES.iter().map(|(_, build)| skeleton(*build, layers));
    let mut fitting = graphs.filter(|graph| {
        let names = Names::of(graph);
        stages.iter().all(|s| names.get(None, s).is_some())
    });
    let known: Vec<&str> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
    fitting.next().with_context(|| {
        format!(
            "the captures have arrays that no stage of {} is called; name the model with -m to see which",
            known.join(" or ")
        )
    })
}
