//! Arrays that hold the rows of all sequences of a pass: each sequence's rows become those of its step.

use super::array::{self, Array, Shapes, Target};
use super::intake::{Intake, LOGPROBS, PASS, Pass, TABLES};
use super::names::Named;
use super::{Step, quoted, shortened};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::Axis;
use qdiff_engine::ops::Tensor;
use std::io::Read;

/// Most characters of a message about an array.
const SAID: usize = 500;

/// Whole numbers that an engine gives its kernels.
const POSITIONS: &str = "positions";
const SLOTS: &str = "slots";
/// A step and a node by their numbers, the values, and the format that they are stored in.
type Taken = (usize, usize, Tensor<f32>, DType);

impl Intake<'_> {
    /// The number of the pass of this name, if there is one.
    pub(super) fn numbered(&self, pass: &str) -> Option<usize> {
        pass.strip_prefix(PASS)?.parse().ok().filter(|number| *number < self.passes.len())
    }

    /// Takes the array `name` of all rows of pass `number`.
    ///
    /// # Errors
    /// As [`Intake::take`]; a stage that has no row for each token.
    pub(super) fn take_pass<R: Read>(
        &mut self, pass: Pass, (number, name): (usize, &str), full: &str, most: u64,
        open: impl FnOnce(Option<DType>) -> Result<Array<R>>,
    ) -> Result<()> {
        if pass == Pass::Tables {
            return Ok(());
        }
        let all = self.name;
        let problem = || format!("{all}: `{}`", quoted(full));
        let declared = self.elements.iter().find(|(pattern, _)| pattern.is_match(full)).map(|(_, element)| *element);
        if [POSITIONS, SLOTS].contains(&name) {
            let table = open(declared).and_then(Array::table).with_context(problem)?;
            return self.said(number, name, table.entries()).with_context(problem);
        }
        if let (LOGPROBS, [step]) = (name, self.passes[number].steps.as_slice()) {
            let numbers = open(declared).and_then(|array| array.numbers(self.capture.steps[*step].rows()));
            self.capture.steps[*step].logprobs = Some(numbers.with_context(problem)?);
            return Ok(());
        }
        let names = self.names;
        let Some(found) = names.get(self.rank, name) else {
            ensure!(names.mapped, "{} belongs to no stage", problem());
            return Ok(());
        };
        self.fitting.extend(found.iter().filter_map(|named| named.rule));
        if !names.wants(found) {
            return Ok(());
        }
        if found.iter().any(|named| named.rule.is_some_and(|rule| names.rules[rule].way.is_some())) {
            bail!(
                "{} holds all rows of a pass, and the map puts it together with others; dump them by sequence",
                problem()
            );
        }
        let graph = self.graph;
        let keyed = |named: &Named| graph.nodes[named.node].shape.contains(&Axis::Keys);
        let read = || -> Result<Vec<Taken>> {
            let rows = &self.passes[number];
            let array = open(declared)?;
            if found.iter().any(keyed) {
                return self.by_sequence(number, found, array, most);
            }
            let mut parts = Vec::new();
            let steps: Vec<Step> =
                found.iter().map(|named| self.whole(number, named, &array.shape)).collect::<Result<_>>()?;
            let sequences = rows.steps.len();
            let target = |(named, step)| Target { step, sequences, ..self.target(rows.steps[0], named) };
            let targets: Vec<Target<'_>> = found.iter().zip(&steps).map(target).collect();
            let (tensors, element) =
                array::read_parts(array, &targets, |i, view| self.taken(rows.steps[0], &found[i], view), most)?;
            for ((named, tensor), target) in found.iter().zip(tensors).zip(&targets) {
                let of_states = target.node.shape.first() == Some(&Axis::Last);
                let lasts = of_states || target.step.tokens.len() != rows.count();
                let expected = target.extent();
                let same = tensor.shape.first() == expected.first();
                ensure!(
                    same && (self.shapes == Shapes::Unknown || tensor.data.len() == expected.iter().product::<usize>()),
                    "has shape {:?}, and the stage has {expected:?} elements in this pass",
                    tensor.shape
                );
                let width = tensor.data.len() / expected[0].max(1);
                for (group, (&at, own)) in rows.steps.iter().zip(&rows.rows).enumerate() {
                    let own = if lasts { vec![self.last(number, group)] } else { own.clone() };
                    let data = own.iter().flat_map(|row| &tensor.data[row * width..][..width]).copied().collect();
                    let rest = if self.shapes == Shapes::Known { &expected[1..] } else { &tensor.shape[1..] };
                    parts.push((at, named.node, Tensor { shape: [&[own.len()], rest].concat(), data }, element));
                }
            }
            Ok(parts)
        };
        let bounded = |e: anyhow::Error| anyhow!("{}", shortened(&format!("{e:#}"), SAID));
        for (at, node, tensor, element) in read().map_err(bounded).with_context(problem)? {
            let named = Named { node, rule: found.iter().find_map(|named| named.rule), part: 0 };
            let keep = || self.target(at, &named).keep(tensor, element, &self.capture.store);
            let (stored, alone) = keep().with_context(problem)?;
            ensure!(
                self.repeats || !self.capture.steps[at].stages.contains_key(&self.graph.nodes[node].id),
                "{} is there already, in an array of one sequence",
                problem()
            );
            self.put(at, node, stored, alone).with_context(problem)?;
        }
        Ok(())
    }

    /// What each sequence of a pass takes of an array by the lines of the map, such as the slots of its cache.
    fn by_sequence<R: Read>(&self, number: usize, found: &[Named], array: Array<R>, most: u64) -> Result<Vec<Taken>> {
        let each = |named| self.passes[number].steps.iter().map(move |step| (*step, named));
        let places: Vec<(usize, &Named)> = found.iter().flat_map(each).collect();
        ensure!(
            found.iter().all(|named| named.rule.is_some()),
            "is of all sequences of a pass; dump it for each, or say in a map what a sequence takes, as in \
             `ARRAY.{{L}}[{TABLES}] = STAGE`"
        );
        let targets: Vec<Target<'_>> = places.iter().map(|(step, named)| self.target(*step, named)).collect();
        let (tensors, element) =
            array::read_parts(array, &targets, |i, view| self.taken(places[i].0, places[i].1, view), most)?;
        Ok(places.into_iter().zip(tensors).map(|((step, named), tensor)| (step, named.node, tensor, element)).collect())
    }

    /// All rows of a pass as one step, for an array of this shape; of the last stages perhaps the last row of each sequence alone.
    fn whole(&self, number: usize, named: &Named, shape: &[usize]) -> Result<Step> {
        let (rows, node) = (&self.passes[number], &self.graph.nodes[named.node]);
        let by_row = matches!(node.shape.first(), Some(Axis::Tokens | Axis::Last));
        ensure!(by_row, "is {} of all rows of a pass; dump it for each sequence", node.id);
        let last = self.of_last_token[named.node] && shape.first() == Some(&rows.steps.len());
        let count = if last { rows.steps.len() } else { rows.count() };
        Ok(Step::new(0, vec![0; count]))
    }

    /// Which row of the last rows of all sequences is that of a group, in the order of sequences in the pass.
    fn last(&self, number: usize, group: usize) -> usize {
        let lasts = |group: usize| self.passes[number].rows[group].last().copied();
        let own = lasts(group);
        (0..self.passes[number].rows.len()).filter(|other| lasts(*other) < own).count()
    }

    /// Keeps the block table of the sequence of a step.
    pub(super) fn table(&mut self, step: usize, slots: &[i64]) {
        for (pass, said) in self.passes.iter().zip(&mut self.capture.rows) {
            if let Some(at) = pass.steps.iter().position(|of| *of == step) {
                said.tables.insert(pass.sequences[at], slots.to_vec());
            }
        }
    }

    /// Keeps whole numbers that an engine gave its kernels.
    fn said(&mut self, number: usize, name: &str, entries: &[i64]) -> Result<()> {
        let rows = &self.passes[number];
        let said = &mut self.capture.rows[number];
        ensure!(entries.len() == rows.count(), "has {} entries, and the pass {} rows", entries.len(), rows.count());
        let held = if name == SLOTS { &mut said.slots } else { &mut said.positions };
        *held = Some(entries.to_vec());
        Ok(())
    }
}
