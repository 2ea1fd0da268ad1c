//! Options that shut each other out.
//!
//! clap's own `conflicts_with` refuses them also where one of the two comes from the environment; here only what was
//! typed clashes, and a setting of the environment gives way.

use crate::mutations::Injection;
use crate::runners::Source;
use crate::tasks::PromptRequest;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Error};

/// An option of a command, and the options that it replaces.
const EXCLUSIVE: &[(&str, &str, &[&str])] = &[
    ("run", "prompts", &["prompt", "tokens", "length"]),
    (
        "record",
        "like",
        &["prompt", "tokens", "raw", "system", "template", "decode", "length", "passes", "sequences", "ubatch"],
    ),
    ("run", "passes", &["ubatch"]),
    ("run", "sequences", &["passes", "ubatch", "decode", "prompts", "repeat", "taps", "confirm"]),
    ("record", "passes", &["ubatch"]),
    ("record", "sequences", &["passes", "ubatch", "decode"]),
    ("logits", "passes", &["ubatch"]),
    ("generate", "nonce", &["prompt", "tokens", "raw"]),
];

/// Options that say which prompt a recorded subject is of, so that its tokens can be held against it.
const OF_THE_SUBJECT: &[&str] = &["prompt", "tokens", "length"];

/// What a capture has of its own, with the options' names.
const RECORDED: &[(&str, &str)] = &[
    ("prompt", "--prompt"),
    ("tokens", "--tokens"),
    ("length", "--length"),
    ("decode", "-n"),
    ("passes", "--passes"),
    ("sequences", "--sequences"),
    ("ubatch", "--ubatch"),
];

/// What makes a prompt of a text.
const OF_A_TEXT: &[&str] = &["raw", "system", "template"];

/// What draws a token, which without a temperature is not drawn.
const OF_A_DRAW: &[&str] = &["top_k", "top_p", "min_p", "seed"];

/// What `compare` takes where it judges, which it does with a model alone.
const JUDGING: &[&str] = &["map", "stages", "layers", "positions", "tolerance", "why_budget", "threads"];

/// Whether this runner is a capture.
fn capture(of: &ArgMatches, id: &str) -> bool {
    let spec = of.try_get_one::<Source>(id);
    matches!(spec, Ok(Some(Source::Recorded(_))))
}

/// Whether an argument was typed, and is not from the environment or from a default.
pub fn typed(of: &ArgMatches, id: &str) -> bool {
    of.try_contains_id(id).is_ok() && of.value_source(id) == Some(ValueSource::CommandLine)
}

/// Lets settings of the environment give way to a prompt that was typed.
pub(super) fn give_way(prompt: &mut PromptRequest, matches: &ArgMatches) {
    let Some((_, of)) = matches.subcommand() else {
        return;
    };
    prompt.typed = typed(of, "prompt") || typed(of, "tokens");
    if typed(of, "prompt") && !typed(of, "tokens") {
        prompt.tokens.clear();
    }
    if prompt.typed && !typed(of, "length") && capture(of, "subject") {
        prompt.length = None;
    }
}

