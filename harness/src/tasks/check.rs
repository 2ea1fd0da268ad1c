//! A battery of runs, each of which exercises what others leave out: one command, one verdict.

use super::faults::InjectedFaults;
use super::request::{
    AdaptersRequest, CaptureRequest, FilterRequest, ModelRequest, PositionsRequest, PromptRequest, RunnerRequest,
};
use super::request::{FaultRequest, TokensRequest};
use super::run::{RunRequest, Runs};
use super::sides::{Input, SideChoice, SidesRequest, WhyRequest};
use super::{Console, values};
use crate::capture::Lengths;
use crate::loaded::LoadedModel;
use crate::pair::Pair;
use crate::report::check::{Case, CheckReport, Fared};
use crate::runners::CommandLine;
use crate::runners::Source;
use anyhow::Result;
use clap::{Args, ValueEnum};
use qdiff_engine::quant::KvType;

/// What the battery is run on.
#[derive(Clone, Debug, Args)]
pub struct CheckRequest {
    #[command(flatten)]
    pub model: ModelRequest,
    #[command(flatten)]
    pub adapters: AdaptersRequest,
    /// Skip the long cases
    #[arg(long, help_heading = "What to run")]
    pub quick: bool,
    /// Run batches of sequences instead, as an engine that serves does: each sequence is judged as if it ran alone
    #[arg(long, help_heading = "What to run")]
    pub serving: bool,
    /// With --serving, how exact a sequence in a batch must be
    #[arg(long, value_name = "WHAT", default_value = "bound", requires = "serving", help_heading = "What to run")]
    pub expect: Expect,
    /// The engine under suspicion
    #[arg(long, value_name = "ENGINE", default_value = "auto", env = "QDIFF_SUBJECT", value_parser = values::LIVE_SUBJECT,
          help_heading = "Sides")]
    pub subject: Source,
    /// The engine to compare with [default: llama, or none for a folder of safetensors]
    #[arg(long, value_name = "ENGINE", env = "QDIFF_REFERENCE", value_parser = values::LIVE, help_heading = "Sides")]
    pub reference: Option<Source>,
    #[command(flatten)]
    pub faults: FaultRequest,
    #[command(flatten)]
    pub runner: RunnerRequest,
    /// Type of the KV cache on both sides, or two as in q8_0/q4_1 for keys and values; llama.cpp has no f8 types
    #[arg(
        long,
        value_name = "TYPE",
        value_parser = values::KvTypes,
        default_value_t,
        env = "QDIFF_KV_TYPE",
        help_heading = "How to run it"
    )]
    pub kv_type: KvType,
    #[command(flatten)]
    pub why: WhyRequest,
}

impl CheckRequest {
    /// So many tokens of the built-in text.
    pub(super) fn text(&self, tokens: usize) -> PromptRequest {
        let (model, prompt) = (self.model.clone(), TEXT.to_owned());
        PromptRequest { model, prompt, length: Some(tokens), ..PromptRequest::default() }
    }

    /// The request to `qdiff run` for a case, of which these positions are judged, or all.
    pub(super) fn run(&self, tokens: TokensRequest, ubatch: usize, positions: Option<String>) -> RunRequest {
        RunRequest {
            sides: SidesRequest {
                tokens,
                subject: self.subject.clone(),
                reference: self.reference.clone(),
                faults: self.faults.clone(),
                capture: CaptureRequest { runner: self.runner.clone(), ubatch, kv_type: Some(self.kv_type) },
                why: self.why.clone(),
                ..SidesRequest::default()
            },
            filter: FilterRequest { positions: PositionsRequest { positions }, ..FilterRequest::default() },
            adapters: self.adapters.clone(),
            repeat: None,
            ..RunRequest::default()
        }
    }
}

/// What a sequence must give beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Expect {
    /// What its arithmetic allows.
    #[default]
    Bound,
    /// Bit for bit what it gives alone.
    Bitwise,
}

/// The tokens of a case.
#[derive(Clone, Copy)]
enum Kind {
    /// Those of the built-in text.
    Text,
    /// One of them, over and over.
    Repeated,
    /// Ids from 2^17 on, evenly taken from all that there are.
    High,
}

