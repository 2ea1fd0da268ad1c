//! The CUDA engine's own faults: in its launches and kernels.

use super::source::{FaultSource, planted};
use crate::runners::cuda::Cuda;
use qdiff_engine::cuda::{Options, faults};

/// Faults that `qdiff_engine::cuda::faults` plants in the tapped path.
pub static CUDA: FaultSource = FaultSource {
    name: "independent faults (cuda launches and kernels)",
    independent: true,
    told: None,
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
