//! The tasks of qdiff, one file each: a request, and the function that does what it asks and gives what was found. A
//! request is read from the command line as its fields say; nothing here prints or chooses an exit code.

mod batch;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod confirm;
mod declaration;
pub(crate) mod dequantise;
pub(crate) mod devices;
mod faults;
pub(crate) mod fetch;
pub(crate) mod generate;
mod hashed;
pub(crate) mod inspect;
pub(crate) mod judge;
pub(crate) mod logits;
pub(crate) mod prompts;
pub(crate) mod record;
mod repeat;
pub(crate) mod request;
pub(crate) mod rl;
pub(crate) mod run;
mod run_request;
mod sequences;
pub(crate) mod serving;
mod sides;
pub(crate) mod sweep;
pub(crate) mod synth;
pub mod values;
pub(crate) mod verify;
pub(crate) mod weights;

use crate::progress::Progress;
use anyhow::Result;
pub use confirm::{Order, OtherTokens};
pub(crate) use repeat::quote;
pub use request::{GemmRequest, ModelRequest, PromptRequest, ThreadsRequest};

/// The functions through which a task reports while it works.
#[derive(Clone, Copy)]
pub struct Console<'a> {
    /// How much of it is done.
    pub progress: Progress<'a>,
    /// The CPU engine takes the place of a GPU, and why; refused with `--ci`, and reported when the work begins.
    pub instead: &'a dyn Fn(&str) -> Result<()>,
    /// The request is checked, and the work begins.
    pub begin: &'a dyn Fn(),
    /// What whoever asked must know at once: a line.
    pub note: &'a (dyn Fn(&str) + Sync),
    /// Which stages are wrong, before it is known why: a line.
    pub found: &'a (dyn Fn(&str) + Sync),
    /// What is found, as soon as it is: whole lines.
    pub say: &'a dyn Fn(&str) -> Result<()>,
}
