//! Models of real shapes: gigabytes, written tensor by tensor, so that no more than a part of one is in memory.
//!
//! Matrices are drawn block by block from a palette that ggml has quantised, whose values have the magnitude that they
//! have in small models: quantising every weight of billions would take an hour. The vocabulary is that of another file.

use crate::{Fill, Kv, Synth, Tensor, part_name, quantize::quantize, rng::Rng, split, vocab};
use qdiff_engine::gguf::{ArrayValue, Gguf, Value};
use qdiff_engine::model::Role;
use qdiff_engine::quant::GgmlType;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// Rows of the palette of a tensor; each has as many blocks as one of the tensor.
const PALETTE: usize = 64;

impl Synth {
    /// Qwen2.5-7B's shape.
    pub fn qwen2_5_7b() -> Self {
        Self {
            n_embd: 3584,
            n_layers: 28,
            n_heads: 28,
            n_kv_heads: 4,
            head_dim: 128,
            n_ff: 18944,
            n_vocab: 152_064,
            context: 32768,
            ..Self::default()
        }
    }

    /// The same in the formats that llama.cpp's recipe Q4_K_M chooses (`llama_tensor_get_type_impl` in llama-quant.cpp):
    /// Q4_K, but Q6_K for the output projection, and in some layers for values and what leaves the feed-forward network.
    pub fn q4_k_m(mut self) -> Self {
        let more_bits = |layer: usize| {
            let eighth = self.n_layers / 8;
            layer < eighth || layer >= 7 * self.n_layers / 8 || (layer - eighth) % 3 == 2
        };
        let linear = self.graph().nodes.into_iter().filter(|node| node.op.anatomy().multiplies_weights());
        let chosen = linear.filter(|node| match node.role {
            Role::Logits => true,
            Role::Value | Role::FfnOutput => node.id.layer.is_some_and(|layer| more_bits(layer.into())),
            _ => false,
        });
        self.overrides = chosen.flat_map(|node| node.weights).map(|w| (w.name, GgmlType::Q6_K)).collect();
        self.weight_type = GgmlType::Q4_K;
        self
    }

    /// Writes the model in `parts` files to `folder`, with the vocabulary and chat template of `like`, filled up with
    /// padding tokens; gives their paths, the first of which names the model.
    ///
    /// # Errors
    /// Files that cannot be written; a vocabulary that is larger than the model's, or is none.
    ///
    /// # Panics
    /// As [`Synth::to_bytes`].
    pub fn write_like(&self, like: &Gguf, parts: usize, folder: &Path, stem: &str) -> io::Result<Vec<PathBuf>> {
        let mut metadata = self.described();
        metadata.vocabulary(like, self.n_vocab)?;
        let mut paths = Vec::new();
        for (no, (metadata, tensors)) in split::parts(metadata, self.tensors(), parts).into_iter().enumerate() {
            let name = if parts == 1 { format!("{stem}.gguf") } else { part_name(stem, no, parts) };
            let path = folder.join(name);
            let mut out = BufWriter::with_capacity(1 << 20, File::create(&path)?);
            out.write_all(&metadata.header(tensors.iter().map(|t| (t, t.bytes()))))?;
            for tensor in &tensors {
                self.write_tensor(tensor, &mut out)?;
                out.write_all(&vec![0; metadata.padded(tensor.bytes()) - tensor.bytes()])?;
            }
            out.flush()?;
            paths.push(path);
        }
        Ok(paths)
    }

    /// Blocks at random of a palette for matrices, everything else as in small models.
    fn write_tensor(&self, tensor: &Tensor, out: &mut impl io::Write) -> io::Result<()> {
        let (Fill::Matrix { .. }, &[n, _, ..]) = (tensor.fill, tensor.ne.as_slice()) else {
            return out.write_all(&quantize(tensor, &self.draw(tensor)));
        };
        let rows: usize = tensor.ne[1..].iter().product();
        let palette = Tensor { ne: vec![n, PALETTE.min(rows)], ..tensor.clone() };
        let blocks = quantize(&palette, &self.draw(&palette));
        let size = tensor.ty.type_size();
        let count = blocks.len() / size;
        let mut rng = Rng::new(self.seed ^ 1, &tensor.name);
        let mut row = Vec::new();
        for _ in 0..rows {
            row.clear();
            for _ in 0..n / tensor.ty.block_size() {
                let at = ((rng.next() >> 32) as usize * count) >> 32;
                row.extend_from_slice(&blocks[at * size..][..size]);
            }
            out.write_all(&row)?;
        }
        Ok(())
    }
}

impl Tensor {
    /// Bytes of its data.
    pub(crate) fn bytes(&self) -> usize {
        self.ty.row_bytes(self.ne.iter().product())
    }
}

impl Kv {
    /// Takes over the vocabulary of `like`, with so many tokens.
    pub(crate) fn vocabulary(&mut self, like: &Gguf, count: usize) -> io::Result<()> {
        let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("the vocabulary {why}"));
        for (key, value) in like.metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
            match value {
                Value::Array(ArrayValue::String(all)) => self.strings(key, &all.iter().collect::<Vec<_>>()),
                Value::Array(ArrayValue::I32(all)) => self.i32s(key, all),
                Value::Array(ArrayValue::F32(all)) => self.f32s(key, all),
                Value::String(text) => self.string(key, &String::from_utf8_lossy(text)),
                Value::U32(n) => self.u32(key, *n),
                Value::Bool(is) => self.bool(key, *is),
                other => return Err(bad(&format!("has `{key}` of type {}", other.type_name()))),
            }
        }
        let (Some(tokens), Some(types)) =
            (like.get(vocab::TOKENS).and_then(Value::as_strings), like.get(vocab::TYPES).and_then(Value::as_i32_array))
        else {
            return Err(bad("has no tokens with types"));
        };
        if tokens.len() > count {
            return Err(bad(&format!("has {} tokens, more than {count}", tokens.len())));
        }
        let (more, of_type) = vocab::padding(tokens.len()..count);
        self.strings(vocab::TOKENS, &tokens.iter().chain(more.iter().map(String::as_bytes)).collect::<Vec<_>>());
        self.i32s(vocab::TYPES, &[types, &of_type].concat());
        Ok(())
    }
}
