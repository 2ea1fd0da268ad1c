//! Runners by name, and where the tensors of a side come from.

use super::command::{self, CommandLine};
use super::{Runner, cpu, cuda, llama};
use crate::loaded::LoadedModel;
use crate::room::Room;
use anyhow::{Result, bail};
use qdiff_engine::cuda::CudaError;
use qdiff_engine::model::Graph;
use qdiff_engine::quant::GgmlType;
use std::path::PathBuf;

/// A graph with faults in it, and the faults in words.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The faulty graph; `None` where nothing is injected.
    pub graph: Option<Graph>,
    /// One line per injection.
    pub words: Vec<String>,
}

/// Makes a runner of a model, with its graph as the oracle has it, room for a run, and faults to inject.
pub type Create = for<'a> fn(&'a LoadedModel, &Graph, Room, Faults) -> Result<Box<dyn Runner + 'a>>;

/// What there is to know of a runner before it runs: a row of [`RUNNERS`].
#[derive(Debug)]
pub struct RunnerKind {
    /// Name on the command line.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Whether it interprets a graph, and so can be given one with faults.
    pub faults: bool,
    /// Whether it is llama.cpp, whose own samplers draw its tokens.
    pub llama: bool,
    /// Whether it runs rows of several sequences in one pass.
    pub sequences: bool,
    /// Whether it runs a graph that is cut over ranks.
    pub ranks: bool,
    /// Whether its weights stand on a device, from where they can be read back.
    pub device: bool,
    /// How it reads a matrix of a format that the engine unpacks.
    pub reads: fn(GgmlType) -> Reads,
    /// Refuses where this machine lacks what it needs.
    pub ready: fn() -> Result<()>,
    /// How it is made.
    pub start: Start,
}

/// How a runner reads the weights of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// As they are stored.
    Stored,
    /// As plain numbers of this type, made when the model is loaded: the same values, more bytes.
    As(GgmlType),
    /// It refuses a model with such a matrix, and names the tensor.
    Refused,
}

/// How a runner is made.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// In this process.
    Own(Create),
    /// By a command, of an engine that is not qdiff's.
    Command(CommandLine),
}

impl RunnerKind {
    /// The command that starts it, of an engine that is not qdiff's.
    pub fn command(&self) -> Option<CommandLine> {
        if let Start::Command(command) = self.start { Some(command) } else { None }
    }

    /// How it reads a matrix stored as `ty`: what the table of formats says, of `qdiff devices` and of documents.
    pub fn reading(&self, ty: GgmlType) -> Reads {
        if ty.is_supported() { (self.reads)(ty) } else { Reads::Refused }
    }

    /// The formats that the engine unpacks, by how it reads them: the words for that, and their names.
    pub fn formats(&self) -> Vec<(String, Vec<String>)> {
        let mut ways: Vec<(String, Vec<String>)> = Vec::new();
        for &ty in GgmlType::ALL_SUPPORTED {
            let way = match self.reading(ty) {
                Reads::Stored => "as stored".to_owned(),
                Reads::As(plain) => format!("as {plain}"),
                Reads::Refused => "refused".to_owned(),
            };
            match ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, names)) => names.push(ty.to_string()),
                None => ways.push((way, vec![ty.to_string()])),
            }
        }
        ways
    }

    /// Refuses a runner that does not run several sequences in one pass.
    ///
    /// # Errors
    /// Why, and what to take instead.
    pub fn check_sequences(&self) -> Result<()> {
        let able: Vec<&str> = RUNNERS.iter().filter(|kind| kind.sequences).map(|kind| kind.name).collect();
        if !self.sequences {
            bail!(
                "the runner {self} runs one sequence at a time, and --sequences runs several in one pass; take {}",
                able.join(" or ")
            );
        }
        Ok(())
    }
}

impl RunnerKind {
    /// Refuses a runner that runs on one rank alone.
    ///
    /// # Errors
    /// What to take instead.
    pub fn check_ranks(&self) -> Result<()> {
        let able: Vec<&str> = RUNNERS.iter().filter(|kind| kind.ranks).map(|kind| kind.name).collect();
        if !self.ranks {
            bail!("the runner {self} runs on one rank; with --ranks take {}, or a command", able.join(" or "));
        }
        Ok(())
    }
}

impl PartialEq for RunnerKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Display for RunnerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name)
    }
}

/// Every runner. Names, help, messages and completions follow from it.
pub const RUNNERS: [&RunnerKind; 5] = [&cpu::CPU, &cuda::CUDA, &cuda::CUDA_FAST, &llama::LLAMA, &llama::LLAMA_CUDA];

/// Where the tensors of a side come from.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Source {
    /// CUDA where there is a GPU, else the CPU.
    #[default]
    Auto,
    /// A runner that runs.
    Live(&'static RunnerKind),
    /// A recorded capture, of whatever engine, in this folder.
    Recorded(PathBuf),
    /// Nobody: the other side is judged by itself.
    Nobody,
}

/// What stands before the folder of a capture.
const CAPTURE: &str = "capture:";

impl Source {
    /// The source of this name, if there is one.
    pub fn of(name: &str) -> Option<Self> {
        match (name, name.strip_prefix(CAPTURE)) {
            ("auto", _) => Some(Self::Auto),
            ("none", _) => Some(Self::Nobody),
            (_, Some(folder)) => (!folder.is_empty()).then(|| Self::Recorded(PathBuf::from(folder))),
            _ => RUNNERS.iter().copied().find(|r| r.name == name).or_else(|| command::kind(name)).map(Self::Live),
        }
    }

    /// The runner to take: `auto` resolved, with why it is not CUDA where it is
    /// the CPU. With `faults`, `auto` is a runner that takes them.
    ///
    /// # Errors
    /// A capture or nobody, who do not run; a runner that this machine lacks something for.
    pub fn runner(&self, faults: bool) -> Result<(&'static RunnerKind, Option<String>)> {
        match self {
            Self::Auto if faults => Ok((&cpu::CPU, None)),
            Self::Auto => Ok(match (cuda::CUDA.ready)() {
                Ok(()) => (&cuda::CUDA, None),
                // Most machines have none: that is no trouble with a remedy.
                Err(e) => match e.downcast_ref() {
                    Some(CudaError::NoDriver) => (&cpu::CPU, Some("no GPU".to_owned())),
                    _ => (&cpu::CPU, Some(e.to_string())),
                },
            }),
            Self::Live(kind) => {
                kind.command().map_or(Ok(()), |command| command.check())?;
                (kind.ready)().map(|()| (*kind, None))
            }
            Self::Recorded(_) | Self::Nobody => bail!("{self} does not run; name a runner"),
        }
    }

    /// Whether faults can be injected into it.
    ///
    /// # Errors
    /// If not: why, and what to take instead.
    pub fn check_faults(&self) -> Result<()> {
        match self {
            Self::Recorded(_) => {
                bail!("--inject cannot change a recorded capture; inject into the runner cpu (--subject cpu)")
            }
            Self::Live(kind) if !kind.faults => bail!(
                "--inject rewrites the graph that the CPU engine interprets, not that of {kind}; inject into the runner cpu (--subject cpu)"
            ),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Live(kind) => kind.fmt(f),
            Self::Recorded(folder) => write!(f, "{CAPTURE}{}", folder.display()),
            Self::Nobody => f.pad("none"),
        }
    }
}
