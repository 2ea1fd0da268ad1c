//! What judging gives for each stage alone: both residuals, and the distance between the sides. It takes nearly all of
//! the time, and no stage waits for another: several machines can share it. What follows of all of them together, `judge`
//! concludes.

use super::local::add_other;
use super::mode::CheckMode;
use super::result::own_status;
use super::segment::work;
use super::{Global, Local, Policy, Side, StageResult, global, residuals};
use crate::capture::{Capture, Filter, Stored};
use crate::oracle::Oracle;
use crate::products::Evaluated;
use crate::progress::Progress;
use anyhow::{Result, ensure};
use qdiff_engine::model::{Graph, Node, StageId};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What is being done, as progress tells it.
const JUDGING: &str = "judging against f64";

/// Share by which two machines may differ in what they find of the same values: sums of f64 in another order.
const SAME: f64 = 1e-3;

/// Steps and positions of rows.
type Rows = BTreeSet<(usize, usize)>;

/// The measurements of one stage, judged alone.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// The stage.
    pub stage: StageId,
    /// Residual of the subject.
    subject: Option<Local>,
    /// Residual of the reference.
    reference: Option<Local>,
    /// Distance between the two.
    global: Option<Global>,
    /// Rows of either that probes passed.
    #[serde(default, skip_serializing_if = "none_passed")]
    passed: [Rows; 2],
    /// On what its linear layers were evaluated, if not as a matter of course on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evaluated: Option<Evaluated>,
    /// Checksums of what either gave, and of what that was judged on.
    values: [Option<u32>; 2],
    /// Checksums of the number formats that it was held to be stored and computed in, with those of what it reads.
    formats: [u32; 2],
    /// Seconds that it took.
    #[serde(skip)]
    seconds: f64,
}

fn none_passed(passed: &[Rows; 2]) -> bool {
    passed.iter().all(Rows::is_empty)
}

impl Measured {
    /// Whether both sides were judged there.
    pub fn judged(&self) -> bool {
        [&self.subject, &self.reference].iter().all(|local| local.as_ref().is_some_and(|l| l.inconclusive == 0))
    }

    /// Whether a side was found wrong there.
    pub fn wrong(&self) -> bool {
        self.subject.iter().chain(&self.reference).any(|local| !local.ok())
    }

    /// Whether it holds what no judging gives: rows beyond what is allowed, of which none is.
    pub fn contradicts_itself(&self) -> bool {
        self.subject.iter().chain(&self.reference).any(|l| l.ok() && (l.bad_rows > 0 || l.first_bad.is_some()))
    }

    /// Whether another judging found the same.
    pub(super) fn same(&self, other: &Self) -> bool {
        let sides = [(&self.subject, &other.subject), (&self.reference, &other.reference)];
        let errors = [self, other].map(|m| m.global.map(|g| (g.error.to_bits(), g.identical)));
        errors[0] == errors[1] && sides.into_iter().all(|(a, b)| same(a.as_ref(), b.as_ref()))
    }

    /// On what the linear layers were evaluated that it was judged by.
    pub(super) fn evaluated(&self) -> Option<(StageId, &Evaluated)> {
        Some((self.stage, self.evaluated.as_ref()?))
    }

    /// A stage that was not judged.
    fn nothing(stage: StageId) -> Self {
        Self {
            stage,
            subject: None,
            reference: None,
            global: None,
            passed: Default::default(),
            evaluated: None,
            values: [None; 2],
            formats: [0; 2],
            seconds: 0.0,
        }
    }

    /// As the verdict has it, before anything is concluded.
    fn result(self, graph: &Graph, node: &Node, alone: bool) -> StageResult {
        StageResult {
            id: node.id,
            status: own_status(self.subject.as_ref(), self.reference.as_ref(), alone),
            inputs: node.reads().map(|i| graph.nodes[i].id).collect(),
            origin: false,
            unread: false,
            kept: false,
            global: self.global,
            subject: self.subject,
            reference: self.reference,
            seconds: self.seconds,
        }
    }
}

