//! Runners by name, as `--subject`, `--reference` and `--runner` take them.

use super::{Runner, cpu::Cpu, cuda::Cuda, llama::Llama};
use crate::arithmetic::Number;
use crate::llama;
use crate::loaded::LoadedModel;
use crate::room::Room;
use anyhow::{Result, bail};
use qdiff_engine::cuda::{KvType, Options, Path};
use qdiff_engine::model::Graph;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A runner by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// CUDA where there is a GPU, else the CPU.
    Auto,
    /// The engine's CPU interpreter.
    Cpu,
    /// The engine's CUDA forward pass, every stage materialised.
    Cuda,
    /// The engine's fused CUDA forward pass.
    CudaFast,
    /// llama.cpp on the CPU.
    Llama,
    /// llama.cpp on the GPU.
    LlamaCuda,
    /// A recorded capture, of whatever engine.
    Capture(PathBuf),
    /// Nobody: the subject is judged by itself.
    None,
}

/// What the names are, for messages.
const NAMES: &str = "auto, cpu, cuda, cuda-fast, llama, llama-cuda, capture:DIR or (as reference) none";

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "cpu" => Self::Cpu,
            "cuda" => Self::Cuda,
            "cuda-fast" => Self::CudaFast,
            "llama" => Self::Llama,
            "llama-cuda" => Self::LlamaCuda,
            "none" => Self::None,
            _ => match text.strip_prefix("capture:") {
                Some(folder) if !folder.is_empty() => Self::Capture(PathBuf::from(folder)),
                _ => return Err(format!("expected {NAMES}")),
            },
        })
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda => f.write_str("cuda"),
            Self::CudaFast => f.write_str("cuda-fast"),
            Self::Llama => f.write_str("llama"),
            Self::LlamaCuda => f.write_str("llama-cuda"),
            Self::None => f.write_str("none"),
            Self::Capture(folder) => write!(f, "capture:{}", folder.display()),
        }
    }
}

/// A graph with faults in it, and the faults in words.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The faulty graph; `None` where nothing is injected.
    pub graph: Option<Graph>,
    /// One line per injection.
    pub words: Vec<String>,
}

impl Spec {
    /// `auto` resolved: what will run, and why not CUDA where it is the CPU.
    ///
    /// # Errors
    /// If CUDA was asked for by name and is not there.
    pub fn resolve(&self, faults: bool) -> Result<(Self, Option<String>)> {
        Ok(match self {
            Self::Auto if faults => (Self::Cpu, None),
            Self::Auto => match qdiff_engine::cuda::devices() {
                Ok(_) => (Self::Cuda, None),
                Err(e) => (Self::Cpu, Some(e.to_string())),
            },
            Self::Cuda | Self::CudaFast => {
                qdiff_engine::cuda::devices()?;
                (self.clone(), None)
            }
            other => (other.clone(), None),
        })
    }

    /// Whether faults can be injected into it.
    ///
    /// # Errors
    /// If not: why, and what to take instead.
    pub fn check_faults(&self) -> Result<()> {
        match self {
            Self::Auto | Self::Cpu | Self::None => Ok(()),
            Self::Capture(_) => {
                bail!("--inject cannot change a recorded capture; inject into the runner cpu (--subject cpu)")
            }
            Self::Cuda | Self::CudaFast | Self::Llama | Self::LlamaCuda => bail!(
                "--inject rewrites the graph that the CPU engine interprets, not that of {self}; inject into the runner cpu (--subject cpu)"
            ),
        }
    }

    /// Makes the runner.
    ///
    /// # Errors
    /// What it lacks; a capture, which does not run; `auto`, which must be
    /// resolved first.
    pub fn create<'a>(
        &self,
        opened: &'a LoadedModel,
        graph: &Graph,
        room: Room,
        faults: Faults,
    ) -> Result<Box<dyn Runner + 'a>> {
        Ok(match self {
            Self::Cpu => {
                let graph = faults.graph.unwrap_or_else(|| opened.model.graph().clone());
                Box::new(Cpu::new(&opened.model, graph, room.kv, faults.words))
            }
            Self::Cuda | Self::CudaFast => {
                let options = Options {
                    step: room.step,
                    context: room.context,
                    path: match self {
                        Self::CudaFast => Path::Fast,
                        _ => Path::Tapped,
                    },
                    gemm: room.gemm,
                    kv: match room.kv {
                        Number::F32 => KvType::F32,
                        Number::F16 => KvType::F16,
                        Number::Bf16 => {
                            bail!("the CUDA engine has no KV cache in bf16; take --kv-type f16, or --subject cpu")
                        }
                    },
                    scores: true,
                    ..Options::default()
                };
                Box::new(Cuda::new(&opened.model, options)?)
            }
            Self::Llama => Box::new(Llama::new(&opened.llama, graph, room)?),
            Self::LlamaCuda => {
                let model = Arc::new(llama::Model::load_cuda(&opened.path)?);
                Box::new(Llama::new(&model, graph, room)?)
            }
            Self::Auto | Self::Capture(_) | Self::None => {
                bail!("{self} is not a runner that runs; name one of {NAMES}")
            }
        })
    }
}
