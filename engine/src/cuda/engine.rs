//! The forward pass on the GPU.
//!
//! All device memory is taken at the start. The tapped path walks the graph, one launch a node, every stage
//! materialised; the fast path replays a captured graph of fused kernels for a decode step, and for longer steps walks
//! the graph with a matrix product on the tensor cores and the fused attention.

use super::arena::Arena;
use super::blas::Blas;
use super::calls::{Calls, Job, Span, check};
use super::compile::target;
use super::decoder::Decoder;
use super::device::{Doing as _, time};
use super::fast::{Fused, decoder_of};
#[cfg(any(test, feature = "faults"))]
use super::faults::{Fault, Planted, Replayed};
use super::functions::Functions;
use super::launch::{Call, Ptr};
use super::load::Load;
use super::memory::Memory;
use super::options::{Circumstances, Gemm, Options, Path};
use super::readback::Readback;
use super::schedule::{Schedule, calls_of};
use super::{CudaError, devices};
use crate::model::{Graph, Model, Node};
use crate::ops::Op;
use crate::quant::GgmlType;
use crate::tap::TapSink;
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, PinnedHostSlice, result, sys};
use std::sync::Arc;

/// A model on a GPU, at some position.
pub struct CudaEngine {
    graph: Graph,
    options: Options,
    // Dropped in this order: the captured graph and the handle before the memory.
    /// For the fast path.
    fast: Option<Fast>,
    blas: Option<Blas>,
    readback: Option<Readback>,
    #[cfg(any(test, feature = "faults"))]
    planted: Option<Planted>,
    functions: Functions,
    memory: Memory,
    _arena: Arena,
    position: usize,
    /// Whether launches are kept apart.
    apart: bool,
    /// What keeps the card busy meanwhile.
    load: Option<Load>,
    device: String,
    /// What kernels are compiled for.
    arch: String,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

/// What the fast path takes.
struct Fast {
    /// Which node is which.
    decoder: Decoder,
    /// The token that the last decode step chose.
    next_token: PinnedHostSlice<u32>,
    /// A decode step as one graph, once there was one.
    captured: Option<Captured>,
    #[cfg(any(test, feature = "faults"))]
    planted: Option<&'static Replayed>,
}

/// A decode step as one graph: what every decode step of the fast path launches, tapped or not. Its first node takes
/// token and position, and its parameters say which stages are written to their slots besides.
struct Captured {
    graph: CudaGraph,
    /// One after the other, as they were launched.
    nodes: Vec<sys::CUgraphNode>,
    /// The nodes of the model that are tapped now.
    wanted: Vec<bool>,
    /// The first node's launch of the step before.
    #[cfg(any(test, feature = "faults"))]
    before: Option<Call>,
}

impl CudaEngine {
    /// Puts `model` on the first GPU.
    ///
    /// # Errors
    /// Whatever is missing, too little memory, or a model or a length of step that the kernels are not made for.
    pub fn new(model: &Model, options: Options) -> Result<Self, CudaError> {
        let device = devices()?.swap_remove(0);
        let context = CudaContext::new(device.ordinal).doing("opening the device")?;
        // SAFETY: events between streams are placed by hand (`readback`); cudarc's own would break a capture.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().doing("making a stream")?;
        let functions = Functions::new(&context)?;
        let graph = model.graph().clone();
        check(&graph, &options)?;
        let fast = match options.path {
            Path::Tapped => None,
            Path::Fast => Some(Fast {
                decoder: decoder_of(&graph)?,
                // SAFETY: written by `argmax` alone; not read before a step has ended.
                next_token: unsafe { context.alloc_pinned_with_flags::<u32>(1, 0) }.doing("taking pinned memory")?,
                captured: None,
                #[cfg(any(test, feature = "faults"))]
                planted: None,
            }),
        };
        let arena = Arena::take(Memory::at(0, &graph, model, &options)?.bytes, &context, &stream)?;
        let memory = Memory::at(arena.start, &graph, model, &options)?;
        memory.fill(model)?;
        let mut engine = Self {
            fast,
            blas: match options.gemm {
                Gemm::Own => None,
                Gemm::Cublas => Some(Blas::new(&stream)?),
            },
            readback: None,
            #[cfg(any(test, feature = "faults"))]
            planted: None,
            functions,
            memory,
            _arena: arena,
            position: 0,
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
        Ok(engine)
    }

    /// Loads every kernel that a step may launch.
    fn load_kernels(&mut self) -> Result<(), CudaError> {
        #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
        let mut calls = self.schedule(&|_| false).kernels();
        #[cfg(any(test, feature = "faults"))]
        if let Some((fast, planted)) = self.fast.as_ref().and_then(|fast| Some((fast, fast.planted?))) {
            calls.extend(planted.launches(&self.fused(fast, &|_| false)));
        }
        self.functions.load(&self.context, &self.arch, &calls)
    }

    /// Name of the GPU.
    pub fn device(&self) -> &str {
        &self.device
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
            (fast.planted, fast.captured) = (Some(fault), None);
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

    /// Goes back to position `to`, forgetting what came after.
    ///
    /// # Panics
    /// If it has not been there.
    pub fn rewind(&mut self, to: usize) {
        assert!(to <= self.position, "a position not yet seen");
        self.position = to;
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
            let rows = if node.op == Op::Embed { 1 } else { weight.m };
            rows * weight.ty.row_bytes(weight.n)
        };
        self.graph.nodes.iter().filter(|node| !node.weights.is_empty()).map(read).sum()
    }

    /// How long each kernel of a decode step takes at this position, in the order of the step: its name, and seconds
    /// per launch over `repeats` launches in a row. Nothing for the tapped path. A full context forgets its last
    /// token, to have a position to run at.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn time_kernels(&mut self, repeats: usize) -> Result<Vec<(String, f64)>, CudaError> {
        if self.fast.is_none() {
            return Ok(Vec::new());
        }
        self.rewind(self.position.min(self.options.context.saturating_sub(1)));
        let launches = self.schedule(&|_| false).step(&[0], self.position);
        let measure = |call: Call| {
            self.launch(&call, true)?;
            let seconds =
                time(&self.context, &self.stream, || (0..repeats).try_for_each(|_| self.launch(&call, true)))?;
            Ok((call.kernel().to_string(), seconds / repeats as f64))
        };
        calls_of(launches).map(measure).collect()
    }

