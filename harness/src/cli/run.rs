//! `qdiff run`.

use super::args::RunArgs;
use super::batch::{self, Batch};
use super::output::Output;
use super::setup::{self, Bar};
use super::sides::{Input, SideChoice, Sides};
use super::{complain, exit, say, verify_oracle, words};
use crate::capture::Filter;
use crate::loaded::{LoadedModel, sha256};
use crate::machine::Machine;
use crate::mutations::Part;
use crate::oracle::Oracle;
use crate::pair::{Pair, Recording};
use crate::prompts::Ready;
use crate::report::{Doubt, Failure, ModelInfo, Outcome, Report, RunInfo, Suspect, Told, file, terminal};
use crate::runners::{Manifest, Spec};
use crate::tokens;
use crate::verdict::{Policy, Verdict};
use crate::weights::{self, WeightCheck};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;

/// Runs both sides, judges, reports; gives the exit code.
pub(super) fn run(args: &RunArgs) -> Result<u8> {
    let source = args.prompts.as_deref();
    let batch = source.map(|p| batch::read(p, args.shard)).transpose()?;
    // Even one prompt of several is told as several are.
    let output = Output::new(&args.output, batch.as_ref().map_or(1, |b| b.entries.len().max(2)))?;
    if args.repeat > 1 && matches!(args.sides.subject, Spec::Capture(_)) {
        bail!("--repeat runs the subject again, and a recorded capture cannot; leave it out");
    }
    let parties = SideChoice::new(&args.sides)?;
    if batch.is_some() && parties.recorded.manifest().is_some() {
        bail!("a recorded capture has its own tokens; leave --prompts out");
    }
    let threads = setup::threads(args.sides.prompt.threads)?;
    let opened = setup::open(args.sides.prompt.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    let filter = Filter::new(&oracle.graph, &args.stages, args.layers.as_deref(), args.positions.as_deref())?;
    let policy = Policy::new(&oracle.graph, &args.tolerance)?;
    let single = match batch {
        None => Some(parties.input(&args.sides, &opened)?),
        Some(_) => None,
    };
    if let Some(input) = &single {
        input.check(&opened, &oracle, &filter)?;
    }
    if !args.taps.is_empty() && parties.recorded.subject.is_some() {
        bail!("--taps is about a subject that runs; a recorded capture holds what was tapped");
    }
    let mut sides = parties.resolve(&args.sides, &opened, &oracle, &[Part::Tokenizer])?;
    sides.taps = Filter::new(&oracle.graph, &args.taps, None, None).context("--taps")?;

    let (hash, weights) = std::thread::scope(|scope| {
        let hash = scope.spawn(|| sha256(opened.bytes()));
        let weights = weights::check(&opened.model, &oracle);
        (hash.join().expect("hashing does not panic"), weights)
    });
    sides.recorded.check_model(&hash)?;

    let bar = Bar::new();
    let store = args.sides.capture.memory.store();
    let runs = Runs {
        args,
        pair: Pair {
            opened: &opened,
            oracle: &oracle,
            filter: &filter,
            policy: &policy,
            budget: sides.budget,
            store: &store,
            threads,
            gemm: args.sides.prompt.gemm,
            kv: args.sides.capture.kv_type,
            progress: &|what, done, total| bar.show(what, done, total),
        },
        sides,
        model: describe(&opened, hash),
        weights,
    };
    let code = match (single, batch) {
        (_, Some(batch)) => runs.batch(&batch, &output)?,
        (None, None) => exit::TROUBLE,
        (Some(input), None) => {
            let file = format!("{}/report.json", batch::file_name(&input.ready.name));
            let report = runs.judge(input)?;
            let courtesy = Path::new("qdiff-report").join(file);
            output.serve(&[&report], &[], Some(courtesy))?;
            exit::of(report.outcome)
        }
    };
    Ok(match code {
        exit::TROUBLE | exit::INCOMPLETE if args.bisect => exit::SKIP,
        code => code,
    })
}

/// What every prompt of a run shares.
struct Runs<'a> {
    args: &'a RunArgs,
    pair: Pair<'a>,
    sides: Sides,
    model: ModelInfo,
    weights: WeightCheck,
}

