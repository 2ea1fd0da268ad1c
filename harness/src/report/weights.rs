//! What `qdiff weights` tells: each tensor that differs, down to the block, and
//! the decoding error that reads it so.

use super::terminal::line;
use crate::weights::{BlockDiff, FieldDiff, Mismatch, WeightCheck};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Version of the JSON layout.
pub const SCHEMA_VERSION: u32 = 1;

/// Tensors told one by one on the screen.
const TENSORS: usize = 8;

/// What the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Weights, compared.
    Weights,
}

/// All that is told of a comparison of weights.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WeightsReport {
    /// Version of this layout; raised when a field changes its meaning.
    pub schema_version: u32,
    /// What this file is.
    pub kind: Kind,
    /// The file.
    pub model: String,
    /// Whose weights are under suspicion.
    pub subject: String,
    /// What they are held against.
    pub reference: String,
    /// Faults injected into the subject, in words.
    pub injected: Vec<String>,
    /// What was found.
    pub check: WeightCheck,
}

/// The screen.
pub fn render(report: &WeightsReport) -> String {
    let (check, mut out) = (&report.check, String::new());
    let sides = format!("{} against {}", report.subject, report.reference);
    if !check.diverged() {
        let _ = writeln!(
            out,
            "MATCH: {} tensors present, typed, shaped and read once; {} values equal {}'s bit for bit",
            check.tensors, check.values, report.reference
        );
    }
    for m in check.mismatches.iter().take(TENSORS) {
        out.push_str(&tensor(m));
        out.push('\n');
    }
    if let Some(more) = check.mismatches.len().checked_sub(TENSORS + 1) {
        let rest = &check.mismatches[TENSORS..];
        let names: Vec<&str> = rest.iter().take(6).map(|m| m.tensor.as_str()).collect();
        let dots = if more >= 6 { " …" } else { "" };
        let text = format!("{} more tensors differ: {}{dots}", more + 1, names.join(" "));
        out.push_str(&line("and", &text));
        out.push('\n');
    }
    for words in &check.unpaired {
        let _ = writeln!(out, "DIVERGED {words}");
    }
    if !check.unused.is_empty() {
        let text = format!("no stage reads {}", check.unused.join(" "));
        out.push_str(&line("left over", &text));
    }
    if check.diverged() {
        let text = format!("{} of {} tensors differ; {sides}", check.mismatches.len(), check.tensors);
        out.push_str(&line("compared", &text));
    }
    for words in &report.injected {
        out.push_str(&line("injected", words));
    }
    out
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn tensor(m: &Mismatch) -> String {
    let mut out = format!(
        "DIVERGED {} ({}): {} of {} {} in {} of {}\n",
        m.tensor,
        m.format,
        count(m.blocks, "block"),
        m.blocks_total,
        if m.blocks == 1 { "differs," } else { "differ," },
        count(m.rows, "row"),
        m.rows_total
    );
    if let Some(first) = m.located.first() {
        let label = if m.blocks == 1 { "block" } else { "first" };
        out.push_str(&line(label, &place(first)));
        for field in &first.fields {
            out.push_str(&line("field", &self::field(field)));
        }
        if first.fields.is_empty() {
            let text = "no single field: the values follow no rule of one";
            out.push_str(&line("field", text));
        }
    }
    if m.located.len() > 1 {
        out.push_str(&line("fields", &fields(m)));
    }
    let values = format!("row {} [{}]: {} where {} belongs", m.row, m.index, m.got, m.want);
    out.push_str(&line("value", &values));
    let cause = match (&m.cause, m.bytes_differ) {
        (Some(c), _) => {
            let part = if c.whole { "" } else { "; other rows are read rightly" };
            format!(
                "{}: {} (tried on {} that differ: all their values come out, bit by bit{part}); {}",
                c.name,
                c.story,
                count(c.rows, "row"),
                c.remedy
            )
        }
        (None, true) => {
            "no known cause: the stored bytes differ, and no decoding error makes these values of the right ones"
                .to_owned()
        }
        (None, false) => {
            "no known cause: the bytes are equal, and no decoding error of the catalogue makes these values of them"
                .to_owned()
        }
    };
    out.push_str(&line("cause", &cause));
    out
}

fn place(b: &BlockDiff) -> String {
    format!(
        "row {}, block {}, at byte {} of the file; {} of it differ",
        b.row,
        b.block,
        b.offset,
        count(b.values, "value")
    )
}

fn field(f: &FieldDiff) -> String {
    if f.bytes == 0 {
        return format!("{} ({}), misread: its bytes are equal", f.name, f.meaning);
    }
    format!(
        "{} ({}), at byte {}: {} where {} belongs ({} in {})",
        f.name,
        f.meaning,
        f.offset,
        f.got,
        f.want,
        count(f.bits as usize, "bit"),
        count(f.bytes, "byte")
    )
}

/// How often each field differs in the blocks looked into.
fn fields(m: &Mismatch) -> String {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for block in &m.located {
        for field in &block.fields {
            *times.entry(&field.name).or_default() += 1;
        }
        if block.fields.is_empty() {
            *times.entry("none alone").or_default() += 1;
        }
    }
    let list: Vec<String> = times.iter().map(|(f, n)| format!("{f} in {n}")).collect();
    format!("of {} looked into: {}", count(m.located.len(), "block"), list.join(", "))
}
