//! KV caches in blocks that are stored or read otherwise than ggml does. Each changes the bytes of a row, or what goes into them;
//! what a block holds where, its format says.

use super::{Fits, Mutation, Param};
use crate::llama::gguf::to_float;
use half::{bf16, f16};
use qdiff_engine::model::fault::Held;
use qdiff_engine::model::{Node, row_len};
use qdiff_engine::ops::anatomy::State;
use qdiff_engine::ops::{Anatomy, Op, UNIT};
use qdiff_engine::quant::{self, CACHES, Codes, Field, GgmlType, Offset, Part};

const CACHED: Fits = |_, n| matches!(n.op.anatomy(), Anatomy::State(State::Rows(_)));

fn read(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    to_float(ty.id() as _, bytes, out);
}

/// Blocks of 32 in a head.
fn of_head(node: &Node) -> usize {
    if let Op::KvCache(cache) = node.op { (cache.head_dim / 32).max(1) } else { 1 }
}

/// Where the blocks of a type have their scale, or their offset.
fn field(ty: GgmlType, offset: bool) -> Option<&'static Field> {
    ty.format()?.field(if offset { Part::Offset } else { Part::Scale })
}

/// The f16s of a field, block by block.
fn halves(held: &Held<'_>, field: &Field) -> Vec<f16> {
    let at = field.bytes.start;
    held.bytes.chunks_exact(held.ty.type_size()).map(|b| f16::from_le_bytes([b[at], b[at + 1]])).collect()
}

/// Reads the row after `edit` has changed the f16s of a field; as it is in a type without that field.
fn edited(held: &Held<'_>, offset: bool, edit: impl Fn(&mut Vec<f16>), out: &mut [f32]) {
    let mut bytes = held.bytes.to_vec();
    if let Some(field) = field(held.ty, offset) {
        let mut all = halves(held, field);
        edit(&mut all);
        for (block, half) in bytes.chunks_exact_mut(held.ty.type_size()).zip(all) {
            block[field.bytes.clone()].copy_from_slice(&half.to_le_bytes());
        }
    }
    read(held.ty, &bytes, out);
}

/// The numbers that codes mean: values under a scale of 1, without an offset.
fn levels(held: &Held<'_>, out: &mut [f32]) {
    let mut bytes = held.bytes.to_vec();
    for (offset, half) in [(false, f16::ONE), (true, f16::ZERO)] {
        if let Some(field) = field(held.ty, offset) {
            let blocks = bytes.chunks_exact_mut(held.ty.type_size());
            blocks.for_each(|block| block[field.bytes.clone()].copy_from_slice(&half.to_le_bytes()));
        }
    }
    read(held.ty, &bytes, out);
}

/// Reads the row as `f` makes it of each number, its scale and its offset.
fn reading(f: fn(f32, f32, f32) -> f32) -> impl Fn(&Held<'_>, &mut [f32]) {
    move |held, out| {
        let of = |offset| field(held.ty, offset).map(|field| halves(held, field));
        let (scales, offsets) = (of(false), of(true));
        levels(held, out);
        let at = |all: &Option<Vec<f16>>, i: usize| all.as_ref().map_or(0.0, |all| all[i / 32].to_f32());
        out.iter_mut().enumerate().for_each(|(i, v)| *v = f(*v, at(&scales, i), at(&offsets, i)));
    }
}

/// Each block takes its scale, or its offset, from another block of the row.
fn elsewhere(node: &Node, values: &[f64], offset: bool) -> Option<Node> {
    let (from, head) = (values[0], of_head(node));
    let of = move |i: usize, blocks: usize| match from as usize {
        0 => (i + 1).min(blocks - 1),
        1 => i.saturating_sub(1),
        2 => i / head * head,
        3 => i % head,
        4 => 0,
        _ => i / 2 * 2,
    };
    Some(node.holding(move |held, out| {
        edited(held, offset, |all| *all = (0..all.len()).map(|i| all[of(i, all.len())]).collect(), out);
    }))
}

/// Values as a cache holds them in another format.
fn stored_as(node: &Node, values: &[f64]) -> Option<Node> {
    let (_, format, _) = *CACHES.get(values[0] as usize)?;
    Some(node.holding(move |held, out| {
        let mut values = vec![0f64; out.len()];
        quant::emulate(format, held.given, &mut values);
        out.iter_mut().zip(values).for_each(|(out, v)| *out = v as f32);
    }))
}

