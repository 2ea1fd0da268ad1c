//! Mutations: named ways for a stage to be wrong.
//!
//! A mutation rewrites one node of the graph. Run by an engine it is an
//! injected fault; evaluated on captured operands it is a hypothesis.

mod attention;
pub mod hypotheses;
mod layout;
mod logits;
mod position;
mod weights;

use anyhow::{Context as _, Result, bail};
use qdiff_engine::model::{Graph, Node};

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
    /// Stages it applies to.
    pub stages: &'static [&'static str],
    /// What is wrong, in one sentence, as the report tells it.
    pub story: &'static str,
    /// How to mend it.
    pub remedy: &'static str,
    /// Its parameter, if it has one.
    pub param: Option<Param>,
    /// Rewrites the node; gives false where it does not apply to it.
    pub apply: fn(&mut Node, f64) -> bool,
}

/// Every mutation, by family.
pub fn catalogue() -> impl Iterator<Item = &'static Mutation> {
    [
        layout::MUTATIONS,
        weights::MUTATIONS,
        position::MUTATIONS,
        attention::MUTATIONS,
        logits::MUTATIONS,
    ]
    .into_iter()
    .flatten()
}

/// A fault to inject: `NAME[:PARAM=VALUE][@L07[,L11]]`.
#[derive(Debug)]
pub struct Injection {
    mutation: &'static Mutation,
    value: f64,
    layers: Option<Vec<u16>>,
}

impl Injection {
    /// Reads an injection.
    ///
    /// # Errors
    /// An unknown name or parameter, or a layer that cannot be read.
    pub fn parse(text: &str) -> Result<Self> {
        let (head, layers) = match text.split_once('@') {
            Some((head, layers)) => (head, Some(layers)),
            None => (text, None),
        };
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
        let layers = layers
            .map(|list| {
                list.split(',')
                    .map(|l| l.trim_start_matches(['L', 'l']).parse())
                    .collect::<Result<Vec<u16>, _>>()
            })
            .transpose()
            .with_context(|| {
                format!("the layers of `{text}` are not a list such as @L07 or @L0,L23")
            })?;
        Ok(Self {
            mutation,
            value,
            layers,
        })
    }

    /// Rewrites `graph`; gives what was changed, in words.
    ///
    /// # Errors
    /// If the model has no stage or layer to inject into.
    pub fn apply(&self, graph: &mut Graph) -> Result<String> {
        let last = graph.config.n_layers as u16 - 1;
        if let Some(layer) = self.layers.iter().flatten().find(|&&l| l > last) {
            bail!("layer {layer} does not exist; the model has layers 0 to {last}");
        }
        let mut changed = 0;
        for node in &mut graph.nodes {
            let layer_fits = match (&self.layers, node.id.layer) {
                (None, _) => true,
                (Some(layers), Some(layer)) => layers.contains(&layer),
                (Some(_), None) => false,
            };
            if layer_fits
                && self.mutation.stages.contains(&node.id.name)
                && (self.mutation.apply)(node, self.value)
            {
                changed += 1;
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
        Ok(format!("{}{value} in {changed} stages", self.mutation.name))
    }
}
