//! Where captured tensors stay: in memory up to a budget, beyond it in a file
//! that has no name and goes with the process.

use crate::memory::Size;
use qdiff_engine::dtype::DType;
use qdiff_engine::ops::Tensor;
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of captured tensors that stay in memory. A short prompt fits with all
/// its stages (the haiku and 8 steps take 0.3 GB a side); what does not fit is
/// read back one stage at a time.
pub const BUDGET: usize = 768 << 20;

/// What helps where a folder has no room.
const ELSEWHERE: &str = "free some space, name another folder with --tmp, allow more memory with --memory, or capture \
                         less with --stages, --layers or --positions";

/// Bytes of a tensor that are read from a capture at once; a larger one goes to the file part by part.
const PART: usize = 64 << 20;

/// Memory for tensors, and the file for what exceeds it.
///
/// A tap cannot fail, so what goes wrong with the file is remembered: whoever
/// runs a step or gives a verdict asks [`Store::trouble`] before trusting it.
#[derive(Debug)]
pub struct Store {
    /// Where temporary files go.
    pub folder: PathBuf,
    budget: AtomicUsize,
    used: AtomicUsize,
    file: OnceLock<Option<File>>,
    spilled: Mutex<Spilled>,
    trouble: OnceLock<String>,
}

impl Store {
    /// A store that keeps `budget` bytes in memory and puts the rest into a file in `folder`.
    pub fn new(folder: PathBuf, budget: usize) -> Arc<Self> {
        Arc::new(Self {
            folder,
            budget: AtomicUsize::new(budget),
            used: AtomicUsize::new(0),
            file: OnceLock::new(),
            spilled: Mutex::default(),
            trouble: OnceLock::new(),
        })
    }

    /// With the usual budget, in `folder` or where the system puts temporary files.
    pub fn usual(folder: Option<&Path>) -> Arc<Self> {
        Self::new(folder.map_or_else(std::env::temp_dir, Path::to_path_buf), BUDGET)
    }

    /// Bytes that stay in memory from now on.
    pub fn limit(&self, budget: usize) {
        self.budget.store(budget, Ordering::Relaxed);
    }

    fn budget(&self) -> usize {
        self.budget.load(Ordering::Relaxed)
    }

    /// Bytes in the file, those of tensors that are gone included as long as others are not.
    pub fn on_disk(&self) -> u64 {
        self.spilled().end
    }

    /// Whether the folder of the file is memory itself.
    pub fn is_memory(&self) -> bool {
        // Of tmpfs and ramfs, as linux/magic.h has them.
        rustix::fs::statfs(&self.folder).is_ok_and(|of| matches!(of.f_type as u32, 0x0102_1994 | 0x8584_58F6))
    }

    fn spilled(&self) -> MutexGuard<'_, Spilled> {
        self.spilled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room in the file for a tensor of this shape.
    fn in_file(self: &Arc<Self>, shape: Vec<usize>) -> Stored {
        let bytes = 4 * shape.iter().product::<usize>() as u64;
        let mut spilled = self.spilled();
        let offset = spilled.end;
        spilled.end += bytes;
        spilled.tensors += 1;
        Stored { place: Place::File { shape, offset }, element: DType::F32, store: self.clone() }
    }

    /// Whether there is room for so many bytes more, in memory and in the folder.
    ///
    /// # Errors
    /// What they take beyond memory, and how much the folder has.
    pub fn check_room(&self, bytes: u64) -> anyhow::Result<()> {
        let in_memory = self.budget().saturating_sub(self.used.load(Ordering::Relaxed));
        let beyond = Size(bytes.saturating_sub(in_memory as u64));
        // A folder of which nothing is known may have room.
        let Ok(of_folder) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        let free = Size(of_folder.f_bavail.saturating_mul(of_folder.f_frsize));
        anyhow::ensure!(
            beyond.0 <= free.0,
            "captured stages take {beyond} beyond what stays in memory, and {} has {free} left; {ELSEWHERE}",
            self.folder.display()
        );
        Ok(())
    }

