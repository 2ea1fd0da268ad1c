//! The forward pass on the GPU.
//!
//! All device memory is taken at the start. The tapped path walks the graph, one
//! launch a node, every stage materialised; the fast path replays a captured
//! graph of fused kernels for a decode step, and for longer steps walks the graph
//! with a matrix product on the tensor cores and the fused attention.

use super::blas::Blas;
use super::calls::{Calls, GEMM_SHARED, Span, Work};
use super::decoder::Decoder;
use super::fast::{self, Fused, Schedule};
#[cfg(feature = "faults")]
use super::faults::{Fault, Planted};
use super::kernels::{self, Instances, Source, TEMPLATES, cached, template};
use super::launch::{Args, Call};
use super::memory::Memory;
use super::options::{Gemm, KvType, Options, Path};
use super::readback::Readback;
use super::{CudaError, devices};
use crate::model::{Graph, Model};
use crate::ops::Op;
use crate::quant::GgmlType;
use crate::tap::TapSink;
use cudarc::driver::{CudaContext, CudaFunction, CudaGraph, CudaStream, DriverError, PinnedHostSlice, result, sys};
use cudarc::nvrtc::Ptx;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Dynamic shared memory that a kernel gets without asking, in bytes.
const PLAIN_SHARED: u32 = 48 << 10;

/// A model on a GPU, at some position.
pub struct CudaEngine {
    graph: Graph,
    options: Options,
    // Dropped in this order: the captured graph and the handle before the memory.
    captured: Option<Captured>,
    blas: Option<Blas>,
    readback: Option<Readback>,
    /// The token that the last decode step of the fast path chose.
    next_token: PinnedHostSlice<u32>,
    decoder: Option<Decoder>,
    #[cfg(feature = "faults")]
    planted: Option<Planted>,
    functions: HashMap<String, CudaFunction>,
    memory: Memory,
    position: usize,
    processors: u32,
    device: String,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

fn failed(what: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |e| CudaError::Driver(e, what)
}

impl CudaEngine {
    /// Puts `model` on the first GPU.
    ///
    /// # Errors
    /// Whatever is missing, too little memory, or a model that the kernels are
    /// not made for.
    pub fn new(model: &Model, options: Options) -> Result<Self, CudaError> {
        let device = devices()?.swap_remove(0);
        let context = CudaContext::new(device.ordinal).map_err(failed("opening the device"))?;
        // SAFETY: events between streams are placed by hand (`readback`); cudarc's
        // own would break a capture.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(failed("making a stream"))?;
        let graph = model.graph().clone();
        let decoder = match options.path {
            Path::Tapped => None,
            Path::Fast => Some(Decoder::of(&graph).ok_or_else(|| {
                CudaError::Unsupported(format!(
                    "the fused kernels know the decoder of Qwen2 and Qwen3, not that of {}; use --subject cuda",
                    graph.config.arch
                ))
            })?),
        };
        let memory = Memory::new(model, &options, &context, &stream)?;
        // SAFETY: written by `argmax` alone; not read before a step has ended.
        let next_token =
            unsafe { context.alloc_pinned_with_flags::<u32>(1, 0) }.map_err(failed("taking pinned memory"))?;
        let mut engine = Self {
            captured: None,
            blas: match options.gemm {
                Gemm::Own => None,
                Gemm::Cublas => Some(Blas::new(&stream)?),
            },
            readback: None,
            next_token,
            decoder,
            #[cfg(feature = "faults")]
            planted: None,
            functions: HashMap::new(),
            memory,
            position: 0,
            processors: context
                .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
                .map_err(failed("asking for the number of multiprocessors"))? as u32,
            device: device.name,
            graph,
            options,
            stream,
            context,
        };
        engine.load_kernels(&kernels::target(device.capability))?;
        Ok(engine)
    }