impl Runs<'_> {
    /// One prompt: both sides run, and judged.
    fn judge(&self, input: Input) -> Result<Report> {
        let Self { args, pair, .. } = self;
        let opened = pair.opened;
        let Ready { name, tokens, .. } = &input.ready;
        let same_tokens = match &input.asked {
            Some(asked) => Some(tokens::recorded(opened, asked, tokens)),
            None => tokens::check(opened, &input.ready, self.sides.planted.tokenizer)?,
        };
        let (mut subject, reference) = self.sides.record(pair, &input)?;
        subject.manifest.injected.extend(self.sides.planted.beside());
        let repeated = match usize::from(args.repeat) {
            1 => None,
            runs => {
                let tokens = input.tokens(Some(&subject.fed));
                let Sides { subject: spec, planted, .. } = &self.sides;
                Some(pair.repeat(spec, tokens, &planted.stages, &subject, runs)?)
            }
        };
        let diagnosis = pair.judge(&subject, reference.as_ref())?;
        let doubt = reference.as_ref().and_then(|reference| doubt(pair, &diagnosis.verdict, reference, tokens));
        let fed = subject.fed;
        let manifest = reference.map_or_else(Manifest::nobody, |r| r.manifest);
        let mut run = RunInfo {
            prompt: name.clone(),
            tokens: tokens.clone(),
            decoded: fed,
            text: BTreeMap::new(),
            command: words::command(args, &input.given),
            filters: words::filters(args),
            tolerances: args.tolerance.clone(),
        };
        run.spell(&diagnosis.verdict, |token| opened.llama.piece(token));
        Ok(Report {
            qdiff: env!("CARGO_PKG_VERSION").to_owned(),
            outcome: match repeated.as_ref().and_then(|r| r.race.as_ref()) {
                Some(_) => Outcome::Diverged,
                None => Outcome::of(&self.weights, same_tokens.as_ref(), &diagnosis.verdict, doubt.as_ref()),
            },
            machine: Machine::this(),
            model: self.model.clone(),
            run,
            batch: None,
            subject: subject.manifest,
            reference: manifest,
            repeated,
            weights: self.weights.clone(),
            tokens: same_tokens,
            diagnosis,
            doubt,
        })
    }

    /// Prompt after prompt. One that cannot be run is told of, and the others
    /// are run all the same; gives the exit code of the worst.
    fn batch(&self, batch: &Batch, output: &Output<'_>) -> Result<u8> {
        let folder = self.args.json_dir.as_deref();
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", setup::show(folder)))?;
        }
        // Of an earlier run nothing may stand for what this one does not reach.
        for path in folder.iter().flat_map(|f| batch.entries.iter().map(|e| f.join(e.file()))) {
            file::remove(&path)?;
        }
        let mut reports = Vec::new();
        let mut absent = Vec::new();
        let mut codes = Vec::new();
        for entry in &batch.entries {
            let place = batch.place(entry, &self.model.sha256);
            match self.entry(entry) {
                Ok(mut report) => {
                    report.batch = Some(place);
                    if let Some(folder) = folder {
                        let text = report.json()?;
                        file::write(&folder.join(entry.file()), text.as_bytes())?;
                    }
                    codes.push(exit::of(report.outcome));
                    reports.push(report);
                }
                Err(e) => {
                    let failure = Failure::new(place, &entry.name, format!("{e:#}"));
                    complain(&failure.line());
                    if let Some(folder) = folder {
                        let text = failure.json()?;
                        file::write(&folder.join(entry.file()), text.as_bytes())?;
                    }
                    absent.push(failure.line());
                    codes.push(exit::TROUBLE);
                }
            }
        }
        if !reports.is_empty() {
            let told: Vec<&dyn Told> = reports.iter().map(|r| r as &dyn Told).collect();
            output.serve(&told, &absent, None)?;
        }
        if let Some(folder) = folder.filter(|_| !reports.is_empty()) {
            let line = format!("{} files in {}", reports.len(), setup::show(folder));
            say(&terminal::line("reports", &line))?;
        }
        Ok(exit::worst(codes))
    }

    fn entry(&self, entry: &batch::Entry) -> Result<Report> {
        let style = setup::style(&self.args.sides.prompt);
        let input = Input {
            ready: entry.resolve(self.pair.opened, style, self.args.sides.prompt.decode)?,
            asked: None,
            given: entry.given.clone(),
            decode: self.args.sides.prompt.decode,
            ubatch: self.args.sides.capture.ubatch,
            forced: None,
        };
        input.check(self.pair.opened, self.pair.oracle, self.pair.filter)?;
        self.judge(input)
    }
}

/// Where only the reference misses f64: what F32 weights say of it.
pub(super) fn doubt(pair: &Pair<'_>, verdict: &Verdict, reference: &Recording, tokens: &[u32]) -> Option<Doubt> {
    let suspects: Vec<_> = verdict.disputed().map(|s| s.id.name).collect();
    if verdict.diverged() || suspects.is_empty() {
        return None;
    }
    let failing = verify_oracle::failing(pair.opened, tokens, &reference.fed, pair.threads);
    let (suspect, reason) = match failing {
        Ok(failing) if suspects.iter().any(|s| failing.contains(s)) => {
            (Suspect::Oracle, "llama.cpp misses f64 with F32 weights too, so qdiff itself is in doubt".to_owned())
        }
        Ok(_) => (Suspect::Reference, "with F32 weights llama.cpp meets f64 on these tokens".to_owned()),
        Err(e) => (Suspect::Unknown, format!("which of the two is wrong could not be tested: {e:#}")),
    };
    Some(Doubt { suspect, reason })
}

pub(super) fn describe(opened: &LoadedModel, sha256: String) -> ModelInfo {
    let config = &opened.model.graph().config;
    ModelInfo {
        path: setup::show(&opened.path),
        name: config.name.clone(),
        arch: config.arch.clone(),
        layers: config.n_layers,
        format: format!("(mostly {})", opened.main_format()),
        sha256,
    }
}
