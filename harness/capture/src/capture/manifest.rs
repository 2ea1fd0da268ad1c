//! The manifest of a capture: what ran, on which tokens, and how its arrays are to be read.

use super::dump::Dump;
use super::{Lengths, Passes, Plan, Step, quoted, steps};
use crate::arithmetic::{Declared, FIELDS};
use crate::formats::Formats;
use anyhow::{Context as _, Result, bail, ensure};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::Placement;
use qdiff_engine::quant::KvType;
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

/// Version of the folder's layout; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 4;

/// The newest of captures of one sequence, which writers keep to: what reads no newer one reads them.
pub const OF_ONE_SEQUENCE: u32 = 3;

/// The oldest that is read.
const OLDEST: u32 = 2;

/// `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Version of the layout.
    pub schema_version: u32,
    /// What computed it.
    pub engine: String,
    /// SHA-256 of the GGUF, in hexadecimal; checked where it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_sha256: Option<String>,
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Tokens fed at the decode steps.
    #[serde(default)]
    pub decoded: Vec<u32>,
    /// Tokens of a part of the prefill; all of them where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ubatch: Option<usize>,
    /// Lengths of all passes of the run, such as 600, 1, 1, 40, 1: of a run that is no prompt in parts of one size, with single
    /// tokens after it. The first pass and those of several tokens that follow it at once are the prefill (`prefill`,
    /// `prefill@512`); every other pass is a step (`step1`, `step2`), however many tokens it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<usize>,
    /// The passes of a run of several sequences, such as `7,5+1+17@0`: the first pass feeds 7 tokens of sequence 0; the second one
    /// feeds 5 more, one token of sequence 1 and 17 tokens of sequence 2, which begins with all that sequence 0 had before.
    /// `tokens` are those of all sequences, in this order; nothing is `decoded`. The steps of sequence 2 are called
    /// `s2.prefill@7`, `s2.step1` and so on, those of sequence 0 as where it is alone. Its arrays hold a sequence's own rows, and
    /// the cache rows of its own positions, a prefix included. `pass0/L00.q_rope`, `pass1/L00.q_rope` and so on may hold the rows of
    /// all sequences of a pass. From schema 4 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub sequences: Option<Plan>,
    /// How the run was cut over ranks, such as `2:heads=7+7,ffn=2560+2304,vocab=whole`: the query heads, the columns of the
    /// feed-forward network and the ids of the vocabulary that each rank has. Arrays of rank 1 are called
    /// `r1.prefill/L07.q_proj` and so on. From schema 4 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ranks: Option<Placement>,
    /// The rank that all arrays of the folder are of, whose names then say no rank: of a folder `rank1` in the folder of a
    /// run whose ranks each wrote their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u16>,
    /// Positions whose rows are in the arrays; all where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<Vec<usize>>,
    /// What it computed in; plain f32 where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<Declared>,
    /// What the arrays were rounded to on the way into them, independent of the engine's arithmetic; read off the
    /// arrays if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Formats>,
    /// How it chose `decoded`; where it is not given, as the largest of its logits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampler: Option<Sampler>,
    /// How its text ended; only of an engine that generated `decoded` by its own choices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RecordedEnd>,
    /// Number formats of arrays whose container has no word for them (numpy has none for bf16 and fp8), by patterns of
    /// their names such as `*` and `*/L07.*`; where several fit, the first in the alphabet decides.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub elements: BTreeMap<String, DType>,
    /// Which dump it is, as a tap says; absent where another program wrote the capture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<Dump>,
    /// The sequence of each row of each pass, in a run of several sequences; if it is empty, `sequences` has them.
    #[serde(skip)]
    pub orders: Vec<Vec<u32>>,
    /// Why the run is known to be cut short; seen from the container.
    #[serde(skip)]
    pub cut: Option<String>,
    /// Whether neither the container nor a manifest.json says how many steps there were; seen from the container.
    #[serde(skip)]
    pub open_end: bool,
}