/// Rows multiplied by a Hadamard matrix, `n` elements at a time, before they are stored: in any order of the sums.
fn rotated(node: &Node, values: &[f64]) -> Option<Node> {
    let n = values[0] as usize;
    (n.is_power_of_two() && n > 1 && row_len(node).is_multiple_of(n)).then(|| {
        node.computing(move |inputs, _| {
            let (mut rows, mut bound) = (inputs[0].clone(), Vec::with_capacity(inputs[0].data.len()));
            for run in rows.data.chunks_exact_mut(n) {
                let reach = UNIT * run.iter().map(|v| v.abs()).sum::<f64>();
                bound.extend(std::iter::repeat_n(reach as f32, n));
                hadamard(run);
            }
            (rows, bound)
        })
    })
}

/// The fast Walsh–Hadamard transform, scaled so that it keeps lengths.
fn hadamard(x: &mut [f64]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            a.iter_mut().zip(b).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
        }
        half *= 2;
    }
    let scale = 1.0 / (x.len() as f64).sqrt();
    x.iter_mut().for_each(|v| *v *= scale);
}

/// What rounds a value in units of codes.
type Rounding = fn(f32) -> f32;

/// The elements of a row from which a block's scale and offset are computed.
#[derive(Clone, Copy)]
enum Scaled {
    /// Its own elements: scale and offset are right.
    Own,
    /// The elements of so many blocks, which share them.
    Shared(usize),
    /// Some of its own elements.
    By(PartOf),
}

/// Some elements of a block, and what becomes of codes beyond the largest one.
#[derive(Clone, Copy)]
struct PartOf {
    has: fn(usize) -> bool,
    /// Their low bits are kept; else they are cut to the largest code.
    wraps: bool,
}

/// Parts of a block of 32 that a kernel may take for the whole.
const PARTS: [fn(usize) -> bool; 8] = [
    |i| i < 16,
    |i| i >= 16,
    |i| i.is_multiple_of(2),
    |i| !i.is_multiple_of(2),
    |i| i < 8,
    |i| i < 31,
    |i| i.is_multiple_of(4),
    |i| i > 0,
];

/// A row with codes rounded otherwise, in ggml's arithmetic, or under other scales.
fn coded(held: &Held<'_>, (rounding, scaled): (Rounding, Scaled), out: &mut [f32]) {
    let (Some(format), Some(scale)) = (held.ty.format(), field(held.ty, false)) else {
        return read(held.ty, held.bytes, out);
    };
    let scales = halves(held, scale);
    let offsets = field(held.ty, true).map(|field| halves(held, field));
    let inverse = |of: f32| if of == 0.0 { 0.0 } else { 1.0 / of };
    let blocks = held.given.chunks_exact(32).zip(out.chunks_exact_mut(32)).enumerate();
    let halved = |v: f32| f16::from_f32(v).to_f32();
    let (shared, part) = match scaled {
        Scaled::Own => (1, None),
        Scaled::Shared(blocks) => (blocks, None),
        Scaled::By(part) => (1, Some(part)),
    };
    let wraps = part.is_some_and(|part| part.wraps);
    // Cut to the largest code; or its low bits, as an integer of 8 bits keeps them.
    let within = |exact: f32, top: f32| {
        let top_code = top as i32;
        if wraps { (((exact + 0.5) as i32).min(top_code) & top_code) as f32 } else { rounding(exact).clamp(0.0, top) }
    };
    for (b, (given, out)) in blocks {
        let together = &held.given[b / shared * shared * 32..held.given.len().min((b / shared + 1) * shared * 32)];
        let counts = |i: &usize| part.is_none_or(|part| (part.has)(*i));
        let all = || (0..together.len()).filter(counts).map(|i| together[i]);
        let largest = all().fold(0f32, |largest, v| if largest.abs() < v.abs() { v } else { largest });
        let (low, high) = all().fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let level = |v: f32| match (format.codes(), format.quants().map(|quants| quants.offset)) {
            (Some(Codes { levels, .. }), _) => {
                let scaled = v * inverse(largest / levels[0]);
                // The number on the side to which the rounding goes.
                let below = levels.iter().rposition(|l| *l <= scaled).unwrap_or(0);
                levels[if rounding(0.75) == 0.0 { below } else { (below + 1).min(levels.len() - 1) }]
            }
            (_, Some(Offset::PerBlock)) => {
                let top = if held.ty == GgmlType::Q4_1 { 15.0 } else { 31.0 };
                within((v - low) * inverse((high - low) / top), top)
            }
            (_, Some(Offset::ZeroPoint(zero))) if zero > 0 => {
                let zero = f32::from(zero);
                within(v * inverse(largest / -zero) + zero, 2.0 * zero - 1.0) - zero
            }
            _ => {
                let code = rounding(v * if largest == 0.0 { 0.0 } else { 127.0 / largest.abs() });
                let least = if part.is_some() { -127.0 } else { -128.0 };
                if wraps { f32::from(code as i32 as i8) } else { code.clamp(least, 127.0) }
            }
        };
        let own = (scales[b].to_f32(), offsets.as_ref().map_or(0.0, |all| all[b].to_f32()));
        let (stored, offset) = match format.quants().map(|quants| quants.offset) {
            _ if matches!(scaled, Scaled::Own) => own,
            Some(Offset::PerBlock) => {
                (halved((high - low) / if held.ty == GgmlType::Q4_1 { 15.0 } else { 31.0 }), halved(low))
            }
            Some(Offset::ZeroPoint(zero)) if zero > 0 => (halved(largest / -f32::from(zero)), 0.0),
            Some(_) => (halved(largest.abs() / 127.0), 0.0),
            None => own,
        };
        out.iter_mut().zip(given).for_each(|(out, v)| *out = level(*v) * stored + offset);
    }
}

