//! Free-running generation on two sides: each draws its own tokens with the
//! same chain of samplers and the same seed, and feeds them back to itself.
//!
//! Where the texts part, the logits before the first different token say by how little or much. Alone that proves
//! nothing; to separate rounding from a bug, qdiff runs both sides on the same tokens and judges
//! every stage ([`Pair`]).

mod plan;
pub mod repetition;
mod replay;
mod side;

pub use plan::{OtherDraw, Plan};
pub use side::{GeneratedText, GenerationSide, SideSampler, Stop};

use crate::capture::Want;
use crate::diagnose::Diagnosis;
use crate::llama::Model;
use crate::llama::sampler::LlamaSampler;
use crate::metrics::{largest, largest_difference, margin};
use crate::pair::{Pair, Recording};
use crate::runners::{Faults, RunnerKind};
use anyhow::Result;
use qdiff_engine::sampler::Drawn;
use replay::SamplerReplay;
use schemars::JsonSchema;
use serde::Serialize;

/// Tokens shown of each side at the fork.
const BEST: usize = 5;
/// Tokens after the fork on which the sides are judged as well.
const AFTER: usize = 16;

/// A token as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Shown {
    /// Its id.
    pub token: u32,
    /// Its text, quoted.
    pub text: String,
    /// Its logit.
    pub logit: f32,
    /// Its probability before any sampler.
    pub probability: f64,
}

/// One side at the fork.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Choice {
    /// The token it drew.
    pub drawn: Shown,
    /// The tokens of largest logit, the largest first.
    pub best: Vec<Shown>,
    /// By how much its logits prefer its own token to the other side's; it can
    /// be negative where a draw, not the largest logit, decides.
    pub margin: f64,
    /// Where its draw fell; absent where nothing is drawn, or the side does not tell.
    pub draw: Option<Drawn>,
}

/// Where the texts part.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Fork {
    /// Index of the generated token.
    pub index: usize,
    /// The side under suspicion.
    pub subject: Choice,
    /// The side it is held against.
    pub reference: Choice,
    /// Largest difference of the two sides' logits at this token.
    pub error: f64,
    /// The same at the tokens before, 0 at the first.
    pub error_before: f64,
    /// Whether logits that differ so little can have made it.
    pub reach: Reach,
}

/// How far a choice is from another one, and how far an error of the logits can move it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Reach {
    /// The reference's margin of a greedy choice; how far a draw lies
    /// from the nearer edge of its token's share.
    pub needed: f64,
    /// What logits off by the error can move that by: a margin by twice the
    /// error; an edge as far as the odds on its two sides can shift.
    pub possible: f64,
}

impl Reach {
    /// Whether the error alone is enough. Where it is not, and every stage does its mathematics, the error changed the
    /// order of the tokens or what the filters leave.
    pub fn within(&self) -> bool {
        self.needed <= self.possible
    }

    fn of(reference: &Choice, error: f64, temperature: f32) -> Self {
        let Some(draw) = reference.draw else {
            return Self { needed: reference.margin, possible: 2.0 * error };
        };
        // Each logit off by e multiplies the odds of any set of tokens against
        // the others by at most exp(2 e / temperature).
        let shift = 2.0 * error / f64::from(temperature);
        let moved = |edge: f64, by: f64| {
            let odds = edge / (1.0 - edge) * by.exp();
            if odds.is_finite() { odds / (1.0 + odds) } else { 1.0 }
        };
        let below = (draw.at - draw.from, moved(draw.from, shift) - draw.from);
        let above = (draw.to - draw.at, draw.to - moved(draw.to, -shift));
        let (needed, possible) = if below.0 <= above.0 { below } else { above };
        Self { needed, possible }
    }
}

/// Two texts.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Generation {
    /// What the subject said.
    pub subject: GeneratedText,
    /// What the reference said.
    pub reference: GeneratedText,
    /// Where they part, if they do.
    pub fork: Option<Fork>,
    /// Index of the token at which the engine's samplers drew another one than
    /// llama.cpp's from the very same logits: a bug in the samplers.
    pub sampler_differs: Option<OtherDraw>,
}

