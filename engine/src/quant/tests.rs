//! Small checks; `tests/tests/suite/quant_vs_ggml.rs` compares with ggml itself.

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

proptest! {
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
