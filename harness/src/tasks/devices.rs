//! What the runners can run on.

use crate::runners::RUNNERS;
use qdiff_engine::cuda;
use serde::Serialize;

/// What there is to run on.
#[derive(Debug, Serialize)]
pub struct Devices {
    /// Every runner.
    pub runners: Vec<Runner>,
    /// GPUs.
    pub cuda: Vec<Gpu>,
    /// Why there is none.
    pub no_cuda: Option<String>,
}

/// A runner, and whether it can run here.
#[derive(Debug, Serialize)]
pub struct Runner {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// What it lacks here; absent where it can run.
    pub lacks: Option<String>,
}

/// A GPU.
#[derive(Debug, Serialize)]
pub struct Gpu {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Memory in MiB.
    pub memory_mib: usize,
}

/// Looks at this machine.
pub fn devices() -> Devices {
    let runner = |kind: &&'static crate::runners::RunnerKind| Runner {
        name: kind.name,
        about: kind.about,
        lacks: (kind.ready)().err().map(|e| format!("{e:#}")),
    };
    let (cuda, no_cuda) = match cuda::devices() {
        Ok(found) => (found, None),
        Err(e) => (Vec::new(), Some(e.to_string())),
    };
    let gpu =
        |d: cuda::Device| Gpu { ordinal: d.ordinal, name: d.name, capability: d.capability, memory_mib: d.memory };
    Devices { runners: RUNNERS.iter().map(runner).collect(), cuda: cuda.into_iter().map(gpu).collect(), no_cuda }
}
