//! `qdiff-lab bench --measure cuda`: the CUDA engine on its own card, by both paths and with and without taps.

use super::{BenchRequest, llama_bench, median};
use crate::report::bench::{Bench, BenchRow as Row, CardState, DecodeStep, Kernel, StageBytes, TapRow, usual_depth};
use anyhow::{Context as _, Result};
use qdiff::capture::Filter;
use qdiff::input;
use qdiff::llama::context::Plain;
use qdiff::llama::{Load, Model};
use qdiff::loaded::LoadedModel;
use qdiff_engine::cuda::{CudaEngine, Options, Path as PathOf, Work, bandwidth, link};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, Role, StageId};
use qdiff_engine::ops::anatomy::Elementwise;
use qdiff_engine::ops::{Anatomy, Tensor};
use qdiff_engine::quant::KvType;
use qdiff_engine::tap::{NoTaps, Part, TapSink};
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Decode steps timed.
pub(super) const DECODE: usize = 128;
/// For the tapped path, which is slow where it is tapped.
const TAPPED: usize = 8;

/// Replays of a decode step timed on the card.
const REPLAYS: usize = 100;

/// Looks at the stages that are wanted, all of them where none is named, and keeps none.
#[derive(Default)]
pub(super) struct Reader {
    named: Option<HashSet<StageId>>,
    /// Whether each node's is, cached: it is the same in every step.
    by_node: OnceCell<Vec<bool>>,
}

impl Reader {
    /// Of one stage.
    pub(super) fn of(stage: StageId) -> Self {
        Self { named: Some(HashSet::from([stage])), ..Self::default() }
    }
}

impl TapSink for Reader {
    fn wants(&self, id: StageId) -> bool {
        self.named.as_ref().is_none_or(|named| named.contains(&id))
    }
    fn wanted(&self, nodes: &[Node]) -> Vec<bool> {
        self.by_node.get_or_init(|| nodes.iter().map(|node| self.wants(node.id)).collect()).clone()
    }
    fn tap(&mut self, _: StageId, _: Arc<Tensor<f32>>) {}
    fn part(&mut self, _: Part<'_>) {}
}

/// An engine to be timed.
struct Entry {
    name: &'static str,
    options: Options,
    /// Which stages are tapped; none of them where nothing is.
    taps: HashSet<StageId>,
    /// Decode steps timed.
    steps: usize,
}

impl Entry {
    /// Tokens of the timed prefill, and decode steps.
    fn lengths(&self) -> [usize; 2] {
        [self.options.step, self.steps]
    }

    fn tapped(&self) -> bool {
        !self.taps.is_empty()
    }