    /// Name of the GPU.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Plants faults at nodes of the graph, by index, in the tapped path.
    ///
    /// # Errors
    /// If CUDA fails.
    #[cfg(feature = "faults")]
    pub fn plant(&mut self, places: Vec<(usize, &'static Fault)>) -> Result<(), CudaError> {
        self.planted = Some(Planted::new(places, &self.calls(), &self.stream)?);
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

    /// The bytes of a tensor as the file has them, read back from the device;
    /// vectors come as f32.
    ///
    /// # Errors
    /// If CUDA fails.
    ///
    /// # Panics
    /// If the graph uses no such tensor.
    pub fn read_weight(&self, name: &str) -> Result<(GgmlType, Vec<u8>), CudaError> {
        self.memory.read_weight(name)
    }

    /// Bytes of weights that a decode step reads: every tensor but the rows of
    /// the embedding that are not the token's.
    pub fn weight_bytes(&self) -> usize {
        let mut total = 0;
        for node in &self.graph.nodes {
            for w in node.weights.iter().map(|w| &self.memory.weights[&w.name]) {
                let rows = if node.op == Op::Embed { 1 } else { w.m };
                total += rows * w.ty.row_bytes(w.n);
            }
        }
        total
    }

    /// How long each kernel of a decode step takes at this position, in the
    /// order of the step: its name, and seconds per launch over `repeats`
    /// launches in a row. Nothing for the tapped path.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn time_kernels(&mut self, repeats: usize) -> Result<Vec<(String, f64)>, CudaError> {
        let Some(decoder) = &self.decoder else {
            return Ok(Vec::new());
        };
        let all = self.schedule(decoder).decode(0, self.position, &|_| false);
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || self.context.new_event(timed).map_err(failed("making an event"));
        let (start, end) = (event()?, event()?);
        all.into_iter()
            .map(|fused| {
                self.launch(&fused.call, true)?;
                start.record(&self.stream).map_err(failed("recording an event"))?;
                for _ in 0..repeats {
                    self.launch(&fused.call, true)?;
                }
                end.record(&self.stream).map_err(failed("recording an event"))?;
                end.synchronize().map_err(failed("timing a kernel"))?;
                let ms = start.elapsed_ms(&end).map_err(failed("reading a time"))?;
                Ok((fused.call.kernel, f64::from(ms) / 1e3 / repeats as f64))
            })
            .collect()
    }

    /// The most probable next token after a decode step of the fast path.
    pub fn next_token(&self) -> Option<u32> {
        let token = self.next_token.as_slice().ok()?;
        (self.options.path == Path::Fast).then(|| token[0])
    }

    /// Runs `tokens` at the next positions.
    ///
    /// # Errors
    /// If CUDA fails.
    ///
    /// # Panics
    /// If there are more tokens than there is room for.
    pub fn step(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let span = Span { tokens: tokens.len(), first: self.position };
        assert!(
            span.tokens <= self.options.step && span.keys() <= self.options.context,
            "a step beyond the room taken"
        );
        let wanted: Vec<bool> = self.graph.nodes.iter().map(|n| taps.wants(n.id)).collect();
        let tapped = wanted.contains(&true);
        if tapped && self.readback.is_none() {
            let ring = Readback::new(&self.context, &self.stream, self.memory.ring, self.options.keep_taps)?;
            self.readback = Some(ring);
        }
        match (self.options.path, span.tokens) {
            (Path::Fast, 1) if !tapped => self.replay(tokens[0])?,
            (Path::Fast, 1) => self.decode(tokens[0], &wanted, taps)?,
            _ => self.walk(tokens, span, &wanted, taps)?,
        }
        if let (true, Some(readback)) = (tapped, &mut self.readback) {
            readback.finish(taps)?;
        }
        self.stream.synchronize().map_err(failed("running a step"))?;
        self.position = span.keys();
        Ok(())
    }

    /// A node at a time.
    fn walk(&mut self, tokens: &[u32], span: Span, wanted: &[bool], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        // SAFETY: the buffer holds `options.step` ids; the source outlives the
        // copy, which the step waits for.
        unsafe { result::memcpy_htod_async(self.memory.tokens, tokens, self.stream.cu_stream()) }
            .map_err(failed("copying tokens to the device"))?;
        let tapped = wanted.contains(&true);
        for index in 0..self.graph.nodes.len() {
            let span = self.span(index, span);
            let of = match self.fused_attention(index, span, wanted) {
                Attention::Part => continue,
                Attention::Whole(fused) => {
                    self.poison(&fused.nodes, tapped)?;
                    self.launch(&fused.call, false)?;
                    fused.nodes
                }
                Attention::None => {
                    self.poison(&[index], tapped && !self.keeps(index))?;
                    let work = self.work(index, span);
                    self.run(&work)?;
                    vec![index]
                }
            };
            self.send(&of, span, wanted, taps)?;
        }
        Ok(())
    }

    /// The work of a node; of the fast path the last norm and the logits may be
    /// those of the last token alone.
    fn work(&self, index: usize, span: Span) -> Work {
        let calls = self.calls();
        let last = self.graph.nodes.len() - 1;
        if self.options.last_logits && index == last {
            let node = &self.graph.nodes[index];
            let width = crate::model::row_len(&self.graph.nodes[node.inputs[0]]);
            let x = self.memory.outputs[node.inputs[0]].at + (4 * width * (span.tokens - 1)) as u64;
            return calls.linear(node, x, self.memory.outputs[index].at, 1);
        }
        #[cfg_attr(not(feature = "faults"), expect(unused_mut))]
        let mut work = calls.of(index, span);
        #[cfg(feature = "faults")]
        if let Some(planted) = &self.planted {
            planted.spoil(calls, index, span, &mut work);
        }
        work
    }

    /// The span of node `index` in a step over `span`: the same, but for faults.
    fn span(&self, index: usize, span: Span) -> Span {
        #[cfg(feature = "faults")]
        if let Some(planted) = &self.planted {
            return planted.span(&self.calls(), index, span);
        }
        let _ = index;
        span
    }

    /// Whether a fault wants the node's buffer as the step before left it.
    fn keeps(&self, index: usize) -> bool {
        #[cfg(feature = "faults")]
        if let Some(planted) = &self.planted {
            return planted.keeps(index);
        }
        let _ = index;
        false
    }

    fn fused_attention(&self, index: usize, span: Span, wanted: &[bool]) -> Attention {
        let Some(decoder) = &self.decoder else {
            return Attention::None;
        };
        match &self.graph.nodes[index].op {
            Op::AttnScores(_) | Op::AttnWeights(_) => Attention::Part,
            Op::AttnContext(_) => {
                let layer = decoder.layers.iter().find(|l| l.context == index);
                let layer = layer.expect("every context belongs to a layer");
                let schedule = self.schedule(decoder);
                Attention::Whole(schedule.prefill_attention(layer, span, &|i| wanted[i]))
            }
            _ => Attention::None,
        }
    }

    /// A decode step with taps: the same kernels, one after another.
    fn decode(&mut self, token: u32, wanted: &[bool], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let decoder = self.decoder.as_ref().expect("the fast path has one");
        let all = self.schedule(decoder).decode(token, self.position, &|i| wanted[i]);
        let span = Span { tokens: 1, first: self.position };
        for fused in all {
            self.poison(&fused.nodes, true)?;
            self.launch(&fused.call, false)?;
            self.send(&fused.nodes, span, wanted, taps)?;
        }
        Ok(())
    }

    /// A decode step without taps: one launch of the captured graph.
    fn replay(&mut self, token: u32) -> Result<(), CudaError> {
        if self.captured.is_none() {
            self.captured = Some(self.capture()?);
        }
        let captured = self.captured.as_ref().expect("just captured");
        let decoder = self.decoder.as_ref().expect("the fast path has one");
        let first = self.schedule(decoder).first(token, self.position).call;
        let function = &self.functions[&first.kernel];
        // SAFETY: the parameters are the captured ones but for two numbers, and
        // the node is the graph's first.
        unsafe { first.update(function, captured.graph.cu_graph_exec(), captured.first)? };
        captured.graph.launch().map_err(failed("launching a decode step"))
    }

    fn capture(&self) -> Result<Captured, CudaError> {
        let decoder = self.decoder.as_ref().expect("the fast path has one");
        let all = self.schedule(decoder).decode(0, 0, &|_| false);
        self.stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(failed("capturing a decode step"))?;
        for fused in &all {
            self.launch(&fused.call, true)?;
        }
        let graph = self
            .stream
            .end_capture(sys::CUgraphInstantiate_flags(0))
            .map_err(failed("capturing a decode step"))?
            .ok_or_else(|| CudaError::Unsupported("CUDA captured nothing".to_owned()))?;
        let (mut first, mut count) = (std::ptr::null_mut(), 1);
        // SAFETY: a live graph, and room for the one node it begins with.
        unsafe { sys::cuGraphGetRootNodes(graph.cu_graph(), &raw mut first, &raw mut count) }
            .result()
            .map_err(failed("capturing a decode step"))?;
        Ok(Captured { graph, first })
    }

    fn calls(&self) -> Calls<'_> {
        Calls { graph: &self.graph, memory: &self.memory, options: &self.options }
    }

