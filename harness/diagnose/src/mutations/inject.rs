//! Faults as they are written on the command line.

use super::{CauseId, FaultSite, Mutation, catalogue, find};
use crate::capture::matches;
use crate::nearest::hint;
use crate::number::counted;
use anyhow::{Context as _, Result, bail};
use globset::{Glob, GlobMatcher};
use qdiff_engine::model::{Before, Graph, Node, StageId, of_rank};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::quant::KvType;

/// A fault to inject: `NAME[:PARAM=VALUE,…][@TARGET,…]`, a target being a
/// layer (`L07`), a pattern of stage ids (`L07.q_*`) or of the tensors they read
/// (`blk.7.attn_q.weight`), or positions (`p3000..`: that one and all after it). Without a layer or a pattern, in all layers.
pub struct Injection {
    /// What is injected.
    pub mutation: &'static Mutation,
    /// The values of its parameters.
    pub values: Vec<f64>,
    /// With the words that name them.
    targets: Vec<(String, Target)>,
    /// First position that is wrong.
    since: usize,
}

enum Target {
    Layer(Option<u16>, u16),
    Rank(u16),
    Stages(GlobMatcher),
}

impl Target {
    fn parse(text: &str) -> Result<Self> {
        let (rank, rest) = of_rank(text);
        if let Ok(layer) = rest.trim_start_matches(['L', 'l']).parse() {
            return Ok(Self::Layer(rank, layer));
        }
        if let Some(rank) = text.strip_prefix('r').and_then(|rank| rank.parse().ok()) {
            return Ok(Self::Rank(rank));
        }
        let glob = Glob::new(text).with_context(|| format!("`{text}` is neither a layer nor a pattern"))?;
        Ok(Self::Stages(glob.compile_matcher()))
    }