    /// The same work without its taps.
    fn untapped(&self) -> Self {
        let options = Options { taps: false, keep_taps: false, ..self.options };
        Self { name: self.name, options, taps: HashSet::new(), steps: self.steps }
    }
}

/// The stages of `--taps`; if it is not given, the residual stream after each layer, and the logits.
fn chosen(graph: &Graph, request: &BenchRequest) -> Result<HashSet<StageId>> {
    let filter = Filter::new(graph, &request.taps, None, None).context("--taps")?;
    let usual = |n: &&Node| {
        n.role == Role::Logits || n.role == Role::FfnOutput && n.op.anatomy() == Anatomy::Elementwise(Elementwise::Sum)
    };
    let named = |n: &&Node| if request.taps.is_empty() { usual(n) } else { filter.stage(n.id) };
    Ok(graph.nodes.iter().filter(named).map(|n| n.id).collect())
}

fn entries(graph: &Graph, request: &BenchRequest, kv: KvType, [depth, prefill]: [usize; 2]) -> Result<Vec<Entry>> {
    let gemm = request.gemm.gemm;
    let entry = |name, path, taps: HashSet<StageId>, on_host: bool| Entry {
        name,
        options: Options {
            step: prefill,
            context: depth + DECODE,
            path,
            gemm,
            kv,
            taps: !taps.is_empty(),
            keep_taps: !on_host,
            // Every stage is made only where the logits of every token are.
            last_logits: taps.len() < graph.nodes.len(),
            ..Options::default()
        },
        steps: if path == PathOf::Tapped && !taps.is_empty() { TAPPED } else { DECODE },
        taps,
    };
    let (none, every) = (HashSet::new, || graph.nodes.iter().map(|n| n.id).collect::<HashSet<_>>());
    let mut all = vec![
        entry("cuda-fast", PathOf::Fast, none(), false),
        entry("cuda-fast, chosen taps read back", PathOf::Fast, chosen(graph, request)?, true),
        entry("cuda-fast, taps on the device", PathOf::Fast, every(), false),
        entry("cuda-fast, taps read back", PathOf::Fast, every(), true),
        entry("cuda", PathOf::Tapped, none(), false),
        entry("cuda, taps read back", PathOf::Tapped, every(), true),
    ];
    // Taps of a long context are gigabytes.
    all.truncate(if depth > usual_depth() { 2 } else { all.len() });
    Ok(all)
}

/// Seconds per token of prefill, and of each decode step.
struct Timed {
    prefill: f64,
    steps: Vec<f64>,
}

/// Times the first tokens of the context in one step, brings the others, and times decode steps after them.
fn timed(context: &[u32], [first, steps]: [usize; 2], mut step: impl FnMut(&[u32]) -> Result<()>) -> Result<Timed> {
    let mut prefill = 0.0;
    for (i, tokens) in context.chunks(first).enumerate() {
        let start = Instant::now();
        step(tokens)?;
        if i == 0 {
            prefill = start.elapsed().as_secs_f64() / tokens.len() as f64;
        }
    }
    let decode = |&token: &u32| {
        let start = Instant::now();
        step(&[token])?;
        Ok(start.elapsed().as_secs_f64())
    };
    let steps = context.iter().cycle().take(steps).map(decode).collect::<Result<_>>()?;
    Ok(Timed { prefill, steps })
}

fn time(engine: &mut CudaEngine, context: &[u32], entry: &Entry) -> Result<Timed> {
    engine.rewind(0);
    if !entry.tapped() {
        return timed(context, entry.lengths(), |tokens| Ok(engine.step(tokens, &mut NoTaps)?));
    }
    let named = (entry.taps.len() < engine.graph().nodes.len()).then(|| entry.taps.clone());
    let mut reader = Reader { named, ..Reader::default() };
    let mut timed = timed(context, entry.lengths(), |tokens| Ok(engine.queue(tokens, &mut reader)?))?;
    let start = Instant::now();
    engine.finish(&mut reader)?;
    // What is on its way when the last step has ended belongs to the steps.
    let each = start.elapsed().as_secs_f64() / timed.steps.len() as f64;
    timed.steps.iter_mut().for_each(|step| *step += each);
    Ok(timed)
}

fn time_llama(plain: &mut Plain, context: &[u32], prefill: usize) -> Result<Timed> {
    plain.clear();
    timed(context, [prefill, DECODE], |tokens| plain.step(tokens))
}

/// A measurement a round.
type Times = Vec<Timed>;

/// Which of a hundred, sorted.
pub(super) fn percentile(mut all: Vec<f64>, which: usize) -> f64 {
    all.sort_by(f64::total_cmp);
    all[(all.len() * which / 100).min(all.len() - 1)]
}

/// Kernels of several launches, of which `launches` tells name, work, seconds and the part of them that is handover.
fn kernels(launches: impl Iterator<Item = (String, Work, f64, Option<f64>)>) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for (name, work, seconds, handover) in launches {
        match kernels.iter_mut().find(|k| k.name == name) {
            Some(kernel) => {
                kernel.launches += 1;
                kernel.seconds += seconds;
                kernel.bytes += work.bytes;
                kernel.operations += work.operations;
                kernel.handover = kernel.handover.zip(handover).map(|(a, b)| a + b);
            }
            None => kernels.push(Kernel {
                name,
                launches: 1,
                seconds,
                handover,
                bytes: work.bytes,
                operations: work.operations,
            }),
        }
    }
    kernels
}

/// Where the time of a decode step goes, after the context that `engine` has seen.
fn step(engine: &mut CudaEngine, times: &Times, layers: usize) -> Result<Option<DecodeStep>> {
    Ok(engine.time_steps(REPLAYS)?.map(|(device, in_a_row)| DecodeStep {
        device: [0, 50, 95].map(|which| percentile(device.clone(), which)),
        in_a_row,
        waited_for: median(times.iter().flat_map(|t| t.steps.clone()).collect()),
        layers,
        stamped: None,
        cache_bytes: engine.cache_bytes(),
    }))
}

/// Bytes that come to the host of the first tokens in one step, and of a decode step after them, by stage.
fn moved(engine: &mut CudaEngine, context: &[u32], entry: &Entry) -> Result<[HashMap<&'static str, u64>; 2]> {
    let mut reader = Reader { named: Some(entry.taps.clone()), ..Reader::default() };
    engine.rewind(0);
    let mut of = |tokens: &[u32]| -> Result<HashMap<&'static str, u64>> {
        let before = engine.moved();
        engine.step(tokens, &mut reader)?;
        let since = |(&stage, bytes): (&&'static str, &u64)| (stage, bytes - before.get(stage).unwrap_or(&0));
        Ok(engine.moved().iter().map(since).collect())
    };
    let first = &context[..context.len().min(entry.options.step)];
    Ok([of(first)?, of(&context[..1])?])
}

