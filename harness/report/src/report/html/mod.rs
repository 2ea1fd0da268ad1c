//! One HTML file that needs nothing else: no network, no fonts, no library.
//! Several runs are behind an overview, each parsed when it is opened.

use super::written::Written;
use super::{Document as _, Report, Screen, overview, stages, standing};
use crate::shown::shown;
use crate::verdict::BIN_OF_ONE;
use anyhow::Result;
use serde::Serialize as _;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};
use serde_json::{Value, json};
use std::io;

const STYLE: &str = include_str!("style.css");

const SCRIPT: &str = concat!(
    include_str!("script/base.js"),
    include_str!("script/heatmaps.js"),
    include_str!("script/charts.js"),
    include_str!("script/maps.js"),
    include_str!("script/graph.js"),
    include_str!("script/panel.js"),
    include_str!("script/page.js"),
);

/// Lines of the screen that are folded away: what was run, and what is only of interest where nothing else is.
const FOLDED: [&str; 6] = ["model", "injected", "tolerance", "tokenizer", "repeat", "health"];

/// The page of one run, or of several behind an overview. `absent` is what should be among them and is not.
pub(super) fn render(reports: &[&Report], absent: &[String]) -> Result<String> {
    let sorted = overview::sorted(reports);
    let (counts, table) = (overview::counts(&sorted), overview::table(&sorted));
    let title = match reports {
        [one] => title(&one.screen(false)),
        _ => format!("qdiff: {counts}"),
    };
    let index = json!({
        "counts": counts,
        "absent": absent,
        "common": overview::common(&sorted),
        "head": table.columns,
        "numbers": table.numbers,
        "rows": sorted.iter().zip(&table.rows).map(|((index, report), cells)| json!({
            "run": index,
            "outcome": report.outcome,
            "subject": report.subject.name,
            "model": report.model.name,
            "cells": cells,
        })).collect::<Vec<_>>(),
        "bin_of_one": BIN_OF_ONE,
    });
    let runs = reports.iter().map(|r| run(r)).collect::<Result<Vec<_>>>()?;
    Ok(fill(
        include_str!("template.html"),
        &[
            ("STYLE-HASH", &hash(STYLE)),
            ("SCRIPT-HASH", &hash(SCRIPT)),
            ("TITLE", &escape(&title)),
            ("/*STYLE*/", STYLE),
            ("<!--INDEX-->", &element("index", &index)?),
            ("<!--RUNS-->", &runs.join("\n")),
            ("/*SCRIPT*/", SCRIPT),
        ],
    ))
}

/// The data of one run.
fn run(report: &Report) -> Result<String> {
    let screen = report.screen(false);
    let (remedies, lines): (Vec<_>, Vec<_>) = screen.lines().partition(|(label, _)| *label == "remedy");
    let (folded, open): (Vec<_>, Vec<_>) = lines.into_iter().partition(|(label, _)| FOLDED.contains(label));
    let table = stages::table(&report.diagnosis.verdict, false);
    element(
        "run",
        &json!({
            "report": Written::of(report),
            "standing": report.diagnosis.findings.iter().map(standing::words).collect::<Vec<_>>(),
            "title": title(&screen),
            "summary": {
                "word": screen.word,
                "headline": screen.headline,
                "remedies": remedies.iter().map(|(_, text)| text).collect::<Vec<_>>(),
                "open": open,
                "folded": folded,
                "next": screen.next.as_ref().map(|n| [n.command.as_str(), n.why]),
                "repeat": screen.repeat,
            },
            "table": { "head": table.columns, "numbers": table.numbers, "rows": table.rows },
        }),
    )
}

/// An element that holds `data` and runs nothing.
pub(super) fn element(class: &str, data: &Value) -> Result<String> {
    let mut json = Vec::new();
    data.serialize(&mut Serializer::with_formatter(&mut json, Inert))?;
    Ok(format!(r#"<script type="application/json" class="{class}">{}</script>"#, String::from_utf8(json)?))
}

/// JSON without strings that could end their element, or hide from the reader of the page.
struct Inert;

impl Formatter for Inert {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, text: &str) -> io::Result<()> {
        // A backslash in the string itself comes as an escape, below: these are ours.
        to.write_all(shown(text).replace('\\', r"\\").replace('<', r"\u003c").as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, to: &mut W, escape: CharEscape) -> io::Result<()> {
        match escape {
            CharEscape::Backspace => to.write_all(br"\\u{8}"),
            CharEscape::FormFeed => to.write_all(br"\\u{c}"),
            CharEscape::AsciiControl(byte) => write!(to, r"\\u{{{byte:x}}}"),
            // Line ends and tabs: the page spells them as it does quotes.
            other => CompactFormatter.write_char_escape(to, other),
        }
    }
}

/// Puts each text in the place of its mark, in the order in which the marks stand; what was put in is not searched.
fn fill(template: &str, parts: &[(&str, &str)]) -> String {
    let (mut out, mut rest) = (String::new(), template);
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        out.push_str(before);
        out.push_str(text);
        rest = after;
    }
    out + rest
}

/// What the page's policy knows its style and script by; any other is refused
/// by the browser, for every report.
fn hash(text: &str) -> String {
    use base64::Engine as _;
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(text.as_bytes());
    let encoded = base64::engine::general_purpose::STANDARD.encode(digest);
    format!("sha256-{encoded}")
}

/// Text as markup of an element or in the quotes of an attribute.
pub(super) fn escape(text: &str) -> String {
    shown(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// What a browser calls it.
pub(super) fn title(screen: &Screen) -> String {
    format!("qdiff: {} {}", screen.word, screen.title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_leave_its_element() {
        let hostile = serde_json::json!("</script><script>alert(1)</script><!--\\\"\n");
        let text = element("x", &hostile).unwrap();
        let (_, text) = text.split_once('>').unwrap();
        let text = text.strip_suffix("</script>").unwrap();
        assert!(!text.contains('<'));
        assert_eq!(serde_json::from_str::<serde_json::Value>(text).unwrap(), hostile);
    }
}
