//! The arrays of a capture, written again in the other containers.

use crate::npz;
use serde_json::{Value, json};
use std::path::Path;

/// An array of f32, row-major.
pub struct Array {
    /// STEP/STAGE.
    pub name: String,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Its elements.
    pub values: Vec<f32>,
}

impl Array {
    /// Its elements in the format of files.
    pub fn bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }
}

/// The arrays of the capture in `folder`, a `capture.npz` of qdiff's own, in its order.
///
/// # Panics
/// As all functions here: if a file is not what it should be, or cannot be written.
pub fn arrays(folder: &Path) -> Vec<Array> {
    let mut all = Vec::new();
    npz::rewrite(&folder.join("capture.npz"), |name, npy| {
        let start = npz::data(&npy);
        let header = std::str::from_utf8(&npy[10..start]).unwrap();
        let extents = header.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
        let shape = extents.split(',').filter(|n| !n.trim().is_empty()).map(|n| n.trim().parse().unwrap()).collect();
        let values = npy[start..].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        all.push(Array { name: name.to_owned(), shape, values });
        Some(npy)
    });
    all
}

/// A numpy array of these bytes.
pub fn npy(descr: &str, order: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let extents: String = shape.iter().map(|n| format!("{n},")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({extents}), }}");
    let header = format!("{header:<117}\n");
    [b"\x93NUMPY\x01\x00", (header.len() as u16).to_le_bytes().as_slice(), header.as_bytes(), bytes].concat()
}

/// A file for each array.
pub fn write_npy(folder: &Path, arrays: &[Array]) {
    for array in arrays {
        let path = folder.join(format!("{}.npy", array.name));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, npy("<f4", "False", &array.shape, &array.bytes())).unwrap();
    }
}

/// A file of safetensors for each step.
pub fn write_safetensors(folder: &Path, arrays: &[Array]) {
    let step = |array: &Array| array.name.split_once('/').unwrap().0.to_owned();
    std::fs::create_dir_all(folder).unwrap();
    for arrays in arrays.chunk_by(|a, b| step(a) == step(b)) {
        let (mut header, mut data) = (json!({"__metadata__": {"by": "a test"}}), Vec::new());
        for array in arrays {
            let begin = data.len();
            data.extend(array.bytes());
            let offsets = [begin, data.len()];
            header[&array.name] = json!({"dtype": "F32", "shape": array.shape, "data_offsets": offsets});
        }
        let file = folder.join(format!("{}.safetensors", step(&arrays[0])));
        std::fs::write(file, safetensors(&header.to_string(), &data)).unwrap();
    }
}

/// A file of safetensors with this header.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Lines and a file of elements; `ends` gives what the line says that ends a step.
pub fn write_raw(folder: &Path, arrays: &[Array], ends: impl Fn(usize) -> Value) {
    std::fs::create_dir_all(folder).unwrap();
    let step = |array: &Array| array.name.split_once('/').unwrap().0.to_owned();
    let (mut lines, mut data) = (String::new(), Vec::new());
    for (index, arrays) in arrays.chunk_by(|a, b| step(a) == step(b)).enumerate() {
        for array in arrays {
            let name = array.name.split_once('/').unwrap().1;
            let line = json!({"step": index, "name": name, "dtype": "f32", "shape": array.shape, "file": "a.bin",
                              "offset": data.len()});
            lines += &format!("{line}\n");
            data.extend(array.bytes());
        }
        lines += &format!("{}\n", ends(index));
    }
    std::fs::write(folder.join("a.bin"), data).unwrap();
    std::fs::write(folder.join("capture.jsonl"), lines).unwrap();
}
