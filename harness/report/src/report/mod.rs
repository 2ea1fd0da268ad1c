//! Reports: the result of a command is data ([`Document`]) and says what it has
//! to tell as a [`Screen`]; one file per format lays any screen out.
//!
//! `run`, `check`, `generation`, `logits`, `weights`, `sweep`, `comparison` and `oracle` make the screens;
//! `stages` and `origin` are what several of them say. A [`Format`] decides nothing and computes no metric of its own.

mod badge;
mod batch;
pub mod check;
mod comparison;
pub mod file;
pub mod generation;
pub mod github;
mod html;
pub mod json;
mod judged;
mod junit;
pub mod logits;
pub mod markdown;
mod model;
mod next;
mod oracle;
mod origin;
mod overview;
mod page;
pub mod part;
pub mod rl;
mod run;
mod screen;
mod stages;
mod standing;
mod sweep;
pub mod terminal;
mod told;
pub mod weights;
mod written;

pub use batch::{Failure, gaps};
pub use check::CheckReport;
pub use generation::GenerationReport;
pub use logits::LogitsReport;
pub use model::{
    AdapterInfo, Doubt, Memory, ModelInfo, Outcome, Place, Prefix, Report, RunInfo, SCHEMA_VERSION, Seconds,
    SequenceInfo, Suspect,
};
pub use oracle::{OracleReport, OracleStage};
pub use origin::grouped;
pub use origin::{UNKNOWN, inert, story};
pub use overview::render as overview;
pub use part::{Asked, Part};
pub use rl::RlReport;
pub use screen::{Check, Document, Fate, Next, Screen, Section, Table};
pub use stages::NONE;
pub use sweep::SweepReport;
pub use told::Told;
pub use weights::WeightsReport;

use anyhow::{Context as _, Result, bail};
use std::path::Path;

/// A file format of reports.
pub struct Format {
    /// What it is called, as an option of the command line: `--markdown`.
    pub name: &'static str,
    /// Extension of its files, without the dot.
    pub extension: &'static str,
    /// Whether one file can hold several documents.
    pub several: bool,
    /// The whole file. What should be among the documents and is not comes second, a sentence each: a format of
    /// several tells it, so that none of them passes for all.
    pub render: fn(&[&dyn Told], &[String]) -> Result<String>,
}

/// Every format that is a file.
pub static FORMATS: [Format; 5] = [
    Format { name: "json", extension: "json", several: false, render: json::render },
    Format { name: "markdown", extension: "md", several: true, render: markdown::render },
    Format { name: "html", extension: "html", several: true, render: page::render },
    Format { name: "junit", extension: "xml", several: true, render: junit::render },
    Format { name: "badge", extension: "svg", several: false, render: badge::render },
];

/// The format with the extension of `path`.
///
/// # Errors
/// An extension of no format.
pub fn format_of(path: &Path) -> Result<&'static Format> {
    if path.as_os_str() == "-" {
        let options = FORMATS.each_ref().map(|f| format!("--{} -", f.name)).join(", ");
        bail!("standard output has no extension to tell the format from; say {options}");
    }
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    FORMATS.iter().find(|f| f.extension == extension).with_context(|| {
        let known = FORMATS.each_ref().map(|f| format!(".{}", f.extension)).join(", ");
        format!("cannot tell the format of {} from its extension; it takes {known}", path.display())
    })
}

/// The format of this name.
pub fn format_named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|f| f.name == name)
}

#[cfg(test)]
mod tests {
    use super::terminal::Terminal;
    use super::*;
    use crate::shown::unseen;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// A document of which every text comes from a hostile file.
    #[derive(serde::Serialize, schemars::JsonSchema)]
    struct Hostile {
        text: String,
    }

    impl Document for Hostile {
        const KIND: &'static str = "hostile";

        fn screen(&self, _: bool) -> Screen {
            let text = || self.text.clone();
            let table =
                Table { columns: vec![text()], numbers: vec![], spare: vec![], status: None, rows: vec![vec![text()]] };
            let fates = [Fate::Passed(text()), Fate::of(Some(text())), Fate::Error(text()), Fate::Skipped(text())];
            Screen {
                sections: vec![Section { lines: vec![("label", text())], ..Section::table(&text(), table) }],
                checks: fates.into_iter().map(|fate| Check::new(text(), text(), fate)).collect(),
                next: Some(Next { command: text(), why: "so" }),
                repeat: text(),
                ..Screen::new(text(), Outcome::Diverged, text())
            }
        }
    }

    fn hostile() -> impl Strategy<Value = String> {
        let known = select(vec![
            "\u{1b}[31m", "\u{9b}2J", "\r\n", "\t", "\0", "\u{202e}", "\u{2066}", "\u{200f}", "\u{61c}", "\u{200b}",
            "\u{feff}", "\u{fffe}", "\u{e0041}", "\n::error::x\n", " ::add-mask::y ", "##[error]", "</script>", "]]>",
            "%0A", "blk.0.attn_q.weight ", "'", "\\",
        ]);
        let part = prop_oneof![known.prop_map(str::to_owned), any::<char>().prop_map(String::from)];
        prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
    }

    proptest! {
        /// In no format can text from a file hide, steer a terminal, or give orders to a workflow.
        #[test]
        fn text_from_files_is_shown_in_every_format(text in hostile()) {
            let hidden = |out: &str| out.chars().find(|c| unseen(*c) && *c != '\n');
            let document = Hostile { text: text.clone() };
            let (told, absent): ([&dyn Told; 1], _) = ([&document], [text.clone()]);
            for format in FORMATS.iter().filter(|f| f.several) {
                let out = (format.render)(&told, &absent).unwrap();
                prop_assert_eq!(hidden(&out), None, "{}: {}", format.name, out);
            }
            let page = html::element("run", &serde_json::json!({ &text: &text })).unwrap();
            prop_assert_eq!(hidden(&page), None, "{}", page);
            prop_assert_eq!(page.matches('<').count(), 2, "{}", page);
            let (_, json) = page.trim_end_matches("</script>").split_once('>').unwrap();
            let read: std::collections::BTreeMap<String, String> = serde_json::from_str(json).unwrap();
            let told_there: String = read.into_iter().flat_map(|(key, value)| [key, value]).collect();
            prop_assert_eq!(hidden(&told_there.replace(['\t', '\r'], "")), None, "{}", page);

            let screen = terminal::harmless(&Terminal::of(terminal::WIDTH).render(&Told::screen(&document, true)));
            let screen = anstream::adapter::strip_str(&screen).to_string();
            prop_assert_eq!(hidden(&screen), None, "{}", screen);
            let order = screen.lines().find(|l| l.trim_start().starts_with("::") || l.contains("##["));
            prop_assert_eq!(order, None);

            let annotations = github::annotations(&told, &absent);
            prop_assert_eq!(hidden(&annotations), None, "{}", annotations);
            prop_assert!(annotations.lines().count() == 2, "{}", annotations);
            prop_assert!(annotations.lines().all(|l| l.starts_with("::error title=qdiff")), "{}", annotations);
        }
    }
}
