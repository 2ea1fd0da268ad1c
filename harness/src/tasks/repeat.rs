//! A run as a command line, so that a report says how to repeat it.

use super::request::{CaptureRequest, TokensRequest, ToleranceRequest, UBATCH};
use super::run_request::RunRequest;
use super::sides::{LiveSidesRequest, SidesRequest};
use crate::pair::TIMEOUT;
use crate::products::OracleChoice;
use crate::prompts::Template;
use crate::runners::{LLAMA, Source};
use crate::shown::unseen;
use crate::verdict::CheckMode;
use clap::ValueEnum as _;
use clap::builder::PossibleValue;
use qdiff_engine::cuda::Gemm;
use qdiff_engine::quant::KvType;
use std::fmt::Display;
use std::path::Path;

/// The command that repeats the run of the prompt `given`.
pub(super) fn command(args: &RunRequest, given: &str) -> String {
    let SidesRequest { tokens, passes, subject, map, reference, faults, capture, why } = &args.sides;
    let TokensRequest { prompt, decode } = tokens;
    let ToleranceRequest { tolerance, check, probe_seed, oracle, from: _ } = &args.tolerance;
    let recorded = [Some(subject), reference.as_ref()].iter().any(|s| matches!(s, Some(Source::Recorded(_))));
    // Then the capture names the tokens.
    let unnamed = recorded && !prompt.typed;
    let ids: Vec<String> = prompt.tokens.iter().map(ToString::to_string).collect();
    let kv = capture.kv_type.filter(|kv| *kv != KvType::F32 && !recorded);
    let option = |name: &str, value: &dyn Display| format!("{name} {}", quote(&value.to_string()));
    let one_of = |name: &str, value: Option<PossibleValue>| value.map(|value| option(name, &value.get_name()));
    let words = [
        named(args.sides.tokens.prompt.model.model.as_deref()).map(|m| option("-m", &m)),
        (!unnamed && ids.is_empty()).then(|| option("--prompt", &given)),
        (!unnamed && !ids.is_empty()).then(|| option("--tokens", &ids.join(","))),
        prompt.length.filter(|_| !unnamed).map(|n| option("--length", &n)),
        prompt.raw.then(|| "--raw".to_owned()),
        prompt.system.as_ref().map(|s| option("--system", s)),
        (prompt.template != Template::Bare).then(|| "--template model".to_owned()),
        (*decode != 8 && !recorded && args.sequences.sequences.is_none()).then(|| option("-n", decode)),
        args.sequences.sequences.as_ref().map(|plan| option("--sequences", plan)),
        args.sequences.no_kv_unified.then(|| "--no-kv-unified".to_owned()),
        args.ranks.ranks.as_ref().filter(|_| !recorded).map(|ranks| option("--ranks", ranks)),
        passes.passes.as_ref().filter(|_| !recorded).map(|passes| option("--passes", passes)),
        (capture.ubatch != UBATCH && !recorded).then(|| option("--ubatch", &capture.ubatch)),
        kv.map(|kv| option("--kv-type", &kv)),
        (capture.runner.gemm.gemm != Gemm::Own && !recorded).then(|| "--gemm cublas".to_owned()),
        (*subject != Source::Auto).then(|| option("--subject", subject)),
        reference.as_ref().filter(|r| **r != Source::Live(&LLAMA)).map(|reference| option("--reference", reference)),
        map.map.as_ref().map(|path| option("--map", &path.display())),
        (!args.taps.is_empty()).then(|| option("--taps", &args.taps.join(","))),
        args.repeat.map(|runs| option("--repeat", &runs)),
        args.confirm.confirm.as_ref().map(|asked| option("--confirm", asked)),
        (capture.runner.timeout != TIMEOUT.as_secs() && !recorded)
            .then(|| option("--timeout", &capture.runner.timeout)),
        (why.why_budget != 1.0).then(|| option("--why-budget", &why.why_budget)),
        one_of("--check", check.to_possible_value()).filter(|_| *check != CheckMode::default()),
        probe_seed.map(|seed| option("--probe-seed", &seed)),
        one_of("--oracle", oracle.to_possible_value()).filter(|_| *oracle != OracleChoice::default()),
    ];
    let adapters = args.adapters.adapter.iter().map(|adapter| option("--adapter", adapter));
    let injected = faults.inject.iter().map(|i| option("--inject", i));
    let allowed = tolerance.iter().map(|t| option("--tolerance", t));
    let words = words.into_iter().flatten().chain(adapters).chain(injected).chain(allowed);
    ["qdiff run".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// The model, unless the environment names it.
pub(super) fn named(given: Option<&Path>) -> Option<String> {
    let given = given?;
    let ambient = std::env::var_os("QDIFF_MODEL").is_some_and(|m| given.as_os_str() == m);
    (!ambient).then(|| given.display().to_string())
}

/// `text` as one word of a shell.
pub(crate) fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+".contains(c);
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

/// The run of two sides that another task ran: `qdiff run` judges every stage, and looks for the cause.
pub(super) fn of_live(tokens: &TokensRequest, sides: &LiveSidesRequest, capture: CaptureRequest) -> RunRequest {
    let LiveSidesRequest { subject, reference, faults } = sides.clone();
    let (tokens, reference) = (tokens.clone(), Some(reference));
    RunRequest {
        sides: SidesRequest { tokens, subject, reference, faults, capture, ..SidesRequest::default() },
        ..RunRequest::default()
    }
}

/// The filters in force; empty if everything is selected.
pub(super) fn filters(args: &RunRequest) -> String {
    let mut words = Vec::new();
    if !args.filter.stages.is_empty() {
        words.push(format!("--stages {}", quote(&args.filter.stages.join(","))));
    }
    words.extend(args.filter.layers.iter().map(|l| format!("--layers {}", quote(l))));
    words.extend(args.filter.positions.positions.iter().map(|p| format!("--positions {}", quote(p))));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        request: RunRequest,
    }

    /// Options that change what a run finds.
    const REPEATED: [&str; 29] = [
        "-m other.gguf", "--prompt code", "--tokens 1,2", "--length 5", "--raw", "--system 'be brief'",
        "--template model", "-n 3", "--passes 4,2x1,3", "--sequences 4,2+1", "--no-kv-unified",
        "--adapter 1,2=lora.gguf", "--ranks 2", "--ubatch 4", "--kv-type f16", "--gemm cublas", "--subject cpu",
        "--reference none", "--map names.map", "--taps logits", "--repeat 2", "--confirm 3", "--timeout 7",
        "--why-budget 4", "--check probe", "--probe-seed 00000000000000ff", "--oracle cuda", "--inject rope-base@L01",
        "--tolerance logits=0.5",
    ];

    /// Others: filters, which are beside the command; what a run may take of the machine; the prompts, of which it is
    /// one.
    const LEFT_OUT: [&str; 9] =
        ["stages", "layers", "positions", "threads", "memory", "tmp", "prompts", "shard", "json_dir"];

    #[test]
    fn a_command_asks_for_the_same_again() {
        let options = Line::command();
        let mut seen: Vec<String> = LEFT_OUT.map(str::to_owned).into();
        for option in REPEATED {
            let (name, value) = option.split_once(' ').map_or((option, None), |(name, value)| (name, Some(value)));
            let words = ["run", name].into_iter().chain(value.map(|value| value.trim_matches('\'')));
            let line = Line::try_parse_from(words).unwrap_or_else(|e| panic!("{option}: {e}"));
            let told = command(&line.request, "code");
            assert!(format!("{told} ").contains(&format!(" {option} ")), "{option}: {told}");
            let named = options.get_arguments().find(|arg| {
                name == format!("--{}", arg.get_long().unwrap_or_default())
                    || name == format!("-{}", arg.get_short().unwrap_or_default())
            });
            seen.extend(named.map(|arg| arg.get_id().to_string()));
        }
        for arg in options.get_arguments() {
            assert!(seen.contains(&arg.get_id().to_string()), "{arg} is neither repeated nor left out on purpose");
        }
    }
}
