//! What a verdict takes, by the number of tokens and by how linear layers are checked, beside what both runs take.

use super::{BenchRequest, median};
use crate::pair::{Pair, Settings, Tokens};
use crate::progress::{Progress, silent};
use crate::report::bench::{VerdictBench, VerdictRow};
use crate::runners::{CPU, Faults, LLAMA};
use crate::verdict::{CheckMode, judge};
use anyhow::{Result, ensure};
use std::time::Instant;

/// Prompt lengths, each twice the one before.
const LENGTHS: [usize; 5] = [64, 128, 256, 512, 1024];

/// Above it, everything computed takes minutes.
const FULL: usize = 512;

pub(super) fn measure(request: &BenchRequest, progress: Progress<'_>) -> Result<VerdictBench> {
    let threads = request.threads.apply()?;
    let opened = request.prompt.model.open()?;
    let config = &opened.model.graph().config;
    let lengths = LENGTHS.iter().filter(|length| request.prompt.length.is_none_or(|most| **length <= most));
    let mut rows = Vec::new();
    for (done, &length) in lengths.enumerate() {
        progress("measuring verdicts", done, LENGTHS.len());
        let prompt = request.cycled(&opened, length)?;
        let mut pair = Pair::new(&opened, Settings { threads, ..Settings::default() }, &silent)?;
        let tokens = Tokens { prompt: &prompt, ubatch: length, decode: 0, forced: None };
        let (mut reference, mut subject) = (Vec::new(), Vec::new());
        let (mut full, mut probed) = (Vec::new(), Vec::new());
        for _ in 0..request.rounds {
            let theirs = pair.run(&LLAMA, tokens, Faults::default())?;
            let ours = pair.run(&CPU, tokens, Faults::default())?;
            reference.push(theirs.seconds);
            subject.push(ours.seconds);
            for (mode, seconds) in [(CheckMode::Full, &mut full), (CheckMode::Probe, &mut probed)] {
                if mode == CheckMode::Full && length > FULL {
                    continue;
                }
                pair.policy.mode = mode;
                let start = Instant::now();
                let verdict =
                    judge(&pair.oracle, ours.side(), Some(theirs.side()), &pair.filter, &pair.policy, &silent)?;
                seconds.push(start.elapsed().as_secs_f64());
                ensure!(!verdict.diverged() && verdict.coverage.complete(), "the verdict that is timed is no match");
            }
        }
        rows.push(VerdictRow {
            tokens: length,
            reference: median(reference),
            subject: median(subject),
            full: (!full.is_empty()).then(|| median(full)),
            probed: median(probed),
        });
    }
    progress("measuring verdicts", 1, 1);
    Ok(VerdictBench { model: config.name.clone(), threads, rounds: request.rounds, verdicts: rows })
}
