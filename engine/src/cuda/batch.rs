//! Steps of several sequences: what the kernels are given of their rows.
//!
//! Each row has a position, a slot of the caches that it is written to, and the block table of its sequence, through which
//! attention finds the slots that the row sees. All of it is data in device memory (`kernels/batch.cuh`).

use super::attend_several;
use super::captured::clear;
use super::device::Doing as _;
use super::known::is_cache;
use super::layouts::Batch;
use super::several::Several;
use super::{CudaEngine, CudaError, Path};
use crate::cpu::{Group, Row, RowsError, Sequences};
use crate::tap::TapSink;
use cudarc::driver::result;
use std::collections::BTreeSet;

/// The contents of the tables.
#[derive(Clone, Debug, Default, PartialEq)]
struct Tables {
    positions: Vec<i32>,
    slots: Vec<i32>,
    tables: Vec<i32>,
    starts: Vec<i32>,
}

impl Tables {
    /// Of so many rows, by sequence.
    fn of(rows: usize, groups: &[Group]) -> Self {
        let none = || vec![0; rows];
        let mut all = Self { positions: none(), slots: none(), tables: Vec::new(), starts: none() };
        for group in groups {
            for (&row, &position) in group.rows.iter().zip(&group.positions) {
                all.positions[row] = position as i32;
                all.slots[row] = group.slots[position as usize] as i32;
                all.starts[row] = all.tables.len() as i32;
            }
            all.tables.extend(group.slots.iter().map(|&slot| slot as i32));
        }
        all
    }

    /// As they stand from an address on (`Batch::at`), with the rows that are attended to one by one.
    fn packed(mut self, mut alone: Vec<i32>) -> Vec<i32> {
        alone.resize(self.positions.len(), 0);
        let mut all = Vec::with_capacity(4 * alone.len() + self.tables.len());
        for part in [&mut self.positions, &mut self.slots, &mut self.starts, &mut alone, &mut self.tables] {
            all.append(part);
        }
        all
    }
}

impl CudaEngine {
    /// Its sequences.
    pub fn sequences(&self) -> Sequences {
        self.several.clone().unwrap_or_else(|| Sequences::one(self.position))
    }

    /// Keeps the states of recurrent layers that are gone back to: those of a sequence after so many of its tokens.
    pub fn keep_states(&mut self, these: BTreeSet<(u32, usize)>) {
        self.states.keep(these);
    }

    /// Lets sequence `to`, which is empty, begin with the first `tokens` tokens of sequence `from`, in the same slots.
    ///
    /// # Errors
    /// If `to` is not empty, `from` has fewer tokens, or the engine runs one sequence alone; states of recurrent layers that are
    /// not kept.
    pub fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<(), CudaError> {
        self.takes_sequences()?;
        let mut sequences = self.sequences();
        sequences.share(from, to, tokens).map_err(refused)?;
        self.has_states(from, tokens)?;
        self.states.share(from, to, tokens);
        self.several = Some(sequences);
        Ok(())
    }

    /// Takes a sequence back to its first `to` tokens. Cache rows that no sequence has any more are filled with NaN, so that
    /// whoever still reads them is found.
    ///
    /// # Errors
    /// If CUDA fails, the sequence has fewer tokens, or the engine runs one sequence alone; states of recurrent layers that are
    /// not kept.
    pub fn take_back(&mut self, sequence: u32, to: usize) -> Result<(), CudaError> {
        self.takes_sequences()?;
        let mut sequences = self.sequences();
        let freed = sequences.take_back(sequence, to).map_err(refused)?;
        self.has_states(sequence, to)?;
        self.states.take_back(sequence, to);
        self.context.bind_to_thread().doing("taking up the device")?;
        // What is on its way to the host may still be read from these rows.
        self.copies.synchronize().doing("waiting for copies")?;
        for (node, cache) in self.graph.nodes.iter().zip(&self.memory.outputs).filter(|(node, _)| is_cache(node)) {
            let bytes = self.options.row_bytes(node);
            for slot in &freed {
                clear(cache.at + (slot * bytes) as u64, bytes, &self.stream)?;
            }
        }
        self.position = sequences.slots();
        self.mirror.rows = self.mirror.rows.min(freed.into_iter().min().unwrap_or(usize::MAX));
        self.several = Some(sequences);
        Ok(())
    }

