//! Numbers as narrower types hold them.

/// With so many bits behind the leading one, to the nearest.
pub(super) fn mantissa(v: f32, bits: u32) -> f32 {
    let half = 1u32 << (22 - bits);
    f32::from_bits(v.to_bits().wrapping_add(half) & !(2 * half - 1))
}

/// bfloat16.
pub(super) fn bf16(v: f32) -> f32 {
    half::bf16::from_f32(v).to_f32()
}

/// IEEE half precision.
pub(super) fn f16(v: f32) -> f32 {
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
