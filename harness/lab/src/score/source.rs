//! Where faults come from, and the runner that carries them.

use super::faults::cached::{self, CacheFault};
use super::faults::{self, FaultyStages};
use anyhow::{Context as _, Result, ensure};
use qdiff::loaded::LoadedModel;
use qdiff::mutations::{CauseId, Injection, Mutation, catalogue, find};
use qdiff::room::Room;
use qdiff::runners::{Runner, cpu::Cpu};
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

/// Tokens of the prompt on synthetic models.
pub const SHORT: usize = 24;

/// Makes a subject that carries these plants, in that room.
type Subject = for<'a> fn(&'a LoadedModel, &[Plant], Room) -> Result<Box<dyn Runner + 'a>>;

/// Whatever can plant faults in an engine.
pub struct FaultSource {
    /// In a few words, for the table.
    pub name: &'static str,
    /// Whether the faults share no code with the hypotheses.
    pub independent: bool,
    /// What a bug outside the catalogue computes instead, in words for a reader.
    pub(super) unlisted: Option<fn(usize) -> &'static str>,
    /// Whether one fault may spoil several stages: then the first that is found counts.
    pub(super) several: bool,
    /// Tokens of the prompt that it is planted with on synthetic models.
    pub prompt: usize,
    /// Every fault with every stage of the graph it can be planted in.
    pub(super) plants: fn(&Graph, &Model) -> Result<Vec<Plant>>,
    /// A subject that carries these; a right one, where there are none.
    pub(super) subject: Subject,
}

/// An independent fault, with its number among those of its source, in every stage of `graph` that is `here`.
///
/// # Errors
/// A cause that names no mutation.
pub(super) fn planted(fault: usize, cause: &str, graph: &Graph, here: impl Fn(&Node) -> bool) -> Result<Vec<Plant>> {
    let known = cause.parse().ok().filter(|id: &CauseId| find(&id.mutation).is_some());
    let cause = known.with_context(|| {
        format!("the fault `{cause}` of the score names no mutation; write its cause as `qdiff mutations list` has it")
    })?;
    let of_format = find(&cause.mutation).is_some_and(Mutation::decodes);
    Ok(in_stages(fault, &cause, of_format, graph, here).collect())
}

/// What a bug is called that is no mutation.
pub(super) fn unlisted(name: &str) -> CauseId {
    CauseId { mutation: name.to_owned(), parameters: Vec::new(), since: None }
}

pub(super) fn in_stages(
    fault: usize, cause: &CauseId, of_format: bool, graph: &Graph, here: impl Fn(&Node) -> bool,
) -> impl Iterator<Item = Plant> {
    let stages = graph.nodes.iter().filter(move |n| here(n)).map(|n| n.id);
    stages.map(move |stage| Plant { fault, cause: cause.clone(), stage, of_format })
}

