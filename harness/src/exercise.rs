//! What a run exercises of an engine, by its tokens alone: a verdict speaks of nothing else.

use crate::capture::{Capture, Step};
use qdiff_engine::model::Graph;
use std::collections::BTreeSet;

/// Positions at which caches are enlarged, kernels change and prompts pass a window.
const POSITIONS: [(usize, &str); 2] = [(256, "positions from 256 on"), (4096, "positions from 4,096 on")];

/// Ids from here on need more than 17 bits.
const IDS: (u32, &str) = (1 << 17, "ids from 131,072 on");

/// Tokens that a tile or a vector most often takes.
const TILE: usize = 8;

/// What these steps leave out that the model has room for, a few words each.
pub fn unexercised(graph: &Graph, capture: &Capture) -> Vec<String> {
    let steps = &capture.steps;
    let (decode, parts): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|s| s.index > 0);
    let tokens: Vec<u32> = steps.iter().flat_map(|s| s.tokens.iter().copied()).collect();
    let vocabulary = graph.config.n_vocab as u32;
    let whole = parts.iter().all(|s| s.tokens.len().is_multiple_of(TILE));
    let several = BTreeSet::from_iter(&tokens).len() < tokens.len();
    let mut left = Vec::new();
    let mut note = |done: bool, what: &str| {
        if !done {
            left.push(what.to_owned());
        }
    };
    note(tokens.len() > 1, "attention to an earlier token");
    note(parts.len() > 1, "a prompt in several parts");
    note(!whole, "a number of tokens that 8 does not divide");
    note(!decode.is_empty(), "decode steps");
    note(several, "a token that comes again");
    for (position, what) in POSITIONS {
        note(tokens.len() > position || graph.config.context <= position, what);
    }
    note(vocabulary <= IDS.0 || tokens.iter().any(|t| *t >= IDS.0), IDS.1);
    left
}

#[cfg(test)]
mod tests {
    use super::unexercised;
    use crate::capture::{Capture, Step, Store};
    use qdiff_engine::model::{Graph, qwen2, skeleton};

    /// What is left of a model of this context and vocabulary by parts of a prompt, and decoded tokens.
    fn left((context, n_vocab): (usize, usize), parts: &[&[u32]], decoded: &[u32]) -> String {
        let mut graph: Graph = skeleton(qwen2::graph, 1);
        (graph.config.context, graph.config.n_vocab) = (context, n_vocab);
        let mut capture = Capture::new(Store::usual(None));
        let decoded = decoded.chunks(1).enumerate().map(|(i, token)| (i + 1, token));
        for (index, tokens) in parts.iter().map(|part| (0, *part)).chain(decoded) {
            let first = capture.steps.iter().map(|s| s.tokens.len()).sum();
            capture.steps.push(Step { index, ..Step::new(first, tokens.to_vec()) });
        }
        unexercised(&graph, &capture).join("; ")
    }

    #[test]
    fn what_is_left_follows_from_tokens_and_graph() {
        let (small, large) = ((64, 1000), (8192, 150_000));
        let all = "attention to an earlier token; a prompt in several parts; decode steps; a token that comes again";
        assert_eq!(left(small, &[&[1]], &[]), all);
        assert_eq!(left(small, &[&[1, 2, 3], &[4]], &[1]), "");
        let eight: Vec<u32> = (0..8).collect();
        let told = left(small, &[&eight, &eight], &[1]);
        assert_eq!(told, "a number of tokens that 8 does not divide");
        let far = "positions from 256 on; positions from 4,096 on; ids from 131,072 on";
        assert_eq!(left(large, &[&[1, 2, 3], &[4]], &[1]), far);
        let long: Vec<u32> = (0..256).collect();
        assert_eq!(left(large, &[&long, &[131_072]], &[1]), "positions from 4,096 on");
        assert!(left(large, &[&long], &[]).contains("positions from 256 on"));
        let longer: Vec<u32> = (0..4096).collect();
        assert_eq!(left(large, &[&longer, &[131_071]], &[1]), "ids from 131,072 on");
    }
}