impl Generation {
    /// Index of the first token at which one side said another thing, or could say nothing.
    pub fn parts_at(&self) -> Option<usize> {
        let silent = |s: &GeneratedText| (s.stop == Stop::NotANumber).then_some(s.tokens.len());
        let silent = silent(&self.subject).or(silent(&self.reference));
        self.fork.as_ref().map(|f| f.index).or(silent)
    }
}

/// Lets both sides speak at once: the reference until llama.cpp calls a token an end, the subject until it does itself. `told` hears every pair of tokens, as soon as it is there.
///
/// # Errors
/// Whatever keeps a side from speaking.
pub fn generate(
    pair: &Pair<'_>, plan: Plan<'_>, subject: &RunnerKind, reference: &RunnerKind, faults: Faults,
    mut told: impl FnMut(Option<u32>, Option<u32>) -> Result<()>,
) -> Result<Generation> {
    let llama = pair.opened.llama()?;
    let chain = plan.sampling.chain();
    let ours = || SideSampler::Ours(Box::new(plan.sampler(plan.spoiled, llama.n_tokens())));
    let draw = |kind: &RunnerKind| match kind.llama {
        true => SideSampler::Theirs(LlamaSampler::new(&chain, llama.n_tokens())),
        false => ours(),
    };
    let tokens = plan.tokens(plan.most, None);
    let voice = |kind: &RunnerKind, draw: SideSampler, faults: Faults| -> Result<GenerationSide<'_>> {
        let runner = pair.runner(kind, tokens, faults)?;
        let want = Want::choice(&pair.oracle.graph, &pair.settings.store);
        Ok(GenerationSide::new(runner, draw, want, plan))
    };
    let mut shadow = reference.llama.then(|| SamplerReplay::new(plan, llama.n_tokens()));
    let mut left = voice(reference, draw(reference), Faults::default())?;
    let mut right = voice(subject, ours(), faults)?;
    let mut fork = None;
    let mut error_before = 0f64;
    for index in 0..plan.most {
        let theirs = left.next(|token| llama.ends_generation(token))?;
        let our = right.next(|token| plan.ends.contains(&token))?;
        if theirs.is_none() && our.is_none() {
            break;
        }
        told(theirs.as_ref().map(|t| t.0), our.as_ref().map(|t| t.0))?;
        if let (Some((token, logits)), Some(ours)) = (&theirs, &mut shadow) {
            ours.draw(index, logits, *token)?;
        }
        // llama.cpp does not report where its draw fell; qdiff's own sampler, which draws the same, does.
        let told_by = left.drawn().or(shadow.as_ref().filter(|s| s.same()).and_then(|s| s.sampler.drawn()));
        // Up to the fork both sides have a token at every index.
        if let (None, Some((b, there)), Some((a, here))) = (&fork, theirs, our) {
            let error = largest_difference(&here, &there);
            if a == b {
                error_before = largest([error_before, error]);
            } else {
                let reference = choice(llama, &there, b, a, told_by);
                fork = Some(Fork {
                    index,
                    subject: choice(llama, &here, a, b, right.drawn()),
                    reach: Reach::of(&reference, error, plan.sampling.temp),
                    reference,
                    error,
                    error_before,
                });
            }
        }
    }
    let text = |tokens: &[u32]| {
        let bytes = tokens.iter().filter_map(|t| llama.piece_bytes(*t, false));
        String::from_utf8_lossy(&bytes.flatten().collect::<Vec<u8>>()).into_owned()
    };
    let sampler_differs = shadow.and_then(SamplerReplay::finish);
    Ok(Generation { reference: left.finish(text), subject: right.finish(text), fork, sampler_differs })
}

