//! The rows of a step, of one sequence or of several, and the slots of the caches that each sequence has.
//!
//! Rows take slots in order, the lowest free slot first. A sequence has a table of slots: slot `table[p]` holds its position p.
//! A row sees the slots of its own sequence, up to its own position. Two sequences that share a prefix have the same slots
//! there. A sequence may take tokens back, as after a rejected draft: slots that no other sequence has are free again.

use crate::model::Axis;
use crate::ops::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// A token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its sequence, by any number.
    pub sequence: u32,
    /// Its position in the sequence.
    pub position: u32,
    /// Its id.
    pub token: u32,
}

/// Why rows cannot be run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RowsError {
    /// There is none.
    #[error("a step without rows; give it one token at least")]
    Empty,
    /// A sequence does not go on where it ended.
    #[error(
        "sequence {sequence} goes on at position {expected}, and a row of it has position {found}; give the rows of a sequence in order"
    )]
    Position {
        /// The sequence.
        sequence: u32,
        /// Its next position.
        expected: usize,
        /// The position of the row.
        found: u32,
    },
    /// A sequence is to begin with the prefix of another, and cannot.
    #[error(
        "sequence {to} cannot begin with {tokens} tokens of sequence {from}: it has {has} already, and sequence {from} has {there}; share a prefix that is there, with a sequence that is empty"
    )]
    Prefix {
        /// Whose prefix.
        from: u32,
        /// The sequence that is to begin with it.
        to: u32,
        /// Length of the prefix.
        tokens: usize,
        /// Tokens of `to`.
        has: usize,
        /// Tokens of `from`.
        there: usize,
    },
    /// A sequence is to take back tokens that it does not have.
    #[error("sequence {sequence} has {has} tokens and cannot go back to {to}; name a length that it had")]
    Back {
        /// The sequence.
        sequence: u32,
        /// Its tokens.
        has: usize,
        /// The length to go back to.
        to: usize,
    },
    /// Tokens are to be removed from the middle of a sequence that does not have them, or has none behind them.
    #[error(
        "sequence {sequence} has {has} tokens, and a shift cannot remove {tokens} from position {from} on; name tokens that it has, with others behind them"
    )]
    Shift {
        /// The sequence.
        sequence: u32,
        /// Its tokens.
        has: usize,
        /// The position of the first to be removed.
        from: usize,
        /// How many are to be removed.
        tokens: usize,
    },
    /// Tokens that a shift moves are those of another sequence too.
    #[error(
        "sequence {sequence} has cached tokens together with sequence {other}, and a shift would move them for both; shift a sequence of its own"
    )]
    Shared {
        /// The sequence.
        sequence: u32,
        /// The other one.
        other: u32,
    },
    /// Tokens are to be removed from the middle of a sequence, and states of recurrent layers are after all of them.
    #[error(
        "the states of recurrent layers cannot forget tokens in the middle of sequence {sequence}; run it without a shift"
    )]
    ShiftedStates {
        /// The sequence.
        sequence: u32,
    },
    /// Something that is only defined for one sequence.
    #[error("injected faults are of one sequence, and there are several; run each sequence alone, or without faults")]
    Faults,
    /// States of recurrent layers that are not kept.
    #[error(
        "the states of the recurrent layers after {tokens} tokens of sequence {sequence} are not kept; say before the run that it goes back there"
    )]
    States {
        /// The sequence.
        sequence: u32,
        /// After so many of its tokens.
        tokens: usize,
    },
}

/// The sequences of an engine.
#[derive(Clone, Debug, Default)]
pub struct Sequences {
    /// By sequence, the slot of each position.
    tables: BTreeMap<u32, Vec<usize>>,
    /// One more than the last slot that a sequence has.
    taken: usize,
    /// Slots before it that no sequence has.
    free: BTreeSet<usize>,
}

impl Sequences {
    /// Sequence 0 alone, with so many tokens; none where that is 0.
    pub fn one(tokens: usize) -> Self {
        let tables = (tokens > 0).then(|| (0, (0..tokens).collect()));
        Self { tables: tables.into_iter().collect(), taken: tokens, free: BTreeSet::new() }
    }

