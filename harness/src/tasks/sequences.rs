//! Several sequences in one run: `run --sequences`. Each is judged as if it had run alone, and has a report.

use super::run::{Judged, Runs};
use super::sides::Input;
use crate::borne::{borne, explain, of_run};
use crate::capture::{Passes, Plan, Step};
use crate::memory;
use crate::prompts::Ready;
use crate::report::{Prefix, Report, SequenceInfo};
use crate::runners::{EngineTrouble, Tokens};
use crate::slots::SlotsCheck;
use crate::tokens;
use crate::verdict::{Race, Status, Verdict};
use anyhow::{Result, bail};
use qdiff_engine::model::{Graph, Node};
use std::time::Instant;

impl Runs<'_> {
    /// Runs both sides on all sequences, and judges each.
    ///
    /// # Errors
    /// Whatever keeps a side from running, or a stage from being judged.
    pub(super) fn sequences(&self, ready: &Ready, plan: &Plan, given: &str) -> Result<Vec<Report>> {
        let judged = self.sequences_beside(ready, plan, given, false)?;
        Ok(judged.into_iter().map(|(report, _)| report).collect())
    }

    /// The same; with `alone`, the subject also runs each of them alone, and the first different bits are given.
    ///
    /// # Errors
    /// As [`Self::sequences`].
    pub(super) fn sequences_beside(
        &self, ready: &Ready, plan: &Plan, given: &str, alone: bool,
    ) -> Result<Vec<(Report, Option<Race>)>> {
        let pair = &self.pair;
        pair.filter.check(&pair.oracle.graph, plan.tokens())?;
        let tokenizing = Instant::now();
        let same_tokens = tokens::check(pair.opened, ready, None)?;
        let tokenizing = tokenizing.elapsed().as_secs_f64();
        memory::begin();
        let (subjects, references, said) = self.sides.record_sequences(pair, plan, &ready.tokens)?;
        let slots = SlotsCheck::of(plan, &ready.tokens, &said);
        let borne = match &slots {
            Some(check) if check.diverged() => borne(&pair.oracle, (plan, &ready.tokens), &said, &subjects),
            _ => Vec::new(),
        };
        let references = references.into_iter().flatten().map(Some).chain(std::iter::repeat_with(|| None));
        let (mut judged, mut others) = (Vec::new(), Vec::new());
        for (subject, reference) in subjects.into_iter().zip(references) {
            let judging = Instant::now();
            let mut diagnosis = pair.judge(&subject, reference.as_ref())?;
            if let Some(of_run) = borne.get(judged.len()) {
                explain(&pair.oracle.graph, &mut diagnosis, of_run);
            }
            judged.push((subject, diagnosis));
            others.push((reference, judging.elapsed().as_secs_f64()));
        }
        pair.among_sequences(&mut judged);
        let at_slots = borne.iter().any(|stages| of_run(stages).holds());
        let elsewhere =
            self.request.confirm.confirm_plan(&self.sides, pair, (plan, &ready.tokens), (&mut judged, at_slots))?;
        let right = judged.iter().all(|(_, diagnosis)| values_are_right(&pair.oracle.graph, &diagnosis.verdict));
        let (whose, mut reports) = (plan.whose(), Vec::new());
        for (number, ((subject, diagnosis), (reference, judging))) in judged.into_iter().zip(others).enumerate() {
            let steps = &subject.capture.steps;
            let own = whose[number];
            let info = SequenceInfo {
                number: own.sequence,
                rollbacks: own.rollbacks,
                of: plan.sequences(),
                plan: plan.to_string(),
                prefix: prefix(steps, number as u32),
            };
            let tokens: Vec<u32> = steps.iter().flat_map(|step| step.tokens.iter().copied()).collect();
            let lengths: Vec<usize> = steps.iter().map(|step| step.tokens.len()).collect();
            let other = match self.sides.chosen.live_subject().filter(|_| alone) {
                Some(kind) => {
                    let passes = Passes::Lengths(&lengths);
                    let by_itself = Tokens { prompt: &tokens, passes, decode: 0, forced: None };
                    let by_itself = self.sides.elsewhere(pair, kind, by_itself).map_err(EngineTrouble::of)?;
                    Race::between(&pair.oracle.graph, &by_itself.capture, &subject.capture, 2)
                }
                None => None,
            };
            let name = format!("{}, {own}", ready.name);
            let input = Ready { name, text: String::new(), message: None, tokens };
            let stages_are_wrong = diagnosis.verdict.stages.iter().any(|stage| stage.origin);
            let judged = Judged {
                same_tokens: same_tokens.clone(),
                tokenizing,
                reference,
                diagnosis,
                repeated: None,
                judging,
                besides: 0.0,
                sequence: Some(info),
                slots: slots.as_ref().map(|slots| {
                    let values = borne.get(number).map(of_run);
                    let concerning = slots.concerning(plan, own, stages_are_wrong);
                    SlotsCheck { values, elsewhere: elsewhere.clone(), ..concerning }.beside(right)
                }),
            };
            let length = input.tokens.len();
            reports.push((self.report(&Input::new(input, 0, length), given, subject, judged), other));
        }
        if reports.is_empty() {
            bail!("--sequences names no sequence");
        }
        Ok(reports)
    }
}

/// Whether every stage was judged and is right, and every cache alone.
fn values_are_right(graph: &Graph, verdict: &Verdict) -> bool {
    let caches = graph.nodes.iter().filter(|node| node.op.has_state());
    let right = |node: &Node| {
        let stage = verdict.stages.iter().find(|stage| stage.id == node.id);
        stage.is_some_and(|stage| matches!(stage.status, Status::Match | Status::Alone))
    };
    let coverage = &verdict.coverage;
    coverage.judged == coverage.asked
        && !verdict.stages.iter().any(|stage| stage.origin)
        && caches.into_iter().all(right)
}

/// What the run of this number has from another one.
fn prefix(steps: &[Step], number: u32) -> Option<Prefix> {
    let of_other = || steps.iter().take_while(|step| step.run != number);
    let last = of_other().last()?;
    Some(Prefix { whose: last.whose, tokens: of_other().map(|step| step.tokens.len()).sum() })
}