/// One run of the battery.
struct Plan {
    name: &'static str,
    about: &'static str,
    kind: Kind,
    /// Tokens of the prompt.
    tokens: usize,
    ubatch: usize,
    /// Lengths of the passes over the prompt, where it is not fed in parts of `ubatch`.
    passes: &'static [usize],
    decode: usize,
    /// Whether it is the decode steps that it is about.
    decodes: bool,
}

/// The built-in prompt that the texts are cut from.
const TEXT: &str = "long";

/// Tokens fed at once where a case is not about parts.
pub(super) const WHOLE: usize = 512;

/// Decode steps of a case that is about others.
const USUAL: usize = 2;

/// The first id that needs more than 17 bits.
const HIGH: usize = 1 << 17;

/// Tokens from which on a case is long, and judged at its first and last positions alone, unless the model is recurrent.
const LONG: usize = 128;

const fn plan(name: &'static str, about: &'static str, kind: Kind, [tokens, ubatch, decode]: [usize; 3]) -> Plan {
    Plan { name, about, kind, tokens, ubatch, passes: &[], decode, decodes: decode > USUAL }
}

/// A prompt, decode steps, and several tokens after them.
const SECOND_TURN: Plan = Plan {
    passes: &[19, 1, 1, 1, 11],
    ..plan("second-turn", "19 tokens, 3 decode steps, then 11 tokens at once", Kind::Text, [33, WHOLE, USUAL])
};

/// The battery. Decode goes over the boundaries of the last two by three positions.
const PLANS: [Plan; 11] = [
    plan("one-token", "a prompt of one token, then decode steps", Kind::Text, [1, WHOLE, 3]),
    plan("odd", "7 tokens in one part", Kind::Text, [7, WHOLE, USUAL]),
    plan("odd-longer", "45 tokens in one part", Kind::Text, [45, WHOLE, USUAL]),
    plan("two-parts", "24 tokens in parts of 16 and 8", Kind::Text, [24, 16, USUAL]),
    plan("parts", "37 tokens in parts of 8, the last of 5", Kind::Text, [37, 8, USUAL]),
    plan("one-by-one", "6 tokens one by one", Kind::Text, [6, 1, USUAL]),
    SECOND_TURN,
    plan("repeated", "one token 17 times", Kind::Repeated, [17, WHOLE, USUAL]),
    plan("high-ids", "9 ids from 131,072 on", Kind::High, [9, WHOLE, USUAL]),
    plan("boundary-256", "decode from position 253 to 258", Kind::Text, [253, WHOLE, 6]),
    plan("boundary-4096", "decode from position 4,093 to 4,098", Kind::Text, [4093, WHOLE, 6]),
];

impl Plan {
    /// Why it cannot be run, or is not to be.
    fn left_out(&self, opened: &LoadedModel, command: Option<CommandLine>, quick: bool) -> Option<String> {
        let config = &opened.model.graph().config;
        let (ids, places) = (opened.n_tokens().min(config.n_vocab), self.tokens + self.decode);
        if matches!(self.kind, Kind::High) && ids < HIGH + self.tokens {
            return Some(format!("the vocabulary ends at id {}", ids.saturating_sub(1)));
        }
        if places > config.context {
            return Some(format!("it takes {places} tokens, and the model's context is {}", config.context));
        }
        let untold = |what: &str, needed: &str| format!("the subject's command takes no {what}: it needs {needed}");
        match command {
            Some(command) if self.tokens > self.ubatch && !command.parts() => {
                Some(untold("parts", "{passes} or {ubatch}"))
            }
            Some(command) if !self.passes.is_empty() && !command.passes() => Some(untold("passes", "{passes}")),
            Some(command) if self.decodes && !command.decodes() => Some(untold("decode steps", "{decoded} or {n}")),
            _ => (quick && self.tokens > LONG).then(|| "--quick".to_owned()),
        }
    }