    /// Keeps a tensor, which others may hold as well.
    pub fn keep(self: &Arc<Self>, tensor: impl Into<Arc<Tensor<f32>>>) -> Stored {
        let tensor = tensor.into();
        let bytes = size_of_val(tensor.data.as_slice());
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes <= self.budget() {
            return Stored { place: Place::Memory(tensor), element: DType::F32, store: self.clone() };
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        let stored = self.in_file(tensor.shape.clone());
        stored.write(0, &tensor.data);
        stored
    }

    /// Keeps a tensor of this shape that `fill` gives part by part, without
    /// holding all of it in memory where the budget is spent.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn keep_parts(
        self: &Arc<Self>, shape: Vec<usize>, mut fill: impl FnMut(&mut [f32]) -> anyhow::Result<()>,
    ) -> anyhow::Result<Stored> {
        let elements: usize = shape.iter().product();
        if 4 * elements <= PART {
            let mut tensor = Tensor::zeros(shape);
            fill(&mut tensor.data)?;
            return Ok(self.keep(tensor));
        }
        let stored = self.in_file(shape);
        let mut part = vec![0f32; PART / 4];
        for from in (0..elements).step_by(PART / 4) {
            let part = &mut part[..(elements - from).min(PART / 4)];
            fill(part)?;
            stored.write(from, part);
        }
        Ok(stored)
    }

    /// Says what went wrong with the file, if anything did: no verdict may rest on tensors that were not kept.
    ///
    /// # Errors
    /// The first failure, and what to do about it.
    pub fn trouble(&self) -> anyhow::Result<()> {
        self.trouble.get().map_or(Ok(()), |why| Err(anyhow::anyhow!("{why}")))
    }

    fn file(&self) -> Option<&File> {
        self.file.get_or_init(|| tempfile::tempfile_in(&self.folder).map_err(|e| self.note("opened", &e)).ok()).as_ref()
    }

    fn note(&self, what: &str, e: &io::Error) {
        self.trouble.get_or_init(|| {
            format!(
                "the temporary file for captured stages in {} cannot be {what}: {e}; {ELSEWHERE}",
                self.folder.display()
            )
        });
    }

    fn write(&self, offset: u64, data: &[f32]) {
        let written = self.file().map(|f| f.write_all_at(bytemuck::cast_slice(data), offset));
        if let Some(Err(e)) = written {
            self.note("written", &e);
        }
    }

    fn read(&self, offset: u64, out: &mut [f32]) {
        let read = self.file().map(|f| f.read_exact_at(bytemuck::cast_slice_mut(out), offset));
        if !matches!(read, Some(Ok(()))) {
            // Never mistaken for a value, should it be looked at.
            out.fill(f32::NAN);
        }
        if let Some(Err(e)) = read {
            self.note("read", &e);
        }
    }
}

/// What is in the file.
#[derive(Debug, Default)]
struct Spilled {
    /// Bytes up to the end of the last tensor.
    end: u64,
    /// Tensors that are still there.
    tensors: usize,
}

/// A tensor in a [`Store`].
#[derive(Debug)]
pub struct Stored {
    place: Place,
    element: DType,
    store: Arc<Store>,
}

#[derive(Debug)]
enum Place {
    Memory(Arc<Tensor<f32>>),
    File { shape: Vec<usize>, offset: u64 },
}

impl Stored {
    /// Puts elements from a flat index on into the file, where that is their place.
    fn write(&self, from: usize, data: &[f32]) {
        if let Place::File { offset, .. } = self.place {
            self.store.write(offset + 4 * from as u64, data);
        }
    }

    /// The number format of the values in a file; f32 for values computed here.
    pub fn element(&self) -> DType {
        self.element
    }

    /// The same, where that is less than f32.
    pub fn narrow(&self) -> Option<DType> {
        Some(self.element).filter(|element| *element != DType::F32)
    }

    /// The same values, with this as their format in a file.
    pub(super) fn stood_as(mut self, element: DType) -> Self {
        self.element = element;
        self
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        match &self.place {
            Place::Memory(tensor) => &tensor.shape,
            Place::File { shape, .. } => shape,
        }
    }

    /// The whole tensor; read from the file where it is there.
    pub fn get(&self) -> Cow<'_, Tensor<f32>> {
        match &self.place {
            Place::Memory(tensor) => Cow::Borrowed(tensor),
            Place::File { shape, offset } => {
                let mut tensor = Tensor::zeros(shape.clone());
                self.store.read(*offset, &mut tensor.data);
                Cow::Owned(tensor)
            }
        }
    }

    /// Elements that follow each other, from a flat index on; only they are read.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn flat(&self, range: Range<usize>) -> Cow<'_, [f32]> {
        match &self.place {
            Place::Memory(tensor) => Cow::Borrowed(&tensor.data[range]),
            Place::File { shape, offset } => {
                assert!(range.end <= shape.iter().product(), "beyond the tensor");
                let mut out = vec![0f32; range.len()];
                self.store.read(*offset + 4 * range.start as u64, &mut out);
                Cow::Owned(out)
            }
        }
    }

    /// A checksum (CRC-32) of its values, bit for bit: tells by accident alone that two tensors are the same.
    pub fn digest(&self) -> u32 {
        crc32fast::hash(bytemuck::cast_slice(&self.get().data))
    }

    /// The part of it where the index along `axis` is in `range`; only that part is read.
    ///
    /// # Panics
    /// If the tensor has no such axis, or the axis no such index.
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Tensor<f32> {
        self.parts(axis, &[range])
    }

    /// As [`Self::slice`], of several ranges one after the other.
    ///
    /// # Panics
    /// As [`Self::slice`].
    pub fn parts(&self, axis: usize, ranges: &[Range<usize>]) -> Tensor<f32> {
        parts(self.shape(), axis, ranges, |at, out| match &self.place {
            Place::Memory(tensor) => out.copy_from_slice(&tensor.data[at..at + out.len()]),
            Place::File { offset, .. } => self.store.read(offset + 4 * at as u64, out),
        })
    }
}

