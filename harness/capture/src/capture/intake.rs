//! Which stage of which step an array belongs to, and the capture that is put together of them.

use super::array::{self, Array, Entries, Shapes, Target};
use super::manifest::Manifest;
use super::map::{Rule, Scene, Taken, in_layer};
use super::names::{Named, Names};
use super::parts::Parts;
use super::view::{Choice, View};
use super::{Capture, RowsSaid, Step, Store, Stored, quoted, shortened};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use globset::{Glob, GlobMatcher};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, StageId, of_rank, with_adapter};
use qdiff_engine::ops::Tensor;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

/// Most characters of a message about an array, with its remedy.
const SAID: usize = 500;

/// What a pass is called before its number.
pub(super) const PASS: &str = "pass";

/// What an array of block tables is called.
pub(super) const TABLES: &str = "tables";

/// What an array of the logprobs is called that an engine reports.
pub(super) const LOGPROBS: &str = "logprobs";

/// The rows of a pass, by sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct PassRows {
    /// The sequences that have rows. After a sequence took tokens back, the step is of a run of another number.
    pub(super) sequences: Vec<u32>,
    /// Index of the step of each of them.
    pub(super) steps: Vec<usize>,
    /// Which of the pass's rows are of each.
    pub(super) rows: Vec<Vec<usize>>,
}

impl PassRows {
    /// Of passes with rows of these sequences, whose steps follow each other by pass and sequence.
    pub(super) fn of(orders: &[Vec<u32>]) -> Vec<Self> {
        let mut step = 0;
        let mut of_pass = |order: &Vec<u32>| {
            let mut rows = BTreeMap::<u32, Vec<usize>>::new();
            order.iter().enumerate().for_each(|(row, sequence)| rows.entry(*sequence).or_default().push(row));
            let steps = (step..step + rows.len()).collect();
            step += rows.len();
            Self { sequences: rows.keys().copied().collect(), steps, rows: rows.into_values().collect() }
        };
        orders.iter().map(&mut of_pass).collect()
    }

    /// Rows of all sequences.
    pub(super) fn count(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }
}

/// A capture while its arrays are read.
pub(super) struct Intake<'a> {
    /// Where they stand, as messages call it.
    pub(super) name: &'a str,
    pub(super) capture: Capture,
    labels: HashMap<String, usize>,
    /// The rank whose stages the arrays are, where that is not in their names.
    pub(super) rank: Option<u16>,
    pub(super) graph: &'a Graph,
    /// See [`Graph::of_last_token`].
    pub(super) of_last_token: Vec<bool>,
    pub(super) names: &'a Names,
    pub(super) shapes: Shapes,
    pub(super) elements: Vec<(GlobMatcher, DType)>,
    /// By step, rank and name.
    tables: HashMap<(usize, Option<u16>, String), Entries>,
    /// Of stages that several arrays come to, by step and node.
    parts: BTreeMap<(usize, usize), (Named, Parts)>,
    /// The passes of a run of several sequences.
    pub(super) passes: Vec<PassRows>,
    /// The lines of the map that some array fits.
    pub(super) fitting: HashSet<usize>,
    /// Whether an array may be in several files of the capture, the same in all of them.
    pub(super) repeats: bool,
}

/// A pass over the arrays of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Those that say where others' elements are.
    Tables,
    /// All others.
    Stages,
}

