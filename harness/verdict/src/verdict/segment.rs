//! Segments: where operands of a stage were not captured, the smallest
//! subgraph from captured tensors to the stage replaces it.
//!
//! A fused kernel or a third-party dump hands out only some stages. Such a stage is judged by evaluating everything
//! between it and the nearest captured tensors in f64. What a correct runner may be off by follows the same path: each
//! op's own forward error bound, and the uncertainty of its operands carried through its derivatives, first order in
//! mean square ([`qdiff_engine::ops::propagate_error`]); where activations are quantised on the way, a value near a
//! rounding tie is uncertain by a whole step ([`qdiff_engine::quant::uncertainty`]). This is no rigorous bound: it
//! takes roundings for independent. It is sound in practice because the bounds it starts from are many times what
//! correct engines need.
//!
//! A stage inside a segment counts as judged with it: a fault in it shows, but the finding can name the segment only.

use super::apply::{State, apply};
use super::linear::ROWS_AT_ONCE;
use super::operands::{Expected, Side, Valued, widen};
use super::probe::Random;
use super::source::{Computed, Sink, Source, Stage, put};
use crate::capture::{Capture, Step};
use crate::oracle::Oracle;
use crate::products::Work;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, StageId, WeightSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::ControlFlow;

/// Factor on the bound of a segment with values of a narrow format. The rounding of one operand reaches the end on several
/// ways (the norm's scale through gate and up, the residual beside both), where it adds up and is not independent; of f32
/// the bounds are many times what is needed, of a rounding that is known to half a step they are not.
const TOGETHER: f32 = 2.0;

/// A subgraph that begins at captured tensors and ends in a captured stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Segment {
    /// Its stages in graph order; the last is the captured one.
    pub stages: Vec<StageId>,
}

impl Segment {
    /// The segment that `node` is judged by; `None` where its own operands
    /// were captured, or it was not captured itself.
    pub fn of(node: &Node, graph: &Graph, capture: &Capture) -> Option<Self> {
        let plan = plan(node, graph, capture);
        let inside = plan.keys().map(|&i| graph.nodes[i].id);
        (!plan.is_empty()).then(|| Self { stages: inside.chain([node.id]).collect() })
    }
}

impl fmt::Display for Segment {
    /// `L03.q_proj..L03.layer_out`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stages.as_slice() {
            [first, .., last] => write!(f, "{first}..{last}"),
            stages => stages.iter().try_for_each(|only| write!(f, "{only}")),
        }
    }
}

/// Which nodes have to be evaluated, in graph order, and in which steps.
pub(super) type Plan = BTreeMap<usize, Vec<bool>>;

/// What evaluating `node` takes besides itself.
pub(super) fn plan(node: &Node, graph: &Graph, capture: &Capture) -> Plan {
    plan_of(node, graph, capture, false)
}

/// The same; `all` asks for `node` in steps too in which it was not captured.
pub(super) fn plan_of(node: &Node, graph: &Graph, capture: &Capture, all: bool) -> Plan {
    let mut plan = Plan::new();
    let Some(target) = graph.index(node.id) else {
        return plan;
    };
    let known = |index: usize, s: usize| {
        let step = &capture.steps[s];
        step.rows() == 0 || step.stages.contains_key(&graph.nodes[index].id)
    };
    // Asks for the operands of `node` in `steps` that are not known.
    let ask = |plan: &mut Plan, node: &Node, steps: Vec<bool>, own: &dyn Fn(usize) -> bool| {
        for s in (0..steps.len()).filter(|&s| steps[s]) {
            // A state is made of all steps before, back to where it is known.
            let first = match node.has_state() {
                true => (0..s).rev().find(|&b| own(b)).map_or(0, |b| b + 1),
                false => s,
            };
            for (place, &input) in node.inputs.iter().enumerate() {
                let back = usize::from(node.looks_back(place));
                for at in (first..=s).filter_map(|at| at.checked_sub(back)).filter(|&at| !known(input, at)) {
                    plan.entry(input).or_insert_with(|| vec![false; steps.len()])[at] = true;
                }
            }
        }
    };
    let wanted = (0..capture.steps.len()).map(|s| all || known(target, s)).collect();
    ask(&mut plan, node, wanted, &|_| false);
    for index in (0..target).rev() {
        if let Some(steps) = plan.get(&index).cloned() {
            ask(&mut plan, &graph.nodes[index], steps, &|s| known(index, s));
        }
    }
    plan
}

