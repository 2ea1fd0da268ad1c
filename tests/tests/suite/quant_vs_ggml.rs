//! qdiff's number formats against ggml's own code, bit for bit.

use std::ffi::{CStr, c_void};

use half::f16;
use llama_cpp_sys_2 as sys;
use proptest::prelude::*;
use proptest::sample::select;
use qdiff_engine::quant::{self, ActivationFormat, FORMATS, GgmlType, Offset, Part};

fn traits(ty: GgmlType) -> &'static sys::ggml_type_traits {
    // SAFETY: the id is valid, so this is a pointer into ggml's static table.
    unsafe { &*sys::ggml_get_type_traits(ty.id() as sys::ggml_type) }
}

/// ggml's conversion of whole blocks to `n` floats.
fn to_float(ty: GgmlType, bytes: &[u8], n: usize) -> Vec<f32> {
    let Some(to_float) = traits(ty).to_float else {
        // F32 alone has none, as nothing is to be done.
        assert_eq!(ty, GgmlType::F32);
        return bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    };
    assert_eq!(bytes.len(), ty.row_bytes(n));
    let mut aligned = vec![0_u64; bytes.len().div_ceil(8)];
    for (to, from) in aligned.iter_mut().zip(bytes.chunks(8)) {
        let mut word = [0; 8];
        word[..from.len()].copy_from_slice(from);
        *to = u64::from_le_bytes(word);
    }
    let mut out = vec![0.0; n];
    // SAFETY: `aligned` holds the blocks of `n` weights, `out` has room for them.
    unsafe { to_float(aligned.as_ptr().cast(), out.as_mut_ptr(), n as i64) };
    out
}

/// ggml's quantisation of activations, as blocks of `size` bytes per `per` elements.
fn from_float(id: sys::ggml_type, x: &[f32], per: usize, size: usize) -> Vec<u8> {
    let mut out = vec![0_u64; (x.len() / per * size).div_ceil(8)];
    // SAFETY: `id` is a valid type whose traits are static; `out` has room for all blocks.
    unsafe {
        sys::ggml_cpu_init();
        let from_float = (*sys::ggml_get_type_traits_cpu(id)).from_float.expect("has a quantiser");
        from_float(x.as_ptr(), out.as_mut_ptr().cast::<c_void>(), x.len() as i64);
    }
    let mut bytes: Vec<u8> = out.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.truncate(x.len() / per * size);
    bytes
}

/// The same by the code without vector instructions, which other engines follow.
fn from_float_ref(ty: GgmlType, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0_u64; ty.row_bytes(x.len()).div_ceil(8)];
    let from_float = traits(ty).from_float_ref.expect("has a quantiser");
    // SAFETY: `out` has room for all blocks.
    unsafe { from_float(x.as_ptr(), out.as_mut_ptr().cast::<c_void>(), x.len() as i64) };
    let mut bytes: Vec<u8> = out.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.truncate(ty.row_bytes(x.len()));
    bytes
}

fn check_dequantize(ty: GgmlType, bytes: &[u8], n: usize) -> Result<(), TestCaseError> {
    let want = to_float(ty, bytes, n);
    let mut got = vec![0.0; n];
    quant::dequantize(ty, bytes, &mut got);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        prop_assert!(
            got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
            "{ty} weight {i}: {got:e} is not ggml's {want:e}"
        );
    }
    Ok(())
}

/// Values of very different sizes in one row, as activations are.
fn activations() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -8.0_f32..8.0,
        2 => -500.0_f32..500.0,
        1 => Just(0.0_f32),
        1 => -1e-4_f32..1e-4,
    ];
    // Multiples of a power of two hit the halves that rounding has to break.
    let grid = (-254_i32..=254).prop_map(|i| i as f32 * 0.5);
    prop_oneof![
        4 => proptest::collection::vec(value, 512),
        2 => proptest::collection::vec(grid, 512),
        1 => Just(vec![0.0; 512]),
        // Both ends of a block at one magnitude, and zeros between: either may be the largest.
        1 => (0.5_f32..8.0).prop_map(|v| (0..512).map(|i| [v, 0.0, -v, 0.0, 0.3 * v, 0.0][i % 6]).collect()),
    ]
}

/// The formats of activations of ggml's CPU backend.
const CPU: [ActivationFormat; 6] = [
    ActivationFormat::F32,
    ActivationFormat::F16,
    ActivationFormat::Bf16,
    ActivationFormat::Q8_0,
    ActivationFormat::Q8_1,
    ActivationFormat::Q8K,
];

