//! What the ids of a vocabulary are: listed or not, padding or not; and whether padding ever wins.

use super::pick::{Pick, pick};
use super::rows::At;
use crate::loaded::LoadedModel;
use crate::number::Real;
use crate::oracle::Oracle;
use qdiff_engine::gguf::StringArray;
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
    /// Ids among which llama.cpp chooses, where llama.cpp has read the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned: Option<usize>,
    /// Listed ids that are padding: unused, or called `[PADn]`.
    pub padding: usize,
    /// The first of them.
    pub first_padding: Option<usize>,
    #[serde(skip)]
    is_padding: Vec<bool>,
}

/// What padding, and ids that are not listed, do to the choice.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Padding {
    /// Rows in which one wins on the subject's side.
    pub wins: usize,
    /// On the reference's, where there is one.
    pub reference_wins: Option<usize>,
    /// The largest of their logits on the subject's side.
    pub largest: Option<Real>,
    /// Least distance by which the choice leads the largest of them, over the rows in which none wins.
    pub lead: Option<Real>,
    #[serde(skip)]
    pub(super) largest_at: Option<At>,
}

impl Ids {
    pub(super) fn of(opened: &LoadedModel, oracle: &Oracle<'_>, node: &Node) -> Self {
        let (_, rows) = oracle.weights.extent(&node.weights[0].name);
        let gguf = opened.model.gguf();
        let types = gguf.get("tokenizer.ggml.token_type").and_then(|v| v.as_i32_array());
        let texts = gguf.get("tokenizer.ggml.tokens").and_then(|v| v.as_strings());
        // A file without a list lists all.
        let listed = texts.map_or(rows, StringArray::len);
        let unused = |id| types.and_then(|t| t.get(id)).is_some_and(|t| *t == UNUSED);
        let called = |id| texts.is_some_and(|texts| texts.get(id).is_none_or(|t| t.starts_with(b"[PAD")));
        let is_padding: Vec<bool> = (0..rows).map(|id| texts.is_some() && unused(id) || called(id)).collect();
        let paddings = is_padding.iter().take(listed);
        Self {
            rows,
            listed,
            scanned: opened.llama().ok().map(|llama| llama.n_tokens()),
            padding: paddings.filter(|p| **p).count(),
            first_padding: is_padding.iter().position(|p| *p),
            is_padding,
        }
    }

    fn padded(&self, id: usize) -> bool {
        self.is_padding.get(id).copied().unwrap_or(true)
    }
}

impl Padding {
    /// One row more: the logits `got` of the subject, and what both sides choose.
    pub(super) fn add(&mut self, ids: &Ids, at: (usize, usize), got: &[f32], own: Pick, other: Option<Pick>) {
        if let (Some(wins), Some(other)) = (&mut self.reference_wins, other) {
            *wins += usize::from(ids.padded(other.id));
        }
        let Some(of_padding) = pick(got, |id| ids.padded(id)) else { return };
        let value = f64::from(got[of_padding.id]);
        if self.largest.is_none_or(|l| value > l.0) {
            self.largest = Some(Real(value));
            self.largest_at = Some(At { index: at.0, row: at.1, id: of_padding.id });
        }
        if ids.padded(own.id) {
            self.wins += 1;
            return;
        }
        let lead = f64::from(got[own.id]) - value;
        if self.lead.is_none_or(|l| lead < l.0) {
            self.lead = Some(Real(lead));
        }
    }
}
