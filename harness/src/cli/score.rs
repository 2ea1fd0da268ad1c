//! `qdiff mutations score`.

use super::args::{ScoreArgs, ScoreSubject};
use super::output::Output;
use super::setup::console;
use crate::arithmetic::Number;
use crate::loaded::LoadedModel;
use crate::machine::Machine;
use crate::prompts::{self, Style};
use crate::score::{Clean, FaultSource, Group, IndependentFaults, Plant, RoundTrips, Sampling, Score, ScoreRun};
use anyhow::Result;
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::Op;
use qdiff_synth::{Synth, WeightType};
use std::time::Instant;

/// Decode steps of every run: enough that what is stale or stuck shows.
const DECODE: usize = 3;

/// Tokens of the prompt on synthetic models.
const PROMPT: usize = 24;

pub(super) fn run(args: &ScoreArgs) -> Result<u8> {
    let output = Output::files(&args.files, 1)?;
    let threads = args.threads.apply()?;
    let start = Instant::now();
    let mut tally = Tally {
        sources: sources(args.subject)?,
        score: Score {
            subject: match args.subject {
                ScoreSubject::Cpu => "cpu".to_owned(),
                ScoreSubject::Cuda => "cuda".to_owned(),
            },
            on: on(args)?,
            command: command(args),
            machine: Machine::this(),
            models: Vec::new(),
            groups: Vec::new(),
            clean: Clean::default(),
            graded: Vec::new(),
            seconds: 0.0,
        },
        threads,
        progress: console().progress,
    };
    match &args.model {
        Some(path) => tally.real(path, args)?,
        None => tally.synthetic(args)?,
    }
    let mut score = tally.score;
    (console().progress)("score", 1, 1);
    score.seconds = start.elapsed().as_secs_f64();
    output.tell(&score)
}

/// What kind of models the faults are planted in, and on which card.
fn on(args: &ScoreArgs) -> Result<String> {
    let models = match &args.model {
        Some(_) => "on a real model",
        None => "on synthetic models",
    };
    Ok(match args.subject {
        ScoreSubject::Cpu => models.to_owned(),
        ScoreSubject::Cuda => {
            let devices = qdiff_engine::cuda::devices()?;
            let name = devices.first().map_or("a card", |d| d.name.as_str());
            format!("{models}, on {name}")
        }
    })
}

/// The command that measures the same again; a model by its file name.
fn command(args: &ScoreArgs) -> String {
    let mut words = vec!["qdiff mutations score".to_owned()];
    if args.subject == ScoreSubject::Cuda {
        words.push("--subject cuda".to_owned());
    }
    if let Some(name) = args.model.as_deref().and_then(std::path::Path::file_name) {
        words.push(format!("--model {} --prompt {}", name.display(), args.prompt));
    }
    if args.quick {
        words.push("--quick".to_owned());
    }
    words.push(format!("--pairs {}", args.pairs));
    words.join(" ")
}

/// Who plants faults in the engine that is asked for.
fn sources(subject: ScoreSubject) -> Result<Vec<&'static dyn FaultSource>> {
    match subject {
        ScoreSubject::Cpu => Ok(vec![&IndependentFaults, &RoundTrips]),
        #[cfg(feature = "faults")]
        ScoreSubject::Cuda => {
            qdiff_engine::cuda::devices()?;
            Ok(vec![&crate::score::CudaFaults])
        }
        #[cfg(not(feature = "faults"))]
        ScoreSubject::Cuda => anyhow::bail!(
            "this qdiff was built without the CUDA engine's faults; build it with `cargo build --release -p qdiff --features faults`"
        ),
    }
}

struct Tally<'a> {
    sources: Vec<&'static dyn FaultSource>,
    score: Score,
    threads: usize,
    progress: &'a dyn Fn(&str, usize, usize),
}

