//! An open model: its metadata and tensors, and the bytes of its files.

use super::error::Problem;
use super::value::Value;
use crate::quant::GgmlType;
use memmap2::Mmap;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// One tensor's entry in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name; unique in the file.
    pub name: String,
    /// Elements per dimension in ggml's order: `dims[0]` is contiguous. At most four; none for a scalar.
    pub dims: Vec<u64>,
    /// The format of its elements.
    pub ggml_type: GgmlType,
    /// Which of the model's files it is in, from 0 on.
    pub part: usize,
    /// Bytes from the start of that file's data section.
    pub offset: u64,
    /// Bytes, without padding.
    pub size: u64,
}

impl TensorInfo {
    /// All elements; 0 if any dimension is.
    pub fn elements(&self) -> u64 {
        // No overflow: the parser checked the product of a tensor without a zero.
        if self.dims.contains(&0) { 0 } else { self.dims.iter().product() }
    }

    /// Elements per row: `dims[0]`, or 1 for a scalar.
    pub fn row_len(&self) -> usize {
        self.dims.first().map_or(1, |n| *n as usize)
    }

    /// Rows: the product of the dimensions after the first; 0 in an empty tensor.
    pub fn rows(&self) -> usize {
        (self.elements() / self.dims.first().copied().unwrap_or(1).max(1)) as usize
    }
}

/// One file of a model; most have one.
pub struct Part {
    /// Where it stands, unless it was read from memory.
    pub path: Option<PathBuf>,
    /// The alignment of tensor data, in bytes: a power of two.
    pub alignment: u64,
    /// Where the data section starts, in bytes from the start of the file.
    pub data_offset: u64,
    /// Mapped or in memory.
    pub(super) bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
    /// What the file system said of it when it was opened.
    pub(super) opened: Option<Metadata>,
}

impl Part {
    /// Maps the file at `path`, with any contents.
    pub(crate) fn open(path: &Path) -> Result<Self, Problem> {
        let (map, opened) = map(path)?;
        let path = Some(path.to_owned());
        Ok(Self { path, alignment: 1, data_offset: 0, bytes: Box::new(map), opened: Some(opened) })
    }

    /// What the file system said of it when it was opened; nothing of what was read from memory.
    pub fn opened(&self) -> Option<&Metadata> {
        self.opened.as_ref()
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }
}

/// A GGUF model, parsed and checked; its tensor data stays where it is, in one file or several.
pub struct Gguf {
    /// The format's version, 2 or 3; 0 of a folder of safetensors, which is read as if it were converted.
    pub version: u32,
    /// All keys and values, in the file's order; of several files, those of the first.
    pub metadata: Vec<(String, Value)>,
    /// All tensors, in the order of files and within each.
    pub tensors: Vec<TensorInfo>,
    /// Where each key stands.
    pub(super) keys: HashMap<String, usize>,
    /// Where each tensor stands.
    pub(super) names: HashMap<String, usize>,
    pub(super) parts: Vec<Part>,
}

impl Gguf {
    /// A model in files of another format, each tensor within its part.
    ///
    /// # Errors
    /// The name of a tensor that is there twice.
    pub(crate) fn of_folder(
        metadata: Vec<(String, Value)>, tensors: Vec<TensorInfo>, parts: Vec<Part>,
    ) -> Result<Self, String> {
        let keys = metadata.iter().enumerate().map(|(i, (key, _))| (key.clone(), i)).collect();
        let mut names = HashMap::with_capacity(tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            if names.insert(tensor.name.clone(), i).is_some() {
                return Err(tensor.name.clone());
            }
        }
        Ok(Self { version: 0, metadata, tensors, keys, names, parts })
    }

    /// Whether it is a folder of safetensors, and no GGUF: what llama.cpp and ggml cannot read.
    pub fn is_folder(&self) -> bool {
        self.version == 0
    }

    /// The files, in their order; at least one.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// A file that is another one by now, or was written to: who opens it by its name reads other bytes.
    pub fn changed(&self) -> Option<&Path> {
        let is_other = |part: &&Part| {
            let (Some(path), Some(opened)) = (&part.path, &part.opened) else { return false };
            let of = |m: &Metadata| (m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec());
            std::fs::metadata(path).map_or(true, |now| of(&now) != of(opened))
        };
        self.parts.iter().find(is_other)?.path.as_deref()
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes().len() as u64).sum()
    }

    /// The names of the files, in their order, where there are several.
    pub fn files(&self) -> Vec<String> {
        (0..self.parts.len()).filter_map(|part| self.file(part)).collect()
    }

    /// The name of the file that a tensor is in, where there are several.
    pub fn file_of(&self, t: &TensorInfo) -> Option<String> {
        self.file(t.part)
    }

    fn file(&self, part: usize) -> Option<String> {
        let path = self.parts.get(part).filter(|_| self.parts.len() > 1)?.path.as_ref()?;
        Some(path.file_name()?.to_string_lossy().into_owned())
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|i| &self.metadata[*i].1)
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.names.get(name).map(|i| &self.tensors[*i])
    }

    /// The bytes of one of this model's tensors: [`TensorInfo::size`] of them.
    ///
    /// # Panics
    /// If `t` is of another model and does not fit into this one.
    pub fn data(&self, t: &TensorInfo) -> &[u8] {
        let part = &self.parts[t.part];
        let start = (part.data_offset + t.offset) as usize;
        &part.bytes()[start..][..t.size as usize]
    }
}

/// Maps the whole file at `path`, with what the file system says of it.
pub(super) fn map(path: &Path) -> Result<(Mmap, Metadata), Problem> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Problem::NotGguf("no such file; check the path".to_owned()),
        _ => Problem::NotGguf(format!("cannot be read: {error}")),
    };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(Problem::NotGguf("is a directory; name a .gguf file in it".to_owned()));
    }
    if !metadata.is_file() {
        return Err(Problem::NotGguf("is not a regular file; save it to disk first".to_owned()));
    }
    let file = File::open(path).map_err(unreadable)?;
    // SAFETY: the mapping is only ever read, as plain bytes, for which every value is valid. That nobody changes or
    // cuts the file while it is open cannot be enforced; as with every program that maps its models, cutting it ends
    // the process (SIGBUS).
    let map = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
    Ok((map, file.metadata().map_err(unreadable)?))
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version)
            .field("metadata", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .field("parts", &self.parts.len())
            .finish_non_exhaustive()
    }
}
