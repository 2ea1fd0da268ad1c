//! Plants, diagnoses, and holds the diagnosis against what was planted.

use super::source::{FaultSource, Plant, ROUND_TRIPS};
use super::{Case, Clean, Graded, Group, PairCase, Sampling, Worth};
use anyhow::{Context as _, Result};
use qdiff::capture::Passes;
use qdiff::diagnose::{Diagnosis, Finding, Holds, Trial};
use qdiff::loaded::LoadedModel;
use qdiff::mutations::{CauseId, Explains};
use qdiff::number::Real;
use qdiff::pair::{Pair, Recording, Settings};
use qdiff::progress::silent;
use qdiff::runners::{CPU, Faults, LLAMA, Tokens};
use qdiff::tasks::{Order, OtherTokens};
use qdiff::verdict::{CheckMode, effect};
use qdiff_engine::model::{Config, Node, Role, StageId};
use qdiff_engine::ops::Op;
use qdiff_engine::quant::KvType;
use std::time::Instant;

/// Magnitudes that graded faults are injected at, the largest first.
const MAGNITUDES: [f64; 8] = [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7];

/// Seconds of a core that this process took so far; 0 where the system does not say.
fn core() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program is in parentheses and may hold anything; the 12th field after it counts hundredths.
    let ticks = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(11)?.parse::<u64>().ok());
    ticks.unwrap_or(0) as f64 / 100.0
}

/// The run of other tokens that causes are confirmed on, and the one that rules left open are held against, as `qdiff run` does;
/// and those that causes are graded on.
const CONFIRMS: u16 = 1;
const NARROWS: u16 = 4;
const GRADES: [u16; 2] = [2, 3];

/// A model with the tokens that it is run on, and the reference's run.
pub struct ScoreRun<'a> {
    /// What the model is, in a few words.
    pub name: String,
    pair: Pair<'a>,
    prompt: Vec<u32>,
    decode: usize,
    reference: Recording,
}

impl<'a> ScoreRun<'a> {
    /// Runs llama.cpp on `prompt` and `decode` steps more, with so many threads and its caches in `kv`.
    ///
    /// # Errors
    /// If the model cannot be read on either side, or llama.cpp fails.
    pub fn new(
        name: String, opened: &'a LoadedModel, prompt: &[u32], decode: usize, (threads, kv): (usize, KvType),
    ) -> Result<Self> {
        let pair = Pair::new(opened, Settings { threads, kv, ..Settings::default() }, &silent)?;
        let tokens = Tokens::whole(prompt, decode);
        let reference = pair.run(&LLAMA, tokens, Faults::default())?;
        Ok(Self { name, pair, prompt: prompt.to_vec(), decode, reference })
    }

    /// The same with linear layers checked so.
    pub fn checked(mut self, mode: CheckMode) -> Self {
        self.pair.policy.mode = mode;
        self
    }

