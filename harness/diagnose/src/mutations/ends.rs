//! Faults after the last stage: a text ends at other tokens than the file says.

use super::Mutation;

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "eos-alone",
        story: "the engine ends a text at the metadata's eos alone and passes over the other end tokens",
        seen: "`qdiff generate`: the text goes on after <|endoftext|> or another end, often with turns of its own",
        remedy: "end at every token that ends a generation: the metadata's eos, eot and eom, and the ends known by their text",
        ends: Some(|tokenizer| tokenizer.eos().into_iter().collect()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "bos-for-eos",
        story: "the token that begins a text is taken for the one that ends it",
        seen: "`qdiff generate`: the text goes on after <|im_end|>; where the metadata's bos is no end, it stops there",
        remedy: "read tokenizer.ggml.eos_token_id, not tokenizer.ggml.bos_token_id",
        ends: Some(|tokenizer| tokenizer.bos().into_iter().collect()),
        ..Mutation::PLAIN
    },
];
