//! The CUDA engine's own faults: in its launches and kernels.

use super::source::{FaultSource, Plant};
use crate::loaded::LoadedModel;
use crate::room::Room;
use crate::runners::{Runner, cuda::Cuda};
use anyhow::Result;
use qdiff_engine::cuda::{Options, faults};
use qdiff_engine::model::{Graph, Model};

/// Faults that `qdiff_engine::cuda::faults` plants in the tapped path.
pub struct CudaFaults;

impl FaultSource for CudaFaults {
    fn name(&self) -> &'static str {
        "independent faults (cuda launches and kernels)"
    }

    fn independent(&self) -> bool {
        true
    }

    fn plants(&self, graph: &Graph, _: &Model) -> Vec<Plant> {
        let mut plants = Vec::new();
        for (index, fault) in faults::all().iter().enumerate() {
            let here = graph.nodes.iter().filter(|n| (fault.fits)(graph, n));
            plants.extend(here.map(|node| Plant {
                fault: index,
                cause: fault.cause.parse().expect("a planted fault states a cause"),
                stage: node.id,
                of_format: false,
            }));
        }
        plants
    }

    fn subject<'a>(&self, opened: &'a LoadedModel, plants: &[Plant], room: Room) -> Result<Box<dyn Runner + 'a>> {
        let graph = opened.model.graph();
        let places = plants.iter().filter_map(|p| Some((graph.index(p.stage)?, &faults::all()[p.fault]))).collect();
        let options = Options { step: room.step, context: room.context, ..Options::default() };
        Ok(Box::new(Cuda::planted(&opened.model, options, places)?))
    }
}
