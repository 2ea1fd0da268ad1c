//! Documents as JSON.

use super::{Document, SCHEMA_VERSION};
use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};

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
