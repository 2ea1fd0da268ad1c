//! The third opinion: every op in f64, on weights and hyperparameters that the engine's reader never touched.

use crate::folder::FolderWeights;
use crate::llama::Model;
use crate::llama::gguf::GgmlWeights;
use crate::products::Products;
use anyhow::{Context as _, Result, bail};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{
    self, Adapted, Adapter, Adapters, Graph, Metadata, Placement, Slice, Slices, Weight, same_extent,
};
use qdiff_engine::quant::{Stored, WeightSource};

/// The weights of a model by a reader that shares nothing with the engine's but the mapped bytes.
pub trait Checkpoint: WeightSource + Send {
    /// Extent in ggml's order, the contiguous axis first.
    fn dims(&self, tensor: &str) -> Option<&[u64]>;

    /// First byte of a tensor in its file.
    ///
    /// # Panics
    /// If there is no such tensor.
    fn start(&self, tensor: &str) -> u64;
}

impl Checkpoint for GgmlWeights<'_> {
    fn dims(&self, tensor: &str) -> Option<&[u64]> {
        GgmlWeights::dims(self, tensor)
    }
    fn start(&self, tensor: &str) -> u64 {
        GgmlWeights::start(self, tensor)
    }
}

impl Checkpoint for FolderWeights<'_> {
    fn dims(&self, tensor: &str) -> Option<&[u64]> {
        FolderWeights::dims(self, tensor)
    }
    fn start(&self, tensor: &str) -> u64 {
        FolderWeights::start(self, tensor)
    }
}

/// The weights by the engine's own reader.
struct EngineWeights<'a>(Adapted<&'a model::Model>);

impl WeightSource for EngineWeights<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        self.0.stored(tensor)
    }
    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        self.0.rows(tensor, first, out);
    }
}

impl Checkpoint for EngineWeights<'_> {
    fn dims(&self, tensor: &str) -> Option<&[u64]> {
        self.0.adapters.dims(tensor).or_else(|| self.0.base.gguf().tensor(tensor).map(|info| info.dims.as_slice()))
    }
    fn start(&self, tensor: &str) -> u64 {
        let file = self.0.base.gguf();
        let info = file.tensor(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"));
        let part = file.parts()[info.part].bytes();
        file.data(info).as_ptr() as u64 - part.as_ptr() as u64
    }
}

impl WeightSource for Box<dyn Checkpoint + '_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        (**self).stored(tensor)
    }
    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        (**self).rows(tensor, first, out);
    }
}

impl<C: Checkpoint> Checkpoint for Slices<C> {
    fn dims(&self, tensor: &str) -> Option<&[u64]> {
        self.source().dims(tensor)
    }
    fn start(&self, tensor: &str) -> u64 {
        let Some(slice) = Slice::of(tensor) else { return self.source().start(tensor) };
        let Stored { ty, extent: (n, rows), .. } = self.source().stored(slice.tensor);
        let before = match (slice.columns, rows) {
            (true, _) => 0,
            (false, 1) => ty.row_bytes(slice.range.start),
            (false, _) => slice.range.start * ty.row_bytes(n),
        };
        self.source().start(slice.tensor) + before as u64
    }
}

impl Checkpoint for Box<dyn Checkpoint + '_> {
    fn dims(&self, tensor: &str) -> Option<&[u64]> {
        (**self).dims(tensor)
    }
    fn start(&self, tensor: &str) -> u64 {
        (**self).start(tensor)
    }
}

impl<C: Checkpoint> Checkpoint for Adapted<C> {
    fn dims(&self, tensor: &str) -> Option<&[u64]> {
        self.adapters.dims(tensor).or_else(|| self.base.dims(tensor))
    }
    fn start(&self, tensor: &str) -> u64 {
        // A padded matrix lies in no file as it is.
        if self.adapters.dims(tensor).is_some() { 0 } else { self.base.start(tensor) }
    }
}

/// The graph as metadata describe it that the engine has not read, with weights that it has not read.
pub struct Oracle<'a> {
    /// Stages: built from llama.cpp's metadata calls, or of a folder from config.json as serde reads it.
    pub graph: Graph,
    /// Weights: by ggml's `to_float`, or of a folder by the `safetensors` crate.
    pub weights: Box<dyn Checkpoint + 'a>,
    /// What evaluates products with them.
    pub products: Products,
}

