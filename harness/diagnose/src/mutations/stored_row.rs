//! A row of a weight as it is stored, decoded otherwise than ggml does.

use crate::llama::gguf::to_float;
use qdiff_engine::model::fault::Held;
use qdiff_engine::model::{Node, WeightSource};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::quant::{Format, GgmlType, Part};

/// Decodes a row wrongly into `out`, with a parameter; gives false where its format knows no such fault.
pub(super) type DecodeFault = fn(&Row<'_>, f64, &mut [f32]) -> bool;

/// A row as it is stored: of a weight, or of a cache in blocks.
pub(super) struct Row<'a> {
    pub(super) ty: GgmlType,
    bytes: &'a [u8],
    /// The rows of a weight from this one on.
    pub(super) of_weight: Option<(&'a dyn WeightSource, &'a str, usize)>,
}

impl<'a> Row<'a> {
    pub(super) fn of(source: &'a dyn WeightSource, tensor: &'a str, row: usize) -> Self {
        let bytes = source.row_bytes(tensor, row);
        Self { ty: source.ggml_type(tensor), bytes, of_weight: Some((source, tensor, row)) }
    }

    pub(super) fn of_cache(held: &Held<'a>) -> Self {
        Self { ty: held.ty, bytes: held.bytes, of_weight: None }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The format, if its quants have `low` bits in [`Part::Quants`] and `high` in [`Part::HighBits`].
    pub(super) fn of_bits(&self, low: usize, high: impl Fn(usize) -> bool) -> Option<&'static Format> {
        self.ty.format().filter(|f| f.bits(Part::Quants) == low && high(f.bits(Part::HighBits)))
    }

    pub(super) fn decode(&self, bytes: &[u8], out: &mut [f32]) -> bool {
        to_float(self.ty.id() as _, bytes, out);
        true
    }

    /// Decodes after `edit` has changed every block.
    pub(super) fn edited(&self, edit: impl Fn(&mut [u8]), out: &mut [f32]) -> bool {
        let mut bytes = self.bytes().to_vec();
        bytes.chunks_exact_mut(self.ty.type_size()).for_each(edit);
        self.decode(&bytes, out)
    }

    /// As [`Self::edited`], of the field that says `part`; false where there is none.
    pub(super) fn edited_in(
        &self, part: Part, format: Option<&Format>, edit: impl Fn(&mut [u8]), out: &mut [f32],
    ) -> bool {
        let field = format.and_then(|f| f.field(part));
        field.is_some_and(|f| self.edited(|block| edit(&mut block[f.bytes.clone()]), out))
    }
}

/// The node with its weight, or with the rows of a cache in blocks, decoded so. Formats that know no such fault are read as they
/// are.
pub(super) fn decoding(node: &Node, by: DecodeFault, value: f64) -> Node {
    if let Anatomy::State(_) = node.op.anatomy() {
        return node.holding(move |held, out| {
            let row = Row::of_cache(held);
            if !by(&row, value, out) {
                row.decode(row.bytes(), out);
            }
        });
    }
    node.reading(move |source, tensor, row, out| {
        if !by(&Row::of(source, tensor, row), value, out) {
            source.rows(tensor, row, out);
        }
    })
}
