//! `qdiff run`.

use super::args::RunArgs;
use super::output::Output;
use super::session::{self, Bar};
use super::{exit, verify_oracle, words};
use crate::capture::{Filter, Names, npz};
use crate::compare::comparable;
use crate::mutations::Injection;
use crate::oracle::Oracle;
use crate::pair::{Pair, Recording, Tokens};
use crate::report::{
    Doubt, Kind, Machine, ModelInfo, Outcome, Report, RunInfo, SCHEMA_VERSION, Suspect,
};
use crate::runners::{Faults, Spec};
use crate::session::{Opened, sha256};
use crate::tokens;
use crate::verdict::{Policy, Verdict};
use crate::weights;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

/// Runs both sides, judges, reports; gives the exit code.
pub(super) fn run(args: &RunArgs) -> Result<u8> {
    let injections = args
        .inject
        .iter()
        .map(|text| Injection::parse(text))
        .collect::<Result<Vec<_>>>()?;
    let output = Output::new(&args.output, 1)?;
    let (subject, reference) = sides(&args.subject, &args.reference, !args.inject.is_empty())?;
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
    let recorded = Recorded::open(&subject, &reference)?;
    let (prompt, text, tokens, decode, ubatch) = match recorded.manifest() {
        Some(m) => {
            let ubatch = m.ubatch.unwrap_or(m.tokens.len());
            let name = "recorded".to_owned();
            (
                name,
                String::new(),
                m.tokens.clone(),
                m.decoded.len(),
                ubatch,
            )
        }
        None => {
            let ready = session::prompt(&opened, &args.prompt)?;
            let (decode, ubatch) = (args.prompt.decode, args.capture.ubatch);
            (ready.name, ready.text, ready.tokens, decode, ubatch)
        }
    };
    let forced = recorded.manifest().map(|m| m.decoded.as_slice());
    opened.check(&[&tokens, forced.unwrap_or_default()].concat(), 0)?;
    filter.check(&oracle.graph, tokens.len() + decode)?;
    let faults = faults(&opened, &injections)?;

    let (hash, checked) = std::thread::scope(|scope| {
        let hash = scope.spawn(|| sha256(opened.bytes()));
        let checked = weights::check(&opened.model, &oracle);
        (hash.join().expect("hashing does not panic"), checked)
    });
    recorded.check_model(&hash)?;

    let same_tokens =
        (!text.is_empty()).then(|| tokens::check(opened.model.gguf(), &opened.llama, &text));

    let bar = Bar::new();
    let store = args.capture.memory.store();
    let pair = Pair {
        opened: &opened,
        oracle: &oracle,
        filter: &filter,
        policy: &policy,
        store: &store,
        threads,
        gemm: args.prompt.gemm,
        progress: &|what, done, total| bar.show(what, done, total),
    };
    let tokens_of = |forced| Tokens {
        prompt: &tokens,
        ubatch,
        decode,
        forced,
    };
    let reference = match &recorded.reference {
        Some((folder, manifest)) => pair.read(folder, manifest, &Names::of(&oracle.graph))?,
        None => pair.run(&reference, tokens_of(forced), Faults::default())?,
    };
    let subject = match &recorded.subject {
        Some((folder, manifest)) => pair.read(folder, manifest, &names)?,
        None => pair.run(&subject, tokens_of(Some(&reference.fed)), faults)?,
    };
    let verdict = pair.judge(&subject, &reference)?;

    let doubt = doubt(&pair, &verdict, &reference, &tokens);
    let Recording { manifest, fed, .. } = reference;
    let mut run = RunInfo {
        prompt: prompt.clone(),
        tokens,
        decoded: fed,
        text: BTreeMap::new(),
        command: words::command(args),
        filters: words::filters(args),
    };
    run.spell(&verdict, |token| opened.llama.piece(token));
    let report = Report {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Run,
        qdiff: env!("CARGO_PKG_VERSION").to_owned(),
        outcome: Outcome::of(&checked, same_tokens.as_ref(), &verdict, doubt.as_ref()),
        machine: Machine::this(),
        model: describe(&opened, hash),
        run,
        subject: subject.manifest,
        reference: manifest,
        weights: checked,
        tokens: same_tokens,
        verdict,
        doubt,
    };
    let courtesy = Path::new("qdiff-report")
        .join(file_name(&prompt))
        .join("report.json");
    output.serve(std::slice::from_ref(&report), Some(courtesy))?;
    Ok(match exit::of(report.outcome) {
        exit::TROUBLE | exit::INCOMPLETE if args.bisect => exit::SKIP,
        code => code,
    })
}

/// Who runs; `auto` says what it took.
pub(super) fn sides(subject: &Spec, reference: &Spec, faults: bool) -> Result<(Spec, Spec)> {
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

/// The captures that stand for live runners.
struct Recorded {
    subject: Option<(PathBuf, npz::Manifest)>,
    reference: Option<(PathBuf, npz::Manifest)>,
}

impl Recorded {
    fn open(subject: &Spec, reference: &Spec) -> Result<Self> {
        let open = |spec: &Spec| match spec {
            Spec::Capture(folder) => npz::manifest(folder).map(|m| Some((folder.clone(), m))),
            _ => Ok(None),
        };
        let recorded = Self {
            subject: open(subject)?,
            reference: open(reference)?,
        };
        if let (Some((a, x)), Some((b, y))) = (&recorded.subject, &recorded.reference) {
            comparable((a, x), (b, y))?;
        }
        Ok(recorded)
    }

    /// The manifest whose tokens the run is about.
    fn manifest(&self) -> Option<&npz::Manifest> {
        self.subject
            .as_ref()
            .or(self.reference.as_ref())
            .map(|(_, m)| m)
    }

    fn check_model(&self, sha256: &str) -> Result<()> {
        for (folder, manifest) in self.subject.iter().chain(&self.reference) {
            if let Some(other) = manifest.model_sha256.as_ref().filter(|h| *h != sha256) {
                bail!(
                    "{} was recorded on another model (sha256 {other}, this one has {sha256}); name that model with -m",
                    session::show(folder)
                );
            }
        }
        Ok(())
    }
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

fn file_name(prompt: &str) -> String {
    prompt
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .collect()
}