    fn tokens(&self) -> Tokens<'_> {
        Tokens {
            prompt: &self.prompt,
            passes: Passes::Of(self.prompt.len()),
            decode: self.decode,
            forced: Some(&self.reference.fed),
        }
    }

    /// What a subject that carries `plants` gives.
    fn record(&self, source: &FaultSource, plants: &[Plant]) -> Result<Recording> {
        let mut runner = (source.subject)(self.pair.opened, plants, self.pair.room(self.tokens()))?;
        self.pair.record(runner.as_mut(), self.tokens())
    }

    /// What it gives on other tokens: those of run `number`.
    fn elsewhere(&self, source: &FaultSource, plants: &[Plant], number: u16) -> Result<Recording> {
        let config = &self.pair.opened.model.graph().config;
        let ids = self.pair.opened.n_tokens().min(config.n_vocab);
        let first = (self.prompt.len(), self.decode);
        let OtherTokens { prompt, passes, decoded } =
            OtherTokens::new(&self.prompt, first, (config.context, ids), (number, Order::SmallFirst, None))
                .context("the context has no room for other tokens")?;
        let (passes, decode) = (Passes::Lengths(&passes), decoded.len());
        let tokens = Tokens { prompt: &prompt, passes, decode, forced: Some(&decoded) };
        let mut runner = (source.subject)(self.pair.opened, plants, self.pair.room(tokens))?;
        self.pair.record(runner.as_mut(), tokens)
    }

    /// The diagnosis of a subject that carries `plants`, as `qdiff run` tells it: with its causes tried on one other run.
    /// Also what it gave, and the seconds that the diagnosis took, of a clock and of a core.
    fn diagnose(&self, source: &FaultSource, plants: &[Plant]) -> Result<(Diagnosis, Recording, [f64; 2])> {
        let subject = self.record(source, plants)?;
        let (start, core) = (Instant::now(), core());
        let mut diagnosis = self.pair.judge(&subject, Some(&self.reference))?;
        if diagnosis.tells_causes() {
            let other = self.elsewhere(source, plants, CONFIRMS)?;
            self.pair.confirm(&subject, &[other], &mut diagnosis);
            if diagnosis.leaves_rules_open() {
                self.pair.narrow(&subject, &self.elsewhere(source, plants, NARROWS)?, &mut diagnosis);
            }
            self.pair.undecided(&subject, &mut diagnosis);
        }
        Ok((diagnosis, subject, [start.elapsed().as_secs_f64(), self::core() - core]))
    }

    /// What the causes of a diagnosis are worth, one of each finding: held against runs that they were not tried on.
    fn worths(
        &self, source: &FaultSource, plants: &[Plant], (subject, told): (&Recording, &Diagnosis),
    ) -> Result<Vec<Worth>> {
        if !told.tells_causes() {
            return Ok(vec![Worth::Location; told.findings.len()]);
        }
        let others = GRADES.map(|number| self.elsewhere(source, plants, number));
        let others: Vec<Recording> = others.into_iter().collect::<Result<_>>()?;
        let mut graded = told.clone();
        self.pair.confirm(subject, &others, &mut graded);
        Ok(told.findings.iter().zip(&graded.findings).map(|(told, graded)| worth(told, graded)).collect())
    }

    /// One fault. `clean` is what the same engine gives without it, once that is known.
    fn case(&self, source: &FaultSource, plant: &Plant, clean: &mut Option<Recording>) -> Result<Case> {
        let plants = std::slice::from_ref(plant);
        let (diagnosis, subject, [seconds, core]) = self.diagnose(source, plants)?;
        let worths = self.worths(source, plants, (&subject, &diagnosis))?;
        let first = diagnosis.findings.first();
        let others = diagnosis.findings.len().saturating_sub(1);
        let effect = if first.is_none() {
            let clean = match clean {
                Some(clean) => clean,
                None => clean.insert(self.record(source, &[])?),
            };
            effect(plant.stage, &self.pair.oracle, &self.pair.filter, subject.side(), clean.side()).map(Real)
        } else {
            None
        };
        // One false sentence on the screen is one too many, wherever it stands.
        let worth = if worths.contains(&Worth::False) { Some(Worth::False) } else { worths.first().copied() };
        let withdrawn = diagnosis.findings.iter().find_map(|f| match &f.trial {
            Some(Trial::Withdrawn { told, because, .. }) => Some(format!("{told}: {because}")),
            _ => None,
        });
        let shown = worths.iter().position(|w| Some(*w) == worth).map(|i| &diagnosis.findings[i]);
        Ok(Case {
            model: self.name.clone(),
            fault: plant.cause.clone(),
            stage: plant.stage,
            found: first.map(|f| f.id),
            cause: first.and_then(|f| f.cause.as_ref()).map(|c| c.name.clone()),
            others,
            planted: source.unlisted.map(|what| what(plant.fault).to_owned()),
            told: shown.map(told),
            worth,
            named: None,
            withdrawn,
            detected: first.is_some(),
            stage_right: (others == 0 || source.several) && first.is_some_and(|f| f.id == plant.stage),
            effect,
            seconds,
            core,
        })
    }

    fn pair_case(&self, source: &FaultSource, plants: &[Plant; 2]) -> Result<PairCase> {
        let (diagnosis, subject, _) = self.diagnose(source, plants)?;
        let worths = self.worths(source, plants, (&subject, &diagnosis))?;
        let mut planted: Vec<StageId> = plants.iter().map(|p| p.stage).collect();
        let mut found: Vec<StageId> = diagnosis.findings.iter().map(|f| f.id).collect();
        planted.sort();
        found.sort();
        let cause = |f: &Finding| told(f);
        let right = |p: &Plant| {
            diagnosis.findings.iter().zip(&worths).any(|(f, worth)| f.id == p.stage && *worth == Worth::Right)
        };
        let stages = diagnosis.verdict.stages.iter();
        let unfound = stages.filter(|s| planted.contains(&s.id) && !found.contains(&s.id));
        Ok(PairCase {
            model: self.name.clone(),
            unfound: unfound.map(|s| (s.id.to_string(), s.status)).collect(),
            faults: plants.clone().map(|p| (p.cause.to_string(), p.stage.to_string())),
            found: diagnosis.findings.iter().map(|f| (f.id.to_string(), cause(f))).collect(),
            stages_right: planted == found,
            causes_right: plants.iter().all(right),
        })
    }

    /// Faults of one source, `only` those of these names if there are any: one by one, then the pairs.
    ///
    /// # Errors
    /// If a subject cannot be run.
    pub fn group(
        &self, source: &FaultSource, sampling: Sampling, wanted: impl Fn(&Plant, &Node) -> bool, only: &[String],
        progress: &dyn Fn(&str, usize, usize),
    ) -> Result<Group> {
        let graph = self.pair.opened.model.graph();
        let mut plants = (source.plants)(graph, &self.pair.opened.model)?;
        plants.retain(|p| graph.index(p.stage).is_some_and(|i| wanted(p, &graph.nodes[i])));
        // Each in the layer that it has among all.
        let mut plants = sampling.choose(&plants, graph);
        plants.retain(|p| only.is_empty() || only.contains(&p.cause.mutation));
        let mut clean = None;
        let mut group = Group {
            source: source.name.to_owned(),
            independent: source.independent,
            unlisted: source.unlisted.is_some(),
            cases: Vec::with_capacity(plants.len()),
            pairs: Vec::new(),
        };
        let sampling = Sampling { pairs: if source.several { 0 } else { sampling.pairs }, ..sampling };
        let total = plants.len() + sampling.pairs;
        for (done, plant) in plants.iter().enumerate() {
            progress(&format!("{}@{}", plant.cause.mutation, plant.stage), done, total);
            group.cases.push(self.case(source, plant, &mut clean)?);
        }
        // A pair of which one is inert is no pair.
        let strong: Vec<Plant> =
            plants.into_iter().zip(&group.cases).filter(|(_, c)| c.detected).map(|(p, _)| p).collect();
        let singles = group.cases.len();
        for (done, pair) in sampling.pairs(&strong).into_iter().enumerate() {
            let what = format!("{} and {}", pair[0].cause.mutation, pair[1].cause.mutation);
            progress(&what, singles + done, total);
            group.pairs.push(self.pair_case(source, &pair)?);
        }
        Ok(group)
    }

    /// Runs without a fault, with the prompt in parts of each of these sizes.
    ///
    /// # Errors
    /// If the engine cannot be run.
    pub fn clean(&self, ubatches: &[usize], clean: &mut Clean) -> Result<()> {
        for &ubatch in ubatches {
            let tokens = Tokens { passes: Passes::Of(ubatch), ..self.tokens() };
            let reference = self.pair.run(&LLAMA, tokens, Faults::default())?;
            let subject = self.pair.run(&CPU, tokens, Faults::default())?;
            let diagnosis = self.pair.judge(&subject, Some(&reference))?;
            clean.runs += 1;
            let disputed = diagnosis.verdict.disputed().next().map(|s| s.id);
            let first = diagnosis.findings.first().map(|f| f.id).or(disputed);
            if let Some(id) = first {
                let (name, n, Settings { threads, kv, .. }) = (&self.name, self.prompt.len(), &self.pair.settings);
                let what = format!("{name}, {n} tokens in parts of {ubatch}, {threads} threads, cache in {kv}");
                clean.alarms.push((what, id.to_string()));
            }
        }
        Ok(())
    }

    /// The smallest magnitude at which graded faults are found and named.
    ///
    /// # Errors
    /// If a subject cannot be run.
    pub fn graded(&self) -> Result<Vec<Graded>> {
        type Place = fn(&Node) -> bool;
        type Value = fn(&Config, f64) -> f64;
        let config = &self.pair.oracle.graph.config;
        let faults: [(&str, &str, Place, Value); 5] = [
            ("scaled", "by", |n| n.role == Role::Up, |_, m| 1.0 + m),
            ("offset", "by", |n| n.role == Role::AttnInput, |_, m| m),
            ("rms-eps-wrong", "eps", |n| n.role == Role::FfnInput, |c, m| c.rms_eps + m),
            (
                "rope-base",
                "base",
                |n| matches!((&n.op, n.role), (Op::Rope(_), Role::Query)),
                |c, m| c.rope_base * (1.0 + m),
            ),
            (
                "attn-scale-wrong",
                "scale",
                |n| matches!(n.op, Op::AttnWeights(_)),
                |c, m| 1.0 / (c.head_dim as f64).sqrt() * (1.0 + m),
            ),
        ];
        let layer = Some(config.n_layers as u16 / 2);
        let mut graded = Vec::new();
        for (mutation, parameter, place, value) in faults {
            let mut nodes = self.pair.oracle.graph.nodes.iter().filter(|n| n.id.layer == layer);
            let Some(stage) = nodes.find(|n| place(n)).map(|n| n.id) else {
                continue;
            };
            let (mut found, mut cause) = (None, None);
            for m in MAGNITUDES {
                let parameters = vec![(parameter.to_owned(), value(config, m))];
                let id = CauseId { mutation: mutation.to_owned(), parameters, since: None };
                let plant = Plant { fault: 0, cause: id, stage, of_format: false };
                let (diagnosis, ..) = self.diagnose(&ROUND_TRIPS, std::slice::from_ref(&plant))?;
                let Some(first) = diagnosis.findings.first().filter(|f| f.id == stage) else {
                    break;
                };
                found = Some(Real(m));
                if first.cause.as_ref().is_some_and(|c| c.name.mutation == mutation) {
                    cause = Some(Real(m));
                }
            }
            graded.push(Graded { fault: mutation.to_owned(), stage, found, named: cause });
        }
        Ok(graded)
    }
}

