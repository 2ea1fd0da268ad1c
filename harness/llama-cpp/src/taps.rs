//! The graph callback: which tensor is which stage, and copying it out.
//!
//! Copies are made inside the callback, because later operations overwrite
//! tensors in place; views are read through their strides.

use crate::gguf::to_float;
use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;
use qdiff_capture::capture::PassCollector;
use qdiff_engine::model::{EmittedLayout, Graph, Node, StageId};
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, Tensor};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Nodes the scheduler skips reach the callback with junk; those it computes carry this flag.
const COMPUTED: i32 = sys::GGML_TENSOR_FLAG_COMPUTE as i32;

/// Elements of a tensor that a thread copies at least.
const AT_ONCE: usize = 1 << 18;

/// The rows of a ubatch whose keys and values are in one stream of the KV cache.
pub(super) struct Stream {
    /// The number of the stream.
    pub(super) number: usize,
    /// What collects its rows.
    pub(super) rows: PassCollector,
}

/// Where the rows of a stream are in a tensor.
#[derive(Clone, Copy)]
struct Place {
    /// The number of the stream, among all of the cache.
    stream: usize,
    /// How many the cache has.
    streams: usize,
    /// The place of the stream among those of the ubatch.
    turn: usize,
    /// How many streams the ubatch has rows of, all as many.
    turns: usize,
}

