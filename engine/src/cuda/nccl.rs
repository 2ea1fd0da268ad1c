//! What ranks give each other on their cards: NCCL, loaded at run time as the driver is.
//!
//! NVLink multicast must be off (`NCCL_NVLS_ENABLE=0`): a program that uses it can put the cards of a host out of service for
//! others.

use super::CudaError;
use super::device::Doing as _;
use super::layouts::Ptr;
use crate::ops::anatomy::Collective;
use cudarc::driver::{CudaStream, result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What the library is called, the name that packages install first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// How long a rank within a call of the library is waited for before its communicator is ended anyway: the call
/// may wait for room among what is queued, which only that end makes.
const IN_A_CALL: Duration = Duration::from_secs(2);

/// `ncclFloat32` and `ncclSum` of nccl.h.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

type Handle = *mut c_void;
// SAFETY: room for as many handles as cards are named.
type InitAll = unsafe extern "C" fn(*mut Handle, c_int, *const c_int) -> c_int;
// SAFETY: addresses on the card of the communicator, good for so many elements; of ncclAllReduce and of ncclBroadcast.
type Exchanged = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
// SAFETY: no condition.
type Group = unsafe extern "C" fn() -> c_int;
// SAFETY: a communicator that has not ended.
type OfHandle = unsafe extern "C" fn(Handle) -> c_int;
// SAFETY: no condition.
type Words = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of the library that are called.
struct Nccl {
    init_all: InitAll,
    all_reduce: Exchanged,
    broadcast: Exchanged,
    group_start: Group,
    group_end: Group,
    abort: OfHandle,
    words: Words,
    /// As long as its functions.
    _library: Library,
}

impl Nccl {
    fn load() -> Result<Self, CudaError> {
        // SAFETY: NCCL's initialisers may run at any time.
        let library = NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok()).ok_or(CudaError::NoNccl)?;
        macro_rules! function {
            ($name:literal, $of:ty) => {
                // SAFETY: nccl.h declares the function with these parameters since version 2.0.
                *unsafe { library.get::<$of>(concat!($name, "\0").as_bytes()) }.map_err(|_| CudaError::NoNccl)?
            };
        }
        Ok(Self {
            init_all: function!("ncclCommInitAll", InitAll),
            all_reduce: function!("ncclAllReduce", Exchanged),
            broadcast: function!("ncclBroadcast", Exchanged),
            group_start: function!("ncclGroupStart", Group),
            group_end: function!("ncclGroupEnd", Group),
            abort: function!("ncclCommAbort", OfHandle),
            words: function!("ncclGetErrorString", Words),
            _library: library,
        })
    }

    fn checked(&self, code: c_int, what: &str) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library gives text that it keeps for any number.
        let words = unsafe { CStr::from_ptr((self.words)(code)) }.to_string_lossy();
        Err(CudaError::Failed(format!("NCCL: {words} in {what}")))
    }
}

/// What a collective stage asks of the other ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// What is made of the parts.
    pub of: Collective,
    /// The rank's own part, `[T, n_r]`.
    pub from: Ptr,
    /// The result.
    pub to: Ptr,
    /// Where parts are gathered.
    pub parts: Ptr,
    /// Elements of a token in each rank's part.
    pub widths: Vec<usize>,
    /// Tokens, T.
    pub tokens: usize,
}

/// The communicators of all ranks.
struct All {
    nccl: Nccl,
    each: Vec<Member>,
}

/// That of a rank.
struct Member {
    /// Null once it has ended.
    handle: AtomicPtr<c_void>,
    /// Held while the rank is in a call of the library.
    calling: Mutex<()>,
}

impl Member {
    /// Ends it, which also ends what its card waits for. Nobody waits for the other ranks, as `ncclCommDestroy` may.
    fn end(&self, nccl: &Nccl) {
        let until = Instant::now() + IN_A_CALL;
        let mut held = self.calling.try_lock();
        while held.is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
            held = self.calling.try_lock();
        }
        let handle = self.handle.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !handle.is_null() {
            // SAFETY: `all` created the communicator, and the swap gave it to this call alone, which ends it.
            let _ = unsafe { (nccl.abort)(handle) };
        }
    }
}

/// What a rank says that waits for others in vain.
pub fn ended() -> CudaError {
    CudaError::Failed("another rank has ended".to_owned())
}

/// A rank among others.
pub struct Communicator {
    all: Arc<All>,
    rank: usize,
}

