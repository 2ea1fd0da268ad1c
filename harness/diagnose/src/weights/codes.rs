//! Which field of a block of codes was decoded wrongly, told from its values alone.
//!
//! A weight is `s·t` with a number `t` of the format's table and a scale `s` of a run of weights.

use qdiff_engine::quant::{Codes, Format, Part};

/// Relative distance that a fit may leave.
pub(super) const FITTED: f64 = 1e-4;

/// The factor on the second of each pair that gives the first, by least squares,
/// where none is further off than fits a `size`.
pub(super) fn factor(pairs: &[(f64, f64)], size: f64) -> Option<f64> {
    let (gc, cc) = pairs.iter().fold((0.0, 0.0), |(gc, cc), (g, c)| (gc + g * c, cc + c * c));
    let factor = gc / cc;
    pairs.iter().all(|(g, c)| (g - factor * c).abs() <= FITTED * size).then_some(factor)
}

/// The fields that must differ for `got` to stand where `want` belongs; empty where no rule of one kind of field gives it.
pub(super) fn decoded_wrongly(format: &Format, codes: Codes, got: &[f64], want: &[f64]) -> Vec<Part> {
    if !got.iter().all(|v| v.is_finite()) {
        return Vec::new();
    }
    if let Some(part) = scaled(format, codes, got, want) {
        return vec![part];
    }
    let has = |part| format.field(part).is_some();
    let same_sizes = got.iter().zip(want).all(|(g, w)| g.abs() == w.abs());
    let signs = [Part::Signs, Part::Packed].into_iter().find(|part| has(*part));
    match signs {
        // Numbers that are shifted by a sign of their own have no other signs.
        Some(signs) if same_sizes && symmetric(codes) => vec![signs],
        _ if got.chunks(codes.run).zip(want.chunks(codes.run)).all(|(g, w)| of_the_table(codes, g, w)) => {
            // Which bits of a code are wrong its value does not say.
            [Part::Codes, Part::HighBits, Part::Packed].into_iter().filter(|part| has(*part)).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether signs stand apart from the codes: the table then has every number with both, and none is less than 1.
fn symmetric(codes: Codes) -> bool {
    codes.levels.iter().all(|l| l.abs() >= 1.0 && codes.levels.contains(&-l))
}

/// One factor on every run: the scale of the block, or those of its sub-blocks.
fn scaled(format: &Format, codes: Codes, got: &[f64], want: &[f64]) -> Option<Part> {
    let mut factors = Vec::new();
    for (g, w) in got.chunks(codes.run).zip(want.chunks(codes.run)) {
        if w.iter().all(|w| *w == 0.0) {
            g.iter().all(|g| *g == 0.0).then_some(())?;
            continue;
        }
        let pairs: Vec<_> = g.iter().copied().zip(w.iter().copied()).collect();
        let size = pairs.iter().fold(0.0, |size: f64, (g, w)| size.max(g.abs()).max(w.abs()));
        factors.push(factor(&pairs, size)?);
    }
    let first = *factors.first()?;
    let one = factors.iter().all(|f| (f - first).abs() <= FITTED * first.abs().max(1.0));
    let whole = [Part::Scale, Part::Exponent, Part::SplitScale].into_iter().find(|part| format.field(*part).is_some());
    let packed = || format.field(Part::Packed).map(|f| f.part);
    if one { whole } else { None }.or_else(|| format.sub_scales().map(|f| f.part)).or_else(packed)
}

/// Whether the values of a run are numbers of the table under a scale that gives the right ones too.
fn of_the_table(codes: Codes, got: &[f64], want: &[f64]) -> bool {
    let largest = want.iter().fold(0.0_f64, |m, w| if w.abs() > m.abs() { *w } else { m });
    let fits =
        |v: &f64, scale: f64| codes.levels.iter().any(|l| (v - f64::from(*l) * scale).abs() <= FITTED * largest.abs());
    let mut scales = codes.levels.iter().filter(|l| **l != 0.0).map(|l| largest / f64::from(*l));
    largest != 0.0 && scales.any(|scale| want.iter().chain(got).all(|v| fits(v, scale)))
}

#[cfg(test)]
mod tests {
    use crate::llama::gguf::to_float;
    use crate::weights::field::decoded_wrongly;
    use proptest::prelude::*;
    use qdiff_engine::quant::{GgmlType, Part};

    fn decode(ty: GgmlType, block: &[u8]) -> Vec<f32> {
        let mut out = vec![0f32; ty.block_size()];
        to_float(ty.id() as _, block, &mut out);
        out
    }

    /// Scales that switch no run off, in a block of random bytes.
    fn tame(format: &qdiff_engine::quant::Format, block: &mut [u8]) {
        for field in format.fields {
            let bytes = &mut block[field.bytes.clone()];
            match field.part {
                Part::Scale => bytes.copy_from_slice(&[0x00, 0x3e]),
                Part::Exponent => bytes[0] = 120,
                Part::SmallFloats => bytes.iter_mut().for_each(|b| *b = 0x30 | *b & 7),
                Part::SplitScale => {
                    (0..4).for_each(|i| bytes[2 * i + 1] = bytes[2 * i + 1] & 0x0f | [0, 0, 0, 0x30][i])
                }
                Part::SubScales => bytes.iter_mut().for_each(|b| *b = *b & 0x33 | 0x11),
                _ => {}
            }
        }
    }

    proptest! {
        /// Whichever field is changed, it is among those that the values tell.
        #[test]
        fn the_field_is_told_by_its_values(
            ty in proptest::sample::select(GgmlType::ALL_SUPPORTED),
            seed in proptest::collection::vec(any::<u8>(), 136),
        ) {
            let format = ty.format().unwrap();
            prop_assume!(format.codes().is_some());
            let mut right = seed[..ty.type_size()].to_vec();
            tame(format, &mut right);
            for field in format.fields {
                let mut wrong = right.clone();
                let bytes = &mut wrong[field.bytes.clone()];
                match field.part {
                    Part::Scale => bytes[1] += 4,
                    Part::Exponent => bytes[0] += 1,
                    // One sub-block of them.
                    Part::SubScales => bytes[0] ^= 2,
                    Part::SmallFloats => bytes[0] ^= 8,
                    // Two fields say something of them.
                    Part::SubScalesHigh => continue,
                    Part::SplitScale => bytes[0] ^= 1,
                    Part::Codes | Part::Signs => bytes.iter_mut().for_each(|b| *b ^= 0x5a),
                    Part::HighBits => bytes.iter_mut().for_each(|b| *b ^= 1),
                    // Signs of the first weights, where there are some.
                    _ => bytes[if bytes.len() == 16 { 0 } else { 4 }] ^= 3,
                }
                // Bits that the decoder drops change no weight.
                if decode(ty, &wrong) == decode(ty, &right) {
                    continue;
                }
                let found = decoded_wrongly(format, &right, &decode(ty, &wrong), &decode(ty, &right));
                prop_assert!(found.contains(&field.part), "{} {}: {:?}", ty, field.name, found);
            }
        }
    }

    #[test]
    fn values_from_nowhere_are_of_no_field() {
        let ty = GgmlType::IQ4_XS;
        let mut right: Vec<u8> = (0..136).map(|i| (i * 37 + 11) as u8).collect();
        tame(ty.format().unwrap(), &mut right);
        let noise: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).sin() * 20.0).collect();
        assert_eq!(decoded_wrongly(ty.format().unwrap(), &right, &noise, &decode(ty, &right)), vec![]);
    }
}
