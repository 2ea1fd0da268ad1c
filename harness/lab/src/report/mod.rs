//! What the lab's commands have to tell, and the book of all results.

pub mod bench;
pub mod book;
mod score;
