//! Runners by name, and where the tensors of a side come from.

use super::{RunnerKind, command, cpu, cuda, llama};
use anyhow::{Result, bail, ensure};
use qdiff_engine::cuda::CudaError;
use std::path::PathBuf;

impl RunnerKind {
    /// Refuses a runner that does not run several sequences in one pass.
    ///
    /// # Errors
    /// Why, and what to take instead.
    pub fn check_sequences(&self) -> Result<()> {
        let able: Vec<&str> = RUNNERS.iter().filter(|kind| kind.sequences).map(|kind| kind.name).collect();
        ensure!(
            self.sequences || self.command().is_none(),
            "`{self}` runs one sequence at a time: for several in one pass it needs {{sequences}}, a file with a line of \
             JSON for each pass"
        );
        if !self.sequences {
            bail!(
                "the engine {self} runs one sequence at a time, and --sequences runs several in one pass; take {}",
                able.join(" or ")
            );
        }
        Ok(())
    }

    /// Refuses a runner that removes no tokens from the middle of a sequence.
    ///
    /// # Errors
    /// What to take instead.
    pub fn check_shifts(&self) -> Result<()> {
        let able: Vec<&str> = RUNNERS.iter().filter(|kind| kind.shifts).map(|kind| kind.name).collect();
        if !self.shifts {
            bail!(
                "the engine {self} removes no tokens from the middle of a sequence; leave shifts such as -4:2 out of --sequences, or \
                 take {}",
                able.join(" or ")
            );
        }
        Ok(())
    }

    /// Refuses a runner that runs on one rank alone.
    ///
    /// # Errors
    /// What to take instead.
    pub fn check_ranks(&self) -> Result<()> {
        let able: Vec<&str> = RUNNERS.iter().filter(|kind| kind.ranks).map(|kind| kind.name).collect();
        if !self.ranks {
            bail!("the engine {self} runs on one rank; with --ranks take {}, or a command", able.join(" or "));
        }
        Ok(())
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
    /// A recorded capture, of any engine, in this folder.
    Recorded(PathBuf),
    /// None: the other side is judged alone.
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
            Self::Recorded(_) | Self::Nobody => bail!("{self} does not run; name an engine"),
        }
    }

    /// Whether faults can be injected into it.
    ///
    /// # Errors
    /// If not: why, and what to take instead.
    pub fn check_faults(&self) -> Result<()> {
        match self {
            Self::Recorded(_) => {
                bail!("--inject cannot change a recorded capture; inject into the engine cpu (--subject cpu)")
            }
            Self::Live(kind) if !kind.faults => bail!(
                "--inject rewrites the graph that the CPU engine interprets, not that of {kind}; inject into the engine cpu (--subject cpu)"
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