/// The entries in `ranges` along `axis` of a tensor of this shape, whose elements from a flat index on `copy` gives.
pub(super) fn parts(
    shape: &[usize], axis: usize, ranges: &[Range<usize>], copy: impl Fn(usize, &mut [f32]),
) -> Tensor<f32> {
    let mut shape = shape.to_vec();
    let extent = std::mem::replace(&mut shape[axis], ranges.iter().map(Range::len).sum());
    let (outer, inner): (usize, usize) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
    let mut part = Tensor::zeros(shape);
    let mut left = part.data.as_mut_slice();
    for (o, range) in (0..outer).flat_map(|o| ranges.iter().map(move |range| (o, range))) {
        assert!(range.end <= extent, "beyond the axis");
        let (out, rest) = left.split_at_mut(range.len() * inner);
        copy((o * extent + range.start) * inner, out);
        left = rest;
    }
    part
}

impl Drop for Stored {
    fn drop(&mut self) {
        match &self.place {
            Place::Memory(tensor) => {
                self.store.used.fetch_sub(size_of_val(tensor.data.as_slice()), Ordering::Relaxed);
            }
            Place::File { .. } => {
                let mut spilled = self.store.spilled();
                spilled.tensors -= 1;
                // Prompt after prompt takes the same room; a file that cannot be cut is written over from its beginning.
                if spilled.tensors == 0 {
                    spilled.end = 0;
                    let _ = self.store.file().map(|file| file.set_len(0));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the budget, a tensor comes back as it was kept, whole and in parts.
        #[test]
        fn gives_back_what_it_was_given(
            a in 1usize..4, b in 1usize..6, c in 1usize..5, budget in 0usize..300, from in 0usize..6, to in 0usize..6,
        ) {
            let store = Store::new(std::env::temp_dir(), budget);
            let tensor = |k: usize| Tensor {
                shape: vec![a, b, c],
                data: (0..a * b * c).map(|i| (i * 7 + k) as f32).collect(),
            };
            let kept: Vec<Stored> = (0..3).map(|k| store.keep(tensor(k))).collect();
            for (k, kept) in kept.iter().enumerate() {
                prop_assert_eq!(&*kept.get(), &tensor(k));
                let range = from.min(to).min(b)..from.max(to).min(b);
                let part = kept.slice(1, range.clone());
                let mut expected = Vec::new();
                for i in 0..a {
                    expected.extend_from_slice(&tensor(k).data[(i * b + range.start) * c..(i * b + range.end) * c]);
                }
                prop_assert_eq!(part.data, expected);
                prop_assert_eq!(part.shape, vec![a, range.len(), c]);
                let flat = range.start * c..range.end * c;
                prop_assert_eq!(&*kept.flat(flat.clone()), &tensor(k).data[flat]);
            }
            prop_assert!(store.trouble().is_ok());
            drop(kept);
            prop_assert_eq!(store.used.load(Ordering::Relaxed), 0);
            prop_assert_eq!(store.on_disk(), 0);
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_trouble_and_no_value() {
        let home = tempfile::tempdir().expect("a folder");
        let store = Store::new(home.path().join("not there"), 0);
        let kept = store.keep(Tensor { shape: vec![1], data: vec![1.0] });
        assert!(kept.get().data[0].is_nan());
        let why = store.trouble().unwrap_err().to_string();
        assert!(why.contains("--tmp"), "{why}");
    }

    #[test]
    fn too_little_room_is_told_before_anything_is_kept() {
        let store = Store::new(std::env::temp_dir(), 1 << 20);
        assert!(store.check_room(1 << 20).is_ok());
        let why = store.check_room(1 << 60).unwrap_err().to_string();
        assert!(why.contains("1073741824.0 GiB beyond") && why.contains("--tmp"), "{why}");
        store.limit(usize::MAX);
        assert!(store.check_room(1 << 60).is_ok());
    }
}