    fn schedule<'a>(&'a self, decoder: &'a Decoder) -> Schedule<'a> {
        Schedule {
            calls: self.calls(),
            decoder,
            next_token: self.next_token.as_slice().map_or(0, |s| s.as_ptr() as u64),
            processors: self.processors,
        }
    }

    /// Fills outputs with NaN, so that what a kernel leaves unwritten shows. A
    /// cache keeps its rows.
    fn poison(&self, nodes: &[usize], tapped: bool) -> Result<(), CudaError> {
        if !tapped {
            return Ok(());
        }
        for &i in nodes {
            let buffer = self.memory.outputs[i];
            if self.graph.nodes[i].op.has_state() || buffer.bytes == 0 {
                continue;
            }
            // SAFETY: the buffer's own address and length; the stream orders it
            // before the kernel that writes.
            unsafe { result::memset_d8_async(buffer.at, 0xFF, buffer.bytes, self.stream.cu_stream()) }
                .map_err(failed("clearing a buffer"))?;
        }
        Ok(())
    }

    /// Sends the wanted outputs among `nodes` to the host.
    fn send(&mut self, nodes: &[usize], span: Span, wanted: &[bool], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        for &i in nodes {
            if !wanted[i] {
                continue;
            }
            let node = &self.graph.nodes[i];
            let last = self.options.last_logits && i + 1 == self.graph.nodes.len();
            let tokens = if last { 1 } else { span.tokens };
            let shape = Graph::extent(node, tokens, span.keys());
            let (id, mut from) = (node.id, self.memory.outputs[i].at);
            if node.op.has_state() && self.options.kv != KvType::F32 {
                let count: usize = shape.iter().product();
                let args = Args::default().with(from).with(self.memory.cache_f32);
                let name = format!("kv_read_{}", self.options.kv.kernel());
                self.launch(&Call::flat(name, count, args.with(count as i32)), false)?;
                from = self.memory.cache_f32;
            }
            let readback = self.readback.as_mut().expect("made for a tapped step");
            readback.send(id, shape, from, taps)?;
        }
        Ok(())
    }

