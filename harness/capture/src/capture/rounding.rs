//! To what the values of a capture's stages were rounded: by the engine that computed them, and once more where they were
//! stored.

use super::{Capture, matches, stages_like};
use crate::arithmetic::Arithmetic;
use crate::formats::{Formats, OfStages};
use crate::number::counted;
use anyhow::{Result, bail};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, StageId};
use qdiff_engine::ops::Anatomy;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Values whose mantissa says something that must be there before a format is seen in them: a value of f32 is one of f16
/// by chance once in 8,192 times.
const TELLING: usize = 64;

/// The formats of the stages; f32 of those that are not named.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rounding {
    /// In which the engine gives the stage on to those that read it.
    outputs: HashMap<StageId, DType>,
    /// In which the capture has it.
    stored: HashMap<StageId, DType>,
}

impl Rounding {
    /// The rounding of the values that an engine passes on as `outputs`.
    ///
    /// # Errors
    /// A pattern that fits no stage, an op that the graph does not have, or two patterns that fit one stage and differ.
    pub fn new(graph: &Graph, outputs: &Formats, stored: &Formats) -> Result<Self> {
        Ok(Self { outputs: each(outputs, graph)?, stored: each(stored, graph)? })
    }

    /// Whether nothing was rounded.
    pub fn plain(&self) -> bool {
        self.outputs.is_empty() && self.stored.is_empty()
    }

    /// What the engine rounds the stage to before anything reads it.
    pub fn output(&self, id: StageId) -> DType {
        self.outputs.get(&id).copied().unwrap_or_default()
    }

    /// What the stage was rounded to where it was stored, though the engine itself had it as it was before.
    pub fn stored(&self, id: StageId) -> DType {
        let stored = self.stored.get(&id).copied().unwrap_or_default();
        if self.output(id).within(stored) { DType::F32 } else { stored }
    }

    /// Refuses a capture that holds what it says it cannot.
    fn check(&self, graph: &Graph, capture: &Capture) -> Result<()> {
        for (node, step) in graph.nodes.iter().flat_map(|n| capture.steps.iter().map(move |s| (n, s))) {
            let (Some(format), Some(given)) = (self.stored.get(&node.id), step.get(node.id)) else { continue };
            if let Some(i) = given.data.iter().position(|v| !format.holds(*v)) {
                bail!(
                    "its storage is declared as {format}, and element {i} of {} in {} is {}, which is no {format}",
                    node.id,
                    step.label(),
                    given.data[i]
                );
            }
        }
        Ok(())
    }
}

impl Capture {
    /// Notes what the values were rounded to: by the engine, and where they were stored to what was `declared` of it, else to
    /// what is seen. Says the latter in words, where there is anything to say.
    ///
    /// # Errors
    /// As [`Rounding::new`]; a value that is none of its stage's format.
    pub fn settle_formats(
        &mut self, graph: &Graph, arithmetic: &Arithmetic, declared: Option<&Formats>,
    ) -> Result<Option<String>> {
        self.rounding = Rounding::new(graph, &arithmetic.outputs, declared.unwrap_or(&Formats::default()))?;
        self.rounding.check(graph, self)?;
        let said = declared.filter(|d| !d.plain()).map(ToString::to_string);
        // What the engine itself rounds to, the rows of its caches too, is not coarser for being stored so.
        let caches = graph.nodes.iter().filter(|n| n.has_state());
        let caches: HashMap<StageId, DType> =
            caches.map(|n| (n.id, arithmetic.kv.of(n.is_of_values()).number().unwrap_or_default())).collect();
        let own = |id| caches.get(&id).copied().unwrap_or_else(|| self.rounding.output(id));
        let integers: HashSet<StageId> = graph.nodes.iter().filter(|n| of_integers(n)).map(|n| n.id).collect();
        let narrower = |(id, element): &(&StageId, &DType)| !integers.contains(*id) && !own(**id).within(**element);
        let coarser = self.elements.iter().filter(narrower);
        let coarser: Vec<(StageId, DType)> = coarser.map(|(id, element)| (*id, *element)).collect();
        // For any declaration: an array of f16 holds no more.
        for (id, element) in &coarser {
            self.rounding.stored.entry(*id).or_insert(*element);
        }
        let elements = DType::NARROW.iter().filter(|f| coarser.iter().any(|(_, element)| element == *f));
        let elements: Vec<String> = elements.map(ToString::to_string).collect();
        let elements = (!elements.is_empty()).then(|| format!("{}: the elements of its arrays", elements.join(", ")));
        let known: Vec<String> = said.into_iter().chain(elements).collect();
        if declared.is_some() || !known.is_empty() {
            return Ok((!known.is_empty()).then(|| known.join("; ")));
        }
        // What an engine rounds its own values to shows in all of them, and is none of the storage.
        let Some(format) = seen(self).filter(|_| arithmetic.outputs.plain()) else { return Ok(None) };
        self.rounding.stored = graph.nodes.iter().filter(|n| !of_integers(n)).map(|n| (n.id, format)).collect();
        Ok(Some(format!("{format}: seen in all values")))
    }
}

