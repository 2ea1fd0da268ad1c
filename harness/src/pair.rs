//! Two runners on the same tokens, judged.
//!
//! What `qdiff run` does between reading its arguments and telling the
//! outcome, for whoever needs it as a whole: other commands, the score of the
//! mutations, tests.

use crate::capture::{Capture, Filter, npz};
use crate::oracle::Oracle;
use crate::runners::{self, Arithmetic, Faults, Manifest, Room, Runner, Spec};
use crate::session::Opened;
use crate::verdict::{Policy, Side, Verdict, judge};
use anyhow::Result;
use qdiff_engine::model::StageId;
use std::path::Path;

/// Told what is being done, how much of it is done, and of how much.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// For whoever shows no progress.
pub fn silent(_: &str, _: usize, _: usize) {}

/// What both runners share.
pub struct Pair<'a> {
    /// The model.
    pub opened: &'a Opened,
    /// The third opinion.
    pub oracle: &'a Oracle<'a>,
    /// What is asked for.
    pub filter: &'a Filter,
    /// What is allowed.
    pub policy: &'a Policy,
    /// Threads of llama.cpp.
    pub threads: usize,
    /// Where progress is told.
    pub progress: Progress<'a>,
}

/// The tokens of a run.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// Decode steps after it.
    pub decode: usize,
    /// Tokens fed at these steps; where `None`, the runner's own greedy choices.
    pub forced: Option<&'a [u32]>,
}

/// One runner's part.
pub struct Recording {
    /// Its taps.
    pub capture: Capture,
    /// What it is.
    pub manifest: Manifest,
    /// The token fed at each decode step.
    pub fed: Vec<u32>,
}

impl Recording {
    /// As the verdict takes it.
    pub fn side(&self) -> Side<'_> {
        Side {
            capture: &self.capture,
            arithmetic: &self.manifest.arithmetic,
        }
    }
}

impl Pair<'_> {
    /// Makes the runner that `spec` names and runs it.
    ///
    /// # Errors
    /// As [`Spec::create`] and [`Runner::step`].
    pub fn run(&self, spec: &Spec, tokens: Tokens<'_>, faults: Faults) -> Result<Recording> {
        let room = Room {
            step: tokens.prompt.len(),
            context: tokens.prompt.len() + tokens.decode,
            threads: self.threads,
        };
        let mut runner = spec.create(self.opened, &self.oracle.graph, room, faults)?;
        self.record(runner.as_mut(), tokens)
    }

    /// Runs `runner`, from where it stands.
    ///
    /// # Errors
    /// As [`Runner::step`].
    pub fn record(&self, runner: &mut dyn Runner, tokens: Tokens<'_>) -> Result<Recording> {
        let wanted = self.filter.capture_set(&self.oracle.graph);
        let what = format!("running {}", runner.manifest().name);
        let steps = tokens.decode + 1;
        (self.progress)(&what, 0, steps);
        let (capture, fed) = runners::run(
            runner,
            tokens.prompt,
            tokens.decode,
            tokens.forced,
            &wanted,
            self.logits(),
            |i| (self.progress)(&what, i + 1, steps),
        )?;
        Ok(Recording {
            capture,
            manifest: runner.manifest().clone(),
            fed,
        })
    }

    /// Reads a capture from disk.
    ///
    /// # Errors
    /// As [`npz::read`].
    pub fn read(&self, folder: &Path, manifest: &npz::Manifest) -> Result<Recording> {
        let capture = npz::read(folder, manifest, &self.oracle.graph)?;
        let declared = if manifest.arithmetic.is_some() {
            ""
        } else {
            ", arithmetic not declared: f32 assumed"
        };
        Ok(Recording {
            capture,
            manifest: Manifest {
                name: format!("{} (recorded{declared})", manifest.engine),
                arithmetic: manifest.arithmetic.clone().unwrap_or_else(Arithmetic::f32),
                injected: Vec::new(),
            },
            fed: manifest.decoded.clone(),
        })
    }

    /// Judges the one against the other.
    pub fn judge(&self, subject: &Recording, reference: &Recording) -> Verdict {
        judge(
            self.oracle,
            subject.side(),
            reference.side(),
            self.filter,
            self.policy,
            &|done, total| (self.progress)("judging against f64", done, total),
        )
    }

    /// The stage whose last row chooses the next token.
    fn logits(&self) -> StageId {
        let nodes = &self.oracle.graph.nodes;
        nodes[nodes.len() - 1].id
    }
}
