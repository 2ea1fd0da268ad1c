//! JUnit XML: a suite per model and prompt, a case per stage.

use super::{Format, Report, Summary};
use crate::number::number;
use crate::tokens::TokensCheck;
use crate::verdict::{StageResult, Status};
use anyhow::Result;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};
use std::io;

/// The JUnit format.
pub struct JUnit;

impl Format for JUnit {
    fn extension(&self) -> &'static str {
        "xml"
    }

    fn several(&self) -> bool {
        true
    }

    fn render(&self, reports: &[Report], absent: &[String]) -> Result<String> {
        let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
        writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
        let all: Vec<Vec<Case>> = reports.iter().map(cases).collect();
        let absent: Vec<Case> = absent.iter().map(|what| Case::absent(what)).collect();
        let counts = Counts::of(all.iter().flatten().chain(&absent), reports.iter().map(|r| r.seconds.total()).sum());
        writer
            .create_element("testsuites")
            .with_attribute(("name", "qdiff"))
            .with_attributes(counts.attributes().iter().map(|(k, v)| (*k, v.as_str())))
            .write_inner_content(|w| {
                for (report, cases) in reports.iter().zip(&all) {
                    suite(w, report, cases)?;
                }
                if !absent.is_empty() {
                    batch(w, &absent)?;
                }
                Ok(())
            })?;
        Ok(String::from_utf8(writer.into_inner())? + "\n")
    }
}

/// What became of a case.
enum Fate {
    Passed(String),
    Failed {
        kind: &'static str,
        message: String,
    },
    /// The check itself is in doubt.
    Error(String),
    Skipped(String),
}

struct Case {
    class: String,
    name: String,
    seconds: f64,
    result: Fate,
}

impl Case {
    /// A run that should be there and is not.
    fn absent(what: &str) -> Self {
        Self {
            class: "batch".to_owned(),
            name: "every run is there".to_owned(),
            seconds: 0.0,
            result: Fate::Error(what.to_owned()),
        }
    }
}

struct Counts {
    /// Seconds that all took together.
    seconds: f64,
    tests: usize,
    failures: usize,
    errors: usize,
    skipped: usize,
}

impl Counts {
    fn of<'a>(cases: impl Iterator<Item = &'a Case>, seconds: f64) -> Self {
        let mut counts = Self { seconds, tests: 0, failures: 0, errors: 0, skipped: 0 };
        for case in cases {
            counts.tests += 1;
            match case.result {
                Fate::Passed(_) => {}
                Fate::Failed { .. } => counts.failures += 1,
                Fate::Error(_) => counts.errors += 1,
                Fate::Skipped(_) => counts.skipped += 1,
            }
        }
        counts
    }

    fn attributes(&self) -> [(&'static str, String); 5] {
        [
            ("tests", self.tests.to_string()),
            ("failures", self.failures.to_string()),
            ("errors", self.errors.to_string()),
            ("skipped", self.skipped.to_string()),
            ("time", time(self.seconds)),
        ]
    }
}

/// What is wrong of the batch as a whole.
fn batch(w: &mut Writer<Vec<u8>>, cases: &[Case]) -> io::Result<()> {
    let counts = Counts::of(cases.iter(), 0.0);
    w.create_element("testsuite")
        .with_attribute(("name", "batch"))
        .with_attributes(counts.attributes().iter().map(|(k, v)| (*k, v.as_str())))
        .write_inner_content(|w| cases.iter().try_for_each(|c| case(w, c)))?;
    Ok(())
}

fn suite(w: &mut Writer<Vec<u8>>, report: &Report, cases: &[Case]) -> io::Result<()> {
    let summary = Summary::new(report);
    let name = legal(&format!("{} {}", report.model.name, report.run.prompt));
    let counts = Counts::of(cases.iter(), report.seconds.total());
    w.create_element("testsuite")
        .with_attribute(("name", name.as_str()))
        .with_attributes(counts.attributes().iter().map(|(k, v)| (*k, v.as_str())))
        .write_inner_content(|w| {
            w.create_element("properties").write_inner_content(|w| {
                let facts = summary.facts.iter().map(|(k, v)| (*k, v.clone()));
                let verdict = ("verdict", summary.line());
                let command = ("command", report.run.repeat());
                for (name, value) in facts.chain([verdict, command]) {
                    w.create_element("property")
                        .with_attribute(("name", name))
                        .with_attribute(("value", legal(&value).as_str()))
                        .write_empty()?;
                }
                Ok(())
            })?;
            for c in cases {
                case(w, c)?;
            }
            w.create_element("system-out").write_text_content(BytesText::new(&legal(&summary.line())))?;
            Ok(())
        })?;
    Ok(())
}

