//! An engine in Rust that forks between two arrays. The child ends as a program does; with an argument it taps before.

use qdiff_tap::Tap;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let taps = std::env::args().nth(1).is_some();
    let tap = Tap::begin("an engine that forks")?;
    tap.step(0, &[1, 2])?;
    tap.rows("embed", None, &[1f32, 2.0, 3.0, 4.0], 2)?;
    // SAFETY: there is one thread.
    let child = unsafe { fork() };
    if child == 0 {
        if taps {
            let error = tap.rows("of the child", None, &[9f32; 4], 2).unwrap_err().to_string();
            assert!(error.contains("before it forked"), "{error}");
        }
        return Ok(());
    }
    let mut status = -1;
    // SAFETY: our own child, and a place for how it ended.
    unsafe { waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    tap.rows("logits", None, &[5f32, 6.0], 2)?;
    Ok(tap.close()?)
}