/// How an engine chose the tokens that it fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// The largest logit.
    Greedy,
    /// Any of so many largest logits.
    TopK(usize),
    /// In another way, by which it may take any token.
    Drawn,
    /// It did not: the tokens were given to it.
    Told,
}

/// What an engine says of the end of its text.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RecordedEnd {
    /// The token at which it stopped: drawn after the last step, and fed to none. Absent if it was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u32>,
    /// All tokens at which it would have; not compared where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<BTreeSet<u32>>,
}

impl Manifest {
    /// Refuses a capture, in `folder`, of another model than that of this hash.
    ///
    /// # Errors
    /// Both hashes.
    pub fn check_model(&self, folder: &Path, sha256: &str) -> Result<()> {
        if let Some(other) = self.model_sha256.as_ref().filter(|h| *h != sha256) {
            let shown = folder.display();
            bail!(
                "{shown} was recorded on another model (sha256 {other}, this one has {sha256}); name that model with -m"
            );
        }
        Ok(())
    }

    /// What computed it, and whether it was cut short.
    pub fn name(&self) -> String {
        self.cut.as_ref().map_or_else(|| self.engine.clone(), |cut| format!("{}, cut short: {cut}", self.engine))
    }

    /// How a capture in a folder came about, in a few words.
    pub fn how(&self) -> String {
        let when = self.dump.as_ref().and_then(Dump::when).map_or_else(String::new, |when| format!(" {when}"));
        let end = if self.open_end { ", without a closing line: later steps may be missing" } else { "" };
        format!("recorded{when}{end}")
    }

    /// Types of its KV caches.
    pub fn kv(&self) -> KvType {
        self.arithmetic.as_ref().map_or_else(KvType::default, |a| a.arithmetic().kv)
    }

    /// The steps that the arrays belong to, without stages.
    pub fn steps(&self) -> Vec<Step> {
        let mut all = match &self.sequences {
            Some(plan) => plan.steps(&self.tokens),
            None => steps(&self.tokens, self.passes_of_prompt(), &self.decoded),
        };
        if let Some(positions) = &self.positions {
            let positions: HashSet<usize> = positions.iter().copied().collect();
            for step in &mut all {
                step.keep_only(|p| positions.contains(&p));
            }
        }
        all
    }

