//! Whether a right engine is ever said to be wrong: the variants of [`crate::variants`], with stages left out of their
//! captures, judged as any subject.

use crate::variants::{Engine, Variant, variants};
use qdiff::arithmetic::Arithmetic;
use qdiff::capture::{Capture, Passes, Store, steps};
use qdiff::loaded::LoadedModel;
use qdiff::oracle::Oracle;
use qdiff::progress::silent;
use qdiff::verdict::{Policy, Side, judge};
use qdiff_engine::ops::Tensor;
use qdiff_engine::quant::GgmlType;
use qdiff_synth::{Synth, base_vocab};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

/// A prompt and the tokens decoded after it. Each begins with the token of massive activations, as Qwen's do.
pub const PROMPTS: [(&[u32], &[u32]); 4] = [
    (&[MASSIVE], &[7]),
    (&[MASSIVE, 39, 68, 75, 75, 78], &[12, 13]),
    (&[MASSIVE, 5, 5, 5, 5, 5, 5, 5, 5], &[]),
    (&[MASSIVE, 90, 3, 41, MASSIVE, 17, 60, 21, 22, 23, 24], &[44]),
];

/// A token whose embedding has massive activations where `Synth::massive` is set.
const MASSIVE: u32 = 1;

/// A small model with magnitudes as Qwen's.
///
/// # Panics
/// If it cannot be written.
pub fn write_model(path: &Path) {
    let synth = Synth {
        n_embd: 128,
        head_dim: 32,
        n_ff: 192,
        n_vocab: base_vocab(),
        massive: true,
        weight_type: GgmlType::F32,
        ..Synth::default()
    };
    synth.write(path).expect("the model is written");
}

/// What came of a capture.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The engine.
    pub variant: Variant,
    /// Stages left out, by name, in every layer.
    pub left_out: Vec<&'static str>,
    /// Stages that the verdict calls wrong.
    pub wrong: Vec<String>,
    /// Inconclusive rows.
    pub inconclusive: usize,
    /// The largest share used of what is allowed, by stage.
    pub used: BTreeMap<&'static str, f64>,
}

impl Judged {
    /// The stage that uses most of its bound, and the share.
    pub fn worst(&self) -> (&'static str, f64) {
        let most = self.used.iter().max_by(|a, b| a.1.total_cmp(b.1));
        most.map_or(("", 0.0), |(stage, used)| (*stage, *used))
    }
}

/// A model, and what its variants gave.
pub struct Bench<'a> {
    oracle: Oracle<'a>,
}

/// A variant's values on one prompt, step by step and node by node.
pub struct Run {
    variant: Variant,
    tokens: (Vec<u32>, Vec<u32>),
    values: Vec<Vec<Option<Tensor<f32>>>>,
}

impl<'a> Bench<'a> {
    /// On this model.
    ///
    /// # Panics
    /// If its metadata describe none.
    pub fn new(opened: &'a LoadedModel) -> Self {
        Self { oracle: opened.oracle().expect("a model that is known") }
    }

