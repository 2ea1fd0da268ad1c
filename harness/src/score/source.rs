//! Where faults come from, and the runner that carries them.

use super::faults::{self, FaultyStages};
use crate::arithmetic::Number;
use crate::loaded::LoadedModel;
use crate::mutations::{CauseId, Injection, catalogue};
use crate::room::Room;
use crate::runners::{Runner, cpu::Cpu};
use anyhow::Result;
use qdiff_engine::model::{Graph, Model, Node, StageId};

/// A fault and the stage it is planted in.
#[derive(Clone, Debug)]
pub struct Plant {
    /// Index among the faults of the source.
    pub fault: usize,
    /// The mutation that should be named, with parameters where they matter.
    pub cause: CauseId,
    /// The stage.
    pub stage: StageId,
    /// Whether it is the fault of decoding a block format.
    pub of_format: bool,
}

impl Plant {
    /// Name of the mutation, without parameters.
    pub fn name(&self) -> &str {
        &self.cause.mutation
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

    /// A subject that carries these; a right one, where there are none.
    ///
    /// # Errors
    /// If the engine cannot be made.
    fn subject<'a>(&self, opened: &'a LoadedModel, plants: &[Plant], room: Room) -> Result<Box<dyn Runner + 'a>>;
}

/// The CPU engine's independent faults.
pub struct IndependentFaults;

impl FaultSource for IndependentFaults {
    fn name(&self) -> &'static str {
        "independent faults (cpu)"
    }

    fn independent(&self) -> bool {
        true
    }

    fn plants(&self, graph: &Graph, model: &Model) -> Vec<Plant> {
        let mut plants = Vec::new();
        for (index, fault) in faults::all().enumerate() {
            let here = graph.nodes.iter().filter(|n| (fault.places)(graph, n, model));
            plants.extend(here.map(|node| Plant {
                fault: index,
                cause: fault.cause.parse().expect("a planted fault states a cause"),
                stage: node.id,
                of_format: faults::of_formats().iter().any(|f| f.cause == fault.cause),
            }));
        }
        plants
    }

    fn subject<'a>(&self, opened: &'a LoadedModel, plants: &[Plant], _: Room) -> Result<Box<dyn Runner + 'a>> {
        let places = plants.iter().filter_map(|p| Some((faults::all().nth(p.fault)?, p.stage))).collect();
        let faulty = FaultyStages::new(&opened.model, places);
        Ok(Box::new(Cpu::intervened(&opened.model, Box::new(faulty))))
    }
}

/// The catalogue itself, run by the CPU engine: round trips.
pub struct RoundTrips;

impl FaultSource for RoundTrips {
    fn name(&self) -> &'static str {
        "round trips (rewritten graph, cpu)"
    }

    fn independent(&self) -> bool {
        false
    }

    fn plants(&self, graph: &Graph, model: &Model) -> Vec<Plant> {
        let mut plants = Vec::new();
        for (index, m) in catalogue().enumerate().filter(|(_, m)| m.recurs) {
            let known = |n: &&Node| n.weights.iter().all(|w| m.is_known_to(model, &w.name));
            let applies = |n: &&Node| m.applied(n, &m.defaults(), graph).is_some();
            // A format that has no fifth bit cannot lose it.
            let here = graph.nodes.iter().filter(applies).filter(known);
            plants.extend(here.map(|node| Plant {
                fault: index,
                cause: CauseId::new(m, &m.defaults()),
                stage: node.id,
                of_format: m.decodes(),
            }));
        }
        plants
    }

    fn subject<'a>(&self, opened: &'a LoadedModel, plants: &[Plant], _: Room) -> Result<Box<dyn Runner + 'a>> {
        let mut graph = opened.model.graph().clone();
        for plant in plants {
            Injection::parse(&format!("{}@{}", plant.cause, plant.stage))?.rewrite(&mut graph)?;
        }
        Ok(Box::new(Cpu::new(&opened.model, graph, Number::F32, Vec::new())))
    }
}
