//! Rows that are multiplied by a number that grows with their position, as some models do with queries beyond the length
//! that they were trained on.

use super::scene::{Scene, evenly};
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::ops::UNIT;
use std::fmt;

/// The factor of a row at a position.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Factor {
    /// max(1, ln(p + 1)/ln n), which is that of Qwen's `use_logn_attn`.
    Logarithm(usize),
    /// 1 + 0.1·ln(1 + ⌊(p + 1)/n⌋), which is that of Llama 4's attention temperature.
    Temperature(usize),
}

impl Factor {
    fn at(self, position: usize) -> f64 {
        let keys = (position + 1) as f64;
        match self {
            Self::Logarithm(n) => (keys.ln() / (n as f64).ln()).max(1.0),
            Self::Temperature(n) => 1.0 + 0.1 * (1.0 + (keys / n as f64).floor()).ln(),
        }
    }

    /// Those that give about this factor at a position.
    fn giving(factor: f64, position: usize) -> Vec<Self> {
        let length = ((position + 1) as f64).ln() / factor;
        let n = length.exp().round();
        let lengths = (2.0..1e6).contains(&n);
        let near = (n as usize).saturating_sub(1).max(2)..=(n as usize).saturating_add(1);
        let logarithms = lengths.then_some(near).into_iter().flatten().map(Self::Logarithm);
        let all = logarithms.chain((0..14).map(|bits| Self::Temperature(1 << bits)));
        all.filter(|of| (of.at(position) - factor).abs() < NEAR * factor).collect()
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Logarithm(n) => {
                write!(
                    f,
                    "each row is multiplied by ln(p + 1)/ln({n}), p being its position, where that is more than 1"
                )
            }
            Self::Temperature(n) => {
                write!(f, "each row is multiplied by 1 + 0.1·ln(1 + ⌊(p + 1)/{n}⌋), p being its position")
            }
        }
    }
}

/// How near a factor that is read off an element must be, and off how many.
const NEAR: f64 = 2e-3;
const ROWS: usize = 8;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    // Of small values the bound hides the factor.
    let shown = |&at: &(usize, usize)| {
        let (got, want, bound) = scene.element(at);
        let tells = want.abs() > 64.0 * f64::from(bound) && got / want > 1.0;
        tells.then(|| (scene.e.rows[at.0].place.position, got / want))
    };
    let shown: Vec<(usize, f64)> = evenly(scene.fit.iter().filter_map(shown).collect(), ROWS);
    let Some(&(position, factor)) = shown.iter().max_by_key(|(position, _)| *position) else { return Vec::new() };
    let gives = |of: &Factor| shown.iter().all(|(p, factor)| (of.at(*p) - factor).abs() < NEAR * factor);
    let law = |of: Factor| {
        Law::new(of.to_string(), 1, move |row: &RowAt| {
            let ((_, want, bound), by) = (scene.e.row(row), of.at(row.place.position));
            let value: Vec<f64> = want.iter().map(|v| v * by).collect();
            let reach = |(v, b): (&f64, &f32)| (f64::from(*b) * by + 4.0 * UNIT * v.abs()) as f32;
            Some(Row { bound: value.iter().zip(bound).map(reach).collect(), value })
        })
    };
    Factor::giving(factor, position).into_iter().filter(gives).map(law).collect()
}

#[cfg(test)]
mod tests {
    use super::Factor;

    /// The number of keys is read off the factor at one position.
    #[test]
    fn a_factor_is_read_off_a_row() {
        for of in [Factor::Logarithm(24), Factor::Logarithm(512), Factor::Temperature(64)] {
            for position in [700, 1023, 2000] {
                assert!(Factor::giving(of.at(position), position).contains(&of), "{of:?} at {position}");
            }
        }
        assert_eq!([Factor::Logarithm(24).at(10), Factor::Temperature(64).at(10)], [1.0, 1.0]);
    }
}
