//! The decoder of Qwen3-Next and Qwen3.5: layers of gated attention, and between them layers of a gated delta net.

use super::blocks::{self, DENSE, HEAD, Projections, Sections, linear, mlp};
use super::builder::Builder;
use super::config::{EMBEDDING, absent, invalid};
use super::experts::{Experts, Mixture};
use super::graph::{Axis, EmittedLayout, Graph, Role};
use super::{Config, ConfigError, Metadata};
use crate::ops::anatomy::Columns;
use crate::ops::{
    Convolution, Defined, DeltaNet, DeltaState, Factors, L2Norm, Op, Plain, RmsNorm, Sigmoid, SigmoidGate, Silu,
    Softplus, VectorFactor, Window,
};

/// In what the architectures differ.
pub(super) struct Traits {
    /// Experts, or a dense network.
    pub(super) experts: Option<Mixture>,
    /// Qwen3-Next: β and decay come from one product, head of keys by head of keys, and each key head is repeated for the
    /// value heads beside each other. Else value head h reads key head `h mod H_k`.
    pub(super) next: bool,
    /// The output of the delta net is gated by the sigmoid of z, and not by its SiLU.
    pub(super) sigmoid_gate: bool,
    /// How llama.cpp announces the embedding, and the window of the convolution; empty if not at all.
    pub(super) embedding: &'static str,
    pub(super) window: &'static str,
}

impl Traits {
    /// Of Qwen3.5 without experts.
    pub(super) const QWEN35: Self = Self {
        experts: None,
        next: false,
        sigmoid_gate: false,
        embedding: "model.input_embed",
        window: "conv_state_last",
    };
}

/// Sizes of the delta net.
#[derive(Clone, Copy)]
pub(super) struct Delta {
    taps: usize,
    dim: usize,
    key_heads: usize,
    heads: usize,
}

impl Delta {
    pub(super) fn read(arch: &str, source: &dyn Metadata) -> Result<Self, ConfigError> {
        let integer = |suffix: &str| Config::integer(arch, suffix, source);
        let (taps, dim) = (integer("ssm.conv_kernel")?, integer("ssm.state_size")?);
        let (key_heads, heads) = (integer("ssm.group_count")?, integer("ssm.time_step_rank")?);
        let key = |suffix: &str| format!("{arch}.{suffix}");
        if taps < 2 {
            return Err(invalid(&key("ssm.conv_kernel"), taps, "expected 2 or more"));
        }
        if heads % key_heads != 0 {
            let why = format!("the {heads} value heads of `ssm.time_step_rank` are no multiple of it");
            return Err(invalid(&key("ssm.group_count"), key_heads, &why));
        }
        let inner = integer("ssm.inner_size")?;
        if inner != heads * dim {
            let why = format!("expected {heads} heads of `ssm.state_size`, {dim}");
            return Err(invalid(&key("ssm.inner_size"), inner, &why));
        }
        Ok(Self { taps, dim, key_heads, heads })
    }

    /// Width of all keys, of all values, and of what is convolved.
    fn widths(&self) -> [usize; 3] {
        let (keys, values) = (self.key_heads * self.dim, self.heads * self.dim);
        [keys, values, 2 * keys + values]
    }
}

/// Which layers are delta nets.
pub(super) fn recurrent(arch: &str, source: &dyn Metadata, c: &Config) -> Result<Vec<bool>, ConfigError> {
    let layers = c.n_layers;
    const LIST: &str = "attention.recurrent_layers";
    const INTERVAL: &str = "full_attention_interval";
    let key = format!("{arch}.{LIST}");
    if let Some(all) = source.integers(&key) {
        let blocks = layers + c.n_mtp;
        if all.len() != blocks {
            let why = format!("expected an entry for each of {blocks} blocks");
            return Err(invalid(&key, format_args!("{all:?}"), &why));
        }
        // llama.cpp does not read it beside the list.
        source.integer(&format!("{arch}.{INTERVAL}"));
        return Ok(all.into_iter().take(layers).map(|is| is != 0).collect());
    }
    if source.type_name(&key).is_some() {
        return Err(absent(source, &key, "a list of u32, i32 or bool"));
    }
    let interval = match Config::integer(arch, INTERVAL, source) {
        Err(ConfigError::Missing(_)) => 4,
        read => read?,
    };
    Ok((1..=layers).map(|layer| layer % interval != 0).collect())
}

