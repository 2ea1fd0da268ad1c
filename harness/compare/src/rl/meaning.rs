//! What the logprobs mean that an engine reports: a hypothesis is fitted on half of them, and named only where it gives the other half.

use crate::loaded::LoadedModel;
use crate::number::{Real, counted, number};
use qdiff_engine::ops::UNIT;
use schemars::JsonSchema;
use serde::Serialize;

/// `z[id] - log Σ exp z[i]`, and by how much f32 may be off.
pub(super) fn logprob(row: &[f32], id: usize) -> (f64, f64) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|z| f64::from(z - largest).exp()).sum();
    let (z, top, log) = (f64::from(row[id]), f64::from(largest), sum.ln());
    let off = UNIT * (2.0 * z.abs() + 2.0 * top.abs() + 2.0 * log + (row.len() as f64).sqrt() + 4.0);
    (z - top - log, off)
}

/// Tokens that a hypothesis must give that it was not fitted on, and that the plain logprob does not give.
const LEAST: usize = 3;

/// Rows that a temperature is fitted on.
const FITTED: usize = 8;

/// Rows on which a temperature beside a truncation is tried first.
const SCREENED: usize = 3;

/// Differences of logits that are the same but for their division by a temperature in f32.
const SAME: f64 = 1e-6;

/// `LLAMA_TOKEN_TYPE_CONTROL` and `LLAMA_TOKEN_TYPE_UNUSED` of llama.h.
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// A row of logits with what is reported of the token after it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Position of the token before.
    pub(super) at: usize,
    /// The logprob.
    pub(super) value: f64,
    /// How far a right value may be from it.
    pub(super) slack: f64,
    pub(super) logits: Vec<f32>,
}

/// Ids that are left out of the softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// The special tokens.
    Special,
    /// The end token.
    End,
    /// Padding: ids that no text has.
    Padding,
}

/// What reported logprobs are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Meaning {
    /// The logprob of each token.
    Plain,
    /// That of the token so many positions later.
    Shifted(i32),
    /// Each row's own token, and not the one after it.
    Unshifted,
    /// With the logits divided by this.
    Temperature(Real),
    /// At a temperature and among some tokens.
    TemperedAmong {
        /// What logits are divided by.
        temperature: Real,
        /// The tokens.
        cut: Cut,
        /// Whether these are chosen by the probabilities at that temperature, as vLLM does, or by the plain ones, as llama.cpp does.
        after: bool,
    },
    /// Without some ids.
    Without(Left),
    /// None of these.
    Unknown,
    /// Among some tokens.
    #[serde(untagged)]
    Among(Cut),
}

/// The tokens that a truncated softmax is over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// So many with the largest logits: all counts between these give the same numbers.
    TopK([usize; 2]),
    /// The fewest that have a probability together, which lies between these.
    TopP([Real; 2]),
    /// Those with a share of the largest probability, which lies between these.
    MinP([Real; 2]),
}

/// What reported logprobs are, and how that is known.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Means {
    /// What they are.
    pub what: Meaning,
    /// Tokens whose logprob it gives that it was not fitted on.
    pub predicted: usize,
    /// Tokens whose reported number is no plain logprob.
    pub other: usize,
    /// Tokens that were looked at.
    pub tokens: usize,
    /// Position of the first token whose logprob is not plain.
    pub first: Option<usize>,
    /// Another meaning that gives all the same tokens.
    pub also: Option<Meaning>,
}

