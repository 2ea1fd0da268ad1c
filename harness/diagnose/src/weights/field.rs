//! Which field of a block was decoded wrongly, told from its values alone: where
//! the bytes are equal and what is made of them is not.
//!
//! A weight is `s·q − m` with a quant `q`, a scale `s` and an offset `m`. All three come out of ggml's own decoder,
//! given the block with fields cleared or filled, so that no second decoder is needed.

use super::codes::{self, FITTED, factor};
use crate::llama::gguf::to_float;
use qdiff_engine::quant::{Content, Format, Part};

/// Share of a quant that rounding may take.
const STEP: f64 = 1e-2;

/// A block's weights taken apart, one entry a weight.
struct Parts {
    /// The smallest value: all quant bits zero.
    zero: Vec<f64>,
    /// What a quant of one more adds.
    step: Vec<f64>,
    /// What is there with a scale of zero.
    base: Vec<f64>,
}

/// The fields that must differ for `got` to come of `block`, which holds
/// `want`; empty where no rule of one kind of field gives it.
pub(super) fn decoded_wrongly(format: &Format, block: &[u8], got: &[f32], want: &[f32]) -> Vec<Part> {
    let wide = |v: &[f32]| v.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let (got, want) = (wide(got), wide(want));
    let run = match format.content {
        Content::Quants(quants) => quants.run,
        Content::Codes(codes) => return codes::decoded_wrongly(format, codes, &got, &want),
        Content::F32 | Content::F16 | Content::Bf16 => return vec![Part::Number],
    };
    let Some(parts) = Parts::of(format, block).filter(|_| got.iter().all(|v| v.is_finite())) else {
        return Vec::new();
    };
    let of_scales = scaled(format, &parts, &got, &want, run)
        .or_else(|| shifted(format, &parts, &got, &want, run))
        .or_else(|| rescaled(format, &got, &want, run));
    match of_scales {
        Some(part) => vec![part],
        None => requantised(format, &parts, &got, &want),
    }
}

impl Parts {
    fn of(format: &Format, block: &[u8]) -> Option<Self> {
        let decode = |edit: &dyn Fn(&mut [u8])| {
            let mut bytes = block.to_vec();
            edit(&mut bytes);
            let mut out = vec![0f32; format.ty.block_size()];
            to_float(format.ty.id() as _, &bytes, &mut out);
            out.into_iter().map(f64::from).collect::<Vec<f64>>()
        };
        let scale = format.field(Part::Scale)?;
        let zero = decode(&|block| format.set_quants(block, 0));
        let one = decode(&|block| format.set_quants(block, 1));
        let base = decode(&|block| block[scale.bytes.clone()].fill(0));
        let step: Vec<f64> = one.iter().zip(&zero).map(|(o, z)| o - z).collect();
        let plain = step.iter().all(|s| *s != 0.0 && s.is_finite());
        plain.then_some(Self { zero, step, base })
    }
}

/// One factor on the scaled part of every run: the scale of the block, or those of its sub-blocks.
fn scaled(format: &Format, p: &Parts, got: &[f64], want: &[f64], run: usize) -> Option<Part> {
    let mut factors = Vec::new();
    for at in (0..got.len()).step_by(run) {
        let pairs: Vec<_> = (at..at + run).map(|i| (got[i] - p.base[i], want[i] - p.base[i])).collect();
        if pairs.iter().all(|(_, c)| *c == 0.0) {
            pairs.iter().all(|(g, _)| *g == 0.0).then_some(())?;
            continue;
        }
        let size = pairs.iter().fold(0.0, |size: f64, (g, c)| size.max(g.abs()).max(c.abs()));
        factors.push(factor(&pairs, size)?);
    }
    alike(format, &factors, Part::Scale)
}

/// Another offset in every run, the scaled part as it is.
fn shifted(format: &Format, p: &Parts, got: &[f64], want: &[f64], run: usize) -> Option<Part> {
    format.field(Part::Offset)?;
    let mut factors = Vec::new();
    for at in (0..got.len()).step_by(run) {
        let moved = got[at] - want[at];
        let size = want[at..at + run].iter().fold(moved.abs(), |m, v| m.max(v.abs()));
        let same = (at..at + run).all(|i| (got[i] - want[i] - moved).abs() <= FITTED * size);
        same.then_some(())?;
        if p.base[at] != 0.0 {
            factors.push(1.0 + moved / p.base[at]);
        } else {
            (moved.abs() <= FITTED * size).then_some(())?;
        }
    }
    alike(format, &factors, Part::Offset)
}

