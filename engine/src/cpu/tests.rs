//! Several sequences in one step are each what they are alone, and tokens that are taken back leave nothing.

use super::{CpuEngine, Row, RowsError};
use crate::dtype::DType;
use crate::model::{Axis, Graph, Invented, StageId, WeightSource, qwen2, qwen3, qwen35};
use crate::ops::Tensor;
use crate::quant::{GgmlType, KvType, Stored};
use crate::tap::{NoTaps, Part, TapSink};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A small model of either architecture: heads of 6, so that no row fills whole lanes.
pub(super) fn graphs() -> [Graph; 2] {
    let metadata = Invented(
        |key: &str| match key {
            "block_count" | "attention.head_count_kv" => 2,
            "attention.head_count" => 4,
            "attention.key_length" | "attention.value_length" | "rope.dimension_count" => 6,
            _ => 40,
        },
        false,
    );
    [qwen2::graph(&metadata), qwen3::graph(&metadata)].map(|graph| graph.expect("a small model is one"))
}

/// A small model with a delta net before a layer of attention.
fn recurrent() -> Graph {
    let metadata = Invented(
        |key: &str| match key {
            "block_count" | "attention.head_count_kv" | "full_attention_interval" | "ssm.group_count" => 2,
            "attention.head_count" | "ssm.time_step_rank" | "ssm.conv_kernel" => 4,
            "attention.key_length" | "attention.value_length" | "rope.dimension_count" | "ssm.state_size" => 6,
            "ssm.inner_size" => 24,
            _ => 40,
        },
        false,
    );
    qwen35::graph(&metadata).expect("a small model is one")
}

/// Weights of a graph, drawn by a fixed rule.
pub(super) struct Drawn(HashMap<String, (Vec<f32>, (usize, usize))>);

impl Drawn {
    pub(super) fn of(graph: &Graph) -> Self {
        let mut state = 1u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let drawn = graph.weights().into_iter().map(|weight| {
            let (n, m) = (weight.extent[0], weight.extent[1..].iter().product());
            (weight.name.clone(), ((0..n * m).map(|_| draw()).collect(), (n, m)))
        });
        Self(drawn.collect())
    }
}

impl WeightSource for Drawn {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let (values, extent) = &self.0[tensor];
        Stored { ty: GgmlType::F32, extent: *extent, bytes: bytemuck::cast_slice(values) }
    }
}

/// Every stage of a step.
#[derive(Default)]
pub(super) struct All(pub(super) BTreeMap<StageId, Arc<Tensor<f32>>>);

impl TapSink for All {
    fn wants(&self, _: StageId) -> bool {
        true
    }
    fn tap(&mut self, id: StageId, value: Arc<Tensor<f32>>) {
        self.0.insert(id, value);
    }
    fn part(&mut self, _: Part<'_>) {
        unreachable!("the interpreter gives stages whole");
    }
}

/// Tokens of a sequence by pass, of which it may have none.
type Passes = Vec<Vec<u32>>;

/// Values that are to be the same, to the bit.
fn bits(x: impl IntoIterator<Item = f32>) -> Vec<u32> {
    x.into_iter().map(f32::to_bits).collect()
}

