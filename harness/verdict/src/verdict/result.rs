//! What is known of one stage.

use super::{Global, Local, Segment};
use qdiff_engine::model::StageId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Both sides do the stated mathematics.
    Match,
    /// The subject's own computation is wrong here.
    Diverged,
    /// The subject computes rightly on operands that an origin made wrong.
    Inherited,
    /// The subject meets f64, the reference does not.
    Disputed,
    /// NaN or infinity appears here.
    Poisoned,
    /// The subject does the stated mathematics, and there is no reference to hold it against.
    Alone,
    /// Not tapped by one side at least; judged there within the segment of a later stage.
    Covered,
    /// Not wrong as far as it was judged, and at least some rows are inconclusive: their bound is as large
    /// as a fault may be.
    Inconclusive,
    /// Not tapped, or not judged for want of operands.
    Missing,
}

/// Everything known of one stage of one layer.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageResult {
    /// The stage.
    #[serde(rename = "stage")]
    pub id: StageId,
    /// Its status.
    pub status: Status,
    /// Stages that it reads, as its op takes them.
    #[serde(default)]
    pub inputs: Vec<StageId>,
    /// Whether it is where a fault begins.
    pub origin: bool,
    /// Whether it is wrong as it was captured, while the stages that read it were made of the right values.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// Whether it is the same of a state where no later step tells whether the engine's own is wrong as well: what reads it in
    /// this step may have had the values from elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Residual of the subject.
    pub subject: Option<Local>,
    /// Residual of the reference.
    pub reference: Option<Local>,
    /// Distance between the two.
    pub global: Option<Global>,
    /// Seconds that judging it took: no part of the verdict, which is the same every time.
    #[serde(skip)]
    pub seconds: f64,
}

impl StageResult {
    /// Whether values are not finite here, and no fault of the subject made them so.
    pub(super) fn overflowed(&self) -> bool {
        let beyond = self.subject.as_ref().is_some_and(|l| l.beyond.is_some());
        !self.origin && (self.status == Status::Poisoned || beyond)
    }

    /// The stage, printed; the whole segment where the subject is judged over one.
    pub fn name(&self) -> String {
        let segment = self.subject.as_ref().and_then(|l| l.segment.as_ref());
        segment.map_or_else(|| self.id.to_string(), Segment::to_string)
    }
}

/// The status of a stage by its own residuals alone.
pub(super) fn own_status(subject: Option<&Local>, reference: Option<&Local>, alone: bool) -> Status {
    let open = |local: &Local| local.inconclusive > 0;
    match (subject, reference) {
        (Some(s), _) if s.non_finite.is_some() => Status::Poisoned,
        // Where both miss, the subject is wrong with any reference; and without the reference its own residual
        // still convicts it.
        (Some(s), _) if !s.ok() => Status::Diverged,
        (Some(_), Some(r)) if !r.ok() => Status::Disputed,
        (Some(s), Some(r)) if open(s) || open(r) => Status::Inconclusive,
        (Some(_), Some(_)) => Status::Match,
        (Some(s), None) if alone && open(s) => Status::Inconclusive,
        (Some(_), None) if alone => Status::Alone,
        _ => Status::Missing,
    }
}
