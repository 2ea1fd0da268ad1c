//! What an engine computed, kept by stage and step: [`capture`] and its containers, declared [`arithmetic`], number
//! formats, and what every part of qdiff needs of the machine it runs on.

pub mod arithmetic;
pub mod capture;
pub mod cleanup;
pub mod formats;
pub mod hash;
pub mod home;
pub mod input;
pub mod log;
pub mod machine;
pub mod memory;
pub mod metrics;
pub mod nearest;
pub mod number;
pub mod own;
pub mod progress;
pub mod room;
pub mod sampling;
pub mod shard;
pub mod shown;
pub mod supervisor;
