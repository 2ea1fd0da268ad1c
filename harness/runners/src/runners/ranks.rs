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
use qdiff_engine::quant::KvType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
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
    end: End,
    manifest: Manifest,
}

/// Ends what ranks wait for of each other.
type End = Box<dyn Fn() + Send + Sync>;

/// Lets nobody wait for a rank that panics.
struct Ending<'e>(&'e End);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}

impl<'a> Ranks<'a> {
    /// The ranks that `graph` is cut over by the CPU interpreter, on slices of the weights of `model`: they add up through
    /// memory that all share.
    pub fn on_cpu(model: &'a Model, graph: &Graph, kv: KvType, manifest: Manifest) -> Self {
        let meet = Arc::new(SharedMemory::new(graph.ranks()));
        let weights = Arc::new(Slices::new(model));
        let engine = |rank| {
            let peers = Peers { rank, exchange: meet.clone() };
            Box::new(CpuEngine::of_rank(graph, weights.clone(), peers).with_kv(kv)) as Box<dyn Rank + 'a>
        };
        let engines = (0..graph.ranks()).map(engine).collect();
        Self::of(engines, Box::new(move || meet.end()), manifest)
    }

    /// These engines, each of a rank; `end` ends what they wait for of each other.
    pub(super) fn of(engines: Vec<Box<dyn Rank + 'a>>, end: End, manifest: Manifest) -> Self {
        let name = format!("{}, {}", manifest.name, counted(engines.len(), "rank"));
        Self { engines, end, manifest: Manifest { name, ..manifest } }
    }
}

impl Runner for Ranks<'_> {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        let (end, failed) = (&self.end, Mutex::new(None));
        let one = |engine: &mut Box<dyn Rank + '_>| {
            let _ending = Ending(end);
            let mut taps = Collector::new(want, engine.position(), tokens);
            if let Err(error) = engine.step(tokens, &mut taps) {
                // The first is the reason of the others.
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                end();
            }
            taps.finish()
        };
        let steps = thread::scope(|scope| {
            let running: Vec<_> = self.engines.iter_mut().map(|engine| scope.spawn(|| one(engine))).collect();
            let joined = running.into_iter().map(|rank| rank.join().unwrap_or_else(|e| resume_unwind(e)));
            joined.collect::<Vec<_>>()
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => together(steps),
        }
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

/// The places of a cut graph's stages in the whole one.
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
        ensure!(step.tokens == tokens, "{} ran other tokens than it was given", self.manifest().name);
        Ok(self.origins.cut(&step, &want.store))
    }

    fn vary(&mut self, run: usize) -> Result<Option<&'static str>> {
        self.inner.vary(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::Arithmetic;
    use anyhow::bail;
    use qdiff_engine::cpu::Exchange as _;
    use qdiff_engine::ops::Tensor;
    use std::panic::catch_unwind;

    /// A rank that fails, or waits for one that never comes.
    struct One {
        fails: bool,
        meet: Arc<SharedMemory>,
    }

    impl Rank for One {
        fn position(&self) -> usize {
            0
        }

        fn step(&mut self, _: &[u32], _: &mut Collector) -> Result<()> {
            if self.fails {
                bail!("no more memory");
            }
            let meet = self.meet.clone();
            let waited = catch_unwind(move || meet.exchange(0, Arc::new(Tensor::zeros(vec![1]))));
            ensure!(waited.is_ok(), "another rank has ended");
            Ok(())
        }
    }

    /// Its error is reported, whichever rank it is, and not that of a rank that waited for it.
    #[test]
    fn a_rank_that_fails_ends_the_others() {
        for failing in 0..2 {
            let meet = Arc::new(SharedMemory::new(2));
            let one = |rank| Box::new(One { fails: rank == failing, meet: meet.clone() }) as Box<dyn Rank>;
            let (engines, end) = ((0..2).map(one).collect(), meet.clone());
            let manifest = Manifest {
                name: "two".to_owned(),
                arithmetic: Arithmetic::default(),
                injected: Vec::new(),
                stored: None,
                unkept: None,
            };
            let mut ranks = Ranks::of(engines, Box::new(move || end.end()), manifest);
            let error = ranks.step(&[1], &Want::nothing()).expect_err("a rank fails");
            assert_eq!(error.to_string(), "no more memory");
        }
    }
}
