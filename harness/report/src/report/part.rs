//! A part of a verdict: what one machine of several judged. `qdiff report` puts the parts together.

use super::{Document, Outcome, Screen, Told as _};
use crate::hash::sha256;
use crate::number::{Real, counted};
use crate::shard::Shard;
use crate::verdict::{CheckMode, Measured, Seed};
use anyhow::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What one machine judged of two captures.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// Version of qdiff.
    pub qdiff: String,
    /// Which part.
    pub shard: Shard,
    /// SHA-256 over all that the parts of one verdict have in common, in hexadecimal.
    pub work: String,
    /// The request.
    pub asked: Asked,
    /// What was found, stage by stage.
    pub stages: Vec<Measured>,
    /// Seconds that judging took.
    #[serde(with = "Real")]
    pub seconds: f64,
    /// SHA-256 of all the rest but of the places where the captures lie, in hexadecimal: against accidents, and edits of which somebody may not know
    /// what they change.
    pub checksum: String,
}

/// The request, with the paths of its files.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Asked {
    /// The GGUF.
    pub model: PathBuf,
    /// Folder of the capture under suspicion.
    pub subject: PathBuf,
    /// Folder of the capture it is held against.
    pub reference: PathBuf,
    /// Names of the subject's arrays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<PathBuf>,
    /// Patterns of the stages asked for; all where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<String>,
    /// Layers asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<String>,
    /// Positions asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<String>,
    /// Tolerances set by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerance: Vec<String>,
    /// The file that set them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance_from: Option<PathBuf>,
    /// How linear layers and attention are checked.
    pub check: CheckMode,
    /// What probes draw their random numbers from in the place of the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_seed: Option<Seed>,
    /// Work that the search for causes may take, as a multiple of the usual.
    #[serde(with = "Real")]
    pub why_budget: f64,
}

impl Part {
    /// The file of it, with its checksum.
    ///
    /// # Errors
    /// If it has no form in JSON.
    pub fn sealed(&mut self) -> Result<String> {
        self.checksum = checksum(self.json()?.as_bytes())?;
        self.json()
    }

    /// What it holds, in a line.
    pub fn line(&self) -> String {
        let count = |which: fn(&Measured) -> bool| self.stages.iter().filter(|stage| which(stage)).count();
        let (judged, wrong) = (count(Measured::judged), count(Measured::wrong));
        let by_itself = if judged < self.stages.len() { " alone on both sides, not as part of a segment" } else { "" };
        format!(
            "part {} of a verdict: {judged} of {} judged{by_itself}, {}",
            self.shard,
            counted(self.stages.len(), "stage"),
            if wrong == 0 { "none is wrong".to_owned() } else { format!("{wrong} of them wrong") }
        )
    }
}

/// Members of [`Asked`] that say where the model and the captures lie. A machine that puts parts together may have them
/// elsewhere than the one that judged. What lies there is still that which was judged: the part's `work` is of the model's
/// and of the manifests' content, and its stages are of the values.
const PLACES: [&str; 3] = ["model", "subject", "reference"];

/// The checksum of the part that is written in these bytes, independent of the one that it names, of its layout, and of
/// where its model and its captures lie.
///
/// # Errors
/// What is no JSON.
pub fn checksum(written: &[u8]) -> Result<String> {
    let mut value: serde_json::Value = serde_json::from_slice(written)?;
    if let Some(object) = value.as_object_mut() {
        object.shift_remove("checksum");
        if let Some(asked) = object.get_mut("asked").and_then(|asked| asked.as_object_mut()) {
            asked.retain(|name, _| !PLACES.contains(&name.as_str()));
        }
    }
    Ok(sha256(value.to_string().as_bytes()))
}

impl Document for Part {
    const KIND: &'static str = "part";

    fn screen(&self, _: bool) -> Screen {
        Screen::new(format!("part {}", self.shard), Outcome::Incomplete, self.line())
    }
}
