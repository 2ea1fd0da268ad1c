//! The score of the diagnosis: faults are planted in small synthetic models or in a real one, diagnosed, and counted.

use crate::score::faults::cached::FAULTS;
use crate::score::{
    CACHES, Clean, FaultSource, Grading, INDEPENDENT, KERNELS, NEWER, Plant, ROUND_TRIPS, SHORT, Sampling, Score,
    ScoreRun, of_real_models,
};
use anyhow::Result;
use clap::{Args, ValueEnum};
use qdiff::loaded::LoadedModel;
use qdiff::machine::Machine;
use qdiff::prompts::{self, Style};
use qdiff::runners::{LLAMA, Reads};
use qdiff::tasks::{Console, ThreadsRequest, values};
use qdiff::verdict::CheckMode;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::Op;
use qdiff_engine::quant::GgmlType;
use qdiff_engine::quant::KvType;
use qdiff_synth::Synth;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Decode steps of every run: enough that what is stale or stuck shows.
const DECODE: usize = 3;

/// Which faults to plant where.
#[derive(Clone, Debug, Args)]
pub struct ScoreRequest {
    /// GGUF file to plant the faults in [default: small synthetic models]
    #[arg(short, long, value_name = "MODEL", help_heading = "What to run")]
    pub model: Option<PathBuf>,
    /// A built-in prompt or text
    #[arg(short, long, default_value = "haiku", requires = "model", value_parser = values::PROMPT,
          hide_possible_values = true, help_heading = "What to run")]
    pub prompt: String,
    /// Source of the faults: cpu, or cuda and cuda-fast (launches and kernels; need a GPU and a build with --features
    /// faults)
    #[arg(long, value_enum, default_value_t = ScoreSubject::Cpu, env = "QDIFF_SUBJECT", help_heading = "Sides")]
    pub subject: ScoreSubject,
    /// One layer for each fault instead of first, middle and last
    #[arg(long, help_heading = "What is judged")]
    pub quick: bool,
    /// Plant only every Nth fault
    ///
    /// Small models of every Nth block format alone are run without a fault, too
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..),
          help_heading = "What is judged")]
    pub every: u16,
    /// The first fault that --every plants: other numbers below N give other samples
    #[arg(long, value_name = "NUMBER", default_value_t = 0, help_heading = "What is judged")]
    pub first: u16,
    /// Plant only the faults of these names, and run nothing without a fault; repeatable
    #[arg(long, value_name = "NAME", help_heading = "What is judged")]
    pub only: Vec<String>,
    /// Also plant every Nth mutation itself as a fault
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..),
          help_heading = "What is judged")]
    pub round_trips: u16,
    /// Pairs of faults at once, for each source of faults
    #[arg(long, default_value_t = 12, value_name = "NUMBER", help_heading = "What is judged")]
    pub pairs: usize,
    /// How linear layers and attention are checked: `probe` shows what probes miss, also on prompts too short to need
    /// them
    #[arg(long, value_name = "MODE", value_enum, default_value_t = CheckMode::Full, help_heading = "What is judged")]
    pub check: CheckMode,
    #[command(flatten)]
    pub threads: ThreadsRequest,
}

/// Whose faults are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScoreSubject {
    /// The CPU engine's
    Cpu,
    /// The CUDA engine's
    Cuda,
    /// Its fused path's
    CudaFast,
}

impl ScoreSubject {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::CudaFast => "cuda-fast",
        }
    }
}

