//! The weights of a model file, checked against its graph.

use super::architectures::{ARCHITECTURES, Architecture, build_of};
use super::check::{self, LoadError};
use super::graph::Graph;
use crate::gguf::Gguf;
use crate::quant::{Stored, WeightSource};
use crate::tokenizer;
use std::path::Path;

/// A GGUF file, or a folder read as one, with its graph: all an engine needs to run.
pub struct Model {
    gguf: Gguf,
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
        Ok(Self { gguf, graph })
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The stages.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
}

impl WeightSource for Model {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let info = self.gguf.tensor(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"));
        Stored { ty: info.ggml_type, extent: (info.row_len(), info.rows()), bytes: self.gguf.data(info) }
    }
}