pub(super) fn graph(arch: &str, source: &dyn Metadata, traits: &Traits) -> Result<Graph, ConfigError> {
    let mut c = Config::read(arch, source)?.without_mtp(source)?;
    blocks::last_layer(arch, source, c.n_layers)?;
    let (e, v) = (c.n_embd, c.n_vocab);
    let delta = Delta::read(arch, source)?;
    let kinds = recurrent(arch, source, &c)?;
    let of_positions = match traits.next {
        true => None,
        false => blocks::sections(arch, source, c.rotated, Sections::Interleaved)?,
    };
    let experts = traits.experts.map(|mixture| Experts::read(arch, source, mixture)).transpose()?;
    let departs = experts.as_ref().and_then(|experts| experts.llama_departs.clone()).or(of_positions);
    c.llama_departs = departs.or(c.llama_departs.take());
    let f = if experts.is_none() { Config::integer(arch, "feed_forward_length", source)? } else { 0 };
    let shape = c.clone();
    let mut b = Builder::reading(c, source);
    let embed = b.stage("embed", Role::Embedding, Op::Embed, &[], &[e]).weight(EMBEDDING, &[e, v]);
    let mut residual = embed.add(traits.embedding, "GET_ROWS");
    for (layer, is_delta) in kinds.into_iter().enumerate() {
        b.enter(Some(layer as u16));
        let normed =
            blocks::norm(&mut b, ("attn_norm", Role::AttnInput), residual, "attn_norm.weight", "attn_norm", &shape);
        let mixed = match is_delta {
            true => delta_net(&mut b, &delta, traits, normed, &shape),
            false => attention(&mut b, traits, normed, None, &shape),
        };
        let attn_residual = b.stage("attn_residual", Role::AttnOutput, Op::Residual, &[mixed, residual], &[e]);
        let attn_residual = attn_residual.add("attn_residual", "ADD");
        let tensor = "post_attention_norm.weight";
        let ffn = ("ffn_norm", Role::FfnInput);
        let ffn_norm = blocks::norm(&mut b, ffn, attn_residual, tensor, "attn_post_norm", &shape);
        let ffn_out = match &experts {
            Some(experts) => experts.declare(&mut b, ffn_norm, e),
            None => mlp(&mut b, &DENSE, ffn_norm, [e, f]),
        };
        let out = b.stage("layer_out", Role::FfnOutput, Op::Residual, &[ffn_out, attn_residual], &[e]);
        residual = out.add("l_out", "ADD");
    }
    b.enter(None);
    let last = ("final_norm", Role::HeadInput);
    let last = blocks::norm(&mut b, last, residual, "output_norm.weight", "h_nextn", &shape);
    let head = if source.extent(HEAD).is_some() { HEAD } else { EMBEDDING };
    linear(&mut b, ("logits", Role::Logits), last, head, [e, v], "result_output");
    Ok(b.finish())
}

