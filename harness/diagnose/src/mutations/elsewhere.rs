//! Cases of the field that no rewriting of a stage makes: what they are, and which command finds them.

use super::Mutation;

const fn case(name: &'static str, story: &'static str, seen: &'static str, remedy: &'static str) -> Mutation {
    Mutation { name, story, seen, remedy, ..Mutation::PLAIN }
}

pub(super) const MUTATIONS: &[Mutation] = &[
    case(
        "vocab-padding",
        "ids beyond the tokenizer's last are scanned by the argmax",
        "`qdiff logits`: padded ids have logits of their own; if llama.cpp scans them too, padding is not the bug, and the fault is inert",
        "compare the vocabulary of the metadata with the rows of the output projection before cutting the scan short",
    ),
    case(
        "ffn-allocates",
        "memory is allocated in every forward pass",
        "`nsys profile --stats=true`: the calls of cudaMalloc grow with the tokens; `qdiff-lab bench --measure soak` holds the project's own CUDA path to flat device memory",
        "allocate once, at load",
    ),
];
