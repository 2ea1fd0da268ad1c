//! Bugs of ranks on two cards: each is planted in the CUDA engine, which runs one rank a card, and must be found at its stage and
//! rank. A cause is tried on other tokens, as `qdiff run` does, and no cause may be false there. `scripts/two-cards` runs it. With a
//! second model it times prefill and decode of that one; a dash in the place of the first one plants nothing. It writes a result for
//! REPORT.md.

use anyhow::{Context as _, Result, bail, ensure};
use qdiff::capture::Passes;
use qdiff::diagnose::Trial;
use qdiff::loaded::LoadedModel;
use qdiff::pair::{Pair, Settings};
use qdiff::progress::silent;
use qdiff::runners::cuda::of_ranks;
use qdiff::runners::{Faults, LLAMA, Tokens};
use qdiff::tasks::{Order, OtherTokens};
use qdiff_engine::cuda::faults::RankBug;
use qdiff_engine::cuda::{CudaEngine, Options, Path, devices};
use qdiff_engine::model::{Graph, Placement, Slice, Slices, StageId, WeightSource};
use qdiff_engine::tap::NoTaps;
use qdiff_lab::report::book::RESULTS_VERSION;
use serde_json::{Value, json};
use std::path::Path as FilePath;
use std::thread;
use std::time::Instant;

/// Where a bug is, and what.
enum Planted {
    /// At a collective.
    Exchange(RankBug),
    /// A row, or a block of columns, too early.
    Shifted,
    /// The shard of another rank.
    Other(u16),
    /// The scales of rank 0.
    Scales,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (Some(model), Some(json)) = (words.first(), words.get(1)) else {
        bail!("usage: two_cards MODEL.gguf OUT.json [TIMED.gguf]")
    };
    let names = devices()?.into_iter().take(2).map(|device| device.name);
    let bugs = if model == "-" { Vec::new() } else { planted(&LoadedModel::new(FilePath::new(model))?)? };
    let speed = match words.get(2) {
        Some(timed) => speed(&LoadedModel::new(FilePath::new(timed))?)?,
        None => Vec::new(),
    };
    let result = json!({
        "kind": "ranks", "schema_version": RESULTS_VERSION, "cards": names.collect::<Vec<_>>().join(", "), "bugs": bugs,
        "timed": [PREFILL, DECODE], "speed": speed,
    });
    Ok(std::fs::write(json, serde_json::to_string_pretty(&result)? + "\n")?)
}

