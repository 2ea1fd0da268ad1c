//! Attention of the fused path in a pass with rows of several sequences.
//!
//! A sequence that has many rows in the pass is attended to as a longer step of one sequence is: its keys in tiles, which are
//! found through its block table, and then all rows at once. Rows of sequences that have few are attended to one by one, all in
//! one launch, by the kernel of decode steps; `join_shares.cu` puts its shares together.

use super::CudaError;
use super::calls::Job;
use super::decoder::{Decoder, Layer};
use super::fast::Fused;
use super::kernels::*;
use super::launch::Call;
use super::memory::{SPLITS, shares};
use super::span::Span;
use crate::model::Graph;

/// Warps of a block of `join_shares`.
const JOIN_WARPS: u32 = constant!("prefill/join_shares.cu", "WARPS");

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
    use crate::cuda::calls::Calls;
    use crate::cuda::layouts::Batch;
    use crate::cuda::options::{Options, Path};
    use crate::cuda::several::Several;
    use crate::cuda::testing::{graphs, with_calls};

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
}
