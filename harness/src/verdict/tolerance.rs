//! What is allowed: one table of factors, and the user's own rules.

use crate::capture::{matches, stages_like};
use globset::GlobMatcher;
use qdiff_engine::model::{Graph, StageId};

/// Factor on the forward error bound that one element may reach. The bound is
/// probabilistic; over the millions of elements of a run some come near it.
pub const ELEMENT_FACTOR: f64 = 4.0;

/// Factor that the L2 norm of a row may reach: errors of a correct engine
/// average out over a row, those of a small systematic bug do not.
pub const ROW_FACTOR: f64 = 1.0;

/// Share of a row's norm beyond which what a segment is allowed says nothing:
/// such a row is not judged, and is missing from the coverage.
pub const INCONCLUSIVE: f64 = 0.1;

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
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<(GlobMatcher, f64)>,
}

impl Policy {
    /// Reads rules `GLOB=VALUE`; the last that matches a stage wins.
    ///
    /// # Errors
    /// A rule that cannot be read, or matches no stage.
    pub fn new(graph: &Graph, rules: &[String]) -> anyhow::Result<Self> {
        let mut policy = Self::default();
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