/// Plants each bug, and says what is found.
fn planted(opened: &LoadedModel) -> Result<Vec<Value>> {
    let settings = Settings { threads: 8, ..Settings::default() };
    let pair = Pair::new(opened, settings, &silent)?.placed(&Placement::even(2))?;
    let prompt: Vec<u32> = (0..24).map(|i| (i * 37 + 11) % opened.n_tokens() as u32).collect();
    let tokens = Tokens::whole(&prompt, 3);
    let reference = pair.run(&LLAMA, tokens, Faults::default())?;
    let tokens = Tokens { forced: Some(&reference.fed), ..tokens };
    let (graph, weights) = (pair.engine_graph()?, Slices::new(&opened.model));
    let options = Options { step: 64, context: 128, path: Path::Tapped, taps: true, ..Options::default() };
    let bugs: [(&str, &str, Planted); 12] = [
        ("rows of the query weight one too early", "r1.L01.q_proj", Planted::Shifted),
        ("key head of the other rank", "r1.L01.k_proj", Planted::Other(0)),
        ("value head of the other rank", "r1.L00.v_proj", Planted::Other(0)),
        ("query heads of the other rank", "r0.L02.q_proj", Planted::Other(1)),
        ("columns of down one block too early", "r1.L01.ffn_down_partial", Planted::Shifted),
        ("scales of down of rank 0", "r1.L02.ffn_down_partial", Planted::Scales),
        ("sum not made", "r0.L01.attn_out", Planted::Exchange(RankBug::NotReduced)),
        ("own part added twice", "r1.L02.ffn_down", Planted::Exchange(RankBug::OwnTwice)),
        ("sum added twice", "r0.L00.ffn_down", Planted::Exchange(RankBug::SumTwice)),
        ("exchange before the part is written", "r1.L02.attn_out", Planted::Exchange(RankBug::BeforeItsPart)),
        ("exchange that nobody waits for", "r0.L03.ffn_down", Planted::Exchange(RankBug::NotAwaited)),
        ("shards of the logits reversed", "r1.logits", Planted::Exchange(RankBug::Reversed)),
    ];
    let ids = opened.n_tokens().min(opened.model.graph().config.n_vocab);
    let other = OtherTokens::new(&prompt, (prompt.len(), 3), (options.context, ids), (1, Order::SmallFirst, None))
        .context("no other tokens")?;
    let judged = |what: &str, plant: &dyn Fn(&mut [CudaEngine]) -> Result<()>| -> Result<(Vec<String>, Vec<String>)> {
        let start = Instant::now();
        let record = |tokens: Tokens<'_>| {
            let mut engines = CudaEngine::ranks(&graph, &weights, options)?;
            plant(&mut engines)?;
            pair.record(&mut of_ranks(engines, &options), tokens)
        };
        let subject = record(tokens)?;
        let ran = start.elapsed().as_secs_f64();
        let mut diagnosis = pair.judge(&subject, Some(&reference))?;
        if diagnosis.tells_causes() {
            let (passes, decode) = (Passes::Lengths(&other.passes), other.decoded.len());
            let elsewhere = record(Tokens { prompt: &other.prompt, passes, decode, forced: Some(&other.decoded) })?;
            pair.confirm(&subject, &[elsewhere], &mut diagnosis);
        }
        let origins = diagnosis.verdict.origins().iter().map(|s| s.id.to_string()).collect();
        let causes = diagnosis
            .findings
            .iter()
            .filter_map(|f| Some(format!("{}: {}", fate(f.trial.as_ref())?, f.told().unwrap_or_default())));
        let causes = causes.collect();
        eprintln!("{what}: run {ran:.1} s, judged {:.1} s", start.elapsed().as_secs_f64() - ran);
        Ok((origins, causes))
    };
    let (origins, _) = judged("clean", &|_| Ok(()))?;
    ensure!(origins.is_empty(), "clean ranks diverge at {origins:?}");
    println!("clean | MATCH | every shard judged");
    let mut cases: Vec<Value> = Vec::new();
    for (what, place, planted) in &bugs {
        let id: StageId = place.parse()?;
        let rank = usize::from(id.rank.context("a bug is of a rank")?);
        let plant = |engines: &mut [CudaEngine]| -> Result<()> {
            let engine = &mut engines[rank];
            let index = engine.graph().index(id).context("no such stage")?;
            if let Planted::Exchange(bug) = planted {
                return Ok(engine.plant_rank(index, *bug)?);
            }
            let name = engine.graph().nodes[index].weights[0].name.clone();
            let slice = Slice::of(&name).context("a shard")?;
            let step = if slice.columns { 256 } else { 1 };
            let start = match planted {
                Planted::Shifted => slice.range.start - step,
                Planted::Other(other) => {
                    let node =
                        &graph.nodes[graph.index(StageId { rank: Some(*other), ..id }).context("no such rank")?];
                    Slice::of(&node.weights[0].name).context("a shard")?.range.start
                }
                Planted::Scales | Planted::Exchange(_) => 0,
            };
            let columns = if slice.columns { ":, " } else { "" };
            let other = format!("{}[{columns}{start}:{}]", slice.tensor, start + slice.range.len());
            Ok(engine.plant_shard(&name, &other, matches!(planted, Planted::Scales), &weights)?)
        };
        let (origins, causes) = judged(what, &plant)?;
        // Where a rank sends another part, each rank's sum is made of what no rank says that it gave.
        let at = |origin: &String| {
            origin == place
                || matches!(planted, Planted::Exchange(RankBug::BeforeItsPart | RankBug::NotAwaited))
                    && origin.ends_with(&id.whole().to_string())
        };
        let found = origins.iter().any(|o| o == place) && origins.iter().all(at);
        let word = if found { "found" } else { "NOT FOUND" };
        println!("{what} | {place} | {} | {word} | {}", origins.join(" "), causes.join("; "));
        cases.push(json!({ "what": what, "stage": place, "origins": origins, "found": found, "causes": causes }));
    }
    let found = cases.iter().filter(|case| case["found"] == true);
    let confirmed = cases.iter().filter(|case| case["causes"][0].as_str().is_some_and(|c| c.starts_with("confirmed")));
    println!(
        "{} of {} found at their stage and rank, {} with a cause that holds on other tokens",
        found.count(),
        bugs.len(),
        confirmed.count()
    );
    ends(&graph, &weights, &options, &pair, tokens)?;
    Ok(cases)
}

