//! The documents that have a JSON schema.

use crate::compare::Comparison;
use crate::report::{
    CheckReport, Failure, GenerationReport, LogitsReport, OracleReport, Part, Report, RlReport, SweepReport,
    WeightsReport, json,
};
use clap::builder::PossibleValue;
use schemars::Schema;

/// What has a JSON schema, by its name.
pub(super) fn schemas() -> [(PossibleValue, fn() -> Schema); 12] {
    let of = |name: &'static str, about: &'static str| PossibleValue::new(name).help(about);
    [
        (of("run", "What `run --json` writes").alias("report"), json::schema::<Report>),
        (
            of("failure", "What is written instead of a report if a command, or a prompt of `run --prompts`, fails"),
            json::schema::<Failure>,
        ),
        (of("check", "What `check --json` writes"), json::schema::<CheckReport>),
        (of("generate", "What `generate --json` writes").alias("generation"), json::schema::<GenerationReport>),
        (of("logits", "What `logits --json` writes"), json::schema::<LogitsReport>),
        (of("weights", "What `weights --json` writes"), json::schema::<WeightsReport>),
        (of("sweep", "What `sweep --json` writes"), json::schema::<SweepReport>),
        (of("rl", "What `rl --json` writes"), json::schema::<RlReport>),
        (of("compare", "What `compare --json` writes without a model"), json::schema::<Comparison>),
        (of("verify-oracle", "What `verify-oracle --json` writes"), json::schema::<OracleReport>),
        (of("part", "What `judge` writes"), json::schema::<Part>),
        (of("capture", "The manifest.json of a capture"), json::capture_schema),
    ]
}
