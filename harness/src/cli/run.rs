//! `qdiff run`.

use super::args::RunArgs;
use super::output::Output;
use super::recorded::Recorded;
use super::session::{self, Bar};
use super::{batch, exit, say, verify_oracle, words};
use crate::capture::{Filter, Names};
use crate::mutations::Injection;
use crate::oracle::Oracle;
use crate::pair::{Pair, Recording, Tokens};
use crate::prompts::Ready;
use crate::report::{
    Doubt, Kind, Machine, ModelInfo, Outcome, Report, RunInfo, SCHEMA_VERSION, Suspect, file, json,
    terminal,
};
use crate::runners::{Faults, Manifest, Spec};
use crate::session::{Opened, sha256};
use crate::tokens;
use crate::verdict::{Policy, Verdict};
use crate::weights::{self, WeightCheck};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

/// Runs both sides, judges, reports; gives the exit code.
pub(super) fn run(args: &RunArgs) -> Result<u8> {
    let injections = args
        .inject
        .iter()
        .map(|text| Injection::parse(text))
        .collect::<Result<Vec<_>>>()?;
    let source = args.prompts.as_deref();
    let entries = source.map(|p| batch::read(p, args.shard)).transpose()?;
    // Even one prompt of several is told as several are.
    let output = Output::new(&args.output, entries.as_ref().map_or(1, |e| e.len().max(2)))?;
    if args.repeat > 1 && matches!(args.subject, Spec::Capture(_)) {
        bail!("--repeat runs the subject again, and a recorded capture cannot; leave it out");
    }
    let (subject, reference) = sides(&args.subject, &args.reference, !args.inject.is_empty())?;
    let budget = Duration::try_from_secs_f64(args.why_budget)
        .map_err(|_| anyhow::anyhow!("--why-budget must be a number of seconds, zero or more"))?;
    let recorded = Recorded::open(&subject, &reference)?;
    if entries.is_some() && recorded.manifest().is_some() {
        bail!("a recorded capture has its own tokens; leave --prompts out");
    }
    let threads = session::threads(args.prompt.threads)?;
    let opened = session::open(args.prompt.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    let filter = Filter::new(
        &oracle.graph,
        &args.stages,
        args.layers.as_deref(),
        args.positions.as_deref(),
    )?;
    let policy = Policy::new(&oracle.graph, &args.tolerance)?;
    let names = match &args.map {
        Some(path) => Names::read(&oracle.graph, path)?,
        None => Names::of(&oracle.graph),
    };
    let single = match entries {
        None => Some(input(args, &opened, &recorded)?),
        Some(_) => None,
    };
    if let Some(input) = &single {
        input.check(&opened, &oracle, &filter)?;
    }
    let faults = faults(&opened, &injections)?;

    let (hash, weights) = std::thread::scope(|scope| {
        let hash = scope.spawn(|| sha256(opened.bytes()));
        let weights = weights::check(&opened.model, &oracle);
        (hash.join().expect("hashing does not panic"), weights)
    });
    recorded.check_model(&hash)?;

    let bar = Bar::new();
    let store = args.capture.memory.store();
    let runs = Runs {
        args,
        pair: Pair {
            opened: &opened,
            oracle: &oracle,
            filter: &filter,
            policy: &policy,
            budget,
            store: &store,
            threads,
            gemm: args.prompt.gemm,
            kv: args.capture.kv_type,
            progress: &|what, done, total| bar.show(what, done, total),
        },
        subject,
        reference,
        recorded,
        names,
        faults,
        model: describe(&opened, hash),
        weights,
    };
    let code = match (single, entries) {
        (Some(input), _) => {
            let file = format!("{}/report.json", batch::file_name(&input.ready.name));
            let report = runs.judge(input)?;
            let courtesy = Path::new("qdiff-report").join(file);
            output.serve(std::slice::from_ref(&report), Some(courtesy))?;
            exit::of(report.outcome)
        }
        (None, entries) => runs.batch(&entries.unwrap_or_default(), &output)?,
    };
    Ok(match code {
        exit::TROUBLE | exit::INCOMPLETE if args.bisect => exit::SKIP,
        code => code,
    })
}

/// The tokens of one run.
struct Input {
    ready: Ready,
    /// What `--prompt` would take.
    given: String,
    decode: usize,
    ubatch: usize,
    /// Tokens of the decode steps, where a recording names them.
    forced: Option<Vec<u32>>,
}

impl Input {
    /// Refuses what cannot be run, before anything is.
    fn check(&self, opened: &Opened, oracle: &Oracle<'_>, filter: &Filter) -> Result<()> {
        let forced = self.forced.as_deref().unwrap_or_default();
        opened.check(&[self.ready.tokens.as_slice(), forced].concat(), 0)?;
        filter.check(&oracle.graph, self.ready.tokens.len() + self.decode)?;
        Ok(())
    }
}

/// What the arguments or the recording say is to be run.
fn input(args: &RunArgs, opened: &Opened, recorded: &Recorded) -> Result<Input> {
    let given = args.prompt.prompt.clone();
    let Some(manifest) = recorded.manifest() else {
        return Ok(Input {
            ready: session::prompt(opened, &args.prompt)?,
            given,
            decode: args.prompt.decode,
            ubatch: args.capture.ubatch,
            forced: None,
        });
    };
    Ok(Input {
        ready: Ready {
            name: "recorded".to_owned(),
            text: String::new(),
            tokens: manifest.tokens.clone(),
        },
        given,
        decode: manifest.decoded.len(),
        ubatch: manifest.ubatch.unwrap_or(manifest.tokens.len()),
        forced: Some(manifest.decoded.clone()),
    })
}

/// What every prompt of a run shares.
struct Runs<'a> {
    args: &'a RunArgs,
    pair: Pair<'a>,
    subject: Spec,
    reference: Spec,
    recorded: Recorded,
    /// What the subject's capture calls the stages.
    names: Names,
    faults: Faults,
    model: ModelInfo,
    weights: WeightCheck,
}

