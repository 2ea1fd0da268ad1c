//! The two constants that rounding in f32 comes down to.

/// Unit roundoff of f32, 2⁻²⁴: half a ULP of 1.
pub const UNIT: f64 = 5.960_464_477_539_063e-8;

/// Smallest normal f32: results below it may be flushed to zero.
pub const TINY: f64 = f32::MIN_POSITIVE as f64;