/// Feeds the sequences together, rows of a pass in `order`, and each alone; every stage of every row must be the same.
/// Sequence 2 begins with the first pass of sequence 0, which is fed before all others.
fn same_as_alone(graph: &Graph, sequences: &[Passes; 3], interleaved: bool) -> Result<(), TestCaseError> {
    let weights = Drawn::of(graph);
    let new = || CpuEngine::new(graph.clone(), &weights);
    let (mut together, mut alone) = (new(), [new(), new(), new()]);
    let prefix = &sequences[0][0];
    together.step(prefix, &mut NoTaps);
    together.share(0, 2, prefix.len()).unwrap();
    alone[0].step(prefix, &mut NoTaps);
    alone[2].step(prefix, &mut NoTaps);
    let table: Vec<usize> = (0..prefix.len()).collect();
    let (mut tables, mut taken) = ([table.clone(), Vec::new(), table], prefix.len());

    for pass in 0..sequences[1].len() {
        let mut rows: Vec<(usize, Row)> = Vec::new();
        for (s, passes) in sequences.iter().enumerate() {
            // The first pass of sequence 0 was the prefix.
            let tokens = passes.get(pass + usize::from(s == 0)).map_or(&[][..], Vec::as_slice);
            let first = tables[s].len();
            let row = |(i, &token): (usize, &u32)| (i, Row { sequence: s as u32, position: (first + i) as u32, token });
            rows.extend(tokens.iter().enumerate().map(row));
        }
        if interleaved {
            rows.sort_by_key(|(i, row)| (*i, row.sequence));
        }
        let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
        if rows.is_empty() {
            continue;
        }
        let mut batch = All::default();
        together.step_rows(&rows, &mut batch).unwrap();
        let mut own = [Vec::new(), Vec::new(), Vec::new()];
        for (t, row) in rows.iter().enumerate() {
            own[row.sequence as usize].push(t);
            tables[row.sequence as usize].push(taken + t);
        }
        taken += rows.len();
        for (s, own) in own.iter().enumerate().filter(|(_, own)| !own.is_empty()) {
            let mut single = All::default();
            alone[s].step(&own.iter().map(|t| rows[*t].token).collect::<Vec<_>>(), &mut single);
            for node in &graph.nodes {
                let (whole, part) = (&batch.0[&node.id], &single.0[&node.id]);
                let (tokens, table) = (rows.len(), &tables[s]);
                match node.shape[..] {
                    [Axis::Fixed(heads), Axis::Tokens, Axis::Keys] => {
                        let row = |h: usize, t: usize| &whole.data[(h * tokens + t) * taken..][..taken];
                        let seen = (0..heads).flat_map(|h| own.iter().map(move |t| (h, *t)));
                        let seen: Vec<f32> =
                            seen.flat_map(|(h, t)| table.iter().map(move |slot| row(h, t)[*slot])).collect();
                        prop_assert_eq!(bits(seen), bits(part.data.clone()), "{} of sequence {}", node.id, s);
                        let hidden = (0..taken).filter(|slot| !table.contains(slot));
                        let hidden: Vec<usize> = hidden.collect();
                        let zero = |(h, t)| hidden.iter().all(|slot| row(h, t)[*slot] == 0.0);
                        prop_assert!((0..heads).flat_map(|h| own.iter().map(move |t| (h, *t))).all(zero));
                    }
                    [Axis::Tokens | Axis::Keys, ..] => {
                        let picked = if node.has_state() { table } else { own };
                        let got: Vec<f32> = picked.iter().flat_map(|i| whole.row(*i)).copied().collect();
                        prop_assert_eq!(bits(got), bits(part.data.clone()), "{} of sequence {}", node.id, s);
                    }
                    _ => unreachable!("{} has other axes", node.id),
                }
            }
        }
    }
    Ok(())
}

/// So many tokens, of a vocabulary of two.
fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i / 3 + i) % 2).collect()
}

