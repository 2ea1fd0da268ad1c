//! Stages that several arrays of an engine come to: joined, added, or one for all.

use super::map::{Rule, Way};
use super::{Store, Stored};
use anyhow::{Context as _, Result, bail, ensure};
use half::{bf16, f16};
use qdiff_engine::dtype::DType;
use qdiff_engine::ops::Tensor;
use std::sync::Arc;

/// The arrays of one stage in one step, as they come.
pub(super) struct Parts {
    found: Vec<Option<Stored>>,
}

impl Parts {
    /// For the arrays of a line of a map, of which none is there yet.
    pub(super) fn of(rule: &Rule) -> Self {
        Self { found: rule.arrays.iter().map(|_| None).collect() }
    }

    /// Takes one, its elements in this format.
    pub(super) fn add(&mut self, part: usize, tensor: Tensor<f32>, element: DType, store: &Arc<Store>) {
        self.found[part] = Some(store.keep(tensor).stood_as(element));
    }

    /// The number of the first that is not there, and of one that is.
    pub(super) fn missing(&self) -> Option<(usize, usize)> {
        let at = |is: bool| self.found.iter().position(|f| f.is_some() == is);
        at(false).zip(at(true))
    }

    /// What they come to, once all are there.
    ///
    /// # Errors
    /// Arrays that do not fit each other; with `same`, two that differ.
    pub(super) fn together(&self, rule: &Rule) -> Result<(Tensor<f32>, DType)> {
        let all: Vec<&Stored> = self.found.iter().flatten().collect();
        let name = |i: usize| &rule.arrays[i];
        let element = all[0].element();
        if let Some(i) = all.iter().position(|s| s.element() != element) {
            bail!("`{}` is {element}, and `{}` {}", name(0), name(i), all[i].element());
        }
        let way = rule.way.context("several arrays")?;
        let free = if let Way::Join(axis) = way { Some(axis) } else { None };
        let shape = all[0].shape();
        ensure!(
            free.is_none_or(|axis| axis < shape.len()),
            "has {} axes, shape {shape:?}, and the map joins along axis {}",
            shape.len(),
            free.unwrap_or_default()
        );
        for (i, stored) in all.iter().enumerate() {
            let fits = stored.shape().len() == shape.len()
                && stored.shape().iter().zip(shape).enumerate().all(|(axis, (a, b))| a == b || free == Some(axis));
            ensure!(fits, "`{}` has shape {shape:?}, and `{}` {:?}", name(0), name(i), stored.shape());
        }
        let mut first = all[0].get().into_owned();
        match way {
            Way::Join(axis) => first = joined(&all, axis),
            Way::Sum => {
                let other = all[1].get();
                for (a, b) in first.data.iter_mut().zip(&other.data) {
                    *a = added(*a, *b, element)?;
                }
            }
            Way::Same => {
                for (i, stored) in all.iter().enumerate().skip(1) {
                    let other = stored.get();
                    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
                    if let Some(at) = first.data.iter().zip(&other.data).position(differs) {
                        bail!(
                            "element {at} is {:e} in `{}` and {:e} in `{}`, and the map says that they are the same; map each \
                             of them by itself to see which of them is wrong",
                            first.data[at],
                            name(0),
                            other.data[at],
                            name(i)
                        );
                    }
                }
            }
        }
        Ok((first, element))
    }
}

/// One after the other along an axis.
fn joined(all: &[&Stored], axis: usize) -> Tensor<f32> {
    let tensors: Vec<_> = all.iter().map(|s| s.get()).collect();
    let mut shape = tensors[0].shape.clone();
    shape[axis] = tensors.iter().map(|t| t.shape[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let mut data = Vec::with_capacity(shape.iter().product());
    for o in 0..outer {
        for tensor in &tensors {
            let length = tensor.data.len() / outer;
            data.extend_from_slice(&tensor.data[o * length..][..length]);
        }
    }
    Tensor { shape, data }
}

/// The sum of two numbers as a machine adds them in this format: of two the order says nothing.
fn added(a: f32, b: f32, element: DType) -> Result<f32> {
    let exact = f64::from(a) + f64::from(b);
    Ok(match element {
        DType::F32 => a + b,
        DType::F16 => f16::from_f64(exact).to_f32(),
        DType::Bf16 => bf16::from_f64(exact).to_f32(),
        DType::F8E4m3 | DType::F8E5m2 => {
            bail!("is {element}, a format that no engine adds in; dump the sum in its own format")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn together(parts: Vec<Tensor<f32>>, way: &str, element: DType) -> Result<Tensor<f32>> {
        let rule = Rule::parse(&format!("x{{0..{}}} = s : {way}", parts.len() - 1))?;
        let (store, mut all) = (Store::usual(None), Parts::of(&rule));
        // In any order.
        for (i, part) in parts.into_iter().enumerate().rev() {
            all.add(i, part, element, &store);
        }
        all.together(&rule).map(|(tensor, _)| tensor)
    }

    proptest! {
        /// What is cut along any axis is joined again.
        #[test]
        fn what_is_cut_is_joined(a in 1usize..4, b in 1usize..4, c in 1usize..4, axis in 0usize..3, cuts in 1usize..4) {
            let mut shape = vec![a, b, c];
            let whole = shape[axis] * (cuts + 1);
            shape[axis] = whole;
            let all = Tensor { data: (0..shape.iter().product::<usize>()).map(|i| i as f32).collect(), shape };
            // Parts of different size.
            let ends: Vec<usize> = (0..=cuts).map(|i| if i == cuts { whole } else { i + 1 }).collect();
            let parts = ends.iter().scan(0, |from, &to| Some(std::mem::replace(from, to)..to));
            let store = Store::usual(None);
            let stored = store.keep(all.clone());
            let parts: Vec<_> = parts.map(|range| stored.slice(axis, range)).collect();
            prop_assert_eq!(together(parts, &format!("join {axis}"), DType::F32).unwrap(), all);
        }
    }

    #[test]
    fn arrays_that_do_not_fit_are_refused() {
        let tensor = |shape: &[usize], first: f32| {
            let mut data = vec![1.0; shape.iter().product()];
            data[0] = first;
            Tensor { shape: shape.to_vec(), data }
        };
        for (a, b, way, why) in [
            (tensor(&[2, 3], 1.0), tensor(&[3, 3], 1.0), "join 1", "`x0` has shape [2, 3], and `x1` [3, 3]"),
            (tensor(&[2, 3], 1.0), tensor(&[2, 3], 1.0), "join 2", "the map joins along axis 2"),
            (tensor(&[2, 3], 1.0), tensor(&[2, 3], 2.0), "same", "element 0 is 1e0 in `x0` and 2e0 in `x1`"),
        ] {
            let said = together(vec![a, b], way, DType::F32).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        let one = || tensor(&[1], 1.0);
        assert!(together(vec![one(), one()], "sum", DType::F8E4m3).is_err());
        // A sum is rounded to the format in which the engine adds.
        let sum = |element| together(vec![tensor(&[1], 256.0), tensor(&[1], 1.0)], "sum", element).unwrap().data[0];
        assert_eq!((sum(DType::F32), sum(DType::Bf16), sum(DType::F16)), (257.0, 256.0, 257.0));
    }
}
