//! The weights of a model file, checked against its graph.

use super::adapters::{Adapted, Adapter, Adapters};
use super::architectures::{ARCHITECTURES, Architecture, build_of};
use super::check::{self, LoadError};
use super::graph::Graph;
use super::slices::Slices;
use crate::gguf::Gguf;
use crate::quant::{Stored, WeightSource};
use crate::tokenizer;
use std::borrow::Borrow;
use std::path::Path;

/// The tensors of a file.
struct File<G = Gguf>(G);

/// A GGUF file, or a folder read as one, with its graph: all an engine needs to run.
pub struct Model {
    file: Adapted<Slices<File>>,
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
        let file = Adapted { base: Slices::new(File(gguf)), adapters: Adapters::default(), own: 0 };
        Ok(Self { file, graph })
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        &self.file.base.source().0
    }

    /// The stages.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The same with adapters, read from `files`, of which it has number `own` by itself: 0 is none, 1 the first.
    ///
    /// # Errors
    /// As [`Adapter::open`], with the number of the file.
    pub fn adapted(self, files: &[Gguf], own: usize) -> Result<Self, (usize, LoadError)> {
        let read = |(number, file)| Adapter::open(file, &self.graph).map_err(|e| (number, e));
        let all: Vec<Adapter> = files.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let files: Vec<File<&Gguf>> = files.iter().map(File).collect();
        let sources: Vec<&dyn WeightSource> = files.iter().map(|file| file as &dyn WeightSource).collect();
        let adapters = Adapters::new(all, &sources);
        Ok(Self { graph: self.graph.adapted(&adapters), file: Adapted { adapters, own, ..self.file } })
    }

    /// Its adapters.
    pub fn adapters(&self) -> &Adapters {
        &self.file.adapters
    }

    /// Its weights with those of all adapters, from number 0 on, in one tensor for each matrix.
    pub fn of_all_adapters(&self) -> Adapted<&Self> {
        Adapted { base: self, adapters: self.file.adapters.stacked(), own: 0 }
    }

    /// Its weights with the adapter of this number.
    pub fn of_adapter(&self, own: usize) -> Adapted<&Self> {
        Adapted { base: self, adapters: self.file.adapters.clone(), own }
    }
}

impl<G: Borrow<Gguf> + Sync> WeightSource for File<G> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let file = self.0.borrow();
        let info = file.tensor(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"));
        Stored { ty: info.ggml_type, extent: (info.row_len(), info.rows()), bytes: file.data(info) }
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
