//! Tensors that are not as a file holds them: read back from a device, or read through a fault.

use super::WeightFault;
use crate::mutations::{CauseId, Injection};
use crate::number::counted;
use anyhow::{Result, bail};
use qdiff_engine::model::{Model, WeightSource};
use qdiff_engine::quant::{GgmlType, Stored};
use std::collections::HashMap;

/// One tensor whose bytes came back from a device.
pub struct ReadBack {
    /// Its format.
    pub ty: GgmlType,
    /// Length of a row, and number of rows.
    pub extent: (usize, usize),
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl WeightSource for ReadBack {
    fn stored(&self, _: &str) -> Stored<'_> {
        Stored { ty: self.ty, extent: self.extent, bytes: &self.bytes }
    }
}

/// The engine's reader with faults in the reading of some tensors.
pub struct FaultyWeights<'a> {
    model: &'a Model,
    faults: HashMap<String, WeightFault>,
}

impl<'a> FaultyWeights<'a> {
    /// The reader of `model` with `injections`; gives it and the tensors that it reads otherwise, in words.
    ///
    /// # Errors
    /// An injection that applies nowhere, that does not change how a weight is read, or that begins at a position.
    pub fn new(model: &'a Model, injections: &[Injection]) -> Result<(Self, Vec<String>)> {
        let (mut faults, mut words) = (HashMap::new(), Vec::new());
        for injection in injections {
            let mut graph = model.graph().clone();
            let name = injection.mutation().name;
            let mut tensors = 0;
            for id in injection.rewrite(&mut graph)? {
                let at = graph.index(id).expect("a stage that was just rewritten");
                let (old, new) = (&model.graph().nodes[at], &graph.nodes[at]);
                let read =
                    old.weights.iter().filter_map(|w| Some((w.name.clone(), WeightFault::of(old, new, &w.name)?)));
                let read: Vec<_> = read.filter(|_| new.before.is_none()).collect();
                if read.is_empty() {
                    bail!(
                        "`{name}` at {id} is no way to read a weight alone; inject it into a run: qdiff run --inject"
                    );
                }
                tensors += read.len();
                faults.extend(read);
            }
            let what = CauseId::new(injection.mutation(), injection.values());
            words.push(format!("{what} in {}", counted(tensors, "tensor")));
        }
        Ok((Self { model, faults }, words))
    }
}

impl WeightSource for FaultyWeights<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        self.model.stored(tensor)
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let Some(fault) = self.faults.get(tensor) else {
            return self.model.rows(tensor, first, out);
        };
        let (n, _) = self.extent(tensor);
        for (i, row) in out.chunks_mut(n).enumerate() {
            fault.row(self.model, first + i, row);
        }
    }
}
