//! The module `llama` of a build without llama.cpp (without the feature `llama`): the same names. Loading a model returns an
//! error that names the remedy; the types have no values, so that no other function here can be called.

use crate::arithmetic::LinearRule;
use anyhow::{Result, bail};
use std::path::Path;

/// Whether this build has llama.cpp: it has not.
///
/// # Errors
/// Always: what to do.
pub fn built_in() -> Result<()> {
    bail!("this qdiff was built without llama.cpp; build it with its default features (cargo build --release -p qdiff)")
}

/// As [`built_in`].
///
/// # Errors
/// Always.
pub fn cuda_backend() -> Result<()> {
    built_in()
}

/// What llama.cpp's CPU turns activations into: of no format known.
pub fn dot_types() -> Vec<LinearRule> {
    Vec::new()
}

/// What would be loaded of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// All of it for the CPU.
    Cpu,
    /// All of it on the GPU.
    Cuda,
    /// Only the vocabulary.
    Vocabulary,
}

/// The part of a loaded model that is read everywhere.
#[derive(Debug)]
pub struct Model {
    /// Whether its layers are on a GPU.
    pub on_gpu: bool,
    never: std::convert::Infallible,
}

impl Model {
    /// Loads nothing.
    ///
    /// # Errors
    /// Always, as [`built_in`].
    pub fn load(_: &Path, _: Load) -> Result<Self> {
        built_in().map(|()| unreachable!("built_in is an error"))
    }

    /// A metadata value.
    pub fn metadata(&self, _: &str) -> Option<String> {
        match self.never {}
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        match self.never {}
    }

    /// Splits text into tokens.
    ///
    /// # Errors
    /// Never called.
    pub fn tokenize(&self, _: &[u8], _: bool) -> Result<Vec<u32>> {
        match self.never {}
    }

    /// The text of one token.
    pub fn piece(&self, _: u32) -> String {
        match self.never {}
    }

    /// The bytes that a token prints.
    pub fn piece_bytes(&self, _: u32, _: bool) -> Option<Vec<u8>> {
        match self.never {}
    }

    /// Whether the token ends a generation.
    pub fn ends_generation(&self, _: u32) -> bool {
        match self.never {}
    }
}

/// A GGUF file as ggml reads it.
pub mod gguf {
    use anyhow::Result;
    use qdiff_engine::gguf::Gguf;
    use qdiff_engine::model::WeightSource;
    use qdiff_engine::quant::{GgmlType, Stored, dequantize};
    use std::convert::Infallible;
    use std::marker::PhantomData;
    use std::sync::Arc;

    /// What ggml reads of a model's files besides the weights.
    #[derive(Debug)]
    pub struct Index(Infallible);

    impl Index {
        /// Reads nothing.
        ///
        /// # Errors
        /// Always, as [`super::built_in`].
        pub fn read(_: &Gguf) -> Result<Self> {
            super::built_in().map(|()| unreachable!("built_in is an error"))
        }
    }

    /// Weights as ggml reads them.
    pub struct GgmlWeights<'a> {
        pub(super) never: Infallible,
        file: PhantomData<&'a Gguf>,
    }

    impl<'a> GgmlWeights<'a> {
        /// Reads nothing.
        ///
        /// # Errors
        /// Always, as [`super::built_in`].
        pub fn open(model: &'a Gguf) -> Result<Self> {
            Index::read(model).map(|index| match index.0 {})
        }

        /// The weights of a model whose index was read.
        pub fn new(_: &'a Gguf, index: Arc<Index>) -> Self {
            Self { never: index.0, file: PhantomData }
        }

        /// Extent in ggml order.
        pub fn dims(&self, _: &str) -> Option<&[u64]> {
            match self.never {}
        }

        /// First byte of a tensor in its file.
        pub fn start(&self, _: &str) -> u64 {
            match self.never {}
        }

        /// All tensors.
        pub fn names(&self) -> Vec<&str> {
            match self.never {}
        }

        /// A real metadata value.
        pub fn real(&self, _: &str) -> Option<f32> {
            match self.never {}
        }
        /// The integers of an array in the metadata.
        pub fn integers(&self, _: &str) -> Option<&[i64]> {
            match self.never {}
        }
    }

    impl WeightSource for GgmlWeights<'_> {
        fn stored(&self, _: &str) -> Stored<'_> {
            match self.never {}
        }
    }

    /// Whole blocks dequantised by the engine's reader, bit for bit as ggml does.
    ///
    /// # Panics
    /// If the engine does not know the type.
    pub fn to_float(ty: u32, bytes: &[u8], out: &mut [f32]) {
        let ty = GgmlType::from_id(ty).expect("a type of the model");
        dequantize(ty, &bytes[..ty.row_bytes(out.len())], out);
    }
}

