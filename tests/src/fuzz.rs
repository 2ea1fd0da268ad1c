//! What is fuzzed: functions that take any bytes and must neither panic, nor hang, nor take much memory. `fuzz/` gives
//! them to libFuzzer; the suite replays the corpora that are committed there.

use crate::synth::{Synth, base_vocab};
use qdiff::capture::manifest::{self, Manifest};
use qdiff::capture::npz;
use qdiff::capture::{Capture, Names, Shapes, Step, Store, container as folder};
use qdiff::folder::FolderWeights;
use qdiff::report::json::{self, Saved};
use qdiff::report::{FORMATS, Told};
use qdiff_engine::folder::open;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{ARCHITECTURES, Graph, Model, WeightSource as _, skeleton};
use qdiff_engine::quant::{FORMATS as BLOCKS, GgmlType, dequantize};
use qdiff_engine::tokenizer::Tokenizer;
use qdiff_engine::tokenizer::chat::{Conversation, MAX_OUTPUT, Message, render};
use std::io::{Cursor, Write as _};
use std::sync::LazyLock;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// Every one of them by its name, which is that of its corpus.
pub const TARGETS: [(&str, Target); 9] = [
    ("gguf", gguf),
    ("safetensors", safetensors),
    ("dequantise", dequantise),
    ("npz", npz),
    ("container", container),
    ("manifest", manifest),
    ("tokenizer", tokenizer),
    ("template", template),
    ("report", report),
];

/// A file: what is accepted lies inside it, and its vocabulary and its model are read or refused.
///
/// # Panics
/// As each of these functions: if a promise is broken.
pub fn gguf(bytes: &[u8]) {
    let Ok(gguf) = Gguf::from_bytes(bytes.to_vec()) else { return };
    for tensor in &gguf.tensors {
        assert_eq!(gguf.data(tensor).len() as u64, tensor.size, "{tensor:?}");
        assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
    }
    for (key, value) in &gguf.metadata {
        assert!(gguf.get(key).is_some(), "{key}");
        value.json(8);
    }
    let _ = Tokenizer::new(&gguf);
    let _ = Model::new(gguf);
}

/// The files of a small model in a folder of safetensors.
static FOLDER: LazyLock<Vec<(&str, Vec<u8>)>> = LazyLock::new(|| {
    let (n_vocab, weight_type) = (base_vocab(), GgmlType::BF16);
    let (n_embd, n_layers, n_heads, n_kv_heads, head_dim, n_ff) = (32, 1, 2, 1, 16, 32);
    let small =
        Synth { n_embd, n_layers, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, weight_type, ..Synth::default() };
    small.to_folder().expect("safetensors hold BF16")
});

/// A folder of safetensors in which one file is what follows the first byte, as that says: config.json, the header of the
/// weights, the index of weights in several files, or tokenizer.json. What is accepted lies inside its file, and the
/// oracle's reader, where it accepts it as well, finds the same there.
pub fn safetensors(bytes: &[u8]) {
    let Some((pick, given)) = bytes.split_first() else { return };
    let folder = crate::empty();
    for (name, right) in FOLDER.iter() {
        let name = if *name == "model.safetensors" && pick % 4 == 2 { "part.safetensors" } else { *name };
        folder.write(name, right);
    }
    match pick % 4 {
        0 => folder.write("config.json", given),
        1 => {
            let right = std::fs::read(folder.join("model.safetensors")).expect("it was written");
            let (length, rest) = right.split_first_chunk::<8>().expect("a length");
            let data = &rest[u64::from_le_bytes(*length) as usize..];
            let length = (given.len() as u64).to_le_bytes();
            folder.write("model.safetensors", [&length[..], given, data].concat());
        }
        2 => folder.write("model.safetensors.index.json", given),
        _ => folder.write("tokenizer.json", given),
    }
    let Ok(opened) = open(&folder) else { return };
    let gguf = opened.model.gguf();
    let other = FolderWeights::read(gguf).ok();
    for tensor in &gguf.tensors {
        let data = gguf.data(tensor);
        assert_eq!(data.len() as u64, tensor.size, "{tensor:?}");
        if let Some(other) = &other {
            assert_eq!(other.dims(&tensor.name), Some(&tensor.dims[..]), "{tensor:?}");
            assert!(other.stored(&tensor.name).bytes == data, "{tensor:?}");
        }
    }
}

/// A format by the first byte, and blocks of it: all together become what each becomes alone.
pub fn dequantise(bytes: &[u8]) {
    let Some((pick, blocks)) = bytes.split_first() else { return };
    let ty = BLOCKS[usize::from(*pick) % BLOCKS.len()].ty;
    let count = blocks.len() / ty.type_size();
    let blocks = &blocks[..count * ty.type_size()];
    let mut together = vec![0.0; count * ty.block_size()];
    dequantize(ty, blocks, &mut together);
    for (block, values) in blocks.chunks(ty.type_size()).zip(together.chunks(ty.block_size())) {
        let mut alone = vec![0.0; ty.block_size()];
        dequantize(ty, block, &mut alone);
        let same = alone.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
        assert!(same, "a block of {ty} depends on its neighbours");
    }
}

static GRAPH: LazyLock<(Graph, Names)> = LazyLock::new(|| {
    let graph = skeleton(ARCHITECTURES[0].1, 1);
    let names = Names::of(&graph);
    (graph, names)
});

