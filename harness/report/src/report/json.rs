//! JSON: the report itself, with its schema (draft 2020-12), which follows from its type. Written with the lists of numbers on one line each, so that it can be read, and read back.

use super::{Document, Failure, Part, Place, Report, SCHEMA_VERSION, Told, part};
use crate::capture::npz;
use crate::input;
use anyhow::{Context as _, Result, bail};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};
use std::path::Path;

/// The one document as a file.
pub(super) fn render(told: &[&dyn Told], _: &[String]) -> Result<String> {
    match told {
        [one] => one.json(),
        _ => bail!("a JSON report holds one run"),
    }
}

/// A document as it is written: its fields behind what identifies the layout.
#[derive(Serialize, JsonSchema)]
pub struct Written<'a, T> {
    schema_version: u32,
    kind: &'static str,
    #[serde(flatten)]
    document: &'a T,
}

impl<'a, T: Document> Written<'a, T> {
    /// `document` in today's layout.
    pub fn of(document: &'a T) -> Self {
        Self { schema_version: SCHEMA_VERSION, kind: T::KIND, document }
    }
}

/// The schema of a document as it is written.
pub fn schema<T: Document>() -> Schema {
    let mut schema = schema_of::<Written<'static, T>>(SCHEMA_VERSION);
    schema.insert("title".to_owned(), serde_json::json!(T::KIND));
    if let Some(field) = schema.pointer_mut("/properties/kind") {
        *field = serde_json::json!({ "const": T::KIND, "description": "What this file is." });
    }
    schema
}

/// The schema of the `manifest.json` of a capture.
pub fn capture_schema() -> Schema {
    let mut schema = schema_of::<npz::Manifest>(npz::SCHEMA_VERSION);
    // A capture of one sequence keeps the version before.
    if let Some(field) = schema.pointer_mut("/properties/schema_version") {
        let versions = [npz::OF_ONE_SEQUENCE, npz::SCHEMA_VERSION];
        *field = serde_json::json!({ "enum": versions, "description": "Version of this layout." });
    }
    schema
}

fn schema_of<T: JsonSchema>(version: u32) -> Schema {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    // The version is not any number, but the one that this layout has.
    if let Some(field) = schema.pointer_mut("/properties/schema_version") {
        *field = serde_json::json!({ "const": version, "description": "Version of this layout." });
    }
    schema
}

/// `value` as JSON, indented, with the lists of plain values on one line each.
///
/// # Errors
/// If it has no form in JSON.
pub fn text(value: &impl Serialize) -> Result<String> {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, Indented::default());
    value.serialize(&mut serializer)?;
    bytes.push(b'\n');
    Ok(String::from_utf8(bytes)?)
}

/// What a saved file says of a run.
pub enum Saved {
    /// It was judged.
    Report(Box<Report>),
    /// It could not be made.
    Failure(Failure),
    /// It was judged in part.
    Part(Box<Part>),
}

impl Saved {
    /// Its place in a batch.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Report(report) => report.batch.as_ref(),
            Self::Failure(failure) => failure.batch.as_ref(),
            Self::Part(_) => None,
        }
    }
}

/// The oldest layout that is read as well: fields were renamed since, and read by either name.
const OLDEST: u32 = 2;

/// Reads a report, or what was written in its place.
///
/// # Errors
/// A file that is not there, is no report, or is of another version.
pub fn read(path: &Path) -> Result<Saved> {
    let shown = path.display();
    let bytes = input::bytes(path, input::REPORT).with_context(|| format!("cannot read {shown}"))?;
    parse(&bytes, &shown.to_string())
}

/// The same of the bytes of a file called `shown`. What a report comes to is told from what it holds, not from its word
/// for it.
///
/// # Errors
/// As [`read`].
pub fn parse(bytes: &[u8], shown: &str) -> Result<Saved> {
    #[derive(Deserialize)]
    struct Head {
        schema_version: Option<u64>,
        kind: Option<String>,
    }
    let head: Head =
        serde_json::from_slice(bytes).with_context(|| format!("{shown} is no report that `qdiff run --json` wrote"))?;
    match head.schema_version {
        None => {
            bail!("{shown} has no schema_version: it is no report that `qdiff run --json` wrote")
        }
        Some(v) if !(OLDEST.into()..=SCHEMA_VERSION.into()).contains(&v) => {
            bail!("{shown} has schema_version {v}, this qdiff reads {OLDEST} to {SCHEMA_VERSION}; run it again")
        }
        Some(_) => {}
    }
    let whole = || format!("{shown} is no whole report");
    Ok(match head.kind.as_deref() {
        Some("run") | None => {
            let mut report: Box<Report> = serde_json::from_slice(bytes).with_context(whole)?;
            if let Some(what) = report.miscounts() {
                bail!("{}: {what} has more rows in a part than in all", whole());
            }
            report.outcome = report.comes_to();
            Saved::Report(report)
        }
        Some("failure") => Saved::Failure(serde_json::from_slice(bytes).with_context(whole)?),
        Some("part") => {
            let part: Box<Part> = serde_json::from_slice(bytes).with_context(whole)?;
            if part::checksum(bytes)? != part.checksum {
                bail!(
                    "{shown} is not what `qdiff judge` wrote: its checksum is of other content; judge that part again"
                );
            }
            Saved::Part(part)
        }
        Some(kind) => bail!("{shown} is of kind `{kind}`; a report of one run has kind `run`"),
    })
}

/// Puts members of objects and objects in lists on lines of their own, and plain values in lists beside each other.
#[derive(Default)]
struct Indented {
    /// For each open list or object: whether it is a list, and whether it has anything on a line of its own.
    open: Vec<(bool, bool)>,
}

impl Indented {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        for _ in &self.open {
            writer.write_all(b"  ")?;
        }
        Ok(())
    }

    /// A list or an object begins: in a list it takes a line.
    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        if let Some((true, lines)) = self.open.last_mut() {
            *lines = true;
            self.line(writer)?;
        }
        self.open.push((bracket == b"[", false));
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, end: &[u8]) -> io::Result<()> {
        if self.open.pop().is_some_and(|(_, lines)| lines) {
            self.line(writer)?;
        }
        writer.write_all(end)
    }
}

impl Formatter for Indented {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b",") }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        if let Some((_, lines)) = self.open.last_mut() {
            *lines = true;
        }
        self.line(writer)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lists_stay_on_a_line() {
        let value = serde_json::json!({
            "a": [1, null, "x"], "b": [], "c": {}, "d": [{"e": 1}, {"f": [[1, 2], [3]]}], "g": true
        });
        let text = text(&value).unwrap();
        assert_eq!(
            text,
            r#"{
  "a": [1,null,"x"],
  "b": [],
  "c": {},
  "d": [
    {
      "e": 1
    },
    {
      "f": [
        [1,2],
        [3]
      ]
    }
  ],
  "g": true
}
"#
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
