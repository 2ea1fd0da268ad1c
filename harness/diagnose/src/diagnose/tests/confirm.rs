//! Causes on other tokens: what one run allows and another does not.

use super::*;
use crate::diagnose::{Finding, Holds, Trial, confirm};
use qdiff_engine::model::Role;

/// The prompt of the first run, after which three tokens are decoded; the other one is longer, and its parts are others.
const PROMPT: usize = 16;
const OTHER: usize = 27;

/// Ids of the first run, and ids of the other one.
fn first() -> Vec<u32> {
    (0..PROMPT as u32 + 3).map(|i| (i * 37 + i / 3 + 11) % 500).collect()
}

fn other() -> Vec<u32> {
    (0..OTHER as u32 + 3).map(|i| (i * 91 + i / 5 + 300) % 500).collect()
}

/// The first finding of an engine with one bug, tried on a run of an engine with another one, of these tokens.
fn tried(oracle: &Oracle<'_>, bug: Bug<'_>, there: Bug<'_>, tokens: &[u32]) -> Finding {
    let declared = Arithmetic::default();
    let capture = captured_of(oracle, bug, (&first(), PROMPT, Passes::Of(PROMPT)));
    let other = captured_of(oracle, there, (tokens, OTHER, Passes::Of(19)));
    let mut found = explained(oracle, &capture, &declared, 1.0);
    let side = |capture| Side { capture, arithmetic: &declared };
    let rules = (&Filter::default(), &Policy::default());
    let others = [side(&other)];
    confirm(oracle, &side(&capture), &others, rules, &mut found, &silent);
    assert_eq!((found.others[0].prompt.len(), found.others[0].decoded.len()), (OTHER, 3));
    found.findings.remove(0)
}

/// A stage that is wrong in rows of which `holds` is true: of their position, their token, and the tokens of their step.
fn in_rows(node: &Node, wrong: Node, holds: fn(usize, u32, usize) -> bool) -> Node {
    let op = node.op.clone();
    node.computing(move |inputs, c| {
        let (mut made, mut bound) = forward_with_bound(&op, inputs, c);
        let other = match &wrong.faults.compute {
            Some(fault) => fault(inputs, c),
            None => forward_with_bound(&wrong.op, inputs, c),
        };
        let width = made.data.len() / c.tokens.len();
        for (row, (token, position)) in c.tokens.iter().zip(c.positions).enumerate() {
            if holds(*position as usize, *token, c.tokens.len()) {
                let range = row * width..(row + 1) * width;
                made.data[range.clone()].copy_from_slice(&other.0.data[range.clone()]);
                bound[range.clone()].copy_from_slice(&other.1[range]);
            }
        }
        (made, bound)
    })
}

/// The output of the attention of a layer, added twice.
fn twice(node: &Node) -> Option<Node> {
    let own = node.op == Op::Residual && node.role == Role::AttnOutput && node.id.layer == Some(1);
    own.then(|| {
        node.computing(|inputs, _| {
            let data = inputs[0].data.iter().zip(&inputs[1].data).map(|(a, b)| a + 2.0 * b).collect();
            (Tensor { shape: inputs[0].shape.clone(), data }, vec![0.0; inputs[0].data.len()])
        })
    })
}

fn twice_in(node: &Node, holds: fn(usize, u32, usize) -> bool) -> Option<Node> {
    Some(in_rows(node, twice(node)?, holds))
}

fn told(found: &Finding) -> String {
    found.told().unwrap_or_default()
}

#[test]
fn what_holds_of_both_runs_is_confirmed() {
    with_oracle(|oracle| {
        let found = tried(oracle, &without_bias, &without_bias, &other());
        assert!(matches!(found.trial, Some(Trial::Confirmed { elements: 1.., tokens: 30, .. })), "{found:?}");
        let found = tried(oracle, &twice, &twice, &other());
        assert!(matches!(found.trial, Some(Trial::Confirmed { elements: 1.., .. })), "{found:?}");
        assert!(told(&found).contains("twice"), "{found:?}");
    });
}