/// Products that evaluating `node` takes before the node itself, over those that evaluating `than` takes.
pub fn products_beyond(node: &Node, than: &Node, oracle: &Oracle<'_>, capture: &Capture) -> usize {
    let graph = &oracle.graph;
    let (needed, have): (Plan, Plan) = [node, than].map(|n| plan(n, graph, capture)).into();
    let beyond = needed.iter().filter(|(i, _)| !have.contains_key(i));
    beyond
        .map(|(&index, wanted)| {
            let node = &graph.nodes[index];
            let steps = capture.steps.iter().zip(wanted).filter(|(_, wanted)| **wanted);
            steps.map(|(step, _)| products(node, step, &oracle.weights)).sum::<usize>()
        })
        .sum()
}

/// What the linear layers take that `node` is judged by on these sides; `None` where there are none.
pub(super) fn work(node: &Node, oracle: &Oracle<'_>, sides: &[Side<'_>]) -> Option<Work> {
    let mut work = Work { stage: node.id, products: 0, weights: 0 };
    for Side { capture, .. } in sides {
        let mut plan = plan(node, &oracle.graph, capture);
        let own = capture.steps.iter().map(|step| step.stages.contains_key(&node.id)).collect();
        plan.insert(oracle.graph.index(node.id)?, own);
        for (index, wanted) in plan {
            let node = &oracle.graph.nodes[index];
            let steps = capture.steps.iter().zip(wanted).filter(|(_, wanted)| *wanted);
            if let (true, Some(weight)) = (node.op.anatomy().multiplies_weights(), node.weights.first()) {
                let (n, m) = oracle.weights.extent(&weight.name);
                work.products += steps.map(|(step, _)| products(node, step, &oracle.weights)).sum::<usize>();
                work.weights = work.weights.max(n * m);
            }
        }
    }
    (work.products > 0).then_some(work)
}

/// Products of the linear layers that judging every stage of these sides takes, each computed once.
pub fn products_of(oracle: &Oracle<'_>, sides: &[Side<'_>]) -> usize {
    oracle.graph.nodes.iter().filter_map(|node| work(node, oracle, sides)).map(|work| work.products).sum()
}

/// Products that evaluating `node` takes in a step.
fn products(node: &Node, step: &Step, weights: &dyn WeightSource) -> usize {
    let each = node.op.anatomy().terms(|| weights.extent(&node.weights[0].name).0, step.keys());
    each.unwrap_or(1) * step.extent(node).iter().product::<usize>()
}

/// Evaluates the segment that ends in `stage`, some steps at a time.
pub(super) fn evaluate(stage: Stage<'_>, side: (usize, Side<'_>), plan: &Plan, sink: &mut Sink<'_>) -> ControlFlow<()> {
    evaluate_drawn(stage, side, plan, None, sink)
}

