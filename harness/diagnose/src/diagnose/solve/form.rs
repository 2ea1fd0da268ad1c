//! Laws as data: what a kernel does otherwise, with all its numbers, so that it can be held against any run.

use super::attended::Attended;
use super::cut::Cut;
use super::fault::Fault;
use super::given::{Given, Kin};
use super::kept::Kept;
use super::lanes::Lanes;
use super::moved::Moved;
use super::rank::Rank;
use super::scene::Scene;
use super::shares::Shares;
use super::slots::Written;
use super::sum::Sum;
use super::twice::Twice;
use super::unmade::Unmade;
use super::{Alternative, Law};
use qdiff_engine::model::StageId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a kernel does otherwise. Whatever is not said is as it should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Right values in the wrong place.
    Moved(Moved),
    /// Values that were given elsewhere.
    Given(Given),
    /// The right value times a number, and a multiple of something else.
    Sum(Sum),
    /// Rows of a cache are written to slots of others.
    Written(Written),
    /// Factors of a sum's terms meet others within each run of them.
    Lanes(Lanes),
    /// Later steps change what a cache keeps.
    Kept(Kept),
    /// A sum in splits is put together otherwise.
    Shares(Shares),
    /// Attention is computed otherwise.
    Attended(Attended),
    /// Scores are not made.
    Unmade(Unmade),
    /// A vocabulary over ranks is cut otherwise than its table.
    Cut(Cut),
    /// Combinations of a few vectors are added.
    Rank(Rank),
    /// Two of these, one upon the other.
    Twice(Twice),
    /// A fault of the catalogue.
    Fault(Fault),
}

