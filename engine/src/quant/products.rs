//! What a kernel does to the weights of a product besides unpacking them.

use super::activations::round;
use super::{ActivationFormat, Field, GgmlType, Offset, Part, Stored, WeightSource, dequantize, f16, k_blocks};

/// The offset of weights of type `ty` that a kernel multiplies with the sums that `fmt` activations store, if it does.
fn summed(ty: GgmlType, fmt: ActivationFormat) -> Option<Offset> {
    use ActivationFormat as A;
    let quants = ty.format()?.quants()?;
    let takes = match quants.offset {
        Offset::None => false,
        Offset::PerBlock => matches!(fmt, A::Q8_1 | A::Q8_1HalfSum | A::Q8_1Mmvq | A::Q8_1MmqDs4),
        // Quants are taken unsigned and their zero point by the sum, where the weights of a sum share a scale.
        Offset::ZeroPoint(_) => fmt == A::Q8_1Mmvq && quants.run == 32,
        Offset::PerSubBlock => fmt == A::Q8_1MmqDs4,
    };
    takes.then_some(quants.offset)
}

/// Whether a kernel multiplies offsets of weights of type `ty` with the sums that `fmt` activations store.
pub fn takes_sums(ty: GgmlType, fmt: ActivationFormat) -> bool {
    summed(ty, fmt).is_some()
}

/// The field of a type's block that says `part`, which its description has.
fn field(ty: GgmlType, part: Part) -> &'static Field {
    ty.format().and_then(|f| f.field(part)).unwrap_or_else(|| unreachable!("{ty} has {part:?}"))
}

/// The offset of each run of 32 weights of a row that the kernel multiplies with the stored sum of `fmt` activations
/// (see [`super::sum_residuals`]), in order. `out` is cleared first; it stays empty where a kernel takes no stored sum.
///
/// Sources: `vec_dot_q5_1_q8_1` and its like in ggml-cpu; `vecdotq.cuh` (`vec_dot_q4_0_q8_1_impl` and its like), and
/// `mmq-vec-dot.cuh` (`ggml_cuda_mmq_vec_dot_q8_1_q8_1_mma`) in ggml-cuda.
pub fn block_offsets(ty: GgmlType, fmt: ActivationFormat, bytes: &[u8], out: &mut Vec<f32>) {
    out.clear();
    let Some(offset) = summed(ty, fmt) else {
        return;
    };
    let part = if let Offset::ZeroPoint(_) = offset { Part::Scale } else { Part::Offset };
    let field = field(ty, part);
    for b in bytes.chunks_exact(ty.type_size()) {
        let half = f16::at(b, field);
        match offset {
            Offset::None => {}
            Offset::PerBlock => out.push(half),
            Offset::ZeroPoint(zero) => out.push(-f32::from(zero) * half),
            // Each product is rounded to f16.
            Offset::PerSubBlock => out.extend(k_blocks::scales(b).1.map(|m| -f16::rounded(half * f32::from(m)))),
        }
    }
}

/// Weights of a run that share an offset, where a kernel adds offsets up apart from the quants, times sums of the quants that it makes of `fmt`
/// activations: `ggml_vec_dot_q4_K_q8_K` and its like in ggml-cpu, and candle's.
pub fn run_of_offsets(ty: GgmlType, fmt: ActivationFormat) -> Option<usize> {
    let quants = ty.format()?.quants()?;
    let apart = matches!(fmt, ActivationFormat::Q8K | ActivationFormat::Q8KAway | ActivationFormat::Q8K128);
    (apart && quants.offset == Offset::PerSubBlock).then_some(quants.run)
}

/// A row with the same quants everywhere: those that share a byte have this one, and their high bits are 0.
pub fn with_quants(ty: GgmlType, bytes: &[u8], quants: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (part, byte) in [(Part::Quants, quants), (Part::HighBits, 0)] {
        let Some(field) = ty.format().and_then(|format| format.field(part)) else { continue };
        bytes.chunks_exact_mut(ty.type_size()).for_each(|block| block[field.bytes.clone()].fill(byte));
    }
    bytes
}

/// The offsets of a row's weights: what they are if all quants are 0.
pub fn offsets(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut offsets = vec![0.0; bytes.len() / ty.type_size() * ty.block_size()];
    dequantize(ty, &with_quants(ty, bytes, 0), &mut offsets);
    offsets
}