/// What an array gives of a stage.
enum Given {
    /// All of it; and whether it is the last token's row alone.
    Stage(Stored, bool),
    /// A part of it.
    Part(Tensor<f32>, DType),
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
        let orders = match &manifest.sequences {
            Some(plan) if manifest.orders.is_empty() => plan.orders(),
            _ => manifest.orders.clone(),
        };
        let mut intake = Self::of_steps(name, manifest.steps(), (graph, names), shapes, store);
        intake.capture.rows =
            orders.iter().map(|order| RowsSaid { sequences: order.clone(), ..RowsSaid::default() }).collect();
        Ok(Self { elements, passes: PassRows::of(&orders), ..intake })
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
            rank: None,
            graph,
            of_last_token: graph.of_last_token(),
            names,
            shapes,
            elements: Vec::new(),
            tables: HashMap::new(),
            parts: BTreeMap::new(),
            passes: Vec::new(),
            fitting: HashSet::new(),
            repeats: false,
        }
    }

    /// The label of the step of this index, if there is one; of several sequences, that of a pass, or of a sequence's step in it.
    pub(super) fn label(&self, step: usize, sequence: Option<u32>) -> Option<String> {
        if self.passes.is_empty() {
            return self.capture.steps.get(step).filter(|_| sequence.is_none_or(|of| of == 0)).map(Step::label);
        }
        let pass = self.passes.get(step)?;
        match sequence {
            Some(sequence) => {
                let at = pass.sequences.iter().position(|of| *of == sequence)?;
                Some(self.capture.steps[pass.steps[at]].label())
            }
            None => Some(format!("{PASS}{step}")),
        }
    }

    /// What is taken in which pass over the arrays: what others are read by comes before them.
    pub(super) fn passes(&self) -> Vec<Pass> {
        let tables = (!self.names.tables.is_empty()).then_some(Pass::Tables);
        tables.into_iter().chain([Pass::Stages]).collect()
    }

    /// Takes the array called `full`, STEP/STAGE, of which its container holds at most `most` bytes. `open` reads its
    /// header; it is given what the manifest says of its elements.
    ///
    /// # Errors
    /// As [`array::read`] and [`array::read_parts`]; an array that belongs to no stage (with a map such arrays are passed
    /// over), or to one that is there already.
    pub(super) fn take<R: Read>(
        &mut self, pass: Pass, full: &str, most: u64, open: impl FnOnce(Option<DType>) -> Result<Array<R>>,
    ) -> Result<()> {
        let (names, name) = (self.names, self.name);
        if let Some((number, of_pass)) =
            full.split_once('/').and_then(|(pass, name)| Some((self.numbered(pass)?, name)))
        {
            return self.take_pass(pass, (number, of_pass), full, most, open);
        }
        let placed = full.split_once('/').and_then(|(step, name)| {
            let ((of_step, step), (of_name, name)) = (of_rank(step), of_rank(name));
            Some((*self.labels.get(step)?, self.rank.or(of_step).or(of_name), name))
        });
        let declared = self.elements.iter().find(|(pattern, _)| pattern.is_match(full)).map(|(_, element)| *element);
        let problem = || format!("{name}: `{}`", quoted(full));
        // Errors repeat what they do not understand, however much that is.
        let bounded = |e: anyhow::Error| anyhow!("{}", shortened(&format!("{e:#}"), SAID));
        if pass == Pass::Tables {
            if let Some((step, rank, name)) = placed.filter(|(_, _, name)| names.tables.contains(*name)) {
                let table = open(declared).and_then(Array::table).map_err(bounded).with_context(problem)?;
                self.tables.insert((step, rank, name.to_owned()), table);
            }
            return Ok(());
        }
        if let Some((step, _, _)) = placed.filter(|(_, _, name)| *name == TABLES && !self.passes.is_empty()) {
            let table = open(declared).and_then(Array::table).map_err(bounded).with_context(problem)?;
            self.table(step, table.entries());
            return Ok(());
        }
        if let Some((step, _, _)) = placed.filter(|(_, _, name)| *name == LOGPROBS) {
            let rows = self.capture.steps[step].rows();
            let numbers =
                open(declared).and_then(|array| array.numbers(rows)).map_err(bounded).with_context(problem)?;
            self.capture.steps[step].logprobs = Some(numbers);
            return Ok(());
        }
        let Some((step, all)) = placed.and_then(|(step, rank, name)| Some((step, names.get(rank, name)?))) else {
            if names.mapped {
                return Ok(());
            }
            let steps = match self.capture.steps.as_slice() {
                [only] => format!("the only step is {}", only.label()),
                [first, .., last] => format!("steps are {} to {}", first.label(), last.label()),
                [] => "there are no steps".to_owned(),
            };
            let example = self.graph.nodes[1.min(self.graph.nodes.len() - 1)].id;
            let of_adapters = with_adapter(self.graph).is_some_and(|graph| {
                let name = full.rsplit_once('.').map_or(full, |(_, name)| name);
                self.graph.adapters == 0 && graph.nodes.iter().any(|node| node.id.name == name)
            });
            let remedy = if of_adapters { " (add --adapter for a run with a LoRA adapter)" } else { "" };
            bail!(
                "{} belongs to no stage{remedy}; names are STEP/STAGE, {steps}, stages are such as {example}",
                problem()
            );
        };
        self.fitting.extend(all.iter().filter_map(|named| named.rule));
        if !names.wants(all) {
            return Ok(());
        }
        for named in all {
            let id = self.graph.nodes[named.node].id;
            if !self.repeats && self.capture.steps[step].stages.contains_key(&id) {
                bail!("{} is {id} of {}, which is there already", problem(), self.capture.steps[step].label());
            }
        }
        let rule = |named: &Named| named.rule.map(|rule| &names.rules[rule]);
        let store = &self.capture.store;
        let read = || -> Result<Vec<Given>> {
            let array = open(declared)?;
            if let [named] = all
                && rule(named).is_none_or(Rule::is_whole)
            {
                let order = rule(named).map_or(&[][..], |rule| &rule.order);
                let (stored, alone) = array::read(array, self.target(step, named), order, most, store)?;
                return Ok(vec![Given::Stage(stored, alone)]);
            }
            let targets: Vec<Target<'_>> = all.iter().map(|named| self.target(step, named)).collect();
            let view = |i: usize, view: View| self.taken(step, &all[i], view);
            let (tensors, element) = array::read_parts(array, &targets, view, most)?;
            let whole = |(tensor, (named, target)): (_, (&Named, &Target<'_>))| match rule(named) {
                Some(rule) if rule.way.is_some() => Ok(Given::Part(tensor, element)),
                _ => target.keep(tensor, element, store).map(|(stored, alone)| Given::Stage(stored, alone)),
            };
            tensors.into_iter().zip(all.iter().zip(&targets)).map(whole).collect()
        };
        let said = || all.iter().find_map(|named| rule(named).map(|rule| format!("{}, {}", problem(), rule.said)));
        let read = read().map_err(bounded).with_context(|| said().unwrap_or_else(problem))?;
        for (named, read) in all.iter().zip(read) {
            match read {
                Given::Stage(stored, alone) => self.put(step, named.node, stored, alone).with_context(problem)?,
                Given::Part(tensor, element) => {
                    let rule = rule(named).context("a part is of a line of the map")?;
                    let parts =
                        self.parts.entry((step, named.node)).or_insert_with(|| (named.clone(), Parts::of(rule)));
                    parts.1.add(named.part, tensor, element, &self.capture.store);
                }
            }
        }
        Ok(())
    }

    pub(super) fn target(&self, step: usize, named: &Named) -> Target<'_> {
        let of_step = &self.capture.steps[step];
        let several = of_step.index == 0 || of_step.tokens.len() > 1;
        let node = &self.graph.nodes[named.node];
        let last = several && self.of_last_token[named.node] && node.token_axis() == Some(0);
        Target { node, step: of_step, shapes: self.shapes, last, foreign: named.rule.is_some(), sequences: 1 }
    }

    /// What the map takes of an array.
    pub(super) fn taken(&self, step: usize, named: &Named, mut view: View) -> Result<View> {
        let Some(rule) = named.rule.map(|rule| &self.names.rules[rule]) else { return Ok(view) };
        let rank = self.graph.nodes[named.node].id.rank;
        let lookup = |name: &str, choices: &[Choice]| {
            let label = self.capture.steps[step].label();
            let table = self.tables.get(&(step, rank, name.to_owned()));
            let table =
                table.with_context(|| format!("is taken by the table `{name}`, which {label} does not have"))?;
            table.chosen(choices).with_context(|| format!("the table `{name}` of {label}"))
        };
        let layer = self.graph.nodes[named.node].id.layer;
        let scene = Scene { step: &self.capture.steps[step], layer, lookup: &lookup };
        for taken in &rule.taken {
            view = match taken {
                Taken::Reshape(extents) => view.reshape(extents)?,
                Taken::Choose(items) => {
                    view.choose(&items.iter().map(|i| i.choice(&scene)).collect::<Result<Vec<_>>>()?)?
                }
            };
        }
        if rule.way.is_some() { Ok(view) } else { view.ordered(&rule.order) }
    }

    pub(super) fn put(&mut self, step: usize, node: usize, stored: Stored, alone: bool) -> Result<()> {
        let (step, id) = (&mut self.capture.steps[step], self.graph.nodes[node].id);
        if let Some(there) = step.stages.get(&id) {
            let same = there.shape() == stored.shape() && there.digest() == stored.digest();
            ensure!(same, "is in another file of the capture as well, with other values");
            return Ok(());
        }
        if alone {
            let at = step.keys() - 1;
            step.last_row.get_or_insert_with(|| (BTreeSet::new(), at)).0.insert(id);
        }
        if let Some(format) = stored.narrow() {
            self.capture.elements.insert(id, format);
        }
        step.stages.insert(id, stored);
        Ok(())
    }

    /// Puts those stages together of which several arrays were taken.
    fn assemble(&mut self) -> Result<()> {
        for ((step, node), (named, parts)) in std::mem::take(&mut self.parts) {
            let rule = &self.names.rules[named.rule.context("a part is of a line of the map")?];
            let (id, label, all) = (self.graph.nodes[node].id, self.capture.steps[step].label(), self.name);
            let problem = || format!("{all}: {id} of {label}, {}", rule.said);
            if let Some((absent, present)) = parts.missing() {
                let name = |part: usize| in_layer(&rule.arrays[part], id.layer, 1);
                bail!(
                    "{}: `{}` is there, and `{}` is not; dump both or neither",
                    problem(),
                    name(present),
                    name(absent)
                );
            }
            let whole = || -> Result<(Stored, bool)> {
                let (tensor, element) = parts.together(rule)?;
                let ordered = array::ordered(tensor, &rule.order)?;
                self.target(step, &named).keep(ordered, element, &self.capture.store)
            };
            let (stored, alone) = whole().with_context(problem)?;
            self.put(step, node, stored, alone).with_context(problem)?;
        }
        Ok(())
    }

    /// The capture, once all arrays are taken.
    ///
    /// # Errors
    /// Arrays that could not be kept; stages of which not all arrays are there, or fit each other.
    pub(super) fn finish(mut self) -> Result<Capture> {
        self.assemble()?;
        let Self { mut capture, graph, names, fitting, .. } = self;
        let unfit = names.rules.iter().enumerate().filter(|(i, _)| !fitting.contains(i));
        capture.unmatched = unfit.map(|(_, rule)| rule.said.clone()).collect();
        capture.steps.iter().try_for_each(|step| whole_below(graph, step).with_context(|| self.name.to_owned()))?;
        // An engine that computes the last stages of the prompt's last token alone gives none for the parts before.
        for run in capture.steps.iter().map(|step| step.run).collect::<HashSet<_>>() {
            let of_prefill = |s: &Step| s.run == run && s.index == 0;
            let prefill = capture.steps.iter().rposition(of_prefill);
            if let Some((stages, at)) = prefill.and_then(|last| capture.steps[last].last_row.clone()) {
                let absent = |s: &Step| stages.iter().all(|stage| !s.stages.contains_key(stage));
                let parts = capture.steps.iter_mut().filter(|s| of_prefill(s) && absent(s));
                parts.for_each(|part| part.last_row = Some((stages.clone(), at)));
            }
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

/// Refuses a stage with all rows that is computed from one with the last row alone.
fn whole_below(graph: &Graph, step: &Step) -> Result<()> {
    let Some((alone, _)) = &step.last_row else { return Ok(()) };
    // For each node, the stage with one row from which its other rows would be computed.
    let mut from: Vec<Option<StageId>> = Vec::new();
    for node in &graph.nodes {
        let read = node.inputs.iter().find_map(|input| from[*input]);
        if alone.contains(&node.id) {
            from.push(Some(node.id));
        } else if let (Some(one), true) = (read, step.stages.contains_key(&node.id)) {
            bail!(
                "{one} of {} holds the row of the last token alone, and {}, which is computed from it, all rows; dump all \
                 rows of {one}, or leave it out",
                step.label(),
                node.id
            );
        } else {
            from.push(read);
        }
    }
    Ok(())
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