/// Another factor and another offset in every run: both stand packed in the sub-blocks' scales.
fn rescaled(format: &Format, got: &[f64], want: &[f64], run: usize) -> Option<Part> {
    let packed = [Part::PackedScales, Part::SubScales].into_iter().find(|part| format.field(*part).is_some())?;
    format.field(Part::Offset)?;
    let fits = got.chunks(run).zip(want.chunks(run)).all(|(got, want)| {
        let n = got.len() as f64;
        let (g, w) = (got.iter().sum::<f64>() / n, want.iter().sum::<f64>() / n);
        let pairs: Vec<_> = got.iter().zip(want).map(|(got, want)| (got - g, want - w)).collect();
        let size = got.iter().chain(want).fold(0.0, |m: f64, v| m.max(v.abs()));
        // A factor of zero is no reading of the quants at all.
        factor(&pairs, size).is_some_and(|factor| factor.abs() > FITTED)
    });
    fits.then_some(packed)
}

/// `whole` where one factor holds of every run, the sub-blocks' scales where each has its own.
fn alike(format: &Format, factors: &[f64], whole: Part) -> Option<Part> {
    let first = *factors.first()?;
    let one = factors.iter().all(|f| (f - first).abs() <= FITTED * first.abs().max(1.0));
    if one { Some(whole) } else { format.sub_scales().map(|f| f.part) }
}

/// Other quants under the same scales: the low bits, the upper ones, or both.
fn requantised(format: &Format, p: &Parts, got: &[f64], want: &[f64]) -> Vec<Part> {
    let mut bits = 0i64;
    for i in 0..got.len() {
        let quant = |v: f64| (v - p.zero[i]) / p.step[i];
        let (g, w) = (quant(got[i]), quant(want[i]));
        if (g - g.round()).abs() > STEP || g.abs() > 1024.0 {
            return Vec::new();
        }
        bits |= (g.round() as i64) ^ (w.round() as i64);
    }
    let high = format.field(Part::HighBits).is_some();
    let low = (1 << format.bits(Part::Quants)) - 1;
    match (high && bits & !low != 0, !high || bits & low != 0) {
        (true, false) => vec![Part::HighBits],
        (true, true) => vec![Part::Quants, Part::HighBits],
        _ => vec![Part::Quants],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qdiff_engine::quant::GgmlType;

    fn decode(ty: GgmlType, block: &[u8]) -> Vec<f32> {
        let mut out = vec![0f32; ty.block_size()];
        to_float(ty.id() as _, block, &mut out);
        out
    }

    /// A block of random quants under plain scales.
    fn block(format: &Format, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut bytes: Vec<u8> = (0..format.ty.type_size())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        for part in [Part::Scale, Part::Offset] {
            if let Some(field) = format.field(part) {
                // 1.5 and 0.75: neither is near the other.
                bytes[field.bytes.clone()].copy_from_slice(match part {
                    Part::Scale => &[0x00, 0x3e],
                    _ => &[0x00, 0x3a],
                });
            }
        }
        if let Some(field) = format.sub_scales() {
            // No sub-block is switched off.
            bytes[field.bytes.clone()].iter_mut().for_each(|b| *b = (*b & 0x33) | 0x11);
        }
        bytes
    }

    proptest! {
        /// Whichever field is changed, the values alone tell it.
        #[test]
        fn the_field_is_told_by_its_values(ty in proptest::sample::select(GgmlType::ALL_SUPPORTED), seed: u64) {
            let format = ty.format().unwrap();
            prop_assume!(format.quants().is_some());
            let right = block(format, seed);
            for field in format.fields {
                let mut wrong = right.clone();
                let bytes = &mut wrong[field.bytes.clone()];
                match field.part {
                    // Doubled: the exponent of the half goes up by one.
                    Part::Scale | Part::Offset => bytes[1] += 4,
                    Part::PackedScales | Part::ByteScales | Part::SubScales => bytes[0] ^= 2,
                    _ => bytes.iter_mut().for_each(|b| *b ^= 0x5a),
                }
                let found = decoded_wrongly(format, &right, &decode(ty, &wrong), &decode(ty, &right));
                prop_assert_eq!(found, vec![field.part], "{} {}", ty, field.name);
            }
        }
    }

    #[test]
    fn values_from_nowhere_are_of_no_field() {
        let format = GgmlType::Q4_K.format().unwrap();
        let right = block(format, 7);
        let noise: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).sin() * 20.0).collect();
        let want = decode(GgmlType::Q4_K, &right);
        assert_eq!(decoded_wrongly(format, &right, &noise, &want), vec![]);
    }
}