impl Communicator {
    /// One for each of the first `ranks` cards.
    ///
    /// # Errors
    /// No library, multicast that is on, or what NCCL says.
    pub fn all(ranks: usize) -> Result<Vec<Self>, CudaError> {
        if std::env::var("NCCL_NVLS_ENABLE").as_deref() != Ok("0") {
            return Err(CudaError::Unsupported(
                "several ranks on GPUs need NVLink multicast off: set NCCL_NVLS_ENABLE=0 and run again".to_owned(),
            ));
        }
        let nccl = Nccl::load()?;
        let (cards, mut handles): (Vec<c_int>, Vec<Handle>) =
            (0..ranks).map(|i| (i as c_int, std::ptr::null_mut())).unzip();
        // SAFETY: as many handles and cards as the numbers given.
        let code = unsafe { (nccl.init_all)(handles.as_mut_ptr(), ranks as c_int, cards.as_ptr()) };
        nccl.checked(code, "joining the ranks")?;
        let member = |handle| Member { handle: AtomicPtr::new(handle), calling: Mutex::new(()) };
        let all = Arc::new(All { nccl, each: handles.into_iter().map(member).collect() });
        Ok((0..ranks).map(|rank| Self { all: all.clone(), rank }).collect())
    }

    /// What ends all ranks: a rank that fails calls it, for the others would wait for ever.
    pub fn ending(&self) -> impl Fn() + Send + Sync + 'static {
        let all = self.all.clone();
        move || all.each.iter().for_each(|member| member.end(&all.nccl))
    }

    /// Whether this rank was ended, by its own decision or by another rank.
    pub fn has_ended(&self) -> bool {
        self.all.each[self.rank].handle.load(Ordering::Acquire).is_null()
    }

    /// Queues the exchange, for which all ranks must ask.
    ///
    /// # Safety
    /// The addresses must be good for the extents that it names, on the card of the stream, which is this rank's.
    pub unsafe fn exchange(&self, e: &Exchange, stream: &CudaStream) -> Result<(), CudaError> {
        let (nccl, queue, member) = (&self.all.nccl, stream.cu_stream().cast(), &self.all.each[self.rank]);
        let _calling = member.calling.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = member.handle.load(Ordering::Acquire);
        if handle.is_null() {
            return Err(ended());
        }
        match e.of {
            Collective::Sum => {
                let count = e.tokens * e.widths[self.rank];
                let (from, to) = (e.from as *const c_void, e.to as *mut c_void);
                // SAFETY: the caller vouches for the addresses.
                let code = unsafe { (nccl.all_reduce)(from, to, count, FLOAT32, SUM, handle, queue) };
                nccl.checked(code, "an all-reduce")
            }
            Collective::Concatenation => {
                // SAFETY: a group has no conditions.
                nccl.checked(unsafe { (nccl.group_start)() }, "a group")?;
                let mut at = e.parts;
                for (root, width) in e.widths.iter().enumerate() {
                    let (count, root) = (e.tokens * width, root as c_int);
                    let (from, to) = (e.from as *const c_void, at as *mut c_void);
                    // SAFETY: the caller vouches for the addresses; only the root's own part is read.
                    let code = unsafe { (nccl.broadcast)(from, to, count, FLOAT32, root, handle, queue) };
                    nccl.checked(code, "an all-gather")?;
                    at += 4 * count as u64;
                }
                // SAFETY: as above.
                nccl.checked(unsafe { (nccl.group_end)() }, "a group")?;
                // SAFETY: the caller vouches for the addresses.
                unsafe { Self::interleave(e, stream) }
            }
        }
    }

    /// Puts the rows of gathered parts beside each other.
    ///
    /// # Safety
    /// As [`Self::exchange`].
    unsafe fn interleave(e: &Exchange, stream: &CudaStream) -> Result<(), CudaError> {
        let all: usize = e.widths.iter().sum();
        let (mut from, mut column) = (e.parts, 0);
        for width in &e.widths {
            for token in 0..e.tokens {
                let to = e.to + 4 * (token * all + column) as u64;
                // SAFETY: the caller vouches for the addresses.
                unsafe { result::memcpy_dtod_async(to, from, 4 * width, stream.cu_stream()) }
                    .doing("putting parts together")?;
                from += 4 * *width as u64;
            }
            column += width;
        }
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.all.each[self.rank].end(&self.all.nccl);
    }
}