struct Described<'a> {
    model: &'a Model,
    weights: &'a GgmlWeights<'a>,
}

impl Metadata for Described<'_> {
    fn integer(&self, key: &str) -> Option<u64> {
        self.model.metadata(key)?.parse().ok()
    }
    fn real(&self, key: &str) -> Option<f64> {
        self.weights.real(key).map(f64::from)
    }
    fn boolean(&self, key: &str) -> Option<bool> {
        self.model.metadata(key)?.parse().ok()
    }
    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        self.weights.integers(key).map(<[i64]>::to_vec)
    }
    fn text(&self, key: &str) -> Option<String> {
        self.model.metadata(key)
    }
    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        self.weights.dims(tensor).map(<[u64]>::to_vec)
    }
}

impl<'a> Oracle<'a> {
    /// On the weights of these files; `model` is llama.cpp's of them.
    ///
    /// # Errors
    /// If their metadata describe no known graph.
    pub fn new(weights: GgmlWeights<'a>, model: &Model) -> Result<Self> {
        let described = Described { model, weights: &weights };
        let graph = model::build(&described).context("llama.cpp's view of the metadata")?;
        Self::checked(graph, Box::new(weights), "ggml")
    }

    /// On the weights of a folder of safetensors.
    ///
    /// # Errors
    /// If its config.json describes no known graph.
    pub fn of_folder(weights: FolderWeights<'a>) -> Result<Self> {
        let graph = model::build(&weights).context("config.json as the oracle reads it")?;
        Self::checked(graph, Box::new(weights), "the oracle")
    }

    /// On the engine's own reading of a GGUF, with the adapter of this number, for want of another: a fault of that reader is not seen.
    ///
    /// # Errors
    /// None that [`qdiff_engine::model::Model::open`] would not have told.
    pub fn of_engine(model: &'a model::Model, adapter: usize) -> Result<Self> {
        let weights = Box::new(EngineWeights(model.of_adapter(adapter)));
        Self::checked(model.graph().clone(), weights, "the engine")
    }

    /// The adapters in these files, as ggml reads them.
    ///
    /// # Errors
    /// A file that ggml refuses; an adapter that does not fit the graph.
    pub fn read_by_ggml<'f>(&self, files: impl Iterator<Item = &'f Gguf>) -> Result<Adapters> {
        let files: Vec<GgmlWeights<'f>> = files.map(GgmlWeights::open).collect::<Result<_>>()?;
        let read = |file: &GgmlWeights<'_>| {
            let extent = |name: &str| file.dims(name).map(<[u64]>::to_vec);
            Adapter::read(file.real("adapter.lora.alpha").map(f64::from), &file.names(), &extent, &self.graph)
        };
        let all = files.iter().map(read).collect::<Result<_, _>>().context("an adapter, as ggml reads it")?;
        let sources: Vec<&dyn WeightSource> = files.iter().map(|file| file as &dyn WeightSource).collect();
        Ok(Adapters::new(all, &sources))
    }

    /// The same with the adapter of this number.
    #[must_use]
    pub fn adapted(self, adapters: Adapters, own: usize) -> Self {
        let Self { graph, weights, products } = self;
        let graph = graph.adapted(&adapters);
        Self { graph, weights: Box::new(Adapted { base: weights, adapters, own }), products }
    }

    /// The same, its graph cut over ranks, on slices of its weights; and the whole graph.
    ///
    /// # Errors
    /// A cut that this model does not allow.
    pub fn placed(self, placement: &Placement) -> Result<(Self, Graph)> {
        let Self { graph, weights, products } = self;
        let placement = placement.settled(&graph, |tensor| weights.ggml_type(tensor).block_size())?;
        let placed = placement.place(&graph)?;
        Ok((Self { graph: placed, weights: Box::new(Slices::new(weights)), products }, graph))
    }

    fn checked(graph: Graph, weights: Box<dyn Checkpoint + 'a>, reader: &str) -> Result<Self> {
        for Weight { name, extent } in graph.tensors() {
            let found = weights.dims(&name);
            if !found.is_some_and(|dims| same_extent(dims, &extent)) {
                bail!("tensor `{name}`: {reader} reads shape {found:?}, its metadata say {extent:?}");
            }
        }
        Ok(Self { graph, weights: Box::new(Slices::new(weights)), products: Products::default() })
    }
}
