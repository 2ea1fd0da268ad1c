//! States that a pass goes on from which are not the ones that its sequence left: those of another sequence, as of the last owner of
//! a slot that was never cleared, or those after tokens that were taken back.

use super::Diagnosis;
use super::pass::{Fit, rules};
use super::searcher::Searcher;
use super::siblings::Runs;
use super::spots::{Link, Shown, Told};
use crate::capture::{Capture, Step, Whose};
use crate::number::counted;
use crate::verdict::{Evidence, right};
use qdiff_engine::model::{Node, StageId};
use qdiff_engine::ops::anatomy::{RowReduction, State};
use qdiff_engine::ops::{self, Anatomy, Context, Tensor};
use std::collections::BTreeSet;

/// How to mend it.
const REMEDY: &str = "begin a new sequence with zeros, one behind a cached prefix with the state after that prefix, and go on after a \
                      rollback from the state after the last token that is kept";

/// Elements that must agree: fewer may do so by chance.
const LEAST: usize = 16;

/// How far rounding may move an element over a few tokens, relative to the largest.
const ROUNDED: f64 = 2e-5;

/// A state: of which run, and after how many of its tokens.
type After = (Whose, usize);

/// How many tokens a state is after, by the passes before a rollback and the number of tokens that are kept.
type Rule = fn(&Capture, usize) -> Option<usize>;

/// States that a sequence may go on from after a rollback, in words.
const AFTER: [(&str, Rule); 11] = [
    ("the state before the last of the tokens that are kept", |_, kept| kept.checked_sub(1)),
    ("the state before the last pass before the rollback", |theirs, _| Some(theirs.steps.last()?.first)),
    ("the state after the first token of the last pass before the rollback", |theirs, _| {
        Some(theirs.steps.last()?.first + 1)
    }),
    ("the state after all tokens, those that were taken back among them", |theirs, _| {
        theirs.steps.last().map(Step::keys)
    }),
    ("the state before the pass in which the tokens that are kept end", |theirs, kept| Some(end(theirs, kept)?.first)),
    ("the state after the first token of the pass in which the tokens that are kept end", |theirs, kept| {
        end(theirs, kept).map(|pass| pass.first + 1)
    }),
    ("the state after the whole pass in which the tokens that are kept end", |theirs, kept| {
        end(theirs, kept).map(Step::keys)
    }),
    (
        "the state after the chunk of 4 rows in which the tokens that are kept end, in passes of more than 4 rows",
        of_chunk::<4>,
    ),
    (
        "the state after the chunk of 8 rows in which the tokens that are kept end, in passes of more than 8 rows",
        of_chunk::<8>,
    ),
    (
        "the state after the chunk of 16 rows in which the tokens that are kept end, in passes of more than 16 rows",
        of_chunk::<16>,
    ),
    (
        "the state after the chunk of 32 rows in which the tokens that are kept end, in passes of more than 32 rows",
        of_chunk::<32>,
    ),
];

/// The end of the chunk of `N` rows in which the tokens that are kept end; their own end in a pass of one chunk.
fn of_chunk<const N: usize>(theirs: &Capture, kept: usize) -> Option<usize> {
    let pass = end(theirs, kept)?;
    let chunks = (kept - pass.first).next_multiple_of(N);
    Some(if pass.rows() > N { (pass.first + chunks).min(pass.keys()) } else { kept })
}

/// The pass in which the first tokens of a sequence end.
fn end(theirs: &Capture, kept: usize) -> Option<&Step> {
    theirs.steps.iter().find(|step| step.first < kept && kept <= step.keys())
}

