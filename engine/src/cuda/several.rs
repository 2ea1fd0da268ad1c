//! How the fused attention takes the rows of a pass of several sequences.

use super::span::Span;
use crate::cpu::Group;

/// Rows of a sequence in a pass from which on they are attended to at once.
const MANY: usize = 9;

/// How the fused attention takes the rows of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Several {
    /// The rows that are attended to one by one.
    pub alone: Vec<i32>,
    /// The rows of each other sequence.
    pub together: Vec<Together>,
}

/// Rows of one sequence, which follow each other in the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// The first of them.
    pub row: usize,
    /// How many, and the position of the first in the sequence.
    pub span: Span,
    /// Where the sequence's block table begins among those of the pass; none where slots are positions.
    pub table: Option<usize>,
}

impl Several {
    /// The rows of a pass, by sequence.
    pub fn of(groups: &[Group]) -> Self {
        let (mut all, mut table) = (Self::default(), 0);
        for group in groups {
            let follow = group.rows.windows(2).all(|two| two[0] + 1 == two[1]);
            match group.rows[..] {
                [row, ..] if follow && group.rows.len() >= MANY => {
                    let span = Span { tokens: group.rows.len(), first: group.positions[0] as usize };
                    all.together.push(Together { row, span, table: Some(table) });
                }
                _ => all.alone.extend(group.rows.iter().map(|&row| row as i32)),
            }
            table += group.slots.len();
        }
        all
    }

    /// A pass with rows of both kinds.
    pub fn any() -> Self {
        let span = Span { tokens: 1, first: 0 };
        Self { alone: vec![0], together: vec![Together { row: 0, span, table: Some(0) }] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Row, Sequences};
    use proptest::prelude::*;

    proptest! {
        /// Whatever rows sequences have in a pass, in any order, each is attended to once, with its own position and table.
        #[test]
        fn every_row_is_attended_to_once(of in proptest::collection::vec(0u32..4, 1..60), before in 0usize..20) {
            let mut sequences = Sequences::one(before);
            sequences.share(0, 3, before / 2).unwrap();
            let mut rows: Vec<Row> = Vec::new();
            for &sequence in &of {
                let so_far = rows.iter().filter(|row| row.sequence == sequence).count();
                let position = (sequences.tokens(sequence) + so_far) as u32;
                rows.push(Row { sequence, position, token: 0 });
            }
            let (_, groups) = sequences.after(&rows).unwrap();
            let several = Several::of(&groups);
            let mut seen: Vec<usize> = several.alone.iter().map(|&row| row as usize).collect();
            for together in &several.together {
                let own = together.row..together.row + together.span.tokens;
                prop_assert!(together.span.tokens >= MANY);
                for (i, row) in own.clone().enumerate() {
                    prop_assert_eq!(rows[row].sequence, rows[together.row].sequence);
                    prop_assert_eq!(rows[row].position as usize, together.span.first + i);
                }
                let earlier = groups.iter().filter(|group| group.sequence < rows[together.row].sequence);
                prop_assert_eq!(together.table, Some(earlier.map(|group| group.slots.len()).sum()));
                seen.extend(own);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..rows.len()).collect::<Vec<_>>());
        }
    }
}
