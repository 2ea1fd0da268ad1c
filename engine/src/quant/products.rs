//! What a kernel does to the weights of a product besides unpacking them.

use super::activations::round;
use super::{ActivationFormat, GgmlType, WeightSource, dequantize, f16, k_scales, q4_k, q5_k};

/// Whether a kernel multiplies the offsets of these weights, block by block,
/// with the sum that the activations store, and where the offset is from.
fn offset(ty: GgmlType, fmt: ActivationFormat) -> Option<Offset> {
    use ActivationFormat as A;
    match (fmt, ty) {
        (A::Q8_1 | A::Q8_1Mmvq | A::Q8_1MmqDs4, GgmlType::Q4_1 | GgmlType::Q5_1) => Some(Offset::Stored),
        // Quants are taken unsigned; their zero point is subtracted by the sum.
        (A::Q8_1Mmvq, GgmlType::Q4_0) => Some(Offset::ZeroPoint(-8.0)),
        (A::Q8_1Mmvq, GgmlType::Q5_0) => Some(Offset::ZeroPoint(-16.0)),
        (A::Q8_1MmqDs4, GgmlType::Q4_K | GgmlType::Q5_K) => Some(Offset::SubBlocks),
        _ => None,
    }
}

/// Whether a kernel multiplies offsets of weights of type `ty` with the sums
/// that `fmt` activations store.
pub fn takes_sums(ty: GgmlType, fmt: ActivationFormat) -> bool {
    offset(ty, fmt).is_some()
}

enum Offset {
    /// The f16 at byte 2.
    Stored,
    /// The scale times this.
    ZeroPoint(f32),
    /// The eight offsets of a K block, each product rounded to f16.
    SubBlocks,
}

/// The offset of each run of 32 weights of a row that the kernel multiplies
/// with the stored sum of `fmt` activations (see [`super::sum_residuals`]),
/// in order. `out` is cleared first; it stays empty where a kernel takes no
/// stored sum.
///
/// Sources: `vec_dot_q5_1_q8_1` and its like in ggml-cpu; `vecdotq.cuh`
/// (`vec_dot_q4_0_q8_1_impl` and its like), and `mmq-vec-dot.cuh`
/// (`ggml_cuda_mmq_vec_dot_q8_1_q8_1_mma`) in ggml-cuda.
pub fn block_offsets(ty: GgmlType, fmt: ActivationFormat, bytes: &[u8], out: &mut Vec<f32>) {
    out.clear();
    let Some(offset) = offset(ty, fmt) else {
        return;
    };
    for b in bytes.chunks_exact(ty.type_size()) {
        let half = |at: usize| f16::to_f32(u16::from_le_bytes([b[at], b[at + 1]]));
        match offset {
            Offset::Stored => out.push(half(2)),
            Offset::ZeroPoint(by) => out.push(by * half(0)),
            Offset::SubBlocks => {
                let (_, mins) = k_scales::of_bytes(b);
                out.extend(mins.map(|m| -f16::rounded(half(2) * f32::from(m))));
            }
        }
    }
}

/// Weights as a kernel multiplies them with activations of a format. CUDA's
/// matrix-matrix kernels round the products of super-block and sub-block
/// scales of Q4_K and Q5_K to f16 (`ggml_cuda_mmq_load_tiles_q4_K` in
/// mmq-load-tiles.cuh); F32 weights are rounded as the activations are, where
/// those have no blocks. All others pass unchanged.
pub struct AsMultiplied<'a>(pub &'a dyn WeightSource, pub ActivationFormat);

impl WeightSource for AsMultiplied<'_> {
    fn extent(&self, tensor: &str) -> (usize, usize) {
        self.0.extent(tensor)
    }

    fn ggml_type(&self, tensor: &str) -> GgmlType {
        self.0.ggml_type(tensor)
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let Self(weights, fmt) = *self;
        match (self.ggml_type(tensor), fmt) {
            (ty @ (GgmlType::Q4_K | GgmlType::Q5_K), ActivationFormat::Q8_1MmqDs4) => {
                let n = self.extent(tensor).0;
                for (r, out) in out.chunks_exact_mut(n).enumerate() {
                    half_scales(ty, weights.row_bytes(tensor, first + r), out);
                }
            }
            (GgmlType::F32, fmt) if fmt.block_size() == 1 => {
                weights.rows(tensor, first, out);
                out.iter_mut().for_each(|w| *w = round(fmt, *w) as f32);
            }
            _ => weights.rows(tensor, first, out),
        }
    }

    fn row_bytes(&self, tensor: &str, row: usize) -> &[u8] {
        self.0.row_bytes(tensor, row)
    }
}

/// The part of [`AsMultiplied`]'s weights that meets the activations element by
/// element: less the offsets that meet their stored sum instead. What a doubt
/// about a quant or a scale of the activations is worth, since the sum was
/// taken before quantisation.
pub struct WithoutOffsets<'a>(pub AsMultiplied<'a>);

impl WeightSource for WithoutOffsets<'_> {
    fn extent(&self, tensor: &str) -> (usize, usize) {
        self.0.extent(tensor)
    }

    fn ggml_type(&self, tensor: &str) -> GgmlType {
        self.0.ggml_type(tensor)
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

    fn row_bytes(&self, tensor: &str, row: usize) -> &[u8] {
        self.0.row_bytes(tensor, row)
    }
}

/// Unpacks a row of Q4_K or Q5_K blocks.
fn half_scales(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    let (blocks, _) = out.as_chunks_mut::<256>();
    for (b, out) in bytes.chunks_exact(ty.type_size()).zip(blocks) {
        if let Ok(b) = b.try_into() {
            q4_k::unpack(b, out, f16::rounded);
        } else if let Ok(b) = b.try_into() {
            q5_k::unpack(b, out, f16::rounded);
        }
    }
}

/// What CUDA's matrix-vector kernels for Q4_1 and Q5_1 add to a row's exact
/// product: they round `d·d8` and `m·s` of every block to f16
/// (`vec_dot_q4_1_q8_1_impl` in vecdotq.cuh). `emulated` are the activations
/// in the format, `stored` their stored sums per block.
///
/// # Panics
/// If `bytes` is no whole row of `emulated.len()` weights.
pub fn half_products(ty: GgmlType, bytes: &[u8], emulated: &[f64], stored: &[f64]) -> f64 {
    let mut weights = vec![0f32; emulated.len()];
    dequantize(ty, bytes, &mut weights).expect("a format with scale and offset");
    let blocks = bytes.chunks_exact(ty.type_size());
    let operands = weights.chunks_exact(32).zip(emulated.chunks_exact(32));
    blocks
        .zip(operands)
        .zip(stored)
        .map(|((b, (w, x)), s)| {
            let half = |at: usize| f64::from(f16::to_f32(u16::from_le_bytes([b[at], b[at + 1]])));
            let (d, m) = (half(0), half(2));
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
