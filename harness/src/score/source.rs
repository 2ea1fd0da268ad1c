//! Where faults come from, and the runner that carries them.

use super::faults::{self, Planted};
use crate::arithmetic::Number;
use crate::loaded::LoadedModel;
use crate::mutations::{CauseId, Injection, catalogue, decoding};
use crate::room::Room;
use crate::runners::{Runner, cpu::Cpu};
use anyhow::Result;
use qdiff_engine::model::{Graph, Model, StageId, WeightSource as _};
use qdiff_engine::quant::GgmlType;

/// A fault and the stage it is planted in.
#[derive(Clone, Debug)]
pub struct Plant {
    /// Index among the faults of the source.
    pub fault: usize,
    /// The mutation that should be named, with parameters where they matter.
    pub cause: String,
    /// The stage.
    pub stage: StageId,
}

impl Plant {
    /// Name of the mutation, without parameters.
    pub fn name(&self) -> &str {
        self.cause.split(':').next().unwrap_or(&self.cause)
    }
}

/// Whatever can plant faults in an engine.
pub trait FaultSource {
    /// In a few words, for the table.
    fn name(&self) -> &'static str;

    /// Whether the faults share no code with the hypotheses.
    fn independent(&self) -> bool;

    /// Every fault with every stage of `graph` it can be planted in.
    fn plants(&self, graph: &Graph, model: &Model) -> Vec<Plant>;

    /// A subject that carries these.
    ///
    /// # Errors
    /// If the engine cannot be made.
    fn subject<'a>(&self, opened: &'a LoadedModel, plants: &[Plant], room: Room) -> Result<Box<dyn Runner + 'a>>;
}

/// The CPU engine's independent faults.
pub struct PlantedFaults;

impl FaultSource for PlantedFaults {
    fn name(&self) -> &'static str {
        "independent faults (cpu)"
    }

    fn independent(&self) -> bool {
        true
    }

    fn plants(&self, graph: &Graph, model: &Model) -> Vec<Plant> {
        let mut plants = Vec::new();
        for (index, fault) in faults::all().enumerate() {
            for node in &graph.nodes {
                if fault.stages.contains(&node.id.name) && possible(fault.cause, node.id, graph, model) {
                    plants.push(Plant { fault: index, cause: fault.cause.to_owned(), stage: node.id });
                }
            }
        }
        plants
    }

    fn subject<'a>(&self, opened: &'a LoadedModel, plants: &[Plant], _: Room) -> Result<Box<dyn Runner + 'a>> {
        let places = plants.iter().filter_map(|p| Some((faults::all().nth(p.fault)?, p.stage))).collect();
        let planted = Planted::new(&opened.model, places);
        Ok(Box::new(Cpu::intervened(&opened.model, Box::new(planted))))
    }
}

/// The catalogue itself, run by the CPU engine: round trips.
pub struct GraphFaults;

impl FaultSource for GraphFaults {
    fn name(&self) -> &'static str {
        "round trips (rewritten graph, cpu)"
    }

    fn independent(&self) -> bool {
        false
    }

    fn plants(&self, graph: &Graph, model: &Model) -> Vec<Plant> {
        let mut plants = Vec::new();
        for (index, m) in catalogue().enumerate() {
            let cause = CauseId::new(m, &m.defaults()).to_string();
            let stages = graph.nodes.iter().filter(|n| m.may_explain(n.id.name));
            for node in stages {
                let applies = (m.apply)(&mut node.clone(), &m.defaults(), graph);
                if applies && possible(&cause, node.id, graph, model) {
                    plants.push(Plant { fault: index, cause: cause.clone(), stage: node.id });
                }
            }
        }
        plants
    }

    fn subject<'a>(&self, opened: &'a LoadedModel, plants: &[Plant], _: Room) -> Result<Box<dyn Runner + 'a>> {
        let mut graph = opened.model.graph().clone();
        for plant in plants {
            injection(plant)?.rewrite(&mut graph)?;
        }
        Ok(Box::new(Cpu::new(&opened.model, graph, Number::F32, Vec::new())))
    }
}

/// The plant as a mutation of the graph.
///
/// # Errors
/// If the catalogue has none of that name.
pub(super) fn injection(plant: &Plant) -> Result<Injection> {
    Injection::parse(&format!("{}@{}", plant.cause, plant.stage))
}

/// Whether the fault can exist in that stage of this model at all: a format
/// that has no fifth bit cannot lose it, the first layer has none before it.
fn possible(cause: &str, stage: StageId, graph: &Graph, model: &Model) -> bool {
    let name = cause.split(':').next().unwrap_or(cause);
    let Some(node) = graph.index(stage).map(|i| &graph.nodes[i]) else {
        return false;
    };
    if let Some(weight) = &node.weight
        && decoding::knows(name)
    {
        let (n, _) = model.extent(weight);
        let mut row = vec![0f32; n];
        return model.ggml_type(weight) != GgmlType::F32
            && decoding::misdecode(name, 0.0, model, (weight, 0), &mut row);
    }
    let config = &graph.config;
    match name {
        "copied-from-previous-layer" => stage.layer.is_some_and(|l| l > 0),
        "tensor-mapped-wrong" => config.n_layers > 1,
        "tied-head-wrong" => !config.tied_head,
        "gqa-head-map" => config.n_kv_heads > 1 && config.n_kv_heads < config.n_heads,
        "k-cache-layout" | "v-cache-layout" => config.n_kv_heads > 1 || cause.ends_with("=0"),
        _ => true,
    }
}
