//! Arithmetic read off the values: the declaration under which every stage is right of a subject that declares none.

use crate::arithmetic::{Arithmetic, AttentionRule, Declared, LinearRule, Named};
use crate::capture::Rounding;
use crate::diagnose::Diagnosis;
use crate::formats::Formats;
use crate::pair::{Pair, Recording};
use crate::runners::pairs::{PAIRS, Pairs};
use crate::verdict::{Side, StageResult, Verdict, judge};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Node, WeightSource as _};
use qdiff_engine::quant::{FORMATS, Format, GgmlType};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashSet};

/// Stages, by name, that must be wrong: what a narrow format does it does in many.
const STAGES: usize = 4;

/// The relative error of a row beyond which no format explains it.
const LARGEST: f64 = 0.1;

/// Seconds that judging the stages may have taken, without the search for causes: it is done once more for each arithmetic.
const LONGEST: f64 = 2.0;

/// As a manifest has it. Nothing where the subject declares something, few stages are wrong or one is by much, or no arithmetic makes
/// all of them right.
pub(super) fn proposed(
    pair: &Pair<'_>, subject: &mut Recording, reference: Option<&Recording>, diagnosis: &Diagnosis,
) -> Option<String> {
    let origins = diagnosis.verdict.origins();
    let names: BTreeSet<&str> = origins.iter().map(|origin| origin.id.name).collect();
    let small = origins
        .iter()
        .all(|origin| origin.subject.as_ref().is_some_and(|local| local.extent.is_none() && local.residual <= LARGEST));
    let declared = subject.manifest.arithmetic != Arithmetic::default();
    let judging: f64 = diagnosis.verdict.stages.iter().map(|stage| stage.seconds).sum();
    if declared || names.len() < STAGES || !small || judging > LONGEST {
        return None;
    }
    let asked = diagnosis.verdict.coverage.judged;
    let right = |verdict: &Verdict| verdict.coverage.judged >= asked && !verdict.diverged();
    let of_products = origins.iter().all(|origin| !formats(pair, origin).is_empty());
    let mut judged = |arithmetic: &Arithmetic| {
        arithmetic.check(&pair.oracle.graph, &pair.oracle.weights).ok()?;
        let rounding = Rounding::new(&pair.oracle.graph, &arithmetic.outputs, &Formats::default()).ok()?;
        let own = std::mem::replace(&mut subject.capture.rounding, rounding);
        let side = Side { capture: &subject.capture, arithmetic };
        let other = reference.map(Recording::side);
        let verdict = judge(&pair.oracle, side, other, &pair.filter, &pair.policy, pair.progress);
        subject.capture.rounding = own;
        verdict.ok()
    };
    if of_products && let Some(linear) = products(pair, &mut judged, &right) {
        return written(&Declared::Explicit(Arithmetic { linear, ..Arithmetic::default() }));
    }
    let of_reference = reference.map(|reference| {
        let mut arithmetic = reference.manifest.arithmetic.clone();
        let model = in_products(pair);
        arithmetic
            .linear
            .retain(|rule| rule.weights.is_empty() || model.iter().any(|format| format.ty.name() == rule.weights));
        Declared::Explicit(arithmetic)
    });
    // Rounded weights alone allow least.
    let loaded = |parameters| Declared::Explicit(Arithmetic { parameters, ..Arithmetic::default() });
    let loaded = [DType::F16, DType::Bf16].map(loaded);
    let mut all = loaded.into_iter().chain(Named::ALL.map(Declared::Named)).chain(of_reference);
    let found = all.find(|declared| {
        let arithmetic = declared.arithmetic();
        arithmetic != Arithmetic::default() && judged(&arithmetic).is_some_and(|verdict| right(&verdict))
    });
    found.as_ref().and_then(written)
}

