//! An architecture of experts with ops of its own, all in this file: qdiff knows none of them, and captures, judges, explains
//! and reports them by their anatomy.

use qdiff::arithmetic::Arithmetic;
use qdiff::capture::{Capture, Collector, Filter, Store, Want};
use qdiff::diagnose::{Diagnosis, explain};
use qdiff::llama::gguf::GgmlWeights;
use qdiff::machine::Machine;
use qdiff::oracle::Oracle;
use qdiff::products::Products;
use qdiff::report::terminal::Terminal;
use qdiff::report::{Document, ModelInfo, Outcome, Report, RunInfo, Seconds};
use qdiff::runners::Manifest;
use qdiff::severity;
use qdiff::verdict::{CheckMode, Policy, Side, Status, judge};
use qdiff::weights::WeightCheck;
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{Architecture, Builder, Config, ConfigError, Graph, Metadata, Model, Node, Role, StageId};
use qdiff_engine::ops::anatomy::{Activation, Contraction, Decision, Elementwise, Gather, Picked, RowReduction};
use qdiff_engine::ops::{Anatomy, Context, Defined, Definition, Op, Real, TINY, Tensor, UNIT, real};
use qdiff_engine::tap::{Intervene, Site};
use qdiff_tests::synth::{Setting, Synth};
use qdiff_tests::unwrapped;
use std::collections::BTreeMap;

const EXPERTS: usize = 4;

/// Experts that a token takes.
const TAKEN: usize = 2;

/// Layer norm: `w · (x − mean(x)) / √(var(x) + ε)`.
#[derive(Debug)]
struct LayerNorm {
    eps: f64,
}

impl LayerNorm {
    fn of<F: Real>(&self, x: &Tensor<F>, w: &[F]) -> Tensor<F> {
        let n = F::of(x.row_len() as f64);
        let mut y = x.clone();
        for row in y.data.chunks_mut(x.row_len()) {
            let mean = real::sum(row.iter().copied()) / n;
            row.iter_mut().for_each(|v| *v = *v - mean);
            let scale = F::one() / (real::sum(row.iter().map(|&v| v * v)) / n + F::of(self.eps)).sqrt();
            row.iter_mut().zip(w).for_each(|(v, w)| *v = *v * scale * *w);
        }
        y
    }

    /// A row's deviations from the mean, their mean size, and the scale.
    fn parts(&self, row: &[f64]) -> (Vec<f64>, f64, f64) {
        let n = row.len() as f64;
        let (mean, size) = (row.iter().sum::<f64>() / n, row.iter().map(|v| v.abs()).sum::<f64>() / n);
        let apart: Vec<f64> = row.iter().map(|v| v - mean).collect();
        let scale = 1.0 / (apart.iter().map(|d| d * d).sum::<f64>() / n + self.eps).sqrt();
        (apart, size, scale)
    }
}

