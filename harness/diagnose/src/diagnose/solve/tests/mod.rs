//! What each solver says of another's case, and of noise: operations are planted in every kind of stage, in all of it or
//! under a condition, and the sentence must be theirs. A sentence of another solver, or one about values that follow no
//! law, is false. Small models of random shape are run by the engine; no operation is shared with the solvers.

mod bench;
mod classics;
mod functions;
mod plants;
mod products;
mod slots;
mod twice;

use super::{Confidence, Holds, Solution};
use bench::{At, Bench, Judged, Stage};
use plants::Plant;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{Node, Role, qwen2, qwen3};
use qdiff_engine::ops::{Op, Tensor};
use qdiff_engine::quant::GgmlType;
use qdiff_synth::Synth;
use std::collections::BTreeMap;

/// Where a plant is put, and the words for it.
struct Condition {
    name: &'static str,
    fits: fn(&Stage) -> bool,
    holds: fn(&Stage, &At) -> bool,
    /// Alternatives between `|`; `{p}` is the first wrong position.
    words: &'static str,
}

const CONDITIONS: &[Condition] = &[
    Condition { name: "", fits: |_| true, holds: |_, _| true, words: "" },
    Condition {
        name: "from a position on",
        fits: |_| true,
        holds: |_, at| at.position >= 11,
        words: "from position {p} on",
    },
    Condition {
        name: "in one head",
        fits: |s| s.graph.config.n_heads > 1 && (s.of_pairs() || crate::verdict::of_heads(&s.node)),
        holds: |_, at| at.head == 1,
        words: "at head 1",
    },
    Condition {
        name: "at every 16th key",
        fits: Stage::of_pairs,
        holds: |_, at| at.column % 16 == 5,
        words: "key mod 16 = 5",
    },
    Condition {
        name: "in odd rows",
        fits: |_| true,
        holds: |_, at| at.position % 2 == 1,
        words: "where the position is odd",
    },
    Condition {
        name: "in the last T mod 4 rows",
        fits: |_| true,
        holds: |s, at| at.token >= s.steps[at.step].1 / 4 * 4,
        words: "rows of each part|in the last row of each part|left over after whole tiles of 4 of each part|from row {p} of the part on",
    },
    Condition {
        name: "in decode steps",
        fits: |_| true,
        holds: |s, at| s.steps[at.step].1 == 1,
        words: "in decode steps only|in parts of 1 token",
    },
    Condition {
        name: "in a quarter of the lanes",
        fits: |s| !s.of_pairs(),
        holds: |_, at| at.column % 32 >= 24,
        words: "mod 32 is 24 to 31|mod 32 is 25 to 31|from column of the head 24 on|from column 24 on|\
                from plane of the rotation 24 on",
    },
];

/// The report on a plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    /// What was planted, where, and nothing else.
    Right,
    /// What was planted; why other elements are right is not known.
    Unconditional,
    /// No cause, of what has one.
    Nothing,
    /// No cause, of what has none.
    RightlyNothing,
    /// Something else.
    False,
    /// Nothing to tell: the values are the right ones.
    Inert,
}

/// Whether one of the alternatives in `words` is in `said`.
fn says(said: &str, words: &str) -> bool {
    let fragment = |f: &str| f.strip_suffix('#').map_or_else(|| said.contains(f), |end| said.ends_with(end));
    !words.is_empty() && words.split('|').any(|all| all.split('&').all(fragment))
}