impl Meaning {
    /// In words, as what logprobs are.
    pub fn words(self) -> String {
        match self {
            Self::Plain => "the plain logprobs of the logits".to_owned(),
            Self::Shifted(by) => {
                let (n, way) = (counted(by.unsigned_abs() as usize, "position"), if by > 0 { "after" } else { "before" });
                format!("shifted: each number is the logprob of the token {n} {way} its own")
            }
            Self::Unshifted => "shifted: each row of logits is read at its own token, not at the token that follows".to_owned(),
            Self::Temperature(t) => format!("at temperature {}: the logits are divided by it first", number(t.0)),
            Self::Among(cut) => format!("truncated: the softmax is over {}", cut.words()),
            Self::TemperedAmong { temperature, cut, after } => {
                let order = if after { "" } else { ", chosen before that" };
                format!(
                    "at temperature {} and truncated: the logits are divided by it, and the softmax is over {}{order}",
                    number(temperature.0),
                    cut.words()
                )
            }
            Self::Without(left) => {
                let what = match left {
                    Left::Special => "the special tokens",
                    Left::End => "the end token",
                    Left::Padding => "padding (ids that no text has)",
                };
                format!("a softmax that leaves out {what}")
            }
            Self::Unknown => "no plain logprobs of the logits: neither shifted, nor truncated, nor at a temperature, nor without special tokens".to_owned(),
        }
    }
}

impl Cut {
    /// The tokens in words.
    fn words(self) -> String {
        match self {
            Self::TopK([least, most]) if least == most => {
                format!("the {} of the row alone", counted(least, "largest logit"))
            }
            Self::TopK([least, most]) => format!("the largest logits of the row alone, {least} to {most} of them"),
            Self::TopP([low, high]) => {
                format!("the fewest tokens that have a probability of {} to {} together", number(low.0), number(high.0))
            }
            Self::MinP([low, high]) => {
                format!(
                    "the tokens whose probability is at least {} to {} of the largest",
                    number(low.0),
                    number(high.0)
                )
            }
        }
    }

    /// The smallest logit among these, less the largest of the row.
    fn least(self, logits: &[f32]) -> f64 {
        match self {
            Self::TopK([k, _]) => nth(logits, k),
            Self::TopP(between) => nth(logits, fewest(logits, roundest(between))),
            Self::MinP(between) => roundest(between).ln(),
        }
    }
}

/// What the vocabulary says of its ids.
struct Ids {
    special: Vec<usize>,
    end: Vec<usize>,
    padding: Vec<usize>,
}

impl Ids {
    fn of(opened: &LoadedModel, rows: usize) -> Self {
        let gguf = opened.model.gguf();
        let types = gguf.get("tokenizer.ggml.token_type").and_then(|v| v.as_i32_array()).unwrap_or_default();
        let end = gguf.get("tokenizer.ggml.eos_token_id").and_then(|v| v.as_u64()).map(|id| id as usize);
        let with = |kind: i32| types.iter().enumerate().filter(move |(_, t)| **t == kind).map(|(id, _)| id);
        let beyond = if types.is_empty() { rows..rows } else { types.len().min(rows)..rows };
        Self {
            special: with(CONTROL).filter(|id| *id < rows).collect(),
            end: end.into_iter().filter(|id| *id < rows).collect(),
            padding: with(UNUSED).chain(beyond).filter(|id| *id < rows).collect(),
        }
    }

    fn left(&self, left: Left) -> &[usize] {
        match left {
            Left::Special => &self.special,
            Left::End => &self.end,
            Left::Padding => &self.padding,
        }
    }
}

/// The logits, with what a hypothesis makes of them.
struct Rows<'a> {
    rows: &'a [Row],
    ids: &'a [u32],
    vocabulary: Ids,
}

