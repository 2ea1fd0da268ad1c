//! Small checks; `tests/tests/suite/quant_vs_ggml.rs` compares with ggml itself.

use half::f16;
use proptest::prelude::*;

use super::*;

#[test]
fn tf32_rounds_ties_to_even() {
    let last = 1.0 / 1024.0;
    for (x, want) in [
        (1.0 + 0.5 * last, 1.0),
        (1.0 + 1.5 * last, 1.0 + 2.0 * last),
        (-1.0 - 0.5 * last, -1.0),
        (1.0 + 0.501 * last, 1.0 + last),
    ] {
        let mut out = [0.0];
        emulate(ActivationFormat::Tf32, &[x], &mut out);
        assert_eq!(out, [f64::from(want)], "{x}");
    }
}

#[test]
fn a_value_at_a_tie_may_become_either_neighbour() {
    let mut x = [0.0_f32; 32];
    (x[3], x[9]) = (127.0, -81.5);
    let ties = ties(ActivationFormat::Q8_1Mmvq, &x);
    let change = vec![1.0];
    assert_eq!(ties, [Tie { first: 9, change }]); // -82 -> -81
    assert!(super::ties(ActivationFormat::Q8_0, &x).is_empty());
}

/// 128 does not fit into 8 bits: opposite to the largest, 127.5 and more become 127.
#[test]
fn the_largest_becomes_128_with_its_sign_alone() {
    let mut x = [0.0_f32; 256];
    (x[7], x[8], x[9], x[10], x[11]) = (64.0, -64.0, -63.8, -0.25, 63.8);
    let mut out = [0.0; 256];
    emulate(ActivationFormat::Q8K128, &x, &mut out);
    assert_eq!(out[7..12], [64.0, -63.5, -63.5, -0.5, 64.0]);
    let at = |d: f32| uncertainty(ActivationFormat::Q8K128, &x, Some(&[d; 256]));
    // The second may be the larger one: then that is 128, and the first is not.
    assert!(at(1e-3)[7..10].iter().all(|u| *u >= 0.5), "{:?}", &at(1e-3)[7..10]);
    x[8] = -63.9;
    let at = uncertainty(ActivationFormat::Q8K128, &x, Some(&[1e-3; 256]));
    assert!(at[8] < 0.01 && at[9] < 0.01, "no tie is beyond 127: {:?}", &at[7..10]);
}

/// The sum of the quants and its product with the scale are rounded.
#[test]
fn the_half_sum_is_rounded_twice() {
    let mut x = [100.0_f32; 32];
    (x[0], x[1]) = (127.0 * 1.001, 98.4);
    let mut emulated = vec![0.0; 32];
    emulate(ActivationFormat::Q8_1HalfSum, &x, &mut emulated);
    let d = f16::from_f32(1.001);
    // 127 + 98 + 30 * 100; of such numbers f16 has the even ones.
    let quants: f64 = emulated.iter().map(|v| v / d.to_f64()).sum();
    assert_eq!(quants.round(), 3225.0);
    let mut residuals = Vec::new();
    sum_residuals(ActivationFormat::Q8_1HalfSum, &x, &emulated, &mut residuals);
    let sum = f16::from_f32(3224.0) * d;
    assert_eq!(residuals, [sum.to_f64() - emulated.iter().sum::<f64>()]);
    assert!(takes_sums(GgmlType::Q4_1, ActivationFormat::Q8_1HalfSum));
}

proptest! {
    /// Scaled by -128 over the largest in place of -127, and no quant above 127: another way to write candle 0.10's loop.
    #[test]
    fn blocks_of_128_are_those_of_candle(x in proptest::collection::vec(-1e3_f32..1e3, 512)) {
        let mut out = vec![0.0; 512];
        emulate(ActivationFormat::Q8K128, &x, &mut out);
        for (x, out) in x.chunks(256).zip(out.chunks(256)) {
            let max = x.iter().copied().reduce(|max, v| if v.abs() > max.abs() { v } else { max }).unwrap();
            let iscale = -128_f32 / max;
            for (x, out) in x.iter().zip(out) {
                let quant = (iscale * x).round().min(127.0) as i8;
                prop_assert_eq!(*out, f64::from(1.0 / iscale) * f64::from(quant));
            }
        }
    }

    /// The quants and scales of Q8_1HalfSum are those of Q8_0Ref; its sum is within three roundings to f16 of theirs.
    #[test]
    fn the_half_sum_is_near_the_sum(x in proptest::collection::vec(-1e3_f32..1e3, 64)) {
        let (mut a, mut b) = (vec![0.0; 64], vec![0.0; 64]);
        emulate(ActivationFormat::Q8_1HalfSum, &x, &mut a);
        emulate(ActivationFormat::Q8_0Ref, &x, &mut b);
        prop_assert_eq!(&a, &b);
        let mut residuals = Vec::new();
        sum_residuals(ActivationFormat::Q8_1HalfSum, &x, &a, &mut residuals);
        prop_assert_eq!(residuals.len(), 2);
        for (residual, a) in residuals.iter().zip(a.chunks(32)) {
            prop_assert!(residual.abs() <= a.iter().sum::<f64>().abs() * 2.1 / 2048.0 + 1e-7);
        }
    }

    /// The floats of a block say which blocks unpack to NaN or infinity, and none else does.
    #[test]
    fn blocks_that_are_not_finite_are_found_by_their_floats(
        ty in proptest::sample::select(GgmlType::ALL_SUPPORTED),
        mut bytes in proptest::collection::vec(any::<u8>(), 4 * 256 * 4),
        top in proptest::collection::vec(0x7a_u8..=0x7f, 4 * 256),
    ) {
        let format = ty.format().unwrap();
        bytes.truncate(ty.row_bytes(1024));
        // The upper bytes of the floats: about the largest exponent, of which chance has too few.
        for (block, top) in bytes.chunks_exact_mut(ty.type_size()).zip(top) {
            let last = |field: &Field| field.bytes.end - 1;
            for field in format.fields {
                match field.part {
                    Part::Scale | Part::Offset | Part::Number => block[last(field)] = top,
                    Part::Exponent => block[last(field)] = top | 0x80,
                    Part::SplitScale => {
                        block[last(field)] = top << 4 | 0x0f;
                        block[last(field) - 2] |= 0xc0;
                    }
                    _ => {}
                }
            }
        }
        let mut weights = vec![0.0; 1024];
        dequantize(ty, &bytes, &mut weights);
        let wrong = weights.chunks(ty.block_size()).enumerate().filter(|(_, w)| w.iter().any(|w| !w.is_finite()));
        let found = format.not_finite(&bytes);
        prop_assert_eq!(found.map(|(at, _)| at).collect::<Vec<_>>(), wrong.map(|(at, _)| at).collect::<Vec<_>>());
    }

    /// The AVX2 and the baseline compilation give the same bits.
    #[test]
    fn dispatch_does_not_change_results(
        ty in proptest::sample::select(GgmlType::ALL_SUPPORTED),
        seed in proptest::collection::vec(any::<u8>(), 420),
    ) {
        let weights = if ty.block_size() == 1 { 77 } else { 2 * ty.block_size() };
        let bytes: Vec<u8> = seed.iter().copied().cycle().take(ty.row_bytes(weights)).collect();
        let (mut a, mut b) = (vec![0.0; weights], vec![0.0; weights]);
        dequantize(ty, &bytes, &mut a);
        unpack(ty, &bytes, &mut b);
        for (a, b) in a.iter().zip(&b) {
            prop_assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()));
        }
    }
}