/// Judges each of these stages alone; `reference` holds nothing where there is none.
///
/// # Errors
/// If a requested GPU cannot be used, or gives other values than the CPU.
pub(super) fn stages(
    oracle: &Oracle<'_>, asked: &[&Node], sides: &[Side<'_>; 2], filter: &Filter, policy: &Policy,
    progress: Progress<'_>,
) -> Result<Vec<Measured>> {
    let work: Vec<_> = asked.iter().filter_map(|node| work(node, oracle, sides)).collect();
    oracle.products.begin(policy.oracle, policy.mode == CheckMode::Full, &work)?;
    let done = AtomicUsize::new(0);
    let [subject, reference] = sides;
    let one = |node: &&Node| {
        let start = Instant::now();
        // Then there is no verdict, and nobody waits for the rest.
        if oracle.products.trouble().is_err() {
            return Measured::nothing(node.id);
        }
        let mut locals = residuals(node, oracle, sides, filter, policy);
        // A device alone convicts nobody: where it differs from the CPU, that is the error.
        if locals.iter().flatten().any(|local| !local.ok()) && oracle.products.hold(node.id) {
            locals = residuals(node, oracle, sides, filter, policy);
        }
        let mut locals = locals.into_iter();
        let (mut of_subject, of_reference) = (locals.next().flatten(), locals.next().flatten());
        if let Some(local) = &mut of_subject {
            add_other(node, local, reference.capture);
        }
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(JUDGING, done, asked.len());
        Measured {
            global: global::compare(node, subject.capture, reference.capture, filter),
            subject: of_subject,
            reference: of_reference,
            evaluated: oracle.products.evaluated(node.id),
            seconds: start.elapsed().as_secs_f64(),
            ..Measured::nothing(node.id)
        }
    };
    progress(JUDGING, 0, asked.len());
    // The last ones, the logits, take longest, and the others fill the cores while they are judged.
    let mut measured: Vec<Measured> = asked.par_iter().rev().map(one).collect();
    measured.reverse();
    oracle.products.end()?;
    Ok(measured)
}

/// The selected stages of a part of the work, each judged alone, with checksums of the arrays that it was judged on.
///
/// # Errors
/// If a captured tensor could not be kept or read back.
pub fn measure(
    oracle: &Oracle<'_>, subject: Side<'_>, reference: Side<'_>, (filter, own): (&Filter, &HashSet<StageId>),
    policy: &Policy, progress: Progress<'_>,
) -> Result<Vec<Measured>> {
    let sides = [subject, reference];
    // What was not read counts as not captured here, so that more is judged than is selected, never less.
    let mut asked = asked(&oracle.graph, filter, &sides);
    asked.retain(|node| own.contains(&node.id));
    let mut all = stages(oracle, &asked, &sides, filter, policy, progress)?;
    let digests = sides.map(|side| Digests::of(&oracle.graph, side.capture));
    all.par_iter_mut().zip(&asked).for_each(|(measured, node)| {
        let passed = |local: &Option<Local>| local.as_ref().map(|l| l.passed.clone()).unwrap_or_default();
        measured.passed = [passed(&measured.subject), passed(&measured.reference)];
        measured.values = [0, 1].map(|i| digests[i].values(&oracle.graph, sides[i].capture, node));
        measured.formats = sides.map(|side| formats(&oracle.graph, side.capture, node));
    });
    for side in sides {
        side.capture.store.trouble()?;
    }
    Ok(all)
}

/// What a stage may be judged on, itself among it: of the stages that are captured in `any` step those from which it can be
/// evaluated in some step, going back to stages that are captured in `all` of them.
pub fn read_for(
    graph: &Graph, index: usize, any: &dyn Fn(usize) -> bool, all: &dyn Fn(usize) -> bool,
) -> BTreeSet<usize> {
    let (mut found, mut seen, mut open) = (BTreeSet::from([index]), BTreeSet::new(), vec![index]);
    while let Some(at) = open.pop() {
        for input in graph.nodes[at].reads() {
            if !seen.insert(input) {
                continue;
            }
            if any(input) {
                found.insert(input);
            }
            if !all(input) {
                open.push(input);
            }
        }
    }
    found
}

/// The same in a capture.
fn read_of(graph: &Graph, capture: &Capture, node: &Node) -> Vec<StageId> {
    let id = |i: usize| graph.nodes[i].id;
    let any = |i: usize| capture.steps.iter().any(|step| step.stages.contains_key(&id(i)));
    let all = |i: usize| capture.steps.iter().all(|step| step.stages.contains_key(&id(i)));
    graph.index(node.id).map_or_else(Vec::new, |i| read_for(graph, i, &any, &all).into_iter().map(id).collect())
}

/// Checksums of what a capture holds of each stage, step by step.
struct Digests(HashMap<StageId, Vec<u32>>);

impl Digests {
    fn of(graph: &Graph, capture: &Capture) -> Self {
        let steps = |id: StageId| capture.steps.iter().map(move |step| step.stages.get(&id));
        let captured = graph.nodes.par_iter().filter(|node| steps(node.id).any(|stored| stored.is_some()));
        let digest = |stored: Option<&Stored>| stored.map_or(0, Stored::digest);
        Self(captured.map(|node| (node.id, steps(node.id).map(digest).collect())).collect())
    }