    fn run(&self, work: &Work) -> Result<(), CudaError> {
        match work {
            Work::Kernel(call) => self.launch(call, false),
            Work::Two(first, second) => {
                self.launch(first, false)?;
                self.launch(second, false)
            }
            Work::Product(dequantise, product) => {
                self.launch(dequantise, false)?;
                let blas = self.blas.as_ref().expect("made for --gemm cublas");
                // SAFETY: the addresses are buffers of the extents of the graph.
                unsafe { blas.multiply(product) }
            }
        }
    }

    fn launch(&self, call: &Call, early: bool) -> Result<(), CudaError> {
        let function = &self.functions[&call.kernel];
        // SAFETY: `calls` and `fast` give each kernel its parameters in type and
        // order, and addresses of buffers with the extents of the graph.
        unsafe { call.launch(function, &self.stream, early) }
    }

    fn load_kernels(&mut self, arch: &str) -> Result<(), CudaError> {
        let sources = self.sources()?;
        let cubins = sources.par_iter().map(|source| cached(source, arch)).collect::<Result<Vec<_>, _>>()?;
        for (source, cubin) in sources.iter().zip(cubins) {
            let module = self.context.load_module(Ptx::from_binary(cubin)).map_err(failed("loading a kernel"))?;
            for name in &source.entries {
                let function = module.load_function(name).map_err(failed("finding a kernel"))?;
                self.functions.insert(name.clone(), function);
            }
        }
        if let Some(decoder) = &self.decoder {
            // Long vectors need more shared memory than a kernel gets unasked.
            for fused in self.schedule(decoder).decode(0, self.position, &|_| false) {
                self.allow_shared(&fused.call.kernel, fused.call.shared)?;
            }
            for name in self.functions.keys().filter(|n| n.starts_with("gemm_")) {
                self.allow_shared(name, GEMM_SHARED)?;
            }
        }
        Ok(())
    }

