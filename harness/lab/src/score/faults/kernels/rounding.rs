//! Numbers as narrower types hold them.

/// With so many bits behind the leading one, to the nearest.
pub(super) fn mantissa(v: f32, bits: u32) -> f32 {
    let half = 1u32 << (22 - bits);
    f32::from_bits(v.to_bits().wrapping_add(half) & !(2 * half - 1))
}

/// bfloat16, ties to even. It is called for every product of a row with weights, and `half`'s is not inlined.
#[inline]
pub(crate) fn bf16(v: f32) -> f32 {
    let bits = v.to_bits();
    if v.is_nan() { v } else { f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & !0xffff) }
}

/// IEEE half precision.
pub(crate) fn f16(v: f32) -> f32 {
    half::f16::from_f32(v).to_f32()
}

/// What a tensor core reads of an f32: the lower 13 bits are cut off.
pub(super) fn tf32(v: f32) -> f32 {
    f32::from_bits(v.to_bits() & !0x1fff)
}

/// 8 bits, 3 of them behind the leading one; saturates at 448.
pub(super) fn e4m3(v: f32) -> f32 {
    let v = v.clamp(-448.0, 448.0);
    let smallest = 2f32.powi(-6);
    if v.abs() < smallest { (v * 512.0).round() / 512.0 } else { mantissa(v, 3) }
}

/// Rounds a row to multiples of its largest magnitude over `levels`.
pub(super) fn quantised(row: &[f32], levels: f32) -> Vec<f32> {
    let step = row.iter().fold(0f32, |m, v| m.max(v.abs())) / levels;
    row.iter().map(|v| if step > 0.0 { (v / step).round() * step } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn bf16_rounds_as_half_does() {
        for high in 0..=0xffffu32 {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let v = f32::from_bits(high << 16 | low);
                let (ours, theirs) = (super::bf16(v), half::bf16::from_f32(v).to_f32());
                assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{v:e}");
            }
        }
    }
}