/// Plants, diagnoses and counts.
///
/// # Errors
/// Whatever keeps a model from being run; a card or a build that lacks the CUDA engine's faults.
pub fn score(request: &ScoreRequest, console: Console<'_>) -> Result<Score> {
    let mut sources = sources(request.subject)?;
    if request.model.is_some() {
        sources = of_real_models(sources)?;
    }
    let threads = request.threads.apply()?;
    let start = Instant::now();
    let mut tally = Tally {
        sources,
        score: Score {
            grading: Grading::Prediction,
            subject: request.subject.name().to_owned(),
            on: on(request)?,
            command: command(request),
            machine: Machine::this(),
            models: Vec::new(),
            groups: Vec::new(),
            clean: Clean::default(),
            graded: Vec::new(),
            seconds: 0.0,
        },
        threads,
        check: request.check,
        round_trips: request.round_trips.into(),
        only: &request.only,
        progress: console.progress,
    };
    match &request.model {
        Some(path) => tally.real(path, request)?,
        None => tally.synthetic(request)?,
    }
    (console.progress)("score", 1, 1);
    Ok(Score { seconds: start.elapsed().as_secs_f64(), ..tally.score })
}

/// What kind of models the faults are planted in, and on which card.
fn on(request: &ScoreRequest) -> Result<String> {
    let models = if request.model.is_some() { "on a real model" } else { "on synthetic models" };
    if request.subject == ScoreSubject::Cpu {
        return Ok(models.to_owned());
    }
    let devices = qdiff_engine::cuda::devices()?;
    Ok(format!("{models}, on {}", devices.first().map_or("a card", |d| d.name.as_str())))
}

/// The command that measures the same again; a model by its file name.
fn command(request: &ScoreRequest) -> String {
    let name = request.model.as_deref().and_then(Path::file_name);
    let words = [
        (request.subject != ScoreSubject::Cpu).then(|| format!("--subject {}", request.subject.name())),
        name.map(|name| format!("--model {} --prompt {}", name.display(), request.prompt)),
        request.quick.then(|| "--quick".to_owned()),
        (request.every > 1).then(|| format!("--every {}", request.every)),
        (request.first > 0).then(|| format!("--first {}", request.first)),
        (!request.only.is_empty()).then(|| format!("--only {}", request.only.join(" --only "))),
        (request.round_trips > 1).then(|| format!("--round-trips {}", request.round_trips)),
        (request.check == CheckMode::Probe).then(|| "--check probe".to_owned()),
        Some(format!("--pairs {}", request.pairs)),
    ];
    words.into_iter().flatten().fold("qdiff-lab score".to_owned(), |all, word| all + " " + &word)
}

/// The code that plants faults in the selected engine.
fn sources(subject: ScoreSubject) -> Result<Vec<&'static FaultSource>> {
    match subject {
        ScoreSubject::Cpu => Ok(vec![&INDEPENDENT, &KERNELS, &ROUND_TRIPS]),
        #[cfg(feature = "faults")]
        ScoreSubject::Cuda => {
            qdiff_engine::cuda::devices()?;
            Ok(vec![&crate::score::CUDA, &crate::score::CUDA_FAST, &crate::score::CUDA_KERNELS])
        }
        #[cfg(feature = "faults")]
        ScoreSubject::CudaFast => {
            qdiff_engine::cuda::devices()?;
            Ok(vec![&crate::score::FUSED_KERNELS])
        }
        #[cfg(not(feature = "faults"))]
        ScoreSubject::Cuda | ScoreSubject::CudaFast => anyhow::bail!(
            "this qdiff-lab was built without the CUDA engine's faults; build it with `cargo build --release -p qdiff-lab --features faults`"
        ),
    }
}

struct Tally<'a> {
    sources: Vec<&'static FaultSource>,
    score: Score,
    threads: usize,
    check: CheckMode,
    /// One of so many round trips is planted.
    round_trips: usize,
    /// Names of faults; of none all are planted.
    only: &'a [String],
    progress: &'a dyn Fn(&str, usize, usize),
}

