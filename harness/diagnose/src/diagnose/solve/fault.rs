//! A fault of the catalogue as a law: where it explains all that is wrong and would change other elements too, a condition may tell
//! the ones from the others.

use super::super::searcher::assume;
use super::form::Form;
use super::predict::row_of;
use super::scene::Scene;
use super::when::PLANE;
use super::{Alternative, Confidence, Law, Solution, weigh};
use crate::mutations::{CauseId, find};
use crate::verdict::{Evidence, Expected, work_of};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::fmt;

/// A fault, with the sentence that names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// Its name and parameters.
    pub(in super::super) name: CauseId,
    /// What is wrong.
    pub(in super::super) story: String,
}

impl Fault {
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let values: Vec<f64> = self.name.parameters.iter().map(|(_, value)| *value).collect();
        let e = scene.e;
        let node = find(&self.name.mutation)?.applied(e.node, &values, &e.oracle.graph)?;
        let assumed: OnceCell<Expected> = OnceCell::new();
        Some(Box::new(move |row| {
            let make = || {
                scene.count(work_of(&node, e.oracle, e.side.capture) as usize);
                assume(&node, e)
            };
            row_of(assumed.get_or_init(make), row)
        }))
    }

    /// Numbers that were read off the wrong elements.
    pub(super) fn parameters(&self) -> usize {
        self.name.parameters.len()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.story, self.name)
    }
}

/// What a fault explains under a condition, or of so many of the elements that it would change.
pub(in super::super) fn of_fault(e: &Evidence<'_>, fault: Fault, meter: &super::Meter) -> Option<Solution> {
    let scene = Scene::new(e, meter)?;
    let mutation = find(&fault.name.mutation)?;
    let values: Vec<f64> = fault.name.parameters.iter().map(|(_, value)| *value).collect();
    let is_fitted = mutation.of_model && !mutation.usual().contains(&values);
    let found = weigh(&scene, (0, &Law::of(Form::Fault(fault), &scene)?), &[])?;
    // A number of the model is one for all planes: fitted, it gives those that a condition leaves it.
    (!is_fitted || !found.holds.is_of(PLANE)).then_some(found)
}

impl Solution {
    /// Whether it is a fault of the catalogue under a condition.
    pub(in super::super) fn is_of_fault(&self) -> bool {
        matches!(self.law, Some(Form::Fault(_)))
    }

    /// How many elements it would change, if no rule says which of them are wrong.
    pub(in super::super) fn reach(&self) -> Option<usize> {
        match self.holds {
            super::Holds::Some { of, .. } if self.confidence == Confidence::Consistent => Some(of),
            _ => None,
        }
    }
}