    fn allow_shared(&self, kernel: &str, bytes: u32) -> Result<(), CudaError> {
        if bytes <= PLAIN_SHARED {
            return Ok(());
        }
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.functions[kernel].set_attribute(attribute, bytes as i32).map_err(failed("asking for shared memory"))
    }

    /// The kernel files with what this model and these options need of them.
    fn sources(&self) -> Result<Vec<Source>, CudaError> {
        let mut formats: Vec<String> = Vec::new();
        for weight in self.memory.weights.values().filter(|w| w.m > 1) {
            formats.push(weight.ty.to_string());
        }
        formats.sort();
        let formats: Vec<[&str; 1]> = formats.iter().map(|f| [f.as_str()]).collect();
        let cache = [self.options.kv.kernel()];
        let mut chosen: Vec<(&str, Vec<String>)> = Vec::new();
        if let Some(decoder) = &self.decoder {
            let schedule = self.schedule(decoder);
            fast::check(&schedule.calls, decoder)?;
            chosen = schedule.kernels();
        }
        let fused: Vec<&str> = chosen.iter().map(|(file, _)| *file).collect();
        let files = TEMPLATES.iter();
        #[cfg(feature = "faults")]
        let files = files.chain(kernels::FAULTS);
        let mut sources: Vec<Source> = files
            .filter(|t| t.instances != Instances::Chosen && t.folder != "fused/")
            .map(|t| match t.instances {
                Instances::Caches => t.source([&cache[..]]),
                _ => t.source(formats.iter().map(|f| &f[..])),
            })
            .collect();
        for (i, file) in fused.iter().enumerate() {
            if fused[..i].contains(file) {
                continue;
            }
            let wanted: Vec<Vec<&str>> =
                chosen.iter().filter(|(f, _)| f == file).map(|(_, a)| a.iter().map(String::as_str).collect()).collect();
            sources.push(template(file).source(wanted.iter().map(Vec::as_slice)));
        }
        Ok(sources)
    }
}

/// A decode step as one graph; its first node takes token and position.
struct Captured {
    graph: CudaGraph,
    first: sys::CUgraphNode,
}

/// How a node takes part in the fused attention.
enum Attention {
    /// Not at all.
    None,
    /// Made together with the context.
    Part,
    /// The launch that makes all three.
    Whole(Fused),
}
