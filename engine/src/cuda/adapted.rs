//! Steps of sequences that have LoRA adapters of their own.
//!
//! The matrices of all adapters stand in one tensor, as those of experts do, and each row chooses the matrix of its sequence.

use super::calls::Calls;
use super::device::Doing as _;
use super::{CudaEngine, CudaError, Options};
use crate::model::{Model, Node};
use cudarc::driver::result;
use std::collections::BTreeMap;

impl CudaEngine {
    /// Puts `model` on the first GPU, with all its adapters. `of` says which one a sequence has; one that it does not name has
    /// none.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_adapters(model: &Model, of: BTreeMap<u32, usize>, options: Options) -> Result<Self, CudaError> {
        let options = Options { adapters: model.adapters().count(), ..options };
        let mut engine = Self::on(0, model.graph().clone(), &model.of_all_adapters(), options, None)?;
        engine.adapter_of = of;
        Ok(engine)
    }

    /// Says to the kernels which adapter each row of a step has; nothing where all sequences have the same.
    pub(super) fn bring_adapters(&self, sequences: impl Iterator<Item = u32>) -> Result<(), CudaError> {
        if self.options.adapters == 0 {
            return Ok(());
        }
        let of = |sequence| self.adapter_of.get(&sequence).map_or(0.0, |&number| number as f32);
        let numbers: Vec<f32> = sequences.map(of).collect();
        assert!(numbers.len() <= self.options.step, "a step beyond the room taken");
        self.context.bind_to_thread().doing("taking up the device")?;
        // SAFETY: the buffer holds `options.step` numbers; the copy ends before it returns.
        unsafe { result::memcpy_htod_sync(self.memory.adapters, &numbers) }
            .doing("copying numbers of adapters to the device")
    }
}

impl Calls<'_> {
    /// Whether the rows choose among adapters for this node.
    pub(super) fn chooses_adapters(&self, node: &Node) -> bool {
        self.options.adapters > 0 && node.is_of_adapter()
    }
}
