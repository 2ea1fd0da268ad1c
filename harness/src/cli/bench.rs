//! `qdiff bench`.

use super::args::BenchArgs;
use super::setup::console;
use super::{exit, say};
use crate::report::book::{Bench, BenchRow as Row};
use crate::tasks::bench::{CONTEXT, DECODE, Measured, Soaked, Speed, TAPPED, WholeRun, bench};
use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use std::path::Path;

/// Measures; gives the exit code.
pub(super) fn run(args: &BenchArgs) -> Result<u8> {
    args.json.check()?;
    let before = args.baseline.as_deref().map(read).transpose()?;
    match bench(&args.request, console())? {
        Measured::Speed(speed) => say(&of_speed(&speed))?,
        Measured::Run(run) => say(&of_run(&run))?,
        Measured::TappedPrefill { prompt, stages } => say(&format!("{prompt}: {stages} stages tapped\n"))?,
        Measured::Soak(Soaked { device, position }) => {
            say(&format!("{device}: to position {position}, the end of the context; memory stayed flat\n"))?
        }
        Measured::Cuda(bench) => {
            say(&of_cuda(&bench))?;
            if let Some(before) = &before {
                say(&changes(&bench, before))?;
            }
            args.json.write(&bench)?;
        }
    }
    Ok(exit::MATCH)
}

/// Reads an earlier bench.
fn read(path: &Path) -> Result<Bench> {
    let shown = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{shown} is no file that `qdiff bench --measure cuda --json` wrote"))
}

fn of_speed(speed: &Speed) -> String {
    let mut out = format!("untapped, {} threads, medians of {} rounds\n", speed.threads, speed.rounds);
    for row in &speed.rows {
        out += &format!(
            "{:<22} cpu {:>7.1} tok/s   llama.cpp {:>7.1} tok/s   ratio {:.2}\n",
            format!("{} of {}", row.what, row.tokens),
            row.cpu,
            row.llama,
            row.ratio
        );
    }
    out
}

fn of_run(run: &WholeRun) -> String {
    let gib = |kib: f64| kib / 1024.0 / 1024.0;
    let side =
        |what: &str, (seconds, kib): (f64, f64)| format!("{what:<31} {seconds:>6.2} s   {:>5.2} GiB peak\n", gib(kib));
    format!(
        "{}{}ratio of wall times             {:>6.2}   (medians of {} rounds)\n",
        side(&format!("run --prompt {} -n 0", run.prompt), run.whole),
        side("llama.cpp, tapped prefill alone", run.llama),
        run.ratio,
        run.rounds
    )
}

/// The change of every figure that both have.
fn changes(now: &Bench, before: &Bench) -> String {
    let mut out = format!("\nagainst the baseline ({}, {} {})\n", before.device, before.model, before.format);
    for row in &now.rows {
        let same = |r: &&Row| r.what == row.what && r.who == row.who;
        let Some(old) = before.rows.iter().find(same) else {
            continue;
        };
        let change = 100.0 * (row.tokens_per_second / old.tokens_per_second - 1.0);
        out += &format!(
            " {:<8} {:<30} {:>8.0} -> {:>8.0} tok/s  {change:+.1} %\n",
            row.what, row.who, old.tokens_per_second, row.tokens_per_second
        );
    }
    out
}

fn of_cuda(bench: &Bench) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["", "", "tok/s", "of bandwidth", "of llama.cpp"]);
    let share = |x: Option<f64>| x.map_or(String::new(), |x| format!("{:.1} %", 100.0 * x));
    let ratio = |x: Option<f64>| x.map_or(String::new(), |x| format!("{x:.2}"));
    for row in &bench.rows {
        table.add_row([
            row.what.clone(),
            row.who.clone(),
            format!("{:.0}", row.tokens_per_second),
            share(row.of_bandwidth),
            ratio(row.ratio),
        ]);
    }
    for column in 2..5 {
        if let Some(c) = table.column_mut(column) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut inside = Table::new();
    inside.load_style(presets::NOTHING);
    inside.set_header(["kernel", "launches", "µs each", "µs a step"]);
    for k in &bench.kernels {
        inside.add_row([
            k.name.clone(),
            k.launches.to_string(),
            format!("{:.2}", 1e6 * k.seconds / k.launches as f64),
            format!("{:.1}", 1e6 * k.seconds),
        ]);
    }
    format!(
        "{}, a copy moves {:.0} GB/s; {} {}: {:.1} MB of weights a token\n\
         decode of {DECODE} ({TAPPED} with taps) after {CONTEXT}, prefill of {CONTEXT}; medians of {} rounds\n\n{table}\n\n{inside}\n",
        bench.device,
        bench.bandwidth / 1e9,
        bench.model,
        bench.format,
        bench.weight_bytes as f64 / 1e6,
        bench.rounds
    )
}
