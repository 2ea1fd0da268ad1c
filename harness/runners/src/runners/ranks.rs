//! Ranks: the stages of a graph that is cut, each rank's by an engine in a thread of its own; and a runner that is not cut,
//! beside a subject that is.

use super::{Manifest, Runner};
use crate::capture::{Collector, Step, Store, Stored, Want};
use anyhow::{Context as _, Result, ensure};
use qdiff_capture::number::counted;
use qdiff_engine::cpu::{CpuEngine, Peers, SharedMemory};
use qdiff_engine::cuda::CudaEngine;
use qdiff_engine::model::{Graph, Model, Node, Slices, StageId};
use qdiff_engine::ops::{Anatomy, anatomy};
use qdiff_engine::quant::ActivationFormat;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

/// The engine of one rank.
pub(super) trait Rank: Send {
    /// Tokens so far.
    fn position(&self) -> usize;

    /// Runs `tokens` at the next positions.
    fn step(&mut self, tokens: &[u32], taps: &mut Collector) -> Result<()>;
}

impl Rank for CpuEngine<'_> {
    fn position(&self) -> usize {
        CpuEngine::position(self)
    }

    fn step(&mut self, tokens: &[u32], taps: &mut Collector) -> Result<()> {
        CpuEngine::step(self, tokens, taps);
        Ok(())
    }
}

impl Rank for CudaEngine {
    fn position(&self) -> usize {
        CudaEngine::position(self)
    }

    fn step(&mut self, tokens: &[u32], taps: &mut Collector) -> Result<()> {
        Ok(CudaEngine::step(self, tokens, taps)?)
    }
}

/// An engine for every rank, each in a thread of its own.
pub struct Ranks<'a> {
    engines: Vec<Box<dyn Rank + 'a>>,
    /// Where ranks in one memory meet.
    meet: Option<Arc<SharedMemory>>,
    manifest: Manifest,
}

/// Lets nobody wait for a rank that panics.
struct Ending<'m>(Option<&'m SharedMemory>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.into_iter().for_each(SharedMemory::end);
        }
    }
}

impl<'a> Ranks<'a> {
    /// The ranks that `graph` is cut over by the CPU interpreter, on slices of the weights of `model`: they add up through
    /// memory that all share.
    pub fn on_cpu(model: &'a Model, graph: &Graph, kv: ActivationFormat, manifest: Manifest) -> Self {
        let meet = Arc::new(SharedMemory::new(graph.ranks()));
        let weights = Arc::new(Slices::new(model));
        let engine = |rank| {
            let peers = Peers { rank, exchange: meet.clone() };
            Box::new(CpuEngine::of_rank(graph, weights.clone(), peers).with_kv(kv)) as Box<dyn Rank + 'a>
        };
        Self::of((0..graph.ranks()).map(engine).collect(), Some(meet.clone()), manifest)
    }

    /// These engines, each of a rank.
    pub(super) fn of(engines: Vec<Box<dyn Rank + 'a>>, meet: Option<Arc<SharedMemory>>, manifest: Manifest) -> Self {
        let name = format!("{}, {}", manifest.name, counted(engines.len(), "rank"));
        Self { engines, meet, manifest: Manifest { name, ..manifest } }
    }
}

impl Runner for Ranks<'_> {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        let meet = self.meet.as_deref();
        let one = |engine: &mut Box<dyn Rank + '_>| {
            let _ending = Ending(meet);
            let mut taps = Collector::new(want, engine.position(), tokens);
            engine.step(tokens, &mut taps).map(|()| taps.finish())
        };
        let steps = thread::scope(|scope| {
            let running: Vec<_> = self.engines.iter_mut().map(|engine| scope.spawn(|| one(engine))).collect();
            let joined = running.into_iter().map(|rank| rank.join().unwrap_or_else(|e| resume_unwind(e)));
            joined.collect::<Result<Vec<_>>>()
        });
        together(steps?)
    }
}

/// A step of all ranks.
///
/// # Errors
/// If there is no rank.
fn together(steps: Vec<Step>) -> Result<Step> {
    let mut steps = steps.into_iter();
    let mut all = steps.next().context("a graph is cut over one rank at least")?;
    for step in steps {
        all.stages.extend(step.stages);
        all.choice = step.choice.or(all.choice);
    }
    Ok(all)
}