/// Rows of q8_0 whose scales are a 128th of the largest magnitude, in the place of a 127th. The code 128 of that largest one wraps to
/// −128, or is cut to 127.
fn of_128(held: &Held<'_>, wraps: bool, out: &mut [f32]) {
    if held.ty != GgmlType::Q8_0 {
        return read(held.ty, held.bytes, out);
    }
    for (given, out) in held.given.chunks_exact(32).zip(out.chunks_exact_mut(32)) {
        let largest = given.iter().fold(0f32, |m, v| m.max(v.abs()));
        let (scale, inverse) = (largest / 128.0, if largest == 0.0 { 0.0 } else { 128.0 / largest });
        let stored = f16::from_f32(scale).to_f32();
        for (out, v) in out.iter_mut().zip(given) {
            let code = (v * inverse).round();
            *out = stored * if wraps { f32::from(code as i32 as i8) } else { code.min(127.0) };
        }
    }
}

/// A fault of all caches in blocks.
const fn cached(name: &'static str, story: &'static str, remedy: &'static str) -> Mutation {
    let seen = "text that is fluent and slightly wrong, or nonsense; right again with a cache in f16";
    Mutation { name, fits: Some(CACHED), story, seen, remedy, ..Mutation::PLAIN }
}

const FROM: &str = "0: the block after it, 1: the block before it, 2: the first block of its head, 3: the same block of the \
                    first head, 4: the first block of the row, 5: the first block of each two";

const OF_PART: Param = Param::new(
    "of",
    "0: its first 16 elements, 1: its last 16 elements, 2: its even elements, 3: its odd elements, 4: its first 8 elements, \
     5: all but its last element, 6: each fourth element, 7: all but its first element",
    0.0,
)
.searched(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);

