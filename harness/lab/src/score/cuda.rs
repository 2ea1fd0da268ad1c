//! The CUDA engine's own faults: in its launches and kernels.

use super::faults::kernels::cuda::find;
use super::source::{FaultSource, Plant, SHORT, in_stages, planted, unlisted};
use anyhow::Result;
use qdiff::loaded::LoadedModel;
use qdiff::room::Room;
use qdiff::runners::Runner;
use qdiff::runners::cuda::Cuda;
use qdiff_engine::cuda::wide::keeps_halves;
use qdiff_engine::cuda::{Options, Path, devices, faults};
use qdiff_engine::model::{Graph, Model, WeightSource as _};

/// Tokens of a prompt in which tiles, splits and tails show: more than 128, and no whole number of tiles of 4 or more.
const LONG: usize = 150;

/// Faults that `qdiff_engine::cuda::faults` plants in the tapped path.
pub static CUDA: FaultSource = FaultSource {
    name: "independent faults (cuda launches and kernels)",
    independent: true,
    unlisted: None,
    several: false,
    prompt: SHORT,
    plants: |graph, _| {
        let of =
            |(index, fault): (usize, &faults::Fault)| planted(index, fault.cause, graph, |n| (fault.fits)(graph, n));
        let all: Vec<_> = faults::all().iter().enumerate().map(of).collect::<anyhow::Result<_>>()?;
        Ok(all.concat())
    },
    subject: |opened, plants, room| subject(opened, plants, room, Path::Tapped, faults::all()),
};

/// Bugs of the captured graph, which only a replayed decode step shows.
pub static CUDA_FAST: FaultSource = FaultSource {
    name: "bugs of the captured graph (cuda-fast)",
    independent: true,
    unlisted: Some(|_| ""),
    several: true,
    prompt: SHORT,
    plants: |graph, _| {
        let of = |(index, fault): (usize, &faults::Replayed)| {
            let first = graph.nodes[fault.first(graph)?].id;
            Some(Plant { fault: index, cause: unlisted(fault.name), stage: first, of_format: false })
        };
        Ok(faults::REPLAYED.iter().enumerate().filter_map(of).collect())
    },
    subject: |opened, plants, room| {
        let mut runner = Cuda::new(&opened.model, options(room, Path::Fast))?;
        plants.iter().try_for_each(|p| runner.engine().plant_in_graph(&faults::REPLAYED[p.fault]))?;
        Ok(Box::new(runner))
    },
};

/// Bugs of kernels outside the catalogue, in the tapped path.
pub static CUDA_KERNELS: FaultSource = FaultSource {
    name: "bugs of CUDA kernels in no catalogue (cuda)",
    independent: true,
    unlisted: Some(|fault| what(faults::tapped(), fault)),
    several: false,
    prompt: LONG,
    plants: |graph, model| Ok(bugs(faults::tapped(), graph, model)),
    subject: |opened, plants, room| subject(opened, plants, room, Path::Tapped, faults::tapped()),
};

/// And in the fused path, where one bug may spoil several stages: the first of them counts.
pub static FUSED_KERNELS: FaultSource = FaultSource {
    name: "bugs of CUDA kernels in no catalogue (cuda-fast)",
    independent: true,
    unlisted: Some(|fault| what(faults::fused(), fault)),
    several: true,
    prompt: LONG,
    plants: |graph, model| {
        // Cards that keep no matrix as halves have no place for bugs in their products.
        let halves = devices().is_ok_and(|devices| devices.first().is_some_and(keeps_halves));
        let all = bugs(faults::fused(), graph, model).into_iter();
        Ok(all.filter(|plant| halves || !faults::fused()[plant.fault].is_of_halves()).collect())
    },
    subject: |opened, plants, room| subject(opened, plants, room, Path::Fast, faults::fused()),
};

fn options(room: Room, path: Path) -> Options {
    Options { step: room.step, context: room.context, path, taps: path == Path::Fast, ..Options::default() }
}

/// The engine with plants of these faults.
fn subject<'a>(
    opened: &'a LoadedModel, plants: &[Plant], room: Room, path: Path, faults: &'static [faults::Fault],
) -> Result<Box<dyn Runner + 'a>> {
    let graph = opened.model.graph();
    let places = plants.iter().filter_map(|p| Some((graph.index(p.stage)?, &faults[p.fault]))).collect();
    let mut runner = Cuda::new(&opened.model, options(room, path))?;
    runner.engine().plant(places)?;
    Ok(Box::new(runner))
}

/// What a bug computes instead.
fn what(bugs: &[faults::Fault], index: usize) -> &'static str {
    bugs.get(index).and_then(|bug| find(bug.cause)).map_or("", |bug| bug.what)
}

/// These bugs in every stage where they can be; those of a block format only where the weights have it.
fn bugs(all: &'static [faults::Fault], graph: &Graph, model: &Model) -> Vec<Plant> {
    let of = |(index, fault): (usize, &'static faults::Fault)| {
        let format = faults::bug(fault.cause).and_then(|bug| bug.format);
        let stored = |tensor: &str| format.is_none_or(|format| model.ggml_type(tensor) == format);
        let here = |n: &qdiff_engine::model::Node| (fault.fits)(graph, n) && n.weights.iter().all(|w| stored(&w.name));
        in_stages(index, &unlisted(fault.cause), format.is_some(), graph, here).collect::<Vec<_>>()
    };
    all.iter().enumerate().flat_map(of).collect()
}
