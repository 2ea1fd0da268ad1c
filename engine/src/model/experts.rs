//! A mixture of experts, as llama.cpp's `build_moe_ffn` has it for every Qwen: softmax over all experts, the k most probable
//! of them, each a gated network of its own, and their sum by their weights.

use super::blocks::{Mlp, linear, mlp};
use super::builder::Builder;
use super::config::{absent, invalid, unread_by_llama, unsupported};
use super::graph::Role;
use super::{Config, ConfigError, Metadata};
use crate::ops::anatomy::Columns;
use crate::ops::{Defined, ExpertFactor, Op, Plain, RowShares, RowSoftmax, Sigmoid};

/// In what the mixtures of architectures differ.
#[derive(Clone, Copy)]
pub(super) struct Mixture {
    /// The weights of a token's experts are divided by their sum.
    pub(super) normalised: bool,
    /// Gate and up of all experts may be in one tensor.
    pub(super) may_be_fused: bool,
    /// One more expert that every token takes, by a gate of its own: how llama.cpp announces the gate's score, its sigmoid, of
    /// that operation, and the weighted result.
    pub(super) shared: Option<Shared>,
}

/// The names of what a shared expert has besides its network, and the operation of its sigmoid.
pub(super) type Shared = ([&'static str; 3], &'static str);

/// Of Qwen2-MoE, whose sigmoid llama.cpp writes as `silu(x)/x`.
pub(super) const SHARED_OF_QWEN2: Shared = (["ffn_shexp_gate_inp", "ffn_shexp_gate", "ffn_shexp_out"], "DIV");

/// The later architectures.
pub(super) const SHARED_OF_HYBRIDS: Shared =
    (["shared_expert_gate", "shared_expert_gate_sigmoid", "ffn_shexp_gated"], "UNARY");

/// Tensor of a layer in which gate and up of all experts may stand together, in the place of [`GATE`] and [`UP`].
pub(crate) const FUSED: &str = "ffn_gate_up_exps.weight";
const GATE: &str = "ffn_gate_exps.weight";
const UP: &str = "ffn_up_exps.weight";

/// A mixture of a size.
pub(super) struct Experts {
    mixture: Mixture,
    /// How many there are, and how many a token takes.
    count: usize,
    taken: usize,
    /// Width of each of them, and of the shared one.
    width: usize,
    shared_width: usize,
    /// Whether gate and up are in one tensor.
    fused: bool,
    /// See [`Config::llama_departs`].
    pub(super) llama_departs: Option<String>,
}

const SHARED: Mlp = Mlp {
    stages: ["shared_gate", "shared_up", "shared_act", "shared_down"],
    tensors: ["ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"],
    emitted: "ffn_shexp",
};

impl Experts {
    /// Reads the sizes of the experts of `arch` from `source`.
    ///
    /// # Errors
    /// A missing key, or a value that no such model can have.
    pub(super) fn read(arch: &str, source: &dyn Metadata, mixture: Mixture) -> Result<Self, ConfigError> {
        const USED: &str = "expert_used_count";
        let integer = |suffix: &str| Config::integer(arch, suffix, source);
        let (count, taken) = (integer("expert_count")?, integer(USED)?);
        if taken > count {
            return Err(invalid(&format!("{arch}.{USED}"), taken, &format!("there are {count} experts")));
        }
        // llama.cpp never reads this key: where the model is otherwise than llama.cpp computes, the reference is wrong.
        let key = format!("{arch}.expert_weights_norm");
        let normalised = match (source.boolean(&key), source.type_name(&key)) {
            (Some(is), _) => is,
            (None, Some(_)) => return Err(absent(source, &key, "bool")),
            (None, None) => mixture.normalised,
        };
        if normalised && !mixture.normalised {
            let what = "that the weights of experts are divided by their sum, which llama.cpp does not do here, is";
            return Err(unsupported(&key, normalised, what));
        }
        // What llama.cpp takes where there is no such key, or it is 0.
        let width = |suffix: &str, share: usize| {
            let key = format!("{arch}.{suffix}");
            match (source.integer(&key), source.type_name(&key)) {
                (Some(1..), _) => integer(suffix),
                (None, Some(_)) => Err(absent(source, &key, "u32")),
                (Some(0), _) | (None, None) => Ok(integer("feed_forward_length")? / share),
            }
        };
        Ok(Self {
            llama_departs: (normalised != mixture.normalised).then(|| unread_by_llama(&key)),
            mixture: Mixture { normalised, ..mixture },
            count,
            taken,
            width: width("expert_feed_forward_length", taken)?,
            shared_width: if mixture.shared.is_some() { width("expert_shared_feed_forward_length", 1)? } else { 0 },
            fused: mixture.may_be_fused && source.extent(&format!("blk.0.{FUSED}")).is_some(),
        })
    }

    /// Declares the stages from the normed residual stream `x` of width `e` on; gives the last.
    pub(super) fn declare(&self, b: &mut Builder, x: usize, e: usize) -> usize {
        let Self { mixture, count, taken, width: f, shared_width, fused, .. } = *self;
        let scores = linear(b, ("router", Role::Router), x, "ffn_gate_inp.weight", [e, count], "ffn_moe_logits");
        let of = |b: &mut Builder, name, op: Op, inputs: &[usize], width: usize, emitted: &str, as_op| {
            b.stage(name, Role::Router, op, inputs, &[width]).add(emitted, as_op)
        };
        let all = of(b, "router_probs", Defined::op(RowSoftmax), &[scores], count, "ffn_moe_probs", "SOFT_MAX");
        let chosen = of(b, "router_experts", Defined::op(Plain::top_k(taken)), &[all], taken, "ffn_moe_topk", "VIEW");
        let gathered = Defined::op(Plain::gathered());
        let mut weights = of(b, "router_weights", gathered, &[all, chosen], taken, "ffn_moe_weights", "GET_ROWS");
        if mixture.normalised {
            let shares = Defined::op(RowShares);
            weights = of(b, "router_shares", shares, &[weights], taken, "ffn_moe_weights_norm", "DIV");
        }

        let product = |b: &mut Builder, (name, role), x, tensor: &str, [n, m]: [usize; 2], emitted: &str, about| {
            let op = Defined::op(Plain::expert_linear(count, about));
            let stage = b.stage(name, role, op, &[x, chosen], &[taken, m]).weight(tensor, &[n, m, count]);
            let product = stage.add(emitted, "MUL_MAT_ID");
            let Some((scale, name, op)) = b.scale(tensor) else { return product };
            let times = Defined::op(ExpertFactor);
            let scaled = b.stage(name, role, times, &[product, chosen], &[taken, m]).weight(&scale, &[count]);
            scaled.add(&format!("{emitted}_scaled"), op)
        };
        let (of_gate, of_up) =
            ("the gate's product of each chosen expert, before SiLU", "the up projection of each chosen expert");
        let (gate, up) = if fused {
            let about = "gate and up of each chosen expert, which are in one tensor";
            let both = ("expert_gate_up", Role::Gate);
            let both = product(b, both, x, FUSED, [e, 2 * f], "ffn_moe_gate_up", about);
            let half = |b: &mut Builder, (name, role), first, emitted: &str, about| {
                let half = Defined::op(Plain::columns(Columns::range(first, f), about));
                b.stage(name, role, half, &[both], &[taken, f]).add(emitted, "VIEW")
            };
            let gate = half(b, ("expert_gate", Role::Gate), 0, "ffn_moe_gate", of_gate);
            (gate, half(b, ("expert_up", Role::Up), f, "ffn_moe_up", of_up))
        } else {
            let gate = product(b, ("expert_gate", Role::Gate), x, GATE, [e, f], "ffn_moe_gate", of_gate);
            (gate, product(b, ("expert_up", Role::Up), x, UP, [e, f], "ffn_moe_up", of_up))
        };
        let act = b.stage("expert_act", Role::FfnHidden, Op::SwiGlu, &[gate, up], &[taken, f]);
        let act = act.add("ffn_moe_swiglu", "GLU");
        let about = "the down projection of each chosen expert";
        let down = ("expert_down", Role::FfnOutput);
        let down = product(b, down, act, "ffn_down_exps.weight", [f, e], "ffn_moe_down", about);
        let sum =
            Defined::op(Plain::weighted_sum(taken, "the sum of the chosen experts' results, each times its weight"));
        // llama.cpp copies the result of an only expert.
        let sum = b.stage("experts_out", Role::FfnOutput, sum, &[weights, down], &[e]);
        let sum = sum.add("ffn_moe_out", if taken == 1 { "CONT" } else { "ADD" });
        match mixture.shared {
            Some(names) => shared(b, names, x, sum, [e, shared_width]),
            None => sum,
        }
    }
}

/// The shared expert, weighted by its gate, and the sum of both.
fn shared(b: &mut Builder, (names, sigmoid): Shared, x: usize, sum: usize, [e, f]: [usize; 2]) -> usize {
    let score = b.stage("shared_score", Role::Router, Op::Linear, &[x], &[1]);
    let score = score.weight("ffn_gate_inp_shexp.weight", &[e]).add(names[0], "MUL_MAT");
    let weight = Defined::op(Sigmoid("the weight of the shared expert: the sigmoid of its score"));
    let weight = b.stage("shared_weight", Role::Router, weight, &[score], &[1]).add(names[1], sigmoid);
    let own = mlp(b, &SHARED, x, [e, f]);
    let weighted = Defined::op(Plain::weighted_sum(1, "the shared expert's result times its weight"));
    let weighted = b.stage("shared_out", Role::FfnOutput, weighted, &[weight, own], &[e]).add(names[2], "MUL");
    b.stage("ffn_out", Role::FfnOutput, Op::Residual, &[sum, weighted], &[e]).add("ffn_out", "ADD")
}