impl Runs<'_> {
    /// One prompt: both sides run, and judged.
    fn judge(&self, input: Input) -> Result<Report> {
        let Self { args, pair, .. } = self;
        let opened = pair.opened;
        let Ready { name, text, tokens } = input.ready;
        let same_tokens =
            (!text.is_empty()).then(|| tokens::check(opened.model.gguf(), &opened.llama, &text));
        let tokens_of = |forced| Tokens {
            prompt: &tokens,
            ubatch: input.ubatch,
            decode: input.decode,
            forced,
        };
        let forced = input.forced.as_deref();
        let reference = match (&self.recorded.reference, &self.reference) {
            (Some((folder, manifest)), _) => {
                Some(pair.read(folder, manifest, &Names::of(&pair.oracle.graph))?)
            }
            (None, Spec::None) => None,
            (None, spec) => Some(pair.run(spec, tokens_of(forced), Faults::default())?),
        };
        // Without a reference the subject goes on with its own choices.
        let forced = reference.as_ref().map(|r| r.fed.as_slice()).or(forced);
        let subject = match &self.recorded.subject {
            Some((folder, manifest)) => pair.read(folder, manifest, &self.names)?,
            None => pair.run(&self.subject, tokens_of(forced), self.faults.clone())?,
        };
        let repeated = match usize::from(args.repeat) {
            1 => None,
            runs => {
                let tokens = tokens_of(Some(&subject.fed));
                Some(pair.repeat(&self.subject, tokens, &self.faults, &subject, runs)?)
            }
        };
        let verdict = pair.judge(&subject, reference.as_ref())?;
        let doubt = reference
            .as_ref()
            .and_then(|reference| doubt(pair, &verdict, reference, &tokens));
        let fed = subject.fed;
        let manifest = reference.map_or_else(Manifest::nobody, |r| r.manifest);
        let mut run = RunInfo {
            prompt: name,
            tokens,
            decoded: fed,
            text: BTreeMap::new(),
            command: words::command(args, &input.given),
            filters: words::filters(args),
        };
        run.spell(&verdict, |token| opened.llama.piece(token));
        Ok(Report {
            schema_version: SCHEMA_VERSION,
            kind: Kind::Run,
            qdiff: env!("CARGO_PKG_VERSION").to_owned(),
            outcome: match repeated.as_ref().and_then(|r| r.race.as_ref()) {
                Some(_) => Outcome::Diverged,
                None => Outcome::of(
                    &self.weights,
                    same_tokens.as_ref(),
                    &verdict,
                    doubt.as_ref(),
                ),
            },
            machine: Machine::this(),
            model: self.model.clone(),
            run,
            subject: subject.manifest,
            reference: manifest,
            repeated,
            weights: self.weights.clone(),
            tokens: same_tokens,
            verdict,
            doubt,
        })
    }

    /// Prompt after prompt. One that cannot be run is told of, and the others
    /// are run all the same; gives the exit code of the worst.
    fn batch(&self, entries: &[batch::Entry], output: &Output<'_>) -> Result<u8> {
        let folder = self.args.json_dir.as_deref();
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", session::show(folder)))?;
        }
        let mut reports = Vec::new();
        let mut codes = Vec::new();
        for entry in entries {
            match self.entry(entry) {
                Ok(report) => {
                    if let Some(folder) = folder {
                        let text = json::text(&report)?;
                        file::write(&folder.join(entry.file()), text.as_bytes())?;
                    }
                    codes.push(exit::of(report.outcome));
                    reports.push(report);
                }
                Err(e) => {
                    anstream::eprintln!("qdiff: {}: {e:#}", entry.name);
                    codes.push(exit::TROUBLE);
                }
            }
        }
        if !reports.is_empty() {
            output.serve(&reports, None)?;
        }
        if let Some(folder) = folder.filter(|_| !reports.is_empty()) {
            let line = format!("{} files in {}", reports.len(), session::show(folder));
            say(&terminal::line("reports", &line))?;
        }
        Ok(exit::worst(codes))
    }

    fn entry(&self, entry: &batch::Entry) -> Result<Report> {
        let style = session::style(&self.args.prompt);
        let input = Input {
            ready: entry.resolve(self.pair.opened, style, self.args.prompt.decode)?,
            given: entry.given.clone(),
            decode: self.args.prompt.decode,
            ubatch: self.args.capture.ubatch,
            forced: None,
        };
        input.check(self.pair.opened, self.pair.oracle, self.pair.filter)?;
        self.judge(input)
    }
}

