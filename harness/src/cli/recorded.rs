//! Captures on disk that stand for live runners.

use super::setup;
use crate::capture::npz;
use crate::compare::comparable;
use crate::runners::Spec;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// The captures that stand for live runners.
pub(super) struct Recorded {
    /// The subject's folder and manifest.
    pub(super) subject: Option<(PathBuf, npz::Manifest)>,
    /// The reference's.
    pub(super) reference: Option<(PathBuf, npz::Manifest)>,
}

impl Recorded {
    pub(super) fn open(subject: &Spec, reference: &Spec) -> Result<Self> {
        let open = |spec: &Spec| match spec {
            Spec::Capture(folder) => npz::manifest(folder).map(|m| Some((folder.clone(), m))),
            _ => Ok(None),
        };
        let recorded = Self { subject: open(subject)?, reference: open(reference)? };
        if let (Some((a, x)), Some((b, y))) = (&recorded.subject, &recorded.reference) {
            comparable((a, x), (b, y))?;
        }
        Ok(recorded)
    }

    /// The manifest whose tokens the run is about.
    pub(super) fn manifest(&self) -> Option<&npz::Manifest> {
        self.subject.as_ref().or(self.reference.as_ref()).map(|(_, m)| m)
    }

    pub(super) fn check_model(&self, sha256: &str) -> Result<()> {
        for (folder, manifest) in self.subject.iter().chain(&self.reference) {
            if let Some(other) = manifest.model_sha256.as_ref().filter(|h| *h != sha256) {
                bail!(
                    "{} was recorded on another model (sha256 {other}, this one has {sha256}); name that model with -m",
                    setup::show(folder)
                );
            }
        }
        Ok(())
    }
}
