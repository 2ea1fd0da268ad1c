//! What comparing weights finds.

use super::cause::WeightCause;
use super::metadata::KeyDiff;
use crate::number::Real;
use qdiff_engine::gguf::NotFinite;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A block that differs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BlockDiff {
    /// Row of the tensor.
    pub row: usize,
    /// Block in the row.
    pub block: usize,
    /// First byte of the block in the file.
    pub offset: u64,
    /// Index in the row of the first differing value; of the block's first, where no value differs.
    pub index: usize,
    /// The subject's value there.
    #[serde(with = "Real")]
    pub got: f32,
    /// ggml's value there.
    #[serde(with = "Real")]
    pub want: f32,
    /// Values of the block that differ.
    pub values: usize,
    /// The fields that differ: by their bytes, or, where those are equal, by
    /// what the values say of them; empty where they say nothing.
    pub fields: Vec<FieldDiff>,
}

/// A field of a block that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldDiff {
    /// ggml's name of the field.
    pub name: String,
    /// What it says.
    pub meaning: String,
    /// First differing byte in the file; of the field's first, where bytes are equal and it was decoded wrongly.
    pub offset: u64,
    /// Bytes of it that differ.
    pub bytes: usize,
    /// Bits of it that differ.
    pub bits: u32,
    /// The subject's content; empty where it was decoded wrongly.
    pub got: String,
    /// What belongs there; empty where it was decoded wrongly.
    pub want: String,
}

/// A tensor that one side holds or reads differently.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Mismatch {
    /// GGUF tensor.
    pub tensor: String,
    /// Its format.
    pub format: String,
    /// Row of the first differing value.
    pub row: usize,
    /// Its index in the row.
    pub index: usize,
    /// The subject's value.
    #[serde(with = "Real")]
    pub got: f32,
    /// ggml's value.
    #[serde(with = "Real")]
    pub want: f32,
    /// Rows that differ.
    pub rows: usize,
    /// Rows of the tensor.
    #[serde(default)]
    pub rows_total: usize,
    /// Blocks that differ.
    #[serde(default)]
    pub blocks: usize,
    /// Blocks of the tensor.
    #[serde(default)]
    pub blocks_total: usize,
    /// The format of the side that was compared, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_format: Option<String>,
    /// Whether the stored bytes differ, and not only what is made of them.
    #[serde(default)]
    pub bytes_differ: bool,
    /// The file that it is in, where the model is in several: what offsets count in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The first blocks that differ.
    #[serde(default)]
    pub located: Vec<BlockDiff>,
    /// The decoding error that reproduces every differing value looked into.
    #[serde(default)]
    pub cause: Option<WeightCause>,
}

/// The outcome of the check.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WeightCheck {
    /// Tensors compared.
    pub tensors: usize,
    /// Values compared.
    pub values: u64,
    /// Whether they were compared by an earlier run, of the same program on the same file, and found equal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Why nothing was compared, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchecked: Option<String>,
    /// Tensors with a differing value.
    pub mismatches: Vec<Mismatch>,
    /// Tensors that only one of two files has, or has in another shape.
    #[serde(default)]
    pub unpaired: Vec<String>,
    /// Metadata keys that two files do not share.
    #[serde(default)]
    pub metadata: Vec<KeyDiff>,
    /// Tensors with NaN or infinity among their weights, in the first of two files.
    #[serde(default)]
    pub not_finite: Vec<NotFinite>,
}

impl WeightCheck {
    /// Whether anything differs.
    pub fn diverged(&self) -> bool {
        !self.mismatches.is_empty() || !self.unpaired.is_empty() || self.metadata.iter().any(|key| key.computes)
    }

    pub(super) fn count(&mut self, (n, rows): (usize, usize), mismatch: Option<Mismatch>) {
        self.tensors += 1;
        self.values += (n * rows) as u64;
        self.mismatches.extend(mismatch);
    }
}