/// The formats of weights in products that a stage was judged by: its own, and those of its segment.
fn formats(pair: &Pair<'_>, stage: &StageResult) -> Vec<GgmlType> {
    let graph = &pair.oracle.graph;
    let segment = stage.subject.as_ref().and_then(|local| local.segment.as_ref());
    let ids = segment.map_or(std::slice::from_ref(&stage.id), |segment| &segment.stages);
    let nodes = ids.iter().filter_map(|id| graph.index(*id)).map(|index| &graph.nodes[index]);
    nodes.flat_map(|node| of_node(pair, node)).collect()
}

fn of_node(pair: &Pair<'_>, node: &Node) -> Vec<GgmlType> {
    let weights = if node.op.anatomy().multiplies_weights() { node.weights.as_slice() } else { &[] };
    let types = weights.iter().map(|weight| pair.oracle.weights.ggml_type(&weight.name));
    types.filter(|ty| *ty != GgmlType::F32).collect()
}

/// Those of all products of the model.
fn in_products(pair: &Pair<'_>) -> Vec<&'static Format> {
    let model: HashSet<GgmlType> = pair.oracle.graph.nodes.iter().flat_map(|node| of_node(pair, node)).collect();
    FORMATS.iter().filter(|format| model.contains(&format.ty)).collect()
}

/// Rules under which every product is right, by the ways of engines: one way for all formats of weights, or one for each.
fn products(
    pair: &Pair<'_>, judged: &mut impl FnMut(&Arithmetic) -> Option<Verdict>, right: &impl Fn(&Verdict) -> bool,
) -> Option<Vec<LinearRule>> {
    let model = in_products(pair);
    let mut first: Vec<Option<Pairs>> = vec![None; model.len()];
    let mut holds = |linear: &[LinearRule]| {
        let verdict = judged(&Arithmetic { linear: linear.to_vec(), ..Arithmetic::default() })?;
        let wrong: HashSet<GgmlType> = verdict.origins().into_iter().flat_map(|stage| formats(pair, stage)).collect();
        Some((right(&verdict), wrong))
    };
    for pairs in PAIRS {
        let linear: Vec<LinearRule> = model.iter().copied().flat_map(pairs).collect();
        let Some((all, wrong)) = holds(&linear) else { continue };
        if all {
            return Some(linear);
        }
        for (format, first) in model.iter().zip(&mut first) {
            if !wrong.contains(&format.ty) {
                first.get_or_insert(pairs);
            }
        }
    }
    let each = model.into_iter().zip(first).map(|(format, pairs)| pairs.map(|pairs| pairs(format)));
    let linear: Vec<LinearRule> = each.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
    holds(&linear).filter(|(all, _)| *all).map(|_| linear)
}

/// As a manifest has it, without what is f32 anyway.
fn written(declared: &Declared) -> Option<String> {
    let mut value = serde_json::to_value(declared).ok()?;
    if let Value::Object(arithmetic) = &mut value {
        for (list, plain) in
            [("linear", fields(&LinearRule::default())?), ("attention", fields(&AttentionRule::default())?)]
        {
            let rules = arithmetic.get_mut(list).and_then(Value::as_array_mut);
            let rules = rules.into_iter().flatten().filter_map(Value::as_object_mut);
            rules.for_each(|rule| rule.retain(|name, value| plain.get(name) != Some(value)));
        }
        let plain = fields(&Arithmetic::default())?;
        arithmetic.retain(|name, value| plain.get(name) != Some(value));
    }
    Some(format!("\"arithmetic\": {}", spaced(&value)))
}

/// JSON on one line, with spaces where a screen may break it.
fn spaced(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let each = fields.iter().map(|(name, value)| format!("{}: {}", Value::from(name.as_str()), spaced(value)));
            format!("{{{}}}", each.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) => format!("[{}]", values.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        plain => plain.to_string(),
    }
}

fn fields(of: &impl Serialize) -> Option<Map<String, Value>> {
    match serde_json::to_value(of).ok()? {
        Value::Object(fields) => Some(fields),
        _ => None,
    }
}