    /// The checksum of all arrays that a stage may be judged on; `None` where the stage was not captured.
    fn values(&self, graph: &Graph, capture: &Capture, node: &Node) -> Option<u32> {
        let all = read_of(graph, capture, node).into_iter().filter_map(|id| self.0.get(&id)).flatten();
        let all: Vec<u32> = all.copied().collect();
        self.0.contains_key(&node.id).then(|| crc32fast::hash(bytemuck::cast_slice(&all)))
    }
}

/// Formats that are seen in values are seen in all that were read: fewer may show others.
fn formats(graph: &Graph, capture: &Capture, node: &Node) -> u32 {
    let rounding = &capture.rounding;
    let ids = read_of(graph, capture, node);
    let told: Vec<_> = ids.iter().map(|id| (rounding.output(*id), rounding.stored(*id))).collect();
    crc32fast::hash(format!("{} {told:?}", rounding.plain()).as_bytes())
}

/// How messages call the sides.
const SIDES: [&str; 2] = ["the subject", "the reference"];

/// The stages as the verdict has them before anything is concluded, of what was measured elsewhere; what was not is missing.
///
/// # Errors
/// Of other values than the captures hold.
pub(super) fn results(
    graph: &Graph, asked: &[&Node], sides: &[Side<'_>; 2], measured: &[Measured],
) -> Result<Vec<StageResult>> {
    let digests = [0, 1].map(|i| Digests::of(graph, sides[i].capture));
    let by_stage: HashMap<StageId, &Measured> = measured.iter().map(|m| (m.stage, m)).collect();
    let one = |node: &&Node| {
        let Some(measured) = by_stage.get(&node.id) else {
            return Ok(Measured::nothing(node.id).result(graph, node, false));
        };
        for (i, side) in sides.iter().enumerate() {
            ensure!(
                measured.values[i] == digests[i].values(graph, side.capture, node),
                "{} was judged on other values than the capture of {} holds now, of itself or of what it reads: judge all \
                 parts again",
                node.id,
                SIDES[i]
            );
            ensure!(
                measured.formats[i] == formats(graph, side.capture, node),
                "{} was judged as of other number formats than all of the capture of {} shows: a part of it shows others \
                 by chance; declare them in its manifest (`storage`, or `arithmetic`), and judge the parts again",
                node.id,
                SIDES[i]
            );
        }
        let mut measured = (*measured).clone();
        // A report does not contain them, so they are beside it.
        for (local, passed) in [&mut measured.subject, &mut measured.reference].into_iter().zip(&measured.passed) {
            local.iter_mut().for_each(|local| local.passed.clone_from(passed));
        }
        Ok(measured.result(graph, node, false))
    };
    // The first in graph order is reported, in any order of work.
    asked.par_iter().map(one).collect::<Vec<_>>().into_iter().collect()
}

/// The same of what was measured here.
pub(super) fn own(graph: &Graph, asked: &[&Node], measured: Vec<Measured>, alone: bool) -> Vec<StageResult> {
    measured.into_iter().zip(asked).map(|(measured, node)| measured.result(graph, node, alone)).collect()
}

/// The selected stages; for stages that a side did not capture, also the stages that show them.
pub(super) fn asked<'a>(graph: &'a Graph, filter: &Filter, sides: &[Side<'_>]) -> Vec<&'a Node> {
    let asked = |i: &usize| filter.stage(graph.nodes[*i].id);
    let mut all: BTreeSet<usize> = (0..graph.nodes.len()).filter(asked).collect();
    for side in sides {
        let captured: Vec<bool> =
            graph.nodes.iter().map(|n| side.capture.steps.iter().any(|s| s.stages.contains_key(&n.id))).collect();
        for index in (0..graph.nodes.len()).filter(asked) {
            if !captured[index] {
                all.extend(graph.after(index, &|i| captured[i]));
            }
        }
    }
    all.into_iter().map(|i| &graph.nodes[i]).collect()
}

/// Whether two residuals say the same.
fn same(a: Option<&Local>, b: Option<&Local>) -> bool {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (None, None) => return true,
        _ => return false,
    };
    let near = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a - b).abs() <= SAME * a.abs().max(b.abs()).max(SAME);
    let counts = |l: &Local| (l.ok(), l.rows, l.inconclusive, l.bad_rows, l.first_bad, l.extent.clone());
    // Of rows that only one machine computed the other knows no residual.
    let alike = a.probed != b.probed || near(a.used, b.used) && near(a.residual, b.residual);
    counts(a) == counts(b) && a.bad_positions == b.bad_positions && alike
}
