//! Every bug has a place in a synthetic model, and shows there.

use super::super::FaultyStages;
use super::{KernelFault, all};
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::Model;
use qdiff_engine::ops::{Op, Tensor, forward_with_bound};
use qdiff_engine::tap::{Intervene, NoTaps, Site};
use qdiff_synth::Synth;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

/// Tries every bug at every stage where it can be, beside a run that stays right, and notes the largest effect.
struct Trial<'a> {
    /// What a fault may see; plants nothing.
    stages: FaultyStages<'a>,
    effects: Arc<Mutex<HashMap<(&'static str, &'static str), f64>>>,
}

/// How far the row that is furthest off lies from the right one, as a multiple of what rounding may do.
fn effect(site: &Site<'_>, wrong: &Tensor<f32>) -> f64 {
    let right = &site.output;
    assert_eq!(right.shape, wrong.shape);
    assert!(wrong.data.iter().all(|v| v.is_finite()), "not finite");
    let differ = |i: usize| f64::from(right.data[i]) - f64::from(wrong.data[i]);
    if site.node.op.has_state() {
        return if (0..right.data.len()).any(|i| differ(i) != 0.0) { f64::INFINITY } else { 0.0 };
    }
    let wide: Vec<Tensor<f64>> = site.inputs.iter().map(|t| t.wide()).collect();
    let (_, bound) = forward_with_bound(&site.node.op, &wide.iter().collect::<Vec<_>>(), site.context);
    let positions = site.context.positions;
    let width = if right.shape.len() == 3 && matches!(site.node.op, Op::AttnScores(_) | Op::AttnWeights(_)) {
        right.shape[2]
    } else {
        right.row_len()
    };
    let mut worst = 0f64;
    for r in 0..right.data.len() / width {
        let counts = site.node.op.meaningful(positions[r % positions.len()], width);
        let row = r * width..r * width + counts;
        let off: f64 = row.clone().map(|i| differ(i).powi(2)).sum();
        let allowed: f64 = bound[row].iter().map(|b| f64::from(*b).powi(2)).sum();
        if off > 0.0 {
            worst = worst.max((off / allowed).sqrt());
        }
    }
    worst
}

impl Intervene for Trial<'_> {
    fn change(&mut self, site: Site<'_>) {
        let (model, id) = (self.stages.model, site.node.id);
        // No more than is kept for a fault that is planted here.
        self.stages.places = vec![(|_| (), id)];
        let unseen = model.graph().nodes.iter().filter(|n| !self.stages.seen_later(n));
        for id in unseen.map(|n| n.id).collect::<Vec<_>>() {
            self.stages.others.remove(&id);
        }
        for fault in all().filter(|f| (f.places)(model.graph(), site.node, model)) {
            let wrong = self.stages.spoiled(fault.spoil, &site);
            let effect = effect(&site, &wrong);
            let mut effects = self.effects.lock().unwrap();
            let worst = effects.entry((fault.name, id.name)).or_default();
            *worst = worst.max(effect);
        }
        self.stages.others.insert(id, site.output.data.clone());
        self.stages.old.insert(id, site.output.data.clone());
    }
}

/// The largest effect of each bug on each kind of stage, over a prompt of so many tokens and three steps more.
fn effects(model: &Model, prompt: usize) -> HashMap<(&'static str, &'static str), f64> {
    let effects = Arc::default();
    let stages = FaultyStages::new(model, Vec::new());
    let trial = Trial { stages, effects: Arc::clone(&effects) };
    let mut engine = CpuEngine::new(model.graph().clone(), model).intervened(Box::new(trial));
    let id = |i: usize| (i * 37 + 11) as u32 % 400;
    engine.step(&(0..prompt).map(id).collect::<Vec<_>>(), &mut NoTaps);
    for step in 0..3 {
        engine.step(&[id(prompt + step)], &mut NoTaps);
    }
    drop(engine);
    std::mem::take(&mut *effects.lock().unwrap())
}

#[test]
fn every_bug_shows() {
    let model = Model::new(Gguf::from_bytes(Synth::default().to_bytes()).unwrap()).unwrap();
    let effects = effects(&model, 12);
    let shown: BTreeSet<&str> = effects.keys().map(|(name, _)| *name).collect();
    let placeless: Vec<&str> = all().map(|f| f.name).filter(|name| !shown.contains(name)).collect();
    assert!(placeless.is_empty(), "without a place: {placeless:?}");
    let weak: Vec<_> = effects.into_iter().filter(|(_, effect)| *effect < 4.0).collect();
    assert!(weak.is_empty(), "no more than rounding: {weak:?}");
}

#[test]
fn names_are_unique_and_every_bug_is_described() {
    let mut names = BTreeSet::new();
    for KernelFault { name, what, .. } in all() {
        assert!(names.insert(name), "{name} twice");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
        assert!(!what.is_empty() && !what.ends_with('.'), "{name}: {what}");
    }
    assert!(names.len() >= 90);
}
