//! `REPORT.md`: committed results told as one document. It is a function of the JSON files of its folders and of nothing else.
//! The sentences and tables are those of `REPORT.md.jinja`; here are the figures that it tells.

mod runs;

pub use runs::{Digest, Figures, RESULTS_VERSION, Rows, Runs, StageDigest};

use crate::report::bench::{Bench, VerdictBench};
use crate::score::{Case, Score, Worth};
use anyhow::{Context as _, Result, anyhow, bail};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value as Shown};
use minijinja::{Environment, UndefinedBehavior};
use qdiff::input;
use qdiff::number::counted;
use qdiff::report::{Document as _, SCHEMA_VERSION, Screen, file, grouped, markdown};
use qdiff::shown::shown;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const DOCUMENT: &str = include_str!("REPORT.md.jinja");

/// The results that the document is made of.
#[derive(Default)]
pub struct Book {
    runs: Vec<Runs>,
    scores: Vec<Score>,
    benches: Vec<OnFile>,
    /// The document prints the content of the files of these kinds: `field`, `false-alarms`, `cost`, `large-model` and `ranks`.
    others: Vec<(String, Value)>,
}

/// What `qdiff-lab bench` measured.
#[derive(Deserialize)]
#[serde(untagged)]
enum OnFile {
    Cuda(Box<Bench>),
    Verdict(VerdictBench),
}

impl Book {
    /// Reads every JSON file of `folders`, each folder in order of names.
    ///
    /// # Errors
    /// A file that cannot be read, is no result, or is of another version.
    pub fn read(folders: &[PathBuf]) -> Result<Self> {
        let mut book = Self::default();
        let files = folders.iter().map(|folder| file::list(folder, "json")).collect::<Result<Vec<_>>>()?.concat();
        if files.is_empty() {
            let folders: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
            bail!("{}: no result in it, a JSON file with a `kind`", folders.join(", "));
        }
        files.iter().try_for_each(|path| book.add(path))?;
        Ok(book)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        #[derive(Deserialize)]
        struct Head {
            schema_version: u32,
            kind: String,
        }
        let name = path.display();
        let bytes = input::bytes(path, input::REPORT).with_context(|| format!("cannot read {name}"))?;
        let head: Head = serde_json::from_slice(&bytes)
            .with_context(|| format!("{name} is no result: it has no `schema_version` and `kind`"))?;
        if ![RESULTS_VERSION, SCHEMA_VERSION].contains(&head.schema_version) {
            bail!(
                "{name} has schema_version {}, this qdiff reads {RESULTS_VERSION} and {SCHEMA_VERSION}; measure it again",
                head.schema_version
            );
        }
        let whole = || format!("{name} is no whole result of kind `{}`", head.kind);
        match head.kind.as_str() {
            "runs" => self.runs.push(serde_json::from_slice(&bytes).with_context(whole)?),
            "score" => self.scores.push(serde_json::from_slice(&bytes).with_context(whole)?),
            "bench" => self.benches.push(serde_json::from_slice(&bytes).with_context(whole)?),
            "field" | "false-alarms" | "cost" | "large-model" | "ranks" => {
                let value = serde_json::from_slice(&bytes).with_context(whole)?;
                self.others.push((head.kind, value));
            }
            kind => bail!("{name} is of kind `{kind}`, which no section tells"),
        }
        Ok(())
    }

    /// The document, in markdown.
    ///
    /// # Errors
    /// A result that lacks what the document prints of its kind.
    pub fn render(&self) -> Result<String> {
        let kind = |of: &str| self.others.iter().filter(|(k, _)| k == of).map(|(_, value)| value).collect::<Vec<_>>();
        let screen = |screen: &Screen| markdown::screen(screen, 3);
        let bench = |bench: &OnFile| match bench {
            OnFile::Cuda(bench) => screen(&bench.screen(None)),
            OnFile::Verdict(bench) => screen(&bench.screen()),
        };
        let digests: Vec<&Digest> = self.runs.iter().flat_map(|runs| &runs.runs).collect();
        let results = json!({
            "runs": if digests.is_empty() { Vec::new() } else { self.runs.iter().map(Runs::told).collect() },
            "digests": digests,
            "worst": runs::worst(&digests),
            "paths": runs::paths(&digests),
            "scores": self.scores.iter().map(|score| told(score, screen(&score.screen(true)))).collect::<Vec<_>>(),
            "benches": self.benches.iter().map(bench).collect::<Vec<_>>(),
            "speeds": self.speeds(),
            "field": kind("field"),
            "alarms": kind("false-alarms"),
            "costs": kind("cost"),
            "large": kind("large-model"),
            "ranks": kind("ranks"),
        });
        let told = environment().render_named_str("REPORT.md.jinja", DOCUMENT, Shown::from(Serde(&results)));
        told.map_err(|e| anyhow!("the results do not make the document: {e}"))
    }

