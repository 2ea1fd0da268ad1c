//! The CUDA engine's own faults: in its launches and kernels.

use super::source::{FaultSource, Plant, planted};
use crate::mutations::CauseId;
use crate::runners::cuda::Cuda;
use qdiff_engine::cuda::{Options, Path, faults};

/// Faults that `qdiff_engine::cuda::faults` plants in the tapped path.
pub static CUDA: FaultSource = FaultSource {
    name: "independent faults (cuda launches and kernels)",
    independent: true,
    told: None,
    several: false,
    plants: |graph, _| {
        let of =
            |(index, fault): (usize, &faults::Fault)| planted(index, fault.cause, graph, |n| (fault.fits)(graph, n));
        let all: Vec<_> = faults::all().iter().enumerate().map(of).collect::<anyhow::Result<_>>()?;
        Ok(all.concat())
    },
    subject: |opened, plants, room| {
        let graph = opened.model.graph();
        let places = plants.iter().filter_map(|p| Some((graph.index(p.stage)?, &faults::all()[p.fault]))).collect();
        let options = Options { step: room.step, context: room.context, ..Options::default() };
        Ok(Box::new(Cuda::planted(&opened.model, options, places)?))
    },
};

/// Bugs of the captured graph, which only a replayed decode step shows.
pub static CUDA_FAST: FaultSource = FaultSource {
    name: "bugs of the captured graph (cuda-fast)",
    independent: true,
    told: Some(|fault| faults::REPLAYED.get(fault).map_or(&[], |f| f.told)),
    several: true,
    plants: |graph, _| {
        let of = |(index, fault): (usize, &faults::Replayed)| {
            let first = graph.nodes[fault.first(graph)?].id;
            let cause = CauseId { mutation: fault.name.to_owned(), parameters: Vec::new(), since: None };
            Some(Plant { fault: index, cause, stage: first })
        };
        Ok(faults::REPLAYED.iter().enumerate().filter_map(of).collect())
    },
    subject: |opened, plants, room| {
        let (step, context) = (room.step, room.context);
        let options = Options { step, context, path: Path::Fast, taps: true, ..Options::default() };
        let faults = plants.iter().map(|p| &faults::REPLAYED[p.fault]).collect();
        Ok(Box::new(Cuda::planted_in_graph(&opened.model, options, faults)?))
    },
};
