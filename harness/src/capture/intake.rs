//! Which stage of which step an array belongs to, and the capture that is put together of them.

use super::array::{self, Array, Shapes};
use super::names::Names;
use super::npz::Manifest;
use super::{Capture, Element, Step, Store, Stored, quoted};
use anyhow::{Context as _, Result, anyhow, bail};
use globset::{Glob, GlobMatcher};
use qdiff_engine::model::{Graph, Node};
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

/// A capture while its arrays are read.
pub(super) struct Intake<'a> {
    /// Where they stand, as messages call it.
    name: &'a str,
    capture: Capture,
    labels: HashMap<String, usize>,
    graph: &'a Graph,
    names: &'a Names,
    shapes: Shapes,
    elements: Vec<(GlobMatcher, Element)>,
}

impl<'a> Intake<'a> {
    /// For the steps of `manifest`.
    ///
    /// # Errors
    /// A pattern of the manifest that is none.
    pub(super) fn new(
        name: &'a str, manifest: &Manifest, (graph, names): (&'a Graph, &'a Names), shapes: Shapes, store: &Arc<Store>,
    ) -> Result<Self> {
        let elements = manifest.elements.iter().map(|(pattern, element)| {
            let glob =
                Glob::new(pattern).with_context(|| format!("`elements` of the manifest, `{}`", quoted(pattern)))?;
            Ok((glob.compile_matcher(), *element))
        });
        let elements = elements.collect::<Result<_>>()?;
        Ok(Self { elements, ..Self::of_steps(name, manifest.steps(), (graph, names), shapes, store) })
    }

    /// For these steps, of a container that says of each array what its elements are.
    pub(super) fn of_steps(
        name: &'a str, steps: Vec<Step>, (graph, names): (&'a Graph, &'a Names), shapes: Shapes, store: &Arc<Store>,
    ) -> Self {
        let labels = steps.iter().enumerate().map(|(i, s)| (s.label(), i)).collect();
        Self {
            name,
            capture: Capture { steps, ..Capture::new(store.clone()) },
            labels,
            graph,
            names,
            shapes,
            elements: Vec::new(),
        }
    }

    /// The label of the step of this index, if there is one.
    pub(super) fn label(&self, step: usize) -> Option<String> {
        self.capture.steps.get(step).map(Step::label)
    }

    /// Takes the array called `full`, STEP/STAGE, of which its container holds at most `most` bytes. `open` reads its
    /// header; it is given what the manifest says of its elements.
    ///
    /// # Errors
    /// As [`array::read`]; an array that belongs to no stage (with a map such arrays are passed over), or to one that is
    /// there already.
    pub(super) fn take<R: Read>(
        &mut self, full: &str, most: u64, open: impl FnOnce(Option<Element>) -> Result<Array<R>>,
    ) -> Result<()> {
        let Self { name, graph, names, .. } = *self;
        let known = full.split_once('/').and_then(|(step, stage)| Some((*self.labels.get(step)?, names.get(stage)?)));
        let Some((step, named)) = known else {
            if names.mapped {
                return Ok(());
            }
            let steps = &self.capture.steps;
            bail!(
                "{name}: `{}` belongs to no stage; names are STEP/STAGE, steps {} to {}, stages such as {}",
                quoted(full),
                steps[0].label(),
                steps[steps.len() - 1].label(),
                graph.nodes[1.min(graph.nodes.len() - 1)].id
            );
        };
        let step = &mut self.capture.steps[step];
        let node = &graph.nodes[named.node];
        let problem = || format!("{name}: `{}`", quoted(full));
        if step.stages.contains_key(&node.id) {
            bail!("{} is {} of {}, which is there already", problem(), node.id, step.label());
        }
        let declared = self.elements.iter().find(|(pattern, _)| pattern.is_match(full)).map(|(_, element)| *element);
        let last = step.index == 0 && named.node + 1 == graph.nodes.len();
        let what = (node, named, self.shapes);
        // Errors repeat what they do not understand, however much that is.
        let (stored, alone) = open(declared)
            .and_then(|array| array::read(array, what, last, step, most, &self.capture.store))
            .map_err(|e| anyhow!("{}", quoted(&format!("{e:#}"))))
            .with_context(problem)?;
        if alone {
            step.last_row = Some((node.id, step.keys() - 1));
        }
        if let Some(format) = stored.element().rounded() {
            self.capture.elements.insert(node.id, format);
        }
        step.stages.insert(node.id, stored);
        Ok(())
    }

    /// The capture, once all arrays are taken.
    ///
    /// # Errors
    /// Arrays that could not be kept.
    pub(super) fn finish(self) -> Result<Capture> {
        let Self { mut capture, graph, .. } = self;
        // An engine that computes the logits of the prompt's last token alone gives none for the parts before.
        let prefill = capture.steps.iter().rposition(|s| s.index == 0);
        if let Some((stage, at)) = prefill.and_then(|last| capture.steps[last].last_row) {
            let parts = capture.steps.iter_mut().filter(|s| s.index == 0 && !s.stages.contains_key(&stage));
            parts.for_each(|part| part.last_row = Some((stage, at)));
        }
        if let Some(logits) = graph.nodes.last() {
            for step in &mut capture.steps {
                step.choice = choice(step, logits, &capture.store);
            }
        }
        capture.store.trouble()?;
        Ok(capture)
    }
}

/// The logits of the step's last token, where they were captured.
fn choice(step: &Step, logits: &Node, store: &Arc<Store>) -> Option<Stored> {
    let stored = step.stages.get(&logits.id)?;
    let last = step.rows().checked_sub(1)?;
    (step.offset(last) + 1 == step.tokens.len()).then(|| {
        let mut row = stored.slice(0, last..last + 1);
        row.shape.remove(0);
        store.keep(row)
    })
}
