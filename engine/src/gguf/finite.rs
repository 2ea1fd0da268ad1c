//! NaN and infinity among the weights of a file: damage of the file itself, whoever reads it.

use super::Gguf;
use crate::quant::dequantize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A tensor some of whose blocks hold a scale, an offset or a number that is NaN or infinite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotFinite {
    /// Its name.
    pub tensor: String,
    /// Its format.
    pub format: String,
    /// Row of the first such block.
    pub row: usize,
    /// The block in its row.
    pub block: usize,
    /// ggml's name of the field.
    pub field: String,
    /// Where the field begins, in bytes from the start of the file.
    pub offset: u64,
    /// That file, where the model is in several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The block's first weight that is not finite: `NaN`, `inf` or `-inf`.
    pub weight: String,
    /// How many blocks.
    pub blocks: usize,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, format, row, block, field, offset, file, weight, blocks } = self;
        write!(f, "tensor `{tensor}` ({format}): row {row}, block {block} holds a weight of {weight} ")?;
        write!(f, "(`{field}` at byte {offset} of {})", file.as_deref().unwrap_or("the file"))?;
        if *blocks > 1 { write!(f, "; so do others, {blocks} blocks in all") } else { Ok(()) }
    }
}

impl Gguf {
    /// Every tensor with a weight that is not finite, in the file's order, of the formats whose fields are known.
    pub fn not_finite(&self) -> Vec<NotFinite> {
        let mut found = Vec::new();
        for info in &self.tensors {
            let (Some(format), bytes) = (info.ggml_type.format(), self.data(info)) else { continue };
            let mut blocks = format.not_finite(bytes);
            let Some((at, field)) = blocks.next() else { continue };
            let (size, a_row) = (format.ty.type_size(), info.row_len() / format.ty.block_size());
            let mut weights = vec![0f32; format.ty.block_size()];
            dequantize(format.ty, &bytes[at * size..][..size], &mut weights);
            let weight = weights.iter().find(|w| !w.is_finite()).copied().unwrap_or(f32::NAN);
            found.push(NotFinite {
                tensor: info.name.clone(),
                format: format.ty.to_string(),
                row: at / a_row,
                block: at % a_row,
                field: field.name.to_owned(),
                offset: self.parts[info.part].data_offset + info.offset + (at * size + field.bytes.start) as u64,
                file: self.file_of(info),
                weight: weight.to_string(),
                blocks: 1 + blocks.count(),
            });
        }
        found
    }
}