    /// Tokens of a sequence.
    pub fn tokens(&self, sequence: u32) -> usize {
        self.tables.get(&sequence).map_or(0, Vec::len)
    }

    /// Lets an empty sequence begin with the first tokens of another.
    ///
    /// # Errors
    /// If `to` is not empty, or `from` has fewer tokens.
    pub fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<(), RowsError> {
        let (has, there) = (self.tokens(to), self.tokens(from));
        if has > 0 || there < tokens {
            return Err(RowsError::Prefix { from, to, tokens, has, there });
        }
        let prefix = self.tables.get(&from).map(|table| table[..tokens].to_vec()).unwrap_or_default();
        self.tables.insert(to, prefix);
        Ok(())
    }

    /// The sequence `to` alone, which begins with a copy of the first tokens of `from`, in the same slots of a cache of its own.
    ///
    /// # Errors
    /// If `from` has fewer tokens.
    pub fn copied(&self, from: u32, to: u32, tokens: usize) -> Result<Self, RowsError> {
        let mut copy = self.clone();
        copy.share(from, to, tokens)?;
        copy.tables.retain(|sequence, _| *sequence == to);
        let own: BTreeSet<usize> = copy.tables.values().flatten().copied().collect();
        copy.taken = own.last().map_or(0, |last| last + 1);
        copy.free = (0..copy.taken).filter(|slot| !own.contains(slot)).collect();
        Ok(copy)
    }

    /// Takes a sequence back to its first `to` tokens. Gives the slots that become free by that.
    ///
    /// # Errors
    /// If the sequence has fewer tokens.
    pub fn take_back(&mut self, sequence: u32, to: usize) -> Result<Vec<usize>, RowsError> {
        let has = self.tokens(sequence);
        if to > has {
            return Err(RowsError::Back { sequence, has, to });
        }
        let Some(table) = self.tables.get_mut(&sequence) else { return Ok(Vec::new()) };
        let freed = table.split_off(to);
        if to == 0 {
            self.tables.remove(&sequence);
        }
        Ok(self.freed(freed))
    }

    /// Removes `tokens` tokens of a sequence from position `from` on; those behind them have as much lower positions. Gives the slots
    /// that become free by that, and the slots of those that moved.
    ///
    /// # Errors
    /// If the sequence has no tokens there, or none behind them; tokens that another sequence has too.
    pub fn shift(&mut self, sequence: u32, from: usize, tokens: usize) -> Result<[Vec<usize>; 2], RowsError> {
        let has = self.tokens(sequence);
        let end = from.checked_add(tokens).filter(|end| tokens > 0 && *end < has);
        let end = end.ok_or(RowsError::Shift { sequence, has, from, tokens })?;
        let moved = self.tables[&sequence][end..].to_vec();
        let shares = |(other, table): (&u32, &Vec<usize>)| {
            (*other != sequence && table.iter().any(|slot| moved.contains(slot))).then_some(*other)
        };
        if let Some(other) = self.tables.iter().find_map(shares) {
            return Err(RowsError::Shared { sequence, other });
        }
        let freed = self.tables.get_mut(&sequence).map(|table| table.drain(from..end).collect()).unwrap_or_default();
        Ok([self.freed(freed), moved])
    }

    /// Frees those of these slots that no sequence has any more, and gives them.
    fn freed(&mut self, mut slots: Vec<usize>) -> Vec<usize> {
        slots.retain(|slot| self.owner(*slot).is_none());
        self.free.extend(&slots);
        while self.taken.checked_sub(1).is_some_and(|last| self.free.remove(&last)) {
            self.taken -= 1;
        }
        slots
    }

