//! How tokens are drawn: the options, and their form in reports.

use clap::Args;
use qdiff_engine::sampler::Step;
use schemars::JsonSchema;
use serde::Serialize;

/// How tokens are drawn, by llama.cpp's names and defaults.
#[derive(Clone, Copy, Debug, Args, Serialize, JsonSchema)]
#[command(next_help_heading = "How tokens are drawn")]
pub struct Sampling {
    /// Temperature; 0 takes the most probable token
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_parser = not_negative, env = "QDIFF_TEMP")]
    pub temp: f32,
    /// Keep the K most probable tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, env = "QDIFF_TOP_K")]
    pub top_k: usize,
    /// Keep the most probable tokens whose probabilities sum up to P; 1 for all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true, value_parser = share, env = "QDIFF_TOP_P")]
    pub top_p: f32,
    /// Keep tokens at least P times as probable as the first; 0 for all
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true, value_parser = share, env = "QDIFF_MIN_P")]
    pub min_p: f32,
    /// Make tokens of the last --repeat-last-n less likely by this factor; 1 for off
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true, value_parser = positive, env = "QDIFF_REPEAT_PENALTY")]
    pub repeat_penalty: f32,
    /// Taken off a token's logit for each time it occurred
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = finite, env = "QDIFF_FREQUENCY_PENALTY")]
    pub frequency_penalty: f32,
    /// Taken off a token's logit once if it occurred
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = finite, env = "QDIFF_PRESENCE_PENALTY")]
    pub presence_penalty: f32,
    /// How many of the last tokens the penalties see; 0 for none
    #[arg(long, value_name = "N", default_value_t = 64, env = "QDIFF_REPEAT_LAST_N")]
    pub repeat_last_n: u16,
    /// Seed of the draw
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..i64::from(u32::MAX)), env = "QDIFF_SEED")]
    pub seed: u32,
}

impl Sampling {
    /// The chain of llama.cpp's own tools, in their order; without temperature, penalties and the largest logit.
    pub fn chain(&self) -> Vec<Step> {
        let penalties = Step::Penalties {
            last: usize::from(self.repeat_last_n),
            repeat: self.repeat_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
        };
        if self.temp <= 0.0 {
            return vec![penalties, Step::Greedy];
        }
        vec![
            penalties,
            Step::TopK(self.top_k),
            Step::TopP(self.top_p),
            Step::MinP(self.min_p),
            Step::Temperature(self.temp),
            Step::Draw(self.seed),
        ]
    }
}

fn number(text: &str, fits: fn(f32) -> bool, what: &str) -> Result<f32, String> {
    let number: Option<f32> = text.parse().ok().filter(|n: &f32| n.is_finite() && fits(*n));
    number.ok_or_else(|| format!("expected {what}"))
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, |n| n >= 0.0, "a number from 0 on")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |n| (0.0..=1.0).contains(&n), "a number from 0 to 1")
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, |n| n > 0.0 && (1.0 / n).is_finite(), "a number above 0")
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, |_| true, "a number")
}
