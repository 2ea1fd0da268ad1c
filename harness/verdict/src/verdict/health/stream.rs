//! What holds of the hidden state, the cache and the tokens as a run goes on.

use super::super::lost;
use super::seen::{Seen, Symptom, named};
use crate::capture::Capture;
use crate::metrics::argmax;
use crate::number::counted;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::Tensor;
use qdiff_engine::ops::anatomy::Elementwise;
use std::ops::Range;

/// The same token chosen so often in a row is odd.
const REPEATED: usize = 4;

/// Whether a residual sum is nothing but the stream it was added to.
pub(super) fn unchanged(before: &Tensor<f32>, after: &Tensor<f32>) -> Option<Seen> {
    (before.data == after.data)
        .then(|| ("the hidden state passes unchanged: nothing is added to it".to_owned(), Some(0)))
}

/// Whether the cache does not grow by the step's tokens, or the rows of different tokens are all alike.
pub(super) fn cache(graph: &Graph, node: &Node, t: &Tensor<f32>, capture: &Capture, index: usize) -> Option<Seen> {
    let step = &capture.steps[index];
    if t.rows() != step.keys() {
        let (rows, tokens) = (t.rows(), step.keys());
        let what = extent((rows, tokens), lost::rows(graph, node, capture, index), step.first);
        return Some((format!("it holds {} after {}: {what}", counted(rows, "row"), counted(tokens, "token")), None));
    }
    // A shift removes rows and turns others.
    let before = index.checked_sub(1).filter(|_| step.shift.is_none()).and_then(|i| capture.steps[i].get(node.id))?;
    let kept = t.data.get(..before.data.len()) == Some(before.data.as_slice());
    (!kept).then(|| ("rows of earlier tokens are no longer what they were".to_owned(), None))
}

/// Whether rows of a cache are zero throughout.
pub(super) fn unwritten(t: &Tensor<f32>) -> Option<Seen> {
    let zero = |r: &usize| t.row(*r).iter().all(|v| *v == 0.0);
    let first = (0..t.rows()).find(zero)?;
    let count = (0..t.rows()).filter(zero).count();
    let what = format!(
        "{count} of {} rows are zero throughout, first that of position {first}: not written, cleared, or read from other slots",
        t.rows()
    );
    Some((what, None))
}

/// What is wrong of a cache of so many `rows`, not one for each of `tokens`, which lost the rows of these positions; the step
/// begins at position `first`.
fn extent((rows, tokens): (usize, usize), lost: Option<Range<usize>>, first: usize) -> String {
    let Some(lacking) = tokens.checked_sub(rows) else {
        return format!("{} more than there are tokens", counted(rows - tokens, "row"));
    };
    let Some(lost) = lost else {
        return format!("{} missing", if lacking == 1 { "1 is".to_owned() } else { format!("{lacking} are") });
    };
    let missing = match lacking {
        1 => format!("the row of position {} is missing", lost.start),
        _ => format!("the rows of positions {}..{} are missing", lost.start, lost.end - 1),
    };
    match () {
        () if lost == (0..first) => missing + ": the position does not advance, or this step's rows alone were dumped",
        () if lost == (first..tokens) => missing + ": nothing was added in this step",
        () => missing,
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
            rows.extend((0..t.rows()).map(|r| (tokens[r], named(capture, step), t.row(r).to_vec())));
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
    let choices: Vec<(String, usize)> = capture
        .steps
        .iter()
        .filter_map(|s| Some((named(capture, s), argmax(&s.choice.as_ref()?.get().data))))
        .collect();
    let first = choices.windows(REPEATED).position(|w| w.iter().all(|(_, c)| *c == w[0].1))?;
    let run = &choices[first..];
    let times = run.iter().take_while(|(_, c)| *c == run[0].1).count();
    let logits = graph.nodes.last()?.id;
    Some(Symptom {
        stage: logits,
        step: run[0].0.clone(),
        what: format!(
            "token {} is the likeliest one after this pass and after each of the {} that follow",
            run[0].1,
            times - 1
        ),
        likely: logits,
        broken: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_cache_that_nobody_wrote_are_seen() {
        let t = |data: Vec<f32>| Tensor { shape: vec![3, 1, 2], data };
        assert!(unwritten(&t(vec![0.0, 1.0, 2.0, 0.0, 3.0, 4.0])).is_none());
        let (what, _) = unwritten(&t(vec![1.0, 2.0, 0.0, 0.0, 0.0, -0.0])).unwrap();
        assert_eq!(
            what,
            "2 of 3 rows are zero throughout, first that of position 1: not written, cleared, or read from other slots"
        );
    }

    /// Rows of a cache that were lost between two steps passed for a position that does not advance.
    #[test]
    fn rows_that_a_cache_lacks_are_named() {
        for (rows, lost, said) in [
            (23, Some(10..13), "the rows of positions 10..12 are missing"),
            (25, Some(19..20), "the row of position 19 is missing"),
            // Fewer rows than after the step before, and yet the position went on.
            (16, Some(10..20), "the rows of positions 10..19 are missing"),
            (20, Some(20..26), "the rows of positions 20..25 are missing: nothing was added in this step"),
            (
                6,
                Some(0..20),
                "the rows of positions 0..19 are missing: the position does not advance, or this step's rows \
                              alone were dumped",
            ),
            (25, None, "1 is missing"),
            (24, None, "2 are missing"),
            (28, None, "2 rows more than there are tokens"),
        ] {
            assert_eq!(extent((rows, 26), lost, 20), said);
        }
    }
}
