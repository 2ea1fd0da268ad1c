//! Where the time of a step goes on the card.
//!
//! Kernels of a decode step overlap, so the time of each alone says little about its part of the step. Their
//! blocks say when they began, had waited, and ended (`decode.cuh`), in a replay of a graph of its own.

use super::CudaError;
use super::calls::{Job, calls_of};
use super::captured::Fast;
use super::device::{Doing as _, time};
use super::engine::CudaEngine;
use super::kernels::{AttentionRowsParams, Params, WideAttentionParams};
use super::launch::Call;
use super::weights::{Planes, Weight};
use cudarc::driver::{CudaEvent, CudaStream, result, sys};

/// What a launch must do at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights and of caches that it reads.
    pub bytes: usize,
    /// Additions and multiplications of its products, however many more the tensor cores make for accuracy.
    pub operations: usize,
}

/// A launch of a decode step, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// Name of the kernel.
    pub kernel: String,
    /// What it does.
    pub work: Work,
    /// From the end of the launch before until the first block goes on.
    pub handover: f64,
    /// From then until the last block has ended.
    pub turn: f64,
}

/// A decode step, in seconds: launches add up to what lies between the time when the first block of the first of them
/// goes on and the last block's end of the last.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedStep {
    /// The replay on the card, by events around it.
    pub whole: f64,
    /// In their order.
    pub launches: Vec<Timed>,
}

/// `Stamp` of `decode.cuh`: when a block began, had waited, and ended, in ns; 0 where it did not.
type Stamp = [u64; 3];

/// Seconds of a replay, and of its launches as [`launches_of`] gives them.
type Replay = (f64, Vec<[f64; 2]>);