/// The same; with `random`, every element within the segment is moved by a random share of what it may be off by, and counts as
/// exact after that.
pub(super) fn evaluate_drawn(
    stage: Stage<'_>, (index, side): (usize, Side<'_>), plan: &Plan, mut random: Option<&mut Random>,
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let mut states: HashMap<usize, State> = HashMap::new();
    let mut of_target = State::new();
    // What states were after the last step of a group, which the next one may look back to.
    let mut last: Vec<(usize, usize, Valued)> = Vec::new();
    for group in groups(side.capture) {
        let mut computed = Computed::default();
        for (&inside, steps) in plan {
            let node = &stage.graph.nodes[inside];
            let source = Source {
                index: 0,
                side,
                // A state also goes through steps that are not selected.
                steps: group.iter().copied().filter(|&s| node.has_state() || steps[s]).collect(),
                computed: Some(&computed),
                resumes: true,
                passed: None,
                filter: None,
            };
            let mut values: Expected = vec![None; side.capture.steps.len()];
            // Nobody saw what it was rounded to; a cache's rows were rounded when they went in.
            let narrow = side.capture.rounding.output(node.id);
            let narrow = if node.has_state() { DType::F32 } else { narrow };
            let state = states.entry(inside).or_default();
            let flow = apply(Stage { node, ..stage }, &[source], state, &mut |mut block| {
                if narrow != DType::F32 {
                    let steps = block.value.data.iter().map(|v| narrow.half_step(*v) as f32);
                    widen(block.bound.to_mut(), steps);
                }
                if let Some(random) = random.as_deref_mut() {
                    random.scatter(&mut block);
                }
                // Attention over unknown rows cannot be evaluated.
                if block.known.is_none_or(|known| !known.contains(&false)) {
                    put(node, block, &mut values);
                }
                ControlFlow::Continue(())
            });
            debug_assert!(flow.is_continue(), "nothing breaks off");
            for (_, step, value) in last.iter_mut().filter(|(of, ..)| *of == inside) {
                values[*step] = Some(std::mem::take(value));
            }
            computed.own.insert(inside, values);
        }
        let end = group.last().copied().unwrap_or(0);
        let states = plan.keys().filter(|i| stage.graph.nodes[**i].has_state());
        last = states.filter_map(|i| Some((*i, end, computed.own.get(i)?[end].clone()?))).collect();
        let source =
            Source { index, side, steps: group, computed: Some(&computed), resumes: false, filter: None, passed: None };
        let rounded = !side.capture.rounding.plain() && random.is_none();
        apply(stage, &[source], &mut of_target, &mut |mut block| {
            if rounded {
                block.bound.to_mut().iter_mut().for_each(|b| *b *= TOGETHER);
            }
            sink(block)
        })?;
    }
    ControlFlow::Continue(())
}

/// Steps that are evaluated together: as many as one pass over weights takes.
fn groups(capture: &Capture) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut rows = 0;
    for (s, step) in capture.steps.iter().enumerate() {
        rows += step.rows();
        match groups.last_mut() {
            Some(group) if rows <= ROWS_AT_ONCE => group.push(s),
            _ => {
                groups.push(vec![s]);
                rows = step.rows();
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::Arithmetic;
    use crate::capture::{Collector, Filter, Store, Want};
    use crate::llama::gguf::GgmlWeights;
    use crate::llama::{Load, Model};
    use qdiff_engine::cpu::CpuEngine;
    use qdiff_engine::gguf::Gguf;
    use qdiff_engine::model::Role;
    use qdiff_synth::Synth;

    /// A stage counts with the layers of its segment, of which none is judged alone: together they take as much.
    #[test]
    fn the_layers_of_a_segment_are_work_of_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        Synth::default().write(&path).unwrap();
        let (gguf, model) = (Gguf::open(&path).unwrap(), Model::load(&path, Load::Vocabulary).unwrap());
        let oracle = Oracle::new(GgmlWeights::open(&gguf).unwrap(), &model).unwrap();
        let (graph, arithmetic, store) = (&oracle.graph, Arithmetic::default(), Store::usual(None));
        let of = |shown: fn(&Node) -> bool| {
            let filter = Filter::default();
            let want = Want::new(graph, &filter, &shown, &store);
            let mut capture = Capture::new(store.clone());
            let mut engine = CpuEngine::new(graph.clone(), &oracle.weights);
            for tokens in [&[1, 2, 3][..], &[4]] {
                let mut taps = Collector::new(&want, engine.position(), tokens);
                engine.step(tokens, &mut taps);
                capture.steps.push(taps.finish());
            }
            let side = Side { capture: &capture, arithmetic: &arithmetic };
            graph.nodes.iter().filter_map(|node| work(node, &oracle, &[side, side])).collect::<Vec<Work>>()
        };
        let (each, end) = (of(|_| true), of(|node| matches!(node.role, Role::Embedding | Role::Logits)));
        let linear = |node: &&Node| node.op.anatomy().is_layer();
        assert_eq!(each.len(), graph.nodes.iter().filter(linear).count());
        let of_all: usize = each.iter().map(|work| work.products).sum();
        let largest = each.iter().map(|work| work.weights).max().unwrap();
        let end = end.iter().map(|work| (work.products, work.weights)).collect::<Vec<_>>();
        assert_eq!(end, [(of_all, largest)]);
    }
}