/// Where the stages of a cut graph stand in the whole one.
#[derive(Debug)]
pub struct Origins(HashMap<StageId, Origin>);

/// A stage of the whole graph, and the part of it that a rank has.
#[derive(Clone, Debug)]
struct Origin {
    whole: StageId,
    part: Option<(usize, std::ops::Range<usize>)>,
}

impl Origins {
    /// Those of `placed`, a graph that `whole` was cut to. A partial result stands nowhere in the whole graph.
    pub fn new(placed: &Graph, whole: &Graph) -> Self {
        let Some(placement) = &placed.placement else { return Self(HashMap::new()) };
        let joined = |n: &Node| n.op.anatomy() == Anatomy::Collective(anatomy::Collective::Concatenation);
        // What is put together of shards shows them.
        let shown: BTreeMap<usize, StageId> = placed
            .nodes
            .iter()
            .filter(|n| joined(n))
            .flat_map(|n| n.inputs.iter().map(|i| (*i, n.id.whole())))
            .collect();
        let origin = |(i, node): (usize, &Node)| {
            let id = shown.get(&i).copied().unwrap_or(node.id.whole());
            let of = &whole.nodes[whole.index(id)?];
            Some((node.id, Origin { whole: id, part: placement.part(node, of, whole) }))
        };
        Self(placed.nodes.iter().enumerate().filter_map(origin).collect())
    }

    /// The stage of the whole graph that holds this one, if one does.
    pub fn of(&self, id: StageId) -> Option<StageId> {
        self.0.get(&id).map(|origin| origin.whole)
    }

    /// The parts that the ranks have of the stages of a whole step.
    pub fn cut(&self, step: &Step, store: &Arc<Store>) -> Step {
        let cut = |(id, origin): (&StageId, &Origin)| {
            let whole = step.stages.get(&origin.whole)?;
            let stored: Stored = match &origin.part {
                Some((axis, range)) => store.keep(whole.slice(*axis, range.clone())),
                None => store.keep(whole.get().into_owned()),
            };
            Some((*id, stored))
        };
        let choice = step.choice.as_ref().map(|choice| store.keep(choice.get().into_owned()));
        let stages = self.0.iter().filter_map(cut).collect();
        // Of whole logits of which one row was computed, each rank has that row of its part.
        let of_last = |(ids, at): &(BTreeSet<StageId>, usize)| {
            let own = self.0.iter().filter(|(_, origin)| ids.contains(&origin.whole));
            (own.map(|(id, _)| *id).collect(), *at)
        };
        let last_row = step.last_row.as_ref().map(of_last);
        Step { kept: step.kept.clone(), stages, choice, last_row, ..step.bare() }
    }
}

/// A runner of the whole graph, of which each rank's part is taken.
pub struct Whole<'a> {
    inner: Box<dyn Runner + 'a>,
    whole: Graph,
    origins: Origins,
}

impl<'a> Whole<'a> {
    /// `inner` runs `whole`; what it gives is cut as `placed` is.
    pub fn new(inner: Box<dyn Runner + 'a>, placed: &Graph, whole: &Graph) -> Self {
        Self { inner, whole: whole.clone(), origins: Origins::new(placed, whole) }
    }
}

impl Runner for Whole<'_> {
    fn manifest(&self) -> &Manifest {
        self.inner.manifest()
    }

    fn taps(&self, node: &Node) -> bool {
        let whole = self.origins.of(node.id).and_then(|id| self.whole.index(id));
        whole.is_some_and(|i| self.inner.taps(&self.whole.nodes[i]))
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        let own = want.of_others(&self.whole, |id| self.origins.of(id));
        let step = self.inner.step(tokens, &own)?;
        ensure!(step.tokens == tokens, "{} ran other tokens than it was told", self.manifest().name);
        Ok(self.origins.cut(&step, &want.store))
    }

    fn vary(&mut self, run: usize) -> Result<Option<&'static str>> {
        self.inner.vary(run)
    }
}