#[test]
fn a_ragged_batch_is_its_sequences() {
    for graph in graphs() {
        // 5, 1 and 17 tokens in one pass, the prefill of the second in chunks, the third on the prefix of the first.
        let sequences = [
            vec![tokens(7), tokens(5), tokens(1)],
            vec![tokens(1), tokens(4), tokens(6)],
            vec![tokens(17), tokens(1), vec![]],
        ];
        for interleaved in [false, true] {
            same_as_alone(&graph, &sequences, interleaved).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_batch_is_its_sequences(
        prefix in prop::collection::vec(0u32..2, 1..9),
        passes in prop::array::uniform3(prop::collection::vec(prop::collection::vec(0u32..2, 0..9), 3)),
        interleaved: bool, qwen3: bool,
    ) {
        let mut sequences = passes;
        sequences[0].insert(0, prefix);
        same_as_alone(&graphs()[usize::from(qwen3)], &sequences, interleaved)?;
    }
}

/// Every stage of a step of one token.
fn after(engine: &mut CpuEngine<'_>, row: Row) -> BTreeMap<StageId, Arc<Tensor<f32>>> {
    let mut all = All::default();
    engine.step_rows(&[row], &mut all).unwrap();
    all.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Passes of a sequence, each with a draft of which only the first tokens are kept, and another sequence that begins with
    /// some of its tokens: both go on as engines do that were never fed the rest.
    #[test]
    fn what_is_taken_back_leaves_nothing(
        passes in prop::collection::vec((prop::collection::vec(0u32..2, 1..9), 0usize..9), 1..5), shared in 0usize..9,
    ) {
        let graph = recurrent();
        prop_assert!(graph.is_recurrent());
        let weights = Drawn::of(&graph);
        let new = || CpuEngine::new(graph.clone(), &weights);
        let (mut engine, mut plain, mut other) = (new(), new(), new());
        let (mut kept, mut points) = (0, BTreeSet::new());
        for (pass, keeps) in &passes {
            kept += (*keeps).min(pass.len());
            points.insert((0, kept));
        }
        let shared = shared.min(kept);
        engine.keep_states(points.into_iter().chain([(0, shared)]).collect());
        let mut at = 0;
        for (pass, keeps) in &passes {
            engine.step(pass, &mut NoTaps);
            at += (*keeps).min(pass.len());
            engine.take_back(0, at).unwrap();
            let own = &pass[..(*keeps).min(pass.len())];
            let begun = &own[..own.len().min(shared.saturating_sub(at - own.len()))];
            for (engine, own) in [(&mut plain, own), (&mut other, begun)] {
                if !own.is_empty() {
                    engine.step(own, &mut NoTaps);
                }
            }
        }
        engine.share(0, 1, shared).unwrap();
        let row = |sequence, position: usize| Row { sequence, position: position as u32, token: 1 };
        // Rows of another pass are added in another order. Caches hold the rows of all sequences.
        let far = |a: &Tensor<f32>, b: &Tensor<f32>| a.data.iter().zip(&b.data).any(|(a, b)| (a - b).abs() > 1e-4 * (1.0 + a.abs()));
        let mut first_other = |sequence, position, plain: &mut CpuEngine<'_>| {
            let (a, b) = (after(&mut engine, row(sequence, position)), after(plain, row(0, position)));
            let mut nodes = graph.nodes.iter().filter(|node| !node.shape.contains(&Axis::Keys));
            nodes.find(|node| far(&a[&node.id], &b[&node.id])).map(|node| node.id)
        };
        prop_assert_eq!(first_other(0, kept, &mut plain), None, "in the sequence itself");
        prop_assert_eq!(first_other(1, shared, &mut other), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// In the first layer, keys and values follow from a token and its position alone: after a shift it goes on as that of an engine
    /// which was never fed the tokens that were removed. Another sequence goes on as without the shift.
    #[test]
    fn a_shift_leaves_the_first_layer_as_if_tokens_had_never_been(
        fed in prop::collection::vec(0u32..2, 3..12), from in 0usize..9, tokens in 1usize..9, qwen3: bool, kv: bool,
    ) {
        let from = from % (fed.len() - 2);
        let tokens = 1 + tokens % (fed.len() - 1 - from).max(1);
        prop_assume!(from + tokens < fed.len());
        let [qwen2, other] = graphs();
        let graph = if qwen3 { other } else { qwen2 };
        let weights = Drawn::of(&graph);
        let kv = KvType::from(if kv { DType::F16 } else { DType::F32 });
        let new = || CpuEngine::new(graph.clone(), &weights).with_kv(kv);
        let (mut engine, mut plain, mut beside) = (new(), new(), new());
        let rows = |sequence, fed: &[u32]| -> Vec<Row> {
            (0..).zip(fed).map(|(position, &token)| Row { sequence, position, token }).collect()
        };
        let other = [1, 0, 1];
        engine.step_rows(&[rows(0, &fed), rows(1, &other)].concat(), &mut NoTaps).unwrap();
        engine.shift(0, from, tokens).unwrap();
        let left = [&fed[..from], &fed[from + tokens..]].concat();
        plain.step_rows(&rows(0, &left), &mut NoTaps).unwrap();
        beside.step_rows(&rows(1, &other), &mut NoTaps).unwrap();
        let row = |sequence, position: usize| Row { sequence, position: position as u32, token: 1 };
        prop_assert!(engine.step_rows(&[row(0, left.len() + 1)], &mut NoTaps).is_err(), "positions go on without a gap");
        // Keys of halves are rounded twice, and a product may cancel.
        let reach = if kv == KvType::from(DType::F16) { 2e-2 } else { 1e-3 };
        let far = |a: &Tensor<f32>, b: &Tensor<f32>| {
            let largest = a.data.iter().fold(0f32, |most, v| most.max(v.abs()));
            a.data.iter().zip(&b.data).any(|(a, b)| (a - b).abs() > reach * (1.0 + largest))
        };
        for (sequence, position, other, layers) in [(0, left.len(), &mut plain, 1), (1, 3, &mut beside, 2)] {
            let (a, b) = (after(&mut engine, row(sequence, position)), after(other, row(sequence, position)));
            let of_first = |id: &StageId| id.layer.is_some_and(|layer| layer < layers);
            let mut nodes = graph.nodes.iter().filter(|node| of_first(&node.id) && !node.shape.contains(&Axis::Keys));
            prop_assert_eq!(nodes.find(|node| far(&a[&node.id], &b[&node.id])).map(|node| node.id), None, "sequence {}", sequence);
        }
    }
}

/// What cannot be shifted is refused, and slots that become free are taken again.
#[test]
fn a_shift_frees_slots() {
    let mut sequences = super::Sequences::one(6);
    assert!(
        sequences.shift(0, 2, 0).is_err() && sequences.shift(0, 2, 4).is_err() && sequences.shift(3, 0, 1).is_err()
    );
    assert_eq!(sequences.shift(0, 2, 3).unwrap(), [vec![2, 3, 4], vec![5]]);
    assert_eq!((sequences.tokens(0), sequences.slots(), sequences.is_one()), (3, 6, false));
    let row = |sequence, position| Row { sequence, position, token: 0 };
    let (after, groups) = sequences.after(&[row(0, 3), row(0, 4)]).unwrap();
    assert_eq!(groups[0].slots, [0, 1, 5, 2, 3]);
    let mut shared = after;
    shared.share(0, 1, 2).unwrap();
    assert_eq!(shared.shift(0, 0, 1), Err(RowsError::Shared { sequence: 0, other: 1 }));
    assert_eq!(shared.shift(0, 0, 2).unwrap(), [vec![], vec![5, 2, 3]]);
    let recurrent = recurrent();
    let weights = Drawn::of(&recurrent);
    let mut engine = CpuEngine::new(recurrent, &weights);
    engine.step(&[0, 1, 1], &mut NoTaps);
    assert_eq!(engine.shift(0, 0, 1), Err(RowsError::ShiftedStates { sequence: 0 }));
}

/// What cannot be run is refused, and the engine goes on as before.
#[test]
fn rows_that_cannot_be_run_change_nothing() {
    let [graph, _] = graphs();
    let weights = Drawn::of(&graph);
    let mut engine = CpuEngine::new(graph.clone(), &weights);
    let row = |sequence, position| Row { sequence, position, token: 1 };
    assert_eq!(engine.step_rows(&[], &mut NoTaps).unwrap_err(), RowsError::Empty);
    let gap = engine.step_rows(&[row(3, 0), row(3, 2)], &mut NoTaps).unwrap_err();
    assert_eq!(gap, RowsError::Position { sequence: 3, expected: 1, found: 2 });
    assert!(engine.share(0, 1, 1).is_err(), "sequence 0 has no token yet");
    engine.step_rows(&[row(0, 0), row(1, 0)], &mut NoTaps).unwrap();
    assert!(engine.share(0, 1, 1).is_err(), "sequence 1 has a token already");
    assert_eq!(engine.position(), 1);

    // States that nobody said are gone back to.
    let recurrent = recurrent();
    let weights_of_it = Drawn::of(&recurrent);
    let mut engine = CpuEngine::new(recurrent, &weights_of_it);
    engine.step(&[0, 1, 1], &mut NoTaps);
    assert_eq!(engine.take_back(0, 2).unwrap_err(), RowsError::States { sequence: 0, tokens: 2 });
    assert_eq!(engine.position(), 3);

    let mut faulty = graph;
    faulty.nodes[1] = faulty.nodes[1].left_out();
    let mut engine = CpuEngine::new(faulty, &weights);
    engine.step(&[0, 1], &mut NoTaps);
    assert_eq!(engine.step_rows(&[row(0, 2), row(1, 0)], &mut NoTaps).unwrap_err(), RowsError::Faults);
    engine.step(&[1], &mut NoTaps);
    assert_eq!(engine.position(), 3);
}
