//! Faults of the samplers: no stage is wrong, and another token is drawn.

use super::Mutation;
use qdiff_engine::sampler::Step;

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "sampler-bound",
        story: "the scan over the vocabulary stops early: half of the ids are never chosen",
        seen: "`qdiff generate`: every token has a low id; from the same logits llama.cpp draws others",
        remedy: "scan all ids that the GGUF's vocabulary lists",
        chain: Some(|chain| chain.tokens = chain.tokens.div_ceil(2)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "sampler-order",
        story: "temperature is applied before top-k, top-p and min-p, not after them",
        seen: "`qdiff generate --temp`: drawn tokens differ from llama.cpp's on the same logits, greedy ones do not",
        remedy: "apply the samplers in the order of the chain that is compared against",
        chain: Some(|chain| {
            chain.steps.sort_by_key(|step| match step {
                Step::Penalties { .. } => 0,
                Step::Temperature(_) => 1,
                _ => 2,
            })
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "sampler-seed",
        story: "the random draw differs: another generator, seed, or number of draws per token",
        seen: "`qdiff generate --temp`: drawn tokens differ from llama.cpp's on the same logits, greedy ones do not",
        remedy: "one draw per token, from the same generator and seed",
        chain: Some(|chain| {
            for step in &mut chain.steps {
                if let Step::Draw(seed) = step {
                    *seed = seed.wrapping_add(1);
                }
            }
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "sampler-ties",
        story: "of several equal logits, another id than the lowest is chosen",
        seen: "`qdiff generate`: another token is drawn from the reference's logits, with a margin of zero; inert where no two logits are equal",
        remedy: "take the lowest id among equals: scan with `>`, not `>=`",
        chain: Some(|chain| chain.last_of_equals = true),
        ..Mutation::PLAIN
    },
];