impl Rows<'_> {
    /// What the hypothesis gives for a row; `None` where it needs a row that is not there.
    fn predict(&self, meaning: Meaning, row: &Row) -> Option<f64> {
        let target = *self.ids.get(row.at + 1)? as usize;
        // Over the logits that are no less than so much below the largest.
        let among = |least: f64, temperature: f64| {
            let largest = row.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let least = least - SAME * least.abs();
            let z = |id: usize| f64::from(row.logits[id]) - f64::from(largest);
            let kept = (0..row.logits.len()).map(&z).filter(|z| *z >= least);
            let sum: f64 = kept.map(|z| (z / temperature).exp()).sum();
            if z(target) >= least { z(target) / temperature - sum.ln() } else { f64::NEG_INFINITY }
        };
        Some(match meaning {
            Meaning::Plain | Meaning::Unknown => logprob(&row.logits, target).0,
            Meaning::Unshifted => logprob(&row.logits, self.ids[row.at] as usize).0,
            Meaning::Shifted(by) => {
                let at = row.at.checked_add_signed(by as isize)?;
                let other = self.rows.iter().find(|row| row.at == at)?;
                logprob(&other.logits, *self.ids.get(at + 1)? as usize).0
            }
            Meaning::Temperature(t) => among(f64::NEG_INFINITY, t.0),
            Meaning::Among(cut) => among(cut.least(&row.logits), 1.0),
            Meaning::TemperedAmong { temperature: Real(t), cut, after: true } => {
                // The cut is that of the divided logits.
                among(cut.least(&divided(&row.logits, t)) * t, t)
            }
            Meaning::TemperedAmong { temperature: Real(t), cut, .. } => among(cut.least(&row.logits), t),
            Meaning::Without(left) => {
                let out = self.vocabulary.left(left);
                if out.contains(&target) {
                    return Some(f64::NEG_INFINITY);
                }
                let (value, _) = logprob(&row.logits, target);
                let odds = |id: &usize| (f64::from(row.logits[*id]) - f64::from(row.logits[target])).exp();
                value - (-value.exp() * out.iter().map(odds).sum::<f64>()).ln_1p()
            }
        })
    }

    /// Whether the hypothesis gives what is reported.
    fn gives(&self, meaning: Meaning, row: &Row) -> Option<bool> {
        let want = self.predict(meaning, row)?;
        Some(want == row.value || (want - row.value).abs() <= row.slack)
    }

    /// Tokens of `held` that the hypothesis gives and the plain one does not; none where it fails at one, or is not fitted.
    fn predicts(&self, meaning: Meaning, fit: &[&Row], held: &[&Row]) -> usize {
        let fails = |row: &&&Row| self.gives(meaning, row) == Some(false);
        if fit.iter().chain(held).any(|row| fails(&row)) {
            return 0;
        }
        let told =
            |row: &&&Row| self.gives(meaning, row) == Some(true) && self.gives(Meaning::Plain, row) == Some(false);
        held.iter().filter(told).count()
    }

    /// The temperature that fits rows best, by least squares.
    fn temperature(&self, fit: &[&Row]) -> Option<Meaning> {
        let fit = &fit[..fit.len().min(FITTED)];
        let of = |log: f64| Meaning::Temperature(Real(log.exp()));
        let error = |log: f64| -> f64 {
            let apart = |row: &&Row| self.predict(of(log), row).map_or(0.0, |want| (want - row.value).powi(2));
            fit.iter().map(apart).sum()
        };
        let grid: Vec<f64> = (-30..=30).map(|i| f64::from(i) / 10.0).collect();
        let best = grid.into_iter().min_by(|a, b| error(*a).total_cmp(&error(*b)))?;
        // Golden section.
        let (mut low, mut high) = (best - 0.1, best + 0.1);
        for _ in 0..40 {
            let (a, b) = (high - (high - low) / 1.618_033_988_749_895, low + (high - low) / 1.618_033_988_749_895);
            if error(a) < error(b) { high = b } else { low = a }
        }
        // People set temperatures of few digits.
        let (found, short) = (f64::midpoint(low, high).exp(), |t: f64| (t * 1000.0).round() / 1000.0);
        let near = short(found) > 0.0
            && fit.iter().all(|row| self.gives(Meaning::Temperature(Real(short(found))), row) == Some(true));
        Some(Meaning::Temperature(Real(if near { short(found) } else { found })))
    }

    /// What may have cut the tail off: how many logits, which probability, which share, such that all of `fit` follow.
    fn truncated(&self, fit: &[&Row]) -> Vec<Meaning> {
        self.cuts(fit, 1.0, true).into_iter().map(Meaning::Among).collect()
    }

    /// The same at one of the temperatures that people set. Rows that a few of `fit` rule out are not looked at.
    fn tempered(&self, fit: &[&Row]) -> Vec<Meaning> {
        let all = (2..=40).map(|i| f64::from(i) * 0.05).filter(|t| (t - 1.0).abs() > 1e-6);
        let all = all.flat_map(|t| [true, false].map(|after| (t, after)));
        all.filter(|(t, after)| !self.cuts(&fit[..fit.len().min(SCREENED)], *t, *after).is_empty())
            .flat_map(|(t, after)| {
                let meaning =
                    move |cut| Meaning::TemperedAmong { temperature: Real((t * 100.0).round() / 100.0), cut, after };
                self.cuts(fit, t, after).into_iter().map(meaning)
            })
            .collect()
    }

    /// The cuts that give all of `fit` at temperature `t`, by the probabilities at that temperature (`after`) or by plain ones.
    fn cuts(&self, fit: &[&Row], t: f64, after: bool) -> Vec<Cut> {
        let (mut counts, mut masses, mut shares) = ((1, usize::MAX), (0.0, 1.0), (0.0, 1.0));
        for row in fit {
            let Some(target) = self.ids.get(row.at + 1) else { continue };
            let hot = divided(&row.logits, t);
            let (plain, _) = logprob(&hot, *target as usize);
            if !row.value.is_finite() {
                continue;
            }
            // Probabilities from the largest on, and those of all before each.
            let hot = sorted(&hot);
            let sorted = if after { hot.clone() } else { sorted(&row.logits) };
            let kept = |mass: f64| (plain - mass.ln() - row.value).abs() <= row.slack;
            // Equal logits go together: where they begin, what is before them, and what is behind.
            let (mut mass, mut of_softmax, mut at) = (0.0, 0.0, 0);
            let groups = sorted.chunk_by(|a, b| a == b).map(|equal| {
                let (begin, before) = (at, mass);
                (at, mass) = (at + equal.len(), mass + equal.iter().sum::<f64>());
                of_softmax += hot[begin..at].iter().sum::<f64>();
                (begin, at, before, mass, of_softmax)
            });
            let fitting = groups.filter(|(.., of_softmax)| kept(*of_softmax));
            let fitting: Vec<(usize, usize, f64, f64)> =
                fitting.map(|(begin, end, before, mass, _)| (begin, end, before, mass)).collect();
            let (Some(first), Some(last)) = (fitting.first(), fitting.last()) else { return Vec::new() };
            counts = (counts.0.max(first.0 + 1), counts.1.min(last.1));
            masses = (f64::max(masses.0, first.2), f64::min(masses.1, last.3));
            let next = sorted.get(last.1).map_or(0.0, |p| p / sorted[0]);
            shares = (f64::max(shares.0, next), f64::min(shares.1, sorted[first.0] / sorted[0]));
        }
        let between = |(low, high): (f64, f64)| (low < high).then_some([Real(low), Real(high)]);
        let count = (counts.0 <= counts.1).then_some(Cut::TopK([counts.0, counts.1]));
        count.into_iter().chain(between(masses).map(Cut::TopP)).chain(between(shares).map(Cut::MinP)).collect()
    }
}