/// (id, elements per block, bytes per block) of ggml's formats of activations.
fn layout(fmt: ActivationFormat) -> (sys::ggml_type, usize, usize) {
    match fmt {
        ActivationFormat::F32 => (0, 1, 4),
        ActivationFormat::F16 => (1, 1, 2),
        ActivationFormat::Bf16 => (30, 1, 2),
        ActivationFormat::Q8_0 => (8, 32, 34),
        ActivationFormat::Q8_1 => (9, 32, 36),
        ActivationFormat::Q8K => (15, 256, 292),
        other => unreachable!("{other:?} is no format of ggml's CPU backend"),
    }
}

/// The formats of caches in blocks, as ggml's CPU backend writes and reads them.
const CACHES: [(ActivationFormat, GgmlType); 6] = [
    (ActivationFormat::Q8_0, GgmlType::Q8_0),
    (ActivationFormat::Q5_1, GgmlType::Q5_1),
    (ActivationFormat::Q5_0, GgmlType::Q5_0),
    (ActivationFormat::Q4_1, GgmlType::Q4_1),
    (ActivationFormat::Q4_0, GgmlType::Q4_0),
    (ActivationFormat::Iq4Nl, GgmlType::IQ4_NL),
];

fn half_at(b: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f64()
}

/// The exact values of blocks of activations.
fn decode(fmt: ActivationFormat, bytes: &[u8]) -> Vec<f64> {
    let (_, _, size) = layout(fmt);
    let mut out = Vec::new();
    for b in bytes.chunks_exact(size) {
        let (d, quants) = match fmt {
            ActivationFormat::F16 => {
                out.push(half_at(b, 0));
                continue;
            }
            ActivationFormat::Bf16 => {
                out.push(half::bf16::from_le_bytes([b[0], b[1]]).to_f64());
                continue;
            }
            ActivationFormat::Q8_0 => (half_at(b, 0), &b[2..34]),
            ActivationFormat::Q8_1 => (half_at(b, 0), &b[4..36]),
            ActivationFormat::Q8K => (f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])), &b[4..260]),
            other => unreachable!("{other:?} has no blocks"),
        };
        out.extend(quants.iter().map(|q| d * f64::from(*q as i8)));
    }
    out
}

#[test]
fn the_type_table_is_ggmls() {
    for id in 0..64 {
        if id >= sys::GGML_TYPE_COUNT {
            assert_eq!(GgmlType::from_id(id), None);
            continue;
        }
        // SAFETY: the id is below the count, so this is a pointer into a static table.
        let traits = unsafe { &*sys::ggml_get_type_traits(id) };
        match GgmlType::from_id(id) {
            None => assert_eq!(traits.blck_size, 0, "type {id}"),
            Some(ty) => {
                // SAFETY: a name in the table is a static C string.
                let name = unsafe { CStr::from_ptr(traits.type_name) };
                assert_eq!(name.to_str(), Ok(ty.name()));
                assert_eq!(traits.blck_size, ty.block_size() as i64, "{ty}");
                assert_eq!(traits.type_size, ty.type_size(), "{ty}");
            }
        }
    }
}

#[test]
fn what_ggml_multiplies_with_is_in_the_table_of_formats() {
    for ty in GgmlType::ALL_SUPPORTED {
        // SAFETY: the id is valid, so this is a pointer into a static table.
        let want = unsafe { (*sys::ggml_get_type_traits_cpu(ty.id())).vec_dot_type };
        assert_eq!(layout(ty.format().expect("its description").dot).0, want, "{ty}");
    }
}

/// What a format's description says of quants is true of the blocks as ggml
/// reads them: a quant at the zero point is worth nothing, a run shares a scale,
/// and a byte of the low bits holds weights a stride apart.
#[test]
fn the_descriptions_are_ggmls() {
    for format in FORMATS {
        let (ty, Some(quants)) = (format.ty, format.quants()) else {
            continue;
        };
        let n = ty.block_size();
        let read = |block: &[u8]| to_float(ty, block, n);
        let mut block: Vec<u8> = (0..ty.type_size()).map(|i| 0x11 + (i % 7) as u8).collect();
        let zero = if let Offset::ZeroPoint(zero) = quants.offset { zero } else { 0 };
        format.set_quants(&mut block, zero);
        let base = read(&block);
        if !matches!(quants.offset, Offset::PerBlock | Offset::PerSubBlock) {
            assert!(base.iter().all(|v| *v == 0.0), "{ty}: {base:?}");
        }
        format.set_quants(&mut block, zero + 1);
        let one = read(&block);
        for (run, base) in one.chunks(quants.run).zip(base.chunks(quants.run)) {
            assert!(run.iter().all(|v| v == &run[0]) && run[0] != base[0], "{ty}: {run:?}");
        }
        let low = format.field(Part::Quants).expect("its quants stand somewhere");
        let per_byte = 8 / format.bits(Part::Quants);
        for (i, at) in low.bytes.clone().enumerate() {
            let mut other = block.clone();
            other[at] = !other[at];
            let first = i / quants.stride * quants.stride * per_byte + i % quants.stride;
            let changed: Vec<usize> =
                read(&other).iter().zip(&one).enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect();
            let want: Vec<usize> = (0..per_byte).map(|k| first + k * quants.stride).collect();
            assert_eq!(changed, want, "{ty}, byte {i} of its quants");
        }
    }
}

