//! Prints how much of their bounds correct engines use: every variant of `qdiff_tests::variants` on every
//! prompt, with each stage and each pair of stages left out of its capture. The exit code is 1 if a verdict blames one.
//!
//! `cargo run --release -p qdiff-tests --example false_alarms [SHARE]`: with a SHARE each variant is judged on one prompt,
//! with one of so many stages and pairs left out. Without, `QDIFF_RESULT=goldens/results/false-alarms.json` keeps it.

use qdiff::loaded::LoadedModel;
use qdiff::report::json;
use qdiff_lab::report::book::RESULTS_VERSION;
use qdiff_tests::false_alarms::{Total, all, write_model};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;

fn main() -> ExitCode {
    let share = std::env::args().nth(1).map_or(1, |n| n.parse().expect("SHARE is a number"));
    let folder = tempfile::tempdir().expect("a folder for the model");
    let path = folder.path().join("model.gguf");
    write_model(&path);
    let opened = LoadedModel::new(&path).expect("the model loads");
    let mut styles: BTreeMap<&str, Total> = BTreeMap::new();
    let mut stages: BTreeMap<&str, (f64, String)> = BTreeMap::new();
    all(&opened, share, |judged| {
        for (stage, used) in &judged.used {
            let most = stages.entry(stage).or_default();
            if *used > most.0 {
                let (of, without) = (&judged.variant, judged.left_out.join(", "));
                *most = (*used, format!("{}, {}; without: {without}", of.style.name, of.order_name));
            }
        }
        styles.entry(judged.variant.style.name).or_default().take(judged);
    });
    println!("{:<16} {:>8} {:>9} {:>13} {:>8}  at", "style", "captures", "DIVERGED", "inconclusive", "largest");
    for (style, total) in &styles {
        let (stage, used) = total.worst.as_ref().map_or(("", 0.0), |w| w.worst());
        let (alarms, percent) = (total.alarms.len(), 100.0 * used);
        println!("{style:<16} {:>8} {alarms:>9} {:>13} {percent:>6.0} %  {stage}", total.captures, total.inconclusive);
    }
    println!("\n{:<16} {:>8}  by", "stage", "largest");
    for (stage, (used, by)) in &stages {
        println!("{stage:<16} {:>6.0} %  {by}", 100.0 * used);
    }
    if let (Some(path), 1) = (std::env::var_os("QDIFF_RESULT"), share) {
        let engine = |(name, total): (&&str, &Total)| {
            let (stage, used) = total.worst.as_ref().map_or(("", 0.0), |w| w.worst());
            json!({
                "name": name, "captures": total.captures, "diverged": total.alarms.len(),
                "inconclusive": total.inconclusive, "percent": (100.0 * used).ceil() as u32, "stage": stage,
            })
        };
        let result = json!({
            "kind": "false-alarms", "schema_version": RESULTS_VERSION,
            "command": "cargo run --release -p qdiff-tests --example false_alarms",
            "engines": styles.iter().map(engine).collect::<Vec<_>>(),
        });
        std::fs::write(path, json::text(&result).expect("it is JSON")).expect("the result is written");
    }
    ExitCode::from(u8::from(styles.values().any(|t| !t.alarms.is_empty())))
}
