//! The verdict: each stage of each side held against its own f64 evaluation, then the stages held against each other.
//!
//! `evaluate` gives the right value of a stage on a runner's own `operands`: `apply` evaluates its op (`linear` in the
//! runner's arithmetic, with `ties`, or `probe` without computing it; sums in the `orders` that are in use; `caches` as
//! they grow, other states from step to step, `recurrent`), `segment` a stage whose operands were not captured. `local`
//! holds the stage to that value, row by row (`held`), `global` compares the two runners, both for each stage alone
//! (`measured`). `judge` gives every stage its status and finds the origins, `unread` finds captured values that no
//! stage read, `coverage` counts, `again` judges some stages of parts again, `health` looks for what no correct model
//! does. `decisions` holds choices of experts or blocks against each other. `spread`, `elements`, `attention` and `logits` keep the
//! data of charts.

mod again;
mod apply;
mod attention;
mod batches;
mod caches;
mod choices;
mod counted;
mod coverage;
mod decisions;
mod drawn;
mod effect;
mod element;
mod elements;
mod evaluate;
mod evidence;
pub mod foreign;
mod gap;
mod global;
mod grain;
mod groups;
mod health;
mod held;
mod inside;
mod joined;
mod judge;
mod linear;
mod local;
mod logits;
pub mod lost;
mod masked;
mod measured;
mod mode;
mod operands;
mod orders;
mod probe;
mod recurrent;
mod remade;
mod repeat;
mod result;
mod rows;
mod scores;
mod segment;
mod shape;
mod softmax;
mod source;
mod spread;
mod ties;
pub mod tolerance;
mod unread;

pub use again::Parts;
pub use attention::AttentionMap;
pub use batches::largest_difference;
pub use counted::work_of;
pub use coverage::{Coverage, Probed, Unjudged};
pub use decisions::Decisions;
pub use drawn::drawn;
pub use effect::effect;
pub use element::Element;
pub use elements::{ElementMap, Elements};
pub use evaluate::{assembled, evaluate, outputs, written};
pub use evidence::right;
pub use evidence::{DESCRIBED, Evidence, RowAt, TRIED, Wrong, excerpt};
pub use gap::Gap;
pub use global::{Global, compare as compare_rows};
pub use grain::{Parameters, settle_all};
pub use health::Symptom;
pub use held::Row;
pub use inside::{Inside, Otherwise, Rows};
pub use judge::{TokenCheck, Verdict, judge, put_together};
pub use local::{Local, residuals};
pub use logits::{Choice, LogitsRow};
pub use measured::{Measured, measure, read_for};
pub use mode::{CheckMode, Seed};
pub use operands::{Expected, Side, Valued};
pub use probe::SEVERAL;
pub use repeat::{Race, Repeated};
pub use result::{StageResult, Status};
pub use rows::rows_given;
pub use segment::products_beyond;
pub use segment::{Segment, products_of};
pub use shape::describe;
pub use shape::{FEW, is_window, line, of_heads, pattern};
pub use source::{Block, Sink};
pub use spread::{BEYOND, BIN_OF_ONE, Spread};
pub use tolerance::Policy;

use crate::capture::Whose;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A row of a stage's output: where it is in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Its sequence, and how often that had taken tokens back.
    #[serde(flatten, skip_serializing_if = "Whose::is_first")]
    pub whose: Whose,
    /// 0 for the prefill.
    pub step: usize,
    /// Position of the token, or of the cached row.
    pub position: usize,
    /// Head, where the stage has heads.
    pub head: Option<usize>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Whose { sequence, rollbacks } = self.whose;
        if sequence > 0 {
            write!(f, "seq{sequence} ")?;
        }
        if rollbacks > 0 {
            write!(f, "rollback{rollbacks} ")?;
        }
        write!(f, "p{}", self.position)?;
        if let Some(head) = self.head {
            write!(f, " h{head}")?;
        }
        if self.step > 0 {
            write!(f, " step{}", self.step)?;
        }
        Ok(())
    }
}
