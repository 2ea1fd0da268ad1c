//! What a mutation is.

use super::chain::Chain;
use super::stored_row::{DecodeFault, decoding};
use crate::prompts::Ready;
use crate::verdict::Evidence;
use qdiff_engine::model::{Graph, Node, in_two, skeletons, with_adapter};
use qdiff_engine::tokenizer::{Split, Tokenizer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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

impl Param {
    pub(super) const fn new(name: &'static str, help: &'static str, default: f64) -> Self {
        Self { name, help, default, search: &[] }
    }

    /// The help of each value, for a parameter that is a choice.
    pub(super) fn words(&self) -> impl Iterator<Item = (f64, &'static str)> {
        let choices = self.help.split(", ").filter_map(|choice| choice.split_once(": "));
        choices.filter_map(|(number, word)| Some((number.parse().ok()?, word)))
    }

    pub(super) const fn searched(self, search: &'static [f64]) -> Self {
        Self { search, ..self }
    }
}

/// What it means that a mutation fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Explains {
    /// It reproduces the subject's values to f32 rounding.
    Value,
    /// It reproduces the size of the error, element by element, which is rounding of another
    /// arithmetic; the values themselves depend on an order nobody declared.
    Rounding,
    /// It says which part alone is wrong, not by what rule.
    Place,
}

/// What of an engine a mutation is the fault of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSite {
    /// A stage: a node of the graph.
    Stage,
    /// What makes tokens of the prompt.
    Tokenizer,
    /// What draws a token from logits.
    Samplers,
    /// What ends a text.
    Ends,
    /// Nothing that qdiff can spoil.
    Elsewhere,
}

