//! What the device gives held against the CPU, within what two orders of the same sums may differ by.
//!
//! A sum of n products in a precision of unit roundoff v is off by no more than `n·v·Σ|W·x|` in any order (Higham 2002,
//! section 3.1; the products of f32 weights with f64 rows round once more, so n + 1), two of them by twice that.

use qdiff_engine::ops::{Context, Tensor, linear};

/// Rows of each batch that are evaluated on the CPU as well.
pub(super) const ROWS: usize = 8;

/// Smaller sums are not compared: f32 loses products on the way there.
const NOTHING: f64 = f32::MIN_POSITIVE as f64;

/// `count` of `rows`, all over them, the first and the last among them.
pub(super) fn spread(rows: usize, count: usize) -> Vec<usize> {
    let count = count.min(rows);
    (0..count).map(|i| i * (rows - 1) / (count - 1).max(1)).collect()
}

/// These rows of `x`.
pub(super) fn rows_of<F: Copy>(x: &Tensor<F>, rows: &[usize]) -> Tensor<F> {
    let n = x.data.len() / x.shape[0];
    let data = rows.iter().flat_map(|row| x.data[row * n..][..n].iter().copied()).collect();
    Tensor { shape: vec![rows.len(), n], data }
}

/// Whether these rows of the device's values and bounds are other than the CPU's.
pub(super) fn values(
    (y, bound): &(Tensor<f64>, Vec<f32>), (of_device, bound_of_device): (&Tensor<f64>, &[f32]), rows: &[usize],
    context: &Context<'_>,
) -> Option<String> {
    let (n, m) = context.extent(0);
    let factor = f64::from(linear::bound_factor(n));
    let terms = (n + 1) as f64;
    pairs(rows, m).find_map(|(at, on_device, row, output)| {
        let (cpu, gpu) = (y.data[at], of_device.data[on_device]);
        let (cpu_bound, gpu_bound) = (f64::from(bound[at]), f64::from(bound_of_device[on_device]));
        // Σ|W·x|, of which f32 may have lost half where it is as small as that.
        let reach = 2.0 * (cpu_bound / factor + terms * NOTHING);
        differ((cpu, gpu), terms * f64::EPSILON * reach)
            .or_else(|| differ((cpu_bound, gpu_bound), terms * f64::from(f32::EPSILON) * cpu_bound + NOTHING))
            .map(|what| format!("{what}, row {row}, output {output}"))
    })
}

/// Whether these rows of the device's propagated errors are other than the CPU's.
pub(super) fn errors(
    of_cpu: &[f32], of_device: &[f32], dx: &Tensor<f32>, rows: &[usize], context: &Context<'_>,
) -> Option<String> {
    let (n, m) = context.extent(0);
    let terms = (n + 1) as f64;
    let lost: Vec<f64> = (0..rows.len())
        .map(|row| {
            let largest = dx.row(row).iter().fold(0f32, |most, d| most.max(d.abs()));
            // Squares of f32 that are less than the smallest are lost.
            2.0 * f64::from(largest) * (terms * NOTHING).sqrt()
        })
        .collect();
    pairs(rows, m).find_map(|(at, on_device, row, output)| {
        let (cpu, gpu) = (f64::from(of_cpu[at]), f64::from(of_device[on_device]));
        let what = differ((cpu, gpu), terms * f64::from(f32::EPSILON) * cpu + lost[at / m])?;
        Some(format!("{what}, row {row}, output {output}"))
    })
}

/// The places of the elements of `rows` in those rows alone, and in all rows; the row and the output.
fn pairs(rows: &[usize], m: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    rows.iter().enumerate().flat_map(move |(i, &row)| (0..m).map(move |o| (i * m + o, row * m + o, row, o)))
}

/// What f32 overflows in is not compared.
fn differ((cpu, gpu): (f64, f64), allowed: f64) -> Option<String> {
    let alike = !cpu.is_finite() || (cpu - gpu).abs() <= allowed || !allowed.is_finite();
    (!alike).then(|| format!("{gpu:e} and {cpu:e}, which may differ by {allowed:.1e}"))
}