/// Who runs; `auto` says what it took.
pub(super) fn sides(subject: &Spec, reference: &Spec, faults: bool) -> Result<(Spec, Spec)> {
    if *subject == Spec::None {
        bail!("--subject none leaves nothing to judge; name a runner");
    }
    if faults {
        subject.check_faults()?;
    }
    let (subject, instead) = subject.resolve(faults)?;
    if let (Some(why), true) = (instead, std::io::stderr().is_terminal()) {
        anstream::eprintln!("qdiff: the subject is the CPU engine: {why}");
    }
    let (reference, _) = reference.resolve(false)?;
    Ok((subject, reference))
}

pub(super) fn faults(opened: &Opened, injections: &[Injection]) -> Result<Faults> {
    let mut graph = opened.model.graph().clone();
    let words = injections
        .iter()
        .map(|i| i.apply(&mut graph))
        .collect::<Result<Vec<_>>>()?;
    Ok(Faults {
        graph: (!words.is_empty()).then_some(graph),
        words,
    })
}

/// Where only the reference misses f64: what F32 weights say of it.
pub(super) fn doubt(
    pair: &Pair<'_>,
    verdict: &Verdict,
    reference: &Recording,
    tokens: &[u32],
) -> Option<Doubt> {
    let suspects: Vec<_> = verdict.disputed().map(|s| s.id.name).collect();
    if verdict.diverged() || suspects.is_empty() {
        return None;
    }
    let failing = verify_oracle::failing(pair.opened, tokens, &reference.fed, pair.threads);
    let (suspect, reason) = match failing {
        Ok(failing) if suspects.iter().any(|s| failing.contains(s)) => (
            Suspect::Oracle,
            "oracle-suspect: llama.cpp misses f64 with F32 weights too; qdiff itself is in doubt"
                .to_owned(),
        ),
        Ok(_) => (
            Suspect::Reference,
            "reference-suspect: with F32 weights llama.cpp meets f64 on these tokens".to_owned(),
        ),
        Err(e) => (
            Suspect::Unknown,
            format!("which of the two is wrong could not be tested: {e:#}"),
        ),
    };
    Some(Doubt { suspect, reason })
}

pub(super) fn describe(opened: &Opened, sha256: String) -> ModelInfo {
    let config = &opened.model.graph().config;
    ModelInfo {
        path: session::show(&opened.path),
        name: config.name.clone(),
        arch: config.arch.clone(),
        layers: config.n_layers,
        format: format!("(mostly {})", opened.main_format()),
        sha256,
    }
}
