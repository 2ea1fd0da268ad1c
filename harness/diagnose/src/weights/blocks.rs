//! The blocks of a tensor that differ: where they stand, and in which field.

use super::check::{BlockDiff, FieldDiff, Mismatch};
use super::compared::{Compared, DESCRIBED};
use super::{cause, field};
use crate::number::same;
use half::f16;
use qdiff_engine::model::Graph;
use qdiff_engine::quant::{Content, Field, Format, Part};
use rayon::prelude::*;

/// Rows compared by one task.
const ROWS: usize = 64;

/// What the part says, in words.
fn meaning(part: Part) -> &'static str {
    match part {
        Part::Scale => "scale of the block",
        Part::Offset => "offset of the block, or the scale of its offsets",
        Part::PackedScales | Part::ByteScales | Part::SubScales | Part::SmallFloats => "scales of the sub-blocks",
        Part::SubScalesHigh => "upper bits of the sub-blocks' scales",
        Part::SplitScale => "scales of the sub-blocks, and the bits of the block's scale",
        Part::Exponent => "exponent of the block's scale",
        Part::HighBits => "upper bits of the quants",
        Part::Quants => "quants",
        Part::Codes => "codes of the weights",
        Part::Signs => "signs of the weights",
        Part::Packed => "codes, signs and scales together",
        Part::Number => "one value",
    }
}

/// A row, and its blocks that differ.
type RowDiff = (usize, Vec<usize>);

/// Compares one tensor of equal extent on both sides; `None` where nothing
/// differs. With a graph, a decoding error that explains it is looked for.
pub(super) fn compare(c: &Compared<'_>, graph: Option<&Graph>) -> Option<Mismatch> {
    let (n, rows) = c.reference.extent(c.tensor);
    let ty = c.reference.ggml_type(c.tensor);
    let differing: Vec<RowDiff> = (0..rows.div_ceil(ROWS))
        .into_par_iter()
        .flat_map_iter(|task| differing(c, task * ROWS..rows.min((task + 1) * ROWS)))
        .collect();
    let located: Vec<BlockDiff> = differing
        .iter()
        .flat_map(|(row, blocks)| blocks.iter().map(|b| (*row, *b)))
        .take(DESCRIBED)
        .map(|(row, block)| describe(c, row, block))
        .collect();
    // The first whose value differs: bytes may differ and mean the same.
    let first = located.iter().find(|b| b.values > 0).or(located.first())?;
    let of_rows: Vec<usize> = differing.iter().map(|(row, _)| *row).collect();
    let bytes_differ = of_rows.iter().any(|&r| !same_bytes(c, r));
    Some(Mismatch {
        tensor: c.tensor.to_owned(),
        format: ty.to_string(),
        other_format: (!same_type(c)).then(|| c.subject.ggml_type(c.tensor).to_string()),
        row: first.row,
        index: first.index,
        got: first.got,
        want: first.want,
        rows: differing.len(),
        rows_total: rows,
        blocks: differing.iter().map(|(_, blocks)| blocks.len()).sum(),
        blocks_total: rows * n.div_ceil(ty.block_size()),
        bytes_differ,
        file: c.file.clone(),
        cause: graph.and_then(|graph| cause::find(c, graph, &of_rows)),
        located,
    })
}

fn same_type(c: &Compared<'_>) -> bool {
    c.subject.ggml_type(c.tensor) == c.reference.ggml_type(c.tensor)
}

fn same_bytes(c: &Compared<'_>, row: usize) -> bool {
    !same_type(c) || c.subject.row_bytes(c.tensor, row) == c.reference.row_bytes(c.tensor, row)
}