impl Definition for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }
    fn about(&self) -> &'static str {
        "the residual stream, centred and normed"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        self.of(inputs[0], &c.vector(0))
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        self.of(inputs[0], &c.vector(0))
    }
    /// The mean is good to the logarithm of the number of its terms, each deviation to that and its own size.
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, c: &Context<'_>) -> Vec<f32> {
        let (w, n) = (c.vector::<f64>(0), y.row_len());
        let roundings = 4.0 + (n as f64).log2();
        let of_row = |row: &[f64]| {
            let (apart, size, scale) = self.parts(row);
            let off: Vec<f64> = row.iter().map(|x| UNIT * (x.abs() + roundings * size)).collect();
            let of_scale = UNIT * roundings + scale * (off.iter().map(|d| d * d).sum::<f64>() / n as f64).sqrt();
            let both = apart.iter().zip(&off).zip(&w);
            both.map(|((d, off), w)| (w.abs() * scale * (off + d.abs() * of_scale)) as f32).collect::<Vec<_>>()
        };
        inputs[0].data.chunks(n).flat_map(of_row).collect()
    }
    /// `dy_i = w_i·s·(dx_i − mean(dx) − z_i·mean(z·dx))`, with z the normed row.
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, c: &Context<'_>,
    ) -> Vec<f32> {
        let (w, n) = (c.vector::<f64>(0), y.row_len());
        let rows = inputs[0].data.chunks(n).zip(deltas[0].unwrap_or_default().chunks(n));
        let of_row = |(row, delta): (&[f64], &[f32])| {
            let (apart, _, scale) = self.parts(row);
            let squares: Vec<f64> = delta.iter().map(|d| f64::from(*d).powi(2)).collect();
            let sum =
                |power: i32| -> f64 { apart.iter().zip(&squares).map(|(d, q)| (d * scale).powi(power) * q).sum() };
            let (a, b, c, count) = (sum(0), sum(1), sum(2), n as f64);
            let each = apart.iter().zip(&squares).zip(&w).map(|((d, own), w)| {
                let z = d * scale;
                let all = (a + 2.0 * z * b + z * z * c) / (count * count);
                ((w * scale).abs() * (all + (1.0 - 2.0 * (1.0 + z * z) / count) * own).max(0.0).sqrt()) as f32
            });
            each.collect::<Vec<_>>()
        };
        rows.flat_map(of_row).collect()
    }
}

/// `tanh(gate) · up`.
#[derive(Debug)]
struct TanhGate;

impl TanhGate {
    fn of<F: Real>(inputs: &[&Tensor<F>]) -> Tensor<F> {
        let pairs = inputs[0].data.iter().zip(&inputs[1].data);
        Tensor { shape: inputs[0].shape.clone(), data: pairs.map(|(g, u)| g.tanh() * *u).collect() }
    }
}

impl Definition for TanhGate {
    fn name(&self) -> &'static str {
        "tanh_gate"
    }
    fn about(&self) -> &'static str {
        "the hyperbolic tangent of the gate, times the other product"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::Elementwise(Elementwise::Gated(Activation::Other))
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        Self::of(inputs)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        Self::of(inputs)
    }
    /// A few roundings of the function, and one of the product.
    fn bound(&self, _: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        y.data.iter().map(|y| (6.0 * UNIT * y.abs() + TINY) as f32).collect()
    }
}

/// An op that its anatomy defines in full: name, description, anatomy.
#[derive(Debug)]
struct Plain(&'static str, &'static str, Anatomy<'static>);

impl Definition for Plain {
    fn name(&self) -> &'static str {
        self.0
    }
    fn about(&self) -> &'static str {
        self.1
    }
    fn anatomy(&self) -> Anatomy<'_> {
        self.2
    }
}

const CHOICE: Plain = Plain(
    "top_two",
    "the two experts of the largest scores",
    Anatomy::Decision(Decision { picks: TAKEN, block: None }),
);
const SHARES: Plain = Plain("shares", "the scores of the chosen experts", Anatomy::Gather(Gather::Elements));
const PRODUCT: Plain = Plain(
    "expert_linear",
    "the product with the weights of each chosen expert",
    Anatomy::Contraction(Contraction::Weight(Some(Picked { groups: EXPERTS }))),
);
const MIX: Plain = Plain("mix", "the experts' results by their shares", Anatomy::Contraction(Contraction::Rows(TAKEN)));

const ARCH: &str = "own-experts";
const KNOWN: &[Architecture] = &[(ARCH, graph)];

fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let c = Config::read(ARCH, source)?;
    let (e, v, layers, eps) = (c.n_embd, c.n_vocab, c.n_layers, c.rms_eps);
    let f = Config::integer(ARCH, "expert_width", source)?;
    let mut b = Builder::new(c);
    let own = |op: Plain| Op::Defined(Defined::new(op));
    let norm = || Op::Defined(Defined::new(LayerNorm { eps }));
    let mut x =
        b.stage("embed", Role::Embedding, Op::Embed, &[], &[e]).weight("token_embd.weight", &[e, v]).add("", "");
    for layer in 0..layers {
        b.enter(Some(layer as u16));
        let normed = b.stage("norm", Role::FfnInput, norm(), &[x], &[e]).weight("ffn_norm.weight", &[e]).add("", "");
        let scores = b.stage("router", Role::Router, Op::Linear, &[normed], &[EXPERTS]);
        let scores = scores.weight("ffn_gate_inp.weight", &[e, EXPERTS]).add("", "");
        let chosen = b.stage("experts", Role::Router, own(CHOICE), &[scores], &[TAKEN]).add("", "");
        let shares = b.stage("shares", Role::Router, own(SHARES), &[scores, chosen], &[TAKEN]).add("", "");
        let gate = b.stage("expert_gate", Role::Gate, own(PRODUCT), &[normed, chosen], &[TAKEN, f]);
        let gate = gate.weight("ffn_gate_exps.weight", &[e, f, EXPERTS]).add("", "");
        let up = b.stage("expert_up", Role::Up, own(PRODUCT), &[normed, chosen], &[TAKEN, f]);
        let up = up.weight("ffn_up_exps.weight", &[e, f, EXPERTS]).add("", "");
        let act = Op::Defined(Defined::new(TanhGate));
        let act = b.stage("expert_act", Role::FfnHidden, act, &[gate, up], &[TAKEN, f]).add("", "");
        let down = b.stage("expert_down", Role::FfnOutput, own(PRODUCT), &[act, chosen], &[TAKEN, e]);
        let down = down.weight("ffn_down_exps.weight", &[f, e, EXPERTS]).add("", "");
        let mixed = b.stage("mixed", Role::FfnOutput, own(MIX), &[shares, down], &[e]).add("", "");
        x = b.stage("layer_out", Role::FfnOutput, Op::Residual, &[mixed, x], &[e]).add("", "");
    }
    b.enter(None);
    let last =
        b.stage("final_norm", Role::HeadInput, norm(), &[x], &[e]).weight("output_norm.weight", &[e]).add("", "");
    b.stage("logits", Role::Logits, Op::Linear, &[last], &[v]).weight("output.weight", &[e, v]).add("", "");
    Ok(b.finish())
}

/// A model of that architecture, open on both sides.
struct Opened {
    model: Model,
    file: Gguf,
    _folder: tempfile::TempDir,
}

impl Opened {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let settings = vec![("expert_width".to_owned(), Setting::Integer(96))];
        Synth { arch: ARCH, known: KNOWN, settings, ..Synth::default() }.write(&path).unwrap();
        let open = || Gguf::open(&path).unwrap();
        Self { model: Model::of(KNOWN, open()).unwrap(), file: open(), _folder: folder }
    }

    fn oracle(&self) -> Oracle<'_> {
        let weights = GgmlWeights::open(&self.file).unwrap();
        Oracle { graph: self.model.graph().clone(), weights: Box::new(weights), products: Products::default() }
    }

    /// A prompt and two steps, with what `change` does to stages, of which `kept` are captured.
    fn capture(&self, kept: impl Fn(&Node) -> bool, change: Option<Change>) -> Capture {
        let (graph, store) = (self.model.graph(), Store::usual(None));
        let want = Want::new(graph, &Filter::default(), &kept, &store);
        let mut capture = Capture::new(store);
        let mut engine = CpuEngine::new(graph.clone(), &self.model);
        if let Some(change) = change {
            engine = engine.intervened(Box::new(change));
        }
        let prompt: Vec<u32> = (0..24).map(|i| (i * 37 + 5) % 256).collect();
        for tokens in [prompt.as_slice(), &[4], &[99]] {
            let mut taps = Collector::new(&want, engine.position(), tokens);
            engine.step(tokens, &mut taps);
            capture.steps.push(taps.finish());
        }
        capture
    }

    /// What is wrong with this capture, held against a right one, and why.
    fn diagnosis(&self, subject: &Capture) -> Diagnosis {
        self.checked(subject, CheckMode::Full)
    }

    fn checked(&self, subject: &Capture, mode: CheckMode) -> Diagnosis {
        let (oracle, arithmetic) = (self.oracle(), Arithmetic::default());
        let right = self.capture(|_| true, None);
        let (side, reference) =
            (Side { capture: subject, arithmetic: &arithmetic }, Side { capture: &right, arithmetic: &arithmetic });
        let (filter, mut policy) = (Filter::default(), Policy::default());
        policy.mode = mode;
        let verdict = judge(&oracle, side, Some(reference), &filter, &policy, &|_, _, _| {}).unwrap();
        explain(&oracle, &side, verdict, (&filter, &policy), 1.0, &|_, _, _| {})
    }
}