fn told(stage: &Stage, judged: &Judged, plant: &Plant, condition: &Condition) -> Told {
    let Some(first) = judged.positions.first() else { return Told::Inert };
    let Some(Solution { what, holds, confidence, .. }) = &judged.solution else {
        return if plant.words.is_empty() { Told::RightlyNothing } else { Told::Nothing };
    };
    // That each row has a factor is true of what a sum divides, and says nothing more.
    if what.starts_with("each wrong") && !plant.words.is_empty() && *holds == Holds::Everywhere {
        return Told::Unconditional;
    }
    if !says(what, &plant.words) {
        return Told::False;
    }
    let when = (*holds != Holds::Everywhere).then(|| holds.to_string());
    match when {
        None if condition.words.is_empty() => Told::Right,
        Some(_) if *confidence == Confidence::Consistent => Told::Unconditional,
        Some(when) if says(&when, &condition.words.replace("{p}", &first.to_string())) => Told::Right,
        // A single row only has a number.
        Some(when) if judged.positions.len() == 1 && when.starts_with(&format!("at position {first} (or ")) => {
            Told::Right
        }
        // A buffer that only short steps follow holds nothing old in other rows.
        Some(when) if plant.stale && when.starts_with("in decode steps only") => Told::Right,
        // Nor of a single key.
        Some(when) if condition.words.contains("key") && when.starts_with("at key ") => Told::Right,
        // It is such that it changes no row before.
        Some(when) if condition.words.is_empty() && when.starts_with(&format!("from position {first} on")) => {
            Told::Right
        }
        // In odd rows the row before is the first of each two; the tail of the last rows is that of the run.
        None if condition.name == "in odd rows" && what.contains("first token of each 2") => Told::Right,
        None if condition.words.contains("left over") && what.contains("the tail, are missing") => Told::Right,
        // No row before them has such keys.
        None if condition.words.contains("left over") && what.contains("keys from 32 on are missing") => Told::Right,
        // The last rows begin at position 32, where the rest of 16 is the rest of 32, which no row before changes.
        None if condition.words.contains("left over") && what.contains("p mod 32") && *first >= 32 => Told::Right,
        // Nothing is claimed of what is right.
        None if what.starts_with("each wrong") => Told::Unconditional,
        // Elsewhere it would change nothing.
        None if plant.stale || !matters(stage, plant, condition) => Told::Right,
        None | Some(_) => Told::False,
    }
}

/// Whether the plant would change anything where the condition does not hold.
fn matters(stage: &Stage, plant: &Plant, condition: &Condition) -> bool {
    (0..stage.given.len()).any(|step| {
        (0..stage.given[step].data.len()).map(|index| stage.at(step, index)).any(|at| {
            let changed = || ((plant.value)(stage, &at) - stage.own(&at)).abs() > 1e-5 * stage.size(&at);
            !(condition.holds)(stage, &at) && changed()
        })
    })
}

/// The stage with what the plant makes of its elements where the condition holds.
fn planted(stage: &Stage, plant: &Plant, condition: &Condition) -> Vec<Tensor<f32>> {
    let mut values: Vec<Tensor<f32>> = Vec::with_capacity(stage.given.len());
    for (step, given) in stage.given.iter().enumerate() {
        let mut tensor = given.clone();
        for index in 0..tensor.data.len() {
            let at = stage.at(step, index);
            // Nobody looks at keys that a query may not see, but where they are let in.
            if (condition.holds)(stage, &at) && !(matches!(stage.node.op, Op::AttnScores(_)) && at.column > at.position)
            {
                let left = values.last().filter(|_| plant.stale).and_then(|before| before.data.get(index));
                tensor.data[index] = left.copied().unwrap_or_else(|| (plant.value)(stage, &at) as f32);
            }
        }
        values.push(tensor);
    }
    values
}

/// The stages that are tried: each op once, linear ones by what they are for.
fn stages(nodes: &[Node]) -> Vec<Node> {
    let wanted = |n: &&Node| match &n.op {
        Op::Embed | Op::Collective(_) | Op::Defined(_) => false,
        Op::KvCache(_) => n.role == Role::Key,
        Op::Linear => matches!(n.role, Role::Query | Role::FfnOutput),
        Op::Bias => n.role == Role::Key,
        Op::RmsNorm(_) => n.role != Role::Key && n.role != Role::HeadInput && n.role != Role::FfnInput,
        Op::Rope(_) => n.role == Role::Query,
        Op::Residual => n.role == Role::AttnOutput,
        Op::AttnScores(_) | Op::AttnWeights(_) | Op::AttnContext(_) | Op::SwiGlu => true,
    };
    nodes.iter().filter(|n| n.id.layer == Some(1)).filter(wanted).cloned().collect()
}

