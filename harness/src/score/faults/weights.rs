//! Weights left out, or taken for each other.

use super::{Fault, Spot};

fn input_alone(s: &mut Spot<'_>) {
    s.out.clone_from(&s.inputs[0].data);
}

fn by(s: &mut Spot<'_>, weight: &str) {
    let w = s.values(weight);
    let (n, _) = s.extent(weight);
    s.multiply(|o| w[o * n..(o + 1) * n].to_vec());
}

fn gate_for_up(s: &mut Spot<'_>) {
    let other = match s.id.name {
        "ffn_gate" => s.weight.replace("ffn_gate", "ffn_up"),
        _ => s.weight.replace("ffn_up", "ffn_gate"),
    };
    by(s, &other);
}

fn k_for_v(s: &mut Spot<'_>) {
    let other = match s.id.name {
        "k_proj" => s.weight.replace("attn_k", "attn_v"),
        _ => s.weight.replace("attn_v", "attn_k"),
    };
    by(s, &other);
}

fn tied(s: &mut Spot<'_>) {
    by(s, "token_embd.weight");
}

/// The layer after; of the last, the first.
fn next_layer(s: &mut Spot<'_>) {
    let own = s.id.layer.unwrap_or(0);
    let other = (usize::from(own) + 1) % s.config.n_layers;
    let name = s.weight.replace(&format!("blk.{own}."), &format!("blk.{other}."));
    by(s, &name);
}

fn nothing_loaded(s: &mut Spot<'_>) {
    let n = s.inputs[0].data.len() / s.positions.len();
    s.multiply(|_| vec![0.0; n]);
}

pub(super) const FAULTS: &[Fault] = &[
    Fault { cause: "qkv-bias-omitted", stages: &["q_biased", "k_biased", "v_biased"], spoil: input_alone },
    Fault { cause: "qk-norm-omitted", stages: &["q_normed", "k_normed"], spoil: input_alone },
    Fault { cause: "gate-up-weights-swapped", stages: &["ffn_gate", "ffn_up"], spoil: gate_for_up },
    Fault { cause: "tensor-taken-for-another", stages: &["k_proj", "v_proj"], spoil: k_for_v },
    Fault { cause: "tied-head-wrong", stages: &["logits"], spoil: tied },
    Fault {
        cause: "tensor-mapped-wrong",
        stages: &["q_proj", "v_proj", "attn_out", "ffn_gate", "ffn_down"],
        spoil: next_layer,
    },
    Fault { cause: "tensor-not-loaded", stages: &["attn_out", "ffn_up"], spoil: nothing_loaded },
];