/// An archive; and an array in an archive that is right.
pub fn npz(bytes: &[u8]) {
    archive(bytes);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let name = format!("prefill/{}.npy", GRAPH.0.nodes[0].id);
    zip.start_file(name, SimpleFileOptions::default().compression_method(CompressionMethod::Stored)).expect("a name");
    zip.write_all(bytes).expect("memory takes it");
    archive(zip.finish().expect("memory takes it").get_ref());
}

fn archive(bytes: &[u8]) {
    let (graph, names) = &*GRAPH;
    let manifest: Manifest = serde_json::from_value(serde_json::json!({
        "schema_version": manifest::SCHEMA_VERSION, "engine": "fuzzed", "tokens": [1, 2, 3], "decoded": [4]
    }))
    .expect("a manifest");
    for shapes in [Shapes::Known, Shapes::Unknown] {
        let Ok(zip) = ZipArchive::new(Cursor::new(bytes)) else { return };
        let store = Store::usual(None);
        let Ok(Capture { steps, .. }) = npz::arrays(zip, "fuzzed", &manifest, (graph, names), shapes, &store) else {
            continue;
        };
        whole(&steps);
    }
}

fn whole(steps: &[Step]) {
    for stored in steps.iter().flat_map(|step| step.stages.values()) {
        let tensor = stored.get();
        assert_eq!(tensor.data.len(), tensor.shape.iter().product::<usize>());
    }
}

/// The lines of a raw container beside a file of zeros, or a file of safetensors, as the first byte says.
pub fn container(bytes: &[u8]) {
    let Some((pick, bytes)) = bytes.split_first() else { return };
    let (file, folder) = (["capture.jsonl", "capture.safetensors"][usize::from(pick % 2)], crate::empty());
    folder.write(file, bytes);
    folder.write("a.bin", [0; 256]);
    if file.ends_with("safetensors") {
        let manifest =
            serde_json::json!({ "schema_version": manifest::SCHEMA_VERSION, "engine": "fuzzed", "tokens": [1, 2, 3] });
        folder.write("manifest.json", manifest.to_string());
    }
    let Ok(manifest) = folder::manifest(&folder) else { return };
    let (graph, names) = &*GRAPH;
    for shapes in [Shapes::Known, Shapes::Unknown] {
        let read = folder::read(&folder, &manifest, (graph, names), shapes, &Store::usual(None));
        read.iter().for_each(|capture| whole(&capture.steps));
    }
}

/// A manifest: what is accepted is written as it is read, and its steps have its tokens.
pub fn manifest(bytes: &[u8]) {
    let Ok(manifest) = manifest::parse(bytes, "fuzzed") else { return };
    let tokens: usize = manifest.steps().iter().map(|step| step.tokens.len()).sum();
    assert_eq!(tokens, manifest.tokens.len() + manifest.decoded.len());
    let written = serde_json::to_string(&manifest).expect("it has a form in JSON");
    let read = manifest::parse(written.as_bytes(), "written").expect("what was written is read");
    assert_eq!(serde_json::to_string(&read).expect("it has a form in JSON"), written);
}

static VOCABULARY: LazyLock<Tokenizer> = LazyLock::new(|| {
    let gguf = Gguf::from_bytes(Synth::default().to_bytes()).expect("a synthetic model is whole");
    Tokenizer::new(&gguf).expect("its vocabulary is whole")
});

/// A text: its tokens lie in it one after the other, and print it again.
pub fn tokenizer(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        assert!(VOCABULARY.encode_bytes(bytes, true).is_err());
        return;
    };
    for parse_special in [false, true] {
        let tokens = VOCABULARY.explain(text, parse_special);
        let mut end = 0;
        for token in &tokens {
            assert!(token.span.start == end && token.span.end > end, "{token:?} after {end} in {text:?}");
            end = token.span.end;
        }
        assert_eq!(end, text.len(), "{text:?}");
        let ids: Vec<u32> = tokens.iter().map(|t| t.id).collect();
        assert_eq!(VOCABULARY.decode(&ids, true), bytes, "{text:?}");
    }
}

/// A chat template: refused in one line, or of bounded length. Memory and time within an instruction are the affair of
/// the process in which qdiff renders.
pub fn template(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let messages = [Message::new("system", "Be brief."), Message::new("user", "Why is the sky blue?")].to_vec();
    let said: usize = messages.iter().map(|m| m.content.len()).sum();
    match render(source, &Conversation { messages, bos_token: "<s>".into(), eos_token: "</s>".into() }) {
        Ok(text) => assert!(text.len() <= MAX_OUTPUT + said, "{} bytes", text.len()),
        Err(e) => assert_eq!(e.to_string().lines().count(), 1, "{e:?}"),
    }
}

/// A report: shown in every format, with the outcome that its content comes to.
pub fn report(bytes: &[u8]) {
    let Ok(Saved::Report(report)) = json::parse(bytes, "fuzzed") else { return };
    assert_eq!(report.outcome, report.comes_to());
    let told: [&dyn Told; 1] = [&*report];
    for format in &FORMATS {
        (format.render)(&told, &[]).expect("what can be read can be shown");
    }
    let written = told[0].json().expect("it has a form in JSON");
    assert!(json::parse(written.as_bytes(), "written").is_ok(), "what was written is read");
}
