//! llama.cpp as its own program measures it: `llama-bench`, which goes other ways through llama.cpp than its C API as qdiff
//! drives it, and may be faster.

use crate::report::bench::{Bench, BenchRow};
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use std::path::Path;
use std::process::{Command, Stdio};

/// A measurement that it printed with `-o json`, which has more fields.
#[derive(Deserialize)]
struct Measured {
    /// Tokens a second, run by run.
    samples_ts: Vec<f64>,
}

/// Tokens a second of one measurement, run by run. `asked` says what is measured.
fn measure(program: &Path, model: &Path, asked: &[String], runs: usize) -> Result<Vec<f64>> {
    let mut command = Command::new(program);
    // All layers on the card, and attention as fast as it has it.
    command.arg("-m").arg(model).args(["-ngl", "999", "-fa", "1", "-o", "json", "-r", &runs.to_string()]).args(asked);
    let ran = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {}", program.display()))?;
    let told = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "{} failed: {}", program.display(), told.lines().last().unwrap_or("it says nothing"));
    read(&ran.stdout).with_context(|| format!("cannot read what {} printed", program.display()))
}

fn read(json: &[u8]) -> Result<Vec<f64>> {
    let all: Vec<Measured> = serde_json::from_slice(json)?;
    ensure!(all.len() == 1 && !all[0].samples_ts.is_empty(), "it holds no single measurement");
    Ok(all.into_iter().flat_map(|one| one.samples_ts).collect())
}

/// Measures a prefill of `prefill` tokens and `steps` decode steps after `depth` tokens, `runs` times each.
pub fn add(
    bench: &mut Bench, program: &Path, model: &Path, [prefill, steps, depth]: [usize; 3], runs: usize,
) -> Result<()> {
    let numbers =
        |words: &[(&str, usize)]| words.iter().flat_map(|(name, n)| [(*name).to_owned(), n.to_string()]).collect();
    let asked: [(&str, Vec<String>); 2] = [
        ("prefill", numbers(&[("-p", prefill), ("-n", 0)])),
        ("decode", numbers(&[("-p", 0), ("-n", steps), ("-d", depth)])),
    ];
    for (what, asked) in asked {
        let speeds = measure(program, model, &asked, runs)?;
        add_row(bench, what, speeds);
    }
    Ok(())
}

/// Adds a row of these speeds.
fn add_row(bench: &mut Bench, what: &str, speeds: Vec<f64>) {
    let (least, most) = speeds.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), &s| (a.min(s), b.max(s)));
    let speed = super::median(speeds);
    let share = bench.weight_bytes as f64 * speed / bench.bandwidth;
    bench.rows.push(BenchRow {
        what: what.to_owned(),
        who: "llama-bench".to_owned(),
        tokens_per_second: speed,
        spread: Some([most, least]),
        of_bandwidth: (what == "decode").then_some(share),
        ratio: None,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_prints_is_read_and_nothing_else() {
        let printed = br#"[{"n_prompt": 512, "avg_ts": 2.5, "samples_ts": [2.0, 3.0]}]"#;
        assert_eq!(read(printed).expect("a measurement"), [2.0, 3.0]);
        for wrong in ["", "[]", r#"[{"samples_ts": []}]"#, r#"[{"samples_ts": [1.0]}, {"samples_ts": [1.0]}]"#] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_faster_of_both_is_what_counts() {
        let row = |who: &str, what: &str, speed: f64| BenchRow {
            what: what.to_owned(),
            who: who.to_owned(),
            tokens_per_second: speed,
            spread: None,
            of_bandwidth: None,
            ratio: None,
        };
        let json = r#"{"device": "", "bandwidth": 1.0, "model": "", "format": "", "weight_bytes": 0, "rounds": 1, "rows": [], "kernels": []}"#;
        let mut bench: Bench = serde_json::from_str(json).expect("a bench");
        let ratios = |bench: &Bench| bench.rows.iter().map(|row| row.ratio).collect::<Vec<_>>();
        bench.rows = vec![
            row("cuda-fast", "decode", 20.0),
            row("cuda-fast", "prefill", 20.0),
            row("cuda-fast, taps read back", "decode", 20.0),
            row("llama.cpp (cuda), beside cuda-fast", "decode", 5.0),
            row("llama.cpp (cuda), beside cuda", "decode", 8.0),
            row("llama.cpp (cuda), beside cuda-fast", "prefill", 5.0),
        ];
        bench.hold_against_llama();
        assert_eq!(ratios(&bench), [Some(2.5), Some(4.0), None, None, None, None]);
        add_row(&mut bench, "decode", vec![9.0, 10.0, 11.0]);
        add_row(&mut bench, "prefill", vec![4.0]);
        bench.hold_against_llama();
        assert_eq!(ratios(&bench), [Some(2.0), Some(4.0), None, None, None, None, None, None]);
        // llama.cpp did not run in this process.
        bench.rows = vec![row("cuda-fast", "decode", 20.0), row("cuda-fast, taps read back", "decode", 20.0)];
        bench.hold_against_llama();
        assert_eq!(ratios(&bench), [None, None]);
        add_row(&mut bench, "decode", vec![10.0]);
        bench.hold_against_llama();
        assert_eq!(ratios(&bench), [Some(2.0), None, None]);
    }
}