/// Both sides on the reference's tokens up to a little after `index`, where
/// they part, every stage judged: whose doing it was.
///
/// # Errors
/// Whatever keeps a side from running.
pub fn judge_fork(
    pair: &Pair<'_>, plan: Plan<'_>, generation: &Generation, index: usize, subject: &RunnerKind,
    reference: &RunnerKind, faults: Faults,
) -> Result<(Diagnosis, Recording)> {
    // The token at index i is drawn after decode step i.
    let spoken = &generation.reference.tokens;
    let last = (index + AFTER).min(spoken.len().saturating_sub(1));
    let tokens = plan.tokens(last, Some(&spoken[..last]));
    let reference = pair.run(reference, tokens, Faults::default())?;
    let subject = pair.run(subject, tokens, faults)?;
    Ok((pair.judge(&subject, Some(&reference))?, reference))
}

fn choice(llama: &Model, logits: &[f32], own: u32, other: u32, draw: Option<Drawn>) -> Choice {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, l| m.max(*l));
    let weight = |l: f32| f64::from(l - max).exp();
    let sum: f64 = logits.iter().map(|l| weight(*l)).sum();
    let show = |id: u32| {
        let logit = logits[id as usize];
        Shown { token: id, text: shown(llama, id), logit, probability: weight(logit) / sum }
    };
    let mut order: Vec<u32> = (0..logits.len().min(llama.n_tokens()) as u32).collect();
    // The lower id first among equals, as greedy choice has it.
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    Choice {
        drawn: show(own),
        best: order.iter().take(BEST).map(|id| show(*id)).collect(),
        margin: margin(logits, own as usize, other as usize),
        draw,
    }
}

/// A token for people: its text, or its id in brackets where it prints nothing.
pub fn shown(llama: &Model, token: u32) -> String {
    match llama.piece_bytes(token, true) {
        Some(bytes) if !bytes.is_empty() => quoted(&bytes),
        _ => format!("[{token}]"),
    }
}

/// Bytes of a token for people: in quotes, with what is no character in hexadecimal.
pub fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("'");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\'' => out.push(c),
                c => out.extend(c.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::{Choice, Drawn, Reach, Shown, quoted};

    fn choice(margin: f64, draw: Option<(f64, f64, f64)>) -> Choice {
        let drawn = Shown { token: 0, text: String::new(), logit: 0.0, probability: 0.5 };
        let draw = draw.map(|(at, from, to)| Drawn { at, from, to });
        Choice { drawn, best: Vec::new(), margin, draw }
    }

    #[test]
    fn a_margin_is_reached_by_twice_the_error() {
        assert!(Reach::of(&choice(0.19, None), 0.1, 0.0).within());
        assert!(!Reach::of(&choice(0.21, None), 0.1, 0.0).within());
    }

    #[test]
    fn an_edge_moves_with_the_odds_of_its_sides() {
        // Two tokens of equal logit: off by e each, the edge at 1/2 becomes the logistic function of 2 e.
        let e = 0.1;
        let edge = 1.0 / (1.0 + f64::exp(-2.0 * e));
        for (at, within) in [(edge - 1e-6, true), (edge + 1e-6, false)] {
            let upper = choice(0.0, Some((at, 0.5, 1.0)));
            assert_eq!(Reach::of(&upper, e, 1.0).within(), within);
        }
        // Nothing lies beyond the ends, and they do not move.
        let all = Reach::of(&choice(0.0, Some((0.5, 0.0, 1.0))), 1.0, 0.1);
        assert!(!all.within() && all.possible.abs() < 1e-12, "{all:?}");
    }

    #[test]
    fn quotes() {
        assert_eq!(quoted(b" a\n"), r"' a\n'");
        assert_eq!(quoted("é\"'".as_bytes()), "'é\"''");
        assert_eq!(quoted(b"\xF0\x9F"), r"'\xf0\x9f'");
        assert_eq!(quoted(b"\x1b[31m"), r"'\u{1b}[31m'");
    }
}
