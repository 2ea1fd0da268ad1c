//! `qdiff compare`.

use super::args::CompareArgs;
use super::output::Output;
use super::run::courtesy;
use super::setup::console;
use super::{exit, tell};
use crate::compare::{Comparison, Row};
use crate::number::number;
use crate::report::terminal;
use crate::tasks::compare::{Compared, compare};
use anyhow::Result;
use comfy_table::{Table, presets};

/// With a model, as `run` judges two captures; without, only their distance.
pub(super) fn run(args: &CompareArgs) -> Result<u8> {
    let output = Output::new(&args.output, 1)?;
    let code = match compare(&args.request, console())? {
        Compared::Judged(report) => {
            output.serve(std::slice::from_ref(&report), &[], Some(courtesy(&report)))?;
            exit::of(report.outcome)
        }
        Compared::Apart(comparison) => {
            tell(&render(&comparison))?;
            match comparison.rows.iter().any(|r| r.wrong.is_some()) {
                true => exit::DIVERGED,
                false => exit::INCOMPLETE,
            }
        }
    };
    Ok(exit::bisect(code, args.bisect))
}

fn render(comparison: &Comparison) -> String {
    let rows = &comparison.rows;
    let headline = match rows.iter().find(|r| r.wrong.is_some()) {
        Some(r) => format!("DIVERGED at {}: {}", r.id, r.wrong.as_deref().unwrap_or("")),
        None => "INCOMPLETE: without the model (-m) no stage can be held against its mathematics; this is only how far the two are apart".to_owned(),
    };
    let [a, b] = &comparison.engines;
    let both = rows.iter().filter(|r| r.global.is_some()).count();
    format!(
        "{}\nmode       without a model: how far the two are apart, and nothing is judged\nrun        {} tokens; subject {a}, reference {b} (both recorded)\ncoverage   0 % judged; {both} of {} stages are in both captures\n\n{}\n\nnext       qdiff compare -m MODEL.gguf … (the same folders) judges every stage\n",
        terminal::first_line(&headline),
        comparison.tokens,
        rows.len(),
        table(rows)
    )
}

/// A row per stage name, with the worst of its layers.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["stage", "layers", "global, worst", "identical"]);
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.id.name) {
            names.push(row.id.name);
        }
    }
    for name in names {
        let group = rows.iter().filter(|r| r.id.name == name);
        let errors = group.clone().filter_map(|r| Some((r.id, r.global?)));
        let same = errors.clone().filter(|(_, g)| g.error == 0.0).count();
        let worst = errors.max_by(|a, b| a.1.error.total_cmp(&b.1.error));
        table.add_row([
            name.to_owned(),
            group.count().to_string(),
            worst.map_or_else(|| "-".to_owned(), |(id, g)| format!("{} {id} {}", number(g.error), g.at)),
            same.to_string(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}