    /// How fast the engine on a GPU is beside llama.cpp: the ratios of every measurement of one card that was made beside it.
    fn speeds(&self) -> Vec<Value> {
        let benches = self.benches.iter().filter_map(|bench| match bench {
            OnFile::Cuda(bench) if bench.rows.iter().any(|row| row.ratio.is_some() && row.what == "decode") => {
                Some(bench)
            }
            OnFile::Cuda(_) | OnFile::Verdict(_) => None,
        });
        let speed = |(device, benches): (&String, Vec<&Box<Bench>>)| {
            let of = |what: &str| -> Vec<f64> {
                let ratios =
                    benches.iter().flat_map(|b| &b.rows).filter(|row| row.what == what && row.who == "cuda-fast");
                ratios.filter_map(|row| row.ratio).collect()
            };
            let (prefill, decode) = (of("prefill"), of("decode"));
            let told = json!({ "device": device, "benches": benches.len(), "prefill": prefill, "decode": decode });
            (!prefill.is_empty() && !decode.is_empty()).then_some(told)
        };
        grouped(benches, |bench| &bench.device).into_iter().filter_map(speed).collect()
    }
}

/// A score in the figures of the summary, and as a section of its own.
fn told(score: &Score, section: String) -> Value {
    let cases: Vec<&Case> = score.independent().collect();
    let count = |right: fn(&Case) -> bool| cases.iter().filter(|c| right(c)).count();
    json!({
        "subject": score.subject, "on": score.on, "models": score.models, "grading": score.grading,
        "cases": cases.len(),
        "found": count(|c| c.detected && c.stage_right),
        "right": count(Case::cause_right),
        "false": count(|c| c.worth == Some(Worth::False)),
        "alarms": score.clean.alarms.len(),
        "clean": score.clean.runs,
        "reached": score.reached(),
        "told": section,
    })
}

/// What the document calls.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters"));
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let escaped = |cells: Vec<String>| cells.iter().map(|cell| markdown::escape(cell)).collect::<Vec<_>>();
    environment.add_filter("row", move |cells: Vec<String>| line(escaped(cells)));
    // The first lines of a table, of which these columns are numbers.
    environment.add_filter("head", move |names: Vec<String>, numbers: Vec<usize>| {
        let rule = (0..names.len()).map(|i| if numbers.contains(&i) { "---:" } else { "---" }.to_owned()).collect();
        format!("{}\n{}", line(escaped(names)), line(rule))
    });
    environment.add_filter("md", |text: &str| markdown::escape(text));
    environment.add_filter("code", |text: &str| markdown::code(text));
    // For between two backticks.
    environment.add_filter("quoted", |text: &str| shown(text).replace('`', "'"));
    // Those of the lists of all that have this name.
    environment.add_filter("flat", |all: Vec<Shown>, name: &str| -> Result<Vec<Shown>, minijinja::Error> {
        let lists = all.iter().map(|one| Ok(one.get_attr(name)?.try_iter()?.collect::<Vec<_>>()));
        Ok(lists.collect::<Result<Vec<_>, minijinja::Error>>()?.concat())
    });
    // Members of one key together, in the order in which the keys first occur.
    environment.add_filter("grouped", |all: Vec<Shown>, path: &str| {
        let key = |one: &Shown| path.split('.').try_fold(one.clone(), |of, name| of.get_attr(name)).ok();
        let groups = grouped(all, key).into_iter();
        groups.map(|(key, members)| minijinja::context! { key, members }).collect::<Vec<_>>()
    });
    environment.add_function("counted", |n: usize, what: &str| counted(n, what));
    environment.add_function("gib", |bytes: f64| format!("{:.2}", bytes / f64::from(1 << 30)));
    environment.add_function("machine", |machine: &Shown| {
        let (system, cpu) = (machine.get_attr("system")?, machine.get_attr("cpu")?);
        let name = if cpu.is_true() { cpu } else { system };
        Ok::<_, minijinja::Error>(format!("{name}, {} cores", machine.get_attr("cores")?))
    });
    environment
}
