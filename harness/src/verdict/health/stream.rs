//! What holds of the hidden state, the cache and the tokens as a run goes on.

use super::{Seen, Symptom};
use crate::capture::Capture;
use crate::metrics::argmax;
use crate::number::counted;
use qdiff_engine::model::{Graph, StageId};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::Tensor;
use qdiff_engine::ops::anatomy::Elementwise;

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
    let before = index.checked_sub(1).and_then(|i| capture.steps[i].get(id));
    if t.rows() != step.keys() {
        let (rows, tokens) = (t.rows(), step.keys());
        let what = extent(t, before.as_deref(), tokens);
        return Some((format!("it holds {rows} rows after {tokens} tokens: {what}"), None));
    }
    let before = before?;
    let kept = t.data.get(..before.data.len()) == Some(before.data.as_slice());
    (!kept).then(|| ("rows of earlier tokens are no longer what they were".to_owned(), None))
}

/// What is wrong of a cache `t` that does not hold a row for each of `tokens`, with the one of the step before.
fn extent(t: &Tensor<f32>, before: Option<&Tensor<f32>>, tokens: usize) -> String {
    let (rows, earlier) = (t.rows(), before.map_or(0, Tensor::rows));
    let Some(lacking) = tokens.checked_sub(rows) else {
        return format!("{} more than there are tokens", counted(rows - tokens, "row"));
    };
    if rows <= earlier {
        return "the position does not advance".to_owned();
    }
    // Behind the rows that are as they were, those of later positions follow.
    let same = |of: &Tensor<f32>, i: usize, j: usize| t.row(i) == of.row(j);
    let gap = before.and_then(|of| {
        let first = (0..earlier).find(|&i| !same(of, i, i))?;
        let follow = first + lacking <= earlier && (first + lacking..earlier).all(|j| same(of, j - lacking, j));
        follow.then_some(first)
    });
    match gap {
        Some(first) if lacking == 1 => format!("the row of position {first} is missing"),
        Some(first) => format!("rows {first}..{} of its positions are missing", first + lacking - 1),
        None => format!("{} missing", if lacking == 1 { "1 is".to_owned() } else { format!("{lacking} are") }),
    }
}

/// What shows over several tokens or steps: a hidden state that knows no
/// difference between them, and one choice for ever.
pub(super) fn tokens(graph: &Graph, capture: &Capture) -> Vec<Symptom> {
    let mut symptoms = Vec::new();
    let streams = graph.nodes.iter().filter(|n| n.op.anatomy() == Anatomy::Elementwise(Elementwise::Sum));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    /// Rows of a cache that were lost between two steps passed for a position that does not advance.
    #[test]
    fn rows_that_a_cache_lacks_are_named() {
        let cache = |positions: &[usize]| {
            let data = positions.iter().flat_map(|p| [*p as f32, 0.5]).collect();
            Tensor { shape: vec![positions.len(), 1, 2], data }
        };
        let lost = |lost: Range<usize>, end: usize| cache(&(0..end).filter(|p| !lost.contains(p)).collect::<Vec<_>>());
        let before = lost(0..0, 20);
        for (cache, tokens, said) in [
            (lost(10..13, 26), 26, "rows 10..12 of its positions are missing"),
            (lost(19..20, 26), 26, "the row of position 19 is missing"),
            (lost(0..0, 20), 26, "the position does not advance"),
            (lost(20..21, 26), 26, "1 is missing"),
            (lost(0..0, 26), 24, "2 rows more than there are tokens"),
        ] {
            assert_eq!(extent(&cache, Some(&before), tokens), said);
        }
        assert_eq!(extent(&before, None, 22), "2 are missing");
    }
}
