//! `qdiff generate`.

use super::args::GenerateArgs;
use super::output::Output;
use super::planted::{self, Planted};
use super::setup::{self, Bar};
use super::{run, say, sides};
use crate::capture::Filter;
use crate::generate::{self, Generation, Plan};
use crate::loaded::{LoadedModel, sha256};
use crate::mutations::Part;
use crate::nonce::{self, Changes};
use crate::oracle::Oracle;
use crate::pair::Pair;
use crate::prompts::{self, Ready};
use crate::report::generation::{Cause, GenerationReport, TeacherForced};
use crate::report::{Outcome, generation};
use crate::runners::Spec;
use crate::tokens;
use crate::verdict::Policy;
use crate::weights::WeightCheck;
use anyhow::{Result, bail};

/// Generates on both sides, says where the texts part; gives the exit code.
pub(super) fn run(args: &GenerateArgs) -> Result<u8> {
    let injections = planted::read(&args.inject)?;
    let output = Output::files(&args.files, 1)?;
    let rewriting = planted::rewriting(&injections, &args.subject)?;
    let (subject, reference) = sides::resolve(&args.subject, &args.reference, rewriting)?;
    for spec in [&subject, &reference] {
        if matches!(spec, Spec::Capture(_)) {
            bail!("a recorded capture cannot generate; use `qdiff run --subject {spec}`");
        }
    }
    if args.prompt.decode == 0 {
        bail!("-n 0 generates nothing; give the number of tokens");
    }
    let threads = setup::threads(args.prompt.threads)?;
    let opened = setup::open(args.prompt.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    let number = args.nonce.map(|n| n.unwrap_or_else(nonce::fresh));
    let ready = match number {
        Some(n) => nonce_prompt(&opened, args, n)?,
        None => setup::prompt(&opened, &args.prompt)?,
    };
    let planted = Planted::new(&opened, &injections, &[Part::Tokenizer, Part::Samplers])?;
    let faults = &planted.stages;
    let bar = Bar::new();
    let store = args.capture.memory.store();
    let (filter, policy) = (Filter::default(), Policy::default());
    let pair = Pair {
        opened: &opened,
        oracle: &oracle,
        filter: &filter,
        policy: &policy,
        budget: crate::diagnose::BUDGET,
        store: &store,
        threads,
        gemm: args.prompt.gemm,
        kv: args.capture.kv_type,
        progress: &|what, done, total| bar.show(what, done, total),
    };
    let settings = args.sampling.settings();
    let plan = Plan {
        prompt: &ready.tokens,
        ubatch: args.capture.ubatch,
        most: args.prompt.decode,
        settings: &settings,
        spoiled: &planted.samplers,
    };
    let check = tokens::check(&opened, &ready, planted.tokenizer)?;

    say(&generation::columns(&reference, &subject))?;
    let mut index = 0;
    let piece = |token: Option<u32>| token.map_or_else(String::new, |t| generate::shown(&opened.llama, t));
    let spoken = generate::generate(&pair, plan, &subject, &reference, faults.clone(), |theirs, ours| {
        let row = generation::row(index, &piece(theirs), &piece(ours), theirs == ours);
        index += 1;
        say(&row)
    })?;

    let changes = match number {
        Some(n) => {
            let other = nonce_prompt(&opened, args, nonce::another(n))?;
            Some(nonce::check(&pair, [&ready.tokens, &other.tokens], plan.ubatch, &subject, &reference, faults)?)
        }
        None => None,
    };
    let (cause, forced, mut outcome) = match (&spoken.sampler_differs, spoken.parts_at()) {
        (Some(other), _) => (Some(Cause::Sampler(other.clone())), None, Outcome::Diverged),
        (None, None) => (None, None, Outcome::Match),
        (None, Some(at)) => {
            let sides = (&subject, &reference);
            let (cause, forced, outcome) = explain(&pair, plan, &spoken, at, sides, faults.clone())?;
            (Some(cause), Some(forced), outcome)
        }
    };
    if changes.as_ref().is_some_and(Changes::stale) || check.as_ref().is_some_and(|c| c.diverged()) {
        outcome = Outcome::Diverged;
    }
    let report = GenerationReport {
        outcome,
        model: run::describe(&opened, sha256(opened.bytes())),
        prompt: ready.name,
        prompt_text: ready.text,
        prompt_tokens: ready.tokens,
        sampling: settings.into(),
        nonce: number,
        tokens: check,
        injected: faults.words.iter().cloned().chain(planted.beside()).collect(),
        generation: spoken,
        cause,
        forced,
        changes,
    };
    say("\n")?;
    output.tell(&report)
}

/// Both sides on the same tokens: which stage made the fork, if any.
fn explain(
    pair: &Pair<'_>,
    plan: Plan<'_>,
    spoken: &Generation,
    at: usize,
    (subject, reference): (&Spec, &Spec),
    faults: crate::runners::Faults,
) -> Result<(Cause, TeacherForced, Outcome)> {
    let (diagnosis, recording) = generate::judge_fork(pair, plan, spoken, at, subject, reference, faults)?;
    let doubt = run::doubt(pair, &diagnosis.verdict, &recording, plan.prompt);
    let outcome = Outcome::of(&WeightCheck::default(), None, &diagnosis.verdict, doubt.as_ref());
    let cause = Cause::of(&diagnosis, outcome, doubt);
    let forced = TeacherForced::of(&diagnosis.verdict, at);
    Ok((cause, forced, outcome))
}

fn nonce_prompt(opened: &LoadedModel, args: &GenerateArgs, number: u32) -> Result<Ready> {
    let ready =
        prompts::ready(opened, &format!("haiku about {number:08}"), nonce::prompt(number), setup::style(&args.prompt))?;
    opened.check(&ready.tokens, args.prompt.decode)?;
    Ok(ready)
}