    /// The passes in which `tokens` were fed; `decoded` were fed one by one.
    pub fn passes_of_prompt(&self) -> Passes<'_> {
        match self.passes.len().checked_sub(self.decoded.len()) {
            Some(count) if count > 0 => Passes::Lengths(&self.passes[..count]),
            _ => Passes::Of(self.ubatch.unwrap_or(self.tokens.len())),
        }
    }

    /// Makes the first `prompt` of all tokens the prompt, as far as the others were fed one by one.
    pub fn divide(&mut self, prompt: usize) {
        if self.sequences.is_some() {
            return;
        }
        let steps = self.steps();
        let passes = steps.iter().map(|step| step.tokens.len()).collect();
        let tokens = [self.tokens.as_slice(), &self.decoded].concat();
        if prompt == self.tokens.len() || prompt > tokens.len() {
            return;
        }
        let (tokens, decoded) = (tokens[..prompt].to_vec(), tokens[prompt..].to_vec());
        let mut divided = Self { tokens, decoded, ubatch: None, passes, ..self.clone() };
        // The arrays keep their names.
        let named = |steps: &[Step]| steps.iter().map(Step::label).collect::<Vec<_>>();
        if divided.settle_passes().is_ok() && divided.tokens.len() == prompt && named(&divided.steps()) == named(&steps)
        {
            *self = divided;
        }
    }

    /// The same of one sequence, where its plan has no other: the lengths of the passes say all that the plan says.
    ///
    /// # Errors
    /// As those of `passes`.
    pub fn alone(mut self) -> Result<Self> {
        let Some(plan) = self.sequences.take_if(|plan| plan.runs() == 1) else { return Ok(self) };
        if self.orders.is_empty() {
            self.orders = plan.orders();
        }
        self.passes = self.orders.iter().map(Vec::len).collect();
        self.settle_passes()?;
        Ok(self)
    }

    /// Holds `passes` against the tokens, and takes those for the prompt's that were not fed one by one.
    fn settle_passes(&mut self) -> Result<()> {
        if self.passes.is_empty() {
            return Ok(());
        }
        ensure!(self.ubatch.is_none(), "it names `passes` and `ubatch`; leave `ubatch` out");
        ensure!(!self.passes.contains(&0), "one of its `passes` has no tokens");
        let (lengths, all) = (Lengths(self.passes.clone()), self.tokens.len() + self.decoded.len());
        ensure!(
            lengths.tokens() == all,
            "its `passes` have {} tokens, and `tokens` and `decoded` {all} together",
            lengths.tokens()
        );
        let single = self.passes.iter().skip(1).rev().take_while(|tokens| **tokens == 1).count();
        let prompt = self.tokens.len().max(all - single);
        self.tokens.append(&mut self.decoded);
        self.decoded = self.tokens.split_off(prompt);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.tokens.is_empty(), "it names no tokens");
        ensure!(self.ubatch != Some(0), "its ubatch is 0");
        if let Some(plan) = &self.sequences {
            ensure!(self.schema_version >= SCHEMA_VERSION, "`sequences` need schema_version {SCHEMA_VERSION}");
            let alone =
                self.ubatch.is_none() && self.passes.is_empty() && self.decoded.is_empty() && self.end.is_none();
            ensure!(alone, "it names `sequences`; leave `ubatch`, `passes`, `decoded` and `end` out");
            let (asked, there) = (plan.tokens(), self.tokens.len());
            ensure!(asked == there, "its `sequences` have {asked} tokens, and `tokens` {there}");
        }
        if let Some(ranks) = &self.ranks {
            ensure!(self.schema_version >= SCHEMA_VERSION, "`ranks` need schema_version {SCHEMA_VERSION}");
            ensure!(self.sequences.is_none(), "it names `ranks` and `sequences`; dump each sequence alone");
            let known = self.rank.is_none_or(|rank| usize::from(rank) < ranks.ranks);
            ensure!(known, "it is of a rank that `ranks` ({ranks}) does not have");
        }
        let all = self.tokens.len() + self.decoded.len();
        for &position in self.positions.iter().flatten() {
            ensure!(position < all, "it keeps position {position}, and its last is {}", all - 1);
        }
        Ok(())
    }
}

/// A manifest, of the bytes of a file called `name`.
///
/// # Errors
/// What is no manifest, one of another version, or one with a key that belongs into its `arithmetic`.
pub fn parse(bytes: &[u8], name: &str) -> Result<Manifest> {
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        schema_version: serde_json::Value,
        #[serde(flatten)]
        fields: BTreeMap<String, IgnoredAny>,
    }
    let head: Head = serde_json::from_slice(bytes).with_context(|| format!("{name} is not JSON"))?;
    if !(OLDEST..=SCHEMA_VERSION).any(|version| head.schema_version == version) {
        ensure!(
            !head.schema_version.is_null(),
            "{name} has no schema_version; add \"schema_version\": {SCHEMA_VERSION} if docs/engine/capture-format.md is what it follows"
        );
        bail!(
            "{name} has schema_version {}, this qdiff reads {OLDEST} to {SCHEMA_VERSION}; record it again",
            quoted(&head.schema_version.to_string())
        );
    }
    if let Some(key) = FIELDS.into_iter().find(|key| head.fields.contains_key(*key)) {
        bail!(
            "{name}: the key `{key}` is beside `arithmetic`; it belongs into the object: \"arithmetic\": {{ \"{key}\": … }}"
        );
    }
    let mut manifest: Manifest = serde_json::from_slice(bytes).with_context(|| format!("{name} is no manifest"))?;
    manifest.settle_passes().and_then(|()| manifest.check()).with_context(|| name.to_owned())?;
    Ok(manifest)
}