/// Attention whose result is gated, head by head, by what one product gives beside the queries; to all keys, or to chosen ones.
pub(super) fn attention(b: &mut Builder, traits: &Traits, x: usize, chosen: Option<usize>, c: &Config) -> usize {
    let (e, h, g, d) = (c.n_embd, c.n_heads, c.n_kv_heads, c.head_dim);
    // llama.cpp takes only three matrices of a layer with a choice of keys.
    let projections = Projections::of(b, [2 * h * d, g * d, g * d], chosen.is_none());
    let project = |b: &mut Builder, stage, part: usize, emitted: &str| {
        let made = linear(b, stage, x, &projections.tensor(part, false), [e, projections.rows[part]], emitted);
        if projections.fused[0] {
            b.announced("CONT");
        }
        made
    };
    let both = project(b, ("q_gate_proj", Role::Query), 0, "Qcur_full");
    let k = project(b, ("k_proj", Role::Key), 1, "Kcur");
    let v = project(b, ("v_proj", Role::Value), 2, "Vcur");
    let half =
        |first: usize, about| Defined::op(Plain::columns(Columns { first, run: d, stride: 2 * d, runs: h }, about));
    let emitted = if traits.next { "Qcur_view" } else { "Qcur_reshaped" };
    let q = half(0, "the queries' part of the product of queries and gate");
    let q = b.stage("q_half", Role::Query, q, &[both], &[h * d]).add(emitted, "VIEW");
    let (emitted, op) = if traits.next { ("gate", "VIEW") } else { ("gate_reshaped", "CONT") };
    let gate = half(d, "the gate's part of the product of queries and gate");
    let gate = b.stage("gate_half", Role::Query, gate, &[both], &[h * d]).add(emitted, op);
    let normed = |b: &mut Builder, (name, role), x, tensor: &str, heads: usize, emitted: &str| {
        let norm = Op::RmsNorm(RmsNorm { eps: c.rms_eps, groups: heads });
        b.stage(name, role, norm, &[x], &[heads * d]).weight(tensor, &[d]).add(emitted, "MUL")
    };
    let q = normed(b, ("q_normed", Role::Query), q, "attn_q_norm.weight", h, "Qcur_normed");
    let k = normed(b, ("k_normed", Role::Key), k, "attn_k_norm.weight", g, "Kcur_normed");
    let context = blocks::attend(b, [q, k, v], chosen, c, "attn_pregate");
    let sigmoid = Defined::op(Sigmoid("the sigmoid of the gate"));
    let gate = b.stage("gate_sigmoid", Role::Query, sigmoid, &[gate], &[h * d]).add("gate_sigmoid", "UNARY");
    let gated = Defined::op(Factors("weights times values, times the gate"));
    let gated = b.stage("attn_gated", Role::Query, gated, &[context, gate], &[h * d]).add("attn_gated", "MUL");
    linear(b, ("attn_out", Role::AttnOutput), gated, "attn_output.weight", [h * d, e], "attn_output")
}

