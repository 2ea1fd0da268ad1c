//! The lab's tasks: a request, and the function that does what it asks and gives what was found.

pub mod bench;
pub mod digest;
pub mod score;
