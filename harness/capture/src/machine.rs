//! The machine that qdiff runs on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a run took place.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Operating system and instruction set, such as `linux x86_64`.
    pub system: String,
    /// Name of the processor, as the system gives it; empty if it does not.
    pub cpu: String,
    /// Processors that qdiff may use.
    pub cores: usize,
}

impl Machine {
    /// The machine that this runs on.
    pub fn this() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "model name").then(|| value.trim().to_owned())
        });
        Self {
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cpu: name.unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = if self.cpu.is_empty() { &self.system } else { &self.cpu };
        write!(f, "{cpu}, {} cores", self.cores)
    }
}