/// What became of a cause on other tokens; `None` where none was reported.
fn fate(trial: Option<&Trial>) -> Option<&'static str> {
    Some(match trial? {
        Trial::Confirmed { .. } => "confirmed",
        Trial::Narrowed { .. } => "narrowed",
        Trial::Withdrawn { .. } => "withdrawn",
        Trial::Silent { .. } => "not told by the other run",
        Trial::Untried { .. } => "not tried",
    })
}

/// A rank that fails ends the other, which would wait for its part for ever, and its own error is reported.
fn ends(
    graph: &Graph, weights: &dyn WeightSource, options: &Options, pair: &Pair<'_>, tokens: Tokens<'_>,
) -> Result<()> {
    for rank in 0..2 {
        let mut engines = CudaEngine::ranks(graph, weights, *options)?;
        let place: StageId = format!("r{rank}.L01.ffn_down").parse()?;
        let index = engines[rank].graph().index(place).context("no such stage")?;
        engines[rank].plant_rank(index, RankBug::Fails)?;
        let (start, mut runner) = (Instant::now(), of_ranks(engines, options));
        let error = pair.record(&mut runner, tokens).err().context("a rank failed without an error")?;
        println!("rank {rank} fails | ended after {:.1} s | {error:#}", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Tokens of the timed prefill, and decode steps that are timed after it.
const PREFILL: usize = 512;
const DECODE: usize = 64;

/// Tokens a second of prefill and of decode, untapped: one rank by either path, and two ranks.
fn speed(opened: &LoadedModel) -> Result<Vec<Value>> {
    let pair =
        Pair::new(opened, Settings { threads: 8, ..Settings::default() }, &silent)?.placed(&Placement::even(2))?;
    let (cut, weights) = (pair.engine_graph()?, Slices::new(&opened.model));
    let of = |path| Options {
        step: PREFILL,
        context: PREFILL + DECODE,
        path,
        last_logits: path == Path::Fast,
        ..Options::default()
    };
    println!("untapped | prefill of {PREFILL}, tokens/s | decode after it, tokens/s");
    let ids = opened.n_tokens() as u32;
    let mut all = Vec::new();
    for (what, path) in [("qdiff, cuda-fast", Path::Fast), ("qdiff, cuda", Path::Tapped)] {
        all.push(timed(what, &mut [CudaEngine::new(&opened.model, of(path))?], ids)?);
    }
    all.push(timed("qdiff, cuda, two ranks", &mut CudaEngine::ranks(&cut, &weights, of(Path::Tapped))?, ids)?);
    Ok(all)
}

/// Prints the medians of three rounds, after one that is not timed. A rank waits for the others in every layer, so one tells
/// the time of all.
fn timed(what: &str, ranks: &mut [CudaEngine], ids: u32) -> Result<Value> {
    let tokens: Vec<u32> = (0..PREFILL as u32).map(|i| (i * 37 + 11) % ids).collect();
    let one = |engine: &mut CudaEngine| -> Result<[f64; 2]> {
        let (mut prefills, mut steps) = (Vec::new(), Vec::new());
        for round in 0..4 {
            engine.rewind(0);
            let start = Instant::now();
            engine.step(&tokens, &mut NoTaps)?;
            let prefill = start.elapsed().as_secs_f64();
            for token in &tokens[..DECODE] {
                let start = Instant::now();
                engine.step(&[*token], &mut NoTaps)?;
                steps.extend((round > 0).then(|| start.elapsed().as_secs_f64()));
            }
            prefills.extend((round > 0).then_some(prefill));
        }
        Ok([prefills, steps].map(|mut seconds| {
            seconds.sort_by(f64::total_cmp);
            seconds[seconds.len() / 2]
        }))
    };
    let all = thread::scope(|scope| {
        let running: Vec<_> = ranks.iter_mut().map(|rank| scope.spawn(|| one(rank))).collect();
        let joined = running.into_iter().map(|rank| rank.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        joined.collect::<Result<Vec<_>>>()
    })?;
    let [prefill, step] = all[0];
    let (prefill, decode) = (PREFILL as f64 / prefill, 1.0 / step);
    println!("{what} | {prefill:.0} | {decode:.0}");
    Ok(json!({ "engine": what, "cards": ranks.len(), "prefill": prefill, "decode": decode }))
}
