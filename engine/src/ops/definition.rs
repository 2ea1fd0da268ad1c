//! An op as its own file defines it.

use super::anatomy::Anatomy;
use super::{Context, Tensor, by_anatomy};
use std::any::Any;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

/// The mathematics of an op with its parameters: what it computes in f32 and in f64, how far f32 may be off, and its anatomy,
/// by which everything else treats it. A gather, a contraction, a sum and a decision are defined by their anatomy alone;
/// other definitions say what they compute, and a row reduction also how errors are carried through it.
///
/// Nothing of a definition may panic on operands of the shapes that the graph declares, at any values: captures hold
/// anything.
pub trait Definition: Any + Debug + Send + Sync {
    /// Its name: that of its kernel, and the one by which a capture says what ops were stored in.
    fn name(&self) -> &'static str;

    /// What it does, for people: a clause without a full stop.
    fn about(&self) -> &'static str;

    /// What an output is made of.
    fn anatomy(&self) -> Anatomy<'_>;

    /// The result in f32, in the shape of the stage.
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        by_anatomy::forward(self.anatomy(), inputs, c)
    }

    /// The result in f64.
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        by_anatomy::forward(self.anatomy(), inputs, c)
    }

    /// How far a right evaluation in f32 may be off the exact result `y` on these very operands, element by element.
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, c: &Context<'_>) -> Vec<f32> {
        by_anatomy::bound(self.anatomy(), inputs, y, c)
    }

    /// What is added to the bound if the op keeps values of its own beside caches, and rounds them as these, to this unit: `None` if
    /// it keeps none.
    fn kept_rounded(&self, _unit: f64, _inputs: &[&Tensor<f64>], _c: &Context<'_>) -> Option<Vec<f32>> {
        None
    }

    /// How far operands that are off by `deltas` make the result off, in the first order and in mean square: see
    /// [`super::propagate_error`].
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, c: &Context<'_>,
    ) -> Vec<f32> {
        by_anatomy::propagate_error(self.anatomy(), inputs, deltas, y, c, &|inputs| self.forward64(inputs, c))
    }
}

/// An op by its definition alone: one of this folder, or of any file outside, such as a test's.
#[derive(Clone, Debug)]
pub struct Defined(Arc<dyn Definition>);

impl Defined {
    /// Of this definition.
    pub fn new(definition: impl Definition + 'static) -> Self {
        Self(Arc::new(definition))
    }
}

impl Deref for Defined {
    type Target = dyn Definition;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

/// Alike where name and parameters are.
impl PartialEq for Defined {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.name() == other.name() && format!("{self:?}") == format!("{other:?}")
    }
}
