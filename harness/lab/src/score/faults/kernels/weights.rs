//! Weights: rows, columns, blocks and scales that are not those of the matrix.

use super::super::{Spot, linear};
use super::rounding::quantised;
use super::{KernelFault, bug, dot, layer_before, moved, product, product_of};
use qdiff_engine::model::{Model, Node, Role, WeightSource as _};
use qdiff_engine::quant::{Part, dequantize};
use std::ops::Range;

/// The product with what `f` makes of each row of weights.
fn rewritten(s: &mut Spot<'_>, f: impl Fn(usize, &mut Vec<f32>) + Sync) {
    product(
        s,
        |_| true,
        |c, x, w| {
            let mut w = w.to_vec();
            f(c.o, &mut w);
            dot(x, &w)
        },
    );
}

/// The product with rows whose stored bytes `f` changes, given the length of a block.
fn stored(s: &mut Spot<'_>, f: impl Fn(&mut [u8], usize)) {
    let (model, weight) = (s.model, s.weight());
    let ty = model.ggml_type(weight);
    let (n, m) = s.extent(weight);
    let inputs = s.inputs;
    let x = &inputs[0].data;
    let mut w = vec![0f32; n];
    for o in 0..m {
        let mut bytes = model.row_bytes(weight, o).to_vec();
        f(&mut bytes, ty.type_size());
        dequantize(ty, &bytes, &mut w);
        for t in 0..s.positions.len() {
            s.out[t * m + o] = dot(&x[t * n..(t + 1) * n], &w) as f32;
        }
    }
}

/// Where a block of the stage's weight keeps the scale.
fn scale(s: &Spot<'_>) -> Range<usize> {
    field(s.model, s.node, Part::Scale).unwrap_or(0..0)
}

fn field(model: &Model, node: &Node, part: Part) -> Option<Range<usize>> {
    Some(model.ggml_type(&node.weights[0].name).format()?.field(part)?.bytes.clone())
}

/// Whether the rows of a weight are several blocks with scales.
fn scaled(model: &Model, node: &Node) -> bool {
    let block = model.ggml_type(&node.weights[0].name).block_size();
    field(model, node, Part::Scale).is_some() && node.weights[0].extent[0] > 2 * block
}

/// The second block has the scale of the third.
fn next_scale(s: &mut Spot<'_>) {
    let d = scale(s);
    stored(s, |bytes, block| bytes.copy_within(2 * block + d.start..2 * block + d.end, block + d.start));
}

/// Odd blocks have the scale of the one before.
fn pair_scale(s: &mut Spot<'_>) {
    let d = scale(s);
    stored(s, |bytes, block| {
        for b in (1..bytes.len() / block).step_by(2) {
            bytes.copy_within((b - 1) * block + d.start..(b - 1) * block + d.end, b * block + d.start);
        }
    });
}

/// Scales cut down to powers of two: the bits of an f16 behind the leading one are cleared.
fn power_scale(s: &mut Spot<'_>) {
    let d = scale(s);
    stored(s, |bytes, block| {
        for b in bytes.chunks_mut(block) {
            b[d.start] = 0;
            b[d.start + 1] &= 0xfc;
        }
    });
}

/// The lower half of the quants' bytes in the second block loses the upper halves of the bytes.
fn low_bits_alone(s: &mut Spot<'_>) {
    let quants = field(s.model, s.node, Part::Quants).unwrap_or(0..0);
    stored(s, |bytes, block| {
        let start = block + quants.start;
        for b in &mut bytes[start..start + quants.len() / 2] {
            *b &= 0x0f;
        }
    });
}

/// Where a row of a matrix reads its values at inputs `i`: `f(o, i)`.
fn reordered(s: &mut Spot<'_>, f: impl Fn(usize, usize) -> usize + Sync) {
    rewritten(s, |o, w| {
        let right = w.clone();
        for i in 0..w.len() {
            w[i] = right[f(o, i)];
        }
    });
}

/// Tiles of 8 by 8 weights are read across.
fn tiles_across(s: &mut Spot<'_>) {
    let w = s.values(s.weight());
    product(
        s,
        |_| true,
        |c, x, _| {
            let (top, row, n) = (c.o / 8 * 8, c.o % 8, x.len());
            (0..n).map(|i| f64::from(x[i]) * f64::from(w[(top + i % 8) * n + i / 8 * 8 + row])).sum()
        },
    );
}

/// Outputs from `first` on, with rows of the weight of the stage that `layer` and `role` name.
fn of_another(s: &mut Spot<'_>, (layer, role): (Option<u16>, Role), first: usize, row: impl Fn(usize) -> usize + Sync) {
    if let Some(other) = s.other(layer, role) {
        let inputs = s.inputs;
        let rows = (inputs[0].data.as_slice(), other.weights[0].name.as_str(), row);
        product_of(s, rows, |c| c.o >= first, |_, x, w| dot(x, w));
    }
}

/// The last head of the queries is read where the keys' first begins.
fn head_of_keys(s: &mut Spot<'_>) {
    let first = (s.config.n_heads - 1) * s.config.head_dim;
    of_another(s, (s.node.id.layer, Role::Key), first, |o| o.saturating_sub(first));
}

/// The last 32 outputs have the weights of the layer before.
fn rows_of_layer_before(s: &mut Spot<'_>) {
    let first = s.width() - 32;
    of_another(s, (layer_before(s), s.node.role), first, |o| o);
}

