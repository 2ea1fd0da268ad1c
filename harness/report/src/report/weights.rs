//! What `qdiff weights` tells: each tensor that differs, down to the block, and the decoding error that reads it so.

use super::Outcome;
use super::origin::{UNKNOWN, few};
use super::screen::{Check, Document, Fate, Line, Screen, Section};
use crate::number::counted;
use crate::weights::{BlockDiff, FieldDiff, Mismatch, WeightCheck};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Tensors told one by one on the screen.
const TENSORS: usize = 8;

/// The report of a comparison of weights.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WeightsReport {
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

impl Document for WeightsReport {
    const KIND: &'static str = "weights";

    fn screen(&self, _: bool) -> Screen {
        let check = &self.check;
        let outcome = if check.diverged() { Outcome::Diverged } else { Outcome::Match };
        let (first, others) = (check.mismatches.first(), check.mismatches.get(1..).unwrap_or_default());
        let headline = match (first, check.unpaired.first(), check.metadata.iter().find(|key| key.computes)) {
            (Some(first), _, _) => format!("at {}", differs(first)),
            (None, Some(words), _) => format!("at {words}"),
            (None, None, Some(key)) => format!("at metadata key {key}"),
            (None, None, None) => format!(
                "{} compared, all {} values equal to {}'s bit for bit{}",
                counted(check.tensors, "tensor"),
                check.values,
                self.reference,
                damage(check)
            ),
        };
        let told = others.iter().take(TENSORS - 1);
        let told = told.map(|m| Section::lines("", [vec![("tensor", differs(m))], tensor(m)].concat()));
        let mut sections = vec![Section::lines("", first.map_or_else(Vec::new, tensor))];
        sections.extend(told);
        sections.push(Section::lines("Compared", compared(self, others)));
        let wrong = check.mismatches.iter().map(|m| (m.tensor.as_str(), differs(m)));
        let unpaired = check.unpaired.iter().map(|words| (words.split(": ").next().unwrap_or(words), words.clone()));
        let keys = check.metadata.iter().filter(|key| key.computes).map(|k| (k.key.as_str(), k.to_string()));
        let failed = wrong
            .chain(unpaired)
            .chain(keys)
            .map(|(tensor, words)| Check::new("weights", tensor, Fate::of(Some(words))));
        let equal = counted(check.tensors - check.mismatches.len(), "tensor");
        let equal = Check::new("weights", "all others", Fate::Passed(format!("{equal} equal, bit for bit")));
        Screen {
            sections,
            checks: failed.chain([equal]).collect(),
            ..Screen::new(format!("weights of {}", self.model), outcome, headline)
        }
    }
}

/// What was held against what, and what is not told one by one.
fn compared(report: &WeightsReport, others: &[Mismatch]) -> Vec<Line> {
    let check = &report.check;
    let mut lines = Vec::new();
    if let Some(rest) = others.get(TENSORS - 1..).filter(|rest| !rest.is_empty()) {
        let names = few(rest.iter().map(|m| &m.tensor), rest.len(), " ");
        lines.push(("and", format!("{} more: {names}", counted(rest.len(), "tensor"))));
    }
    lines.extend(check.unpaired.iter().map(|words| ("unpaired", words.clone())));
    lines.extend(check.metadata.iter().map(|key| {
        let note = if key.computes { "" } else { " (it describes the file; no computation uses it)" };
        ("metadata", format!("{key}{note}"))
    }));
    lines.extend(check.not_finite.iter().map(|damaged| ("not finite", damaged.to_string())));
    let (different, sides) = (check.mismatches.len(), format!("{} with {}", report.subject, report.reference));
    lines.push(("compared", format!("{sides}; {different} of {} differ", counted(check.tensors, "tensor"))));
    lines.extend(report.injected.iter().map(|words| ("injected", words.clone())));
    if different == 0 {
        let inert = |words: &String| ("inert", format!("{words}: it changes no value of these weights"));
        lines.extend(report.injected.iter().map(inert));
    }
    lines
}

/// How many tensors of equal files hold NaN or infinity.
fn damage(check: &WeightCheck) -> String {
    match check.not_finite.len() {
        0 => String::new(),
        n => format!(", NaN or infinity in {} included", counted(n, "tensor")),
    }
}

/// Which tensor differs, and in how much of it.
fn differs(m: &Mismatch) -> String {
    let verb = if m.blocks == 1 { "differs" } else { "differ" };
    let (tensor, rows) = (&m.tensor, counted(m.rows, "row"));
    let format = match &m.other_format {
        Some(other) => format!("{other} against {}", m.format),
        None => m.format.clone(),
    };
    format!(
        "{tensor} ({format}): {} of {} {verb}, in {rows} of {}",
        counted(m.blocks, "block"),
        m.blocks_total,
        m.rows_total
    )
}

fn tensor(m: &Mismatch) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(first) = m.located.first() {
        let file = m.file.as_deref().unwrap_or("the file");
        lines.push((if m.blocks == 1 { "block" } else { "first" }, place(first, file)));
        lines.extend(first.fields.iter().map(|field| ("field", self::field(field))));
        if first.fields.is_empty() {
            lines.push(("field", "no single field explains these values".to_owned()));
        }
    }
    if m.located.len() > 1 && m.located.iter().any(|block| !block.fields.is_empty()) {
        lines.push(("fields", fields(m)));
    }
    lines.push(("value", format!("row {} [{}]: {} where {} belongs", m.row, m.index, m.got, m.want)));
    let Some(c) = &m.cause else {
        let bytes = match (m.bytes_differ, &m.other_format) {
            (true, _) => "the stored bytes differ",
            (false, Some(_)) => "the formats differ, so bytes are not compared",
            (false, None) => "the bytes are equal",
        };
        let text = "and no decoding error of the catalogue explains these values";
        lines.push(("cause", format!("{}: {bytes}, {text}", UNKNOWN)));
        return lines;
    };
    let part = if c.whole { "" } else { "; other rows are read correctly" };
    let tried = format!("tried on {} that differ: it gives every value, bit for bit{part}", counted(c.rows, "row"));
    lines.push(("cause", format!("{}: {} ({tried})", c.name, c.story)));
    lines.push(("remedy", c.remedy.clone()));
    lines
}

fn place(b: &BlockDiff, file: &str) -> String {
    format!(
        "row {}, block {}, at byte {} of {file}; {} of it {}",
        b.row,
        b.block,
        b.offset,
        counted(b.values, "value"),
        if b.values == 1 { "differs" } else { "differ" }
    )
}

fn field(f: &FieldDiff) -> String {
    if f.bytes == 0 {
        return format!("{} ({}): the bytes are right, and are read wrongly", f.name, f.meaning);
    }
    format!(
        "{} ({}), at byte {}: {} where {} belongs ({} in {})",
        f.name,
        f.meaning,
        f.offset,
        f.got,
        f.want,
        counted(f.bits as usize, "bit"),
        counted(f.bytes, "byte")
    )
}

/// How often each field differs in the blocks that were examined.
fn fields(m: &Mismatch) -> String {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    let mut others = 0;
    for block in &m.located {
        for field in &block.fields {
            *times.entry(&field.name).or_default() += 1;
        }
        if block.fields.is_empty() {
            others += 1;
        }
    }
    let mut list: Vec<String> = times.iter().map(|(f, n)| format!("{f} is wrong in {n}")).collect();
    list.extend((others > 0).then(|| format!("no single field explains {others}")));
    format!("of {} examined, {}", counted(m.located.len(), "block"), list.join(", "))
}
