//! One HTML file that needs nothing else. The report of a run has a page with
//! charts (`html/`); all other documents have a plain one.

use super::html::{self, escape, title};
use super::{Screen, Section, Told};
use anyhow::Result;
use std::fmt::Write as _;

/// The whole file.
pub(super) fn render(told: &[&dyn Told], absent: &[String]) -> Result<String> {
    match told.iter().map(|t| t.run()).collect::<Option<Vec<_>>>() {
        Some(runs) => html::render(&runs, absent),
        None => Ok(plain(told.iter().map(|t| t.screen(true)))),
    }
}

const STYLE: &str = "\
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.3em } h2 { font-size: 1.1em; margin-top: 2em }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3em 1.2em }
dt { opacity: .7 } dd { margin: 0; overflow-wrap: anywhere }
.wide { overflow-x: auto } table { border-collapse: collapse }
th, td { text-align: left; padding: .2em .8em .2em 0; white-space: nowrap; border-bottom: 1px solid #8883 }
.n { text-align: right } pre { overflow-x: auto; padding: .6em; background: #8882 }";

fn plain(screens: impl Iterator<Item = Screen>) -> String {
    let screens: Vec<Screen> = screens.collect();
    let title = screens.first().map_or_else(String::new, title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}\n</style>\n<main>\n",
        escape(&title)
    );
    for screen in &screens {
        one(screen, &mut out);
    }
    out + "</main>\n</html>\n"
}

fn one(screen: &Screen, out: &mut String) {
    let _ = writeln!(out, "<p>{}</p>\n<h1>{}</h1>", escape(&screen.title), escape(&screen.line()));
    for part in screen.sections.iter().filter(|s| !s.is_empty()) {
        section(part, out);
    }
    let repeat = (!screen.repeat.is_empty()).then(|| ("To repeat:".to_owned(), &screen.repeat));
    let next = screen.next.as_ref().map(|next| (format!("Next, {}:", next.why), &next.command));
    for (what, command) in repeat.into_iter().chain(next) {
        let _ = writeln!(out, "<p>{}</p>\n<pre>{}</pre>", escape(&what), escape(command));
    }
}

fn section(section: &Section, out: &mut String) {
    if !section.title.is_empty() {
        let _ = writeln!(out, "<h2>{}</h2>", escape(&section.title));
    }
    if !section.lines.is_empty() {
        out.push_str("<dl>\n");
        for (label, text) in &section.lines {
            let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(label), escape(text));
        }
        out.push_str("</dl>\n");
    }
    let Some(table) = section.table.as_ref().filter(|t| !t.rows.is_empty()) else { return };
    let row = |tag: &str, cells: &[String]| {
        let cells = cells.iter().enumerate().map(|(i, cell)| {
            let class = if table.numbers.contains(&i) { " class=\"n\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let _ = write!(out, "<div class=\"wide\"><table>\n{}", row("th", &table.columns));
    out.extend(table.rows.iter().map(|cells| row("td", cells)));
    out.push_str("</table></div>\n");
}