/// What a format's description says of codes is true of the blocks as ggml reads them: the weights of a run are numbers of
/// the table under one scale, and every number occurs.
#[test]
fn the_tables_of_codes_are_ggmls() {
    for format in FORMATS {
        let (ty, Some(codes)) = (format.ty, format.codes()) else {
            continue;
        };
        let fits = |w: f32, scale: f32| codes.levels.iter().position(|l| (w - l * scale).abs() <= 1e-6 * scale.abs());
        let mut seen = vec![false; codes.levels.len()];
        let mut state = 1_u64;
        for _ in 0..200 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            let mut block: Vec<u8> = (0..ty.type_size()).map(|_| next()).collect();
            for field in format.fields {
                match field.part {
                    Part::Scale => block[field.bytes.clone()].copy_from_slice(&f16::from_f32(0.75).to_le_bytes()),
                    Part::Exponent => block[field.bytes.start] = 120,
                    // The f16 among them is 1.
                    Part::SplitScale => (0..4).for_each(|i| {
                        let at = field.bytes.start + 2 * i + 1;
                        block[at] = block[at] & 0x0f | [0, 0, 0xc0, 0x30][i];
                    }),
                    _ => {}
                }
            }
            for run in to_float(ty, &block, ty.block_size()).chunks(codes.run) {
                let largest = run.iter().fold(0.0_f32, |m, w| if w.abs() > m.abs() { *w } else { m });
                if largest == 0.0 {
                    continue;
                }
                let scales: Vec<f32> = codes.levels.iter().filter(|l| **l != 0.0).map(|l| largest / l).collect();
                let all = |scale: &&f32| run.iter().all(|w| fits(*w, **scale).is_some());
                let found: Vec<&f32> = scales.iter().filter(all).collect();
                assert!(!found.is_empty(), "{ty}: {run:?} are under no scale");
                if let [scale] = found.as_slice() {
                    run.iter().for_each(|w| seen[fits(*w, **scale).unwrap()] = true);
                } else if found.len() == 2 && *found[0] == -*found[1] {
                    run.iter().for_each(|w| seen[fits(*w, found[0].abs()).unwrap()] = true);
                }
            }
        }
        assert!(seen.iter().all(|s| *s), "{ty}: {:?} of {:?}", seen, codes.levels);
    }
}