impl Tally<'_> {
    /// The faults of every source in a small model, each with the prompt of its source.
    fn planted(
        &mut self, name: &str, opened: &LoadedModel, sampling: Sampling, wanted: &dyn Fn(&Plant, &Node) -> bool,
    ) -> Result<()> {
        let lengths: BTreeSet<usize> = self.sources.iter().map(|source| source.prompt).collect();
        for length in lengths {
            let name = if length == SHORT { name.to_owned() } else { format!("{name}, {length} tokens") };
            let run = self.run(&name, opened, &some_tokens(length))?;
            self.groups(&run, sampling, &|source| source.prompt == length, wanted)?;
        }
        Ok(())
    }

    /// Bugs of caches in blocks, of types apart for keys and values: `quick` takes four types, else each is there for both.
    fn caches(&mut self, opened: &LoadedModel, sampling: Sampling, quick: bool) -> Result<()> {
        let all = ["q8_0/q4_1", "iq4_nl/q5_0", "q5_1/q8_0", "q4_0/q5_1", "q5_0/iq4_nl", "q4_1/q4_0"];
        for text in all.into_iter().take(if quick { 2 } else { all.len() }) {
            let (kv, name): (KvType, _) = (text.parse()?, format!("qwen2 Q8_0, 3 layers, caches in {text}"));
            let settings = (self.threads, kv);
            let run = ScoreRun::new(name, opened, &some_tokens(SHORT), DECODE, settings)?.checked(self.check);
            let sources = std::mem::replace(&mut self.sources, vec![&CACHES]);
            let done = self.groups(&run, sampling, &|_| true, &|p, n| FAULTS[p.fault].concerns(n, kv));
            self.sources = sources;
            done?;
            if self.only.is_empty() {
                run.clean(&[SHORT, 7], &mut self.score.clean)?;
            }
        }
        Ok(())
    }

    fn groups(
        &mut self, run: &ScoreRun<'_>, sampling: Sampling, of: &dyn Fn(&FaultSource) -> bool,
        wanted: &dyn Fn(&Plant, &Node) -> bool,
    ) -> Result<()> {
        for source in self.sources.clone().into_iter().filter(|source| of(source)) {
            let every = sampling.every * if source.independent { 1 } else { self.round_trips };
            let group = run.group(source, Sampling { every, ..sampling }, wanted, self.only, self.progress)?;
            match self.score.groups.iter_mut().find(|g| g.source == group.source) {
                Some(known) => {
                    known.cases.extend(group.cases);
                    known.pairs.extend(group.pairs);
                }
                None => self.score.groups.push(group),
            }
        }
        self.score.models.push(run.name.clone());
        Ok(())
    }

    /// Everything on one small model; what depends on the block format or on
    /// the architecture on others; clean runs on all of them.
    fn synthetic(&mut self, request: &ScoreRequest) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let _cleanup = qdiff::cleanup::guard(folder.path());
        let open = |name: &str, model: &Synth| -> Result<LoadedModel> {
            let path = folder.path().join(format!("{name}.gguf"));
            model.write(&path)?;
            LoadedModel::new(&path)
        };
        let (every, first) = (request.every.into(), request.first.into());
        let sampling = Sampling { all_three: !request.quick, pairs: request.pairs, every, first };

        let main = open("main", &Synth { n_layers: 3, ..Synth::default() })?;
        self.planted("qwen2 Q8_0, 3 layers", &main, sampling, &|_, _| true)?;
        if request.subject == ScoreSubject::Cpu {
            self.caches(&main, Sampling { all_three: false, pairs: 0, ..sampling }, request.quick)?;
        }
        if request.subject == ScoreSubject::Cpu {
            let alone = Sampling { all_three: false, pairs: 0, ..sampling };
            for arch in ["qwen2moe", "qwen3moe", "qwen3next", "qwen35moe", "qwen4exp"] {
                let opened = open(arch, &Synth { arch, ..Synth::default() })?;
                let run = self.run(&format!("{arch} Q8_0, 2 layers"), &opened, &some_tokens(SHORT))?;
                let sources = std::mem::replace(&mut self.sources, vec![&NEWER]);
                let done = self.groups(&run, alone, &|_| true, &|_, _| true);
                self.sources = sources;
                done?;
            }
        }
        let chosen = !self.only.is_empty();
        if !chosen {
            self.score.graded = self.run("qwen2 Q8_0, 3 layers", &main, &some_tokens(SHORT))?.graded()?;
        }

        let alone = Sampling { all_three: false, pairs: 0, every, first };
        let qwen3 = open("qwen3", &Synth { arch: "qwen3", ..Synth::default() })?;
        self.planted("qwen3 Q8_0, 2 layers", &qwen3, alone, &|p, n| {
            matches!((&n.op, n.role), (Op::RmsNorm(_), Role::Query | Role::Key))
                || p.cause.mutation == "qk-norm-after-rope"
        })?;

        let judged = |ty: &&GgmlType| LLAMA.reading(**ty) != Reads::Refused;
        for (i, &weight_type) in GgmlType::ALL_SUPPORTED.iter().filter(judged).enumerate() {
            let name = format!("qwen2 {weight_type:?}, 2 layers");
            let model = Synth { weight_type, ..Synth::default() };
            let opened = open(&format!("{weight_type:?}"), &model)?;
            let blocks = weight_type.block_size() > 1 && weight_type != GgmlType::Q8_0;
            if blocks {
                self.planted(&name, &opened, alone, &|p, _| p.of_format)?;
            }
            if !chosen && i % every == first % every {
                self.clean(&name, &opened)?;
            }
        }
        if chosen { Ok(()) } else { self.clean("qwen3 Q8_0, 2 layers", &qwen3) }
    }

    /// Prompts of several lengths, whole and in parts, llama.cpp on one and two threads, with every type of cache.
    fn clean(&mut self, name: &str, opened: &LoadedModel) -> Result<()> {
        (self.progress)(&format!("{name}: clean runs"), 0, 1);
        let f32 = KvType::F32;
        for (threads, kv, length, ubatches) in [
            (1, f32, 1, &[1][..]),
            (2, f32, 1, &[1]),
            (1, f32, 9, &[9]),
            (2, f32, 9, &[9]),
            (1, f32, 40, &[40, 16, 7]),
            (2, f32, 40, &[40, 16, 7]),
            (1, DType::F16.into(), 40, &[40, 16]),
            (1, DType::Bf16.into(), 40, &[40]),
        ] {
            let prompt = some_tokens(length);
            let run = ScoreRun::new(name.to_owned(), opened, &prompt, DECODE, (threads, kv))?.checked(self.check);
            run.clean(ubatches, &mut self.score.clean)?;
        }
        Ok(())
    }

    fn run<'o>(&self, name: &str, opened: &'o LoadedModel, prompt: &[u32]) -> Result<ScoreRun<'o>> {
        let settings = (self.threads, KvType::F32);
        Ok(ScoreRun::new(name.to_owned(), opened, prompt, DECODE, settings)?.checked(self.check))
    }

    /// Each independent fault in one layer of a real model, and clean runs of
    /// its prompts. Round trips say nothing more there than on small models.
    fn real(&mut self, path: &Path, request: &ScoreRequest) -> Result<()> {
        let opened = LoadedModel::new(path)?;
        let prompt = prompts::resolve(&opened, &request.prompt, Style::default())?.tokens;
        opened.check(&prompt, DECODE)?;
        let name = opened.model.graph().config.name.clone();
        let run = self.run(&name, &opened, &prompt)?;
        let (every, first) = (request.every.into(), request.first.into());
        let sampling = Sampling { all_three: false, pairs: request.pairs, every, first };
        self.groups(&run, sampling, &|_| true, &|_, _| true)?;
        if !self.only.is_empty() {
            return Ok(());
        }
        self.score.graded = run.graded()?;
        for ubatch in [prompt.len(), 8] {
            run.clean(&[ubatch], &mut self.score.clean)?;
        }
        Ok(())
    }
}

/// Tokens that every synthetic vocabulary has.
fn some_tokens(n: usize) -> Vec<u32> {
    let ids = qdiff_synth::base_vocab() as u32;
    (0..n as u32).map(|i| (i * 37 + 11) % ids).collect()
}
