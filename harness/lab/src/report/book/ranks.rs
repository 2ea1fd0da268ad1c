//! Ranks on two GPUs: which bugs of ranks were found and named, and how fast they run. `scripts/two-cards` writes it.

use qdiff::report::markdown::{self, escape};
use qdiff::report::{Section, Table};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What ran on the cards.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ranks {
    /// Always `ranks`.
    pub kind: String,
    /// Version of this layout.
    pub schema_version: u32,
    /// The cards.
    pub cards: String,
    /// The planted bugs.
    pub bugs: Vec<RankCase>,
    /// Tokens of the prefill, and decode steps after it, that were timed.
    pub timed: [usize; 2],
    /// The speed of each engine.
    pub speed: Vec<RankSpeed>,
}

/// A bug, and what was said of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankCase {
    /// What is wrong.
    pub what: String,
    /// The stage, with its rank.
    pub stage: String,
    /// Stages that were found wrong for their own operands.
    pub origins: Vec<String>,
    /// Whether it was found there, and nothing else was accused.
    pub found: bool,
    /// The causes, each with what other tokens say of it.
    pub causes: Vec<String>,
}

/// Tokens a second.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankSpeed {
    /// Engine and way to run it.
    pub engine: String,
    /// GPUs.
    pub cards: usize,
    /// Of the prefill.
    pub prefill: f64,
    /// Of decode steps after it.
    pub decode: f64,
}

/// A table of the bugs and one of the speeds, for each file; nothing where there is none.
pub(super) fn render(all: &[Ranks], out: &mut String) {
    for Ranks { cards, bugs, timed: [prefill, decode], speed, .. } in all {
        let (found, named) = (bugs.iter().filter(|b| b.found).count(), bugs.iter().filter(|b| b.confirmed()).count());
        let _ = writeln!(
            out,
            "\n### Ranks on {}\n\n\
             `scripts/two-cards`: the CUDA engine with a rank on each card. Of {} planted bugs {found} were found at their stage and \
             rank, with nothing else accused; {named} have a cause that holds on other tokens.",
            escape(cards),
            bugs.len(),
        );
        let cells = |bug: &RankCase| {
            let origins = bug.origins.join(" ");
            [&bug.what, &bug.stage, &origins, &bug.causes.join("; ")].map(|cell| escape(cell)).to_vec()
        };
        let table = Table::new(&["bug", "planted at", "found at", "cause"], &[], bugs.iter().map(cells));
        markdown::section(&Section::table("", table), 4, out);
        if speed.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "\nTokens a second, untapped, of a prefill of {prefill} and of {decode} decode steps after it. The fused kernels run on \
             one card alone."
        );
        let cells = |s: &RankSpeed| {
            vec![s.engine.clone(), s.cards.to_string(), format!("{:.0}", s.prefill), format!("{:.0}", s.decode)]
        };
        let table = Table::new(&["engine", "cards", "prefill", "decode"], &[1, 2, 3], speed.iter().map(cells));
        markdown::section(&Section::table("", table), 4, out);
    }
}

impl RankCase {
    /// Whether the first cause holds on other tokens.
    pub fn confirmed(&self) -> bool {
        self.causes.first().is_some_and(|cause| cause.starts_with("confirmed"))
    }
}
