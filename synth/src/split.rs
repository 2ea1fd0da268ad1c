//! Models in several files, with what `llama-gguf-split` writes of it.

use crate::kv::Kv;
use crate::tensor::Tensor;
use qdiff_engine::gguf::split;

/// The name of a part, numbered from 0 on.
pub fn part_name(stem: &str, no: usize, count: usize) -> String {
    format!("{stem}-{:05}-of-{count:05}.gguf", no + 1)
}

/// Each of `count` parts: the first with the metadata, each with as many tensors, in their order. One is a whole model.
pub(crate) fn parts(mut metadata: Kv, mut tensors: Vec<Tensor>, count: usize) -> Vec<(Kv, Vec<Tensor>)> {
    if count == 1 {
        return vec![(metadata, tensors)];
    }
    let total = tensors.len();
    let mut parts = Vec::new();
    for no in 0..count {
        metadata.u16(split::NO, no as u16);
        metadata.u16(split::COUNT, count as u16);
        metadata.i32(split::TENSORS, total as i32);
        let rest = tensors.split_off((no + 1) * total / count - no * total / count);
        parts.push((std::mem::take(&mut metadata), std::mem::replace(&mut tensors, rest)));
    }
    parts
}