/// Whether the stage is right behind a rollback of the run behind which it would be wrong by a rule.
fn refuted(rule: Rule, (node, runs): (&Node, &[(&Searcher<'_>, &Diagnosis)])) -> bool {
    let captures = || runs.iter().map(|(searcher, _)| searcher.subject.capture);
    runs.iter().any(|(searcher, _)| {
        let capture = searcher.subject.capture;
        let Some(whose) = capture.steps.last().map(|step| step.whose).filter(|whose| whose.rollbacks > 0) else {
            return false;
        };
        let is_before = |other: &Whose| other.sequence == whose.sequence && other.rollbacks + 1 == whose.rollbacks;
        let before = captures().find(|other| other.steps.last().is_some_and(|step| is_before(&step.whose)));
        let next = (0..capture.steps.len()).find(|step| capture.is_own(*step));
        let (Some(before), Some(next)) = (before, next) else { return false };
        let kept = capture.steps[next].first;
        let other = rule(before, kept).is_some_and(|after| after != kept);
        other && searcher.evidence(node, capture).bad_rows().all(|row| row.step != next)
    })
}

/// The stages that a node is made of in a step beside the state, and the stage of that.
pub(super) fn parts<'n>(node: &'n Node, nodes: &'n [Node]) -> Option<(&'n [usize], &'n Node)> {
    match node.op.anatomy() {
        Anatomy::State(State::Own) => Some((&node.inputs, node)),
        Anatomy::RowReduction(RowReduction::Recurrent) => {
            let (state, rows) = node.inputs.split_last()?;
            Some((rows, &nodes[*state]))
        }
        _ => None,
    }
}

/// The rows of a step that a node is made of, those of its first tokens.
pub(super) fn operands(
    capture: &Capture, step: usize, (inputs, nodes): (&[usize], &[Node]), tokens: usize,
) -> Option<Vec<Tensor<f64>>> {
    let (step, mut all) = (&capture.steps[step], Vec::new());
    if step.rows() != step.tokens.len() {
        return None;
    }
    for &input in inputs {
        let rows = step.get(nodes[input].id)?;
        let (mut shape, width) = (rows.shape.clone(), rows.data.len() / step.tokens.len().max(1));
        *shape.first_mut().filter(|n| **n == step.tokens.len())? = tokens;
        all.push(Tensor { shape, data: rows.data.get(..tokens * width)?.iter().map(|v| f64::from(*v)).collect() });
    }
    Some(all)
}

/// The state before a step.
pub(super) fn before(capture: &Capture, step: usize, id: StageId) -> Option<Tensor<f64>> {
    let steps = &capture.steps;
    if let Some(again) = steps[step].before.get(&id) {
        return Some(again.get().wide());
    }
    let Some(first) = std::num::NonZero::new(steps[step].first) else {
        return steps.iter().find_map(|step| Some(Tensor::zeros(step.get(id)?.shape.clone())));
    };
    let earlier = step.checked_sub(1).filter(|earlier| steps[*earlier].keys() == first.get())?;
    Some(steps[earlier].get(id)?.wide())
}

/// The states that the wrong steps of a run may go on from, and these steps. `None` where its own state gives them, too.
fn gone_on_from(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<(BTreeSet<After>, BTreeSet<usize>)> {
    let (oracle, capture) = (runs[run].0.oracle, e.side.capture);
    let nodes = &oracle.graph.nodes;
    let (inputs, state) = parts(e.node, nodes)?;
    let steps: BTreeSet<usize> = e.bad_rows().map(|row| row.step).collect();
    let parameters = e.parameters();
    let made = |node: &Node, mut rows: Vec<Tensor<f64>>, state: Tensor<f64>| -> (Tensor<f64>, Vec<f32>) {
        rows.push(state);
        let context =
            Context { tokens: &[], positions: &[], history: &[], source: &parameters, weights: &node.weights };
        ops::forward_with_bound(&node.op, &rows.iter().collect::<Vec<_>>(), &context)
    };
    let (state_inputs, _) = parts(state, nodes)?;
    let mut found: Option<BTreeSet<After>> = None;
    for &step in &steps {
        let rows = operands(capture, step, (inputs, nodes), capture.steps[step].tokens.len())?;
        let gives = |state: &Tensor<f64>| {
            let (y, reach) = made(e.node, rows.clone(), state.clone());
            // The engine's own state is rounded in each token, which the one that is made again is not.
            let size = y.data.iter().fold(0f64, |most, v| most.max(v.abs()));
            let rounded = (ROUNDED * size) as f32;
            let of_step = e.rows.iter().filter(|row| row.step == step && y.data.len() >= row.range.end);
            let mut elements = 0;
            for row in of_step {
                let (got, _, bound) = e.row(row);
                let at = |i: usize| row.range.start + i;
                if !(0..got.len()).all(|i| right(got[i], y.data[at(i)], bound[i].max(reach[at(i)]).max(rounded))) {
                    return false;
                }
                elements += got.len();
            }
            elements >= LEAST
        };
        // What its own state gives as well says nothing.
        if before(capture, step, state.id).is_some_and(|own| gives(&own)) {
            return None;
        }
        let mut of = BTreeSet::new();
        for (searcher, _) in runs {
            let theirs = searcher.subject.capture;
            for (other, there) in theirs.steps.iter().enumerate() {
                let Some(first) = before(theirs, other, state.id) else {
                    // What the pass began with is not known, but what it left may be.
                    let left = there.get(state.id).map(|left| left.wide());
                    of.extend(left.filter(|left| gives(left)).map(|_| (there.whose, there.keys())));
                    continue;
                };
                for tokens in 1..=there.tokens.len() {
                    let after = (there.whose, there.first + tokens);
                    let Some(rows) = operands(theirs, other, (state_inputs, nodes), tokens) else { break };
                    searcher.meter.count(16 * tokens as u64 * first.data.len() as u64);
                    if searcher.meter.over() {
                        return None;
                    }
                    if gives(&made(state, rows, first.clone()).0) {
                        of.insert(after);
                    }
                }
            }
        }
        let all = match found {
            None => of,
            Some(known) => known.intersection(&of).copied().collect(),
        };
        if all.is_empty() {
            return None;
        }
        found = Some(all);
    }
    Some((found?, steps))
}

/// A wrong state behind a rollback of another sequence: those that it may be, and the run before.
struct Elsewhere<'a> {
    of: BTreeSet<After>,
    before: Option<&'a Capture>,
    kept: usize,
}

impl Elsewhere<'_> {
    /// Whether it is what a rule says.
    fn is_by(&self, rule: Rule) -> bool {
        let says = || {
            let before = self.before?;
            Some((before.steps.last()?.whose, rule(before, self.kept)?))
        };
        says().is_some_and(|after| self.of.contains(&after))
    }
}

/// The wrong states behind every other rollback of the run.
fn elsewhere<'a>(id: StageId, (runs, run): Runs<'a>) -> Vec<Elsewhere<'a>> {
    let wrong = |other: usize| {
        let (searcher, _) = runs[other];
        let capture = searcher.subject.capture;
        let whose = capture.steps.last().map(|step| step.whose).filter(|whose| whose.rollbacks > 0)?;
        let graph = &searcher.oracle.graph;
        let e = searcher.evidence(&graph.nodes[graph.index(id)?], capture);
        e.bad_rows().find(|row| capture.is_own(row.step))?;
        let before = Whose { rollbacks: whose.rollbacks - 1, ..whose };
        let mut captures = runs.iter().map(|(searcher, _)| searcher.subject.capture);
        let before = captures.find(|of| of.steps.last().is_some_and(|step| step.whose == before));
        let (of, steps) = gone_on_from(&e, (runs, other)).unwrap_or_default();
        let kept = steps.first().map_or(0, |first| capture.steps[*first].first);
        Some(Elsewhere { of, before, kept })
    };
    (0..runs.len()).filter(|other| *other != run).filter_map(wrong).collect()
}