/// The sources whose faults can be planted in a real model.
///
/// # Errors
/// If there is none: bugs that take a long prompt are described with the numbers of small models.
pub fn of_real_models(mut sources: Vec<&'static FaultSource>) -> Result<Vec<&'static FaultSource>> {
    let all: Vec<&str> = sources.iter().map(|source| source.name).collect();
    sources.retain(|source| source.independent && source.prompt == SHORT);
    ensure!(
        !sources.is_empty(),
        "{}: these take prompts and numbers of small models, and none is planted in a real one; leave --model out",
        all.join(", ")
    );
    Ok(sources)
}

/// The CPU engine's independent faults.
pub static INDEPENDENT: FaultSource = FAULTS;

const FAULTS: FaultSource = FaultSource {
    name: "independent faults (cpu)",
    independent: true,
    unlisted: None,
    several: false,
    prompt: SHORT,
    plants: |graph, model| {
        let of = |(index, fault): (usize, &faults::Fault)| {
            planted(index, fault.cause, graph, |n| (fault.places)(graph, n, model))
        };
        let all: Vec<Vec<Plant>> = faults::all().enumerate().map(of).collect::<Result<_>>()?;
        Ok(all.concat())
    },
    subject: |opened, plants, _| {
        let places = plants.iter().filter_map(|p| Some((faults::all().nth(p.fault)?.spoil, p.stage))).collect();
        let faulty = FaultyStages::new(&opened.model, places);
        Ok(Box::new(Cpu::intervened(&opened.model, Box::new(faulty))))
    },
};

/// Bugs of kernels outside the catalogue, in the CPU engine.
pub static KERNELS: FaultSource = FaultSource {
    name: "bugs of kernels in no catalogue (cpu)",
    independent: true,
    unlisted: Some(|fault| faults::kernels::all().nth(fault).map_or("", |f| f.what)),
    several: false,
    prompt: SHORT,
    plants: |graph, model| {
        let of = |(fault, bug): (usize, &'static faults::kernels::KernelFault)| {
            in_stages(fault, &unlisted(bug.name), false, graph, |n| (bug.places)(graph, n, model)).collect::<Vec<_>>()
        };
        Ok(faults::kernels::all().enumerate().flat_map(of).collect())
    },
    subject: |opened, plants, _| {
        let places =
            plants.iter().filter_map(|p| Some((faults::kernels::all().nth(p.fault)?.spoil, p.stage))).collect();
        let faulty = FaultyStages::new(&opened.model, places);
        Ok(Box::new(Cpu::intervened(&opened.model, Box::new(faulty))))
    },
};

/// Bugs of experts, delta nets and residual streams, in the CPU engine.
pub static NEWER: FaultSource = FaultSource {
    name: "bugs of experts, delta nets and residual streams (cpu)",
    independent: true,
    unlisted: Some(|fault| faults::kernels::newer()[fault].what),
    several: false,
    prompt: SHORT,
    plants: |graph, model| {
        let of = |(fault, bug): (usize, &faults::kernels::KernelFault)| {
            in_stages(fault, &unlisted(bug.name), false, graph, |n| (bug.places)(graph, n, model)).collect::<Vec<_>>()
        };
        Ok(faults::kernels::newer().iter().enumerate().flat_map(of).collect())
    },
    subject: |opened, plants, _| {
        let places = plants.iter().map(|p| (faults::kernels::newer()[p.fault].spoil, p.stage)).collect();
        let faulty = FaultyStages::new(&opened.model, places);
        Ok(Box::new(Cpu::intervened(&opened.model, Box::new(faulty))))
    },
};

/// Bugs of caches in blocks, in the CPU engine. Which of them happen to a run, the types of its caches say.
pub static CACHES: FaultSource = FaultSource {
    name: "bugs of caches in blocks (cpu)",
    independent: true,
    unlisted: Some(|fault| cached::FAULTS[fault].what),
    several: false,
    prompt: SHORT,
    plants: |graph, _| {
        let of = |(fault, bug): (usize, &CacheFault)| {
            in_stages(fault, &unlisted(bug.name), false, graph, |n| n.has_state()).collect::<Vec<_>>()
        };
        Ok(cached::FAULTS.iter().enumerate().flat_map(of).collect())
    },
    subject: |opened, plants, room| {
        let caches = plants.iter().map(|p| (&cached::FAULTS[p.fault], p.stage)).collect();
        let faulty = FaultyStages::of_caches(&opened.model, room.kv, caches);
        Ok(Box::new(Cpu::intervened(&opened.model, Box::new(faulty)).with_kv(room.kv)))
    },
};

/// The catalogue itself, run by the CPU engine.
pub static ROUND_TRIPS: FaultSource = FaultSource {
    name: "round trips (rewritten graph, cpu)",
    independent: false,
    unlisted: None,
    several: false,
    prompt: SHORT,
    plants: |graph, model| {
        let of = |(index, m): (usize, &Mutation)| {
            let values = m.defaults();
            let here = |n: &Node| {
                // A format that has no fifth bit cannot lose it.
                let known = || n.weights.iter().all(|w| m.is_known_to(model, &w.name));
                // Nor is anything held otherwise in a cache without blocks.
                m.applied(n, &values, graph).is_some_and(|new| new.faults.hold.is_none()) && known()
            };
            in_stages(index, &CauseId::new(m, &values), m.decodes(), graph, here).collect::<Vec<_>>()
        };
        Ok(catalogue().enumerate().filter(|(_, m)| m.recurs).flat_map(of).collect())
    },
    subject: |opened, plants, room| {
        let mut graph = opened.model.graph().clone();
        for plant in plants {
            Injection::parse(&format!("{}@{}", plant.cause, plant.stage))?.rewrite(&mut graph, room.kv)?;
        }
        Ok(Box::new(Cpu::new(&opened.model, graph, room.kv, Vec::new())))
    },
};

#[cfg(test)]
mod tests {
    use super::{FAULTS, FaultSource, INDEPENDENT, KERNELS, ROUND_TRIPS, of_real_models, planted};
    use qdiff_engine::model::{qwen2, skeleton};

    /// A score planted nothing in a real model, said "of 0 faults" after all of its runs, and failed.
    #[test]
    fn a_score_that_can_plant_nothing_is_refused() {
        static LONG: FaultSource = FaultSource { name: "bugs of tiles", prompt: 150, ..FAULTS };
        let told = of_real_models(vec![&LONG]).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(told.starts_with("bugs of tiles") && told.contains("leave --model out"), "{told}");
        let names = |sources: Vec<&'static FaultSource>| {
            of_real_models(sources).map(|some| some.iter().map(|s| s.name).collect::<Vec<_>>()).unwrap_or_default()
        };
        assert_eq!(names(vec![&INDEPENDENT, &KERNELS, &ROUND_TRIPS, &LONG]), [INDEPENDENT.name, KERNELS.name]);
    }

    /// A contributor's misspelling is reported with the place of the right names; it is no panic.
    #[test]
    fn a_fault_that_names_no_mutation_is_told() {
        let graph = skeleton(qwen2::graph, 2);
        let everywhere = |cause: &str| planted(7, cause, &graph, |_| true).map(|all| all.len());
        assert_eq!(everywhere("scaled:by=2").unwrap(), graph.nodes.len());
        for cause in ["scald:by=2", "", "scaled:by"] {
            let told = everywhere(cause).unwrap_err().to_string();
            assert!(told.starts_with(&format!("the fault `{cause}` of the score names no mutation")), "{told}");
        }
    }
}
