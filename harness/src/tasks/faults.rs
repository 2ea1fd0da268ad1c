//! The faults that `--inject` puts into the subject, by the part that has them.

use crate::capture::Filter;
use crate::mutations::{FaultSite, Injection, Mutation};
use crate::pair::{Pair, Tokens};
use crate::runners::{Faults, RunnerKind, Source};
use crate::verdict::{Policy, StageResult, Status, Verdict, judge};
use anyhow::{Result, bail};
use qdiff_engine::model::{Graph, StageId};
use qdiff_engine::quant::KvType;

/// Faults of a subject.
#[derive(Default)]
pub(super) struct InjectedFaults {
    /// Faults of its stages.
    pub(super) stages: Faults,
    /// The stages that each of these is in.
    places: Vec<Vec<StageId>>,
    /// Faults of the tokenizer.
    pub(super) tokenizer: Option<&'static Mutation>,
    /// Faults of the sampler.
    pub(super) samplers: Vec<&'static Mutation>,
    /// Faults of the end of a text.
    pub(super) ends: Option<&'static Mutation>,
}

/// Reads what `--inject` was given.
pub(super) fn read(given: &[String]) -> Result<Vec<Injection>> {
    given.iter().map(|text| Injection::parse(text)).collect()
}

/// Whether they ask for an engine that interprets a graph of faults; tokenizer and samplers go with every engine.
///
/// # Errors
/// A subject that can take none of them.
pub(super) fn rewriting(injections: &[Injection], subject: &Source) -> Result<bool> {
    let rewriting = injections.iter().any(|i| i.mutation.fits.is_some());
    if rewriting || (!injections.is_empty() && matches!(subject, Source::Recorded(_))) {
        subject.check_faults()?;
    }
    Ok(rewriting)
}

impl InjectedFaults {
    /// The faults to inject into the engine's graph, with KV caches of these types: of stages, and of those `parts` that the command runs.
    ///
    /// # Errors
    /// A fault that applies nowhere in the model, or of a part that is not run; two of the tokenizer, or of what ends a
    /// text.
    pub(super) fn new((graph, kv): (&Graph, KvType), injections: &[Injection], parts: &[FaultSite]) -> Result<Self> {
        let mut injected = Self::default();
        for injection in injections {
            let mutation = injection.mutation;
            match mutation.site() {
                part @ FaultSite::Tokenizer if parts.contains(&part) => {
                    only(&mut injected.tokenizer, mutation, "what the whole prompt becomes")?;
                }
                part @ FaultSite::Ends if parts.contains(&part) => {
                    only(&mut injected.ends, mutation, "all tokens that end a text")?;
                }
                part @ FaultSite::Samplers if parts.contains(&part) => injected.samplers.push(mutation),
                _ => {
                    let faulty = injected.stages.graph.get_or_insert_with(|| graph.clone());
                    let (words, places) = injection.apply(faulty, kv)?;
                    injected.stages.words.push(words);
                    injected.places.push(places);
                }
            }
        }
        Ok(injected)
    }

    /// Those of stages that changed nothing by more than rounding may: all that they are in was judged on its own, by its
    /// bounds, and is right. A stage that was not captured is judged only within a segment: that shows neither.
    pub(super) fn inert(&self, verdict: &Verdict, policy: &Policy) -> Vec<String> {
        let right = |id: &StageId| {
            let stage = verdict.stages.iter().find(|s| s.id == *id);
            let computed = |s: &StageResult| s.subject.as_ref().is_none_or(|l| l.probed == 0);
            let captured = |s: &StageResult| !matches!(s.status, Status::Missing | Status::Covered);
            let judged = stage.is_some_and(|s| captured(s) && !s.origin && computed(s));
            judged && policy.rule(*id).is_none()
        };
        let faults = self.stages.words.iter().zip(&self.places);
        faults.filter(|(_, places)| places.iter().all(right)).map(|(words, _)| words.clone()).collect()
    }

    /// The same of a command that does not judge what they are in: `kind` runs once more on `tokens`, and that is judged.
    ///
    /// # Errors
    /// As [`Pair::run`] and [`judge`].
    pub(super) fn inert_on(&self, pair: &mut Pair<'_>, kind: &RunnerKind, tokens: Tokens<'_>) -> Result<Vec<String>> {
        if self.places.is_empty() {
            return Ok(Vec::new());
        }
        let stages: Vec<String> = self.places.iter().flatten().map(ToString::to_string).collect();
        let filter = Filter::new(&pair.oracle.graph, &stages, None, None)?;
        let asked = std::mem::replace(&mut pair.filter, filter);
        let policy = Policy::default();
        let ran = pair.run(kind, tokens, self.stages.clone());
        let verdict = ran.and_then(|ran| {
            let verdict = judge(&pair.oracle, ran.side(), None, &pair.filter, &policy, pair.progress)?;
            ran.capture.store.trouble().map(|()| verdict)
        });
        pair.filter = asked;
        Ok(self.inert(&verdict?, &policy))
    }

    /// What no runner knows of, in words.
    pub(super) fn beside(&self) -> impl Iterator<Item = String> {
        let of = |place: &'static str| move |m: &&Mutation| format!("{} in the {place}", m.name);
        let tokenizer = self.tokenizer.iter().map(of("tokenizer"));
        let samplers = self.samplers.iter().map(of("samplers"));
        tokenizer.chain(samplers).chain(self.ends.iter().map(of("end of generation")))
    }
}

/// Puts a mutation where there can be one alone, for each says all of `what`.
fn only(place: &mut Option<&'static Mutation>, mutation: &'static Mutation, what: &str) -> Result<()> {
    match place.replace(mutation) {
        Some(other) => {
            bail!("`{}` and `{}` cannot be injected together: each says {what}", other.name, mutation.name)
        }
        None => Ok(()),
    }
}