/// Whose state the wrong steps go on from.
pub(super) fn words(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<Told> {
    let capture = e.side.capture;
    let (of, steps) = gone_on_from(e, (runs, run))?;
    let first = capture.steps.get(*steps.first()?)?.first;
    let ((whose, tokens), None) = (*of.first()?, of.iter().nth(1)) else { return None };
    let theirs = runs.iter().map(|(searcher, _)| searcher.subject.capture);
    let theirs = theirs.into_iter().find(|theirs| theirs.steps.last().is_some_and(|step| step.whose == whose))?;
    // After the same tokens it is the same state.
    let fed = |capture: &Capture, n: usize| -> Vec<u32> {
        capture.steps.iter().flat_map(|step| step.tokens.iter().copied()).take(n).collect()
    };
    if tokens == first && fed(capture, first) == fed(theirs, first) {
        return None;
    }
    let own = match first {
        0 => "zeros".to_owned(),
        first => format!("the one after the {} before the pass", counted(first, "token")),
    };
    let pass = match steps.len() {
        1 => format!("the pass at position {first}"),
        _ => format!("each of {}, the first at position {first},", counted(steps.len(), "pass")),
    };
    let words = format!(
        "the state that {pass} begins with is the one of {} after {}, and not {own}",
        whose.beside(capture.steps.last()?.whose),
        counted(tokens, "token")
    );
    // What a rollback left.
    let own = capture.steps.last()?.whose;
    if steps.len() == 1 && whose.sequence == own.sequence && whose.rollbacks < own.rollbacks {
        let given: Vec<_> = AFTER.iter().filter(|(_, of)| of(theirs, first) == Some(tokens)).collect();
        let others = if given.is_empty() { Vec::new() } else { elsewhere(e.node.id, (runs, run)) };
        let fits: Vec<Fit> = given
            .into_iter()
            .filter(|(_, of)| !refuted(*of, (e.node, runs)) && others.iter().all(|other| other.is_by(*of)))
            .map(|(after, _)| {
                let rule = format!(
                    "after tokens are taken back, a sequence goes on from {after}, and not from the one after the tokens that are kept"
                );
                Fit::new(rule, "in every rollback")
            })
            .collect();
        if !fits.is_empty() {
            let words = format!("{words}: {}", rules(&fits.iter().collect::<Vec<_>>()));
            return Some(Told {
                words,
                remedy: REMEDY,
                shown: Shown { what: "state".to_owned(), fits, ..Shown::default() },
            });
        }
    }
    let link = Link::of((runs, run), first, (whose, tokens.checked_sub(1)?))?;
    let links = vec![[link, link]];
    Some(Told { words, remedy: REMEDY, shown: Shown { what: "state".to_owned(), links, ..Shown::default() } })
}
