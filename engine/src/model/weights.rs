//! The weights of a model file, checked against its graph.

use super::architectures::{ARCHITECTURES, Architecture, build_of};
use super::check::{self, LoadError};
use super::graph::Graph;
use super::slices::Slices;
use crate::gguf::Gguf;
use crate::quant::{Stored, WeightSource};
use crate::tokenizer;
use std::path::Path;

/// The tensors of a file.
struct File(Gguf);

/// A GGUF file, or a folder read as one, with its graph: all an engine needs to run.
pub struct Model {
    file: Slices<File>,
    graph: Graph,
}

impl Model {
    /// Opens `path`, builds its graph, and checks metadata, tensors and vocabulary against it.
    ///
    /// # Errors
    /// Whatever keeps the model from being run, named with its remedy.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Self::new(Gguf::open(path)?)
    }

    /// As [`Self::open`], for a file that is already open.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn new(gguf: Gguf) -> Result<Self, LoadError> {
        Self::of(ARCHITECTURES, gguf)
    }

    /// As [`Self::new`], of the architectures `known`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of(known: &[Architecture], gguf: Gguf) -> Result<Self, LoadError> {
        check::alignment(&gguf)?;
        let asked = check::Asked::new(&gguf);
        let graph = build_of(known, &asked)?;
        asked.complete(&graph.config.arch)?;
        check::tensors(&gguf, &graph)?;
        // A folder may lack the vocabulary: llama.cpp does not read it.
        if !gguf.is_folder() {
            tokenizer::check(&gguf, graph.config.n_vocab)?;
        }
        Ok(Self { file: Slices::new(File(gguf)), graph })
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        &self.file.source().0
    }

    /// The stages.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
}

impl WeightSource for File {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let info = self.0.tensor(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"));
        Stored { ty: info.ggml_type, extent: (info.row_len(), info.rows()), bytes: self.0.data(info) }
    }
}

/// Of tensors, and of the slices of them that the graph reads.
impl WeightSource for Model {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        self.file.stored(tensor)
    }
    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        self.file.rows(tensor, first, out);
    }
    fn extent(&self, tensor: &str) -> (usize, usize) {
        self.file.extent(tensor)
    }
}
