//! Mutations: named ways for a stage to be wrong.
//!
//! A mutation rewrites one node of the graph. Run by an engine it is an
//! injected fault; evaluated on captured operands it is a hypothesis.

mod attention;
pub mod hypotheses;
mod layout;
mod logits;
mod numerics;
mod position;
mod weights;

use crate::capture::matches;
use anyhow::{Context as _, Result, bail};
use globset::{Glob, GlobMatcher};
use qdiff_engine::model::{Before, Config, Graph, Node, StageId};

/// A parameter of a mutation.
#[derive(Debug)]
pub struct Param {
    /// Name in `NAME:PARAM=VALUE`.
    pub name: &'static str,
    /// What it means, with its unit.
    pub help: &'static str,
    /// Value where none is given.
    pub default: f64,
    /// Further values that the search for a cause tries.
    pub search: &'static [f64],
}

/// A named way for a stage to be wrong.
#[derive(Debug)]
pub struct Mutation {
    /// Name, as in `--inject NAME`.
    pub name: &'static str,
    /// Stages it applies to; `*` for any.
    pub stages: &'static [&'static str],
    /// What is wrong, in one sentence, as the report tells it.
    pub story: &'static str,
    /// How to mend it.
    pub remedy: &'static str,
    /// Its parameter, if it has one.
    pub param: Option<Param>,
    /// Rewrites the node; gives false where it does not apply to it.
    pub apply: fn(&mut Node, f64, &Config) -> bool,
}

impl Mutation {
    /// Whether it can happen to a stage of this name.
    pub fn concerns(&self, stage: &str) -> bool {
        self.stages.contains(&stage) || self.stages == ["*"]
    }
}

/// Every mutation, by family.
pub fn catalogue() -> impl Iterator<Item = &'static Mutation> {
    [
        layout::MUTATIONS,
        weights::MUTATIONS,
        position::MUTATIONS,
        attention::MUTATIONS,
        numerics::MUTATIONS,
        logits::MUTATIONS,
    ]
    .into_iter()
    .flatten()
}

/// A fault to inject: `NAME[:PARAM=VALUE][@TARGET,…]`, a target being a layer
/// (`L07`), a pattern of stage ids (`L07.q_*`), or positions (`p3000..`: that
/// one and all after it). Without a layer or a pattern, in all layers.
#[derive(Debug)]
pub struct Injection {
    mutation: &'static Mutation,
    value: f64,
    targets: Vec<Target>,
    /// First position that is wrong.
    since: usize,
}

#[derive(Debug)]
enum Target {
    Layer(u16),
    Stages(GlobMatcher),
}

impl Target {
    fn parse(text: &str) -> Result<Self> {
        let number = text.trim_start_matches(['L', 'l']);
        if let Ok(layer) = number.parse() {
            return Ok(Self::Layer(layer));
        }
        let glob = Glob::new(text)
            .with_context(|| format!("`{text}` is neither a layer nor a pattern"))?;
        Ok(Self::Stages(glob.compile_matcher()))
    }

    fn covers(&self, id: StageId) -> bool {
        match self {
            Self::Layer(layer) => id.layer == Some(*layer),
            Self::Stages(pattern) => matches(pattern, id),
        }
    }
}

impl Injection {
    /// Reads an injection.
    ///
    /// # Errors
    /// An unknown name or parameter, or a target that cannot be read.
    pub fn parse(text: &str) -> Result<Self> {
        let (head, words) = text.split_once('@').unwrap_or((text, ""));
        let (mut targets, mut since) = (Vec::new(), 0);
        for word in words.split(',').filter(|_| head.len() < text.len()) {
            match word.strip_prefix('p').and_then(|w| w.strip_suffix("..")) {
                Some(position) => {
                    since = position.parse().ok().with_context(|| {
                        format!("`{word}` is not a first position such as p3000..")
                    })?;
                }
                None => targets.push(Target::parse(word)?),
            }
        }
        let (name, param) = match head.split_once(':') {
            Some((name, param)) => (name, Some(param)),
            None => (head, None),
        };
        let mutation = catalogue().find(|m| m.name == name).with_context(|| {
            let known: Vec<_> = catalogue().map(|m| m.name).collect();
            format!(
                "no mutation is called `{name}`; the mutations are: {}",
                known.join(" ")
            )
        })?;
        let mut value = mutation.param.as_ref().map_or(0.0, |p| p.default);
        if let Some(param) = param {
            let Some(known) = &mutation.param else {
                bail!("`{name}` takes no parameter");
            };
            value = param
                .split_once('=')
                .filter(|(key, _)| *key == known.name)
                .and_then(|(_, v)| v.parse().ok())
                .with_context(|| {
                    format!("`{param}` is not {}=NUMBER ({})", known.name, known.help)
                })?;
        }
        Ok(Self {
            mutation,
            value,
            targets,
            since,
        })
    }

    /// Rewrites `graph`; gives what was changed, in words.
    ///
    /// # Errors
    /// If the model has no stage or layer to inject into.
    pub fn apply(&self, graph: &mut Graph) -> Result<String> {
        let last = graph.config.n_layers as u16 - 1;
        for target in &self.targets {
            match target {
                Target::Layer(layer) if *layer > last => {
                    bail!("layer {layer} does not exist; the model has layers 0 to {last}")
                }
                _ => {}
            }
        }
        let config = graph.config.clone();
        let mut changed = 0;
        for node in &mut graph.nodes {
            let aimed = self.targets.is_empty() || self.targets.iter().any(|t| t.covers(node.id));
            let old = (self.since > 0).then(|| node.clone());
            if aimed
                && self.mutation.concerns(node.id.name)
                && (self.mutation.apply)(node, self.value, &config)
            {
                changed += 1;
                node.before = old.map(|node| Before {
                    since: self.since,
                    node: Box::new(node),
                });
            }
        }
        if changed == 0 {
            bail!(
                "`{}` applies to {}, of which this model has none there",
                self.mutation.name,
                self.mutation.stages.join(" ")
            );
        }
        let value = match &self.mutation.param {
            Some(p) => format!(":{}={}", p.name, self.value),
            None => String::new(),
        };
        let from = match self.since {
            0 => String::new(),
            position => format!(" from position {position} on"),
        };
        Ok(format!(
            "{}{value} in {changed} stages{from}",
            self.mutation.name
        ))
    }
}
