//! A run as a command line, so that a report says how to repeat it.

use super::request::{TokensRequest, ToleranceRequest};
use super::run::RunRequest;
use super::sides::SidesRequest;
use crate::arithmetic::Number;
use crate::products::OracleChoice;
use crate::prompts::Template;
use crate::runners::{LLAMA, Source};
use crate::shown::unseen;
use crate::verdict::CheckMode;
use clap::ValueEnum as _;
use clap::builder::PossibleValue;
use qdiff_engine::cuda::Gemm;
use std::fmt::Display;

/// The command that repeats the run of the prompt `given`.
pub(super) fn command(args: &RunRequest, given: &str) -> String {
    let SidesRequest { tokens: TokensRequest { prompt, decode }, capture, subject, reference, map, faults, .. } =
        &args.sides;
    let ToleranceRequest { tolerance, check, oracle, .. } = &args.tolerance;
    let recorded = [subject, reference].iter().any(|s| matches!(s, Source::Recorded(_)));
    // Then the capture names the tokens.
    let unnamed = recorded && !prompt.typed;
    let ids: Vec<String> = prompt.tokens.iter().map(ToString::to_string).collect();
    let kv = capture.kv_type.filter(|kv| *kv != Number::F32 && !recorded);
    let option = |name: &str, value: &dyn Display| format!("{name} {}", quote(&value.to_string()));
    let one_of = |name: &str, value: Option<PossibleValue>| value.map(|value| option(name, &value.get_name()));
    let words = [
        model(args).map(|m| option("-m", &m)),
        (!unnamed && ids.is_empty()).then(|| option("--prompt", &given)),
        (!unnamed && !ids.is_empty()).then(|| option("--tokens", &ids.join(","))),
        prompt.length.filter(|_| !unnamed).map(|n| option("--length", &n)),
        prompt.raw.then(|| "--raw".to_owned()),
        prompt.system.as_ref().map(|s| option("--system", s)),
        (prompt.template != Template::Bare).then(|| "--template model".to_owned()),
        (*decode != 8 && !recorded).then(|| option("-n", decode)),
        (capture.ubatch != 512 && !recorded).then(|| option("--ubatch", &capture.ubatch)),
        kv.and_then(|kv| one_of("--kv-type", kv.to_possible_value())),
        (capture.runner.gemm.gemm != Gemm::Own && !recorded).then(|| "--gemm cublas".to_owned()),
        (*subject != Source::Auto).then(|| option("--subject", subject)),
        (*reference != Source::Live(&LLAMA)).then(|| option("--reference", reference)),
        map.map.as_ref().map(|path| option("--map", &path.display())),
        (!args.taps.is_empty()).then(|| option("--taps", &args.taps.join(","))),
        (args.repeat > 1).then(|| option("--repeat", &args.repeat)),
        one_of("--check", check.to_possible_value()).filter(|_| *check != CheckMode::default()),
        one_of("--oracle", oracle.to_possible_value()).filter(|_| *oracle != OracleChoice::default()),
    ];
    let injected = faults.inject.iter().map(|i| option("--inject", i));
    let allowed = tolerance.iter().map(|t| option("--tolerance", t));
    let words = words.into_iter().flatten().chain(injected).chain(allowed);
    ["qdiff run".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
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
