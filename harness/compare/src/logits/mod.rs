//! The garbage-logit question on its own: is every logit the product of its row
//! with the hidden state, at every position and for every id?
//!
//! That comes first, because all ids can be wrong with no outlier among them. Then values that look suspicious alone:
//! outliers, values that are not finite, values that an earlier step left. `rows` goes through the logits once, with
//! their f64 values; `ids` says what the ids are; `picks` what would be chosen.

mod ids;
mod pick;
mod picks;
mod rows;

pub use ids::{Ids, Padding};
pub use pick::Pick;
pub use picks::{Choices, RowChoice};
pub use rows::{Places, Seen};

use crate::capture::Filter;
use crate::loaded::LoadedModel;
use crate::number::Real;
use crate::oracle::Oracle;
use crate::pair::Recording;
use crate::verdict::pattern;
use anyhow::{Context as _, Result};
use picks::Sides;
use qdiff_engine::model::Node;
pub(crate) use rows::row_of;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

/// Ids that are shown with their values.
const SHOWN: usize = 6;

/// Why an id is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Its value is NaN or infinite.
    NonFinite,
    /// Its value is not the product it should be.
    Wrong,
    /// It lies further from the other side's value than the other ids of its row do.
    Outlier,
    /// It is chosen.
    Chosen,
    /// The largest of the padding.
    Padding,
}

/// An id with its values on both sides.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Suspect {
    /// The id.
    pub id: usize,
    /// Its text.
    pub text: String,
    /// 0 for the prefill.
    pub step: usize,
    /// Position of the token that the logits follow.
    pub position: usize,
    /// Why it is shown.
    pub why: Why,
    /// The subject's value.
    #[serde(with = "Real")]
    pub subject: f32,
    /// Σ w·h in f64 over its row of the output projection and the hidden state that the subject captured, where it did.
    pub product: Option<Real>,
    /// The reference's value, where there is one.
    pub reference: Option<Real>,
}

/// Everything that is found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Study {
    /// What the ids are.
    pub ids: Ids,
    /// Every logit, counted.
    #[serde(flatten)]
    pub seen: Seen,
    /// Logits looked at.
    pub logits: usize,
    /// Ids that are wrong somewhere.
    pub wrong_ids: usize,
    /// The first of them, at most a thousand.
    pub listed: Vec<usize>,
    /// Which ids these are, in words; empty where there are none.
    pub pattern: String,
    /// Largest distance between the hidden states of both sides, relative L2
    /// over a row; `None` where a side did not capture it.
    pub hidden: Option<Real>,
    /// Ids worth a look, with their values.
    pub suspects: Vec<Suspect>,
    /// What would be chosen, with and without them.
    pub choices: Choices,
    /// What padding does.
    pub padding: Padding,
}

/// Looks at the logits of `subject`, beside those of `reference`.
///
/// # Errors
/// If the subject's logits were not captured.
pub fn study(
    opened: &LoadedModel, oracle: &Oracle<'_>, subject: &Recording, reference: Option<&Recording>, filter: &Filter,
) -> Result<Study> {
    let node = oracle.graph.nodes.last().context("the graph has no stage")?;
    let ids = Ids::of(opened, oracle, node);
    let seen = rows::go_through(oracle, node, subject.side(), reference.map(Recording::side), filter);
    if seen.rows == 0 {
        anyhow::bail!(
            "the subject's {} were not captured, or in another shape than {} ids a position; run an engine that captures them",
            node.id,
            ids.rows
        );
    }
    let wrong_ids: Vec<usize> = (0..ids.rows).filter(|&i| seen.bad[i] > 0).collect();
    let without: BTreeSet<usize> = wrong_ids.iter().copied().filter(|_| !seen.everywhere()).collect();
    let sides = (subject, reference);
    let (choices, padding) = picks::choices(node, sides, &without, &ids, &seen, filter);
    let suspects = suspects(opened, oracle, node, sides, &seen, &choices, &padding);
    Ok(Study {
        logits: seen.rows * ids.rows,
        wrong_ids: wrong_ids.len(),
        pattern: match wrong_ids.as_slice() {
            [] => String::new(),
            // What is a column of the stage is an id here.
            list => pattern(list, ids.rows).replace("column", "id"),
        },
        listed: wrong_ids.into_iter().take(1000).collect(),
        hidden: reference.and_then(|r| rows::hidden_apart(oracle, node, subject, r)),
        ids,
        seen,
        suspects,
        choices,
        padding,
    })
}

/// The worst of every kind first, then the choice and the largest of padding: each id once.
fn suspects(
    opened: &LoadedModel, oracle: &Oracle<'_>, node: &Node, (subject, reference): Sides<'_>, seen: &Seen,
    choices: &Choices, padding: &Padding,
) -> Vec<Suspect> {
    let mut places: Vec<(Why, rows::At)> = Vec::new();
    places.extend(seen.first_non_finite.map(|at| (Why::NonFinite, at)));
    places.extend(seen.worst.iter().map(|(_, at)| (Why::Wrong, *at)));
    places.extend(seen.furthest.iter().map(|(_, at)| (Why::Outlier, *at)));
    places.truncate(SHOWN);
    places.extend(choices.last.map(|at| (Why::Chosen, at)));
    places.extend(padding.largest_at.map(|at| (Why::Padding, at)));
    let mut shown = BTreeSet::new();
    places
        .into_iter()
        .filter(|(_, at)| shown.insert(at.id))
        .filter_map(|(why, at)| {
            let step = subject.capture.steps.get(at.index)?;
            let value = |side: &Recording| {
                let row = row_of(node, side.capture.steps.get(at.index)?, at.row)?;
                row.get(at.id).copied()
            };
            Some(Suspect {
                id: at.id,
                text: opened.piece(at.id as u32),
                step: step.index,
                position: step.first + step.offset(at.row),
                why,
                subject: value(subject)?,
                product: rows::product(oracle, node, step, at.row, at.id).map(Real),
                reference: reference.and_then(value).map(|v| Real(f64::from(v))),
            })
        })
        .collect()
}