    /// Runs rows of any sequences. What is wanted has a row for each; an axis of keys has so many entries
    /// as there are slots taken: in a cache they are slots. Of scores and weights they are positions in the sequence of the
    /// row, and 0 beyond the position of the row. A state is one of each sequence, in their order.
    ///
    /// # Errors
    /// If CUDA fails, there are no rows, a sequence does not go on where it ended, a token is not of the vocabulary, the
    /// engine runs one sequence alone, or has faults. If the model has recurrent layers: rows of a sequence that do not follow
    /// each other, or an op whose kernel takes one sequence alone.
    ///
    /// # Panics
    /// If there are more rows, tokens or sequences than there is room for.
    pub fn step_rows(&mut self, rows: &[Row], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        self.takes_sequences()?;
        let (after, groups) = self.sequences().after(rows).map_err(refused)?;
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        // Rows may take slots that others had: of all that were ever taken, the rest comes before these.
        self.position = after.slots() - rows.len();
        self.bring_adapters(rows.iter().map(|row| row.sequence))?;
        let more = self.options.more_sequences > 0 || self.states.keeps_any();
        let keeps_states = self.graph.is_recurrent() && more;
        if after.is_one() && !keeps_states {
            // Slot and position are the same.
            self.several = None;
            self.queue(&tokens, taps)?;
            self.finish(taps)?;
        } else {
            if self.has_faults() {
                return Err(refused(RowsError::Faults));
            }
            assert!(groups.len() <= self.options.more_sequences + 1, "more sequences than there is room for");
            self.context.bind_to_thread().doing("taking up the device")?;
            self.check_room(&tokens)?;
            let ran = self
                .bring_tables(rows.len(), after.is_one(), &groups)
                .and_then(|()| self.begin_states(groups))
                .and_then(|()| self.by_rows(&tokens, taps));
            (self.batch, self.rows) = Default::default();
            self.end_states(ran.is_ok());
            ran?;
        }
        self.several = Some(after);
        Ok(())
    }

    /// Brings what the kernels are given of rows to the device; nothing of one sequence, where slot and position are the same.
    fn bring_tables(&mut self, rows: usize, one: bool, groups: &[Group]) -> Result<(), CudaError> {
        if one {
            return Ok(());
        }
        let tables = Tables::of(rows, groups);
        (self.batch, self.rows) = (Batch::at(self.memory.rows, rows), Several::of(groups));
        let all = tables.packed(self.rows.alone.clone());
        // SAFETY: the buffer was taken for so many rows and sequences; the copy ends before it returns.
        unsafe { result::memcpy_htod_sync(self.memory.rows, &all) }.doing("copying block tables to the device")
    }

    fn takes_sequences(&self) -> Result<(), CudaError> {
        if self.options.last_logits {
            return Err(CudaError::Unsupported("an engine of the last logits alone runs one sequence".to_owned()));
        }
        match self.options.path {
            Path::Tapped => Ok(()),
            Path::Fast => attend_several::check(&self.graph),
        }
    }
}

pub(super) fn refused(why: RowsError) -> CudaError {
    CudaError::Unsupported(why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_slots_of_their_sequences() {
        let mut sequences = Sequences::one(3);
        sequences.share(0, 2, 2).unwrap();
        let row = |sequence, position| Row { sequence, position, token: 0 };
        let (_, groups) = sequences.after(&[row(2, 2), row(0, 3), row(2, 3), row(7, 0)]).unwrap();
        let tables = Tables::of(4, &groups);
        assert_eq!(tables.positions, [2, 3, 3, 0]);
        assert_eq!(tables.slots, [3, 4, 5, 6]);
        assert_eq!(tables.tables, [0, 1, 2, 4, /* */ 0, 1, 3, 5, /* */ 6]);
        assert_eq!(tables.starts, [4, 0, 4, 8]);
        let packed = tables.packed(vec![3]);
        assert_eq!(packed[8..], [4, 0, 4, 8, /* */ 3, 0, 0, 0, /* */ 0, 1, 2, 4, 0, 1, 3, 5, 6]);
    }
}
