//! A battery of batches: what an engine that serves does with several sequences at once, for one verdict.
//!
//! Each case is a plan of passes as `run --sequences` takes it. Every row is judged on its own operands, as if its sequence had run
//! alone; so the answer is not that two runs differ, but which sequence, stage and position is wrong.

use super::Console;
use super::check::{self, CheckRequest, Expect, WHOLE};
use super::request::{SequencesRequest, TokensRequest, shared_across};
use super::run::Runs;
use super::run_request::RunRequest;
use super::sides::SideChoice;
use crate::capture::Plan;
use crate::loaded::LoadedModel;
use crate::pair::Pair;
use crate::report::Report;
use crate::report::check::{Case, CheckReport, Fared, Other};
use crate::verdict::Race;
use anyhow::{Context as _, Result};

/// One batch of the battery.
struct Batch {
    name: &'static str,
    about: &'static str,
    /// As `--sequences` takes it.
    plan: &'static str,
    /// The positions that are judged; all of them where it is empty.
    positions: &'static str,
    /// Whether `--quick` leaves it out.
    long: bool,
}

const fn batch(name: &'static str, about: &'static str, plan: &'static str) -> Batch {
    Batch { name, about, plan, positions: "", long: false }
}

/// The battery.
const BATCHES: [Batch; 13] = [
    batch("unequal", "sequences of 5, 1 and 17 tokens in one pass, then a decode step of each", "5+1+17,1+1+1"),
    batch("small", "prompts of 1, 2, 3, 8 and 9 tokens in one pass, then decode steps", "1+2+3+8+9,2x1+1+1+1+1"),
    batch("join", "a sequence joins while another decodes", "7,1+5,1+1,0+1"),
    batch("leave", "a sequence ends, the others go on, and a new one takes its slots", "6+4,1+1,0~all+1,0+1+9,0+1+1"),
    batch("chunks", "a prefill in parts of 15, 16, 1 and 17 beside decode steps", "15+3,16+1,1+1,17+1"),
    batch(
        "prefix",
        "a sequence begins with 16 cached tokens of another, at once and later",
        "17,1+1+9@0:16,1+1+1,0+0+0+5@0:16",
    ),
    batch("prefix-of-the-dead", "a cached prefix outlives the sequence that wrote it", "12,0+4@0:11,0~all+1,0+1+7@1:9"),
    batch("draft", "drafts of 5 tokens, of which 5, 4, 3, 2, 1 and none are rejected", "9,5,5~5,5~4,5~3,5~2,5~1,1"),
    batch(
        "draft-beside",
        "rejected drafts of two sequences in one pass, beside a third that decodes",
        "6+9+3,4+4+1,1~3+2~1+1,1+1+1",
    ),
    batch("reuse", "all slots are free, and others take them", "9+8,0~all+0~all+7,0+0+1,11+0+1"),
    Batch {
        long: true,
        ..batch("around-32", "prompts of 31, 32 and 33 tokens in one pass, then decode steps", "31+32+33,1+1+1")
    },
    Batch {
        long: true,
        positions: "0,62-66",
        ..batch("around-64", "prompts of 63, 64 and 65 tokens", "63+64+65,2x1+1+1")
    },
    Batch {
        long: true,
        positions: "0,126-130",
        ..batch("around-128", "prompts of 127, 128 and 129 tokens", "127+128+129,2x1+1+1")
    },
];

impl Batch {
    fn plan(&self) -> Plan {
        self.plan.parse().expect("the battery holds plans")
    }

    /// Why it cannot be run, or is not to be.
    fn left_out(&self, opened: &LoadedModel, quick: bool) -> Option<String> {
        let (context, tokens) = (opened.model.graph().config.context, self.plan().tokens());
        if tokens > context {
            return Some(format!("it takes {tokens} tokens, and the model's context is {context}"));
        }
        if let Some((from, to)) = shared_across(opened, &self.plan()) {
            return Some(format!("sequence {to} begins with tokens of sequence {from}, which has another adapter"));
        }
        (quick && self.long).then(|| "--quick".to_owned())
    }

    /// The request for `qdiff run`.
    fn request(&self, all: &CheckRequest, opened: &LoadedModel) -> RunRequest {
        let plan = self.plan();
        // As in the other battery.
        let some = !self.positions.is_empty() && !opened.model.graph().is_recurrent();
        let positions = some.then(|| self.positions.to_owned());
        let tokens = TokensRequest { prompt: all.text(plan.tokens()), decode: 0 };
        RunRequest {
            sequences: SequencesRequest { sequences: Some(plan), ..SequencesRequest::default() },
            ..all.run(tokens, WHOLE, positions)
        }
    }
}

/// Runs the battery.
///
/// # Errors
/// Whatever keeps all of it from being run, such as a subject that runs one sequence at a time. An error of a single case is
/// the result of that case.
pub fn check(request: &CheckRequest, console: Console<'_>) -> Result<CheckReport> {
    let sequences = BATCHES.iter().map(|batch| batch.plan().sequences()).max().unwrap_or(1);
    let opened = request.adapters.of_plans(request.model.open()?, sequences)?;
    let requests: Vec<RunRequest> = BATCHES.iter().map(|batch| batch.request(request, &opened)).collect();
    let first = &requests[0];
    let chosen = SideChoice::new(&first.sides, console)?;
    chosen.plan(first.sequences.sequences.as_ref()).context("--serving")?;
    let mut pair = Pair::new(&opened, first.sides.settings()?, console.progress)?;
    pair.told = console.found;
    let mut runs = Runs::new(first, chosen, pair)?;
    (console.begin)();
    let mut report = CheckReport::new(runs.model.clone(), Vec::new());
    let mut trouble = None;
    for (batch, own) in BATCHES.iter().zip(&requests) {
        let fared = match batch.left_out(&opened, request.quick) {
            Some(why) => Fared::LeftOut { why },
            None => {
                runs.request = own;
                match one(&mut runs, own, request.expect) {
                    Ok(judged) => fared(&judged),
                    Err(e) => check::failed(e, &mut trouble),
                }
            }
        };
        report.cases.push(Case { name: batch.name.to_owned(), about: batch.about.to_owned(), fared });
    }
    check::judged(report, trouble)
}

/// One case: a report of each sequence, and the first bits in which it differs from its run alone.
fn one<'a>(runs: &mut Runs<'a>, request: &'a RunRequest, expect: Expect) -> Result<Vec<(Report, Option<Race>)>> {
    let prompt = &request.sides.tokens.prompt;
    runs.pair.filter = request.filter.filter(&runs.pair.oracle.graph)?;
    let ready = prompt.ready(runs.pair.opened, 0)?;
    let plan = request.sequences.plan(ready.tokens.len())?.context("a batch has a plan")?;
    runs.sequences_beside(&ready, plan, &prompt.prompt, expect == Expect::Bitwise)
}

/// What the reports of a batch come to: that of the sequence that fared worst.
fn fared(judged: &[(Report, Option<Race>)]) -> Fared {
    let reports: Vec<&Report> = judged.iter().map(|(report, _)| report).collect();
    let others = judged.iter().filter_map(|(report, race)| {
        let (race, sequence) = (race.as_ref()?, report.run.sequence.as_ref()?);
        let stage = report.diagnosis.verdict.stages.iter().find(|stage| stage.id == race.stage);
        let right = stage.is_some_and(|stage| !stage.origin);
        Some(Other {
            whose: sequence.whose(),
            stage: race.stage,
            position: race.at.position,
            elements: race.elements,
            right,
        })
    });
    Fared::batch(&reports, others.min_by_key(|other| other.right))
}
