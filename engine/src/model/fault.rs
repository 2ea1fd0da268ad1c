//! Faults that the parameters of an op cannot say: hooks on one node.
//!
//! A correct graph carries none. They live here and not in the ops so that an op's file stays the definition of the op;
//! code that needs a wrong stage brings the fault along. All of them work in f64, and an engine that runs in f32
//! narrows them: one fault serves as an injection and as a hypothesis.

use crate::ops::{Context, Tensor};
use crate::quant::{self, ActivationFormat, GgmlType, Stored, WeightSource};
use std::fmt;
use std::sync::Arc;

/// Reads a weight in another way than it is stored: writes that row of the tensor of this name, as
/// the fault sees it, to a slice that has the length of a row.
pub type Read = dyn Fn(&dyn WeightSource, &str, usize, &mut [f32]) + Send + Sync;

/// Computes something else than the op: the value in the shape that the op would have given, and the
/// forward error bound of each element. For a cache: of the rows that are appended.
pub type Compute = dyn Fn(&[&Tensor<f64>], &Context<'_>) -> (Tensor<f64>, Vec<f32>) + Send + Sync;

/// Holds a row of a cache in blocks otherwise than ggml does: writes the values that the row is read as.
pub type Hold = dyn Fn(&Held<'_>, &mut [f32]) + Send + Sync;

/// A row of a cache in blocks.
pub struct Held<'a> {
    /// ggml's type of the blocks.
    pub ty: GgmlType,
    /// The row as it was given to the cache.
    pub given: &'a [f32],
    /// Its blocks as ggml stores them.
    pub bytes: &'a [u8],
}

impl Output<'_> {
    /// What the buffer held at a flat index after the step before; zero before the first.
    pub fn before(&self, at: usize) -> f64 {
        self.old.and_then(|old| old.get(at)).map_or(0.0, |&v| f64::from(v))
    }
}

/// Leaves something else in the output than what was computed: changes values and, beside them,
/// their bounds. What a cache keeps for the next step is not changed with its output.
pub type Write = dyn Fn(Output<'_>) + Send + Sync;

/// The output of a stage at one step, as it is about to be written.
pub struct Output<'a> {
    /// What was computed.
    pub value: &'a mut Tensor<f64>,
    /// Error bound of each element; infinity leaves an element open.
    pub bound: &'a mut Vec<f32>,
    /// What the buffer held after the step before, by address; `None` before the first.
    pub old: Option<&'a [f32]>,
    /// Position of each row, where an axis counts tokens; of a cache, of the rows that this step added.
    pub positions: &'a [u32],
}

/// The faults of one node.
#[derive(Clone, Default)]
pub struct Faults {
    /// Whether the op is left out: the stage shows its first input.
    pub left_out: bool,
    /// How its weights are read.
    pub read: Option<Arc<Read>>,
    /// What is computed.
    pub compute: Option<Arc<Compute>>,
    /// How the rows of a cache in blocks are held; nothing in a cache without blocks.
    pub hold: Option<Arc<Hold>>,
    /// What is written.
    pub write: Option<Arc<Write>>,
}

impl Faults {
    /// Whether the node is as the op says.
    pub fn none(&self) -> bool {
        let computes = self.compute.is_some() || self.hold.is_some();
        !self.left_out && self.read.is_none() && !computes && self.write.is_none()
    }

    /// Rows of `width` elements as a cache holds them in `format`: exact values.
    pub fn held(&self, format: ActivationFormat, width: usize, given: &[f32], out: &mut [f64]) {
        let (Some(hold), Some(ty)) = (&self.hold, format.stored_as()) else {
            return quant::emulate(format, given, out);
        };
        let mut values = vec![0f32; width];
        for (given, out) in given.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            hold(&Held { ty, given, bytes: &quant::store(format, given) }, &mut values);
            out.iter_mut().zip(&values).for_each(|(out, v)| *out = f64::from(*v));
        }
    }
}

impl fmt::Debug for Faults {
    /// Which of the hooks are there: a function has no words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hooks =
            [self.left_out, self.read.is_some(), self.compute.is_some(), self.hold.is_some(), self.write.is_some()];
        f.debug_list()
            .entries(["left out", "read", "compute", "hold", "write"].iter().zip(hooks).filter(|h| h.1))
            .finish()
    }
}

/// A source of weights seen through a fault.
pub struct FaultyWeights<'a> {
    /// The weights as they are.
    pub source: &'a dyn WeightSource,
    /// How they are seen.
    pub fault: &'a Read,
}

impl WeightSource for FaultyWeights<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        self.source.stored(tensor)
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let (n, _) = self.extent(tensor);
        for (i, row) in out.chunks_mut(n.max(1)).enumerate() {
            (self.fault)(self.source, tensor, first + i, row);
        }
    }
}