    /// Names of the stages that may be left out: all whose values follow from others.
    pub fn names(&self) -> Vec<&'static str> {
        self.oracle.graph.stage_names().into_iter().filter(|name| *name != self.last()).collect()
    }

    /// The last stage, without which nothing shows those before it.
    fn last(&self) -> &'static str {
        self.oracle.graph.nodes.last().expect("a graph has stages").id.name
    }

    /// Runs a variant.
    pub fn run(&self, variant: Variant, (prompt, decoded): (&[u32], &[u32])) -> Run {
        let mut engine = Engine::new(&self.oracle.graph, &self.oracle.weights, variant);
        let values =
            steps(prompt, Passes::Of(prompt.len()), decoded).iter().map(|step| engine.step(&step.tokens)).collect();
        Run { variant, tokens: (prompt.to_vec(), decoded.to_vec()), values }
    }

    /// Judges a capture of `run` without the stages `left_out`.
    ///
    /// # Panics
    /// If it cannot be judged at all.
    pub fn judge(&self, run: &Run, left_out: &[&'static str]) -> Judged {
        let graph = &self.oracle.graph;
        let mut capture = Capture::new(Store::usual(None));
        capture.steps = steps(&run.tokens.0, Passes::Of(run.tokens.0.len()), &run.tokens.1);
        for (step, values) in capture.steps.iter_mut().zip(&run.values) {
            for (node, value) in graph.nodes.iter().zip(values).filter(|(n, _)| !left_out.contains(&n.id.name)) {
                if let Some(value) = value {
                    step.stages.insert(node.id, capture.store.keep(value.clone()));
                }
            }
        }
        let arithmetic = Arithmetic::default();
        let side = Side { capture: &capture, arithmetic: &arithmetic };
        let verdict = judge(&self.oracle, side, None, &Default::default(), &Policy::default(), &silent);
        let verdict = verdict.expect("the capture is judged");
        let mut judged = Judged {
            variant: run.variant,
            left_out: left_out.to_vec(),
            wrong: verdict.origins().iter().map(|s| s.name()).collect(),
            inconclusive: 0,
            used: BTreeMap::new(),
        };
        for (stage, local) in verdict.stages.iter().filter_map(|s| Some((s, s.subject.as_ref()?))) {
            judged.inconclusive += local.inconclusive;
            let used = judged.used.entry(stage.id.name).or_default();
            *used = used.max(local.used);
        }
        judged
    }
}

/// Each pair of `names`.
pub fn pairs(names: &[&'static str]) -> Vec<[&'static str; 2]> {
    let after = |(i, a): (usize, &&'static str)| names[i + 1..].iter().map(|b| [*a, *b]).collect::<Vec<_>>();
    names.iter().enumerate().flat_map(after).collect()
}

/// The variants on the prompts, on all cores: whole, without each stage, and without each pair of stages. With a `share`
/// other than 1 each variant takes one of the prompts, and one of so many stages and pairs, so that together they take all.
pub fn all(opened: &LoadedModel, share: usize, mut each: impl FnMut(Judged)) {
    let bench = Bench::new(opened);
    let names = bench.names();
    let pairs = pairs(&names);
    let one = |variant, v: usize, to: &mpsc::Sender<Judged>| {
        for (p, prompt) in PROMPTS.into_iter().enumerate().filter(|(p, _)| share == 1 || v % PROMPTS.len() == *p) {
            let run = bench.run(variant, prompt);
            let singles = names.iter().map(std::slice::from_ref).skip(v % share).step_by(share);
            let pairs = pairs.iter().map(<[&str; 2]>::as_slice).skip((v * PROMPTS.len() + p) % share).step_by(share);
            for left_out in std::iter::once(&[][..]).chain(singles).chain(pairs) {
                to.send(bench.judge(&run, left_out)).expect("whoever asked listens");
            }
        }
    };
    let (variants, next) = (variants(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (to, all) = mpsc::channel();
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let (to, one, variants, next) = (to.clone(), &one, &variants, &next);
            scope.spawn(move || {
                loop {
                    let v = next.fetch_add(1, Relaxed);
                    let Some(variant) = variants.get(v) else { break };
                    one(*variant, v, &to);
                }
            });
        }
        drop(to);
        all.into_iter().for_each(&mut each);
    });
}

/// All that was judged of one style, put together.
#[derive(Clone, Debug, Default)]
pub struct Total {
    /// Captures judged.
    pub captures: usize,
    /// Those with a stage that the verdict calls wrong.
    pub alarms: Vec<Judged>,
    /// Inconclusive rows.
    pub inconclusive: usize,
    /// The capture that uses most of what a stage is allowed.
    pub worst: Option<Judged>,
}

impl Total {
    /// Takes one more.
    pub fn take(&mut self, judged: Judged) {
        self.captures += 1;
        self.inconclusive += judged.inconclusive;
        let worst = self.worst.as_ref().map_or(0.0, |w| w.worst().1);
        if judged.worst().1 > worst {
            self.worst = Some(judged.clone());
        }
        if !judged.wrong.is_empty() {
            self.alarms.push(judged);
        }
    }
}
