//! What a model should compute: checkpoints opened and read independently of the engine ([`loaded`], [`folder`]), and the
//! [`oracle`] with its [`products`].

use qdiff_capture::{hash, input, log, nearest, number};
use qdiff_llama::llama;

pub mod chat;
pub mod folder;
pub mod loaded;
pub mod oracle;
pub mod products;
pub mod prompts;
