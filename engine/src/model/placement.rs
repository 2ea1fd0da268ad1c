//! How a graph is cut over ranks, as users write it and captures keep it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Most ranks.
const MOST: usize = 64;

/// How something is split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shares {
    /// As evenly as whole blocks and groups of heads allow.
    #[default]
    Even,
    /// Not at all: every rank has all of it.
    Whole,
    /// So many for each rank, in order.
    Of(Vec<usize>),
}

/// A cut over ranks. Written `2`, or `2:heads=7+7,ffn=2560+2304,vocab=75968+75968`; `vocab=whole` is a head that every rank
/// has all of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Placement {
    /// How many ranks there are.
    pub ranks: usize,
    /// Query heads.
    pub heads: Shares,
    /// Columns of the feed-forward network.
    pub ffn: Shares,
    /// Ids of the vocabulary.
    pub vocab: Shares,
}

/// Why a graph cannot be cut.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct PlacementError(String);

pub(super) fn refused<T>(why: impl Into<String>) -> Result<T, PlacementError> {
    Err(PlacementError(why.into()))
}

impl Placement {
    /// As evenly as can be, over so many ranks.
    pub fn even(ranks: usize) -> Self {
        Self { ranks, heads: Shares::Even, ffn: Shares::Even, vocab: Shares::Even }
    }
}

impl FromStr for Shares {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        if text == "whole" {
            return Ok(Self::Whole);
        }
        let of: Option<Vec<usize>> = text.split('+').map(|n| n.trim().parse().ok()).collect();
        of.map(Self::Of).ok_or_else(|| PlacementError(format!("`{text}` says no shares, such as 7+7")))
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let (ranks, rest) = text.split_once(':').unwrap_or((text, ""));
        let ranks = ranks.trim().parse().ok().filter(|n| (1..=MOST).contains(n));
        let Some(ranks) = ranks else {
            return refused(format!("`{text}` begins with no number of ranks from 1 to {MOST}, such as 2"));
        };
        let mut placement = Self::even(ranks);
        for part in rest.split(',').filter(|part| !part.trim().is_empty()) {
            let unknown = || PlacementError(format!("`{part}` is none of heads=7+7, ffn=2432+2432, vocab=whole"));
            let (what, shares) = part.split_once('=').ok_or_else(unknown)?;
            let shares: Shares = shares.trim().parse()?;
            match what.trim() {
                "heads" if shares != Shares::Whole => placement.heads = shares,
                "ffn" if shares != Shares::Whole => placement.ffn = shares,
                "vocab" => placement.vocab = shares,
                _ => return Err(unknown()),
            }
        }
        Ok(placement)
    }
}

impl TryFrom<String> for Placement {
    type Error = PlacementError;

    fn try_from(text: String) -> Result<Self, PlacementError> {
        text.parse()
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        placement.to_string()
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ranks)?;
        let mut mark = ':';
        for (what, shares) in [("heads", &self.heads), ("ffn", &self.ffn), ("vocab", &self.vocab)] {
            let text = match shares {
                Shares::Even => continue,
                Shares::Whole => "whole".to_owned(),
                Shares::Of(of) => of.iter().map(ToString::to_string).collect::<Vec<_>>().join("+"),
            };
            write!(f, "{mark}{what}={text}")?;
            mark = ',';
        }
        Ok(())
    }
}
