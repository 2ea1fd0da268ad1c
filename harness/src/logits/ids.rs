//! What the ids of a vocabulary are: listed or not, padding or not; and whether
//! padding ever wins.

use super::picks::pick;
use super::rows::At;
use super::{Sides, asked, row_of};
use crate::capture::Filter;
use crate::loaded::LoadedModel;
use crate::number::Real;
use crate::oracle::Oracle;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{Node, WeightSource as _};
use schemars::JsonSchema;
use serde::Serialize;

/// `LLAMA_TOKEN_TYPE_UNUSED` of llama.h: what converters give padding.
const UNUSED: i32 = 5;

/// The ids of a vocabulary.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Ids {
    /// Rows of the output projection: logits at each position.
    pub rows: usize,
    /// Ids that the file's tokenizer lists.
    pub listed: usize,
    /// Ids among which llama.cpp chooses.
    pub scanned: usize,
    /// Listed ids that are padding: unused, or called `[PADn]`.
    pub padding: usize,
    /// The first of them.
    pub first_padding: Option<usize>,
    #[serde(skip)]
    is_padding: Vec<bool>,
}

/// What padding, and ids that are not listed, do to the choice.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Padding {
    /// Rows in which one wins on the subject's side.
    pub wins: usize,
    /// On the reference's, where there is one.
    pub reference_wins: Option<usize>,
    /// The largest of their logits on the subject's side.
    pub largest: Option<Real>,
    /// Least distance by which the choice leads the largest of them, over the
    /// rows in which none wins.
    pub lead: Option<Real>,
    #[serde(skip)]
    pub(super) largest_at: Option<At>,
}

impl Ids {
    pub(super) fn of(opened: &LoadedModel, oracle: &Oracle<'_>, node: &Node) -> Self {
        let (_, rows) = oracle.weights.extent(&node.weights[0].name);
        let gguf = opened.model.gguf();
        let (listed, is_padding) = listed(gguf, rows);
        let paddings = is_padding.iter().take(listed);
        Self {
            rows,
            listed,
            scanned: opened.llama.n_tokens(),
            padding: paddings.filter(|p| **p).count(),
            first_padding: is_padding.iter().position(|p| *p),
            is_padding,
        }
    }

    /// Whether padding and unlisted ids change what is chosen.
    pub(super) fn padding(&self, node: &Node, (subject, reference): Sides<'_>, filter: &Filter) -> Padding {
        let mut padding =
            Padding { wins: 0, reference_wins: reference.map(|_| 0), largest: None, lead: None, largest_at: None };
        let padded = |id: usize| self.is_padding.get(id).copied().unwrap_or(true);
        for (index, row) in asked(node, subject.side(), filter) {
            let Some(got) = row_of(node, &subject.capture.steps[index], row) else {
                continue;
            };
            let other = reference.and_then(|r| row_of(node, r.capture.steps.get(index)?, row));
            if let (Some(wins), Some(other)) = (&mut padding.reference_wins, other) {
                let choice = pick(&other, |_| true);
                *wins += usize::from(choice.is_some_and(|c| padded(c.id)));
            }
            let (Some(best), Some(of_padding)) = (pick(&got, |_| true), pick(&got, padded)) else {
                continue;
            };
            let value = f64::from(got[of_padding.id]);
            if padding.largest.is_none_or(|l| value > l.0) {
                padding.largest = Some(Real(value));
                padding.largest_at = Some(At { index, row, id: of_padding.id });
            }
            if padded(best.id) {
                padding.wins += 1;
                continue;
            }
            let lead = f64::from(got[best.id]) - value;
            if padding.lead.is_none_or(|l| lead < l.0) {
                padding.lead = Some(Real(lead));
            }
        }
        padding
    }
}

/// How many ids the tokenizer lists, and of `rows` ids which are padding or
/// not listed at all. A file without a list lists all.
fn listed(gguf: &Gguf, rows: usize) -> (usize, Vec<bool>) {
    let texts = gguf.get("tokenizer.ggml.tokens").and_then(|v| v.as_strings());
    let Some(texts) = texts else {
        return (rows, vec![false; rows]);
    };
    let types = gguf.get("tokenizer.ggml.token_type").and_then(|v| v.as_i32_array());
    let is_padding = (0..rows).map(|id| {
        let unused = types.and_then(|t| t.get(id)).is_some_and(|t| *t == UNUSED);
        let called = texts.get(id).is_none_or(|t| t.starts_with(b"[PAD"));
        unused || called
    });
    (texts.len(), is_padding.collect())
}
