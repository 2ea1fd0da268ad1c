//! Bugs of ranks: another shard on the card than the graph says, or parts put together otherwise. Nothing here shares code with
//! a hypothesis: bytes of a weight are replaced on the card, or the exchange of a stage is made at another time, on another
//! stream, or changed after it.

use super::RankBug;
use crate::cuda::CudaError;
use crate::cuda::calls::{Job, Launch};
use crate::cuda::device::Doing as _;
use crate::cuda::engine::CudaEngine;
use crate::cuda::kernels::ResidualParams;
use crate::cuda::launch::Call;
use crate::cuda::nccl::Exchange;
use crate::model::WeightSource;
use cudarc::driver::{CudaStream, result, sys};

impl CudaEngine {
    /// Plants a bug at the collective that is node `index` of the rank's graph.
    ///
    /// # Errors
    /// If the kernels that it takes do not load.
    pub fn plant_rank(&mut self, index: usize, bug: RankBug) -> Result<(), CudaError> {
        self.rank_bug = Some((index, bug));
        // The captured graph has no bug.
        self.rank_graph = None;
        self.load_kernels()
    }

    /// Puts another slice of a tensor on the card in the place of `name`; with `scales` alone only what scales its blocks.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn plant_shard(
        &mut self, name: &str, other: &str, scales: bool, source: &dyn WeightSource,
    ) -> Result<(), CudaError> {
        self.context.bind_to_thread().doing("taking up the device")?;
        self.memory.replace(name, other, scales, source)
    }

    /// Whether the planted bug makes this launch otherwise.
    pub(in crate::cuda) fn changes(&self, launch: &Launch) -> bool {
        self.rank_bug.is_some_and(|(index, bug)| {
            let exchange = matches!(launch.jobs.first(), Some(Job::Exchange(_)));
            launch.nodes.contains(&index) && exchange
                || bug == RankBug::BeforeItsPart && launch.nodes.contains(&(index - 1))
        })
    }

    /// Lets a step that is captured end after an exchange that nobody waits for: CUDA captures nothing else.
    pub(in crate::cuda) fn join_copies(&self) -> Result<(), CudaError> {
        match self.rank_bug {
            Some((_, RankBug::NotAwaited)) => self.after(&self.stream, &self.copies),
            _ => Ok(()),
        }
    }

    /// Lets `later` wait for what `earlier` was given so far.
    fn after(&self, later: &CudaStream, earlier: &CudaStream) -> Result<(), CudaError> {
        let untimed = Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let event = self.context.new_event(untimed).doing("making an event")?;
        event.record(earlier).doing("recording an event")?;
        later.wait(&event).doing("planting a bug")
    }

    /// Runs the launch of a stage with the bug that is planted there; gives false where none is.
    pub(in crate::cuda) fn run_planted(&self, launch: &Launch) -> Result<bool, CudaError> {
        let Some((index, bug)) = self.rank_bug else { return Ok(false) };
        let exchange = |launch: &Launch| match launch.jobs.first() {
            Some(Job::Exchange(exchange)) => Some(exchange.clone()),
            _ => None,
        };
        if bug == RankBug::BeforeItsPart && launch.nodes.contains(&(index - 1)) {
            // The launch of the node behind it is made here, and that node's own place stays empty.
            let span = launch.span;
            for job in self.calls().of(index, span).iter().chain(&launch.jobs) {
                self.run(job)?;
            }
            return Ok(true);
        }
        let Some(e) = exchange(launch).filter(|_| self.changes(launch)) else { return Ok(false) };
        let count: usize = e.tokens * e.widths[0];
        match bug {
            RankBug::BeforeItsPart => {}
            RankBug::Fails => return Err(CudaError::Failed("a rank that was made to fail".to_owned())),
            RankBug::NotAwaited => {
                let captured = self.stream.capture_status().doing("planting a bug")?;
                if captured == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
                    self.after(&self.copies, &self.stream)?;
                }
                self.exchange_on(&e, &self.copies)?;
            }
            RankBug::NotReduced => {
                self.exchange_on(&e, &self.stream)?;
                // SAFETY: both are buffers of so many elements.
                unsafe { result::memcpy_dtod_async(e.to, e.from, 4 * count, self.stream.cu_stream()) }
                    .doing("planting a bug")?;
            }
            RankBug::OwnTwice | RankBug::SumTwice => {
                self.exchange_on(&e, &self.stream)?;
                let b = if bug == RankBug::OwnTwice { e.from } else { e.to };
                let params = ResidualParams { a: e.to, b, y: e.to, count: count as i32 };
                self.launch(&Call::flat(params, count), false)?;
            }
            RankBug::Reversed => {
                self.exchange_on(&e, &self.stream)?;
                self.reverse(&e)?;
            }
        }
        Ok(true)
    }

    /// Puts the gathered parts, all of one width, together from the last to the first.
    fn reverse(&self, e: &Exchange) -> Result<(), CudaError> {
        let (width, ranks) = (e.widths[0], e.widths.len());
        for rank in 0..ranks {
            for token in 0..e.tokens {
                let from = e.parts + 4 * (width * (rank * e.tokens + token)) as u64;
                let to = e.to + 4 * (width * (token * ranks + ranks - 1 - rank)) as u64;
                // SAFETY: both lie in buffers of the extents of the graph.
                unsafe { result::memcpy_dtod_async(to, from, 4 * width, self.stream.cu_stream()) }
                    .doing("planting a bug")?;
            }
        }
        Ok(())
    }
}
