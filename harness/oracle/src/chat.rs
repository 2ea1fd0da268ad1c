//! Rendering a GGUF's chat template where it can do no harm: in a process of
//! its own, whose memory and time are bounded.
//!
//! The engine's renderer bounds instructions and output, but not what a single instruction does, and a template can
//! double a string as often as it likes. So `qdiff` starts itself once more with [`COMMAND`], and the system stops it
//! where it goes too far.

use anyhow::{Context as _, Result, bail};
use qdiff_engine::tokenizer::chat::{self, Conversation, TemplateError};
use serde::{Deserialize, Serialize};
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

/// The argument with which `qdiff` renders one template, given as JSON on standard input, to standard output.
pub const COMMAND: &str = "__render-chat-template";

/// Bytes of address space for one rendering.
const MEMORY: u64 = 1 << 30;
/// Seconds of processor time for one rendering.
const SECONDS: u64 = 5;
/// Exit code where the template was refused, with the reason on standard error.
const REFUSED: u8 = 2;

#[derive(Serialize, Deserialize)]
struct Job {
    source: String,
    conversation: Conversation,
}

/// Renders `conversation` with the template `source`.
///
/// # Errors
/// As [`chat::render`]; and where it takes too much memory or time.
pub fn render(source: &str, conversation: &Conversation) -> Result<String> {
    let job = serde_json::to_vec(&Job { source: source.to_owned(), conversation: conversation.clone() })?;
    let program = std::env::current_exe().context("cannot find the qdiff program itself")?;
    let mut child = Command::new(program)
        .arg(COMMAND)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| name == "LD_LIBRARY_PATH"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start qdiff once more to render the chat template")?;
    // It reads all before it writes anything, so this cannot block for ever; a process that died is reported below.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&job));
    let done = child.wait_with_output()?;
    match done.status.code() {
        Some(0) => Ok(String::from_utf8(done.stdout)?),
        Some(code) if code == i32::from(REFUSED) => {
            bail!("{}", String::from_utf8_lossy(&done.stderr).trim())
        }
        // The runtime's own words; a value may hold itself.
        _ if String::from_utf8_lossy(&done.stderr).contains("overflowed its stack") => {
            Err(TemplateError::new("nests values too deeply to print them").into())
        }
        _ => Err(TemplateError::new(format!("takes more than {SECONDS} s or {} MiB", MEMORY >> 20)).into()),
    }
}

/// What the process started by [`render`] does; gives its exit code.
pub fn serve() -> u8 {
    // A failure of the template engine is an error.
    std::panic::set_hook(Box::new(|_| {}));
    match limit().and_then(|()| answer()) {
        Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => 0,
            Err(_) => 1,
        },
        Err(e) => {
            eprintln!("{e:#}");
            REFUSED
        }
    }
}

fn answer() -> Result<String> {
    let mut job = Vec::new();
    std::io::stdin().read_to_end(&mut job)?;
    let job: Job = serde_json::from_slice(&job)?;
    Ok(chat::render(&job.source, &job.conversation)?)
}

/// Bounds this process from here on.
fn limit() -> Result<()> {
    for (what, most) in [(libc::RLIMIT_AS, MEMORY), (libc::RLIMIT_CPU, SECONDS), (libc::RLIMIT_CORE, 0)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a plain call with a structure of our own.
        if unsafe { libc::setrlimit(what, &limit) } != 0 {
            return Err(std::io::Error::last_os_error()).context("cannot bound the rendering");
        }
    }
    Ok(())
}
