//! Arrays at an offset in a file: number format, shape, strides and offset come from elsewhere, and are checked here.

use super::array::{Array, Format};
use crate::input;
use anyhow::{Context as _, Result, ensure};
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are read at once.
const PIECE: usize = 1 << 18;

/// Elements between two wanted ones that are read with them rather than passed over.
const APART: u64 = 64;

/// A file with arrays in it.
#[derive(Clone)]
pub(super) struct Source {
    file: Arc<File>,
    pub(super) length: u64,
}

impl Source {
    /// Opens it.
    ///
    /// # Errors
    /// What is no plain file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let problem = || format!("cannot read {}", path.display());
        let file = input::open(path).with_context(problem)?;
        let length = file.metadata().with_context(problem)?.len();
        Ok(Self { file: Arc::new(file), length })
    }

    /// `length` bytes from `offset` on.
    ///
    /// # Errors
    /// If the file has not as many.
    pub(super) fn bytes(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        ensure!(offset.checked_add(length).is_some_and(|end| end <= self.length), "ends early");
        let mut bytes = vec![0; length.try_into()?];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// The array of this shape whose first element is at `offset`, and whose elements along an axis are `strides`
    /// elements apart; row-major where there are none.
    ///
    /// # Errors
    /// An array that is not wholly in the file, or has another number of strides than axes.
    pub(super) fn array(
        &self, format: Format, shape: Vec<usize>, strides: Option<&[u64]>, offset: u64,
    ) -> Result<Array<Strided>> {
        let size = format.size() as u64;
        let row_major = || {
            let stride = |axis| shape[axis + 1..].iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
            (0..shape.len()).map(stride).collect::<Option<Vec<u64>>>()
        };
        let strides = strides.map_or_else(row_major, |s| Some(s.to_vec())).context("is larger than any file")?;
        ensure!(strides.len() == shape.len(), "has {} axes and {} strides", shape.len(), strides.len());
        ensure!(!shape.contains(&0), "has shape {shape:?}, which is empty");
        let mut axes: Vec<(usize, u64, u64)> =
            shape.iter().zip(strides).enumerate().map(|(axis, (&n, stride))| (axis, n as u64, stride)).collect();
        let reach =
            axes.iter().try_fold(1u64, |n, (_, extent, stride)| n.checked_add((extent - 1).checked_mul(*stride)?));
        let end = reach.and_then(|n| n.checked_mul(size)?.checked_add(offset));
        ensure!(
            end.is_some_and(|end| end <= self.length),
            "of shape {shape:?} at offset {offset} is not wholly in its file, which has {} bytes",
            self.length
        );
        // In the order of the file: for any order of the axes, the file is read once from front to back.
        axes.sort_by_key(|&(axis, _, stride)| (std::cmp::Reverse(stride), axis));
        let lies = axes.iter().map(|(axis, ..)| *axis).collect();
        let total = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64)).context("is larger than any file")?;
        // Elements that follow each other at one stride are a run, over as many axes as continue each other.
        let (mut outer, mut run, mut step) = (Vec::new(), 1, 1);
        for &(_, extent, stride) in axes.iter().rev().filter(|(_, extent, _)| *extent > 1) {
            if run == 1 {
                (run, step) = (extent, stride);
            } else if outer.is_empty() && run.checked_mul(step) == Some(stride) {
                run *= extent;
            } else {
                outer.push((extent, stride));
            }
        }
        let data = Strided {
            source: self.clone(),
            offset,
            size,
            outer,
            run,
            step,
            next: 0,
            total,
            piece: Vec::new(),
            given: 0,
        };
        Ok(Array { shape, lies, format, big_endian: false, data })
    }
}

/// The elements of an array as they lie, as bytes without gaps.
pub(super) struct Strided {
    source: Source,
    offset: u64,
    size: u64,
    /// Elements of a run, and how far apart they are.
    run: u64,
    step: u64,
    /// Extent and stride of the axes that count runs, the innermost first.
    outer: Vec<(u64, u64)>,
    /// The next element that is read, and how many there are.
    next: u64,
    total: u64,
    /// What is read; from `given` on it is still to be given.
    piece: Vec<u8>,
    given: usize,
}

impl Strided {
    /// Reads the next piece of a run.
    fn refill(&mut self) -> std::io::Result<()> {
        let (mut index, within) = (self.next / self.run, self.next % self.run);
        let mut at = within * self.step;
        for (extent, stride) in &self.outer {
            at += index % extent * stride;
            index /= extent;
        }
        // What lies between two elements is read with them where it is little, and passed over where it is much.
        let count =
            if self.step <= APART { (self.run - within).min(PIECE as u64 / self.size / self.step.max(1)) } else { 1 };
        let (size, step) = (self.size as usize, self.step as usize);
        let mut bytes = vec![0; ((count - 1) * self.step + 1) as usize * size];
        self.source.file.read_exact_at(&mut bytes, self.offset + at * self.size)?;
        self.piece.clear();
        if step == 1 {
            self.piece = bytes;
        } else {
            (0..count as usize).for_each(|i| self.piece.extend_from_slice(&bytes[i * step * size..][..size]));
        }
        self.given = 0;
        self.next += count;
        Ok(())
    }
}

impl Read for Strided {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.given == self.piece.len() {
            if self.next == self.total || out.is_empty() {
                return Ok(0);
            }
            self.refill().map_err(|e| match e.kind() {
                ErrorKind::UnexpectedEof => Error::new(ErrorKind::UnexpectedEof, "its file was cut while it was read"),
                _ => e,
            })?;
        }
        let count = out.len().min(self.piece.len() - self.given);
        out[..count].copy_from_slice(&self.piece[self.given..][..count]);
        self.given += count;
        Ok(count)
    }
}