    /// The request to `qdiff run` for this case.
    fn request(&self, opened: &LoadedModel, all: &CheckRequest) -> Result<RunRequest> {
        let mut prompt = all.text(self.tokens);
        match self.kind {
            Kind::Text => {}
            Kind::Repeated => prompt.tokens = prompt.ready(opened, 0)?.tokens[..1].to_vec(),
            Kind::High => {
                let ids = opened.n_tokens().min(opened.model.graph().config.n_vocab);
                let id = |i: usize| (HIGH + i * (ids - HIGH) / self.tokens) as u32;
                prompt.tokens = (0..self.tokens).map(id).collect();
                prompt.length = None;
            }
        }
        let last = self.tokens + self.decode - 1;
        // A recurrent state follows from every row of a step.
        let some = self.tokens > LONG && !opened.model.graph().is_recurrent();
        let some = some.then(|| format!("0,1,{}-{last}", self.tokens - 2));
        let mut request = all.run(TokensRequest { prompt, decode: self.decode }, self.ubatch, some);
        request.sides.passes.passes = Some(Lengths(self.passes.to_vec())).filter(|p| !p.0.is_empty());
        Ok(request)
    }
}

/// Runs the battery.
///
/// # Errors
/// Anything that keeps all cases from running. An error of a single case is in its place.
pub fn check(request: &CheckRequest, console: Console<'_>) -> Result<CheckReport> {
    let opened = request.adapters.added(request.model.open()?, None)?;
    let command = if let Source::Live(kind) = &request.subject { kind.command() } else { None };
    let plans: Vec<(&Plan, Option<String>)> =
        PLANS.iter().map(|plan| (plan, plan.left_out(&opened, command, request.quick))).collect();
    let requests = plans.iter().map(|(plan, left)| match left {
        Some(_) => Ok(None),
        None => plan.request(&opened, request).map(Some),
    });
    let requests: Vec<Option<RunRequest>> = requests.collect::<Result<_>>()?;
    let first = PLANS[0].request(&opened, request)?;
    let chosen = SideChoice::new(&first.sides, console)?;
    let mut pair = Pair::new(&opened, first.sides.settings()?, console.progress)?;
    pair.told = console.found;
    let injections = super::faults::read(&request.faults.inject)?;
    let injected = InjectedFaults::new((opened.model.graph(), request.kv_type), &injections, &[])?.stages.words;
    let mut runs = Runs::new(&first, chosen, pair)?;
    (console.begin)();
    let mut report = CheckReport::new(runs.model.clone(), injected);
    let mut trouble = None;
    for ((plan, left), request) in plans.iter().zip(&requests) {
        let fared = match (request, left) {
            (Some(request), _) => {
                runs.request = request;
                match one(&mut runs, request) {
                    Ok(report) => Fared::run(&report),
                    Err(e) => failed(e, &mut trouble),
                }
            }
            (None, why) => Fared::LeftOut { why: why.clone().unwrap_or_default() },
        };
        report.cases.push(Case { name: plan.name.to_owned(), about: plan.about.to_owned(), fared });
    }
    judged(report, trouble)
}

/// A case that could not be run, and the first such `trouble`.
pub(super) fn failed(e: anyhow::Error, trouble: &mut Option<anyhow::Error>) -> Fared {
    let error = format!("{e:#}");
    trouble.get_or_insert(e);
    Fared::Failed { error }
}

/// What the cases come to.
///
/// # Errors
/// The first trouble, if no case was run: an engine that always fails is not judged in part.
pub(super) fn judged(report: CheckReport, trouble: Option<anyhow::Error>) -> Result<CheckReport> {
    let ran = report.cases.iter().any(|case| matches!(case.fared, Fared::Run(_)));
    match trouble.filter(|_| !ran) {
        Some(trouble) => Err(trouble.context("no case could be run")),
        None => Ok(report.judged()),
    }
}

/// One case.
fn one<'a>(runs: &mut Runs<'a>, request: &'a RunRequest) -> Result<crate::report::Report> {
    let TokensRequest { prompt, decode } = &request.sides.tokens;
    runs.pair.filter = request.filter.filter(&runs.pair.oracle.graph)?;
    let input = Input::new(prompt.ready(runs.pair.opened, *decode)?, *decode, request.sides.capture.ubatch);
    let input = runs.sides.chosen.taken(input.fed(&request.sides.passes)?);
    input.check(&runs.pair)?;
    runs.judge(input, &prompt.prompt)
}
