//! Documents of any kind.

use super::written::{Written, text};
use super::{Document, Report, Screen};
use std::any::Any;

/// A [`Document`] of any kind.
pub trait Told {
    /// As [`Document::screen`].
    fn screen(&self, full: bool) -> Screen;

    /// The document itself.
    ///
    /// # Errors
    /// If it has no form in JSON.
    fn json(&self) -> anyhow::Result<String>;

    /// The report of a run, if it is one: its page has charts.
    fn run(&self) -> Option<&Report>;
}

impl<T: Document> Told for T {
    fn screen(&self, full: bool) -> Screen {
        Document::screen(self, full)
    }

    fn json(&self) -> anyhow::Result<String> {
        text(&Written::of(self))
    }

    fn run(&self) -> Option<&Report> {
        (self as &dyn Any).downcast_ref()
    }
}