/// A fault from position 16 on was reported as a fault of decode steps, for the prompt had 16 tokens.
#[test]
fn a_position_and_a_decode_step_come_apart() {
    with_oracle(|oracle| {
        let late: Bug<'_> = &|n| twice_in(n, |position, _, _| position >= 16);
        let found = tried(oracle, late, late, &other());
        assert!(
            matches!(found.trial, Some(Trial::Narrowed { elements: 1.., holds: Holds::Under { .. }, .. })),
            "{found:?}"
        );
        assert!(told(&found).contains("from position 16 on"), "{}", told(&found));
        let decoding: Bug<'_> = &|n| twice_in(n, |_, _, tokens| tokens == 1);
        let found = tried(oracle, decoding, decoding, &other());
        assert!(matches!(found.trial, Some(Trial::Confirmed { elements: 1.., .. })), "{found:?}");
        assert!(
            told(&found).contains("in decode steps only") && !told(&found).contains("position"),
            "{}",
            told(&found)
        );
        // A fault of the catalogue, which says from which position on.
        let bias = |node: &Node, holds| {
            let of_zero = node.computing(|inputs, _| (inputs[0].clone(), vec![0.0; inputs[0].data.len()]));
            (node.op == Op::Bias && node.id.layer == Some(1)).then(|| in_rows(node, of_zero, holds))
        };
        let decoding: Bug<'_> = &|n| bias(n, |_, _, tokens| tokens == 1);
        let found = tried(oracle, decoding, decoding, &other());
        assert!(matches!(found.trial, Some(Trial::Confirmed { elements: 1.., .. })), "{found:?}");
        assert!(told(&found).contains("in decode steps only") && !told(&found).contains("@p"), "{}", told(&found));
        let late: Bug<'_> = &|n| bias(n, |position, _, _| position >= 16);
        let found = tried(oracle, late, late, &other());
        // Both fit the first run; a third run is to bear the position out.
        assert!(matches!(found.trial, Some(Trial::Narrowed { elements: 1.., .. })), "{found:?}");
        assert!(told(&found).contains("from position 16 on"), "{}", told(&found));
    });
}

/// A row that is wrong may be so for its position or for its token: which rows is a fact, until other tokens bear a rule out
/// that names one. "At token id 66" was confirmed on one row of another run, and false.
#[test]
fn a_position_and_a_token_come_apart() {
    with_oracle(|oracle| {
        let of_token: Bug<'_> = &|n| twice_in(n, |_, token, _| token == 123);
        assert_eq!(first()[3], 123);
        let mut tokens = other();
        for because in ["nothing is wrong there", "one row is wrong there"] {
            let found = tried(oracle, of_token, of_token, &tokens);
            let silent = matches!(&found.trial, Some(Trial::Silent { because: why, .. }) if why.contains(because));
            let fact = "in 1 of the 19 rows that it would change, position 3: no rule is known that says which";
            assert!(silent && told(&found).contains(fact), "{found:?}");
            tokens[7] = 123;
        }
        tokens[12] = 123;
        let found = tried(oracle, of_token, of_token, &tokens);
        let there = matches!(found.trial, Some(Trial::Narrowed { elements: 1.., holds: Holds::Under { .. }, .. }));
        assert!(there && told(&found).ends_with("at token id 123"), "{found:?}");
    });
}

/// A cause that fitted the first tokens counted as proved for all others: also an epsilon that differs there.
#[test]
fn what_fits_the_first_run_alone_is_withdrawn() {
    with_oracle(|oracle| {
        let one_layer = |node: &Node, eps: f64| epsilon(node, |layer| (layer == 1).then_some(eps));
        let noise = |node: &Node| {
            let op = node.op.clone();
            let noisy = move |x: &[&Tensor<f64>], c: &Context<'_>| {
                let (mut made, bound) = forward_with_bound(&op, x, c);
                let of = |i: usize| 1.0 + 0.01 * ((i * 7919 % 1013) as f64 / 1013.0 - 0.5);
                made.data.iter_mut().enumerate().for_each(|(i, v)| *v *= of(i));
                (made, bound)
            };
            (node.op == Op::Bias || twice(node).is_some()).then(|| node.computing(noisy))
        };
        let cases: [(Bug<'_>, Bug<'_>); 5] = [
            (&|n| one_layer(n, 1e-3), &|n| one_layer(n, 2e-3)),
            (&without_bias, &noise),
            (&without_bias, &|_| None),
            (&twice, &noise),
            (&twice, &|_| None),
        ];
        for (case, (bug, there)) in cases.into_iter().enumerate() {
            let found = tried(oracle, bug, there, &other());
            let Some(Trial::Withdrawn { told, .. }) = &found.trial else { panic!("{case}: {found:?}") };
            assert!(!told.is_empty() && found.told().is_none() && !found.shape.is_empty(), "{case}: {found:?}");
        }
    });
}
