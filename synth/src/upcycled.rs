//! Qwen2 made into Qwen2-MoE, so that experts have real weights: the neurons of each layer are dealt out among experts, and the
//! weights stay as they are stored. Only routers are drawn.

use crate::quantize::quantize;
use crate::{Setting, Synth};
use qdiff_engine::model::{Graph, Model, Node, Role, qwen2, qwen2moe};
use qdiff_engine::quant::{Stored, WeightSource as _};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::ops::Range;
use std::path::Path;

/// Neurons of an expert: whole blocks of every format.
const WIDTH: usize = 256;

/// Experts that a token takes.
const TAKEN: usize = 6;

/// Where the weights of a tensor are from.
struct Origin<'a> {
    /// The tensor of the dense model.
    whole: Stored<'a>,
    /// The experts that it is of, if it is of some.
    experts: Option<Range<usize>>,
    /// Whether the neurons of an expert are a part of each row, and not rows.
    across: bool,
}

/// Writes the first `layers` layers of a Qwen2 model with experts of 256 neurons; the last 256 neurons of a layer are the shared
/// expert.
///
/// # Errors
/// A model of another architecture or with too few neurons, or whose rows are not whole blocks; a file that cannot be written.
pub fn upcycle(model: &Model, layers: usize, out: &Path) -> io::Result<()> {
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let (dense, c) = (model.graph(), &model.graph().config);
    let up = dense.first(Role::Up).filter(|_| c.arch == qwen2::ARCH);
    let n_ff = up.map_or(0, |node| model.extent(&node.weights[0].name).1);
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
    let graph = synth.graph();
    let tensors: BTreeMap<&str, Origin<'_>> = (graph.nodes.iter())
        .flat_map(|node| node.weights.iter().map(move |weight| (node, weight.name.as_str())))
        .filter_map(|(node, name)| Some((name, from(model, dense, (node, name), experts)?)))
        .collect();
    synth.overrides = tensors.iter().map(|(name, from)| ((*name).to_owned(), from.whole.ty)).collect();
    synth.validate().map_err(bad)?;
    let mut metadata = synth.described();
    metadata.vocabulary(model.gguf(), c.n_vocab)?;
    let listed = synth.tensors();
    let mut file = BufWriter::with_capacity(1 << 20, File::create(out)?);
    file.write_all(&metadata.header(listed.iter().map(|t| (t, t.bytes()))))?;
    for tensor in &listed {
        let bytes = match tensors.get(tensor.name.as_str()) {
            Some(from) => from.bytes(),
            None => quantize(tensor, &synth.draw(tensor)),
        };
        file.write_all(&bytes)?;
        file.write_all(&vec![0; metadata.padded(bytes.len()) - bytes.len()])?;
    }
    file.flush()
}

/// Where the weights of a tensor that `node` reads are from; `None` of a router.
fn from<'a>(model: &'a Model, dense: &Graph, (node, name): (&Node, &str), experts: usize) -> Option<Origin<'a>> {
    let network = matches!(node.role, Role::Gate | Role::Up | Role::FfnOutput);
    let alike = |n: &&Node| (n.id.layer, n.role) == (node.id.layer, node.role) && n.op.anatomy().multiplies_weights();
    let whole = match node.role {
        Role::Router => return None,
        Role::Logits => &dense.first(Role::Logits)?.weights[0].name,
        _ if network => &dense.nodes.iter().find(alike)?.weights[0].name,
        _ => name,
    };
    let picked = !node.op.anatomy().is_layer();
    Some(Origin {
        whole: model.stored(whole),
        experts: network.then_some(if picked { 0..experts } else { experts..experts + 1 }),
        across: node.role == Role::FfnOutput,
    })
}

impl Origin<'_> {
    fn bytes(&self) -> Vec<u8> {
        let Stored { ty, extent: (n, _), bytes } = self.whole;
        let Some(experts) = self.experts.clone() else { return bytes.to_vec() };
        if !self.across {
            let of = ty.row_bytes(n) * WIDTH;
            return bytes[experts.start * of..experts.end * of].to_vec();
        }
        let part = ty.row_bytes(WIDTH);
        let rows = |expert: usize| bytes.chunks(ty.row_bytes(n)).flat_map(move |row| &row[expert * part..][..part]);
        experts.flat_map(rows).copied().collect()
    }
}