impl Tally<'_> {
    fn add(&mut self, group: Group) {
        let known = self.score.groups.iter_mut().find(|g| g.source == group.source);
        match known {
            Some(known) => {
                known.cases.extend(group.cases);
                known.pairs.extend(group.pairs);
            }
            None => self.score.groups.push(group),
        }
    }

    fn groups(&mut self, run: &ScoreRun<'_>, sampling: Sampling, wanted: &dyn Fn(&Plant, &Node) -> bool) -> Result<()> {
        for source in self.sources.clone() {
            let group = run.group(source, sampling, wanted, self.progress)?;
            self.add(group);
        }
        self.score.models.push(run.name.clone());
        Ok(())
    }

    /// Everything on one small model; what depends on the block format or on
    /// the architecture on others; clean runs on all of them.
    fn synthetic(&mut self, args: &ScoreArgs) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let _cleanup = crate::cleanup::guard(folder.path());
        let open = |name: &str, model: &Synth| -> Result<LoadedModel> {
            let path = folder.path().join(format!("{name}.gguf"));
            model.write(&path)?;
            LoadedModel::new(&path)
        };
        let sampling = Sampling { all_three: !args.quick, pairs: args.pairs };

        let main = open("main", &Synth { n_layers: 3, ..Synth::default() })?;
        let run = self.run("qwen2 Q8_0, 3 layers", &main, &some_tokens(PROMPT))?;
        self.groups(&run, sampling, &|_, _| true)?;
        self.score.graded = run.graded()?;

        let alone = Sampling { all_three: false, pairs: 0 };
        let qwen3 = open("qwen3", &Synth { arch: "qwen3", ..Synth::default() })?;
        let run = self.run("qwen3 Q8_0, 2 layers", &qwen3, &some_tokens(PROMPT))?;
        self.groups(&run, alone, &|p, n| {
            matches!((&n.op, n.role), (Op::RmsNorm(_), Role::Query | Role::Key)) || p.name() == "qk-norm-after-rope"
        })?;

        for weight_type in WeightType::ALL {
            let name = format!("qwen2 {weight_type:?}, 2 layers");
            let model = Synth { weight_type, ..Synth::default() };
            let opened = open(&format!("{weight_type:?}"), &model)?;
            let blocks = weight_type.block_len() > 1 && weight_type != WeightType::Q8_0;
            if blocks {
                let run = self.run(&name, &opened, &some_tokens(PROMPT))?;
                self.groups(&run, alone, &|p, _| p.of_format)?;
            }
            self.clean(&name, &opened)?;
        }
        self.clean("qwen3 Q8_0, 2 layers", &qwen3)
    }

    /// Prompts of several lengths, whole and in parts, llama.cpp on one and two
    /// threads, with every type of cache.
    fn clean(&mut self, name: &str, opened: &LoadedModel) -> Result<()> {
        (self.progress)(&format!("{name}: clean runs"), 0, 1);
        let f32 = Number::F32;
        for (threads, kv, length, ubatches) in [
            (1, f32, 1, &[1][..]),
            (2, f32, 1, &[1]),
            (1, f32, 9, &[9]),
            (2, f32, 9, &[9]),
            (1, f32, 40, &[40, 16, 7]),
            (2, f32, 40, &[40, 16, 7]),
            (1, Number::F16, 40, &[40, 16]),
            (1, Number::Bf16, 40, &[40]),
        ] {
            let prompt = some_tokens(length);
            let run = ScoreRun::new(name.to_owned(), opened, &prompt, DECODE, (threads, kv))?;
            run.clean(ubatches, &mut self.score.clean)?;
        }
        Ok(())
    }

    fn run<'o>(&self, name: &str, opened: &'o LoadedModel, prompt: &[u32]) -> Result<ScoreRun<'o>> {
        let settings = (self.threads, Number::F32);
        ScoreRun::new(name.to_owned(), opened, prompt, DECODE, settings)
    }

    /// Each independent fault in one layer of a real model, and clean runs of
    /// its prompts. Round trips say nothing more there than on small models.
    fn real(&mut self, path: &std::path::Path, args: &ScoreArgs) -> Result<()> {
        self.sources.retain(|s| s.independent());
        let opened = LoadedModel::new(path)?;
        let prompt = prompts::resolve(&opened, &args.prompt, Style::default())?.tokens;
        opened.check(&prompt, DECODE)?;
        let name = opened.model.graph().config.name.clone();
        let run = self.run(&name, &opened, &prompt)?;
        let sampling = Sampling { all_three: false, pairs: args.pairs };
        self.groups(&run, sampling, &|_, _| true)?;
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