    fn covers(&self, node: &Node) -> bool {
        match self {
            Self::Layer(rank, layer) => node.id.layer == Some(*layer) && rank.is_none_or(|r| node.id.rank == Some(r)),
            Self::Rank(rank) => node.id.rank == Some(*rank),
            Self::Stages(pattern) => {
                matches(pattern, node.id) || node.weights.iter().any(|w| pattern.is_match(&w.name))
            }
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
                    let wrong = || format!("`{word}` is not a first position such as p3000..");
                    since = position.parse().ok().with_context(wrong)?;
                }
                None => targets.push((word.to_owned(), Target::parse(word)?)),
            }
        }
        let (name, params) = head.split_once(':').map_or((head, None), |(name, params)| (name, Some(params)));
        let mutation = find(name).with_context(|| {
            let known = catalogue().filter(|m| m.site() != FaultSite::Elsewhere).map(|m| m.name);
            format!("no mutation is called `{name}`{}", hint(name, known, "`qdiff mutations` lists them"))
        })?;
        match mutation.site() {
            FaultSite::Elsewhere => {
                bail!("`{name}` cannot be injected; `qdiff mutations show {name}` says how it shows")
            }
            FaultSite::Tokenizer | FaultSite::Samplers | FaultSite::Ends if head.len() < text.len() => {
                bail!("`{name}` is the fault of no stage; leave `@{words}` out")
            }
            _ => {}
        }
        let mut values = mutation.defaults();
        for param in params.into_iter().flat_map(|p| p.split(',')) {
            if mutation.params.is_empty() {
                bail!("`{name}` takes no parameter");
            }
            let parsed = param.split_once('=').and_then(|(key, value)| {
                let at = mutation.params.iter().position(|p| p.name == key)?;
                Some((at, value.parse().ok()?))
            });
            let Some((at, value)) = parsed else {
                let known: Vec<String> =
                    mutation.params.iter().map(|p| format!("{}=NUMBER ({})", p.name, p.help)).collect();
                bail!("`{param}` is not {}", known.join(" or "));
            };
            let chosen = &mutation.params[at];
            if chosen.words().next().is_some() && chosen.words().all(|(number, _)| number != value) {
                bail!("`{param}` is none of the values of {}: {}", chosen.name, chosen.help);
            }
            values[at] = value;
        }
        Ok(Self { mutation, values, targets, since })
    }

    /// Rewrites `graph`, whose caches have the types `kv`; gives the stages that were changed.
    ///
    /// # Errors
    /// If the model has no stage or layer to inject into.
    pub fn rewrite(&self, graph: &mut Graph, kv: KvType) -> Result<Vec<StageId>> {
        if self.mutation.fits.is_none() {
            bail!(
                "`{0}` is the fault of no stage; `qdiff mutations show {0}` says where it is injected",
                self.mutation.name
            );
        }
        let last = graph.config.n_layers as u16 - 1;
        for (word, target) in &self.targets {
            match target {
                Target::Layer(_, layer) if *layer > last => {
                    bail!("layer {layer} does not exist; the model has layers 0 to {last}")
                }
                _ if graph.nodes.iter().any(|node| target.covers(node)) => {}
                _ if word.starts_with('p') => {
                    bail!("`{word}` is no stage of this model; `p3..` plants the fault from position 3 on")
                }
                _ => bail!("`{word}` is no layer, rank, stage or tensor of this model"),
            }
        }
        let right = graph.clone();
        let (mut changed, mut without_blocks) = (Vec::new(), false);
        for (node, old) in graph.nodes.iter_mut().zip(&right.nodes) {
            let aimed = self.targets.is_empty() || self.targets.iter().any(|(_, target)| target.covers(old));
            let Some(new) = self.mutation.applied(old, &self.values, &right).filter(|_| aimed) else {
                continue;
            };
            // In a cache without blocks nothing is held otherwise.
            if new.faults.hold.is_some() && kv.of(old.is_of_values()).block_size() == 1 {
                without_blocks = true;
                continue;
            }
            if matches!(old.op.anatomy(), Anatomy::Collective(_)) && new.inputs != old.inputs {
                bail!("`{}` cannot be injected: ranks run apart; it is an explanation alone", self.mutation.name);
            }
            *node = new;
            node.before = (self.since > 0).then(|| Before { since: self.since, node: Box::new(old.clone()) });
            changed.push(node.id);
        }
        if changed.is_empty() && without_blocks {
            bail!("`{}` is a fault of KV caches in blocks; add --kv-type q8_0", self.mutation.name);
        }
        if changed.is_empty() {
            let mut names = right.stage_names();
            let concerned: Vec<&Node> = right.nodes.iter().filter(|n| self.mutation.concerns(&right, n)).collect();
            names.retain(|name| concerned.iter().any(|n| n.id.name == *name));
            let mut aimed = names.clone();
            let covered = |n: &Node| self.targets.is_empty() || self.targets.iter().any(|(_, t)| t.covers(n));
            aimed.retain(|name| concerned.iter().any(|n| n.id.name == *name && covered(n)));
            match names.as_slice() {
                [] if graph.placement.is_none() && self.mutation.of_ranks() => {
                    bail!("`{}` is a fault of ranks; add --ranks 2", self.mutation.name)
                }
                [] if graph.adapters == 0 && self.mutation.of_adapters() => {
                    bail!("`{}` is a fault of LoRA adapters; add --adapter FILE.gguf", self.mutation.name)
                }
                [] => bail!("`{}` applies to no stage of this model", self.mutation.name),
                names if aimed.is_empty() => {
                    let words: Vec<&str> = self.targets.iter().map(|(word, _)| word.as_str()).collect();
                    let (name, words) = (self.mutation.name, words.join(","));
                    bail!("`{name}` cannot be injected at {words}; it applies to {}", names.join(" "))
                }
                _ => bail!("`{}` changes nothing at {}", self.mutation.name, aimed.join(" ")),
            }
        }
        Ok(changed)
    }

    /// As [`Self::rewrite`]; gives what was changed, in words too.
    ///
    /// # Errors
    /// As [`Self::rewrite`].
    pub fn apply(&self, graph: &mut Graph, kv: KvType) -> Result<(String, Vec<StageId>)> {
        let changed = self.rewrite(graph, kv)?;
        let what = CauseId::new(self.mutation, &self.values);
        let from = if self.since == 0 { String::new() } else { format!(" from position {} on", self.since) };
        Ok((format!("{what} in {}{from}", counted(changed.len(), "stage")), changed))
    }
}