    /// How long the captured graph of a decode step takes at this position, on the card alone: `repeats` times by itself,
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
        let Some(captured) = self.fast.as_ref().and_then(|fast| fast.captured.as_ref()) else { return Ok(None) };
        let launch = || captured.graph.launch().doing("launching a decode step");
        let alone = (0..repeats).map(|_| time(&self.context, &self.stream, launch)).collect::<Result<_, _>>()?;
        let all = time(&self.context, &self.stream, || (0..repeats).try_for_each(|_| launch()))?;
        Ok(Some((alone, all / repeats as f64)))
    }

    /// The most probable next token after a decode step of the fast path.
    pub fn next_token(&self) -> Option<u32> {
        self.fast.as_ref()?.next_token.as_slice().ok().map(|token| token[0])
    }

    /// Runs `tokens` at the next positions.
    ///
    /// # Errors
    /// If CUDA fails, or a token is not of the vocabulary.
    ///
    /// # Panics
    /// If there are more tokens than there is room for.
    pub fn step(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let end = self.position + tokens.len();
        assert!(tokens.len() <= self.options.step && end <= self.options.context, "a step beyond the room taken");
        let vocabulary = self.graph.config.n_vocab;
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(CudaError::Unsupported(format!(
                "token {token} is not in the model's vocabulary of {vocabulary} tokens"
            )));
        }
        if let Some(load) = &mut self.load {
            load.queue()?;
        }
        let wanted: Vec<bool> = self.graph.nodes.iter().map(|n| taps.wants(n.id)).collect();
        match (self.fast.take(), tokens) {
            (Some(mut fast), &[token]) => {
                let replayed = self.replay(&mut fast, token, &wanted);
                self.fast = Some(fast);
                replayed?;
                self.send_slots(&wanted, taps)?;
            }
            (fast, _) => {
                self.fast = fast;
                self.walk(tokens, &wanted, taps)?;
            }
        }
        if let Some(readback) = &mut self.readback {
            readback.finish(taps)?;
        }
        self.stream.synchronize().doing("running a step")?;
        self.position = end;
        Ok(())
    }

    /// A launch at a time.
    fn walk(&mut self, tokens: &[u32], wanted: &[bool], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        // SAFETY: the buffer holds `options.step` ids; the source outlives the copy, which the step waits for.
        unsafe { result::memcpy_htod_async(self.memory.tokens, tokens, self.stream.cu_stream()) }
            .doing("copying tokens to the device")?;
        let tapped = wanted.contains(&true);
        for launch in self.schedule(&|i| wanted[i]).step(tokens, self.position) {
            if tapped && !launch.keeps {
                self.poison(&launch.nodes)?;
            }
            for job in &launch.jobs {
                match job {
                    // Those that wait for the kernel before them themselves may begin while it ends.
                    Job::Kernel(call) => self.launch(call, call.params.file().waits() && !self.apart)?,
                    Job::Product(product) => {
                        let blas = self.blas.as_ref().expect("made for --gemm cublas");
                        // SAFETY: the addresses are buffers of the extents of the graph.
                        unsafe { blas.multiply(product)? };
                    }
                }
            }
            for &i in launch.nodes.iter().filter(|&&i| wanted[i]) {
                self.send(i, self.memory.outputs[i].at, launch.span, taps)?;
            }
        }
        Ok(())
    }

    /// A decode step: one launch of the captured graph. What is wanted of it is written to the slots.
    fn replay(&self, fast: &mut Fast, token: u32, wanted: &[bool]) -> Result<(), CudaError> {
        let mut captured = match fast.captured.take() {
            Some(captured) => captured,
            None => self.capture(fast)?,
        };
        let slots = self.memory.slot_memory;
        if wanted.contains(&true) && slots.bytes > 0 {
            // SAFETY: the slots' own address and length; the stream orders it before the graph.
            unsafe { result::memset_d8_async(slots.at, 0xFF, slots.bytes, self.stream.cu_stream()) }
                .doing("clearing the slots of taps")?;
        }
        #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
        let mut calls: Vec<Call> = if captured.wanted == wanted && !self.apart {
            vec![self.fused(fast, &|_| false).embed_token(token, self.position)]
        } else {
            calls_of(self.schedule_of(Some(fast), &|i| wanted[i]).step(&[token], self.position)).collect()
        };
        #[cfg(any(test, feature = "faults"))]
        if let Some(planted) = fast.planted {
            planted.spoil(&mut calls, captured.before.as_ref(), &fast.decoder);
            captured.before = calls.first().cloned();
        }
        if self.apart {
            for call in &calls {
                self.launch(call, false)?;
            }
            fast.captured = Some(captured);
            return Ok(());
        }
        for (call, &node) in calls.iter().zip(&captured.nodes) {
            let function = self.functions.get(&call.kernel());
            // SAFETY: the launch that was captured as this node, of this graph, but for numbers and for addresses of
            // slots, which are as long as what is written there.
            unsafe { call.update(function, captured.graph.cu_graph_exec(), node)? };
        }
        captured.wanted = wanted.to_vec();
        captured.graph.launch().doing("launching a decode step")?;
        fast.captured = Some(captured);
        Ok(())
    }

    fn capture(&self, fast: &Fast) -> Result<Captured, CudaError> {
        #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
        let mut calls: Vec<Call> = calls_of(self.schedule_of(Some(fast), &|_| false).step(&[0], 0)).collect();
        #[cfg(any(test, feature = "faults"))]
        if let Some(planted) = fast.planted {
            planted.spoil(&mut calls, None, &fast.decoder);
        }
        self.stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .doing("capturing a decode step")?;
        for (i, call) in calls.iter().enumerate() {
            // The second waits for the first to end: what comes after reads the step's position before it waits.
            self.launch(call, i != 1)?;
        }
        let graph = self
            .stream
            .end_capture(sys::CUgraphInstantiate_flags(0))
            .doing("capturing a decode step")?
            .ok_or_else(|| CudaError::Unsupported("CUDA captured nothing".to_owned()))?;
        let nodes = chain(&graph)?;
        if nodes.len() != calls.len() {
            let (nodes, calls) = (nodes.len(), calls.len());
            return Err(CudaError::Unsupported(format!("CUDA captured {nodes} of {calls} launches in a row")));
        }
        Ok(Captured {
            graph,
            nodes,
            wanted: vec![false; self.graph.nodes.len()],
            #[cfg(any(test, feature = "faults"))]
            before: None,
        })
    }

    fn calls(&self) -> Calls<'_> {
        Calls { graph: &self.graph, memory: &self.memory, options: &self.options, functions: &self.functions }
    }

    fn fused<'a>(&'a self, fast: &'a Fast, wants: &'a dyn Fn(usize) -> bool) -> Fused<'a> {
        let next_token = fast.next_token.as_slice().map_or(0, |s| s.as_ptr() as u64);
        Fused { calls: self.calls(), decoder: &fast.decoder, next_token, wants }
    }

    fn schedule<'a>(&'a self, wants: &'a dyn Fn(usize) -> bool) -> Schedule<'a> {
        self.schedule_of(self.fast.as_ref(), wants)
    }

    fn schedule_of<'a>(&'a self, fast: Option<&'a Fast>, wants: &'a dyn Fn(usize) -> bool) -> Schedule<'a> {
        Schedule {
            calls: self.calls(),
            fused: fast.map(|fast| self.fused(fast, wants)),
            #[cfg(any(test, feature = "faults"))]
            planted: self.planted.as_ref(),
        }
    }

    /// Fills outputs with NaN, so that what a kernel leaves unwritten shows. A cache keeps its rows.
    fn poison(&self, nodes: &[usize]) -> Result<(), CudaError> {
        for &i in nodes {
            let buffer = self.memory.outputs[i];
            if self.graph.nodes[i].op.has_state() || buffer.bytes == 0 {
                continue;
            }
            // SAFETY: the buffer's own address and length; the stream orders it before the kernel that writes.
            unsafe { result::memset_d8_async(buffer.at, 0xFF, buffer.bytes, self.stream.cu_stream()) }
                .doing("clearing a buffer")?;
        }
        Ok(())
    }

    /// Sends what is wanted of a decode step to the host.
    fn send_slots(&mut self, wanted: &[bool], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        // What stays on the device stands where it shall.
        if self.options.keep_taps {
            return Ok(());
        }
        let span = Span { tokens: 1, first: self.position };
        for i in (0..wanted.len()).filter(|&i| wanted[i]) {
            let from = match self.memory.slots[i] {
                0 => self.memory.outputs[i].at,
                slot => slot,
            };
            self.send(i, from, span, taps)?;
        }
        Ok(())
    }

    /// Sends the output of node `i`, which stands at `from`, to the host.
    fn send(&mut self, i: usize, mut from: Ptr, span: Span, taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let node = &self.graph.nodes[i];
        let (id, shape) = (node.id, Graph::extent(node, span.tokens, span.keys()));
        if node.op.has_state()
            && let Some(read) = self.calls().read_cache(from, shape.iter().product())
        {
            self.launch(&read, false)?;
            from = self.memory.cache_f32;
        }
        if self.readback.is_none() {
            let keep = self.options.keep_taps;
            self.readback = Some(Readback::new(&self.context, &self.stream, self.memory.ring, keep)?);
        }
        if let Some(readback) = &mut self.readback {
            readback.send(id, shape, from, taps)?;
        }
        Ok(())
    }

    fn launch(&self, call: &Call, early: bool) -> Result<(), CudaError> {
        let function = self.functions.get(&call.kernel());
        // SAFETY: the function takes the parameters by their size and fields, which were checked when it was compiled
        // and loaded; `calls` and `fast` give addresses of buffers with the extents of the graph.
        unsafe { call.launch(function, &self.stream, early) }
    }
}

/// The nodes of a graph that is one chain, first first.
fn chain(graph: &CudaGraph) -> Result<Vec<sys::CUgraphNode>, CudaError> {
    let doing = "reading a captured graph";
    let (mut at, mut count) = (std::ptr::null_mut(), 1);
    // SAFETY: a live graph, and room for the one node it begins with.
    unsafe { sys::cuGraphGetRootNodes(graph.cu_graph(), &raw mut at, &raw mut count) }.result().doing(doing)?;
    let mut nodes = Vec::new();
    while count == 1 {
        nodes.push(at);
        // SAFETY: as above; an edge's data is asked for, since one of a programmatic launch is not told without.
        unsafe {
            let mut edge = std::mem::zeroed::<sys::CUgraphEdgeData>();
            sys::cuGraphNodeGetDependentNodes_v2(nodes[nodes.len() - 1], &raw mut at, &raw mut edge, &raw mut count)
        }
        .result()
        .doing(doing)?;
    }
    Ok(nodes)
}