/// Odd rows of the gate are those of up, as where both are stored in turns.
fn interleaved(s: &mut Spot<'_>) {
    if let Some(other) = s.other(s.node.id.layer, Role::Up) {
        let inputs = s.inputs;
        let rows = (inputs[0].data.as_slice(), other.weights[0].name.as_str(), |o| o);
        product_of(s, rows, |c| c.o % 2 == 1, |_, x, w| dot(x, w));
    }
}

/// The scales of every four blocks are in another order.
fn scales_turned(s: &mut Spot<'_>) {
    let d = scale(s);
    stored(s, |bytes, block| {
        let own = bytes.to_vec();
        for b in 0..bytes.len() / block / 4 * 4 {
            let other = b / 4 * 4 + [2, 0, 3, 1][b % 4];
            bytes[b * block + d.start..b * block + d.end]
                .copy_from_slice(&own[other * block + d.start..other * block + d.end]);
        }
    });
}

/// Whole numbers up to `levels` under one scale for the whole matrix.
fn of_tensor(s: &mut Spot<'_>, levels: f32) {
    let all = s.values(s.weight());
    let step = all.iter().fold(0f32, |m, v| m.max(v.abs())) / levels;
    rewritten(s, |_, w| w.iter_mut().for_each(|v| *v = (*v / step).round() * step));
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "scales-of-four-blocks-turned",
        "of every four blocks in a row the scales are taken in the order 2 0 3 1",
        |_, n, m| linear(n, &[Role::Key, Role::Up]) && scaled(m, n) && n.weights[0].extent[0] % 256 == 0,
        scales_turned,
    ),
    bug(
        "weights-int8-per-tensor",
        "the weights are kept in 8 bits under one scale for the whole matrix",
        |_, n, _| linear(n, &[Role::Gate, Role::AttnOutput]),
        |s| of_tensor(s, 127.0),
    ),
    bug(
        "row-reads-its-neighbour",
        "the output at a third of the width is computed with the next row of weights",
        |_, n, _| linear(n, &[Role::FfnOutput, Role::Logits]),
        |s| moved(s, |c| (c.o == c.width / 3).then_some((c.t, c.o + 1))),
    ),
    bug(
        "two-input-columns-exchanged",
        "the weights of the two inputs in the middle of every row change places",
        |_, n, _| linear(n, &[Role::Query, Role::FfnOutput]),
        |s| {
            rewritten(s, |_, w| {
                let middle = w.len() / 2;
                w.swap(middle, middle + 1);
            })
        },
    ),
    bug(
        "block-takes-next-scale",
        "the second block of every row is scaled with the scale of the third",
        |_, n, m| linear(n, &[Role::Value, Role::AttnOutput]) && scaled(m, n),
        next_scale,
    ),
    bug(
        "block-pairs-share-scale",
        "two blocks are unpacked at a time, both with the scale of the first",
        |_, n, m| linear(n, &[Role::Gate, Role::Logits]) && scaled(m, n),
        pair_scale,
    ),
    bug(
        "scales-as-powers-of-two",
        "of the scale of a block only the exponent is kept",
        |_, n, m| linear(n, &[Role::AttnOutput, Role::Up]) && scaled(m, n),
        power_scale,
    ),
    bug(
        "high-bits-lost-in-part-of-a-block",
        "in the second block of every row the first half of the quant bytes loses its high four bits",
        |_, n, m| linear(n, &[Role::Key, Role::FfnOutput]) && scaled(m, n),
        low_bits_alone,
    ),
    bug(
        "requantised-to-four-bits",
        "the weights were quantised once more, to 15 levels of each 32",
        |_, n, _| linear(n, &[Role::FfnOutput, Role::Up]),
        |s| rewritten(s, |_, w| *w = w.chunks(32).flat_map(|block| quantised(block, 7.0)).collect()),
    ),
    bug(
        "swizzle-undone-in-even-rows-only",
        "in odd rows the halves of every 32 weights are exchanged",
        |_, n, _| linear(n, &[Role::Key, Role::Gate]),
        |s| reordered(s, |o, i| if o % 2 == 1 { i ^ 16 } else { i }),
    ),
    bug(
        "weight-tiles-read-across",
        "every tile of 8 by 8 weights is read transposed",
        |_, n, _| linear(n, &[Role::Value]),
        tiles_across,
    ),
    bug(
        "last-head-reads-key-rows",
        "of a fused projection the last query head begins where the keys do",
        |_, n, _| linear(n, &[Role::Query]),
        head_of_keys,
    ),
    bug(
        "last-rows-of-layer-before",
        "the last 32 outputs are computed with the weights of the layer before",
        |_, n, _| linear(n, &[Role::FfnOutput, Role::Up]) && n.id.layer > Some(0),
        rows_of_layer_before,
    ),
    bug(
        "gate-and-up-in-turns",
        "gate and up are taken to be stored in turns: odd outputs of the gate have the weights of up",
        |_, n, _| linear(n, &[Role::Gate]),
        interleaved,
    ),
    bug(
        "first-block-of-every-row-mirrored",
        "the first 32 weights of every row are unpacked from the last to the first",
        |_, n, _| linear(n, &[Role::AttnOutput, Role::Logits]),
        |s| reordered(s, |_, i| if i < 32 { 31 - i } else { i }),
    ),
];