impl CudaEngine {
    /// How long each launch of a decode step takes at this position inside the captured graph, on average over the faster
    /// half of `replays`. Nothing for the tapped path. A full context forgets its last token, to have a position to run
    /// at.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn time_launches(&mut self, replays: usize) -> Result<Option<TimedStep>, CudaError> {
        let replays = replays.max(1);
        self.rewind(self.position.min(self.options.context.saturating_sub(1)));
        let Some(fast) = &self.fast else { return Ok(None) };
        let mut calls: Vec<Call> =
            calls_of(self.schedule_of(Some(fast), &|_| false).step(&[0], self.position)).collect();
        let blocks = |call: &Call| (call.grid.0 * call.grid.1 * call.grid.2) as usize;
        let all: usize = calls.iter().map(blocks).sum();
        let memory = self.stream.alloc_zeros::<u64>(3 * all).doing("taking device memory")?;
        let start = cudarc::driver::DevicePtr::device_ptr(&memory, &self.stream).0;
        let mut at = start;
        for call in &mut calls {
            let bytes = (size_of::<Stamp>() * blocks(call)) as u64;
            if let Some(stamps) = call.params.stamps() {
                *stamps = at;
            }
            at += bytes;
        }
        let captured = self.capture_of(&calls)?;
        let mut measured: Vec<Replay> = Vec::new();
        let mut stamps = vec![[0; 3]; all];
        // Once unmeasured.
        for replay in 0..=replays {
            // SAFETY: the memory's own address and length.
            unsafe { result::memset_d8_async(start, 0, size_of_val(stamps.as_slice()), self.stream.cu_stream()) }
                .doing("clearing stamps")?;
            self.stream.synchronize().doing("clearing stamps")?;
            let launch = || captured.graph.launch().doing("launching a decode step");
            let whole = time(&self.context, &self.stream, launch)?;
            // SAFETY: as above.
            unsafe { result::memcpy_dtoh_sync(bytemuck::cast_slice_mut::<Stamp, u64>(&mut stamps), start) }
                .doing("reading stamps")?;
            if replay > 0 {
                measured.push((whole, launches_of(&stamps, calls.iter().map(blocks))));
            }
        }
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        measured.truncate(replays.div_ceil(2));
        let mean = |of: &dyn Fn(&Replay) -> f64| measured.iter().map(of).sum::<f64>() / measured.len() as f64;
        let launches = calls.iter().enumerate().map(|(i, call)| Timed {
            kernel: call.kernel().to_string(),
            work: self.work(call),
            handover: mean(&|m| m.1[i][0]),
            turn: mean(&|m| m.1[i][1]),
        });
        Ok(Some(TimedStep { whole: mean(&|m| m.0), launches: launches.collect() }))
    }

    /// How long the captured graph of a decode step takes at this position, on the card alone: `repeats` times alone,
    /// then the mean of as many in a row, in seconds. Nothing for the tapped path. A full context forgets its last
    /// token, to have a position to run at.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn time_steps(&mut self, repeats: usize) -> Result<Option<(Vec<f64>, f64)>, CudaError> {
        self.rewind(self.position.min(self.options.context.saturating_sub(1)));
        let Some(mut fast) = self.fast.take() else { return Ok(None) };
        let none = vec![false; self.graph.nodes.len()];
        let replayed = self.replay(&mut fast, 0, &none);
        self.fast = Some(fast);
        replayed?;
        self.stream.synchronize().doing("running a step")?;
        let Some(captured) = self.fast.as_ref().and_then(Fast::captured) else { return Ok(None) };
        let launch = || captured.graph.launch().doing("launching a decode step");
        let alone = (0..repeats).map(|_| time(&self.context, &self.stream, launch)).collect::<Result<_, _>>()?;
        let all = time(&self.context, &self.stream, || (0..repeats).try_for_each(|_| launch()))?;
        Ok(Some((alone, all / repeats as f64)))
    }

    /// How long each launch of an untapped step of `tokens` from position 0 on takes, by events between them: its kernel,
    /// or that it is a product by cuBLAS, what it does, and seconds, in their order. Forgets what was seen.
    ///
    /// # Errors
    /// If CUDA fails.
    ///
    /// # Panics
    /// If there are more tokens than there is room for.
    pub fn time_walk(&mut self, tokens: &[u32]) -> Result<Vec<(String, Work, f64)>, CudaError> {
        self.rewind(0);
        self.queue(tokens, &mut crate::tap::NoTaps)?;
        self.rewind(0);
        let jobs: Vec<Job> =
            self.schedule_of(self.fast.as_ref(), &|_| false).step(tokens, 0).into_iter().flat_map(|l| l.jobs).collect();
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = |stream: &CudaStream| -> Result<CudaEvent, CudaError> {
            stream.record_event(timed).doing("recording an event")
        };
        let mut events = vec![event(&self.stream)?];
        for job in &jobs {
            self.run(job)?;
            events.push(event(&self.stream)?);
        }
        self.stream.synchronize().doing("running a step")?;
        let told = |job: &Job| match job {
            Job::Kernel(call) => (call.kernel().to_string(), self.work(call)),
            Job::Product(_) => ("cuBLAS".to_owned(), Work::default()),
            Job::Exchange(_) => ("NCCL".to_owned(), Work::default()),
        };
        let took = |pair: &[CudaEvent]| pair[0].elapsed_ms(&pair[1]).doing("reading a time");
        let times =
            events.windows(2).map(|pair| Ok(f64::from(took(pair)?) / 1e3)).collect::<Result<Vec<_>, CudaError>>()?;
        Ok(jobs.iter().map(told).zip(times).map(|((name, work), time)| (name, work, time)).collect())
    }

    /// What a launch of the fast path does: of kernels that multiply no weights and read no caches, nothing.
    fn work(&self, call: &Call) -> Work {
        let (config, memory) = (&self.graph.config, &self.memory);
        let part = |matrices: &[Planes], tokens: usize, rows: &dyn Fn(&Weight) -> usize| {
            let of = |planes: &&Planes| memory.weights.values().find(|w| w.planes == **planes);
            matrices.iter().filter(|planes| planes[0] != 0).filter_map(|planes| of(&planes)).fold(
                Work::default(),
                |all, w| Work {
                    bytes: all.bytes + rows(w) * w.ty.row_bytes(w.n),
                    operations: all.operations + 2 * rows(w) * w.n * tokens,
                },
            )
        };
        let product = |matrices: &[Planes], tokens: usize| part(matrices, tokens, &|w| w.m);
        // For the chosen experts alone.
        let rows = |matrices: &[Planes], count: i32| part(matrices, 1, &|_| count as usize);
        // For each query head with the keys that it sees: scores and context.
        let attention = |seen: usize| 4 * config.n_heads * config.head_dim * seen;
        let caches = |keys: usize| 2 * config.n_kv_heads * config.head_dim * self.options.kv_number().size() * keys;
        match &call.params {
            Params::AttnQkv(p) => product(&p.w, 1),
            Params::AttnOut(p) => product(&[p.w], 1),
            Params::FfnAct(p) => product(&[p.gate, p.up], 1),
            Params::HalfLinear(p) => product(&[p.w], 1),
            Params::Router(p) => product(&[p.w], 1),
            Params::ExpertAct(p) => rows(&[p.gate, p.up], p.choice.taken * p.m),
            Params::ExpertDown(p) => rows(&[p.w], p.taken * p.m),
            // Which experts' weights it reads is not known here.
            Params::ExpertRows(p) => Work { bytes: 0, operations: 2 * p.n as usize * p.m as usize * p.lines as usize },
            // A part that is not there has the weights of the last.
            Params::MixerIn(p) => product(&p.w[..p.m.iter().filter(|&&m| m > 0).count()], 1),
            Params::DeltaStep(p) => {
                let state = self.graph.nodes.iter().zip(&memory.outputs).find(|(_, part)| part.at == p.state);
                let elements = state.map_or(0, |(_, part)| part.bytes / 4);
                Work { bytes: 4 * elements, operations: 8 * elements }
            }
            Params::MixerOut(p) => product(&[p.w], 1),
            Params::LmHead(p) => product(&[p.w], 1),
            Params::Products(p) => product(&p.w, p.tokens as usize),
            Params::WideProducts(p) => {
                let elements = p.n as usize * p.m.iter().map(|&m| m as usize).sum::<usize>();
                Work { bytes: 2 * elements, operations: 2 * elements * p.tokens as usize }
            }
            Params::Attention(_) | Params::AttentionHalves(_) => {
                let keys = self.position + 1;
                Work { bytes: caches(keys), operations: attention(keys) }
            }
            Params::AttentionRows(AttentionRowsParams { first, tokens, .. })
            | Params::WideAttention(WideAttentionParams { first, tokens, .. }) => {
                let (first, tokens) = (*first as usize, *tokens as usize);
                Work {
                    bytes: caches(first + tokens),
                    operations: attention(tokens * first + tokens * (tokens + 1) / 2),
                }
            }
            _ => Work::default(),
        }
    }
}