/// The screen of a run with this outcome.
fn screen(opened: &Opened, diagnosis: Diagnosis) -> String {
    let side = |name: &str| Manifest {
        name: name.to_owned(),
        arithmetic: Arithmetic::default(),
        injected: Vec::new(),
        stored: None,
        unkept: None,
    };
    let config = &opened.model.graph().config;
    let mut report = Report {
        qdiff: String::new(),
        outcome: Outcome::Incomplete,
        machine: Machine::this(),
        model: ModelInfo {
            path: "model.gguf".to_owned(),
            name: config.name.clone(),
            arch: config.arch.clone(),
            layers: config.n_layers,
            format: String::new(),
            formats: Vec::new(),
            folder: false,
            sha256: "0".repeat(64),
            hashed_by: None,
            adapters: Vec::new(),
        },
        run: RunInfo {
            prompt: "numbers".to_owned(),
            tokens: Vec::new(),
            passes: Vec::new(),
            sequence: None,
            ranks: None,
            decoded: Vec::new(),
            unchosen: false,
            text: BTreeMap::new(),
            tolerance: Vec::new(),
            inert: Vec::new(),
            unexercised: Vec::new(),
            dumped: false,
            command: String::new(),
            filters: String::new(),
        },
        batch: None,
        subject: side("subject"),
        reference: side("reference"),
        repeated: None,
        weights: WeightCheck::default(),
        tokens: None,
        decoded: None,
        slots: None,
        end: None,
        severity: severity::of(opened.model.graph(), &diagnosis, &[]),
        declaration: None,
        diagnosis,
        doubt: None,
        gap: None,
        seconds: Seconds::default(),
        memory: None,
    };
    report.outcome = report.comes_to();
    Terminal::of(100).render(&report.screen(true))
}

/// What a bug does to the stage of this name in layer 1.
struct Change(&'static str, fn(&mut Site<'_>));

impl Intervene for Change {
    fn change(&mut self, mut site: Site<'_>) {
        if site.node.id == StageId::layer(1, self.0) {
            (self.1)(&mut site);
        }
    }
}

fn origins(diagnosis: &Diagnosis) -> Vec<String> {
    diagnosis.verdict.origins().iter().map(|origin| origin.id.to_string()).collect()
}

/// Every stage of a right engine is judged, and right; so it is where stages were not captured, choices among them.
#[test]
fn right_stages_of_ops_that_qdiff_does_not_know_match() {
    let opened = Opened::new();
    let unseen: [&[&str]; 4] =
        [&[], &["norm", "shares"], &["expert_gate", "expert_up", "expert_down"], &["router", "experts"]];
    for names in unseen {
        let subject = opened.capture(|node| !names.contains(&node.id.name), None);
        let diagnosis = opened.diagnosis(&subject);
        assert_eq!(origins(&diagnosis), [""; 0], "{names:?}");
        let coverage = &diagnosis.verdict.coverage;
        assert!(
            coverage.judged == coverage.asked && (coverage.within == 0) == names.is_empty(),
            "{names:?} {coverage:?}"
        );
        for stage in diagnosis.verdict.stages.iter().filter(|stage| !names.contains(&stage.id.name)) {
            assert_eq!(stage.status, Status::Match, "{names:?} {}", stage.id);
        }
    }
}

