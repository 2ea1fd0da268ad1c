//! What the runners can run on.

use crate::llama::variant;
use crate::runners::RUNNERS;
use qdiff_engine::cuda;
use serde::Serialize;

/// What there is to run on.
#[derive(Debug, Serialize)]
pub struct Devices {
    pub runners: Vec<Runner>,
    /// The variant of llama.cpp's kernels on the CPU; absent where llama.cpp is.
    pub llama_variant: Option<&'static str>,
    pub cuda: Vec<cuda::Device>,
    /// Why there is none.
    pub no_cuda: Option<String>,
}

/// A runner, and whether it can run here.
#[derive(Debug, Serialize)]
pub struct Runner {
    pub name: &'static str,
    pub about: &'static str,
    /// What it lacks here; absent where it can run.
    pub lacks: Option<String>,
    /// The formats of weights, by how it reads them.
    pub formats: Vec<(String, Vec<String>)>,
}

/// Looks at this machine.
pub fn devices() -> Devices {
    let runner = |kind: &&'static crate::runners::RunnerKind| Runner {
        name: kind.name,
        about: kind.about,
        lacks: (kind.ready)().err().map(|e| format!("{e:#}")),
        formats: kind.formats(),
    };
    let (cuda, no_cuda) = match cuda::devices() {
        Ok(found) => (found, None),
        Err(e) => (Vec::new(), Some(e.to_string())),
    };
    Devices { runners: RUNNERS.iter().map(runner).collect(), llama_variant: variant(), cuda, no_cuda }
}
