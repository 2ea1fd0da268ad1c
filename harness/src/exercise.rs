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

/// What a run without them leaves out.
pub const DECODE_STEPS: &str = "decode steps";

/// What these steps leave out that the model has room for, a few words each.
pub fn unexercised(graph: &Graph, capture: &Capture) -> Vec<String> {
    let steps = &capture.steps;
    let (decode, given): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|s| s.index > 0 && s.tokens.len() == 1);
    let parts = given.iter().filter(|s| s.index == 0).count();
    // Behind a token that was decoded.
    let turns = steps.iter().skip_while(|s| s.index == 0 || s.tokens.len() > 1).any(|s| s.tokens.len() > 1);
    let tokens: Vec<u32> = steps.iter().flat_map(|s| s.tokens.iter().copied()).collect();
    let vocabulary = graph.config.n_vocab as u32;
    let whole = given.iter().all(|s| s.tokens.len().is_multiple_of(TILE));
    let several = BTreeSet::from_iter(&tokens).len() < tokens.len();
    let mut left = Vec::new();
    let mut note = |done: bool, what: &str| {
        if !done {
            left.push(what.to_owned());
        }
    };
    note(tokens.len() > 1, "attention to an earlier token");
    note(parts > 1, "a prompt in several parts");
    note(!whole, "a part of a prompt whose token count is not divisible by 8");
    note(!decode.is_empty(), DECODE_STEPS);
    note(turns, "several tokens after a decode step");
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
    use crate::capture::{Capture, Passes, Step, Store, steps};
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
        let all = "attention to an earlier token; a prompt in several parts; decode steps; several tokens after a decode step; \
                   a token that comes again";
        assert_eq!(left(small, &[&[1]], &[]), all);
        assert_eq!(left(small, &[&[1, 2, 3], &[4]], &[1]), TURN);
        let eight: Vec<u32> = (0..8).collect();
        let told = left(small, &[&eight, &eight], &[1]);
        assert_eq!(told, format!("a part of a prompt whose token count is not divisible by 8; {TURN}"));
        let far = format!("{TURN}; positions from 256 on; positions from 4,096 on; ids from 131,072 on");
        assert_eq!(left(large, &[&[1, 2, 3], &[4]], &[1]), far);
        let long: Vec<u32> = (0..256).collect();
        assert_eq!(left(large, &[&long, &[131_072]], &[1]), format!("{TURN}; positions from 4,096 on"));
        assert!(left(large, &[&long], &[]).contains("positions from 256 on"));
        let longer: Vec<u32> = (0..4096).collect();
        assert_eq!(left(large, &[&longer, &[131_071]], &[1]), format!("{TURN}; ids from 131,072 on"));
    }

    /// A second turn counts as no part of the prompt.
    #[test]
    fn a_second_turn_is_told_apart_from_parts() {
        let graph: Graph = skeleton(qwen2::graph, 1);
        let mut capture = Capture::new(Store::usual(None));
        capture.steps = steps(&[1, 2, 3, 4, 5, 6, 7], Passes::Lengths(&[3, 1, 3]), &[1]);
        let told = unexercised(&graph, &capture).join("; ");
        assert!(told.contains("a prompt in several parts") && !told.contains(TURN), "{told}");
        capture.steps = steps(&[1, 2, 3, 4, 5, 6], Passes::Lengths(&[3, 3]), &[1]);
        let told = unexercised(&graph, &capture).join("; ");
        assert!(!told.contains("a prompt in several parts") && told.contains(TURN), "{told}");
    }

    const TURN: &str = "several tokens after a decode step";
}
