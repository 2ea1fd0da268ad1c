//! The engines that can be judged, and those that can be the reference: [`runners`].

use qdiff_capture::{arithmetic, capture, cleanup, home, memory, metrics, own, room, supervisor};
use qdiff_llama::llama;
use qdiff_oracle::loaded;

pub mod runners;
