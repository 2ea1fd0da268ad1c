//! Qwen2 made into Qwen2-MoE, so that experts have real weights: the neurons of each layer are dealt out among experts, and the
//! weights stay as they are stored. Only routers are drawn.

use crate::{Setting, Synth, tensor::Tensor};
use qdiff_engine::model::{Model, qwen2, qwen2moe};
use qdiff_engine::quant::{Stored, WeightSource as _};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

/// Neurons of an expert: whole blocks of every format.
const WIDTH: usize = 256;

/// Experts that a token takes.
const TAKEN: usize = 6;

/// Writes the first `layers` layers of a Qwen2 model with experts of 256 neurons; the last 256 neurons of a layer are the shared
/// expert.
///
/// # Errors
/// A model of another architecture or with too few neurons, or whose rows are not whole blocks; a file that cannot be written.
pub fn upcycle(model: &Model, layers: usize, out: &Path) -> io::Result<()> {
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let c = &model.graph().config;
    let n_ff = if c.arch == qwen2::ARCH { model.extent("blk.0.ffn_gate.weight").1 } else { 0 };
    let experts = (n_ff / WIDTH).saturating_sub(1);
    if experts <= TAKEN || !n_ff.is_multiple_of(WIDTH) {
        return Err(bad(format!("this {} model is not made into experts of {WIDTH} neurons", c.arch)));
    }
    let number = |key: &str, n: usize| (key.to_owned(), Setting::Integer(n));
    let mut synth = Synth {
        arch: qwen2moe::ARCH,
        n_embd: c.n_embd,
        n_layers: layers.min(c.n_layers),
        n_heads: c.n_heads,
        n_kv_heads: c.n_kv_heads,
        head_dim: c.head_dim,
        n_ff,
        n_vocab: c.n_vocab,
        context: c.context,
        rope_base: c.rope_base as f32,
        eps: c.rms_eps as f32,
        settings: vec![
            number("expert_count", experts),
            number("expert_used_count", TAKEN),
            number("expert_feed_forward_length", WIDTH),
            number("expert_shared_feed_forward_length", WIDTH),
        ],
        ..Synth::default()
    };
    let names = synth.listed(&synth.graph()).into_iter().map(|t| t.name);
    synth.overrides =
        names.filter_map(|name| Some((of(model, &name)?.ty, name))).map(|(ty, name)| (name, ty)).collect();
    synth.validate().map_err(bad)?;
    let mut metadata = synth.described();
    metadata.vocabulary(model.gguf(), c.n_vocab)?;
    let tensors = synth.tensors();
    let mut file = BufWriter::with_capacity(1 << 20, File::create(out)?);
    file.write_all(&metadata.header(tensors.iter().map(|t| (t, t.bytes()))))?;
    for tensor in &tensors {
        let bytes =
            taken(model, tensor, experts).unwrap_or_else(|| crate::quantize::quantize(tensor, &synth.draw(tensor)));
        file.write_all(&bytes)?;
        file.write_all(&vec![0; metadata.padded(bytes.len()) - bytes.len()])?;
    }
    file.flush()
}

/// The tensor that the weights of `name` are from; none of a router.
fn of<'a>(model: &'a Model, name: &str) -> Option<Stored<'a>> {
    let there = |name: &str| model.gguf().tensor(name).map(|_| model.stored(name));
    let own = there(&name.replace("_exps.", ".").replace("_shexp.", "."));
    let head = own.or_else(|| there("token_embd.weight").filter(|_| name == "output.weight"));
    head.filter(|_| !name.contains("gate_inp"))
}

/// The bytes of a tensor, taken from the model.
fn taken(model: &Model, tensor: &Tensor, experts: usize) -> Option<Vec<u8>> {
    let Stored { ty, extent: (n, _), bytes } = of(model, &tensor.name)?;
    let shared = tensor.name.contains("_shexp.");
    if !shared && !tensor.name.contains("_exps.") {
        return Some(bytes.to_vec());
    }
    if !tensor.name.contains("ffn_down") {
        let first = ty.row_bytes(n) * WIDTH * experts;
        return Some(if shared { bytes[first..].to_vec() } else { bytes[..first].to_vec() });
    }
    // What leaves the neurons of an expert is a part of each row.
    let part = ty.row_bytes(WIDTH);
    let which = if shared { experts..experts + 1 } else { 0..experts };
    let rows = |expert: usize| bytes.chunks(ty.row_bytes(n)).flat_map(move |row| &row[expert * part..][..part]);
    Some(which.flat_map(rows).copied().collect())
}