/// The differing rows of `rows`, with their differing blocks. Sides that hold a
/// tensor in different types are compared by value.
fn differing(c: &Compared<'_>, rows: std::ops::Range<usize>) -> Vec<RowDiff> {
    let (n, _) = c.reference.extent(c.tensor);
    let ty = c.reference.ggml_type(c.tensor);
    let (size, width) = (ty.type_size(), ty.block_size());
    let one_reader = c.one_reader && same_type(c);
    if one_reader && rows.clone().all(|r| same_bytes(c, r)) {
        return Vec::new();
    }
    let (mut ours, mut theirs) = (vec![0f32; n * rows.len()], vec![0f32; n * rows.len()]);
    c.subject.rows(c.tensor, rows.start, &mut ours);
    c.reference.rows(c.tensor, rows.start, &mut theirs);
    let mut found = Vec::new();
    for (row, (a, b)) in rows.zip(ours.chunks(n).zip(theirs.chunks(n))) {
        let equal = same_bytes(c, row);
        let bytes_at = |block: usize| {
            let range = block * size..(block + 1) * size;
            equal || c.subject.row_bytes(c.tensor, row)[range.clone()] == c.reference.row_bytes(c.tensor, row)[range]
        };
        let blocks: Vec<usize> = a
            .chunks(width)
            .zip(b.chunks(width))
            .enumerate()
            .filter(|(i, (a, b))| !bytes_at(*i) || a.iter().zip(*b).any(|(a, b)| !same(*a, *b)))
            .map(|(i, _)| i)
            .collect();
        if !blocks.is_empty() {
            found.push((row, blocks));
        }
    }
    found
}

fn describe(c: &Compared<'_>, row: usize, block: usize) -> BlockDiff {
    let (n, _) = c.reference.extent(c.tensor);
    let ty = c.reference.ggml_type(c.tensor);
    let (size, width) = (ty.type_size(), ty.block_size());
    let (mut ours, mut theirs) = (vec![0f32; n], vec![0f32; n]);
    c.subject.rows(c.tensor, row, &mut ours);
    c.reference.rows(c.tensor, row, &mut theirs);
    let from = block * width;
    let to = n.min(from + width);
    let wrong = |i: &usize| !same(ours[*i], theirs[*i]);
    let index = (from..to).find(wrong).unwrap_or(from);
    let want = c.reference.row_bytes(c.tensor, row);
    let offset = c.start + (row * want.len() + block * size) as u64;
    let want = &want[block * size..][..size];
    let fields = match ty.format() {
        Some(format) if same_type(c) => {
            let got = &c.subject.row_bytes(c.tensor, row)[block * size..][..size];
            fields(format, (got, want), (&ours[from..to], &theirs[from..to]), offset)
        }
        _ => Vec::new(),
    };
    BlockDiff {
        row,
        block,
        offset,
        index,
        got: ours[index],
        want: theirs[index],
        values: (from..to).filter(wrong).count(),
        fields,
    }
}

/// The fields in which the bytes differ; where they are equal, those that the values say were decoded wrongly.
fn fields(
    format: &Format, (got, want): (&[u8], &[u8]), (ours, theirs): (&[f32], &[f32]), offset: u64,
) -> Vec<FieldDiff> {
    let diff = |field: &Field, first: usize| FieldDiff {
        name: field.name.to_owned(),
        meaning: meaning(field.part).to_owned(),
        offset: offset + first as u64,
        bytes: 0,
        bits: 0,
        got: String::new(),
        want: String::new(),
    };
    if got == want {
        let parts = field::decoded_wrongly(format, want, ours, theirs);
        let named = format.fields.iter().filter(|f| parts.contains(&f.part));
        return named.map(|f| diff(f, f.bytes.start)).collect();
    }
    let mut found = Vec::new();
    for field in format.fields {
        let (g, w) = (&got[field.bytes.clone()], &want[field.bytes.clone()]);
        let Some(first) = g.iter().zip(w).position(|(a, b)| a != b) else {
            continue;
        };
        found.push(FieldDiff {
            bytes: g.iter().zip(w).filter(|(a, b)| a != b).count(),
            bits: g.iter().zip(w).map(|(a, b)| (a ^ b).count_ones()).sum(),
            got: content(format, field, g, first),
            want: content(format, field, w, first),
            ..diff(field, field.bytes.start + first)
        });
    }
    found
}

/// The contents of a field: an f16 as a number, else the bytes from the first differing one on, four of them.
fn content(format: &Format, field: &Field, bytes: &[u8], first: usize) -> String {
    let half = match field.part {
        Part::Scale | Part::Offset => true,
        Part::Number => format.content == Content::F16,
        _ => false,
    };
    match (half, bytes) {
        (true, [a, b]) => f16::from_le_bytes([*a, *b]).to_string(),
        _ => bytes[first..].iter().take(4).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "),
    }
}
