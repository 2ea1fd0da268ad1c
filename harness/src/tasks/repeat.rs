//! A run as a command line, so that a report says how to repeat it.

use super::run::RunRequest;
use crate::arithmetic::Number;
use crate::prompts::Template;
use crate::runners::{LLAMA, Source};
use crate::shown::unseen;
use clap::ValueEnum as _;
use qdiff_engine::cuda::Gemm;

/// The command that repeats the run of the prompt `given`.
pub(super) fn command(args: &RunRequest, given: &str) -> String {
    let mut words = vec!["qdiff run".to_owned()];
    words.extend(model(args).map(|m| format!("-m {}", quote(&m))));
    let recorded = [&args.sides.subject, &args.sides.reference].iter().any(|s| matches!(s, Source::Recorded(_)));
    if recorded && !args.sides.tokens.prompt.typed {
        // The capture names the tokens.
    } else if args.sides.tokens.prompt.tokens.is_empty() {
        words.push(format!("--prompt {}", quote(given)));
    } else {
        let ids: Vec<String> = args.sides.tokens.prompt.tokens.iter().map(ToString::to_string).collect();
        words.push(format!("--tokens {}", ids.join(",")));
    }
    if let (Some(n), false) = (args.sides.tokens.prompt.length, recorded && !args.sides.tokens.prompt.typed) {
        words.push(format!("--length {n}"));
    }
    if args.sides.tokens.prompt.raw {
        words.push("--raw".to_owned());
    }
    if let Some(system) = &args.sides.tokens.prompt.system {
        words.push(format!("--system {}", quote(system)));
    }
    if args.sides.tokens.prompt.template != Template::Bare {
        words.push("--template model".to_owned());
    }
    if args.sides.tokens.decode != 8 && !recorded {
        words.push(format!("-n {}", args.sides.tokens.decode));
    }
    if args.sides.capture.ubatch != 512 && !recorded {
        words.push(format!("--ubatch {}", args.sides.capture.ubatch));
    }
    if args.sides.capture.kv_type != Number::F32 && !recorded {
        let kv = args.sides.capture.kv_type.to_possible_value();
        words.extend(kv.map(|v| format!("--kv-type {}", v.get_name())));
    }
    if args.sides.capture.runner.gemm.gemm != Gemm::Own && !recorded {
        words.push("--gemm cublas".to_owned());
    }
    if args.sides.subject != Source::Auto {
        words.push(format!("--subject {}", quote(&args.sides.subject.to_string())));
    }
    if args.sides.reference != Source::Live(&LLAMA) {
        words.push(format!("--reference {}", quote(&args.sides.reference.to_string())));
    }
    if let Some(path) = &args.sides.map.map {
        words.push(format!("--map {}", quote(&path.display().to_string())));
    }
    if !args.taps.is_empty() {
        words.push(format!("--taps {}", quote(&args.taps.join(","))));
    }
    if args.repeat > 1 {
        words.push(format!("--repeat {}", args.repeat));
    }
    words.extend(args.sides.faults.inject.iter().map(|i| format!("--inject {}", quote(i))));
    words.extend(args.tolerance.tolerance.iter().map(|t| format!("--tolerance {}", quote(t))));
    words.join(" ")
}

/// The model, unless the environment names it.
fn model(args: &RunRequest) -> Option<String> {
    let given = args.sides.tokens.prompt.model.model.as_ref()?;
    let ambient = std::env::var_os("QDIFF_MODEL").is_some_and(|m| given.as_os_str() == m);
    (!ambient).then(|| given.display().to_string())
}

/// `text` as one word of a shell.
fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else if text.chars().any(unseen) {
        // Such a character is shown as an escape, so it is given as one that the shell undoes.
        let escaped = |c: char| format!("\\U{:08x}", u32::from(c));
        let word = text.chars().map(|c| if unseen(c) || "'\\".contains(c) { escaped(c) } else { c.to_string() });
        format!("$'{}'", word.collect::<String>())
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The filters in force; empty if everything was asked for.
pub(super) fn filters(args: &RunRequest) -> String {
    let mut words = Vec::new();
    if !args.filter.stages.is_empty() {
        words.push(format!("--stages {}", quote(&args.filter.stages.join(","))));
    }
    words.extend(args.filter.layers.iter().map(|l| format!("--layers {}", quote(l))));
    words.extend(args.filter.positions.positions.iter().map(|p| format!("--positions {}", quote(p))));
    words.join(" ")
}
