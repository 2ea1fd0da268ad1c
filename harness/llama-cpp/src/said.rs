//! What llama.cpp says: to the log, of an error, and before it aborts.

use llama_cpp_sys_2 as sys;
use qdiff_capture::log::{self, Level};
use qdiff_capture::supervisor;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Hands what llama.cpp says to the log.
///
/// # Safety
/// The text must be null or end with NUL.
pub(crate) unsafe extern "C" fn tell(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    /// Whether the line that is being continued is notable.
    static NOTABLE: AtomicBool = AtomicBool::new(false);
    if text.is_null() {
        return;
    }
    let notable = match level {
        sys::GGML_LOG_LEVEL_CONT => NOTABLE.load(Ordering::Relaxed),
        level => matches!(level, sys::GGML_LOG_LEVEL_WARN | sys::GGML_LOG_LEVEL_ERROR),
    };
    NOTABLE.store(notable, Ordering::Relaxed);
    // SAFETY: llama.cpp passes a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    if level == sys::GGML_LOG_LEVEL_ERROR {
        complaint().get_or_insert_with(|| text.trim().to_owned());
    }
    log::text(if notable { Level::Notable } else { Level::Chatter }, &text);
}

/// The first error that llama.cpp told since this was taken: it returns none.
pub(crate) fn complaint() -> MutexGuard<'static, Option<String>> {
    static COMPLAINT: Mutex<Option<String>> = Mutex::new(None);
    COMPLAINT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what ggml says before it aborts: there is no other word of it.
///
/// # Safety
/// The text must be null or end with NUL.
pub(crate) unsafe extern "C" fn gives_up(text: *const c_char) {
    if !text.is_null() {
        // SAFETY: ggml passes a NUL-terminated string.
        supervisor::words(unsafe { CStr::from_ptr(text) }.to_bytes());
    }
}

/// What llama.cpp complained of.
pub(crate) fn why() -> String {
    complaint().take().unwrap_or_else(|| "it does not say why".to_owned())
}