/// Reads an earlier measurement.
pub(super) fn read(path: &Path) -> Result<Bench> {
    let shown = path.display();
    let bytes = input::bytes(path, input::REPORT).with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{shown} is no file that `qdiff-lab bench --measure cuda --json` wrote"))
}

/// What the card is at while it does `run` again and again, as its own tool tells; nothing where that is not installed.
fn card_state(who: &str, mut run: impl FnMut() -> Result<()>) -> Result<Option<CardState>> {
    const ASKED: &str = "clocks.sm,clocks.max.sm,clocks_event_reasons.active,power.draw,temperature.gpu";
    let mut asked = Command::new("nvidia-smi");
    asked.args([&format!("--query-gpu={ASKED}"), "--format=csv,noheader,nounits", "--id=0"]);
    let Ok(mut told) = asked.stdout(Stdio::piped()).stderr(Stdio::null()).spawn() else { return Ok(None) };
    while told.try_wait()?.is_none() {
        run()?;
    }
    let told = String::from_utf8(told.wait_with_output()?.stdout)?;
    Ok(read_state(who, &told))
}

fn read_state(who: &str, told: &str) -> Option<CardState> {
    let [clock, most, slowed, watts, degrees] = told.trim().split(", ").collect::<Vec<_>>().try_into().ok()?;
    Some(CardState {
        who: who.to_owned(),
        clock: clock.parse().ok()?,
        most: most.parse().ok()?,
        slowed: u64::from_str_radix(slowed.trim_start_matches("0x"), 16).ok()?,
        watts: watts.parse().ok()?,
        degrees: degrees.parse().ok()?,
    })
}

/// Times everything. Every engine runs between two runs of llama.cpp, round by round.
pub(super) fn measure(request: &BenchRequest) -> Result<Bench> {
    let opened = request.prompt.model.open()?;
    let depth = request.depth.max(1);
    let prompt = request.cycled(&opened, depth)?;
    let (rounds, prefill) = (usize::from(request.rounds), request.prefill.clamp(1, depth));
    let mut bench = Bench {
        device: String::new(),
        bandwidth: bandwidth()?,
        link: link()?,
        model: opened.model.graph().config.name.clone(),
        format: opened.main_format().0,
        weight_bytes: 0,
        rounds,
        rows: Vec::new(),
        kernels: Vec::new(),
        prefill_kernels: Vec::new(),
        card: Vec::new(),
        taps: Vec::new(),
        stages: Vec::new(),
        depth,
        prefill,
        step: None,
    };
    let mut llama = match request.alone {
        true => None,
        false => {
            let model = Arc::new(Model::load(&opened.path, Load::Cuda)?);
            let mut plain = Plain::new(&model, depth + DECODE, prefill)?;
            time_llama(&mut plain, &prompt, prefill)?;
            Some(plain)
        }
    };
    let mut beside: Vec<(&str, Times)> = Vec::new();
    // A long cache is kept in f16, as llama.cpp keeps any.
    let kv = if depth > usual_depth() { DType::F16.into() } else { KvType::F32 };
    for entry in entries(opened.model.graph(), request, kv, [depth, prefill])? {
        let mut theirs = Times::new();
        let ours = one(&opened, &prompt, &entry, rounds, &mut bench, || {
            if let Some(plain) = llama.as_mut().filter(|_| !entry.tapped()) {
                theirs.push(time_llama(plain, &prompt, prefill)?);
            }
            Ok(())
        })
        .with_context(|| format!("timing {}", entry.name))?;
        bench.add(entry.name, &ours);
        if !theirs.is_empty() {
            beside.push((entry.name, theirs));
        }
    }
    for (who, theirs) in &beside {
        bench.add(&format!("llama.cpp (cuda), beside {who}"), theirs);
    }
    // Nothing of qdiff is on the card any more.
    drop(llama);
    if let Some(program) = &request.llama_bench {
        llama_bench::add(&mut bench, program, &opened.path, [prefill, DECODE, depth], rounds)?;
    }
    bench.hold_against_llama();
    Ok(bench)
}

