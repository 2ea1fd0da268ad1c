//! Nodes with one thing changed.

use super::Node;
use super::fault::{Faults, Held, Output};
use crate::ops::{Context, Op, Tensor};
use crate::quant::WeightSource;
use std::sync::Arc;

impl Node {
    /// Another op, or other parameters of it.
    pub fn with(&self, op: Op) -> Node {
        Node { op, ..self.clone() }
    }

    /// The op left out.
    pub fn left_out(&self) -> Node {
        Node { faults: Faults { left_out: true, ..self.faults.clone() }, ..self.clone() }
    }

    /// Its weights read in another way.
    pub fn reading(&self, fault: impl Fn(&dyn WeightSource, &str, usize, &mut [f32]) + Send + Sync + 'static) -> Node {
        Node { faults: Faults { read: Some(Arc::new(fault)), ..self.faults.clone() }, ..self.clone() }
    }

    /// Something else computed.
    pub fn computing(
        &self, fault: impl Fn(&[&Tensor<f64>], &Context<'_>) -> (Tensor<f64>, Vec<f32>) + Send + Sync + 'static,
    ) -> Node {
        Node { faults: Faults { compute: Some(Arc::new(fault)), ..self.faults.clone() }, ..self.clone() }
    }

    /// Its rows held in another way, if it is a cache in blocks.
    pub fn holding(&self, fault: impl Fn(&Held<'_>, &mut [f32]) + Send + Sync + 'static) -> Node {
        Node { faults: Faults { hold: Some(Arc::new(fault)), ..self.faults.clone() }, ..self.clone() }
    }

    /// Something else written.
    pub fn writing(&self, fault: impl Fn(Output<'_>) + Send + Sync + 'static) -> Node {
        Node { faults: Faults { write: Some(Arc::new(fault)), ..self.faults.clone() }, ..self.clone() }
    }
}
