//! Drawing the next token from logits: a chain of samplers, token for token llama.cpp's for equal logits and seed.
//!
//! Sums, roundings and the order among equals are llama-sampler.cpp's with libstdc++ (see `sort.rs`).

mod candidates;
mod mt19937;

use candidates::Candidates;
use mt19937::Mt19937;
use schemars::JsonSchema;
use serde::Serialize;

/// One sampler of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Makes tokens less likely that occurred lately.
    Penalties {
        /// How many of the last tokens count; 0 for none.
        last: usize,
        /// Divides a positive logit, multiplies a negative one; 1 for none.
        repeat: f32,
        /// Taken off once for each occurrence; 0 for none.
        frequency: f32,
        /// Taken off once; 0 for none.
        presence: f32,
    },
    /// Keeps this many; 0 for all.
    TopK(usize),
    /// Keeps the most probable that sum up to this; 1 for all.
    TopP(f32),
    /// Keeps those at least this times as probable as the first; 0 for all.
    MinP(f32),
    /// Divides the logits; at 0 only the largest is left.
    Temperature(f32),
    /// Takes the largest, the first among equals.
    Greedy,
    /// Draws by probability, from this seed.
    Draw(u32),
}

/// Logits that no token can be drawn from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// One is not a number.
    #[error("the logit of token {0} is NaN; run `qdiff run` to find the stage that made it")]
    NotANumber(u32),
    /// There are fewer than tokens.
    #[error("{logits} logits for {tokens} tokens; the output layer and the vocabulary do not fit")]
    TooFew {
        /// How many logits.
        logits: usize,
        /// How many tokens.
        tokens: usize,
    },
}

/// Where a draw fell among the candidates, which share out the numbers from 0
/// to 1 by their probabilities, in the order of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Drawn {
    /// The number drawn.
    pub at: f64,
    /// Where the share of the token drawn begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

/// A chain at work.
pub struct Sampler {
    tokens: usize,
    chain: Vec<Step>,
    /// Random numbers of the chain's draw.
    random: Option<Mt19937>,
    /// Tokens of the prompt and those drawn.
    accepted: Vec<u32>,
    drawn: Option<Drawn>,
    last_of_equals: bool,
}

impl Sampler {
    /// A chain for a vocabulary of `tokens`, padding included: any of them can
    /// be drawn, and none beyond. It must end in [`Step::Greedy`] or
    /// [`Step::Draw`] to draw anything but the first candidate, and draws once.
    pub fn new(chain: &[Step], tokens: usize) -> Self {
        let seed = chain.iter().find_map(|step| if let Step::Draw(seed) = step { Some(*seed) } else { None });
        Self {
            tokens,
            chain: chain.to_vec(),
            random: seed.map(Mt19937::new),
            accepted: Vec::new(),
            drawn: None,
            last_of_equals: false,
        }
    }

    /// The same chain with another [`Step::Greedy`]: among equals it takes the
    /// last, as a scan with `>=` does. llama.cpp takes the first.
    #[must_use]
    pub fn last_of_equals(self) -> Self {
        Self { last_of_equals: true, ..self }
    }

    /// Remembers a token for the penalties: of the prompt, or one drawn.
    pub fn accept(&mut self, token: u32) {
        self.accepted.push(token);
    }

    /// Where the last draw fell; `None` before it, and where nothing is drawn.
    pub fn drawn(&self) -> Option<Drawn> {
        self.drawn
    }

    /// Draws a token from the logits `[V]` and remembers it.
    ///
    /// # Errors
    /// [`SampleError`] if a logit is NaN, or there are fewer than tokens.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        let Some(logits) = logits.get(..self.tokens).filter(|l| !l.is_empty()) else {
            return Err(SampleError::TooFew { logits: logits.len(), tokens: self.tokens });
        };
        if let Some(i) = logits.iter().position(|l| l.is_nan()) {
            return Err(SampleError::NotANumber(i as u32));
        }
        let (mut left, mut place) = (Candidates::new(logits), 0);
        for step in &self.chain {
            match *step {
                Step::Penalties { last, repeat, frequency, presence } if last > 0 => {
                    let recent = &self.accepted[self.accepted.len().saturating_sub(last)..];
                    left.penalise(recent, repeat, frequency, presence);
                }
                Step::TopK(k) if k > 0 => left.top_k(k),
                Step::TopP(p) if p < 1.0 => left.top_p(p),
                Step::MinP(p) if p > 0.0 => left.min_p(p),
                Step::Temperature(t) if t != 1.0 => left.temperature(t),
                Step::Penalties { .. } | Step::TopK(_) | Step::TopP(_) | Step::MinP(_) | Step::Temperature(_) => {}
                Step::Greedy => place = left.largest(self.last_of_equals),
                Step::Draw(_) => {
                    let random = self.random.as_mut().expect("seeded where a chain draws");
                    let (chosen, share) = draw(&mut left, random);
                    place = chosen;
                    self.drawn = Some(share);
                }
            }
        }
        let token = left.list[place].id;
        self.accept(token);
        Ok(token)
    }
}

/// Draws by probability, the sum being kept in f64; gives the place, and where
/// the draw fell. One candidate takes a draw as well.
fn draw(left: &mut Candidates, random: &mut Mt19937) -> (usize, Drawn) {
    let max = left.max();
    let mut sum = 0f64;
    for c in &mut left.list {
        c.p = (c.logit - max).exp();
        sum += f64::from(c.p);
    }
    let at = random.next_f64();
    let target = sum * at;
    let mut run = 0f64;
    let found = left.list.iter().position(|c| {
        run += f64::from(c.p);
        run >= target
    });
    let place = found.unwrap_or(left.list.len() - 1);
    let share = f64::from(left.list[place].p);
    let drawn = Drawn { at, from: (run - share) / sum, to: run / sum };
    (place, drawn)
}