/// The reported cause of a finding, with its name in the catalogue if it has one; or how the error looks.
fn told(finding: &Finding) -> String {
    finding
        .told()
        .into_iter()
        .chain([finding.shape.clone()])
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// The worth of a finding's report, which is `graded` on other runs.
fn worth(told: &Finding, graded: &Finding) -> Worth {
    // The sizes of errors are no values, and neither is the space that they lie in.
    let sizes = match &told.solution {
        Some(solution) => !solution.gives_values(),
        None => told.cause.as_ref().is_some_and(|c| c.kind == Explains::Rounding),
    };
    let tells = told.solution.is_some() || told.cause.as_ref().is_some_and(|c| c.kind != Explains::Place);
    let partly = told.solution.is_none() && told.cause.as_ref().is_some_and(|c| !c.whole);
    let narrowed = told.trial.as_ref().and_then(|trial| match trial {
        Trial::Narrowed { holds, .. } => Some(holds),
        _ => None,
    });
    // A solution has its own; for a fault of the catalogue it is beside.
    let holds = told.solution.as_ref().map(|solution| &solution.holds).or(narrowed);
    match graded.trial.as_ref().filter(|_| tells) {
        Some(Trial::Confirmed { .. }) if sizes => Worth::Consistent,
        Some(Trial::Confirmed { .. }) => Worth::Right,
        Some(Trial::Narrowed { elements, holds: there, .. }) => match (holds, there) {
            (Some(Holds::Some { .. }), _) => Worth::Consistent,
            (Some(under @ Holds::Under { .. }), Holds::Under { conditions, .. })
                if *elements > 0
                    && under.told().first().is_some_and(|when| conditions.iter().any(|other| other.alike(when))) =>
            {
                Worth::Right
            }
            (Some(under @ Holds::Under { .. }), Holds::Under { conditions, .. })
                if under.told().into_iter().any(|when| conditions.iter().any(|other| other.alike(when))) =>
            {
                if *elements > 0 { Worth::Consistent } else { Worth::Location }
            }
            (None, _) if partly => Worth::Consistent,
            _ => Worth::False,
        },
        Some(Trial::Withdrawn { .. }) => Worth::False,
        Some(Trial::Silent { .. } | Trial::Untried { .. }) | None => Worth::Location,
    }
}
