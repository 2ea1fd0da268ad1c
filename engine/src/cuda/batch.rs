//! Steps of several sequences: what the kernels of the tapped path are given of their rows.
//!
//! Each row has a position, a slot of the caches that it is written to, and the block table of its sequence, through which
//! attention finds the slots that the row sees. All of it is data in device memory (`kernels/batch.cuh`).

use super::captured::clear;
use super::device::Doing as _;
use super::known::is_own_state;
use super::layouts::Batch;
use super::{CudaEngine, CudaError, Path};
use crate::cpu::{Group, Row, RowsError, Sequences};
use crate::model::row_len;
use crate::tap::TapSink;
use cudarc::driver::result;

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
}

impl CudaEngine {
    /// Its sequences.
    pub fn sequences(&self) -> Sequences {
        self.several.clone().unwrap_or_else(|| Sequences::one(self.position))
    }

    /// Lets sequence `to`, which is empty, begin with the first `tokens` tokens of sequence `from`, in the same slots.
    ///
    /// # Errors
    /// If `to` is not empty, `from` has fewer tokens, or the engine is not the tapped one.
    pub fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<(), CudaError> {
        self.takes_sequences()?;
        let mut sequences = self.sequences();
        sequences.share(from, to, tokens).map_err(refused)?;
        self.several = Some(sequences);
        Ok(())
    }

    /// Takes a sequence back to its first `to` tokens. Cache rows that no sequence has any more are filled with NaN, so that
    /// whoever still reads them is found.
    ///
    /// # Errors
    /// If CUDA fails, the sequence has fewer tokens, or the engine is not the tapped one.
    pub fn take_back(&mut self, sequence: u32, to: usize) -> Result<(), CudaError> {
        self.takes_sequences()?;
        let mut sequences = self.sequences();
        let freed = sequences.take_back(sequence, to).map_err(refused)?;
        self.context.bind_to_thread().doing("taking up the device")?;
        // What is on its way to the host may still be read from these rows.
        self.copies.synchronize().doing("waiting for copies")?;
        for (node, cache) in self.graph.nodes.iter().zip(&self.memory.outputs).filter(|(node, _)| node.op.has_state()) {
            let bytes = self.options.kv.size() * row_len(node);
            for slot in &freed {
                clear(cache.at + (slot * bytes) as u64, bytes, &self.stream)?;
            }
        }
        self.position = sequences.slots();
        self.mirror.rows = self.mirror.rows.min(freed.into_iter().min().unwrap_or(usize::MAX));
        self.several = Some(sequences);
        Ok(())
    }

    /// Runs rows of any sequences, by the tapped path. What is wanted has a row for each; an axis of keys has so many entries
    /// as there are slots taken: in a cache they are slots. Of scores and weights they are positions in the sequence of the
    /// row, and 0 beyond the position of the row.
    ///
    /// # Errors
    /// If CUDA fails, there are no rows, a sequence does not go on where it ended, a token is not of the vocabulary, the
    /// engine is not the tapped one, or has faults.
    ///
    /// # Panics
    /// If there are more rows, tokens or sequences than there is room for.
    pub fn step_rows(&mut self, rows: &[Row], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        self.takes_sequences()?;
        let recurrent = self.graph.nodes.iter().any(is_own_state);
        let (after, groups) = self.sequences().after(rows).map_err(refused)?;
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        // Rows may take slots that others had: of all that were ever taken, the rest comes before these.
        self.position = after.slots() - rows.len();
        if after.is_one() {
            // Slot and position are the same.
            self.several = None;
            self.step(&tokens, taps)?;
        } else {
            if self.has_faults() {
                return Err(refused(RowsError::Faults));
            }
            if recurrent {
                return Err(refused(RowsError::Recurrent));
            }
            assert!(groups.len() <= self.options.more_sequences + 1, "more sequences than there is room for");
            self.context.bind_to_thread().doing("taking up the device")?;
            self.check_room(&tokens)?;
            let tables = Tables::of(rows.len(), &groups);
            self.batch = self.memory.batch;
            let Batch { positions, slots, tables: at, starts } = self.batch;
            let ran = [
                (positions, &tables.positions),
                (slots, &tables.slots),
                (at, &tables.tables),
                (starts, &tables.starts),
            ]
            .into_iter()
            .try_for_each(|(to, from)| {
                // SAFETY: the buffers were taken for so many rows and sequences; the sources outlive the copies, which the
                // step waits for.
                unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }
                    .doing("copying block tables to the device")
            })
            .and_then(|()| self.by_nodes(&tokens, taps));
            self.batch = Batch::default();
            ran?;
        }
        self.several = Some(after);
        Ok(())
    }

    fn takes_sequences(&self) -> Result<(), CudaError> {
        if self.options.path != Path::Tapped || self.options.last_logits {
            return Err(CudaError::Unsupported(
                "only the tapped CUDA path runs several sequences; use --subject cuda".to_owned(),
            ));
        }
        Ok(())
    }
}

fn refused(why: RowsError) -> CudaError {
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
    }
}