/// Rows of its linear layers that probes have no doubt of are not computed, and a wrong one is seen.
#[test]
fn linear_layers_beside_ops_that_qdiff_does_not_know_are_probed() {
    let opened = Opened::new();
    let diagnosis = opened.checked(&opened.capture(|_| true, None), CheckMode::Probe);
    assert_eq!(origins(&diagnosis), [""; 0]);
    let probed = |name: &str| {
        let stages = diagnosis.verdict.stages.iter().filter(|stage| stage.id.name == name);
        stages.filter_map(|stage| stage.subject.as_ref()).map(|local| local.probed).sum::<usize>()
    };
    assert!(probed("router") > 0 && probed("logits") > 0);
    let half = Change("router", |site| site.output.data.iter_mut().skip(20).for_each(|v| *v *= 0.5));
    assert_eq!(origins(&opened.checked(&opened.capture(|_| true, Some(half)), CheckMode::Probe)), ["L01.router"]);
}

/// Operands exchanged, which the catalogue knows of any gate.
#[test]
fn a_cause_is_found_in_an_op_that_qdiff_does_not_know() {
    let opened = Opened::new();
    let swapped = Change("expert_act", |site| {
        let (gate, up) = (&site.inputs[0].data, &site.inputs[1].data);
        site.output.data = gate.iter().zip(up).map(|(gate, up)| up.tanh() * gate).collect();
    });
    let subject = opened.capture(|_| true, Some(swapped));
    let diagnosis = opened.diagnosis(&subject);
    assert_eq!(origins(&diagnosis), ["L01.expert_act"]);
    let cause = diagnosis.findings[0].cause.as_ref().expect("it is explained");
    assert_eq!(cause.name.to_string(), "gate-up-operands-swapped");
    let screen = screen(&opened, diagnosis);
    let words = unwrapped(&screen);
    let headline = "at L01.expert_act, all positions: the activation is applied to the other factor instead of";
    assert!(words.contains(headline), "{screen}");
    for stage in ["norm", "router", "experts", "shares", "expert_gate", "mixed"] {
        assert!(words.contains(&format!("L00.{stage} ")), "{stage}\n{screen}");
    }
}

/// A choice is wrong alone, and what follows the wrong choice is right.
#[test]
fn a_wrong_choice_is_one_origin() {
    let opened = Opened::new();
    let other = Change("experts", |site| {
        for chosen in site.output.data.chunks_mut(TAKEN).skip(3) {
            chosen[1] = (0..EXPERTS).map(|e| e as f32).find(|e| !chosen.contains(e)).unwrap();
        }
    });
    let diagnosis = opened.diagnosis(&opened.capture(|_| true, Some(other)));
    assert_eq!(origins(&diagnosis), ["L01.experts"]);
}

/// The experts' weights are read one expert on, which is seen in the product, whether its operands were captured or not.
#[test]
fn a_wrong_expert_is_found_in_its_product() {
    let opened = Opened::new();
    let next = || {
        Change("expert_down", |site| {
            let chosen = site.inputs[1].map(|e| (e + 1.0) % EXPERTS as f32);
            site.output.data = PRODUCT.forward32(&[&site.inputs[0], &chosen], site.context).data;
        })
    };
    let diagnosis = opened.diagnosis(&opened.capture(|_| true, Some(next())));
    assert_eq!(origins(&diagnosis), ["L01.expert_down"]);
    let fewer = opened.capture(|node| node.id.name != "expert_act", Some(next()));
    assert_eq!(origins(&opened.diagnosis(&fewer)), ["L01.expert_down"]);
}