/// An option that would be ignored, and why.
fn passed_over(name: &str, of: &ArgMatches) -> Option<(&'static str, &'static str)> {
    let typed = |ids: &[&'static str]| ids.iter().copied().find(|id| typed(of, id));
    let side = |id: &str| of.try_get_one::<Source>(id).ok().flatten();
    let sides: Vec<&Source> = ["subject", "reference", "runner"].into_iter().filter_map(side).collect();
    let recorded = capture(of, "subject") || capture(of, "reference");
    let injected = of.try_get_many::<String>("inject").ok().flatten().into_iter().flatten();
    let rewriting = injected.filter_map(|text| Injection::parse(text).ok()).any(|i| i.mutation.fits.is_some());
    // What `auto` is depends on the machine, and on faults that the CPU engine alone takes.
    let own = |s: &&Source| match s {
        Source::Auto => s.runner(rewriting).is_ok_and(|(kind, _)| kind.device),
        Source::Live(kind) => kind.device,
        Source::Recorded(_) | Source::Nobody => false,
    };
    let command = |s: &&Source| matches!(s, Source::Live(kind) if kind.command().is_some());
    let fixed = |s: &&Source| match s {
        Source::Live(kind) => kind.command().is_some_and(|command| !command.decodes()),
        _ => false,
    };
    let wanted = of.try_get_one::<usize>("decode").ok().flatten().is_some_and(|n| *n > 0);
    let dumped = capture(of, "subject") || side("subject").as_ref().is_some_and(command);
    let cold = of.try_get_one::<f32>("temp").ok().flatten().is_some_and(|t| *t == 0.0);
    let found = [
        (typed(&["tokens"]).and(typed(&["prompt"])), "token ids take the place of a prompt"),
        (typed(&["tokens"]).and(typed(OF_A_TEXT)).filter(|_| name != "prompts"), "token ids have no text"),
        (typed(OF_A_TEXT).filter(|_| recorded && typed(&["prompt"]).is_none()), "a capture has its own tokens"),
        (
            typed(&["map"]).filter(|_| !matches!(name, "compare" | "judge") && !dumped),
            "it names the arrays of a capture",
        ),
        (typed(&["gemm"]).filter(|_| !sides.is_empty() && !sides.iter().any(own)), "it is about the CUDA engine"),
        (
            typed(&["decode"]).filter(|_| wanted && side("subject").as_ref().is_some_and(fixed)),
            "the subject's command takes neither {n} nor {decoded}",
        ),
        (typed(&["timeout"]).filter(|_| !side("subject").as_ref().is_some_and(command)), "it bounds a command"),
        (typed(OF_A_DRAW).filter(|_| cold), "without --temp nothing is drawn"),
    ];
    found.into_iter().find_map(|(id, why)| Some((id?, why)))
}

/// Refuses options that exclude each other.
pub(super) fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
    let Some((name, of)) = matches.subcommand() else {
        return Ok(());
    };
    // Its own usage is printed below an error.
    command.find_subcommand_mut(name).map_or(Ok(()), |command| check_of(command, (name, of)))
}

fn check_of(command: &mut Command, (name, of): (&str, &ArgMatches)) -> Result<(), Error> {
    let typed = |id: &str| typed(of, id);
    let judging = JUDGING.iter().find(|id| name == "compare" && typed(id) && !typed("model"));
    if let Some(id) = judging {
        let text = format!("'--{}' would need the model: name it with -m", id.replace('_', "-"));
        return Err(command.error(ErrorKind::MissingRequiredArgument, text));
    }
    let named = typed("prompt") || typed("tokens");
    let held = name == "run" && capture(of, "subject") && named;
    let compared = |id: &str| held && OF_THE_SUBJECT.contains(&id);
    let clash = RECORDED.iter().find(|(id, _)| typed(id) && !compared(id));
    if let Some((_, option)) = clash.filter(|_| capture(of, "subject") || capture(of, "reference")) {
        let text =
            format!("the argument '{option}' cannot be used with a capture, which has its own tokens; leave it out");
        return Err(command.error(ErrorKind::ArgumentConflict, text));
    }
    if let Some((id, why)) = passed_over(name, of) {
        let short = if id == "decode" { "-n, " } else { "" };
        let text = format!("'{short}--{}' would be ignored: {why}; leave it out", id.replace('_', "-"));
        return Err(command.error(ErrorKind::ArgumentConflict, text));
    }
    for (_, option, replaced) in EXCLUSIVE.iter().filter(|(c, ..)| *c == name) {
        if let Some(other) = replaced.iter().find(|o| typed(option) && typed(o)) {
            let text = format!("the argument '--{option}' cannot be used with '--{other}'");
            return Err(command.error(ErrorKind::ArgumentConflict, text));
        }
    }
    Ok(())
}