#[test]
fn every_f16_and_bf16_is_ggmls() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for ty in [GgmlType::F16, GgmlType::BF16] {
        check_dequantize(ty, &all, 1 << 16).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if qdiff_tests::whole() { 512 } else { 192 }))]

    #[test]
    fn real_blocks_unpack_as_in_ggml(
        ty in select(GgmlType::ALL_SUPPORTED),
        x in proptest::collection::vec(-3.0_f32..3.0, 512),
    ) {
        let mut bytes = vec![0_u8; ty.row_bytes(512)];
        // Some quantisers want to know how much each column matters.
        let alike = [1.0_f32; 256];
        // SAFETY: two rows of 256 floats in, room for their blocks out. ggml's
        // block structures need the alignment of a u32 at most, and vectors of
        // this size are aligned to 16 by the allocator.
        let n = unsafe {
            let importance =
                if sys::ggml_quantize_requires_imatrix(ty.id()) { alike.as_ptr() } else { std::ptr::null() };
            sys::ggml_quantize_chunk(
                ty.id() as sys::ggml_type, x.as_ptr(), bytes.as_mut_ptr().cast(), 0, 2, 256, importance,
            )
        };
        prop_assert_eq!(n, bytes.len());
        check_dequantize(ty, &bytes, 512)?;
    }

    /// Any bits, scales included: infinities, NaNs and subnormals too.
    #[test]
    fn random_blocks_unpack_as_in_ggml(
        ty in select(GgmlType::ALL_SUPPORTED),
        seed in proptest::collection::vec(any::<u8>(), 2048),
        scale in -2.0_f32..2.0,
        sane in any::<bool>(),
    ) {
        let mut bytes = seed[..ty.row_bytes(512)].to_vec();
        if sane {
            let fields = ty.format().expect("supported").fields.iter();
            let halves: Vec<_> = fields.filter(|f| matches!(f.part, Part::Scale | Part::Offset)).collect();
            for (i, block) in bytes.chunks_exact_mut(ty.type_size()).enumerate() {
                for (half, field) in halves.iter().enumerate() {
                    let value = f16::from_f32(scale / (1.0 + (i + half) as f32));
                    block[field.bytes.clone()].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        check_dequantize(ty, &bytes, 512)?;
    }

    #[test]
    fn emulated_activations_are_ggmls(x in activations()) {
        for fmt in CPU.into_iter().filter(|fmt| *fmt != ActivationFormat::F32) {
            let (id, per, size) = layout(fmt);
            let want = decode(fmt, &from_float(id, &x, per, size));
            let mut got = vec![0.0; x.len()];
            quant::emulate(fmt, &x, &mut got);
            prop_assert_eq!(&got, &want, "{:?}", fmt);
        }
    }

    /// A row of a cache is what ggml reads of what ggml wrote, to the last bit.
    #[test]
    fn emulated_rows_of_caches_are_ggmls(x in activations()) {
        for (fmt, ty) in CACHES {
            let bytes = from_float(ty.id() as sys::ggml_type, &x, 32, ty.type_size());
            let want = to_float(ty, &bytes, x.len());
            let mut got = vec![0.0; x.len()];
            quant::emulate(fmt, &x, &mut got);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                prop_assert_eq!(*got, f64::from(*want), "{:?} [{}]: {}", fmt, i, x[i]);
            }
        }
    }

    /// The rounding of ggml's reference, and of Q8_K what candle makes of it: another quant at halves alone.
    #[test]
    fn halves_that_are_rounded_away_from_zero_are_emulated(x in activations()) {
        let want = decode(ActivationFormat::Q8_0, &from_float_ref(GgmlType::Q8_0, &x));
        let mut got = vec![0.0; x.len()];
        quant::emulate(ActivationFormat::Q8_0Ref, &x, &mut got);
        prop_assert_eq!(&got, &want);
        let bytes = from_float(15, &x, 256, 292);
        quant::emulate(ActivationFormat::Q8KAway, &x, &mut got);
        let blocks = got.chunks(256).zip(bytes.chunks(292)).zip(x.chunks(256));
        for ((got, bytes), x) in blocks {
            let d = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let max = x.iter().fold(0.0_f32, |max, v| if v.abs() > max.abs() { *v } else { max });
            for ((got, even), x) in got.iter().zip(decode(ActivationFormat::Q8K, bytes)).zip(x) {
                let scaled = -127.0 / max * x;
                let away = scaled.abs().fract() == 0.5 && scaled.abs().trunc() % 2.0 == 0.0;
                prop_assert_eq!(*got, even + if away { f64::from(d) * f64::from(scaled.signum()) } else { 0.0 });
            }
        }
    }

    /// CUDA's two quantisers are ggml's Q8_1 but for the order of roundings:
    /// wherever they differ from the CPU's, they say that they might.
    #[test]
    fn cudas_q8_1_is_ggmls_up_to_ties(x in activations()) {
        let want = decode(ActivationFormat::Q8_1, &from_float(9, &x, 32, 36));
        for fmt in [ActivationFormat::Q8_1Mmvq, ActivationFormat::Q8_1MmqDs4] {
            let mut got = vec![0.0; x.len()];
            quant::emulate(fmt, &x, &mut got);
            let reach = quant::uncertainty(fmt, &x, None);
            for ((got, want), reach) in got.iter().zip(&want).zip(&reach) {
                prop_assert!((got - want).abs() <= f64::from(*reach), "{:?}: {} {}", fmt, got, want);
            }
            // And each such place is a tie, whose other side is as far away.
            let (mut reach, mut steps) = (vec![0.0; x.len()], Vec::new());
            for tie in quant::ties(fmt, &x) {
                steps.push(tie.change.len());
                for (r, c) in reach[tie.first..].iter_mut().zip(&tie.change) {
                    *r += c.abs();
                }
            }
            for ((got, want), reach) in got.iter().zip(&want).zip(&reach) {
                prop_assert!((got - want).abs() <= reach * 1.001, "{:?}: {} {}", fmt, got, want);
            }
            prop_assert!(steps.iter().all(|n| [1, 32].contains(n)));
            let mut residuals = Vec::new();
            quant::sum_residuals(fmt, &x, &got, &mut residuals);
            for ((r, got), x) in residuals.iter().zip(got.chunks(32)).zip(x.chunks(32)) {
                let stored = r + got.iter().sum::<f64>();
                let exact: f64 = x.iter().map(|v| f64::from(*v)).sum();
                let reach: f64 = x.iter().map(|v| f64::from(v.abs())).sum();
                prop_assert!((stored - exact).abs() <= exact.abs() / 2048.0 + reach * 1e-6 + 1e-7);
            }
        }
    }

    /// Inputs moved by no more than their uncertainty move the quantised
    /// values by no more than theirs.
    #[test]
    fn uncertainty_covers_what_may_happen(x in activations(), by in -1.0_f32..1.0, share in 0.0_f32..1e-3) {
        let dx: Vec<f32> = x.iter().map(|v| share * v.abs()).collect();
        let signs = [by, -by, 0.5 * by, 0.0, -0.3 * by];
        let moved: Vec<f32> = x.iter().zip(&dx).zip(signs.iter().cycle())
            .map(|((x, d), s)| x + s * d).collect();
        for fmt in [
            ActivationFormat::F32, ActivationFormat::F16, ActivationFormat::Bf16,
            ActivationFormat::Tf32, ActivationFormat::Tf32Truncated, ActivationFormat::Q8_0,
            ActivationFormat::Q8_0Ref, ActivationFormat::Q8_1Mmvq, ActivationFormat::Q8_1MmqD4,
            ActivationFormat::Q8K, ActivationFormat::Q8KAway, ActivationFormat::Q8K128, ActivationFormat::Q8_1HalfSum,
            ActivationFormat::Q5_1, ActivationFormat::Q5_0, ActivationFormat::Q4_1, ActivationFormat::Q4_0, ActivationFormat::Iq4Nl,
        ] {
            let (mut a, mut b) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            quant::emulate(fmt, &x, &mut a);
            quant::emulate(fmt, &moved, &mut b);
            let reach = quant::uncertainty(fmt, &x, Some(&dx));
            for (i, ((a, b), reach)) in a.iter().zip(&b).zip(&reach).enumerate() {
                let rounding = f64::from(x[i].abs()) * 2e-6;
                let allowed = f64::from(*reach) * 1.001 + rounding + 1e-30;
                prop_assert!((a - b).abs() <= allowed, "{:?} [{}] {}: {} {} {}", fmt, i, x[i], a, b, reach);
            }
        }
    }

    #[test]
    fn the_stored_sum_of_q8_1_is_ggmls(x in activations()) {
        let bytes = from_float(9, &x, 32, 36);
        let mut emulated = vec![0.0; x.len()];
        quant::emulate(ActivationFormat::Q8_1, &x, &mut emulated);
        let mut residuals = Vec::new();
        quant::sum_residuals(ActivationFormat::Q8_1, &x, &emulated, &mut residuals);
        prop_assert_eq!(residuals.len(), x.len() / 32);
        for ((b, e), r) in bytes.chunks_exact(36).zip(emulated.chunks_exact(32)).zip(residuals) {
            prop_assert_eq!(r, half_at(b, 2) - e.iter().sum::<f64>());
        }
    }

    #[test]
    fn block_mins_are_what_a_zero_quant_unpacks_to(m in -4.0_f32..4.0) {
        for ty in [GgmlType::Q4_1, GgmlType::Q5_1] {
            let mut bytes = vec![0_u8; ty.row_bytes(64)];
            for block in bytes.chunks_exact_mut(ty.type_size()) {
                block[2..4].copy_from_slice(&f16::from_f32(m).to_le_bytes());
            }
            let mut mins = Vec::new();
            quant::block_offsets(ty, ActivationFormat::Q8_1, &bytes, &mut mins);
            let want = to_float(ty, &bytes, 64);
            prop_assert_eq!(mins, [want[0], want[32]]);
        }
        let mut mins = vec![m];
        quant::block_offsets(GgmlType::Q8_0, ActivationFormat::Q8_1, &[0; 34], &mut mins);
        prop_assert!(mins.is_empty(), "its blocks have none");
    }
}