impl Capture {
    /// Which stages hold values that are no numbers of the format to which the engine says that it rounds them.
    pub fn unkept(&self, graph: &Graph) -> Option<String> {
        let breaks = |id: StageId, format: DType| {
            let given = self.steps.iter().filter_map(|step| step.get(id));
            given.into_iter().any(|given| given.data.iter().any(|v| !format.holds(*v)))
        };
        let all = graph.nodes.iter().filter_map(|node| Some((node.id, *self.rounding.outputs.get(&node.id)?)));
        let broken: Vec<(StageId, DType)> = all.filter(|(id, format)| breaks(*id, *format)).collect();
        let ((first, format), more) = broken.split_first()?;
        let more =
            if more.is_empty() { String::new() } else { format!(" and of {}", counted(more.len(), "more stage")) };
        Some(format!("values of {first}{more} are no numbers of {format}"))
    }
}

/// Whether a stage gives integers, which no format rounds that holds them.
pub(super) fn of_integers(node: &Node) -> bool {
    matches!(node.op.anatomy(), Anatomy::Decision(_))
}

/// The format of every stage that has another than f32.
fn each(formats: &Formats, graph: &Graph) -> Result<HashMap<StageId, DType>> {
    let all = |default: &DType| OfStages { default: *default, ..OfStages::default() };
    let of = match formats {
        Formats::All(format) => &all(format),
        Formats::Each(of) => of,
    };
    let ops: BTreeSet<&str> = graph.nodes.iter().map(|n| n.op.name()).collect();
    if let Some(op) = of.ops.keys().find(|op| !ops.contains(op.as_str())) {
        let ops: Vec<&str> = ops.into_iter().collect();
        bail!("no stage's op is called `{op}`; the ops of this model are {}", ops.join(", "));
    }
    let patterns = of.stages.iter().map(|(pattern, format)| Ok((pattern, stages_like(graph, pattern)?, *format)));
    let patterns = patterns.collect::<Result<Vec<_>>>()?;
    let mut found = HashMap::new();
    for node in graph.nodes.iter().filter(|n| !of_integers(n)) {
        let mut fitting = patterns.iter().filter(|(_, m, _)| matches(m, node.id));
        let first = fitting.next();
        if let Some((a, _, one)) = first
            && let Some((b, _, other)) = fitting.find(|(_, _, format)| format != one)
        {
            bail!("`{a}` says that {} is {one}, and `{b}` that it is {other}", node.id);
        }
        let format = first.map(|(_, _, format)| format).or(of.ops.get(node.op.name())).unwrap_or(&of.default);
        if *format != DType::F32 {
            found.insert(node.id, *format);
        }
    }
    Ok(found)
}

/// The coarsest format that every value of every stage is one of, if there is one and that is no chance.
fn seen(capture: &Capture) -> Option<DType> {
    let mut formats = DType::NARROW.to_vec();
    let mut telling = 0;
    for stored in capture.steps.iter().flat_map(|s| s.stages.values()) {
        let tensor = stored.get();
        for &v in &tensor.data {
            formats.retain(|f| f.holds(v));
            if formats.is_empty() {
                return None;
            }
            // Whole powers of two are of every format.
            telling += usize::from(v.is_finite() && v.to_bits() << 9 != 0);
        }
    }
    formats.into_iter().next().filter(|_| telling >= TELLING)
}
