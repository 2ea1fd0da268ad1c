//! Byte-pair encoding of one word: the best-ranked pair of neighbours is
//! merged, the leftmost among equals, until none is left.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A string that merges make or take: a token's id, or a larger number for a string that is no token.
pub(super) type Symbol = u32;

/// The merges of a vocabulary.
pub(super) struct Bpe {
    /// Symbol of each byte alone.
    pub(super) bytes: [Symbol; 256],
    /// Rank and result of each pair.
    pub(super) merges: HashMap<(Symbol, Symbol), (u32, Symbol)>,
}

/// A piece of a word, in a list linked both ways; one merged into its left neighbour has no bytes.
struct Piece {
    symbol: Symbol,
    bytes: usize,
    left: Option<usize>,
    right: Option<usize>,
}

impl Bpe {
    /// The symbols of `word` with the number of bytes of each.
    pub(super) fn encode(&self, word: &[u8]) -> Vec<(Symbol, usize)> {
        let mut pieces: Vec<Piece> = word
            .iter()
            .enumerate()
            .map(|(i, byte)| Piece {
                symbol: self.bytes[usize::from(*byte)],
                bytes: 1,
                left: i.checked_sub(1),
                right: Some(i + 1).filter(|r| *r < word.len()),
            })
            .collect();
        let mut queue = BinaryHeap::new();
        for right in 1..pieces.len() {
            queue.extend(self.candidate(&pieces, right - 1, right));
        }
        while let Some(Reverse(next)) = queue.pop() {
            let (left, right) = (&pieces[next.left], &pieces[next.right]);
            let current = left.bytes > 0 && right.bytes > 0 && (left.symbol, right.symbol) == next.pair;
            if !current {
                continue;
            }
            let after = right.right;
            pieces[next.left].bytes += right.bytes;
            pieces[next.left].symbol = next.merged;
            pieces[next.left].right = after;
            pieces[next.right].bytes = 0;
            if let Some(after) = after {
                pieces[after].left = Some(next.left);
                queue.extend(self.candidate(&pieces, next.left, after));
            }
            if let Some(before) = pieces[next.left].left {
                queue.extend(self.candidate(&pieces, before, next.left));
            }
        }
        pieces.iter().filter(|p| p.bytes > 0).map(|p| (p.symbol, p.bytes)).collect()
    }

    fn candidate(&self, pieces: &[Piece], left: usize, right: usize) -> Option<Reverse<Merge>> {
        let pair = (pieces[left].symbol, pieces[right].symbol);
        let (rank, merged) = *self.merges.get(&pair)?;
        Some(Reverse(Merge { rank, left, right, pair, merged }))
    }
}

/// A merge that was possible when it was queued; ordered by rank, then place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merge {
    rank: u32,
    left: usize,
    right: usize,
    pair: (Symbol, Symbol),
    merged: Symbol,
}
