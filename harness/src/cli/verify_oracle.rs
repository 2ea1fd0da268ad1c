//! `qdiff verify-oracle`.

use super::args::OracleArgs;
use super::setup::console;
use super::{exit, tell};
use crate::number::number;
use crate::tasks::verify::{Verified, verify_oracle};
use crate::verdict::Local;
use anyhow::Result;
use std::fmt::Write as _;

/// Holds the oracle against llama.cpp; gives the exit code.
pub(super) fn run(args: &OracleArgs) -> Result<u8> {
    let verified = verify_oracle(&args.request, console())?;
    tell(&render(&verified))?;
    Ok(if verified.first_wrong().is_none() { exit::MATCH } else { exit::TROUBLE })
}

fn render(verified: &Verified) -> String {
    let Verified { prompt, decode, stages: results } = verified;
    let mut out = String::new();
    let mut names: Vec<&str> = Vec::new();
    for (id, _) in results {
        if !names.contains(&id.name) {
            names.push(id.name);
        }
    }
    match verified.first_wrong() {
        None => {
            let worst = results.iter().fold(0f64, |m, (_, l)| m.max(l.residual));
            let _ = writeln!(
                out,
                "MATCH: llama.cpp on F32 weights meets f64 in all {} stages; largest residual {}",
                results.len(),
                number(worst)
            );
        }
        Some(id) => {
            let _ = writeln!(out, "ORACLE SUSPECT at {id}: llama.cpp on F32 weights does not meet f64");
        }
    }
    let _ = writeln!(
        out,
        "\nrun        {}: {} prompt tokens + {} decode steps\n\n{:<15} {:>6} {:>12} {:>9} {:>6}",
        prompt.name,
        prompt.tokens.len(),
        decode,
        "stage",
        "layers",
        "local, worst",
        "allowed",
        "used"
    );
    for name in names {
        let group: Vec<&Local> = results.iter().filter(|(id, _)| id.name == name).map(|(_, l)| l).collect();
        let worst = group.iter().max_by(|a, b| a.used.total_cmp(&b.used)).expect("a name has stages");
        let _ = writeln!(
            out,
            "{name:<15} {:>6} {:>12} {:>9} {:>4.0} %",
            group.len(),
            number(worst.residual),
            number(worst.allowed),
            worst.used * 100.0
        );
    }
    out
}
