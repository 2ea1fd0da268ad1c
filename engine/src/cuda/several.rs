//! Attention of the fused path in a pass with rows of several sequences.
//!
//! A sequence that has many rows in the pass is attended to as a longer step of one sequence is: its keys in tiles, which are
//! found through its block table, and then all rows at once. Rows of sequences that have few are attended to one by one, all in
//! one launch, by the kernel of decode steps; `join_shares.cu` puts its shares together.

use super::CudaError;
use super::calls::{Job, Span};
use super::decoder::{Decoder, Layer};
use super::fast::Fused;
use super::kernels::*;
use super::launch::Call;
use super::memory::SPLITS;
use super::options::{Options, Path};
use crate::cpu::Group;
use crate::model::Graph;

/// Rows of a sequence in a pass from which on they are attended to at once.
const MANY: usize = 9;
/// Shares of rows for which there is room at least: as many as fill a large card.
const SHARES: usize = 4 * SPLITS as usize;
/// Warps of a block of `join_shares`.
const JOIN_WARPS: u32 = constant!("prefill/join_shares.cu", "WARPS");

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

/// Shares of a query head for which there is room: of a decode step, or of the rows of a pass.
pub fn shares(options: &Options) -> usize {
    match options.more_sequences {
        0 => SPLITS as usize,
        _ if options.path == Path::Tapped => SPLITS as usize,
        _ => options.step.max(SHARES),
    }
}

/// Refuses a model that the fused path runs one sequence of alone.
///
/// # Errors
/// Why, and what to take instead.
pub fn check(graph: &Graph) -> Result<(), CudaError> {
    match Decoder::of(graph).is_some_and(|decoder| decoder.mixed.is_empty()) {
        true => Ok(()),
        false => Err(CudaError::Unsupported(format!(
            "the fused kernels run one sequence of {} at a time, since its layers have states; use --subject cuda",
            graph.config.arch
        ))),
    }
}

impl Fused<'_> {
    /// Attention of a pass with rows of several sequences, for the three nodes that end in `layer.context`.
    pub(super) fn attention_of_several(&self, layer: &Layer, span: Span) -> Vec<Job> {
        let several = self.calls.several;
        let mut all = Vec::new();
        if !several.alone.is_empty() {
            all.extend(self.attention_alone(layer, span).map(Job::Kernel));
        }
        all.extend(several.together.iter().flat_map(|rows| self.attention_together(layer, rows, span)));
        all
    }

    /// Of rows that are attended to one by one.
    fn attention_alone(&self, layer: &Layer, span: Span) -> [Call; 2] {
        let config = &self.calls.graph.config;
        let (memory, rows) = (self.calls.memory, self.calls.several.alone.len());
        // As many blocks as the card holds, two to a multiprocessor.
        let filling = 2 * self.calls.functions.processors as usize / (config.n_kv_heads * rows);
        let splits = filling.min(shares(self.calls.options) / rows).clamp(1, SPLITS as usize);
        let (scores_tap, weights_tap) = (self.wanted(layer.scores), self.wanted(layer.weights));
        let (tokens, keys) = (span.tokens as i32, span.keys() as i32);
        // Behind the starts, one for each row.
        let alone = self.calls.batch.starts + 4 * span.tokens as u64;
        let params = AttentionParams {
            q: self.at(layer.rope[0]),
            k: self.at(layer.cache[0]),
            v: self.at(layer.cache[1]),
            partial: memory.partial,
            position_at: 0,
            scores_tap,
            weights_tap,
            scale: self.scale(layer.weights),
            early: 0,
            stamps: 0,
            batch: self.calls.batch,
            rows: alone,
            tokens,
            keys,
        };
        let mut attention = self.attention_with(params, false, true);
        (attention.grid.1, attention.grid.2) = (splits as u32, rows as u32);
        let join = JoinSharesParams {
            partial: memory.partial,
            batch: self.calls.batch,
            rows: alone,
            out: self.at(layer.context),
            scores_tap,
            weights_tap,
            heads: config.n_heads as i32,
            splits: splits as i32,
            tokens,
            keys,
        };
        let blocks = (config.n_heads as u32).div_ceil(JOIN_WARPS);
        [attention, Call::new(join, (blocks, rows as u32, 1), 32 * JOIN_WARPS).of(&[&config.head_dim])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Row, Sequences};
    use crate::cuda::calls::Calls;
    use crate::cuda::layouts::Batch;
    use crate::cuda::testing::{graphs, with_calls};
    use proptest::prelude::*;

    #[test]
    fn shares_of_any_number_of_rows_have_room_and_are_what_is_put_together() {
        for graph in &graphs() {
            let options =
                Options { step: 700, context: 900, path: Path::Fast, more_sequences: 3, ..Options::default() };
            with_calls(graph, &options, |calls| {
                let decoder = Decoder::of(graph).expect("a decoder");
                for rows in [1, 2, 3, 31, 32, 255, 256, 257, 700] {
                    let several = Several { alone: vec![0; rows], together: Vec::new() };
                    let calls = Calls { batch: Batch::at(calls.memory.rows, rows), several: &several, ..calls };
                    let fused = Fused { calls, decoder: &decoder, next_token: 0, wants: &|_| true, narrow: false };
                    let [attention, join] = fused.attention_alone(&decoder.layers[0], Span { tokens: rows, first: 3 });
                    let Params::JoinShares(params) = &join.params else { panic!("{join:?}") };
                    assert_eq!((attention.grid.1 as i32, attention.grid.2 as usize), (params.splits, rows));
                    assert_eq!(join.grid.1 as usize, rows);
                    assert!(params.splits >= 1 && params.splits as usize * rows <= shares(&options), "{rows} rows");
                }
            });
        }
    }

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
