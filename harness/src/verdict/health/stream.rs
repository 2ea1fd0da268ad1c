//! What holds of the hidden state, the cache and the tokens as a run goes on.

use super::{Seen, Symptom};
use crate::capture::Capture;
use crate::metrics::argmax;
use qdiff_engine::model::{Graph, StageId};
use qdiff_engine::ops::Tensor;

/// The same token chosen so often in a row is odd.
const REPEATED: usize = 4;

/// Whether a residual sum is nothing but the stream it was added to.
pub(super) fn unchanged(before: &Tensor<f32>, after: &Tensor<f32>) -> Option<Seen> {
    (before.data == after.data)
        .then(|| ("the hidden state passes unchanged: nothing is added to it".to_owned(), Some(0)))
}

/// Whether the cache does not grow by the step's tokens, or the rows of different tokens are all alike.
pub(super) fn cache(id: StageId, t: &Tensor<f32>, capture: &Capture, index: usize) -> Option<Seen> {
    let step = &capture.steps[index];
    if t.rows() != step.keys() {
        let (rows, tokens) = (t.rows(), step.keys());
        return Some((format!("it holds {rows} rows after {tokens} tokens: the position does not advance"), None));
    }
    let before = capture.steps[index.checked_sub(1)?].get(id)?;
    let kept = t.data.get(..before.data.len()) == Some(before.data.as_slice());
    (!kept).then(|| ("rows of earlier tokens are no longer what they were".to_owned(), None))
}

/// What shows over several tokens or steps: a hidden state that knows no
/// difference between them, and one choice for ever.
pub(super) fn tokens(graph: &Graph, capture: &Capture) -> Vec<Symptom> {
    let mut symptoms = Vec::new();
    let streams = graph.nodes.iter().filter(|n| n.op.name() == "residual");
    for node in streams {
        let mut rows: Vec<(u32, String, Vec<f32>)> = Vec::new();
        for step in &capture.steps {
            let Some(t) = step.get(node.id) else { continue };
            let tokens = step.kept_tokens();
            rows.extend((0..t.rows()).map(|r| (tokens[r], step.label(), t.row(r).to_vec())));
        }
        let same = rows.windows(2).find(|pair| pair[0].0 != pair[1].0 && pair[0].2 == pair[1].2);
        if let Some([(a, ..), (b, step, _)]) = same {
            symptoms.push(Symptom {
                stage: node.id,
                step: step.clone(),
                what: format!("the hidden state of tokens {a} and {b} is the same: it does not change with the token"),
                likely: graph.nodes[0].id,
                broken: true,
            });
            // What follows repeats it.
            break;
        }
    }
    symptoms.extend(repeated(graph, capture));
    symptoms
}

/// The same choice over and over.
fn repeated(graph: &Graph, capture: &Capture) -> Option<Symptom> {
    let choices: Vec<(String, usize)> =
        capture.steps.iter().filter_map(|s| Some((s.label(), argmax(&s.choice.as_ref()?.get().data)))).collect();
    let run = choices.windows(REPEATED).find(|w| w.iter().all(|(_, c)| *c == w[0].1))?;
    let logits = graph.nodes.last()?.id;
    Some(Symptom {
        stage: logits,
        step: run[0].0.clone(),
        what: format!("token {} is the choice {REPEATED} times in a row from here on", run[0].1),
        likely: logits,
        broken: false,
    })
}
