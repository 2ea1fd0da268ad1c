//! Prefill against decode: the same tokens in one batch, in parts and token by token.

use super::faults::InjectedFaults;
use super::request::{CaptureRequest, FilterRequest, RunnerRequest, TokensRequest, ToleranceRequest, UBATCH};
use super::sides::LiveSidesRequest;
use super::{Console, repeat, values};
use crate::pair::{Pair, Tokens};
use crate::report::SweepReport;
use crate::sweep::sweep as passes;
use anyhow::Result;
use clap::Args;

/// What to run in steps of which size.
#[derive(Clone, Debug, Args)]
#[command(
    mut_arg("model", |a| a.help("GGUF file, or with `--reference cpu` a folder of safetensors")),
    mut_arg("prompt", |a| a.help(super::request::TEXT))
)]
pub struct SweepRequest {
    /// Model and tokens; the decode steps become part of the tokens
    #[command(flatten)]
    pub tokens: TokensRequest,
    /// Tokens per pass, beside one pass of all tokens; 1 is token by token
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "7,1", env = "QDIFF_SIZES",
          value_parser = values::at_least_one, help_heading = "What to run")]
    pub sizes: Vec<usize>,
    #[command(flatten)]
    pub sides: LiveSidesRequest,
    #[command(flatten)]
    pub filter: FilterRequest,
    #[command(flatten)]
    pub tolerance: ToleranceRequest,
    #[command(flatten)]
    pub runner: RunnerRequest,
}

/// Runs both sides once per size, and judges each pass.
///
/// # Errors
/// Whatever keeps a side from running.
pub fn sweep(request: &SweepRequest, console: Console<'_>) -> Result<SweepReport> {
    let (subject, reference, injections) = request.sides.kinds(console)?;
    let settings = request.runner.settings()?;
    let opened = request.tokens.prompt.model.open()?;
    let mut pair = Pair::new(&opened, settings, console.progress)?;
    pair.filter = request.filter.filter(&pair.oracle.graph)?;
    pair.policy = request.tolerance.policy(&pair.oracle.graph, !injections.is_empty())?;
    let prompt = request.tokens.ready(&opened)?;
    let decode = request.tokens.decode;
    pair.filter.check(&pair.oracle.graph, prompt.tokens.len() + decode)?;
    let faults = InjectedFaults::new((opened.model.graph(), pair.settings.kv), &injections, &[])?;
    (console.begin)();
    let what = Tokens::whole(&prompt.tokens, decode);
    let decoded = pair.decode(reference, what)?;
    let tokens = [prompt.tokens, decoded].concat();
    let mut inert = faults.stages.words.clone();
    let passes = passes(&pair, (subject, reference), &tokens, &request.sizes, &faults.stages, |verdict| {
        let here = faults.inert(verdict, &pair.policy);
        inert.retain(|fault| here.contains(fault));
    })?;
    let sides = [subject.to_string(), reference.to_string()];
    let given = (faults.stages.words, inert, request.tolerance.words());
    let report = SweepReport::new((prompt.name, tokens.len()), sides, given, passes);
    let command = report.first_wrong().map(|pass| {
        let ubatch = if pass.ubatch < tokens.len() { pass.ubatch } else { UBATCH.max(tokens.len()) };
        let capture = CaptureRequest { runner: request.runner.clone(), ubatch, kv_type: None };
        let mut run = repeat::of_live(&request.tokens, &request.sides, capture);
        (run.filter, run.tolerance) = (request.filter.clone(), request.tolerance.clone());
        let words = [repeat::command(&run, &request.tokens.prompt.prompt), repeat::filters(&run)];
        words.join(" ").trim_end().to_owned()
    });
    Ok(SweepReport { command: command.unwrap_or_default(), ..report })
}