/// Reads lists of parameter values off the evidence.
pub type Propose = fn(&Evidence<'_>) -> Vec<Vec<f64>>;

/// Lists of parameter values for a stage of a graph.
pub(super) type Guess = fn(&Graph, &Node) -> Vec<Vec<f64>>;

/// `x` in so many digits after its first.
pub(crate) fn to_digits(x: f64, digits: usize) -> f64 {
    format!("{x:.digits$e}").parse().unwrap_or(x)
}

/// Values of an only parameter that are worth trying.
pub(super) fn each(values: impl IntoIterator<Item = f64>) -> Vec<Vec<f64>> {
    values.into_iter().map(|v| vec![v]).collect()
}

/// The tokens that a faulty tokenizer makes of a prompt; none where it changes nothing.
pub type Encode = fn(&Tokenizer, &Ready) -> Option<Vec<u32>>;

/// A fault of the tokenizer's rules: the words that it makes of a text, which the vocabulary then takes apart.
#[derive(Debug)]
pub struct Splitting {
    pub(super) split: Split,
    /// A text of which it makes other tokens, if it does of any with this vocabulary.
    pub shown_by: &'static str,
}

impl Splitting {
    /// Whether it makes other tokens of `text`.
    pub fn shows(&self, tokenizer: &Tokenizer, text: &str) -> bool {
        tokenizer.encode_split(text, true, self.split) != tokenizer.encode(text, true)
    }
}

/// The tokens at which a faulty engine ends a text.
pub type Ends = fn(&Tokenizer) -> BTreeSet<u32>;

/// Whether a stage is of the kind that a mutation happens to: by op and role.
pub type Fits = fn(&Graph, &Node) -> bool;

/// The node with the fault in it, for these values of the parameters; `None`
/// where they are none that it can have there, or change nothing.
pub type Apply = fn(&Node, &[f64], &Graph) -> Option<Node>;

/// A named way to be wrong. In its texts `{stage}`, `{input}` and `{weight}` are replaced by the names of its
/// stage, of the first operand and of the first weight.
#[derive(Debug)]
pub struct Mutation {
    /// Name, as in `--inject NAME`.
    pub name: &'static str,
    /// Stages it happens to, if it is the fault of a stage.
    pub fits: Option<Fits>,
    /// What is wrong, in one sentence, as the report tells it.
    pub story: &'static str,
    /// How to recognise it without this tool, or where it is found.
    pub seen: &'static str,
    /// How to mend it.
    pub remedy: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
    /// What it means that it explains a stage.
    pub explains: Explains,
    /// Whether it is the fault of every row of a run, or of none.
    pub whole_run: bool,
    /// Puts it into a node that it fits; see [`Mutation::applied`].
    pub(super) apply: Apply,
    /// How blocks of weights are decoded, for a fault of decoding.
    pub(super) decode: Option<DecodeFault>,
    /// Whether it gives the same values every time, and so can be recognised by evaluating it.
    pub recurs: bool,
    /// Whether it says something of all of the stage, such as an exchange, which a part alone does not show.
    pub entire: bool,
    /// Whether a row is made of the other rows of its step, so that no part of them shows it.
    pub mixes_rows: bool,
    /// Whether its parameter is one number of the model, the same in all layers.
    pub of_model: bool,
    /// The faulty samplers, for a fault of the samplers.
    pub chain: Option<fn(&mut Chain)>,
    /// The tokens that end a text, for a fault of these.
    pub ends: Option<Ends>,
    /// The tokens of a prompt, for a fault of the tokenizer.
    pub(super) encode: Option<Encode>,
    /// The faulty rule, for a fault of one rule.
    pub splitting: Option<Splitting>,
    /// Values worth trying where nothing of the stage itself is known; without it those of a mutation that has no number
    /// of its own, or a list of them.
    pub(super) guess: Option<Guess>,
    /// Values worth trying, read off the evidence; without it the defaults and the search lists are tried.
    pub propose: Option<Propose>,
}

impl Mutation {
    /// What most mutations have in common.
    pub(super) const PLAIN: Mutation = Mutation {
        name: "",
        fits: None,
        story: "",
        seen: "",
        remedy: "",
        params: &[],
        explains: Explains::Value,
        whole_run: false,
        apply: |_, _, _| None,
        decode: None,
        recurs: true,
        entire: false,
        mixes_rows: false,
        of_model: false,
        chain: None,
        ends: None,
        encode: None,
        splitting: None,
        guess: None,
        propose: None,
    };

    /// What those have in common that happen to any stage.
    pub(super) const ANYWHERE: Mutation = Mutation { fits: Some(|_, _| true), ..Self::PLAIN };

    /// Whether it can happen to this stage.
    pub fn concerns(&self, graph: &Graph, node: &Node) -> bool {
        self.fits.is_some_and(|fits| fits(graph, node))
    }

    /// Whether it happens only where a model is cut over ranks.
    pub fn of_ranks(&self) -> bool {
        self.happens_only(in_two)
    }

    /// Whether it happens only where adapters are added to a model.
    pub fn of_adapters(&self) -> bool {
        self.happens_only(with_adapter)
    }

    /// Whether it happens to graphs that `made` makes of others, and to no other.
    fn happens_only(&self, made: fn(&Graph) -> Option<Graph>) -> bool {
        let here = |graph: &Graph| graph.nodes.iter().any(|node| self.concerns(graph, node));
        !skeletons().any(|whole| here(&whole)) && skeletons().filter_map(|whole| made(&whole)).any(|made| here(&made))
    }

    /// Whether it may explain this stage.
    pub fn may_explain(&self, graph: &Graph, node: &Node) -> bool {
        self.recurs && self.concerns(graph, node)
    }

    /// The node with the fault in it; `None` where it does not happen to such a stage, or changes nothing there.
    pub fn applied(&self, node: &Node, values: &[f64], graph: &Graph) -> Option<Node> {
        let new = if self.concerns(graph, node) { (self.apply)(node, values, graph)? } else { return None };
        let value = values.first().copied().unwrap_or(0.0);
        Some(self.decode.map(|by| decoding(&new, by, value)).unwrap_or(new))
    }

    /// The tokens that a tokenizer with it makes of `prompt`; `None` where they are the right ones, or it is no such fault.
    pub fn tokens(&self, tokenizer: &Tokenizer, prompt: &Ready) -> Option<Vec<u32>> {
        let split = |s: &Splitting| tokenizer.encode_split(&prompt.text, true, s.split);
        let made = match self.encode {
            Some(encode) => encode(tokenizer, prompt),
            None => self.splitting.as_ref().map(split),
        };
        made.filter(|made| *made != tokenizer.encode(&prompt.text, true))
    }

    /// Whether it splits some texts otherwise so that it shows with this vocabulary, and `text` is none of them.
    pub fn untested_by(&self, tokenizer: &Tokenizer, text: &str) -> bool {
        self.splitting.as_ref().is_some_and(|s| !s.shows(tokenizer, text) && s.shows(tokenizer, s.shown_by))
    }

    /// What it is the fault of.
    pub fn site(&self) -> FaultSite {
        match self {
            m if m.fits.is_some() => FaultSite::Stage,
            m if m.encode.is_some() || m.splitting.is_some() => FaultSite::Tokenizer,
            m if m.chain.is_some() => FaultSite::Samplers,
            m if m.ends.is_some() => FaultSite::Ends,
            _ => FaultSite::Elsewhere,
        }
    }

    /// What is wrong where its parameters have these values. The name of a parameter in braces is replaced by the help
    /// of the value: `{kind}` of `0: GELU, 1: quick GELU` for GELU.
    pub fn story(&self, values: &[f64]) -> String {
        let filled = |story: String, (param, value): (&Param, &f64)| match param.words().find(|(v, _)| v == value) {
            Some((_, word)) => story.replace(&format!("{{{}}}", param.name), word),
            None => story,
        };
        self.params.iter().zip(values).fold(self.story.to_owned(), filled)
    }

    /// What is wrong with `node`, and how to mend it, with the names of tensors and stages; `alone`: with no other stage.
    pub fn told(&self, values: &[f64], (node, alone): (&Node, bool), graph: &Graph) -> (String, String) {
        let other = self.applied(node, values, graph).filter(|_| alone);
        let mistaken = other.and_then(|other| Some(other.weights.first()?.name.clone()));
        let story = self.story(values).replace(OTHER, &mistaken.map_or_else(String::new, |name| format!(": {name}")));
        (told(&story, node, graph), told(self.remedy, node, graph))
    }

    /// What is wrong, for any values: the meaning of the parameters is printed beside them.
    pub fn choices(&self) -> String {
        let all = |story: String, param: &Param| {
            let words: Vec<&str> = param.words().map(|(_, word)| word).collect();
            let all = match words.as_slice() {
                [first, rest @ ..] if rest.len() > 3 => format!("{first} (or in one of {} other ways)", rest.len()),
                few => few.join(" or "),
            };
            story.replace(&format!("{{{}}}", param.name), &all)
        };
        self.params.iter().fold(self.story.replace(OTHER, ""), all)
    }

    /// Every architecture, cut over ranks or with an adapter for a mutation that happens only there.
    pub fn graphs(&self) -> impl Iterator<Item = Graph> {
        let made = match () {
            () if self.of_ranks() => in_two,
            () if self.of_adapters() => with_adapter,
            () => |whole: &Graph| Some(whole.clone()),
        };
        skeletons().filter_map(move |whole| made(&whole))
    }

    /// A text of the catalogue as it reads of the first stage that the mutation happens to.
    pub fn of_first_stage(&self, text: &str) -> String {
        let first = |graph: Graph| {
            let node = graph.nodes.iter().find(|n| self.concerns(&graph, n))?;
            Some(told(text, node, &graph))
        };
        let named = text.contains('{').then(|| self.graphs().find_map(first)).flatten();
        named.unwrap_or_else(|| text.to_owned())
    }

    /// The values of its parameters where none are given.
    pub fn defaults(&self) -> Vec<f64> {
        self.params.iter().map(|p| p.default).collect()
    }

    /// Values worth trying of a stage that was not captured.
    pub fn guesses(&self, graph: &Graph, node: &Node) -> Vec<Vec<f64>> {
        let listed = matches!(self.params, [one] if !one.search.is_empty());
        match self.guess {
            Some(guess) => guess(graph, node),
            None if self.propose.is_none() || listed => self.usual(),
            None => Vec::new(),
        }
    }

    /// Values worth trying with any evidence: the defaults, and the search values of a single parameter.
    pub fn usual(&self) -> Vec<Vec<f64>> {
        let searched = if let [one] = self.params { one.search } else { &[] };
        [vec![self.defaults()], each(searched.iter().copied())].concat()
    }
}

/// The tensor that is used in the place of the node's own, as stories name it.
const OTHER: &str = ": {other}";

/// `text` of a mutation for `node`, with the node's names in its placeholders.
pub fn told(text: &str, node: &Node, graph: &Graph) -> String {
    let mut told = text.replace("{stage}", &node.id.to_string()).replace("<arch>", &graph.config.arch);
    if let Some(&input) = node.inputs.first() {
        told = told.replace("{input}", &graph.nodes[input].id.to_string());
    }
    if let Some(weight) = node.weights.first() {
        told = told.replace("{weight}", &weight.name);
    }
    told
}

/// A mutation as reports name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CatalogueEntry {
    /// Its name in the catalogue.
    pub name: String,
    /// What is wrong.
    pub story: String,
    /// How to mend it.
    pub remedy: String,
}

impl From<&Mutation> for CatalogueEntry {
    fn from(m: &Mutation) -> Self {
        Self { name: m.name.to_owned(), story: m.choices(), remedy: m.remedy.to_owned() }
    }
}