fn one(
    opened: &LoadedModel, prompt: &[u32], entry: &Entry, rounds: usize, bench: &mut Bench,
    mut between: impl FnMut() -> Result<()>,
) -> Result<Times> {
    let mut engine = CudaEngine::new(&opened.model, entry.options)?;
    bench.device = engine.device().to_owned();
    bench.weight_bytes = engine.weight_bytes();
    // Once unmeasured: modules load and the graph is captured at first use.
    time(&mut engine, prompt, entry)?;
    // The engines with taps and without run alternately: engines that are opened one after another differ by more.
    let mut untapped = match entry.tapped() && entry.options.path == PathOf::Fast {
        true => Some((CudaEngine::new(&opened.model, entry.untapped().options)?, entry.untapped())),
        false => None,
    };
    if let Some((engine, entry)) = &mut untapped {
        time(engine, prompt, entry)?;
    }
    bench.card.extend(card_state(entry.name, || time(&mut engine, prompt, entry).map(drop))?);
    let (mut times, mut without) = (Times::new(), Times::new());
    // One, for the path that is slow with taps.
    let rounds = if entry.steps == TAPPED { 1 } else { rounds };
    for _ in 0..rounds {
        times.push(time(&mut engine, prompt, entry)?);
        if let Some((engine, entry)) = &mut untapped {
            without.push(time(engine, prompt, entry)?);
        }
        between()?;
    }
    if entry.tapped() {
        let stages = if entry.options.keep_taps { Default::default() } else { moved(&mut engine, prompt, entry)? };
        bench.tapped(entry, opened.model.graph(), [&times, &without], stages);
    } else if entry.options.path == PathOf::Fast {
        bench.step = step(&mut engine, &times, opened.model.graph().config.n_layers)?;
        if let Some(timed) = engine.time_launches(REPLAYS)? {
            let of = |t: qdiff_engine::cuda::Timed| (t.kernel, t.work, t.handover + t.turn, Some(t.handover));
            bench.kernels = kernels(timed.launches.into_iter().map(of));
            bench.step.iter_mut().for_each(|step| step.stamped = Some(timed.whole));
        }
        let walked = engine.time_walk(&prompt[..prompt.len().min(entry.options.step)])?;
        bench.prefill_kernels = kernels(walked.into_iter().map(|(name, work, seconds)| (name, work, seconds, None)));
    }
    Ok(times)
}

/// Seconds a token, of prefill and of decode.
fn medians(times: &Times) -> [(&'static str, f64); 2] {
    let prefill = median(times.iter().map(|t| t.prefill).collect());
    let decode = median(times.iter().flat_map(|t| t.steps.clone()).collect());
    [("prefill", prefill), ("decode", decode)]
}

impl Bench {
    /// What taps cost, and what they bring to the host. The same work without taps was timed alternately with it.
    fn tapped(
        &mut self, entry: &Entry, graph: &Graph, [times, without]: [&Times; 2], moved: [HashMap<&'static str, u64>; 2],
    ) {
        let without = (!without.is_empty()).then(|| medians(without));
        for (i, ((what, seconds), bytes)) in medians(times).into_iter().zip(&moved).enumerate() {
            let bytes: u64 = bytes.values().sum();
            let tokens = if what == "decode" { 1 } else { self.prefill };
            self.taps.push(TapRow {
                what: what.to_owned(),
                who: entry.name.to_owned(),
                slower: without.map(|medians| 1.0 - medians[i].1 / seconds),
                bytes,
                per_second: (bytes > 0).then(|| bytes as f64 / (seconds * tokens as f64)),
            });
        }
        let mut names: Vec<&'static str> = graph.nodes.iter().map(|n| n.id.name).collect();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(*name));
        if self.stages.is_empty() && entry.taps.len() == graph.nodes.len() {
            let of = |name| moved.each_ref().map(|m| m.get(name).copied().unwrap_or(0));
            let row =
                |name: &'static str| StageBytes { stage: name.to_owned(), prefill: of(name)[0], decode: of(name)[1] };
            self.stages = names.into_iter().filter(|name| of(name) != [0, 0]).map(row).collect();
        }
    }

    /// Adds the speeds of one engine. `hold_against_llama` adds the ratios.
    fn add(&mut self, who: &str, times: &Times) {
        let prefill: Vec<f64> = times.iter().map(|t| t.prefill).collect();
        let decode: Vec<f64> = times.iter().flat_map(|t| t.steps.clone()).collect();
        for (what, seconds) in [("prefill", prefill), ("decode", decode)] {
            let spread = [0, 95].map(|which| 1.0 / percentile(seconds.clone(), which));
            let per_second = 1.0 / median(seconds);
            let share = self.weight_bytes as f64 * per_second / self.bandwidth;
            self.rows.push(Row {
                what: what.to_owned(),
                who: who.to_owned(),
                tokens_per_second: per_second,
                of_bandwidth: (what == "decode").then_some(share),
                spread: Some(spread),
                ratio: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::read_state;

    #[test]
    fn the_state_of_a_card_is_read_as_its_tool_tells_it() {
        let state = read_state("x", "1980, 1980, 0x0000000000000004, 312.45, 41\n").expect("a state");
        assert_eq!((state.clock, state.most, state.slowed), (1980, 1980, 4));
        assert!(read_state("x", "[N/A], 1980, 0x0, 3, 4").is_none() && read_state("x", "").is_none());
    }
}
