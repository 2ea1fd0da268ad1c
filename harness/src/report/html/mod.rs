//! One HTML file that needs nothing else: no network, no fonts, no library.

use super::json::{self, Written};
use super::{Document as _, Report, stages};
use crate::verdict::BIN_OF_ONE;
use anyhow::{Result, bail};
use serde_json::json;

const STYLE: &str = include_str!("style.css");

const SCRIPT: &str = concat!(
    include_str!("script/base.js"),
    include_str!("script/heatmaps.js"),
    include_str!("script/charts.js"),
    include_str!("script/page.js"),
);

/// The page of a run.
///
/// # Errors
/// If it is not one run.
pub(super) fn render(reports: &[&Report], _: &[String]) -> Result<String> {
    let [report] = reports else {
        bail!("an HTML report holds one run");
    };
    let screen = report.screen(false);
    let table = stages::table(&report.diagnosis.verdict, false);
    let data = json!({
        "report": Written::of(*report),
        "summary": {
            "word": screen.word,
            "headline": screen.headline,
            "lines": screen.sections.iter().map(|s| &s.lines).collect::<Vec<_>>(),
            "next": screen.next.as_ref().map(|n| [n.command.as_str(), n.why]),
            "repeat": screen.repeat,
        },
        "table": { "head": table.columns, "numbers": table.numbers, "rows": table.rows },
        "bin_of_one": BIN_OF_ONE,
    });
    Ok(fill(
        include_str!("template.html"),
        &[
            ("STYLE-HASH", &hash(STYLE)),
            ("SCRIPT-HASH", &hash(SCRIPT)),
            ("TITLE", &escape(&format!("qdiff: {} {}", screen.word, screen.title))),
            ("/*STYLE*/", STYLE),
            ("/*DATA*/", &inert(&json::text(&data)?)),
            ("/*SCRIPT*/", SCRIPT),
        ],
    ))
}

/// Puts each text in the place of its mark, in the order in which the marks
/// stand; what was put in is not searched.
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
/// by the browser, whatever the report holds.
fn hash(text: &str) -> String {
    use base64::Engine as _;
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(text.as_bytes());
    let encoded = base64::engine::general_purpose::STANDARD.encode(digest);
    format!("sha256-{encoded}")
}

/// JSON that cannot end the element it stands in: `<` only occurs in strings.
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_leave_its_element() {
        let hostile = serde_json::json!("</script><script>alert(1)</script><!--");
        let text = inert(&hostile.to_string());
        assert!(!text.contains('<'));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), hostile);
    }
}
