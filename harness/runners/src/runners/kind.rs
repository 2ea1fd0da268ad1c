//! What there is to know of a runner before it runs.

use super::Runner;
use crate::loaded::LoadedModel;
use crate::room::Room;
use anyhow::Result;
use qdiff_engine::model::Graph;
use qdiff_engine::quant::GgmlType;

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

/// What there is to know of a runner before it runs: a row of [`super::RUNNERS`].
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
    /// Whether it removes tokens from the middle of a sequence, and moves those behind them.
    pub shifts: bool,
    /// Whether it runs a graph that is cut over ranks.
    pub ranks: bool,
    /// Whether its weights are on a device, from where they can be read back.
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

impl std::fmt::Display for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stored => f.pad("as stored"),
            Self::As(plain) => write!(f, "as {plain}"),
            Self::Refused => f.pad("refused"),
        }
    }
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
            let way = self.reading(ty).to_string();
            match ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, names)) => names.push(ty.to_string()),
                None => ways.push((way, vec![ty.to_string()])),
            }
        }
        ways
    }
}

/// A command line with the words of [`PLACEHOLDERS`](super::PLACEHOLDERS) in braces.
#[derive(Clone, Copy, Debug)]
pub struct CommandLine {
    pub(super) line: &'static str,
    /// Whether it starts an engine that stays up.
    pub serves: bool,
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