/// Logits at a temperature, as an engine in f32 divides them.
fn divided(logits: &[f32], t: f64) -> Vec<f32> {
    logits.iter().map(|z| (f64::from(*z) / t) as f32).collect()
}

/// The number of fewest digits between two: people set such ones.
fn roundest([Real(low), Real(high)]: [Real; 2]) -> f64 {
    let short = (1..12).find_map(|digits| {
        let scale = 10f64.powi(digits);
        let number = (low * scale).floor() + 1.0;
        (number / scale < high).then_some(number / scale)
    });
    short.unwrap_or(f64::midpoint(low, high))
}

/// Probabilities, the largest first.
fn sorted(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut all: Vec<f64> = logits.iter().map(|z| f64::from(z - largest).exp()).collect();
    all.sort_unstable_by(|a, b| b.total_cmp(a));
    let sum: f64 = all.iter().sum();
    all.iter_mut().for_each(|p| *p /= sum);
    all
}

/// How many tokens it takes to have a probability together.
fn fewest(logits: &[f32], probability: f64) -> usize {
    let mut mass = 0.0;
    let reaches = |p: &f64| {
        mass += p;
        mass >= probability
    };
    sorted(logits).iter().position(reaches).map_or(logits.len(), |i| i + 1)
}

/// The `k`th largest logit, less the largest.
fn nth(logits: &[f32], k: usize) -> f64 {
    let mut all = logits.to_vec();
    let largest = all.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (_, nth, _) = all.select_nth_unstable_by(k.clamp(1, logits.len()) - 1, |a, b| b.total_cmp(a));
    f64::from(*nth) - f64::from(largest)
}

