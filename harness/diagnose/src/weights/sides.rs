//! Tensors that are not as a file holds them: read back from a device, or read through a fault.

use super::cause;
use crate::mutations::{CauseId, Injection};
use crate::number::counted;
use anyhow::{Result, bail};
use qdiff_engine::model::fault::Read;
use qdiff_engine::model::{Model, WeightSource};
use qdiff_engine::quant::{GgmlType, KvType, Stored};
use std::collections::HashMap;
use std::sync::Arc;

/// One tensor whose bytes came back from a device.
pub(super) struct ReadBack {
    pub(super) ty: GgmlType,
    /// Length of a row, and rows.
    pub(super) extent: (usize, usize),
    pub(super) bytes: Vec<u8>,
}

impl WeightSource for ReadBack {
    fn stored(&self, _: &str) -> Stored<'_> {
        Stored { ty: self.ty, extent: self.extent, bytes: &self.bytes }
    }
}

/// How `model` is read with `injections`, each tensor by its name; and the tensors that are read otherwise, in words.
///
/// # Errors
/// An injection that applies nowhere, that does not change how a weight is read, or that begins at a position.
pub fn misread(model: &Model, injections: &[Injection]) -> Result<(Arc<Read>, Vec<String>)> {
    let (mut faults, mut words) = (HashMap::new(), Vec::new());
    for injection in injections {
        let mut graph = model.graph().clone();
        let name = injection.mutation.name;
        let mut tensors = 0;
        for id in injection.rewrite(&mut graph, KvType::F32)? {
            let at = graph.index(id).expect("a stage that was just rewritten");
            let (old, new) = (&model.graph().nodes[at], &graph.nodes[at]);
            let weights = old.weights.iter().filter(|_| new.before.is_none());
            let read: Vec<_> =
                weights.filter_map(|w| Some((w.name.clone(), cause::misread(old, new, &w.name)?))).collect();
            if read.is_empty() {
                bail!("`{name}` at {id} is no way to read a weight alone; inject it into a run: qdiff run --inject");
            }
            tensors += read.len();
            faults.extend(read);
        }
        let what = CauseId::new(injection.mutation, &injection.values);
        words.push(format!("{what} in {}", counted(tensors, "tensor")));
    }
    let read: Arc<Read> = Arc::new(move |source, tensor, row, out| match faults.get(tensor) {
        Some(fault) => fault(source, tensor, row, out),
        None => source.rows(tensor, row, out),
    });
    Ok((read, words))
}
