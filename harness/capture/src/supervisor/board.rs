//! Memory that a process shares with its supervisor: its present task, its last words, and what must not outlive it. It is
//! written in place and needs no sender, so it also describes a process that died at any point.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a text; the longest path that Linux knows.
const LONGEST: usize = 4096;

/// A place for one text: its length, and one more where it is taken while it is being written.
#[repr(C)]
struct Slot {
    /// 0: free; 1: being written; else the length of the text and two.
    state: AtomicU32,
    text: UnsafeCell<[u8; LONGEST]>,
}

impl Slot {
    /// Takes the slot if it is free. What is too long is cut.
    fn claim(&self, text: &[u8]) -> bool {
        if self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let text = &text[..text.len().min(LONGEST)];
        // SAFETY: only the process that set the state to 1 writes the text, until the state changes again.
        unsafe { (&mut *self.text.get())[..text.len()].copy_from_slice(text) };
        self.state.store(text.len() as u32 + 2, Ordering::Release);
        true
    }

    fn read(&self) -> Option<Vec<u8>> {
        let length = (self.state.load(Ordering::Acquire) as usize).checked_sub(2)?;
        // SAFETY: a state of two and more says that the text is written; it is read once its writer is dead.
        let text = unsafe { &*self.text.get() };
        text.get(..length).map(<[u8]>::to_vec)
    }
}

/// What a process tells its supervisor.
#[repr(C)]
pub(super) struct Board {
    doing: [Slot; 8],
    paths: [Slot; 16],
    words: Slot,
    /// 0, or one more than the exit code with which the process is about to end.
    code: AtomicU32,
}

// SAFETY: a slot's text is written by whoever took its state from 0 to 1, and read when no writer is left.
unsafe impl Sync for Board {}

/// A text on the board, until this is dropped.
#[derive(Debug)]
pub struct Posted(Option<&'static AtomicU32>);

impl Drop for Posted {
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            state.store(0, Ordering::Release);
        }
    }
}

impl Board {
    /// A board that a process shares with those it forks. `None` where the system has no memory for it.
    pub(super) fn new() -> Option<&'static Self> {
        let (length, both) = (size_of::<Self>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a fresh anonymous mapping, never unmapped; zeros are free slots, and pages are aligned as any type.
        unsafe {
            let place = libc::mmap(std::ptr::null_mut(), length, both, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0);
            (place != libc::MAP_FAILED).then(|| &*place.cast::<Self>())
        }
    }

    /// Says what is being done. Where many things are done at once, some go unsaid.
    pub(super) fn doing(&'static self, text: &str) -> Posted {
        post(&self.doing, text.as_bytes())
    }

    /// Names a path that must not outlive the process.
    pub(super) fn path(&'static self, path: &[u8]) -> Posted {
        post(&self.paths, path)
    }

    /// The last words of the process; the first message stays.
    pub(super) fn words(&self, text: &[u8]) {
        self.words.claim(text);
    }

    /// Says with which exit code the process is about to end.
    pub(super) fn ends(&self, code: u8) {
        self.code.store(u32::from(code) + 1, Ordering::Release);
    }

    /// The exit code that was posted.
    pub(super) fn code(&self) -> Option<u8> {
        self.code.load(Ordering::Acquire).checked_sub(1)?.try_into().ok()
    }

    /// What was being done, in the order it was begun as far as slots tell.
    pub(super) fn was_doing(&self) -> Vec<String> {
        self.doing.iter().filter_map(Slot::read).map(|text| String::from_utf8_lossy(&text).into_owned()).collect()
    }

    /// The paths that were left.
    pub(super) fn left(&self) -> Vec<Vec<u8>> {
        self.paths.iter().filter_map(Slot::read).collect()
    }

    /// The last words, if there were any.
    pub(super) fn last_words(&self) -> Option<String> {
        self.words.read().map(|text| String::from_utf8_lossy(&text).into_owned())
    }
}

fn post(slots: &'static [Slot], text: &[u8]) -> Posted {
    Posted(slots.iter().find(|slot| slot.claim(text)).map(|slot| &slot.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_stands_until_it_is_taken_down() {
        let board = Board::new().expect("memory for a page");
        let first = board.doing("llama.cpp loads a.gguf");
        let second = board.doing("a template is rendered");
        assert_eq!(board.was_doing(), ["llama.cpp loads a.gguf", "a template is rendered"]);
        drop(first);
        assert_eq!(board.was_doing(), ["a template is rendered"]);
        drop(second);
        // More than there is room for: some go unsaid, and nothing breaks.
        let many: Vec<Posted> = (0..40).map(|i| board.path(format!("file-{i}").as_bytes())).collect();
        assert_eq!(board.left().len(), 16);
        drop(many);
        assert_eq!(board.left(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn the_first_of_the_last_words_stay_and_long_ones_are_cut() {
        let board = Board::new().expect("memory for a page");
        assert_eq!(board.last_words(), None);
        board.words(&[b'x'; LONGEST + 1]);
        board.words(b"later");
        assert_eq!(board.last_words(), Some("x".repeat(LONGEST)));
    }
}
