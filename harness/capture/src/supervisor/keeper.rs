//! A process between qdiff and the command of an engine. Linux gives it every process below the command whose parent has ended
//! (it is their *child subreaper*), so a process that calls `setsid` or forks twice is found as any other. The keeper starts
//! the command and nothing else: so all processes below it came from the command.
//!
//! It ends all of them when the command ends, on request, and when the process that requested the command is gone,
//! however that came about: the socket between the two is closed then. After that it says how the command ended, and
//! ends.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{self as system, Pid, Signal, WaitOptions};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The argument with which `qdiff` starts itself as a keeper.
pub const COMMAND: &str = "__keep-command";

/// This program, also where its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";

/// How long is tried to end processes that do not end, such as those of another user.
const STUBBORN: Duration = Duration::from_secs(5);

/// How often it is looked meanwhile whether they ended.
const LOOK: Duration = Duration::from_millis(1);

/// What each keeper has a copy of: the supervisor sees when there is none any more.
pub(super) static ALIVE: OnceLock<PipeWriter> = OnceLock::new();

/// The socket to a keeper. Its command ends with the last copy of it.
pub type Line = Arc<UnixStream>;

/// How a command stands.
pub enum State {
    /// It runs.
    Runs,
    /// It ended so, and all that it started is gone.
    Ended(ExitStatus),
    /// Its keeper is gone without a word.
    Lost,
}

/// Starts `line` in a shell, below a keeper; `set` says more of the keeper, whose environment and standard streams are those of
/// the command.
///
/// # Errors
/// If the system gives no process.
pub fn start(line: &str, set: impl FnOnce(&mut Command)) -> io::Result<(Child, Line)> {
    let (ours, theirs) = UnixStream::pair()?;
    let alive = ALIVE.get().map(|alive| alive.as_raw_fd());
    let passed: Vec<RawFd> = [Some(theirs.as_raw_fd()), alive].into_iter().flatten().collect();
    let mut command = Command::new(PROGRAM);
    command.arg0("qdiff").arg(COMMAND).arg(line).args(passed.iter().map(ToString::to_string)).process_group(0);
    set(&mut command);
    // SAFETY: between fork and exec a flag is taken from descriptors that are open, which allocates and locks nothing.
    unsafe {
        command.pre_exec(move || {
            let keep = |fd: &RawFd| fcntl_setfd(std::os::fd::BorrowedFd::borrow_raw(*fd), FdFlags::empty());
            Ok(passed.iter().try_for_each(keep)?)
        });
    }
    Ok((command.spawn()?, Arc::new(ours)))
}

/// How the command at the other end stands, after `most` at the longest.
pub fn state(line: &UnixStream, most: Duration) -> State {
    let mut status = [0; 4];
    let asked = line.set_read_timeout(Some(most.max(LOOK))).and_then(|()| (&*line).read_exact(&mut status));
    match asked {
        Ok(()) => State::Ended(ExitStatus::from_raw(i32::from_ne_bytes(status))),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => State::Runs,
        Err(_) => State::Lost,
    }
}

/// Ends the command at the other end and all that it started, and waits until they are gone.
pub fn end(line: &UnixStream) {
    let _ = line.shutdown(Shutdown::Write);
    // Longer than the keeper tries.
    let _ = line.set_read_timeout(Some(2 * STUBBORN));
    let _ = (&*line).read_to_end(&mut Vec::new());
}

/// Waits until no keeper has its end of this pipe any more: until no command runs that this qdiff started.
pub(super) fn wait_for_all(keepers: &PipeReader) {
    let most = Timespec::try_from(2 * STUBBORN).ok();
    // Nobody writes to it, so that it is heard of when it is closed.
    let _ = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(keepers, PollFlags::IN)], most.as_ref()));
}

/// What a keeper does; gives its exit code. `words` are its arguments behind [`COMMAND`].
pub fn serve(words: impl Iterator<Item = OsString>) -> u8 {
    match keep(words) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("qdiff: cannot keep a command: {e}");
            1
        }
    }
}

fn keep(mut words: impl Iterator<Item = OsString>) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let line = words.next().ok_or_else(missing)?;
    let mut passed = words.map(|word| inherited(&word).ok_or_else(missing));
    let mut asks = UnixStream::from(passed.next().ok_or_else(missing)??);
    // Held until this process ends, for the supervisor to see.
    let _alive = passed.collect::<io::Result<Vec<OwnedFd>>>()?;
    system::set_child_subreaper(Some(system::getpid()))?;
    let (mut deaths, death) = UnixStream::pair()?;
    deaths.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(libc::SIGCHLD, death)?;
    let child = Command::new("sh").arg("-c").arg(line).process_group(0).spawn()?;
    forget_streams()?;
    let command = Pid::from_raw(child.id() as i32).ok_or_else(missing)?;
    let mut status = None;
    loop {
        while deaths.read(&mut [0; 64]).is_ok() {}
        reap(command, &mut status);
        if status.is_some() {
            break;
        }
        let mut both = [PollFd::new(&asks, PollFlags::IN), PollFd::new(&deaths, PollFlags::IN)];
        // A signal wakes it as well, and is no error.
        let _ = poll(&mut both, None);
        if !both[0].revents().is_empty() {
            // Not waited for yet, so that the group is its own.
            let _ = system::kill_process_group(command, Signal::KILL);
            break;
        }
    }
    let since = Instant::now();
    while reap(command, &mut status) && since.elapsed() < STUBBORN {
        // Those below them come up as they end.
        for child in children() {
            let _ = system::kill_process(child, Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
    // Nobody may be left to hear it.
    let _ = status.map(|status| asks.write_all(&status.to_ne_bytes()));
    Ok(())
}

/// A descriptor that this process was given by its number.
fn inherited(word: &std::ffi::OsStr) -> Option<OwnedFd> {
    let number: RawFd = word.to_str()?.parse().ok().filter(|fd| *fd > 2)?;
    // SAFETY: the number of a descriptor that was passed to this process alone; a number that is none fails here.
    let fd = unsafe {
        fcntl_setfd(std::os::fd::BorrowedFd::borrow_raw(number), FdFlags::CLOEXEC).ok()?;
        OwnedFd::from_raw_fd(number)
    };
    Some(fd)
}

/// Leaves the standard streams to the command: their other ends must see when it closes them.
fn forget_streams() -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok(rustix::stdio::dup2_stderr(&nothing)?)
}

/// Waits for all children that have ended, of `command` notes how; says whether any are left.
fn reap(command: Pid, status: &mut Option<i32>) -> bool {
    loop {
        match system::wait(WaitOptions::NOHANG) {
            Ok(Some((child, how))) if child == command => *status = Some(how.as_raw()),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// The children of this process. None of them is waited for meanwhile, so their numbers are their own.
fn children() -> Vec<Pid> {
    let own = system::getpid().as_raw_nonzero().get();
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let child = |number: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        // What it is called may hold anything, a bracket included; then come its state and its parent.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<i32>().ok()?;
        Pid::from_raw(number).filter(|_| parent == own)
    };
    all.filter_map(|entry| child(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}