impl Form {
    /// What rows would be; nothing where the stage has no such thing.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        match self {
            Self::Moved(moved) => Some(moved.on(scene)),
            Self::Given(given) => given.on(scene),
            Self::Sum(sum) => Some(sum.on(scene)),
            Self::Written(written) => written.on(scene),
            Self::Lanes(lanes) => lanes.on(scene),
            Self::Kept(kept) => kept.on(scene),
            Self::Shares(shares) => shares.on(scene),
            Self::Attended(attended) => attended.on(scene),
            Self::Unmade(unmade) => unmade.on(scene),
            Self::Cut(cut) => cut.on(scene),
            Self::Rank(rank) => rank.on(scene),
            Self::Twice(twice) => twice.on(scene),
            Self::Fault(fault) => fault.on(scene),
        }
    }

    /// The same in a layer so many further on: stages and weights are those of the other layer.
    pub(super) fn in_layer(&self, by: i32) -> Option<Self> {
        Some(match self {
            Self::Moved(moved) => Self::Moved(moved.clone()),
            Self::Given(given) => Self::Given(given.in_layer(by)?),
            Self::Sum(sum) => Self::Sum(sum.in_layer(by)?),
            Self::Written(_) | Self::Lanes(_) | Self::Kept(_) | Self::Shares(_) => self.clone(),
            Self::Attended(_) | Self::Unmade(_) | Self::Cut(_) | Self::Fault(_) => self.clone(),
            // The vectors are of the layer.
            Self::Rank(_) => return None,
            Self::Twice(twice) => Self::Twice(twice.each(|form| form.in_layer(by))?),
        })
    }

    /// The same of another stage, where it says nothing of the first one but what any stage has.
    pub(super) fn of_stage(&self, id: StageId) -> Option<Self> {
        match self {
            Self::Moved(_) | Self::Given(Given::Constant(_) | Given::Unwritten(_) | Given::NeverWritten) => {
                Some(self.clone())
            }
            Self::Given(Given::Stage { kin: Kin::Own, before, at, .. }) => {
                Some(Self::Given(Given::Stage { stage: id, kin: Kin::Own, before: *before, at: *at }))
            }
            Self::Twice(twice) => Some(Self::Twice(twice.each(|form| form.of_stage(id))?)),
            Self::Given(_)
            | Self::Sum(_)
            | Self::Written(_)
            | Self::Lanes(_)
            | Self::Kept(_)
            | Self::Shares(_)
            | Self::Attended(_)
            | Self::Unmade(_)
            | Self::Cut(_)
            | Self::Rank(_)
            | Self::Fault(_) => None,
        }
    }

    /// The same of another run.
    pub(super) fn in_run(&self, scene: &Scene<'_>) -> Self {
        if let Self::Written(written) = self { Self::Written(written.in_run(scene)) } else { self.clone() }
    }

    /// Whether what it gives no value of is another than the right one all the same: a slot that nobody writes, the softmax
    /// over no key.
    pub(super) fn is_wrong_where_unsaid(&self) -> bool {
        match self {
            Self::Attended(attended) => !attended.is_beside(),
            other => matches!(other, Self::Written(_)),
        }
    }

    /// Whether it lists rows that were seen in one run, which another run does not have.
    pub(in crate::diagnose) fn lists_rows(&self) -> bool {
        matches!(self, Self::Written(written) if written.lists_rows())
    }

    /// Whether it says that NaN is there, and so predicts no value.
    pub(super) fn is_never_written(&self) -> bool {
        matches!(self, Self::Given(Given::NeverWritten))
    }

    /// The number that right values are multiplied by, where that is all.
    pub(super) fn factor(&self) -> Option<f64> {
        if let Self::Sum(sum) = self { sum.factor() } else { None }
    }

    /// The stage whose values it puts there.
    pub(in super::super) fn source(&self) -> Option<StageId> {
        if let Self::Given(Given::Stage { stage, .. } | Given::Shifted { stage, .. }) = self {
            Some(*stage)
        } else {
            None
        }
    }

    /// Numbers that were read off the wrong elements.
    pub(super) fn parameters(&self) -> usize {
        match self {
            Self::Moved(Moved::Along { index, .. }) => index.parameters(),
            Self::Moved(_) => 1,
            Self::Given(Given::Constant(_) | Given::Unwritten(_)) => 1,
            Self::Given(Given::Shifted { .. }) => 2,
            Self::Given(_) => 0,
            Self::Sum(_) | Self::Written(_) => 2,
            Self::Lanes(lanes) => lanes.parameters(),
            Self::Kept(_) => 1,
            Self::Shares(_) => 2,
            Self::Attended(attended) => attended.parameters(),
            Self::Unmade(_) => 1,
            Self::Cut(_) => 2,
            Self::Rank(rank) => rank.parameters(),
            Self::Twice(twice) => twice.parameters(),
            Self::Fault(fault) => fault.parameters(),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved(moved) => moved.fmt(f),
            Self::Given(given) => given.fmt(f),
            Self::Sum(sum) => sum.fmt(f),
            Self::Written(written) => written.fmt(f),
            Self::Lanes(lanes) => lanes.fmt(f),
            Self::Kept(kept) => kept.fmt(f),
            Self::Shares(shares) => shares.fmt(f),
            Self::Attended(attended) => attended.fmt(f),
            Self::Unmade(unmade) => unmade.fmt(f),
            Self::Cut(cut) => cut.fmt(f),
            Self::Rank(rank) => rank.fmt(f),
            Self::Twice(twice) => twice.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl<'a> Law<'a> {
    /// The law of a form, if the stage has the form's subject.
    pub(super) fn of(form: Form, scene: &'a Scene<'a>) -> Option<Self> {
        let row = form.on(scene)?;
        Some(Self { row, form: Some(form.clone()), ..Self::new(form.to_string(), form.parameters(), |_| None) })
    }
}

/// A stage in a layer so many further on.
pub(super) fn of_layer(id: StageId, by: i32) -> Option<StageId> {
    let Some(layer) = id.layer else { return Some(id) };
    let layer = u16::try_from(i32::from(layer) + by).ok()?;
    Some(StageId { layer: Some(layer), ..id })
}

/// The name of a weight in a layer so many further on.
pub(super) fn weight_of_layer(name: &str, by: i32) -> Option<String> {
    let Some((layer, rest)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return Some(name.to_owned());
    };
    let layer = u16::try_from(layer.parse::<i32>().ok()? + by).ok()?;
    Some(format!("blk.{layer}.{rest}"))
}

#[cfg(test)]
mod tests {
    use super::{of_layer, weight_of_layer};
    use qdiff_engine::model::StageId;

    #[test]
    fn stages_and_weights_go_to_another_layer_and_none_beyond_the_first() {
        let id = StageId::layer(3, "ffn_up");
        assert_eq!(of_layer(id, -2), Some(StageId::layer(1, "ffn_up")));
        assert_eq!(of_layer(id, -4), None);
        assert_eq!(weight_of_layer("blk.3.ffn_up.weight", 1).as_deref(), Some("blk.4.ffn_up.weight"));
        assert_eq!(weight_of_layer("blk.0.ffn_up.weight", -1), None);
        assert_eq!(weight_of_layer("output_norm.weight", -1).as_deref(), Some("output_norm.weight"));
    }
}