/// Weights as a kernel multiplies them with activations of a format. CUDA's matrix-matrix kernels round the products of
/// super-block and sub-block scales of Q4_K and Q5_K to f16 (`ggml_cuda_mmq_load_tiles_q4_K` in mmq-load-tiles.cuh);
/// F32 weights are rounded as the activations are, where those have no blocks. All others pass unchanged.
pub struct AsMultiplied<'a>(pub &'a dyn WeightSource, pub ActivationFormat);

impl WeightSource for AsMultiplied<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        self.0.stored(tensor)
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let Self(weights, fmt) = *self;
        let ty = self.ggml_type(tensor);
        if let Some(Offset::PerSubBlock) = summed(ty, fmt) {
            let n = self.extent(tensor).0;
            for (r, out) in out.chunks_exact_mut(n).enumerate() {
                half_scales(ty, weights.row_bytes(tensor, first + r), out);
            }
            return;
        }
        weights.rows(tensor, first, out);
        if ty == GgmlType::F32 && fmt.block_size() == 1 {
            out.iter_mut().for_each(|w| *w = round(fmt, *w) as f32);
        }
    }
}

/// The part of [`AsMultiplied`]'s weights that meets the activations element by element: less the offsets that meet
/// their stored sum instead. What a doubt about a quant or a scale of the activations is worth, since the sum was taken
/// before quantisation.
pub struct WithoutOffsets<'a>(pub AsMultiplied<'a>);

impl WeightSource for WithoutOffsets<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        self.0.stored(tensor)
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        self.0.rows(tensor, first, out);
        let (ty, n) = (self.ggml_type(tensor), self.extent(tensor).0);
        let mut offsets = Vec::new();
        for (r, out) in out.chunks_exact_mut(n).enumerate() {
            block_offsets(ty, self.0.1, self.row_bytes(tensor, first + r), &mut offsets);
            for (block, offset) in out.chunks_exact_mut(32).zip(&offsets) {
                block.iter_mut().for_each(|w| *w -= offset);
            }
        }
    }
}

/// Unpacks a row of blocks with offsets per sub-block, the products of their scales rounded to f16.
fn half_scales(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    let quants = field(ty, Part::Quants);
    let high = ty.format().and_then(|f| f.field(Part::HighBits));
    let (blocks, _) = out.as_chunks_mut::<256>();
    for (b, out) in bytes.chunks_exact(ty.type_size()).zip(blocks) {
        k_blocks::unpack(b, quants.of(b), high.map(|h| h.of(b)), f16::rounded, out);
    }
}

/// What CUDA's matrix-vector kernels for Q4_1 and Q5_1 add to a row's exact product: they round `d·d8` and `m·s` of
/// every block to f16 (`vec_dot_q4_1_q8_1_impl` in vecdotq.cuh). `emulated` are the activations in the format, `stored`
/// their stored sums per block. Other kernels and other weights: nothing.
///
/// # Panics
/// If `bytes` is no whole row of `emulated.len()` weights.
pub fn half_products(ty: GgmlType, fmt: ActivationFormat, bytes: &[u8], emulated: &[f64], stored: &[f64]) -> f64 {
    if fmt != ActivationFormat::Q8_1Mmvq || summed(ty, fmt) != Some(Offset::PerBlock) {
        return 0.0;
    }
    let (scale, offset) = (field(ty, Part::Scale), field(ty, Part::Offset));
    let mut weights = vec![0f32; emulated.len()];
    dequantize(ty, bytes, &mut weights);
    let blocks = bytes.chunks_exact(ty.type_size());
    let operands = weights.chunks_exact(32).zip(emulated.chunks_exact(32));
    blocks
        .zip(operands)
        .zip(stored)
        .map(|((b, (w, x)), s)| {
            let (d, m) = (f64::from(f16::at(b, scale)), f64::from(f16::at(b, offset)));
            let sum: f64 = x.iter().sum();
            let product: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
            // The activations' scale is their largest over 127.
            let d8 = x.iter().fold(0f64, |m, v| m.max(v.abs())) / 127.0;
            let rounded = |v: f64| f64::from(f16::rounded(v as f32));
            let of_scale = if d * d8 == 0.0 { 0.0 } else { (product - m * sum) * (rounded(d * d8) / (d * d8) - 1.0) };
            of_scale + rounded(m * s) - m * s
        })
        .sum()
}
