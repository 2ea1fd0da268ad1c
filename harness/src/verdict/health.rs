//! Invariants that need no reference: what no correct model does.

use crate::capture::Capture;
use qdiff_engine::model::Graph;
use qdiff_engine::ops::Op;

/// How far a sum of weights or a norm may be off before it is called broken:
/// far above any rounding, far below any real fault.
const BROKEN: f64 = 1e-2;

/// Looks at every captured stage; gives what is suspicious, in words.
pub fn check(graph: &Graph, capture: &Capture) -> Vec<String> {
    let mut concerns = Vec::new();
    for node in &graph.nodes {
        for step in &capture.steps {
            let Some(t) = step.get(node.id) else {
                continue;
            };
            let concern = match &node.op {
                Op::AttnWeights(_) => unnormalised(&t.data, t.shape.last().copied().unwrap_or(1)),
                Op::Rope(rope) => {
                    let before = step.get(graph.nodes[node.inputs[0]].id);
                    before.and_then(|x| stretched(&x.data, &t.data, rope.head_dim))
                }
                _ => constant(&t.data, t.shape.last().copied().unwrap_or(1)),
            };
            if let Some(what) = concern {
                concerns.push(format!("{} {}: {what}", node.id, step.label()));
                break;
            }
        }
    }
    concerns
}

fn unnormalised(data: &[f32], keys: usize) -> Option<String> {
    data.chunks(keys.max(1)).find_map(|row| {
        let sum: f64 = row.iter().map(|&v| f64::from(v)).sum();
        ((sum - 1.0).abs() > BROKEN)
            .then(|| "attention weights of a query do not sum to 1".to_owned())
    })
}

fn stretched(before: &[f32], after: &[f32], head: usize) -> Option<String> {
    let norm = |x: &[f32]| x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    before
        .chunks(head.max(1))
        .zip(after.chunks(head.max(1)))
        .find_map(|(x, y)| {
            let (x, y) = (norm(x), norm(y));
            ((x - y).abs() > BROKEN * x).then(|| "RoPE changes the norm of a head".to_owned())
        })
}

fn constant(data: &[f32], width: usize) -> Option<String> {
    if width < 16 {
        return None;
    }
    data.chunks_exact(width)
        .any(|row| row.iter().all(|v| *v == row[0]))
        .then(|| format!("a row of {width} elements has one value throughout"))
}
