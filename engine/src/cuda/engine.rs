//! The forward pass on the GPU.
//!
//! All device memory is taken at the start. The tapped path walks the graph, one launch a node, every stage
//! materialised; the fast path replays a captured graph of fused kernels for a decode step, and launches those of
//! `prefill` for longer steps.

use super::arena::Arena;
use super::attend_several;
use super::blas::Blas;
use super::calls::{Calls, Job, Part, Span, check};
use super::captured::{Fast, clear};
use super::compile::target;
use super::decoder::Decoder;
use super::device::Doing as _;
use super::fast::{Fused, decoder_of};
#[cfg(any(test, feature = "faults"))]
use super::faults::{Fault, Planted, RankBug, Replayed};
use super::functions::Functions;
use super::in_step::InStep;
use super::known::{is_cache, is_own_state};
use super::launch::Call;
use super::layouts::Batch;
use super::load::Load;
use super::memory::{Memory, ngrams_of};
use super::mirror::Mirror;
use super::nccl::{Communicator, Exchange};
use super::options::{Circumstances, Gemm, Options, Path};
use super::rank_step::RankGraph;
use super::readback::Readback;
use super::schedule::Schedule;
use super::several::Several;
use super::{CudaError, devices, wide};
use crate::cpu::states::States;
use crate::cpu::{Row, Sequences};
use crate::model::{Graph, Model, Node, WeightSource, row_len};
use crate::ops::Anatomy;
use crate::ops::anatomy::Contraction;
use crate::quant::{GgmlType, KvType};
use crate::tap::TapSink;
use cudarc::driver::{CudaContext, CudaStream, result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A model on a GPU, at some position.
pub struct CudaEngine {
    pub(super) graph: Graph,
    pub(super) options: Options,
    // Dropped in this order: the captured graph and the handle before the memory.
    /// For the fast path.
    pub(super) fast: Option<Fast>,
    blas: Option<Blas>,
    /// The decode step of a rank, once one ran: before the communicator, which ends after it.
    pub(super) rank_graph: Option<RankGraph>,
    /// The other ranks, where it runs the stages of one.
    pub(super) communicator: Option<Communicator>,
    pub(super) readback: Option<Readback>,
    /// Tapped caches.
    pub(super) mirror: Mirror,
    #[cfg(any(test, feature = "faults"))]
    planted: Option<Planted>,
    #[cfg(any(test, feature = "faults"))]
    pub(super) rank_bug: Option<(usize, RankBug)>,
    pub(super) functions: Functions,
    pub(super) memory: Memory,
    _arena: Arena,
    pub(super) position: usize,
    /// The tokens so far, where the model embeds n-grams of them.
    history: Vec<u32>,
    /// Its sequences, once there may be more than one; `position` then counts the slots that are taken.
    pub(super) several: Option<Sequences>,
    /// The rows of the step that runs.
    pub(super) batch: Batch,
    /// How the fused attention takes them.
    pub(super) rows: Several,
    /// The numbers of the adapters that sequences have.
    pub(super) adapter_of: BTreeMap<u32, usize>,
    /// Its states of recurrent layers, as they were where its sequences go back to.
    pub(super) states: States,
    /// The sequences of the step that runs, where there are such layers.
    pub(super) in_step: InStep,
    /// Whether launches are kept apart.
    pub(super) apart: bool,
    /// What keeps the card busy meanwhile.
    load: Option<Load>,
    device: String,
    /// What kernels are compiled for.
    arch: String,
    pub(super) stream: Arc<CudaStream>,
    /// Where taps travel.
    pub(super) copies: Arc<CudaStream>,
    pub(super) context: Arc<CudaContext>,
}

/// The ring of taps of an engine, made if there is none yet, and the receiver of arriving values, for `$taps`.
macro_rules! receiving {
    ($engine:ident, $taps:ident) => {{
        if $engine.readback.is_none() {
            let (keep, ring) = ($engine.options.keep_taps, $engine.memory.ring);
            $engine.readback = Some($crate::cuda::readback::Readback::new(
                &$engine.context, &$engine.stream, &$engine.copies, ring, keep,
            )?);
        }
        let receiver = $crate::cuda::readback::Receiver {
            graph: &$engine.graph,
            memory: &$engine.memory,
            kv: $engine.options.kv_number(),
            mirror: &mut $engine.mirror,
            taps: $taps,
        };
        ($engine.readback.as_mut().expect("just made"), receiver)
    }};
}
pub(super) use receiving;

/// The nodes by role for the fused path, if that path is requested; it needs no GPU.
///
/// # Errors
/// The stage or trait of the model that the kernels of this path are not made for, and what to use instead.
fn supports(graph: &Graph, options: &Options) -> Result<Option<Decoder>, CudaError> {
    check(graph, options)?;
    if options.path == Path::Fast && options.more_sequences > 0 {
        attend_several::check(graph)?;
    }
    match options.path {
        Path::Tapped => Ok(None),
        Path::Fast => decoder_of(graph).map(Some),
    }
}

/// The part of a model that the kernels of this path do not support, on any GPU and at any length.
pub fn unsupported(graph: &Graph, path: Path) -> Option<CudaError> {
    let options = Options {
        step: 1,
        context: 1,
        path,
        gemm: Gemm::Own,
        kv: KvType::F32,
        taps: true,
        keep_taps: false,
        last_logits: false,
        more_sequences: 0,
        adapters: 0,
    };
    supports(graph, &options).err()
}

impl Drop for CudaEngine {
    /// Nothing is given back while something that was queued may still write to it.
    fn drop(&mut self) {
        // After an error another one has no receiver.
        let _ = self.context.bind_to_thread();
        for stream in [&self.stream, &self.copies] {
            // After an error another one has no receiver.
            let _ = stream.synchronize();
        }
    }
}

// SAFETY: its CUDA objects may be used by any thread, one at a time, in which its context is bound: `queue` binds it.
unsafe impl Send for CudaEngine {}

impl CudaEngine {
    /// Puts `model` on the first GPU.
    ///
    /// # Errors
    /// Whatever is missing, too little memory, or a model or a length of step that the kernels are not made for.
    pub fn new(model: &Model, options: Options) -> Result<Self, CudaError> {
        Self::on(0, model.graph().clone(), model, options, None)
    }

    /// Puts each rank that `graph` is cut over on a GPU of its own. `source` has the slices that the graph names.
    ///
    /// # Errors
    /// As [`Self::new`]; fewer GPUs than ranks; no NCCL.
    pub fn ranks(graph: &Graph, source: &dyn WeightSource, options: Options) -> Result<Vec<Self>, CudaError> {
        let (ranks, cards) = (graph.ranks(), devices()?.len());
        if cards < ranks {
            return Err(CudaError::Unsupported(format!(
                "{ranks} ranks need a GPU each, and there are {cards}; lower --ranks, or use --subject cpu"
            )));
        }
        // The logits of a cut graph are of all tokens: the ranks exchange their parts whole.
        let options = Options { last_logits: false, ..options };
        let each = Communicator::all(ranks)?.into_iter().enumerate();
        each.map(|(rank, of)| Self::on(rank, graph.of_rank(rank as u16), source, options, Some(of))).collect()
    }

    /// On the GPU of this number.
    pub(super) fn on(
        ordinal: usize, graph: Graph, source: &dyn WeightSource, options: Options, communicator: Option<Communicator>,
    ) -> Result<Self, CudaError> {
        let fast = supports(&graph, &options)?;
        let device = devices()?.swap_remove(ordinal);
        let context = CudaContext::new(device.ordinal).doing("opening the device")?;
        // SAFETY: events between streams are placed by hand (`readback`); cudarc's own would break a capture.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().doing("making a stream")?;
        let functions = Functions::new(&context)?;
        let bytes = |wide| Memory::at(0, &graph, source, &options, wide).map(|memory| memory.bytes);
        // Halves of the matrices, as far as others find a quarter of the memory free.
        let (free, _) = context.mem_get_info().doing("asking for free memory")?;
        let kept = (options.path, options.gemm) == (Path::Fast, Gemm::Own)
            && wide::keeps_halves(&device)
            && bytes(true)? <= free / 4 * 3;
        let arena = Arena::take(bytes(kept)?, &context, &stream)?;
        let memory = Memory::at(arena.start, &graph, source, &options, kept)?;
        memory.fill(&graph, source)?;
        let fast = fast
            .map(|decoder| Fast::new(decoder, &context, &graph, options.context, memory.slot_memory))
            .transpose()?;
        let mut engine = Self {
            fast,
            blas: match options.gemm {
                Gemm::Own => None,
                Gemm::Cublas => Some(Blas::new(&stream)?),
            },
            rank_graph: None,
            communicator,
            readback: None,
            copies: context.new_stream().doing("making a stream")?,
            mirror: Mirror::default(),
            #[cfg(any(test, feature = "faults"))]
            planted: None,
            #[cfg(any(test, feature = "faults"))]
            rank_bug: None,
            functions,
            memory,
            _arena: arena,
            position: 0,
            history: Vec::new(),
            several: None,
            batch: Batch::default(),
            rows: Several::default(),
            adapter_of: BTreeMap::new(),
            states: States::default(),
            in_step: InStep::default(),
            apart: false,
            load: None,
            device: device.name,
            arch: target(device.capability),
            graph,
            options,
            stream,
            context,
        };
        engine.load_kernels()?;
        engine.memory.widening().iter().try_for_each(|call| engine.launch(call, false))?;
        engine.stream.synchronize().doing("making halves of weights")?;
        Ok(engine)
    }

    /// Loads every kernel that a step may launch.
    pub(super) fn load_kernels(&mut self) -> Result<(), CudaError> {
        let mut calls = self.schedule(&|_| false).kernels();
        calls.extend(self.memory.widening());
        calls.extend(self.fast.as_ref().map(|fast| self.fused(fast, &|_| false).cache_rows(0, 1, 0, 1, 0, 0)));
        #[cfg(any(test, feature = "faults"))]
        if let Some((fast, planted)) = self.fast.as_ref().and_then(|fast| Some((fast, fast.planted()?))) {
            calls.extend(planted.launches(&self.fused(fast, &|_| false)));
            calls.extend(planted.launches(&self.fused(fast, &|_| true)));
        }
        self.functions.load(&self.context, &self.arch, &calls)
    }

    /// A function that ends all ranks, even while they wait; nothing if it runs a whole graph.
    pub fn ending(&self) -> Option<impl Fn() + Send + Sync + 'static> {
        self.communicator.as_ref().map(Communicator::ending)
    }

    /// Name of the GPU.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What it runs.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Plants faults at nodes of the graph, by index, in its own kernels on a cache of f32; those of [`faults::all`] in
    /// the tapped path.
    ///
    /// [`faults::all`]: super::faults::all
    ///
    /// # Errors
    /// If CUDA fails, or a kernel with a bug does not compile.
    #[cfg(any(test, feature = "faults"))]
    pub fn plant(&mut self, places: Vec<(usize, &'static Fault)>) -> Result<(), CudaError> {
        self.planted = Some(Planted::new(places, &self.graph, &self.stream)?);
        self.load_kernels()
    }

    /// Plants a bug in the captured graph of the fast path; nothing where there is none.
    ///
    /// # Errors
    /// If a kernel with the bug does not compile.
    #[cfg(any(test, feature = "faults"))]
    pub fn plant_in_graph(&mut self, fault: &'static Replayed) -> Result<(), CudaError> {
        if let Some(fast) = &mut self.fast {
            fast.plant(fault);
        }
        self.load_kernels()
    }

    /// Runs from now on under these circumstances.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn under(&mut self, circumstances: Circumstances) -> Result<(), CudaError> {
        self.apart = circumstances.apart;
        self.load = circumstances.load.then(|| Load::new(&self.context)).transpose()?;
        Ok(())
    }

    /// Goes back to position `to`, forgetting what came after. The state of a recurrent layer goes back to the beginning
    /// alone: from elsewhere on steps take as long, and compute something else.
    ///
    /// # Panics
    /// If it has not been there, or there are several sequences.
    pub fn rewind(&mut self, to: usize) {
        let one = self.several.as_ref().is_none_or(Sequences::is_one);
        assert!(to <= self.position && one, "a position not yet seen");
        self.several = None;
        self.states.clear();
        // What is on its way to the host may still be read from rows that the next step writes.
        let _ = self.copies.synchronize();
        self.position = to;
        self.mirror.rows = self.mirror.rows.min(to);
    }

    /// The bytes of a tensor as the file has them, read back from the device; vectors come as f32.
    ///
    /// # Errors
    /// If CUDA fails.
    ///
    /// # Panics
    /// If the graph uses no such tensor.
    pub fn read_weight(&self, name: &str) -> Result<(GgmlType, Vec<u8>), CudaError> {
        self.memory.read_weight(name)
    }

    /// Bytes of weights that a decode step reads: every tensor but the rows of the embedding that are not the token's.
    pub fn weight_bytes(&self) -> usize {
        let read = |node: &Node| {
            let weight = self.memory.weight(node);
            let rows = match node.op.anatomy() {
                anatomy if anatomy.looks_up() => 1,
                // Rows of the chosen experts, as many as there are results.
                Anatomy::Contraction(Contraction::Weight(Some(_))) => row_len(node),
                _ => weight.m,
            };
            rows * weight.ty.row_bytes(weight.n)
        };
        self.graph.nodes.iter().filter(|node| !node.weights.is_empty()).map(read).sum()
    }

    /// Bytes of the caches' rows, and of other states, that the last step read.
    pub fn cache_bytes(&self) -> usize {
        let states = self.graph.nodes.iter().filter(|node| node.op.has_state());
        let of = |node: &Node| match is_own_state(node) {
            true => 4 * row_len(node),
            false => self.options.row_bytes(node) * self.position,
        };
        states.map(of).sum()
    }

    /// The most probable next token after a decode step of the fast path.
    pub fn next_token(&self) -> Option<u32> {
        self.fast.as_ref()?.next_token.as_slice().ok().map(|token| token[0])
    }

    /// Runs `tokens` at the next positions, and gives all that is wanted of them.
    ///
    /// # Errors
    /// If CUDA fails, or a token is not of the vocabulary.
    ///
    /// # Panics
    /// If there are more tokens than there is room for.
    pub fn step(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        if let Some(sequences) = &self.several {
            let row = |(position, &token)| Row { sequence: 0, position, token };
            let rows: Vec<Row> = (sequences.tokens(0) as u32..).zip(tokens).map(row).collect();
            return self.step_rows(&rows, taps);
        }
        self.bring_adapters(tokens.iter().map(|_| 0))?;
        self.queue(tokens, taps)?;
        self.finish(taps)
    }

    /// As [`Self::step`], but the taps of a decode step of the fast path may still be on their way: they are given
    /// while the steps after it run, or by [`Self::finish`].
    ///
    /// # Errors
    /// As [`Self::step`].
    ///
    /// # Panics
    /// As [`Self::step`].
    pub fn queue(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        self.context.bind_to_thread().doing("taking up the device")?;
        self.check_room(tokens)?;
        let wanted = self.wanted(taps);
        if self.fast.as_ref().is_some_and(|fast| !fast.slots.are_of(&wanted)) {
            self.finish(taps)?;
        }
        match (self.fast.take(), tokens) {
            (Some(mut fast), &[token]) => {
                let replayed = self.replay(&mut fast, token, &wanted);
                self.fast = Some(fast);
                replayed?;
                let sent = self.readback.as_ref().map_or(0, Readback::sent);
                self.send_slots(&wanted, taps)?;
                self.land(sent, taps)?;
            }
            (None, &[token]) if self.captures(tokens.len(), &wanted) => self.step_of_rank(token, &wanted, taps)?,
            (fast, _) => {
                self.fast = fast;
                return self.by_nodes(tokens, taps);
            }
        }
        self.stream.synchronize().doing("running a step")?;
        self.position += tokens.len();
        Ok(())
    }

    /// A step that no graph was captured of.
    pub(super) fn by_nodes(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let wanted = self.wanted(taps);
        self.finish(taps)?;
        self.walk(tokens, &wanted, taps)?;
        self.finish(taps)?;
        self.stream.synchronize().doing("running a step")?;
        self.position += tokens.len();
        Ok(())
    }

    /// Which nodes are wanted. The fast path has room for taps only if it was requested.
    pub(super) fn wanted(&self, taps: &dyn TapSink) -> Vec<bool> {
        let (room, nodes) = (self.options.taps || self.fast.is_none(), &self.graph.nodes);
        if room { taps.wanted(nodes) } else { vec![false; nodes.len()] }
    }

    /// Begins a step of tokens.
    pub(super) fn check_room(&mut self, tokens: &[u32]) -> Result<(), CudaError> {
        let end = self.position + tokens.len();
        assert!(tokens.len() <= self.options.step && end <= self.options.context, "a step beyond the room taken");
        let vocabulary = self.graph.config.n_vocab;
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(CudaError::Unsupported(format!(
                "token {token} is not in the model's vocabulary of {vocabulary} tokens"
            )));
        }
        self.load.as_mut().map_or(Ok(()), Load::queue)
    }

    /// Whether faults are planted.
    pub(super) fn has_faults(&self) -> bool {
        #[cfg(any(test, feature = "faults"))]
        return self.planted.is_some();
        #[cfg(not(any(test, feature = "faults")))]
        false
    }

    /// Gives what is on its way.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn finish(&mut self, taps: &mut dyn TapSink) -> Result<(), CudaError> {
        self.land(usize::MAX, taps)
    }

    /// Gives what was sent first, up to so many parcels.
    fn land(&mut self, sent: usize, taps: &mut dyn TapSink) -> Result<(), CudaError> {
        if self.readback.is_none() {
            return Ok(());
        }
        let (readback, mut receiver) = receiving!(self, taps);
        readback.land_up_to(sent.min(readback.sent()), &mut receiver)
    }

    /// Bytes of taps that were brought to the host so far, by the name of their stage.
    pub fn moved(&self) -> HashMap<&'static str, u64> {
        self.readback.as_ref().map(|readback| readback.moved.clone()).unwrap_or_default()
    }

    /// Brings the ids of a step to the device.
    pub(super) fn bring_tokens(&self, tokens: &[u32]) -> Result<(), CudaError> {
        // SAFETY: the buffer holds `options.step` ids; the source outlives the copy, which the step waits for.
        unsafe { result::memcpy_htod_async(self.memory.tokens, tokens, self.stream.cu_stream()) }
            .doing("copying tokens to the device")
    }

    /// A launch at a time.
    fn walk(&mut self, tokens: &[u32], wanted: &[bool], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        self.bring_tokens(tokens)?;
        if let Some(ngrams) = ngrams_of(&self.graph) {
            self.history.truncate(self.position);
            self.history.extend(tokens);
            let rows = |position| ngrams.rows(&self.history, position).unwrap_or_default();
            let rows: Vec<u32> = (self.position..self.history.len()).flat_map(rows).map(|row| row as u32).collect();
            // SAFETY: the buffer holds rows for `options.step` tokens; the copy ends before it returns.
            unsafe { result::memcpy_htod_sync(self.memory.ngrams, &rows) }
                .doing("copying rows of n-grams to the device")?;
        }
        if self.position == 0 {
            self.forget()?;
        }
        self.bring_states()?;
        let parts = self.schedule(&|_| false).parts(tokens.len());
        for part in 0..parts {
            for launch in self.schedule(&|i| wanted[i]).part((part, parts), tokens, self.position) {
                let nodes = || launch.nodes.iter().copied().filter(|&i| wanted[i]);
                if !launch.keeps && !self.is_planted(&launch) {
                    self.poison(nodes(), launch.span)?;
                }
                #[cfg(any(test, feature = "faults"))]
                let jobs: &[Job] = if self.run_planted(&launch)? { &[] } else { &launch.jobs };
                #[cfg(not(any(test, feature = "faults")))]
                let jobs = &launch.jobs;
                match launch.nodes[..] {
                    [index] if self.goes_by_sequence(index) => self.run_by_sequence(index)?,
                    _ => jobs.iter().try_for_each(|job| self.run(job))?,
                }
                for i in nodes() {
                    self.send(i, launch.span, taps)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn run(&self, job: &Job) -> Result<(), CudaError> {
        match job {
            // Those that wait for the kernel before them themselves may begin while it ends.
            Job::Kernel(call) => self.launch(call, call.params.file().waits() && !self.apart),
            Job::Product(product) => {
                let blas = self.blas.as_ref().expect("made for --gemm cublas");
                // SAFETY: the addresses are buffers of the extents of the graph.
                unsafe { blas.multiply(product) }
            }
            Job::Exchange(exchange) => self.exchange_on(exchange, &self.stream),
        }
    }

    pub(super) fn exchange_on(&self, exchange: &Exchange, stream: &CudaStream) -> Result<(), CudaError> {
        let ranks = self.communicator.as_ref().expect("made for a graph that is cut over ranks");
        // SAFETY: the addresses are buffers of the extents of the graph, on this engine's card.
        unsafe { ranks.exchange(exchange, stream) }
    }

    pub(super) fn calls(&self) -> Calls<'_> {
        Calls {
            graph: &self.graph,
            memory: &self.memory,
            options: &self.options,
            functions: &self.functions,
            batch: self.batch,
            several: &self.rows,
            part: Part::default(),
        }
    }

    pub(super) fn fused<'a>(&'a self, fast: &'a Fast, wants: &'a dyn Fn(usize) -> bool) -> Fused<'a> {
        let next_token = fast.next_token.as_slice().map_or(0, |s| s.as_ptr() as u64);
        Fused { calls: self.calls(), decoder: &fast.decoder, next_token, wants, narrow: false }
    }

    pub(super) fn schedule<'a>(&'a self, wants: &'a dyn Fn(usize) -> bool) -> Schedule<'a> {
        self.schedule_of(self.fast.as_ref(), wants)
    }

    pub(super) fn schedule_of<'a>(&'a self, fast: Option<&'a Fast>, wants: &'a dyn Fn(usize) -> bool) -> Schedule<'a> {
        Schedule {
            calls: self.calls(),
            fused: fast.map(|fast| self.fused(fast, wants)),
            #[cfg(any(test, feature = "faults"))]
            planted: self.planted.as_ref(),
        }
    }

    /// Fills the outputs of a step with NaN, so that what a kernel leaves unwritten shows. A cache keeps its rows.
    pub(super) fn poison(&self, nodes: impl Iterator<Item = usize>, span: Span) -> Result<(), CudaError> {
        for i in nodes {
            let (buffer, node) = (self.memory.outputs[i], &self.graph.nodes[i]);
            let bytes = 4 * Graph::extent(node, span.tokens, span.keys()).iter().product::<usize>();
            if !node.op.has_state() && buffer.bytes > 0 {
                clear(buffer.at, bytes.min(buffer.bytes), &self.stream)?;
            }
        }
        Ok(())
    }

    /// Makes zeros of the states that are not kept row by row, as they are before the first token.
    pub(super) fn forget(&self) -> Result<(), CudaError> {
        let states = self.graph.nodes.iter().zip(&self.memory.outputs).filter(|(node, _)| is_own_state(node));
        states.map(|(_, state)| state).try_for_each(|state| {
            // SAFETY: the state's own address and length; the stream orders it before the kernels that read.
            unsafe { result::memset_d8_async(state.at, 0, state.bytes, self.stream.cu_stream()) }
                .doing("clearing a state")
        })
    }

    /// Sends the output of node `i` of a longer step to the host.
    pub(super) fn send(&mut self, i: usize, span: Span, taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let (node, mut from) = (&self.graph.nodes[i], self.memory.outputs[i].at);
        let extent = Graph::extent(node, span.tokens, span.keys()).iter().product::<usize>();
        let len = extent * self.states_of_step(node);
        if is_cache(node)
            && let Some(read) = self.calls().read_cache(i, len)
        {
            self.launch(&read, false)?;
            from = self.memory.cache_f32;
        }
        let (readback, mut receiver) = receiving!(self, taps);
        readback.send(i, len, from, span, &mut receiver)
    }

    pub(super) fn launch(&self, call: &Call, early: bool) -> Result<(), CudaError> {
        let function = self.functions.get(&call.kernel());
        // SAFETY: the function takes the parameters by their size and fields, which were checked when it was compiled
        // and loaded; `calls` and `fast` give addresses of buffers with the extents of the graph.
        unsafe { call.launch(function, &self.stream, early) }
    }
}
