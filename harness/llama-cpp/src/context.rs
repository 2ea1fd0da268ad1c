//! Contexts of llama.cpp: with taps, and, for measuring speed, as its users have it.

use crate::model::Model;
use crate::said;
use crate::taps::{Stream, Taps, callback};
use anyhow::{Context as _, Result, bail, ensure};
use llama_cpp_sys_2 as sys;
use qdiff_capture::capture::{PassCollector, Step, Stored, Want};
use qdiff_capture::room::Room;
use qdiff_capture::supervisor;
use qdiff_engine::cpu::{Row, Sequences};
use qdiff_engine::model::{Graph, Node, StageId};
use qdiff_engine::quant::{ActivationFormat, KvType};
use qdiff_llama::llama::context::flash;
use qdiff_llama::llama::{Owner, Plays, Runs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;
use std::path::Path;
use std::sync::{Arc, Once};

/// A model that runs: its KV cache, and how far it is filled.
struct Context {
    raw: *mut sys::llama_context,
    position: usize,
    _owner: Owner,
}

impl Context {
    /// A context for `cells` tokens, at most `step` of them in a step; everything that `params` points to must outlive
    /// it.
    fn new(
        model: &Model, owner: Owner, (cells, step): (usize, usize), mut params: sys::llama_context_params,
    ) -> Result<Self> {
        params.n_ctx = cells.next_multiple_of(256) as u32;
        params.n_batch = step as u32;
        params.n_ubatch = step as u32;
        let _doing = supervisor::doing(|| "llama.cpp was making a context".to_owned());
        said::complaint().take();
        // SAFETY: a plain C call; the result is checked.
        let raw = unsafe { sys::llama_init_from_model(model.raw, params) };
        let cells = params.n_ctx;
        ensure!(!raw.is_null(), "llama.cpp cannot make a context of {cells} tokens: {}", said::why());
        Ok(Self { raw, position: 0, _owner: owner })
    }

    /// Runs the `n` tokens of a batch.
    fn decode(&mut self, batch: sys::llama_batch, n: usize) -> Result<()> {
        // SAFETY: whoever made the batch keeps what it points to for the call.
        let code = unsafe { sys::llama_decode(self.raw, batch) };
        ensure!(code == 0, "llama.cpp failed at position {} (code {code})", self.position);
        self.position += n;
        Ok(())
    }

    /// Runs rows of any sequences in one batch, for the logits of some.
    fn decode_rows(&mut self, rows: &[Row], outputs: impl Fn(usize) -> bool) -> Result<()> {
        // SAFETY: the batch has room for every token, and is freed below.
        unsafe {
            let mut batch = sys::llama_batch_init(rows.len() as i32, 0, 1);
            batch.n_tokens = rows.len() as i32;
            for (i, row) in rows.iter().enumerate() {
                *batch.token.add(i) = row.token as i32;
                *batch.pos.add(i) = row.position as i32;
                *batch.n_seq_id.add(i) = 1;
                **batch.seq_id.add(i) = row.sequence as i32;
                *batch.logits.add(i) = i8::from(outputs(i));
            }
            let done = self.decode(batch, rows.len());
            sys::llama_batch_free(batch);
            done
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by us, freed once.
        unsafe { sys::llama_free(self.raw) };
    }
}

/// A context with taps.
pub(crate) struct TappedContext {
    // Freed before the taps that it points to.
    context: Context,
    taps: Box<Taps>,
    /// Which slots of the cache each sequence has: llama.cpp gives rows the free ones in order.
    sequences: Sequences,
    /// The same of each sequence, if each has a stream of the cache of its own.
    streams: BTreeMap<u32, Sequences>,
    /// The tokens of each sequence, pass by pass.
    histories: BTreeMap<u32, Vec<Vec<u32>>>,
    room: Room,
    /// What was wanted of the last pass.
    want: Option<Arc<Want>>,
    /// States that were made again, of each sequence that goes on with them.
    again: BTreeMap<u32, States>,
    /// LoRA adapters, and the number of the one that each sequence has; llama.cpp frees them with the model.
    adapters: (Vec<*mut sys::llama_adapter_lora>, Vec<usize>),
}

impl TappedContext {
    pub(crate) fn new(model: &Model, owner: Owner, graph: &Graph, room: Room) -> Result<Self> {
        let flash = flash(room.kv);
        if room.kv.block_size() > 1 {
            unrotated();
        }
        let streams = room.split.map_or(1, |_| 1 + room.more);
        let mut taps = Box::new(Taps::new(graph, flash, streams));
        ensure!(
            room.split.is_none() || !taps.chooses_keys(),
            "llama.cpp keeps pooled keys of this model beside its keys, and qdiff reads them from a unified cache alone; leave \
             --no-kv-unified out"
        );
        // SAFETY: a call that only fills a structure.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_threads = room.threads as i32;
        params.n_threads_batch = room.threads as i32;
        params.flash_attn_type =
            if flash { sys::LLAMA_FLASH_ATTN_TYPE_ENABLED } else { sys::LLAMA_FLASH_ATTN_TYPE_DISABLED };
        params.type_k = cache_type(room.kv.keys, room.kv)?;
        params.type_v = cache_type(room.kv.values, room.kv)?;
        params.offload_kqv = model.on_gpu;
        params.op_offload = false;
        params.n_outputs_max = room.step as u32;
        // One cache for all sequences, so that they share a prefix by its slots; or a stream of the cache for each.
        params.n_seq_max = 1 + room.more as u32;
        params.kv_unified = room.more > 0 && room.split.is_none();
        let cells = room.split.map_or(room.context, |longest| longest.next_multiple_of(256) * streams);
        params.cb_eval = Some(callback);
        // Boxed, so that the address holds.
        params.cb_eval_user_data = std::ptr::from_mut::<Taps>(&mut taps).cast();
        let context = Context::new(model, owner, (cells, room.step), params)?;
        if room.shifts {
            can_shift(&context, room.kv.keys)?;
        }
        Ok(Self {
            context,
            taps,
            sequences: Sequences::default(),
            streams: BTreeMap::new(),
            histories: BTreeMap::new(),
            room,
            want: None,
            again: BTreeMap::new(),
            adapters: (Vec::new(), Vec::new()),
        })
    }

    /// The number of the adapter of a sequence.
    fn adapter_of(&self, sequence: u32) -> usize {
        self.adapters.1.get(sequence as usize).copied().unwrap_or(0)
    }

    /// Has all that follows run with this adapter. llama.cpp leaves adapters of scale 0 out, and names other tensors then; so the
    /// others have a scale by which nothing changes in f32.
    fn take_adapter(&mut self, own: usize) -> Result<()> {
        let adapters = &mut self.adapters.0;
        if adapters.is_empty() {
            return Ok(());
        }
        let scale = |number| if number == own { 1.0 } else { f32::MIN_POSITIVE };
        let mut scales: Vec<f32> = (1..=adapters.len()).map(scale).collect();
        // SAFETY: the context's own, adapters of its model, and as many scales.
        let code = unsafe {
            sys::llama_set_adapters_lora(self.context.raw, adapters.as_mut_ptr(), adapters.len(), scales.as_mut_ptr())
        };
        ensure!(code == 0, "llama.cpp cannot take adapter {own} (code {code})");
        Ok(())
    }

    /// The states of recurrent layers after the first tokens of a sequence, as llama.cpp stores them; nothing where there are none,
    /// or no tokens, or these are all of the sequence. llama.cpp keeps the last states alone: the tokens run again, in a sequence
    /// of their own. Only the states after the last token are tapped.
    fn states_after(&mut self, sequence: u32, passes: &[Vec<u32>]) -> Result<Option<(Vec<u8>, States)>> {
        let count = |passes: &[Vec<u32>]| passes.iter().map(Vec::len).sum::<usize>();
        let all = self.histories.get(&sequence).map_or(0, |all| count(all));
        if !self.taps.looks_back() || passes.is_empty() || count(passes) == all {
            return Ok(None);
        }
        ensure!(self.room.more > 0, "a context that was made for one sequence alone cannot go back");
        let spare = self.room.more as u32;
        let row = |(position, &token): (u32, &u32)| Row { sequence: spare, position, token };
        let rows: Vec<Row> = (0..).zip(passes.iter().flatten()).map(row).collect();
        let mut rest = rows.as_slice();
        let mut lengths: Vec<usize> = passes.iter().map(Vec::len).collect();
        let whole = self.histories.get(&sequence).and_then(|all| all.get(lengths.len() - 1)).map_or(0, Vec::len);
        if whole > 1 {
            beside(&mut lengths, self.room.step);
        }
        // The states themselves are wanted of the last.
        let graph = &self.taps.graph;
        let is_state = |id: &StageId| graph.index(*id).is_some_and(|i| graph.nodes[i].is_own_state());
        let want = self.want.as_ref().map(|want| want.of_others(graph, |id| Some(id).filter(is_state)));
        let (mut own, mut again) = (Sequences::default(), States::new());
        for pass in lengths {
            let (these, others) = rest.split_at(pass);
            match want.as_ref().filter(|_| others.is_empty()) {
                Some(want) => {
                    let number = self.room.split.map_or(0, |_| spare as usize);
                    self.taps.begin(vec![vec![Stream { number, rows: PassCollector::new(want, &own, these)? }]]);
                    self.decode(these)?;
                    let given = self.taps.finish()?.into_iter().flatten().flat_map(|stream| stream.rows.finish());
                    let given = given.flat_map(|step| step.stages);
                    again.extend(given.map(|(id, state)| (id, Arc::new(state))));
                }
                None => self.decode(these)?,
            }
            (own, rest) = (own.after(these)?.0, others);
        }
        let mut states = Vec::new();
        // SAFETY: the context's own memory, a sequence that it was made for, and a buffer as long as it says.
        let (wrote, done) = unsafe {
            let length = sys::llama_state_seq_get_size_ext(self.context.raw, spare as i32, RECURRENT);
            states.resize(length, 0u8);
            let wrote = sys::llama_state_seq_get_data_ext(
                self.context.raw,
                states.as_mut_ptr(),
                length,
                spare as i32,
                RECURRENT,
            );
            let memory = sys::llama_get_memory(self.context.raw);
            (wrote == length && length > 0, sys::llama_memory_seq_rm(memory, spare as i32, -1, -1))
        };
        ensure!(wrote && done, "llama.cpp cannot hand out the states of sequence {sequence}");
        Ok(Some((states, again)))
    }

    /// The first tokens of a sequence, so many, pass by pass.
    fn passes_of(&self, sequence: u32, mut tokens: usize) -> Vec<Vec<u32>> {
        let mut passes = Vec::new();
        for pass in self.histories.get(&sequence).into_iter().flatten() {
            let own = pass.len().min(tokens);
            tokens -= own;
            passes.extend((own > 0).then(|| pass[..own].to_vec()));
        }
        passes
    }

    /// Gives a sequence these states.
    fn give_states(&mut self, sequence: u32, states: Option<(Vec<u8>, States)>) -> Result<()> {
        let Some((states, again)) = states else { return Ok(()) };
        self.again.insert(sequence, again);
        // SAFETY: the context's own memory, a sequence that it was made for, and what it stored itself.
        let read = unsafe {
            sys::llama_state_seq_set_data_ext(
                self.context.raw,
                states.as_ptr(),
                states.len(),
                sequence as i32,
                RECURRENT,
            )
        };
        ensure!(read > 0, "llama.cpp cannot set the states of sequence {sequence}");
        Ok(())
    }

    /// The sequences of the stream of the cache that this one is in.
    fn own(&mut self, sequence: u32) -> &Sequences {
        match self.room.split {
            None => &self.sequences,
            Some(_) => self.streams.entry(sequence).or_default(),
        }
    }

    /// The ubatches in which llama.cpp runs these rows, and what collects them.
    fn ubatches(&self, rows: &[Row], want: &Arc<Want>) -> Result<Vec<Vec<Stream>>> {
        if self.room.split.is_none() {
            return Ok(vec![vec![Stream { number: 0, rows: PassCollector::new(want, &self.sequences, rows)? }]]);
        }
        let mut now = self.streams.clone();
        let mut stream = |own: Vec<Row>| {
            let sequence = own[0].sequence;
            let own_cells = now.entry(sequence).or_default();
            let rows = PassCollector::new(want, own_cells, &own)?;
            own_cells.clone_from(rows.after());
            Ok(Stream { number: sequence as usize, rows })
        };
        split(rows).into_iter().map(|ubatch| ubatch.into_iter().map(&mut stream).collect()).collect()
    }

    /// Runs rows in one batch, with the taps as they are.
    fn decode(&mut self, rows: &[Row]) -> Result<()> {
        let position = self.context.position;
        let _doing = supervisor::doing(|| format!("llama.cpp was running position {position}"));
        self.context.decode_rows(rows, |_| true)
    }
}

impl Runs for TappedContext {
    fn taps(&self, node: &Node) -> bool {
        self.taps.emitted(node.id)
    }

    fn adapt(&mut self, files: &[&Path], numbers: Vec<usize>) -> Result<()> {
        ensure!(!self.taps.looks_back(), "llama.cpp runs no adapters of a recurrent model here; add --reference none");
        for file in files {
            let name = CString::new(file.as_os_str().as_encoded_bytes())?;
            said::complaint().take();
            // SAFETY: the context's own model, which is not changed meanwhile, and a NUL-terminated path; the result is checked.
            let adapter = unsafe {
                let model = sys::llama_get_model(self.context.raw).cast_mut();
                sys::llama_adapter_lora_init(model, name.as_ptr())
            };
            ensure!(!adapter.is_null(), "llama.cpp cannot load the adapter {}: {}", file.display(), said::why());
            self.adapters.0.push(adapter);
        }
        self.adapters.1 = numbers;
        Ok(())
    }

    fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<()> {
        match self.room.split {
            None => self.sequences.share(from, to, tokens)?,
            Some(_) => {
                let copy = self.own(from).copied(from, to, tokens)?;
                self.streams.insert(to, copy);
            }
        }
        let prefix = self.passes_of(from, tokens);
        let states = self.states_after(from, &prefix)?;
        // llama.cpp copies whole streams alone; what is too much is removed.
        let (end, split) = (if self.room.split.is_some() { -1 } else { tokens as i32 }, self.room.split.is_some());
        // SAFETY: the context's own memory, and sequences that it was made for.
        unsafe {
            let memory = sys::llama_get_memory(self.context.raw);
            sys::llama_memory_seq_cp(memory, from as i32, to as i32, 0, end);
        }
        self.histories.insert(to, prefix);
        self.give_states(to, states)?;
        // SAFETY: as above.
        let done = !split
            || unsafe {
                let memory = sys::llama_get_memory(self.context.raw);
                sys::llama_memory_seq_rm(memory, to as i32, tokens as i32, -1)
            };
        ensure!(done, "llama.cpp cannot begin sequence {to} with {tokens} tokens of sequence {from}");
        Ok(())
    }

    fn take_back(&mut self, sequence: u32, to: usize) -> Result<()> {
        match self.room.split {
            None => _ = self.sequences.take_back(sequence, to)?,
            Some(_) => _ = self.streams.entry(sequence).or_default().take_back(sequence, to)?,
        }
        let rest = self.passes_of(sequence, to);
        // llama.cpp takes no part of a sequence back whose states are those after a later token.
        let states = self.states_after(sequence, &rest)?;
        self.give_states(sequence, states)?;
        // SAFETY: the context's own memory, and a sequence that it was made for.
        let done = unsafe {
            let memory = sys::llama_get_memory(self.context.raw);
            sys::llama_memory_seq_rm(memory, sequence as i32, to as i32, -1)
        };
        ensure!(done, "llama.cpp cannot take sequence {sequence} back to {to} tokens");
        self.histories.insert(sequence, rest);
        Ok(())
    }

    fn shift(&mut self, sequence: u32, from: usize, tokens: usize) -> Result<()> {
        ensure!(
            !self.taps.looks_back(),
            "llama.cpp's states of recurrent layers cannot forget tokens of a sequence's middle"
        );
        match self.room.split {
            None => _ = self.sequences.shift(sequence, from, tokens)?,
            Some(_) => _ = self.streams.entry(sequence).or_default().shift(sequence, from, tokens)?,
        }
        let [begin, end, by] = [from, from + tokens, tokens].map(|n| n as i32);
        // SAFETY: the context's own memory, and a sequence that it was made for; keys can be rotated again, as was asked before.
        let done = unsafe {
            let memory = sys::llama_get_memory(self.context.raw);
            let done = sys::llama_memory_seq_rm(memory, sequence as i32, begin, end);
            sys::llama_memory_seq_add(memory, sequence as i32, end, -1, -by);
            done
        };
        ensure!(done, "llama.cpp cannot remove {tokens} tokens of sequence {sequence} from position {from} on");
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        let row = |(position, &token): (u32, &u32)| Row { sequence: 0, position, token };
        let rows: Vec<Row> = (self.own(0).tokens(0) as u32..).zip(tokens).map(row).collect();
        self.rows(&rows, want)?.pop().context("a step has rows")
    }

    fn rows(&mut self, rows: &[Row], want: &Arc<Want>) -> Result<Vec<Step>> {
        let sequences: BTreeSet<u32> = rows.iter().map(|row| row.sequence).collect();
        let of: BTreeSet<usize> = sequences.iter().map(|sequence| self.adapter_of(*sequence)).collect();
        if sequences.len() > 1 && (self.taps.looks_back() || of.len() > 1) {
            // llama.cpp would cut them into ubatches of as many tokens of each, or add one adapter to all.
            let own = |sequence| rows.iter().copied().filter(|row| row.sequence == sequence).collect::<Vec<Row>>();
            let mut steps = Vec::new();
            for sequence in sequences {
                steps.extend(self.rows(&own(sequence), want)?);
            }
            return Ok(steps);
        }
        self.take_adapter(of.first().copied().unwrap_or(0))?;
        let ubatches = self.ubatches(rows, want)?;
        let of_one = |stream: &Stream| stream.rows.after().is_one();
        ensure!(
            ubatches.iter().flatten().all(of_one) || !self.taps.chooses_keys(),
            "llama.cpp chooses blocks of keys by their place in its cache, where several sequences lie between each other; run \
             each sequence alone, or give --reference none"
        );
        self.want = Some(want.clone());
        self.taps.begin(ubatches);
        self.decode(rows)?;
        let collected = self.taps.finish()?;
        for stream in collected.iter().flatten() {
            let (missing, total) = stream.rows.missing();
            if let Some(first) = missing.first() {
                bail!(
                    "llama.cpp never emitted {} of the {total} wanted stages, first {first}; its tensor names changed: \
                     mend what `add(…)` says in the graph's declaration",
                    missing.len(),
                );
            }
        }
        // The steps of each sequence, one for each ubatch that has rows of it.
        let mut steps: BTreeMap<u32, Vec<Step>> = BTreeMap::new();
        for Stream { rows, number } in collected.into_iter().flatten() {
            match self.room.split {
                None => self.sequences = rows.after().clone(),
                Some(_) => _ = self.streams.insert(number as u32, rows.after().clone()),
            }
            rows.finish().into_iter().for_each(|step| steps.entry(step.whose.sequence).or_default().push(step));
        }
        for sequence in sequences {
            let tokens = rows.iter().filter(|row| row.sequence == sequence).map(|row| row.token).collect();
            self.histories.entry(sequence).or_default().push(tokens);
        }
        let joined = |steps: Vec<Step>| Step::joined(&self.taps.graph, steps, &want.store);
        let mut steps: Vec<Step> = steps.into_values().filter_map(joined).collect();
        if let (Some(row), Some(step)) = (rows.first(), steps.first_mut()) {
            step.before = self.again.remove(&row.sequence).unwrap_or_default();
        }
        Ok(steps)
    }
}

/// The rows of each ubatch, by sequence, in which llama.cpp runs a batch if each sequence has a stream of its own
/// (`llama_batch_allocr::split_equal`, sequential): a ubatch has as many rows of each sequence, and the numbers of its
/// sequences follow each other.
fn split(rows: &[Row]) -> Vec<Vec<Vec<Row>>> {
    let mut left: BTreeMap<u32, VecDeque<Row>> = BTreeMap::new();
    rows.iter().for_each(|row| left.entry(row.sequence).or_default().push_back(*row));
    let mut used = vec![false; rows.len()];
    let mut ubatches = Vec::new();
    while let Some(first) = used.iter().position(|used| !used) {
        let mut these = vec![rows[first].sequence];
        for (row, _) in rows.iter().zip(&used).skip(first).filter(|(_, used)| !**used) {
            if these.last().is_some_and(|last| row.sequence == last + 1) {
                these.push(row.sequence);
            }
        }
        let most = these.iter().map(|sequence| left[sequence].len()).min().unwrap_or(0);
        let own = |sequence: &u32| -> Vec<Row> {
            left.get_mut(sequence).map(|rows| rows.drain(..most).collect()).unwrap_or_default()
        };
        let ubatch: Vec<Vec<Row>> = these.iter().map(own).collect();
        for row in ubatch.iter().flatten() {
            let at = rows.iter().position(|other| (other.sequence, other.position) == (row.sequence, row.position));
            at.into_iter().for_each(|at| used[at] = true);
        }
        ubatches.push(ubatch);
    }
    ubatches
}

/// States by their stages.
type States = BTreeMap<StageId, Arc<Stored>>;

/// Puts a last row that was not alone in its pass beside the row before it: llama.cpp multiplies one row by another kernel.
fn beside(lengths: &mut Vec<usize>, most: usize) {
    if let [.., before, last @ 1] = lengths.as_mut_slice()
        && *before > 1
    {
        if *before < most {
            *before += 1;
            lengths.pop();
        } else if *before > 2 {
            (*before, *last) = (*before - 1, 2);
        }
    }
}

/// Refuses a context whose cached keys llama.cpp does not rotate again.
fn can_shift(context: &Context, keys: ActivationFormat) -> Result<()> {
    const REMEDY: &str = "leave shifts such as -4:2 out of --sequences";
    // SAFETY: the context's own memory.
    let can = unsafe { sys::llama_memory_can_shift(sys::llama_get_memory(context.raw)) };
    ensure!(
        can,
        "llama.cpp moves no cached tokens of this model to other positions (M-RoPE has several for each token); {REMEDY}, or add \
         --reference none"
    );
    ensure!(
        keys != ActivationFormat::Bf16,
        "llama.cpp aborts where it is to rotate cached keys in bf16 again; {REMEDY}, or take --kv-type f16 or f32"
    );
    // Its graph of the shift multiplies by the Hadamard matrix, which is none then (llama_mul_mat_hadamard).
    ensure!(
        keys.block_size() == 1,
        "llama.cpp crashes where it is to rotate cached keys in blocks again and its Hadamard rotation is off, as qdiff has it; \
         {REMEDY}, take --kv-type f16 or f32 for keys, or add --reference none"
    );
    Ok(())
}

/// Which states of a sequence are meant: those of recurrent layers (`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`, which the bindings
/// have not).
const RECURRENT: sys::llama_state_seq_flags = 1;

/// Lets llama.cpp store rows in blocks as they are: it would multiply keys and values by a Hadamard matrix first, and undo that
/// behind the attention, which no stage of the graph does.
fn unrotated() {
    static ONCE: Once = Once::new();
    // SAFETY: the other threads of this process read the environment through the standard library, which locks it, or are
    // ggml's, which read it when a model is loaded.
    ONCE.call_once(|| unsafe { std::env::set_var("LLAMA_ATTN_ROT_DISABLE", "1") });
}

/// ggml's type of a cache.
fn cache_type(cache: ActivationFormat, kv: KvType) -> Result<sys::ggml_type> {
    Ok(match (cache, cache.stored_as()) {
        (_, Some(ty)) => ty.id() as sys::ggml_type,
        (ActivationFormat::F32, _) => sys::GGML_TYPE_F32,
        (ActivationFormat::F16, _) => sys::GGML_TYPE_F16,
        (ActivationFormat::Bf16, _) => sys::GGML_TYPE_BF16,
        _ => bail!("llama.cpp has no KV cache in {kv}; take --reference none, or another --kv-type"),
    })
}

/// A context as llama.cpp's users have it: no taps, flash attention, KV cache in f16.
pub(crate) struct Plain(Context);

impl Plain {
    pub(crate) fn new(model: &Model, owner: Owner, n_ctx: usize, n_step: usize, sequences: usize) -> Result<Self> {
        // SAFETY: a call that only fills a structure.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
        // A part of the cache for each, as is usual.
        params.n_seq_max = sequences as u32;
        let cells = n_ctx.next_multiple_of(256) * sequences;
        Ok(Self(Context::new(model, owner, (cells, n_step), params)?))
    }
}

impl Plays for Plain {
    fn clear(&mut self) {
        // SAFETY: the context's own memory.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.0.raw), false) };
        self.0.position = 0;
    }

    fn step(&mut self, tokens: &[u32]) -> Result<()> {
        let mut tokens: Vec<i32> = tokens.iter().map(|&t| t as i32).collect();
        // SAFETY: the batch borrows the tokens, which outlive the calls.
        unsafe {
            let done = self.0.decode(sys::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32), tokens.len());
            sys::llama_synchronize(self.0.raw);
            done
        }
    }

    fn rows(&mut self, rows: &[Row]) -> Result<()> {
        let last = |i: usize| rows[i + 1..].iter().all(|row| row.sequence != rows[i].sequence);
        let done = self.0.decode_rows(rows, last);
        // SAFETY: the context's own.
        unsafe { sys::llama_synchronize(self.0.raw) };
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As llama.cpp cuts them: sequences whose numbers follow each other, and as many rows of each.
    #[test]
    fn ubatches_have_as_many_rows_of_each_sequence() {
        let rows: Vec<Row> = [(0, 3), (1, 1), (2, 4), (4, 2)]
            .into_iter()
            .flat_map(|(sequence, rows)| (0..rows).map(move |position| Row { sequence, position, token: 0 }))
            .collect();
        let all = split(&rows);
        let of = |ubatch: &Vec<Vec<Row>>| ubatch.iter().map(|own| (own[0].sequence, own.len())).collect::<Vec<_>>();
        let told: Vec<_> = all.iter().map(of).collect();
        assert_eq!(told, [vec![(0, 1), (1, 1), (2, 1)], vec![(0, 2)], vec![(2, 3)], vec![(4, 2)]]);
        let mut rest: Vec<Row> = all.into_iter().flatten().flatten().collect();
        rest.sort_by_key(|row| (row.sequence, row.position));
        assert_eq!(rest, rows);
    }
}