/// Models of random shape, with the length of the prompt and of its parts.
fn models(seed: u64) -> Vec<(Synth, (usize, usize))> {
    let one = |number: usize, of: &[usize]| {
        let share = (plants::drawn(number, seed) + 1.0) / 2.0;
        of[((share * of.len() as f64) as usize).min(of.len() - 1)]
    };
    let model = |i: usize| {
        let one = |number: usize, of: &[usize]| one(16 * i + number, of);
        let (head_dim, n_kv_heads) = (one(0, &[32, 64]), one(1, &[1, 2]));
        let n_heads = n_kv_heads * one(2, &[1, 2, 3]).max(3 - n_kv_heads);
        let model = Synth {
            arch: [qwen2::ARCH, qwen3::ARCH][one(3, &[0, 0, 1])],
            n_embd: n_heads * head_dim,
            n_heads,
            n_kv_heads,
            head_dim,
            n_ff: one(4, &[128, 160, 192, 256]),
            weight_type: [GgmlType::Q8_0, GgmlType::F32, GgmlType::Q4_0][one(5, &[0, 1, 2])],
            seed: seed * 3 + i as u64,
            ..Synth::default()
        };
        let prompt = one(6, &[34, 35, 39, 42]);
        (model, (prompt, one(7, &[prompt, prompt, 23])))
    };
    (0..3).map(model).collect()
}

/// One case: op, plant, condition, the report and its grade.
struct Case {
    stage: String,
    op: &'static str,
    plant: String,
    condition: &'static str,
    said: String,
    told: Told,
}

/// Plants in models of a seed all that `take` takes: of all cases the one with this number.
fn cases(seed: u64, take: impl Fn(usize) -> bool) -> Vec<Case> {
    let (mut all, mut number) = (Vec::new(), 0);
    for (model, tokens) in models(seed) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        model.write(&path).unwrap();
        let file = Gguf::open(&path).unwrap();
        let mut bench = Bench::new(&model, &file, tokens);
        for node in stages(&bench.oracle.graph.nodes) {
            let stage = bench.stage(&node);
            let of_cache = node.op.has_state();
            let mut plants = if of_cache { slots::plants() } else { plants::common(&stage) };
            plants.extend(plants::nothing(model.seed));
            if matches!(node.op, Op::Linear | Op::AttnScores(_) | Op::AttnContext(_)) {
                plants.extend(products::groups(&stage));
                plants.extend(products::operands(&stage));
            }
            plants.extend(functions::plants(&stage));
            for plant in &plants {
                for condition in CONDITIONS.iter().filter(|c| (c.fits)(&stage) && (!of_cache || c.name.is_empty())) {
                    number += 1;
                    if !take(number) {
                        continue;
                    }
                    let judged = bench.judged(&stage, planted(&stage, plant, condition));
                    all.push(Case {
                        stage: node.id.to_string(),
                        op: node.op.name(),
                        plant: plant.name.clone(),
                        condition: condition.name,
                        said: judged.solution.as_ref().map_or_else(String::new, Solution::told),
                        told: told(&stage, &judged, plant, condition),
                    });
                }
            }
        }
    }
    all
}

/// In a share of all cases, a different one for each plant and condition, no report is false, and most cases have one.
#[test]
fn no_solver_takes_what_is_not_its_own() {
    let cases = cases(1, |number| number % 5 == 3);
    let wrong: Vec<String> = cases
        .iter()
        .filter(|c| c.told == Told::False)
        .map(|c| format!("{}: {} {}: {}", c.stage, c.plant, c.condition, c.said))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let right = cases.iter().filter(|c| c.told == Told::Right).count();
    assert!(right * 3 > cases.len(), "{right} of {}", cases.len());
}

/// Prints the report of every case: `cargo test --release -p qdiff-diagnose --lib specificity -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a table of all cases, which takes minutes"]
fn table_of_specificity() {
    let mut by_op: BTreeMap<&str, BTreeMap<Told, usize>> = BTreeMap::new();
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    for case in cases(seed, |_| true) {
        *by_op.entry(case.op).or_default().entry(case.told).or_default() += 1;
        if std::env::var_os("ALL").is_some() || case.told == Told::False {
            println!("{:?} | {} | {} | {} | {}", case.told, case.stage, case.plant, case.condition, case.said);
        }
    }
    println!("| op | right | without the condition | location only | nothing, rightly | false | inert |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (op, told) in by_op {
        let of = |t| told.get(&t).copied().unwrap_or(0);
        let kinds =
            [Told::Right, Told::Unconditional, Told::Nothing, Told::RightlyNothing, Told::False, Told::Inert].map(of);
        println!("| {op} | {} |", kinds.map(|n| n.to_string()).join(" | "));
    }
}
