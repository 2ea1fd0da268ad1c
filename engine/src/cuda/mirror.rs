//! The host's copy of caches that are tapped: of each decode step the newest rows travel alone.

use super::CudaError;
use super::device::Doing as _;
use super::layouts::Ptr;
use crate::dtype::DType;
use cudarc::driver::result;
use half::f16;
use std::collections::HashMap;

/// Rows of caches, by node.
#[derive(Debug, Default)]
pub struct Mirror {
    caches: HashMap<usize, Vec<f32>>,
    /// Rows of each that are there, or on their way.
    pub rows: usize,
}

impl Mirror {
    /// Takes the newest row of the cache of `node`, which is at `cache` on the device, and gives all rows.
    /// `changed` is the first row before it that is another than it was, if there is one.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn take(
        &mut self, node: usize, cache: Ptr, kv: DType, row: &[f32], newest: usize, changed: usize,
    ) -> Result<&[f32], CudaError> {
        if changed < newest {
            self.bring(node, cache, kv, row.len(), changed, newest)?;
        }
        let rows = self.caches.entry(node).or_default();
        rows.resize(newest * row.len(), f32::NAN);
        rows.extend_from_slice(row);
        Ok(rows)
    }

    /// Brings rows `from` up to `to` of a cache, each `width` long. No kernel may be writing them.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn bring(
        &mut self, node: usize, cache: Ptr, kv: DType, width: usize, from: usize, to: usize,
    ) -> Result<(), CudaError> {
        let rows = self.caches.entry(node).or_default();
        rows.resize(to * width, f32::NAN);
        let rows = &mut rows[from * width..];
        let at = cache + (kv.size() * from * width) as u64;
        match kv {
            // SAFETY: the cache has these rows.
            DType::F32 => unsafe { result::memcpy_dtoh_sync(rows, at) }.doing("reading a cache")?,
            _ => {
                let mut halves = vec![0u16; rows.len()];
                // SAFETY: as above.
                unsafe { result::memcpy_dtoh_sync(&mut halves, at) }.doing("reading a cache")?;
                for (row, half) in rows.iter_mut().zip(halves) {
                    *row = f16::from_bits(half).to_f32();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_grows_by_its_newest_row_and_forgets_what_came_after() {
        let mut mirror = Mirror::default();
        let mut take = |newest: usize, value: f32| {
            let row = [value, -value];
            let rows = mirror.take(7, 0, DType::F32, &row, newest, u32::MAX as usize).expect("no device is used");
            rows.to_vec()
        };
        assert_eq!(take(0, 1.0), [1.0, -1.0]);
        assert_eq!(take(1, 2.0), [1.0, -1.0, 2.0, -2.0]);
        assert_eq!(take(2, 3.0).len(), 6);
        assert_eq!(take(1, 4.0), [1.0, -1.0, 4.0, -4.0]);
        assert!(take(3, 5.0)[4].is_nan(), "a row that was never brought");
    }
}