/// The scale of each block of some of its elements.
fn by_part(node: &Node, values: &[f64], wraps: bool) -> Option<Node> {
    let part = PartOf { has: *PARTS.get(values[0] as usize)?, wraps };
    Some(node.holding(move |held, out| coded(held, (f32::round, Scaled::By(part)), out)))
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        params: &[Param::new("from", FROM, 0.0).searched(&[1.0, 2.0, 3.0, 4.0, 5.0])],
        apply: |node, values, _| elsewhere(node, values, false),
        ..cached(
            "cache-scale-elsewhere",
            "each block of a cached row is read with the scale of {from}",
            "index the scales by block: 32 elements each, head after head",
        )
    },
    Mutation {
        params: &[Param::new("from", FROM, 0.0).searched(&[1.0, 2.0, 3.0, 4.0, 5.0])],
        apply: |node, values, _| elsewhere(node, values, true),
        ..cached(
            "cache-offset-elsewhere",
            "each block of a cached row is read with the offset of {from}",
            "index the offsets by block, as the scales",
        )
    },
    Mutation {
        params: &[Param::new("blocks", "blocks of 32 that share a scale", 2.0).searched(&[4.0, 8.0, 3.0])],
        apply: |node, values, _| {
            let blocks = values[0] as usize;
            let shares = blocks > 1 && row_len(node) > 32;
            shares.then(|| node.holding(move |held, out| coded(held, (f32::round, Scaled::Shared(blocks)), out)))
        },
        ..cached(
            "cache-scale-shared",
            "several blocks of a cached row have one scale, and one offset where the format has offsets, computed from all their elements",
            "compute the scale and the offset of each block of 32 elements from its own elements",
        )
    },
    Mutation {
        params: &[OF_PART],
        apply: |node, values, _| by_part(node, values, false),
        ..cached(
            "cache-scale-of-part",
            "the scale of each cached block, and its offset where the format has offsets, is computed from {of}, in place of all 32, and larger codes are cut off",
            "compute the scale and the offset of each block from all its 32 elements",
        )
    },
    Mutation {
        params: &[OF_PART],
        apply: |node, values, _| by_part(node, values, true),
        ..cached(
            "cache-scale-of-part-wrapped",
            "the scale of each cached block, and its offset where the format has offsets, is computed from {of}, in place of all 32, and larger codes keep their low bits",
            "compute the scale and the offset of each block from all its 32 elements",
        )
    },
    Mutation {
        params: &[Param::new("top", "0: wraps to −128, 1: is cut to 127", 0.0).searched(&[1.0])],
        apply: |node, values, _| {
            let wraps = values[0] == 0.0;
            Some(node.holding(move |held, out| of_128(held, wraps, out)))
        },
        ..cached(
            "cache-scale-of-128",
            "the scale of each cached block of q8_0 is its largest magnitude divided by 128, and not by 127; the code 128 {top}",
            "divide by 127: codes go from -127 to 127",
        )
    },
    Mutation {
        apply: |node, _, _| Some(node.holding(reading(|level, _, m| level + m))),
        ..cached(
            "cache-scale-missing",
            "the scales of the cache are not used: each is taken for 1",
            "pass the scales to the kernel that reads the cache",
        )
    },
    Mutation {
        apply: |node, _, _| Some(node.holding(reading(|level, d, _| level * d))),
        ..cached(
            "cache-offset-missing",
            "the offset of each cached block is left out",
            "add the block's minimum after the scale: q4_1 and q5_1 are d * q + m",
        )
    },
    Mutation {
        apply: |node, _, _| Some(node.holding(reading(|level, d, m| level * d + m * d))),
        ..cached(
            "cache-offset-scaled",
            "the offset of each cached block is multiplied by the scale: it is added to the code",
            "add the block's minimum after the scale: q4_1 and q5_1 are d * q + m",
        )
    },
    Mutation {
        apply: |node, _, _| Some(node.holding(reading(|level, d, m| level * d.abs() + m))),
        ..cached(
            "cache-scale-unsigned",
            "the scales of the cache are read without sign",
            "keep the sign: q4_0, q5_0 and iq4_nl have a negative scale where the largest magnitude is of a positive value",
        )
    },
    Mutation {
        apply: |node, _, _| Some(node.holding(reading(|level, d, m| level * bf16::from_f32(d).to_f32() + m))),
        ..cached(
            "cache-scale-bf16",
            "the scales of the cache are kept in bf16",
            "store the scales in f16, as the format says",
        )
    },
    Mutation {
        params: &[Param::new(
            "as",
            "0: f32, 1: f16, 2: bf16, 3: e4m3, 4: e5m2, 5: q8_0, 6: q5_1, 7: q5_0, 8: q4_1, 9: q4_0, 10: iq4_nl",
            5.0,
        )
        .searched(&[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0])],
        apply: |node, values, _| stored_as(node, values),
        ..cached(
            "cache-other-format",
            "the rows are stored as {as}, which is not the format of this cache",
            "keys and values may have formats of their own: take that of this cache when it is written",
        )
    },
    Mutation {
        params: &[Param::new("n", "elements that are rotated together", 64.0).searched(&[32.0, 128.0, 256.0])],
        apply: |node, values, _| rotated(node, values),
        ..cached(
            "cache-rotated",
            "rows are multiplied by a Hadamard matrix before they are stored, and are not turned back",
            "undo the rotation behind the attention, and rotate queries as keys; or set LLAMA_ATTN_ROT_DISABLE=1",
        )
    },
    Mutation {
        params: &[Param::new("to", "0: down, 1: towards zero, 2: up", 0.0).searched(&[1.0, 2.0])],
        apply: |node, values, _| {
            let rounding: Rounding = match values[0] as usize {
                0 => f32::floor,
                1 => f32::trunc,
                _ => f32::ceil,
            };
            Some(node.holding(move |held, out| coded(held, (rounding, Scaled::Own), out)))
        },
        ..cached(
            "cache-codes-cut",
            "codes are rounded {to} and not to the nearest one",
            "round to the nearest code, for negative values too",
        )
    },
];