/// Copies of a model in other formats, which only ggml's quantisers make.
pub mod copy {
    use super::gguf::GgmlWeights;
    use anyhow::Result;
    use qdiff_engine::quant::GgmlType;
    use std::path::Path;

    /// Writes a copy of a model with every matrix as `ty`.
    ///
    /// # Errors
    /// Never called.
    pub fn write_copy(weights: &GgmlWeights<'_>, _: GgmlType, _: &Path) -> Result<usize> {
        match weights.never {}
    }
}

/// Contexts of llama.cpp.
pub mod context {
    use super::Model;
    use crate::capture::{Step, Want};
    use crate::room::Room;
    use anyhow::Result;
    use qdiff_engine::cpu::Row;
    use qdiff_engine::model::{Graph, Node};
    use qdiff_engine::quant::KvType;
    use std::convert::Infallible;
    use std::sync::Arc;

    /// A context with taps.
    pub struct TappedContext(Infallible);

    /// Whether llama.cpp would read the caches with flash attention.
    pub fn flash(_: KvType) -> bool {
        false
    }

    impl TappedContext {
        /// A context of a model.
        ///
        /// # Errors
        /// Never called.
        pub fn new(model: &Arc<Model>, _: &Graph, _: Room) -> Result<Self> {
            match model.never {}
        }

        /// Whether it can hand out a stage.
        pub fn taps(&self, _: &Node) -> bool {
            match self.0 {}
        }

        /// Runs `tokens`.
        ///
        /// # Errors
        /// Never called.
        pub fn step(&mut self, _: &[u32], _: &Arc<Want>) -> Result<Step> {
            match self.0 {}
        }

        /// Runs rows of any sequences.
        ///
        /// # Errors
        /// Never called.
        pub fn rows(&mut self, _: &[Row], _: &Arc<Want>) -> Result<Vec<Step>> {
            match self.0 {}
        }

        /// Lets a sequence begin with tokens of another.
        ///
        /// # Errors
        /// Never called.
        pub fn share(&mut self, _: u32, _: u32, _: usize) -> Result<()> {
            match self.0 {}
        }

        /// Takes a sequence back.
        ///
        /// # Errors
        /// Never called.
        pub fn take_back(&mut self, _: u32, _: usize) -> Result<()> {
            match self.0 {}
        }
    }
}

/// llama.cpp's own samplers.
pub mod sampler {
    use qdiff_engine::sampler::Step;
    use std::convert::Infallible;

    /// A chain of llama.cpp's samplers.
    pub struct LlamaSampler(Infallible);

    impl LlamaSampler {
        /// A chain of samplers.
        ///
        /// # Panics
        /// Always: free-running text needs llama.cpp's model first, which is refused.
        pub fn new(_: &[Step], _: usize) -> Self {
            unreachable!("llama.cpp's model is loaded before its samplers are made")
        }

        /// The same chain, which takes the last among equals.
        #[must_use]
        pub fn last_of_equals(self) -> Self {
            match self.0 {}
        }

        /// Remembers a token.
        pub fn accept(&mut self, _: u32) {
            match self.0 {}
        }

        /// Draws a token.
        pub fn sample(&mut self, _: &[f32]) -> u32 {
            match self.0 {}
        }
    }
}