/// What the numbers of these rows are.
pub(super) fn of(opened: &LoadedModel, rows: &[Row], ids: &[u32]) -> Means {
    let vocabulary = Ids::of(opened, rows.first().map_or(0, |row| row.logits.len()));
    named(&Rows { rows, ids, vocabulary })
}

fn named(all: &Rows<'_>) -> Means {
    let rows = all.rows;
    let other: Vec<&Row> = rows.iter().filter(|row| all.gives(Meaning::Plain, row) == Some(false)).collect();
    let first = other.first().map(|row| row.at + 1);
    let (tokens, other) = (rows.len(), other.len());
    let plain = Means { what: Meaning::Plain, predicted: tokens, other, tokens, first, also: None };
    if other == 0 {
        return plain;
    }
    let (fit, held): (Vec<_>, Vec<_>) = rows.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    let (fit, held): (Vec<&Row>, Vec<&Row>) =
        (fit.into_iter().map(|(_, row)| row).collect(), held.into_iter().map(|(_, row)| row).collect());
    let fixed = [Meaning::Shifted(1), Meaning::Shifted(-1), Meaning::Unshifted];
    let left = [Left::End, Left::Special, Left::Padding].map(Meaning::Without);
    let tried = fixed.into_iter().chain(left).chain(all.temperature(&fit)).chain(all.truncated(&fit));
    let predicting = |tried: &mut dyn Iterator<Item = Meaning>| -> Vec<(Meaning, usize)> {
        let predicted = tried.map(|meaning| (meaning, all.predicts(meaning, &fit, &held)));
        predicted.filter(|(_, predicted)| *predicted >= LEAST).collect()
    };
    let mut found = predicting(&mut { tried });
    if found.is_empty() {
        found = predicting(&mut all.tempered(&fit).into_iter());
    }
    // A meaning was fitted on half of the rows and gives the others; now all rows narrow its numbers.
    let every: Vec<&Row> = rows.iter().collect();
    let narrow = |cut: &mut Cut, t: f64, after: bool| {
        let same = |other: &Cut| std::mem::discriminant(other) == std::mem::discriminant(cut);
        *cut = all.cuts(&every, t, after).into_iter().find(same).unwrap_or(*cut);
    };
    for (meaning, _) in &mut found {
        match meaning {
            Meaning::Among(cut) => narrow(cut, 1.0, true),
            Meaning::TemperedAmong { temperature, cut, after } => narrow(cut, temperature.0, *after),
            _ => {}
        }
    }
    match found.as_slice() {
        [] => Means { what: Meaning::Unknown, predicted: 0, ..plain },
        [(what, predicted), others @ ..] => {
            Means { what: *what, predicted: *predicted, also: others.first().map(|(also, _)| *also), ..plain }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: usize = 200;

    /// Rows of logits drawn by chance, some of them equal, with what `meaning` makes of them.
    fn told(meaning: Option<Meaning>, off: impl Fn(usize) -> f64) -> Means {
        let mut state = 1u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        let rows: Vec<Row> = (0..24)
            .map(|at| Row {
                at,
                value: 0.0,
                slack: 1e-4,
                logits: (0..VOCABULARY).map(|_| (unit() * 64.0).floor() / 8.0).collect(),
            })
            .collect();
        // The tokens that are likely: a truncation keeps them.
        let likely =
            |row: &Row| crate::metrics::argmax(&row.logits.iter().map(|z| f64::from(*z)).collect::<Vec<_>>()) as u32;
        let ids: Vec<u32> = std::iter::once(0).chain(rows.iter().map(likely)).collect();
        let vocabulary = || Ids { special: vec![3, 5], end: vec![5], padding: vec![198, 199] };
        let all = Rows { rows: &rows, ids: &ids, vocabulary: vocabulary() };
        let value = |row: &Row| meaning.and_then(|m| all.predict(m, row)).unwrap_or(-1.0) + off(row.at);
        let told: Vec<Row> = rows.iter().map(|row| Row { value: value(row), ..row.clone() }).collect();
        named(&Rows { rows: &told, ids: &ids, vocabulary: vocabulary() })
    }

    /// Each meaning is named as itself, with its parameter; what is none of them stays unknown.
    #[test]
    fn each_meaning_is_named() {
        let exact = |_| 0.0;
        for meaning in [
            Meaning::Plain,
            Meaning::Unshifted,
            Meaning::Temperature(Real(0.7)),
            Meaning::Temperature(Real(1.3)),
            Meaning::Without(Left::Special),
        ] {
            let found = told(Some(meaning), exact);
            assert_eq!(found.what, meaning, "{found:?}");
            assert!(meaning == Meaning::Plain || found.predicted >= LEAST, "{found:?}");
        }
    }

    /// A truncation is named with the numbers between which its own lies, at a temperature or without one.
    #[test]
    fn each_truncation_is_named() {
        let cuts = [Cut::TopK([40, 40]), Cut::TopP([Real(0.9), Real(0.9)]), Cut::MinP([Real(0.25), Real(0.25)])];
        let is = |cut: Cut, found: Cut| match (cut, found) {
            (Cut::TopK([k, _]), Cut::TopK([least, most])) => (least..=most).contains(&k) && most - least < 10,
            (Cut::TopP([p, _]), Cut::TopP([low, high])) | (Cut::MinP([p, _]), Cut::MinP([low, high])) => {
                low.0 <= p.0 && p.0 <= high.0 && high.0 - low.0 < 0.05
            }
            _ => false,
        };
        for cut in cuts {
            let found = told(Some(Meaning::Among(cut)), |_| 0.0);
            assert!(
                found.predicted >= LEAST && matches!(found.what, Meaning::Among(found) if is(cut, found)),
                "{found:?}"
            );
            for (t, after) in [(0.7, true), (1.5, true), (0.7, false)] {
                let found = told(Some(Meaning::TemperedAmong { temperature: Real(t), cut, after }), |_| 0.0);
                let right = |meaning: Meaning| match meaning {
                    // The largest logits are the same at each temperature.
                    Meaning::TemperedAmong { temperature, cut: found, after: order } => {
                        temperature == Real(t) && is(cut, found) && (order == after || matches!(cut, Cut::TopK(_)))
                    }
                    _ => false,
                };
                assert!(
                    found.predicted >= LEAST && (right(found.what) || found.also.is_some_and(right)),
                    "{cut:?} {t} {after}: {found:?}"
                );
            }
        }
    }

    /// A part that fits the tokens that were looked at first, and a value that nothing gives, are no meaning.
    #[test]
    fn what_does_not_predict_is_not_named() {
        assert_eq!(told(Some(Meaning::Plain), |at| 0.01 * (at % 5) as f64).what, Meaning::Unknown);
        assert_eq!(
            told(Some(Meaning::Temperature(Real(0.7))), |at| if at == 17 { 0.01 } else { 0.0 }).what,
            Meaning::Unknown
        );
        assert_eq!(told(None, |_| 0.0).what, Meaning::Unknown);
    }
}