fn case(w: &mut Writer<Vec<u8>>, case: &Case) -> io::Result<()> {
    let element = w
        .create_element("testcase")
        .with_attribute(("name", case.name.as_str()))
        .with_attribute(("classname", case.class.as_str()))
        .with_attribute(("time", time(case.seconds).as_str()));
    let (tag, kind, message) = match &case.result {
        Fate::Passed(words) if words.is_empty() => {
            element.write_empty()?;
            return Ok(());
        }
        Fate::Passed(words) => {
            element.write_inner_content(|w| {
                w.create_element("system-out").write_text_content(BytesText::new(&legal(words)))?;
                Ok(())
            })?;
            return Ok(());
        }
        Fate::Failed { kind, message } => ("failure", Some(*kind), message),
        Fate::Error(message) => ("error", Some("in-doubt"), message),
        Fate::Skipped(message) => ("skipped", None, message),
    };
    element.write_inner_content(|w| {
        let message = legal(message);
        let mut inner = w.create_element(tag).with_attribute(("message", message.as_str()));
        if let Some(kind) = kind {
            inner = inner.with_attribute(("type", kind));
        }
        inner.write_empty()?;
        Ok(())
    })?;
    Ok(())
}

fn cases(report: &Report) -> Vec<Case> {
    let weights = Case {
        class: "model".to_owned(),
        name: "weights".to_owned(),
        seconds: report.seconds.weights,
        result: match report.weights.mismatches.first() {
            None => Fate::Passed(String::new()),
            Some(m) => Fate::Failed {
                kind: "diverged",
                message: format!(
                    "{} ({}) row {} [{}] is {} to the engine, {} to ggml; {} tensors differ",
                    m.tensor,
                    m.format,
                    m.row,
                    m.index,
                    m.got,
                    m.want,
                    report.weights.mismatches.len()
                ),
            },
        },
    };
    let stages = report.diagnosis.verdict.stages.iter().enumerate().map(|(i, stage)| Case {
        class: match stage.id.layer {
            Some(layer) => format!("L{layer:02}"),
            None => "model".to_owned(),
        },
        name: stage.id.to_string(),
        seconds: report.seconds.stages.get(i).copied().unwrap_or_default(),
        result: result(report, stage),
    });
    std::iter::once(weights)
        .chain(report.tokens.as_ref().map(|check| tokens(check, report.seconds.tokens)))
        .chain(stages)
        .collect()
}

fn tokens(check: &TokensCheck, seconds: f64) -> Case {
    Case {
        class: "model".to_owned(),
        name: "tokens".to_owned(),
        seconds,
        result: match (&check.unchecked, check.diverged()) {
            (Some(_), _) => Fate::Skipped(check.words()),
            (None, true) => Fate::Failed { kind: "diverged", message: check.words() },
            (None, false) => Fate::Passed(String::new()),
        },
    }
}

fn result(report: &Report, stage: &StageResult) -> Fate {
    let figures = || {
        let local = stage.subject.as_ref();
        local.map_or_else(String::new, |l| {
            format!("local residual {}, allowed {}", number(l.residual), number(l.allowed))
        })
    };
    let why = || {
        let finding = report.diagnosis.findings.iter().find(|f| f.id == stage.id);
        let place = finding.map(|f| super::summary::positions(&report.diagnosis.verdict, f));
        let cause = match finding.and_then(|f| f.cause.as_ref()) {
            Some(c) => format!("{} ({})", c.story, c.name),
            None => finding.map_or_else(String::new, |f| format!("no known cause. {}", f.shape)),
        };
        format!("{}: {cause}; {}", place.unwrap_or_default(), figures())
    };
    match stage.status {
        Status::Match => Fate::Passed(String::new()),
        Status::Inherited => Fate::Passed("inherited: right, on wrong operands".to_owned()),
        Status::Alone => Fate::Passed("no reference: it meets f64 on its own operands".to_owned()),
        Status::Covered => Fate::Passed("judged within the segment of a later stage".to_owned()),
        Status::Diverged => Fate::Failed { kind: "diverged", message: why() },
        Status::Poisoned if stage.origin => {
            Fate::Failed { kind: "poisoned", message: format!("the first NaN or infinity; {}", why()) }
        }
        Status::Poisoned => Fate::Skipped("poisoned by a stage before it".to_owned()),
        Status::Disputed => {
            let reason = report.doubt.as_ref().map_or("", |d| d.reason.as_str());
            let message = format!("the subject meets f64, the reference does not. {reason}");
            match report.outcome {
                super::Outcome::OracleSuspect => Fate::Error(message),
                _ => Fate::Failed { kind: "disputed", message },
            }
        }
        Status::Missing => Fate::Skipped("not judged: not captured, or its operands are not".to_owned()),
    }
}

/// Seconds as JUnit has them.
fn time(seconds: f64) -> String {
    format!("{seconds:.3}")
}

/// Without the characters that XML 1.0 has no way to write.
fn legal(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' | '\n' | '\r' => c,
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => '\u{fffd}',
            c => c,
        })
        .collect()
}
