//! The laws of attention in words.

use super::super::index::Index;
use super::super::short;
use super::{Attended, Operand, Padding, Parts, Place, Small, Weighed};
use std::fmt;

impl fmt::Display for Attended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over(keys) => write!(f, "the softmax is over {keys}"),
            Self::Divided(keys) => write!(f, "the sum that weights are divided by is over {keys}"),
            Self::Weighed(weighed) => f.write_str(match weighed {
                Weighed::NotDivided => "weights are not divided by their sum",
                Weighed::PlusOne => "1 is added to the sum that weights are divided by",
                Weighed::OffByOne => "a key with score 0 is added to the sum: softmax off by one",
                Weighed::Alike => "all keys weigh the same",
                Weighed::PowersOfTwo => "powers of two instead of e",
            }),
            Self::Padded { tile, with, part } => {
                let score = match with {
                    Padding::Zero => "score 0",
                    Padding::Largest => "the largest score",
                    Padding::Last => "the score of the last key",
                    Padding::Early => "score 0, before the sum is rescaled to the last tile's maximum",
                };
                let of = if *part { " of the keys that the part has" } else { "" };
                write!(f, "the keys that fill up the last {tile}{of} are in the sum with {score}")
            }
            Self::Below { limit, zero: true } => {
                write!(f, "the exponential is 0 where the exponent is below {limit}")
            }
            Self::Below { limit, .. } => write!(f, "exponents are cut off at {limit} from below"),
            Self::SumOfQueries => f.write_str(
                "weights are divided by the sum over the queries of the part, for each key, and not by that over the keys",
            ),
            Self::SumBeside(beside) => write!(f, "weights are divided by the sum of {beside}"),
            Self::MeasuresBeside(beside, parts) => {
                write!(f, "the parts of a head are put together by the maxima and the sums of {beside}, {parts}")
            }
            Self::FactorsBeside(beside, parts) => write!(
                f,
                "what each part has is brought to the row's maximum by the factors e^(m_t − m) of {beside}, and divided by its own sum, {parts}"
            ),
            Self::RescaledBeside(beside, tile, parts) => {
                write!(
                    f,
                    "the result so far is rescaled by the factor e^(m_old − m_new) of {beside} when the maximum moves, in tiles of {tile} keys"
                )?;
                parts.iter().try_for_each(|parts| write!(f, ", {parts}"))
            }
            Self::SumOf { tokens, heads: 0 } => {
                let side = if *tokens < 0 { "before" } else { "after" };
                write!(f, "weights are divided by the sum of the token {side} in the part")
            }
            Self::SumOf { heads, .. } => {
                write!(f, "weights are divided by the sum of the head {heads} after, wrapping around")
            }
            Self::Scaled { by: 1.0, instead } => {
                write!(f, "scores are not scaled: they are multiplied by 1 instead of {}", short(*instead))
            }
            Self::Scaled { by, instead } => {
                write!(f, "scores are multiplied by {} instead of {}", short(*by), short(*instead))
            }
            Self::Capped(cap) => {
                write!(f, "a soft cap is applied to the scaled scores: c·tanh(x/c) with c = {}", short(*cap))
            }
            Self::Slope(Some(slope)) => {
                let verb = if *slope > 0.0 { "taken off" } else { "added to" };
                write!(f, "{} times the key's distance is {verb} its score", short(slope.abs()))
            }
            Self::Slope(None) => {
                f.write_str("the key's distance times 2^(−8h/H) is taken off its score, as ALiBi does")
            }
            Self::Sink(score) if let Some(keys) = keys_of_zeros(*score) => {
                write!(f, "{keys} keys with score 0 and no value are in the sum, as rows of zeros behind the keys are (or one with score {}, an attention sink)", short((keys as f64).ln()))
            }
            Self::Sink(score) => {
                write!(f, "a key with score {} and no value is in the sum: an attention sink", short(*score))
            }
            Self::Maxima(maxima) => maxima.fmt(f),
            Self::Joined(rule, parts) => write!(f, "{rule}, {parts}"),
            Self::Split(inner, parts @ Parts::InTurn { .. }) => write!(f, "{inner}, {parts}"),
            Self::Split(inner, splits) => {
                write!(f, "{inner}; single tokens are computed {splits}, each of them so")
            }
            Self::LetIn { keys, by, added: true } => {
                write!(f, "masked keys count with {} added to their scores, not with −∞: of {keys}", short(*by))
            }
            Self::LetIn { keys, by, .. } => {
                write!(f, "masked keys count with the score {}, not with −∞: of {keys}", short(*by))
            }
            Self::Times { but, by } => {
                let times = if *by == 2.0 { "twice".to_owned() } else { format!("{} times", short(*by)) };
                write!(f, "keys other than {but} count {times}, in sum and result")
            }
            Self::Dropped { what, limit, normed } => {
                let which = match what {
                    Small::Weight => format!("keys whose weight is below {limit} are left out"),
                    Small::Exponential => format!("keys whose exponential is below {limit} are left out"),
                    Small::Rank => format!("the {limit} keys that weigh most are taken alone"),
                };
                let sum = if *normed { "sum and result" } else { "the result, and not of the sum" };
                write!(f, "{which}, of {sum}")
            }
            Self::Heads { of, heads } => {
                write!(f, "query head h reads the {} of {heads} instead of h / group", of.name())
            }
            Self::Rows { of, from } => {
                let of = of.name();
                match from {
                    Place::Of(Index::End) => write!(f, "the {of} of the query's own row are read for all keys"),
                    Place::Of(index) => write!(f, "for each key the {of} of the {} are read", index.told("row", "k")),
                    Place::LastAsBefore(m) => {
                        write!(f, "the last tile of {m} keys reads the {of} of the tile before it")
                    }
                    Place::LastAsFirst(m) => write!(f, "the last tile of {m} keys reads the {of} of the first tile"),
                }
            }
            Self::Cleared { of: Operand::Values, but } => {
                write!(f, "with the weights of all keys, the values are summed over {but}")
            }
            Self::Cleared { of, but } => write!(f, "zeros are read in the place of {}, but of {but}", of.name()),
            Self::Rounded(rounded) => rounded.fmt(f),
            Self::Scores => {
                f.write_str("it is made of the softmax of the captured scores, not of the weights that were captured")
            }
        }
    }
}

/// The number of keys of zeros that come to one key with this score and no value: its logarithm.
fn keys_of_zeros(score: f64) -> Option<u32> {
    let keys = score.exp().round();
    let is_whole = (2.0..=4096.0).contains(&keys) && (score - keys.ln()).abs() < 1e-4;
    is_whole.then_some(keys as u32)
}