/// What the callback needs; its address is handed to llama.cpp.
pub(super) struct Taps {
    pub(super) graph: Graph,
    /// By tensor name and operation, in the order of the graph where several have the same.
    by_name: HashMap<(String, &'static str), Vec<usize>>,
    /// Unnamed tensors, by what they are made of and operation.
    by_source: HashMap<(String, &'static str), usize>,
    /// The tensor that was found last among several of one name, and which stage it is.
    last: Option<(usize, usize)>,
    /// What collects the pass that runs: the parts of each of its ubatches, in order.
    ubatches: Vec<Vec<Stream>>,
    /// The ubatch that runs.
    now: usize,
    /// The stage that begins each ubatch.
    begins: Option<usize>,
    /// Streams of the KV cache: one for all sequences, or one for each.
    streams: usize,
    /// First thing that went wrong inside the callback.
    trouble: Option<String>,
}

impl Taps {
    /// Taps of a context, whose attention is `flash` attention or not, and whose KV cache has so many streams.
    pub(super) fn new(graph: &Graph, flash: bool, streams: usize) -> Self {
        let mut graph = graph.clone();
        graph.nodes.iter_mut().filter(|_| flash).for_each(of_flash);
        let mut taps = Self {
            graph: graph.clone(),
            by_name: HashMap::new(),
            by_source: HashMap::new(),
            last: None,
            ubatches: Vec::new(),
            now: 0,
            begins: None,
            streams,
            trouble: None,
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            let emission = &node.emission;
            if emission.op.is_empty() {
                continue;
            }
            if emission.name.is_empty() {
                let sources = node.weights.iter().map(|weight| &weight.name).chain([&emission.source]);
                for name in sources.filter(|name| !name.is_empty()) {
                    taps.by_source.insert((name.clone(), emission.op), index);
                }
            } else {
                taps.by_name.entry((emission.name.clone(), emission.op)).or_default().push(index);
            }
        }
        taps
    }

    /// The node that `t` is the output of.
    ///
    /// # Safety
    /// The tensor must be a valid one, as llama.cpp passes it to the callback.
    unsafe fn find(&mut self, t: *const sys::ggml_tensor) -> Option<usize> {
        // SAFETY: llama.cpp passes a valid tensor; names are NUL-terminated.
        unsafe {
            if (*t).flags & COMPUTED == 0 {
                return None;
            }
            let op = CStr::from_ptr(sys::ggml_op_name((*t).op)).to_str().ok()?;
            let op = self.graph.nodes.iter().map(|n| n.emission.op).find(|o| *o == op)?;
            let full = CStr::from_ptr((*t).name.as_ptr()).to_string_lossy();
            // Views and reshapes of a cache keep its name with a remark behind; other such views are of a stage, and none.
            let name = full.split(" (").next().unwrap_or("").to_owned();
            if op == "VIEW" && name != full {
                return None;
            }
            if let Some(all) = self.by_name.get(&(name, op)) {
                let [one, _, ..] = all.as_slice() else {
                    let index = *all.first()?;
                    // The second halves are written apart, to a view of the cache.
                    let part = self.graph.nodes[index].emission.layout == EmittedLayout::FirstHalves
                        && full.matches(" (").count() > 1;
                    return (!part).then_some(index);
                };
                // llama.cpp asks for a tensor, then gives it, one after the other in the order of its graph.
                let index = match self.last {
                    Some((tensor, index)) if tensor == t.addr() => index,
                    Some((_, index)) => all.iter().copied().find(|next| *next > index).unwrap_or(*one),
                    None => *one,
                };
                self.last = Some((t.addr(), index));
                return Some(index);
            }
            let sources = (*t).src;
            sources[..2].iter().filter(|source| !source.is_null()).find_map(|source| {
                let name = CStr::from_ptr((**source).name.as_ptr()).to_string_lossy();
                let name = name.split(" (").next().unwrap_or("").to_owned();
                self.by_source.get(&(name, op)).copied()
            })
        }
    }

    /// Whether llama.cpp announces the stage.
    pub(super) fn emitted(&self, id: StageId) -> bool {
        self.graph.nodes.iter().any(|node| node.id == id && !node.emission.op.is_empty())
    }

    /// Whether some stage goes on from a state.
    pub(super) fn looks_back(&self) -> bool {
        self.graph.is_recurrent()
    }

    /// Whether some stage chooses keys.
    pub(super) fn chooses_keys(&self) -> bool {
        self.graph.nodes.iter().any(|node| node.emission.layout == EmittedLayout::Mask)
    }

    /// Taps a pass that llama.cpp runs in these ubatches.
    pub(super) fn begin(&mut self, ubatches: Vec<Vec<Stream>>) {
        (self.ubatches, self.now, self.begins) = (ubatches, 0, None);
        (self.trouble, self.last) = (None, None);
    }

    /// Ends the pass, and gives what was collected in each ubatch.
    ///
    /// # Errors
    /// What went wrong inside the callback.
    pub(super) fn finish(&mut self) -> Result<Vec<Vec<Stream>>> {
        let ubatches = std::mem::take(&mut self.ubatches);
        match self.trouble.take() {
            Some(why) => bail!("{why}"),
            None if ubatches.is_empty() => bail!("no step was begun"),
            None if self.begins.is_some() && self.now + 1 < ubatches.len() => {
                bail!("llama.cpp ran {} ubatches in a pass where qdiff knows of {}", self.now + 1, ubatches.len())
            }
            None => Ok(ubatches),
        }
    }

    /// Notes that llama.cpp announces the node `index`: each ubatch begins with the same.
    fn announced(&mut self, index: usize) {
        match self.begins {
            None => self.begins = Some(index),
            Some(begins) if begins == index && self.ubatches.len() > 1 => {
                self.now += 1;
                self.last = None;
                if self.now == self.ubatches.len() {
                    let known = self.ubatches.len();
                    self.trouble
                        .get_or_insert(format!("llama.cpp runs a pass in more than the {known} ubatches known"));
                }
            }
            Some(_) => {}
        }
    }

    fn wants(&self, index: usize) -> bool {
        let id = self.graph.nodes[index].id;
        self.ubatches.get(self.now).is_some_and(|streams| streams.iter().any(|stream| stream.rows.wants(id)))
    }

    /// Hands the values of `t`, the output of the node `index`, to the collectors.
    ///
    /// # Safety
    /// The tensor must be a valid one that was computed, in host memory.
    unsafe fn take(&mut self, t: *const sys::ggml_tensor, index: usize) -> Result<(), String> {
        let node = &self.graph.nodes[index];
        let streams = self.ubatches.get_mut(self.now).map_or(&mut [][..], Vec::as_mut_slice);
        let turns = streams.len();
        for (turn, Stream { number, rows }) in streams.iter_mut().enumerate() {
            let shape = rows.extent(node);
            let place = Place { stream: *number, streams: self.streams, turn, turns };
            // SAFETY: as the caller's.
            let data = unsafe { copy(t, node, (&shape, place), &|r, n| rows.meaningful(node, r, n))? };
            if !rows.take(node, Arc::new(Tensor { shape, data })) {
                return Err(format!("{}: llama.cpp emits it twice in a step", node.id));
            }
        }
        Ok(())
    }
}

/// Says how flash attention announces a stage: scores and weights not at all, the context under its own name as a view of the
/// kernel's output, and values in rows.
fn of_flash(node: &mut Node) {
    let emission = &mut node.emission;
    match node.op.anatomy() {
        Anatomy::Contraction(Contraction::Scores(_)) | Anatomy::RowReduction(RowReduction::Exponentials(_)) => {
            emission.op = "";
        }
        Anatomy::Contraction(Contraction::Context(_)) => emission.op = "RESHAPE",
        Anatomy::State(_) if emission.layout == EmittedLayout::ValueCacheTransposed => {
            emission.layout = EmittedLayout::KeyCache;
        }
        Anatomy::RowReduction(RowReduction::Seen) if emission.layout == EmittedLayout::PaddedKeys => emission.op = "",
        // In f16.
        _ if emission.layout == EmittedLayout::Mask => emission.op = "",
        _ => {}
    }
}

/// Whether the tensor's bytes are in host memory.
///
/// # Safety
/// The tensor must be a valid one.
unsafe fn on_host(t: &sys::ggml_tensor) -> bool {
    // SAFETY: llama.cpp passes a valid tensor; a view's source is one too.
    unsafe {
        let owner = if t.view_src.is_null() { t } else { &*t.view_src };
        owner.buffer.is_null() || sys::ggml_backend_buffer_is_host(owner.buffer)
    }
}

/// Reads the tensor in the stage's own shape, of the rows and the stream of `place`; `meaningful` says how many of the entries of a row are read, the rest is 0.
///
/// # Safety
/// The tensor must be a valid one that was computed, in host memory.
unsafe fn copy(
    t: *const sys::ggml_tensor, node: &Node, (shape, place): (&[usize], Place),
    meaningful: &(dyn Fn(usize, usize) -> usize + Sync),
) -> Result<Vec<f32>, String> {
    // SAFETY: llama.cpp passes a valid, computed tensor in host memory; every
    // row below is one of its own extents and strides, every index in range.
    unsafe {
        let t = &*t;
        let layout = node.emission.layout;
        let cache = matches!(
            layout,
            EmittedLayout::KeyCache | EmittedLayout::ValueCacheTransposed | EmittedLayout::FirstHalves
        );
        let integers = t.type_ == sys::GGML_TYPE_I32;
        if t.type_ != sys::GGML_TYPE_F32 && !integers && !cache {
            return Err(format!("{}: llama.cpp gives it in a type other than f32 and i32", node.id));
        }
        let mut fetched = Vec::new();
        let data: *const u8 = if on_host(t) {
            t.data.cast()
        } else {
            // As f32, so that the copy is aligned for it.
            fetched.resize(sys::ggml_nbytes(t).div_ceil(4), 0f32);
            let to = fetched.as_mut_ptr();
            sys::ggml_backend_tensor_get(t, to.cast(), 0, sys::ggml_nbytes(t));
            to.cast()
        };
        let ne: Vec<usize> = t.ne.iter().map(|&n| n as usize).collect();
        let want: usize = shape.iter().product();
        let mut out = Vec::with_capacity(want);
        let bytes = std::slice::from_raw_parts(data, sys::ggml_nbytes(t));
        let strides = t.nb;
        let row = |i1: usize, i2: usize, i3: usize, n: usize| {
            let start = i1 * strides[1] + i2 * strides[2] + i3 * strides[3];
            bytemuck::cast_slice::<u8, f32>(&bytes[start..][..4 * n])
        };
        let mismatch = || format!("{}: llama.cpp gives shape {ne:?}, the graph says {shape:?}", node.id);
        match node.emission.layout {
            EmittedLayout::Rows | EmittedLayout::PaddedKeys => {
                let keys = node.emission.layout == EmittedLayout::PaddedKeys;
                let (n, fits) = match keys {
                    true => (shape[2], ne[0] >= shape[2] && ne[1..] == [shape[1], shape[0], place.turns]),
                    false => (ne[0], ne.iter().product::<usize>() == want * place.turns),
                };
                // The rows of one stream follow those of another.
                let before = match keys {
                    true => place.turn * ne[1] * ne[2],
                    false => place.turn * (want / n.max(1)),
                };
                if !fits || t.nb[0] != 4 || !want.is_multiple_of(n.max(1)) {
                    return Err(mismatch());
                }
                let rows = out.spare_capacity_mut()[..want].par_chunks_mut(n.max(1));
                rows.with_min_len(AT_ONCE.div_ceil(n.max(1))).enumerate().for_each(|(i, to)| {
                    // Scores beyond the diagonal carry no meaning; weights do.
                    let seen = meaningful(i % ne[1], n);
                    let i = before + i;
                    let (i1, i2, i3) = (i % ne[1], i / ne[1] % ne[2], i / ne[1] / ne[2]);
                    let (to, beyond) = to.split_at_mut(seen);
                    let values = row(i1, i2, i3, seen);
                    match integers {
                        false => std::iter::zip(to, values).for_each(|(to, v)| _ = to.write(*v)),
                        true => std::iter::zip(to, values).for_each(|(to, v)| _ = to.write(v.to_bits() as i32 as f32)),
                    }
                    beyond.iter_mut().for_each(|to| _ = to.write(0.0));
                });
                out.set_len(want);
            }
            _ if place.turns > 1 && !cache => return Err(mismatch()),
            EmittedLayout::Columns => {
                let (rows, width) = (shape[1], shape[2]);
                if ne[..2] != [rows, width] || ne[2..].iter().any(|n| *n != 1) || t.nb[0] != 4 {
                    return Err(mismatch());
                }
                out.resize(want, 0.0);
                for j in 0..width {
                    row(j, 0, 0, rows).iter().enumerate().for_each(|(i, v)| out[i * width + j] = *v);
                }
            }
            EmittedLayout::LastOfBlocks(_) | EmittedLayout::Mask if t.nb[0] != 4 || ne[1] != shape[0] => {
                return Err(mismatch());
            }
            EmittedLayout::LastOfBlocks(block) => {
                let blocks = shape[1] / block;
                if ne[0] < blocks {
                    return Err(mismatch());
                }
                out.resize(want, 0.0);
                for (t, out) in out.chunks_mut(shape[1].max(1)).enumerate() {
                    let scores = row(t, 0, 0, blocks).iter().enumerate().filter(|(_, v)| **v != f32::NEG_INFINITY);
                    scores.for_each(|(b, v)| out[(b + 1) * block - 1] = *v);
                }
            }
            EmittedLayout::Mask => {
                if ne[0] < shape[1] {
                    return Err(mismatch());
                }
                let seen = |v: &f32| {
                    if *v == 0.0 {
                        1.0
                    } else if *v == f32::NEG_INFINITY {
                        0.0
                    } else {
                        *v
                    }
                };
                (0..shape[0]).for_each(|t| out.extend(row(t, 0, 0, shape[1]).iter().map(seen)));
            }
            EmittedLayout::FirstHalves => {
                let (rows, width) = (shape[0], shape[1] * shape[2]);
                let (size, block) = (sys::ggml_type_size(t.type_), sys::ggml_blck_size(t.type_) as usize);
                let cells = sys::ggml_nbytes(t) / size * block / (2 * width).max(1);
                if cells < rows || !width.is_multiple_of(block) {
                    return Err(mismatch());
                }
                out.resize(want, 0.0);
                let of_row = width / block * size;
                for (row, out) in out.chunks_mut(width.max(1)).enumerate() {
                    to_float(t.type_, &bytes[2 * row * of_row..][..of_row], out);
                }
            }
            EmittedLayout::KeyCache | EmittedLayout::ValueCacheTransposed => {
                let (rows, width) = (shape[0], shape[1] * shape[2]);
                let (size, block) = (sys::ggml_type_size(t.type_), sys::ggml_blck_size(t.type_) as usize);
                let elements = sys::ggml_nbytes(t) / size * block;
                let of_stream = elements / place.streams;
                let cells = of_stream / width;
                let whole = elements.is_multiple_of(width * place.streams) && width.is_multiple_of(block);
                if cells < rows || !whole {
                    return Err(mismatch());
                }
                let begin = place.stream * of_stream;
                // Only what is there is converted: the rest holds anything.
                let values = |from: usize, count: usize, out: &mut [f32]| {
                    to_float(t.type_, &bytes[from / block * size..][..count / block * size], &mut out[..count]);
                };
                out.resize(want, 0.0);
                if node.emission.layout == EmittedLayout::KeyCache {
                    values(begin, want, &mut out);
                } else {
                    let mut column = vec![0f32; rows];
                    for j in 0..width {
                        values(begin + j * cells, rows, &mut column);
                        for (n, v) in column.iter().enumerate() {
                            out[n * width + j] = *v;
                        }
                    }
                }
            }
        }
        Ok(out)
    }
}

/// The callback itself. Nothing may unwind across it.
///
/// # Safety
/// The tensor must be a valid one; `user` the [`Taps`] of the session, alive and not otherwise borrowed.
pub(super) unsafe extern "C" fn callback(t: *mut sys::ggml_tensor, ask: bool, user: *mut c_void) -> bool {
    catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `user` is the boxed Taps of the session, alive and not otherwise borrowed while llama_decode runs.
        let taps = unsafe { &mut *user.cast::<Taps>() };
        // SAFETY: llama.cpp passes a valid tensor.
        let Some(index) = (unsafe { taps.find(t) }) else {
            return !ask;
        };
        if ask {
            taps.announced(index);
            return taps.wants(index);
        }
        let wanted = taps.wants(index);
        // SAFETY: as above; after `ask` the data is there.
        if wanted && let Err(why) = unsafe { taps.take(t, index) } {
            taps.trouble.get_or_insert(why);
        }
        true
    }))
    .unwrap_or(true)
}
