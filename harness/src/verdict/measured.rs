//! What judging gives of each stage by itself: both residuals, and the distance between the sides. It takes nearly all of
//! the time, and no stage waits for another: several machines can share it. What follows of all of them together, `judge`
//! concludes.

use super::judge::own_status;
use super::{Global, Local, Policy, Side, StageResult, Status, global, residuals, rows};
use crate::capture::{Capture, Filter};
use crate::oracle::Oracle;
use crate::progress::Progress;
use anyhow::{Result, ensure};
use qdiff_engine::model::{Graph, Node, StageId};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Steps and positions of rows.
type Rows = BTreeSet<(usize, usize)>;

/// What judging gave of one stage by itself.
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
    /// Checksums of what either gave.
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
    /// Whether neither side was found wrong there.
    pub fn ok(&self) -> bool {
        self.subject.iter().chain(&self.reference).all(Local::ok)
    }

    /// As the verdict has it, before anything is concluded.
    fn result(mut self, graph: &Graph, node: &Node, alone: bool) -> StageResult {
        for (local, passed) in [&mut self.subject, &mut self.reference].into_iter().zip(self.passed) {
            local.iter_mut().for_each(|local| local.passed.clone_from(&passed));
        }
        StageResult {
            id: node.id,
            status: own_status(self.subject.as_ref(), self.reference.as_ref(), alone),
            inputs: node.reads().map(|i| graph.nodes[i].id).collect(),
            origin: false,
            unread: false,
            global: self.global,
            subject: self.subject,
            reference: self.reference,
            seconds: self.seconds,
        }
    }
}

/// Judges each of these stages by itself; `reference` holds nothing where there is none.
pub(super) fn stages(
    oracle: &Oracle<'_>, asked: &[&Node], sides: &[Side<'_>; 2], filter: &Filter, policy: &Policy,
    progress: Progress<'_>,
) -> Vec<Measured> {
    let done = AtomicUsize::new(0);
    let [subject, reference] = sides;
    let one = |node: &&Node| {
        let start = Instant::now();
        let mut locals = residuals(node, oracle, sides, filter, policy).into_iter();
        let (mut of_subject, of_reference) = (locals.next().flatten(), locals.next().flatten());
        if let Some(local) = &mut of_subject {
            rows::add_other(node, local, reference.capture);
        }
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress("judging against f64", done, asked.len());
        let passed = |local: &Option<Local>| local.as_ref().map(|l| l.passed.clone()).unwrap_or_default();
        Measured {
            stage: node.id,
            passed: [passed(&of_subject), passed(&of_reference)],
            global: global::compare(node, subject.capture, reference.capture, filter),
            subject: of_subject,
            reference: of_reference,
            values: [None; 2],
            formats: [0; 2],
            seconds: start.elapsed().as_secs_f64(),
        }
    };
    asked.par_iter().map(one).collect()
}

/// Those of the stages that are asked for, each by itself, with checksums of what was judged.
///
/// # Errors
/// If a captured tensor could not be kept or read back.
pub fn measure(
    oracle: &Oracle<'_>, subject: Side<'_>, reference: Side<'_>, filter: &Filter, policy: &Policy,
    progress: Progress<'_>,
) -> Result<Vec<Measured>> {
    let sides = [subject, reference];
    let asked = super::judge::asked(&oracle.graph, filter, &sides);
    let mut all = stages(oracle, &asked, &sides, filter, policy, progress);
    all.par_iter_mut().zip(&asked).for_each(|(measured, node)| {
        measured.values = values(&sides, node.id);
        measured.formats = formats(&oracle.graph, &sides, node);
    });
    for side in sides {
        side.capture.store.trouble()?;
    }
    Ok(all)
}

fn values(sides: &[Side<'_>; 2], id: StageId) -> [Option<u32>; 2] {
    let of = |capture: &Capture| {
        let given: Vec<u32> =
            capture.steps.iter().filter_map(|step| step.stages.get(&id)).map(crate::capture::Stored::digest).collect();
        (!given.is_empty()).then(|| crc32fast::hash(bytemuck::cast_slice(&given)))
    };
    [of(sides[0].capture), of(sides[1].capture)]
}

/// Formats that are seen in values are seen in all that were read: fewer may show others.
fn formats(graph: &Graph, sides: &[Side<'_>; 2], node: &Node) -> [u32; 2] {
    let of = |capture: &Capture| {
        let captured = |i: usize| capture.steps.iter().any(|step| step.stages.contains_key(&graph.nodes[i].id));
        let reads = graph.index(node.id).map(|i| graph.before(i, &captured)).unwrap_or_default();
        let ids = reads.iter().map(|&i| graph.nodes[i].id).chain([node.id]);
        let rounding = &capture.rounding;
        let told: Vec<_> = ids.map(|id| (rounding.output(id), rounding.stored(id))).collect();
        crc32fast::hash(format!("{} {told:?}", rounding.plain()).as_bytes())
    };
    [of(sides[0].capture), of(sides[1].capture)]
}

/// The stages as the verdict has them before anything is concluded, of what was measured elsewhere; what was not is missing.
///
/// # Errors
/// Of other values than the captures hold.
pub(super) fn results(
    graph: &Graph, asked: &[&Node], sides: &[Side<'_>; 2], measured: &[Measured],
) -> Result<Vec<StageResult>> {
    let by_stage: HashMap<StageId, &Measured> = measured.iter().map(|m| (m.stage, m)).collect();
    let one = |node: &&Node| {
        let Some(measured) = by_stage.get(&node.id) else {
            return Ok(StageResult {
                id: node.id,
                status: Status::Missing,
                inputs: node.reads().map(|i| graph.nodes[i].id).collect(),
                origin: false,
                unread: false,
                subject: None,
                reference: None,
                global: None,
                seconds: 0.0,
            });
        };
        ensure!(
            measured.values == values(sides, node.id),
            "{} was judged on other values than the captures hold now: judge that part again",
            node.id
        );
        ensure!(
            measured.formats == formats(graph, sides, node),
            "{} was judged as of other number formats than all of the capture shows: say in its manifest, as `storage`, what \
             it was rounded to where it was stored, and judge the parts again",
            node.id
        );
        Ok((*measured).clone().result(graph, node, false))
    };
    // The first in graph order is told, whichever is looked at first.
    asked.par_iter().map(one).collect::<Vec<_>>().into_iter().collect()
}

/// The same of what was measured here.
pub(super) fn own(graph: &Graph, asked: &[&Node], measured: Vec<Measured>, alone: bool) -> Vec<StageResult> {
    measured.into_iter().zip(asked).map(|(measured, node)| measured.result(graph, node, alone)).collect()
}
