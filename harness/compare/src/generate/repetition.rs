//! Repetitive text.

use schemars::JsonSchema;
use serde::Serialize;

/// Tokens that must repeat for a text to be called repetitive.
const LEAST_TOKENS: usize = 12;
/// How often the same tokens must follow each other.
const LEAST_TIMES: usize = 3;

/// The end of a text that repeats itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Loop {
    /// Index of the generated token where it begins.
    pub from: usize,
    /// Tokens of one round.
    pub period: usize,
    /// Whole rounds up to the end.
    pub times: usize,
}

/// Whether `tokens` end in a repetition: the shortest one.
pub fn find(tokens: &[u32]) -> Option<Loop> {
    let end = tokens.len();
    (1..=end / LEAST_TIMES).find_map(|period| {
        let same = (period..end).rev().take_while(|i| tokens[*i] == tokens[i - period]).count();
        let length = same + period;
        let times = length / period;
        (times >= LEAST_TIMES && length >= LEAST_TOKENS).then_some(Loop { from: end - length, period, times })
    })
}

#[cfg(test)]
mod tests {
    use super::{Loop, find};

    #[test]
    fn circles() {
        let mut text = vec![9, 8, 7];
        text.extend([1, 2, 3].repeat(4));
        assert_eq!(find(&text), Some(Loop { from: 3, period: 3, times: 4 }));
        // A round that is not whole counts as its beginning.
        text.push(1);
        assert_eq!(find(&text).map(|l| (l.from, l.times)), Some((3, 4)));
        text.push(5);
        assert_eq!(find(&text), None);
    }

    #[test]
    fn a_refrain_is_no_circle() {
        assert_eq!(find(&[1, 2, 1, 2, 1, 2]), None);
        assert_eq!(find(&[4; 11]), None);
        assert_eq!(find(&[4; 12]).map(|l| l.period), Some(1));
        assert_eq!(find(&(0..50).collect::<Vec<_>>()), None);
        assert_eq!(find(&[]), None);
    }
}