/// A gated delta net.
pub(super) fn delta_net(b: &mut Builder, net: &Delta, traits: &Traits, x: usize, c: &Config) -> usize {
    let (e, Delta { taps, dim, key_heads, heads }, [keys, values, all]) = (c.n_embd, *net, net.widths());
    let role = Role::Mixer;
    let qkv = linear(b, ("delta_qkv", role), x, "attn_qkv.weight", [e, all], "");
    let z = linear(b, ("delta_z", role), x, "attn_gate.weight", [e, values], "z");
    let sigmoid = Defined::op(Sigmoid("β: how much of a value is written, the sigmoid of its product"));
    let (beta, alpha) = if traits.next {
        let both = linear(b, ("delta_ba", role), x, "ssm_ba.weight", [e, 2 * heads], "linear_attn_mixed_ba");
        let each = heads / key_heads;
        let part = |first: usize, about| {
            Defined::op(Plain::columns(Columns { first, run: each, stride: 2 * each, runs: key_heads }, about))
        };
        let beta = b.stage("delta_b", role, part(0, "the product of β, head by head"), &[both], &[heads]);
        let beta = beta.add("b", "VIEW");
        let alpha = b.stage("delta_a", role, part(each, "the product of the decay, head by head"), &[both], &[heads]);
        let alpha = alpha.add("a", "VIEW");
        // llama.cpp gives the result no name.
        (b.stage("delta_beta", role, sigmoid, &[beta], &[heads]).made_of("b").add("", "UNARY"), alpha)
    } else {
        let beta = linear(b, ("delta_b", role), x, "ssm_beta.weight", [e, heads], "");
        let beta = b.stage("delta_beta", role, sigmoid, &[beta], &[heads]).add("beta_sigmoid", "UNARY");
        (beta, linear(b, ("delta_a", role), x, "ssm_alpha.weight", [e, heads], ""))
    };
    let soft = b.stage("delta_softplus", role, Defined::op(Softplus), &[alpha], &[heads]);
    let soft = soft.weight("ssm_dt.bias", &[heads]).add("a_softplus", "UNARY");
    let decay = Defined::op(VectorFactor("the logarithm of the decay of each head's state: softplus times −A"));
    let decay = b.stage("delta_decay", role, decay, &[soft], &[heads]).weight("ssm_a", &[heads]).add("gate", "MUL");

    let window = Defined::op(Window { rows: taps - 1 });
    let kept = [Axis::Last, Axis::Fixed(taps - 1), Axis::Fixed(all)];
    let window = b.stage("conv_state", role, window, &[qkv], &[]).laid_out(&kept, EmittedLayout::Columns);
    let window = window.add(traits.window, if traits.window.is_empty() { "" } else { "VIEW" });
    let conv = Defined::op(Convolution { taps, apart: 1 });
    let conv = b.stage("conv_out", role, conv, &[qkv, window], &[all]);
    let conv = conv.weight("ssm_conv1d.weight", &[taps, all]).add("conv_output_raw", "SSM_CONV");
    let act = b.stage("conv_act", role, Defined::op(Silu), &[conv], &[all]).add("conv_output_silu", "UNARY");
    let part = |b: &mut Builder, name, (first, width): (usize, usize), about, emitted: &str| {
        let columns = Defined::op(Plain::columns(Columns::range(first, width), about));
        b.stage(name, role, columns, &[act], &[width]).add(emitted, "VIEW")
    };
    let q = part(b, "delta_q", (0, keys), "the queries' part of the convolved product", "q_conv");
    let k = part(b, "delta_k", (keys, keys), "the keys' part of the convolved product", "k_conv");
    let v = part(b, "delta_v", (2 * keys, values), "the values' part of the convolved product", "v_conv_predelta");
    let repeats = if traits.next { heads / key_heads } else { 1 };
    let norm = |b: &mut Builder, name, x, emitted: &str| {
        let op = Defined::op(L2Norm { eps: c.rms_eps, heads: key_heads, repeats });
        let as_op = if repeats > 1 { "RESHAPE" } else { "SCALE" };
        b.stage(name, role, op, &[x], &[keys * repeats]).add(emitted, as_op)
    };
    let q = norm(b, "delta_q_normed", q, "q_conv_predelta");
    let k = norm(b, "delta_k_normed", k, "k_conv_predelta");

    let net = DeltaNet { heads, key_heads: key_heads * repeats, dim };
    let operands = [q, k, v, decay, beta];
    let kept = [Axis::Last, Axis::Fixed(heads), Axis::Fixed(dim * dim)];
    let state = b.stage("delta_state", role, Defined::op(DeltaState(net)), &operands, &[]);
    let state = state.laid_out(&kept, EmittedLayout::Rows).add("new_state", "VIEW");
    let [q, k, v, decay, beta] = operands;
    let out = b.stage("delta_out", role, Defined::op(net), &[q, k, v, decay, beta, state], &[values]);
    let out = out.add("attn_output", "VIEW");
    let norm = Op::RmsNorm(RmsNorm { eps: c.rms_eps, groups: heads });
    let normed =
        b.stage("delta_normed", role, norm, &[out], &[values]).weight("ssm_norm.weight", &[dim]).add("", "MUL");
    let gate = match traits.sigmoid_gate {
        true => Defined::op(SigmoidGate("the sigmoid of the gate z, times the normed output")),
        false => Op::SwiGlu,
    };
    let gated = b.stage("delta_gated", role, gate, &[z, normed], &[values]).add("final_output", "RESHAPE");
    linear(b, ("delta_proj", Role::AttnOutput), gated, "ssm_out.weight", [values, e], "linear_attn_out")
}
