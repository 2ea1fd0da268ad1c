//! What is allowed: one table of factors, and the user's own rules.

use super::mode::{CheckMode, Seed};
use crate::capture::{matches, stages_like};
use crate::products::OracleChoice;
use globset::GlobMatcher;
use qdiff_engine::model::{Graph, StageId};

/// Factor on the forward error bound that one element may reach. The bound is
/// probabilistic; over the millions of elements of a run some come near it.
pub const ELEMENT_FACTOR: f64 = 4.0;

/// Factor that the L2 norm of a row may reach: errors of a correct engine average out over a row, those of a small
/// systematic bug do not. A row of which few elements carry the bound averages less ([`of_row`]).
const ROW_FACTOR: f64 = 1.0;

/// Share of a row's norm beyond which what a segment or a coarse arithmetic is allowed says nothing: such a row is
/// inconclusive, which is no pass, and is missing from the coverage. f32 on captured operands has no such share: there
/// a row that is small beside its bound is one whose terms cancel.
pub const INCONCLUSIVE: f64 = 0.1;

/// Whether a rule lets anything pass, a row of zeros too: then what is within it is inconclusive.
pub fn vacuous(rule: f64) -> bool {
    rule >= 1.0
}

/// What the L2 norm of a row with these element bounds b may reach: `‖b‖` where many elements carry it, the factor of a
/// single element where one does, as the massive activations of a residual stream or the only key of an attention do. In
/// between by the number of elements that carry it, `n = (Σb²)²/Σb⁴`: the sum of n squared errors lies above its mean by
/// a share that goes with 1/n where few errors decide.
pub(super) fn of_row(bound: &[f32]) -> f64 {
    let (mut squares, mut fourths) = (0f64, 0f64);
    for square in bound.iter().map(|b| f64::from(*b).powi(2)) {
        squares += square;
        fourths += square * square;
    }
    of_sums(squares, fourths)
}

/// The same by `Σb²` and `Σb⁴`.
pub(super) fn of_sums(squares: f64, fourths: f64) -> f64 {
    if squares == 0.0 {
        return 0.0;
    }
    let spare = ELEMENT_FACTOR.powi(2) - ROW_FACTOR.powi(2);
    (ROW_FACTOR.powi(2) * squares + spare * fourths / squares).sqrt()
}

/// Reads a rule `GLOB=NUMBER`.
///
/// # Errors
/// What is none.
pub fn rule(text: &str) -> anyhow::Result<(&str, f64)> {
    let parsed = text.rsplit_once('=').and_then(|(glob, value)| Some((glob, value.parse::<f64>().ok()?)));
    let parsed = parsed.filter(|(_, v)| v.is_finite() && *v >= 0.0);
    parsed.ok_or_else(|| anyhow::anyhow!("--tolerance `{text}` is not GLOB=NUMBER, such as 'L*.ffn_down=1e-3'"))
}

/// The factors, and rules that replace them for chosen stages.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<(GlobMatcher, f64)>,
    /// How linear layers and attention are checked of which no rule speaks.
    pub mode: CheckMode,
    /// What probes draw their random numbers from in the place of the values.
    pub seed: Option<Seed>,
    /// Where their products are evaluated.
    pub oracle: OracleChoice,
}

impl Default for Policy {
    /// No rules, and everything computed, on the CPU.
    fn default() -> Self {
        Self { rules: Vec::new(), mode: CheckMode::Full, seed: None, oracle: OracleChoice::Cpu }
    }
}

impl Policy {
    /// Reads rules `GLOB=VALUE`; the last that matches a stage wins. Linear layers and attention are checked in this mode,
    /// and the former evaluated there.
    ///
    /// # Errors
    /// A rule that cannot be read, or matches no stage.
    pub fn new(graph: &Graph, rules: &[String], mode: CheckMode, oracle: OracleChoice) -> anyhow::Result<Self> {
        let mut policy = Self { mode, oracle, ..Self::default() };
        for text in rules {
            let (pattern, value) = rule(text)?;
            policy.rules.push((stages_like(graph, pattern)?, value));
        }
        Ok(policy)
    }

    /// The relative L2 per row that a rule allows for the stage, if any does.
    pub fn rule(&self, id: StageId) -> Option<f64> {
        self.rules.iter().rev().find(|(m, _)| matches(m, id)).map(|(_, v)| *v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_averages_over_the_elements_that_carry_it() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6 * b, "{a} {b}");
        near(of_row(&[0.0, 3.0, 0.0]), 4.0 * 3.0);
        near(of_row(&[1.0; 15]), 30f64.sqrt());
        let wide = of_row(&[1.0; 1500]) / 1500f64.sqrt();
        assert!((1.0..1.01).contains(&wide), "{wide}");
        assert_eq!((of_row(&[]), of_row(&[0.0])), (0.0, 0.0));
    }
}