    /// The sequences after a step of `rows`, and the rows by sequence.
    ///
    /// # Errors
    /// If there are no rows, or a sequence does not go on where it ended.
    pub fn after(&self, rows: &[Row]) -> Result<(Self, Vec<Group>), RowsError> {
        if rows.is_empty() {
            return Err(RowsError::Empty);
        }
        let (mut after, mut groups) = (self.clone(), BTreeMap::<u32, Group>::new());
        for (index, &Row { sequence, position, token }) in rows.iter().enumerate() {
            let table = after.tables.entry(sequence).or_default();
            if table.len() != position as usize {
                return Err(RowsError::Position { sequence, expected: table.len(), found: position });
            }
            table.push(after.free.pop_first().unwrap_or_else(|| {
                after.taken += 1;
                after.taken - 1
            }));
            let group = groups.entry(sequence).or_default();
            group.rows.push(index);
            group.tokens.push(token);
            group.positions.push(position);
        }
        for (index, (sequence, group)) in groups.iter_mut().enumerate() {
            (group.sequence, group.index) = (*sequence, index);
            group.slots.clone_from(&after.tables[sequence]);
        }
        Ok((after, groups.into_values().collect()))
    }

    /// Whether there is one sequence alone, and slot and position are the same.
    pub fn is_one(&self) -> bool {
        let in_order = |table: &Vec<usize>| table.iter().enumerate().all(|(position, slot)| position == *slot);
        self.tables.len() == 1 && self.tables.values().all(in_order)
    }

    /// The first sequence that has the slot.
    pub fn owner(&self, slot: usize) -> Option<u32> {
        self.tables.iter().find(|(_, table)| table.contains(&slot)).map(|(sequence, _)| *sequence)
    }

    /// One more than the last slot that a sequence has: an axis of keys has so many entries.
    pub fn slots(&self) -> usize {
        self.taken
    }
}

/// The rows of a step that are of one sequence.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The sequence.
    pub sequence: u32,
    /// Which of the step's rows they are.
    pub rows: Vec<usize>,
    /// The slots that the last of them sees, by position.
    pub slots: Vec<usize>,
    /// Their tokens.
    pub tokens: Vec<u32>,
    /// Their positions.
    pub positions: Vec<u32>,
    /// Which of the step's sequences it is: a state of the step has an entry for each, in this order.
    pub index: usize,
}

impl Group {
    /// What `x` is to the sequence alone: its rows where an axis counts tokens, its slots where one counts keys.
    ///
    /// # Panics
    /// If `x` has other axes.
    pub fn gather(&self, axes: &[Axis], x: &Tensor<f32>) -> Tensor<f32> {
        let (shape, run, starts) = self.places(axes, &x.shape);
        let data = starts.iter().flat_map(|&at| &x.data[at..at + run]).copied().collect();
        Tensor { shape, data }
    }

    /// Puts the values that the sequence has alone where [`Self::gather`] finds them.
    pub(super) fn scatter(&self, axes: &[Axis], part: &Tensor<f32>, whole: &mut Tensor<f32>) {
        let (shape, run, starts) = self.places(axes, &whole.shape);
        assert_eq!(part.shape, shape, "a stage has the shape that the graph declares");
        for (at, values) in starts.into_iter().zip(part.data.chunks(run.max(1))) {
            whole.data[at..at + run].copy_from_slice(values);
        }
    }

    /// The sequence's own shape of a tensor of this shape, how many elements lie together, and where such runs begin.
    fn places(&self, axes: &[Axis], shape: &[usize]) -> (Vec<usize>, usize, Vec<usize>) {
        assert_eq!(axes.len(), shape.len(), "a stage has the axes that the graph declares");
        let fixed = axes.iter().rev().take_while(|axis| matches!(axis, Axis::Fixed(_))).count();
        let (picked, whole) = shape.split_at(shape.len() - fixed);
        let run: usize = whole.iter().product();
        let (mut own, mut starts) = (Vec::new(), vec![0]);
        for (axis, &extent) in axes.iter().zip(picked) {
            let all: Vec<usize>;
            let indices = match axis {
                Axis::Tokens => &self.rows,
                Axis::Keys => &self.slots,
                Axis::Last => {
                    all = vec![self.index];
                    &all
                }
                Axis::Fixed(_) => {
                    all = (0..extent).collect();
                    &all
                }
            };
            own.push(indices.len());
            starts = starts.iter().flat_map(|start| indices.iter().map(move |i| start * extent + i)).collect();
        }
        starts.iter_mut().for_each(|start| *start *= run);
        (own.into_iter().chain(whole.iter().copied()).collect(), run, starts)
    }
}