/// For each launch the seconds from the end of the one before until its first block goes on, and from then until its
/// last has ended.
fn launches_of(mut stamps: &[Stamp], blocks: impl Iterator<Item = usize>) -> Vec<[f64; 2]> {
    let mut before = None;
    let mut all = Vec::new();
    for count in blocks {
        let (here, rest) = stamps.split_at(count);
        stamps = rest;
        // A block with nothing to do ends before its turn.
        let waited = here.iter().map(|s| s[1]).filter(|&t| t > 0).min().unwrap_or(0);
        let ended = here.iter().map(|s| s[2]).max().unwrap_or(0).max(waited);
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 * 1e-9;
        all.push([before.map_or(0.0, |end| seconds(end, waited)), seconds(waited, ended)]);
        before = Some(ended);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::launches_of;

    #[test]
    fn the_launches_of_a_step_add_up_to_it() {
        let stamps = [[5, 100, 150], [6, 101, 180], [90, 0, 95], [90, 200, 260], [95, 202, 290], [200, 295, 300]];
        let launches = launches_of(&stamps, [2, 3, 1].into_iter());
        let ns = |x: f64| (x * 1e9).round() as u64;
        assert_eq!(launches.iter().flatten().map(|&x| ns(x)).collect::<Vec<_>>(), [0, 80, 20, 90, 5, 5]);
        assert_eq!(ns(launches.iter().flatten().sum()), 300 - 100);
    }
}
