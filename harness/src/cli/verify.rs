//! `qdiff report --verify`: the run of a report, once more.

use super::args::{Cli, Command, ReportArgs};
use super::exit;
use super::say::{say, terminal};
use super::setup::console;
use crate::report::json::{self, Saved};
use crate::report::{Outcome, Report, Told as _};
use crate::runners::Source;
use crate::tasks::run::{self, RunRequest};
use anyhow::{Context as _, Result, bail, ensure};
use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Runs each report again and compares; gives the exit code of the worst.
pub(super) fn run(args: &ReportArgs) -> Result<u8> {
    let codes = args.inputs.iter().map(|path| one(args, path).with_context(|| path.display().to_string()));
    Ok(exit::worst(codes.collect::<Result<Vec<u8>>>()?))
}

fn one(args: &ReportArgs, path: &Path) -> Result<u8> {
    let Saved::Report(report) = json::read(path)? else {
        bail!("it is no report of a run; save one with `qdiff run --json`");
    };
    let request = request(args, &report)?;
    let reports = run::run(&request, console())?.reports;
    let whose = report.run.sequence.as_ref().map(|sequence| sequence.whose());
    let of_sequence = |again: &&Report| again.run.sequence.as_ref().map(|sequence| sequence.whose()) == whose;
    let again = reports.iter().find(of_sequence).context("the run gave no report of this sequence")?;
    let differ = differences(&report, again, args.subject.is_some());
    let line = report.screen(false).line();
    let (outcome, word, text) = match differ.is_empty() {
        true => (Outcome::Match, "VERIFIED", format!("VERIFIED: the run gives this verdict again: {line}")),
        false => (Outcome::Diverged, "NOT VERIFIED", format!("NOT VERIFIED: the report says: {line}")),
    };
    let mut screen = terminal().verdict(outcome, word, &text);
    screen.extend(differ.iter().map(|(what, how)| terminal().line(what, how)));
    screen += &terminal().line("model", &format!("sha256 {}", again.model.sha256));
    screen += &terminal().line("command", &again.run.repeat());
    say(&screen)?;
    Ok(if differ.is_empty() { exit::MATCH } else { exit::DIVERGED })
}

/// The run as the report describes it, on a model and with a subject of this machine.
fn request(args: &ReportArgs, report: &Report) -> Result<RunRequest> {
    let line = report.run.repeat();
    // Such words are quoted for a shell, which undoes escapes.
    ensure!(
        !line.contains("$'"),
        "the command of the report has characters that qdiff does not print; run it by hand: {line}"
    );
    let words = shlex::split(&line).context("the command of the report has an open quote; run the engine again")?;
    // What this shell has set is not what the report is of.
    let line_alone = Cli::command().mut_subcommand("run", |run| run.mut_args(|arg| arg.env(Resettable::Reset)));
    let parsed =
        line_alone.try_get_matches_from(&words).and_then(|found| Cli::from_arg_matches(&found)).map_err(|e| {
            let first = e.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            anyhow::anyhow!("this qdiff does not take the command of the report, `{line}`: {first}")
        })?;
    let Command::Run(run) = parsed.command else { bail!("the command of the report, `{line}`, is no `qdiff run`") };
    let mut request = run.request;
    if let Some(subject) = &args.subject {
        request.sides.subject = subject.clone();
    }
    let reference = request.sides.reference.as_ref();
    for side in [Some(&request.sides.subject).filter(|_| args.subject.is_none()), reference].into_iter().flatten() {
        if let Source::Live(kind) = side
            && kind.command().is_some()
        {
            bail!(
                "a side of the report is the command `{kind}`. qdiff starts no command that a file names: read it, then give \
                 the subject with --subject"
            );
        }
    }
    let prompt = &mut request.sides.tokens.prompt;
    let there = Some(PathBuf::from(&report.model.path)).filter(|path| path.exists());
    prompt.model.model = args.model.clone().or(there).or(prompt.model.model.take());
    // A text that lay in a file may be elsewhere; the report has its tokens.
    if prompt.tokens.is_empty()
        && (prompt.prompt == "-" || prompt.prompt.starts_with('@'))
        && report.run.sequence.is_none()
    {
        prompt.tokens.clone_from(&report.run.tokens);
        prompt.length = None;
    }
    Ok(request)
}

/// Differences of the run from the report: model, tokens, sides, tolerances, outcome, origins, and coverage.
fn differences(then: &Report, now: &Report, other_subject: bool) -> Vec<(&'static str, String)> {
    let mut differ = Vec::new();
    let mut compare = |what, then: String, now: String| {
        if then != now {
            differ.push((what, format!("{then} in the report, {now} here")));
        }
    };
    compare("model", then.model.sha256.clone(), now.model.sha256.clone());
    let tokens = |report: &Report| format!("{:?} + {:?}", report.run.tokens, report.run.decoded);
    compare("tokens", tokens(then), tokens(now));
    if !other_subject {
        compare("subject", then.subject.name.clone(), now.subject.name.clone());
    }
    compare("reference", then.reference.name.clone(), now.reference.name.clone());
    let list = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join(" ") };
    // The file that set a rule may be another one.
    let rules = |told: &[String]| {
        list(&told.iter().map(|rule| rule.split(" (set by ").next().unwrap_or(rule).to_owned()).collect::<Vec<_>>())
    };
    compare("tolerance", rules(&then.run.tolerance), rules(&now.run.tolerance));
    compare("injected", list(&then.subject.injected), list(&now.subject.injected));
    compare("outcome", then.outcome.word().to_owned(), now.outcome.word().to_owned());
    let origins = |report: &Report| {
        let all: BTreeSet<String> = report.diagnosis.findings.iter().map(|finding| finding.id.to_string()).collect();
        list(&all.into_iter().collect::<Vec<_>>())
    };
    compare("origins", origins(then), origins(now));
    let judged = |report: &Report| {
        let coverage = &report.diagnosis.verdict.coverage;
        format!("{} of {} stage rows", coverage.judged, coverage.asked)
    };
    compare("coverage", judged(then), judged(now));
    differ
}
