//! A model as Hugging Face's transformers writes it: a folder with config.json, safetensors and tokenizer.json.
//!
//! It is read as the GGUF that llama.cpp's converter would make of it: the same keys, the same names, and the weights
//! mapped in place. So all code that reads a model reads a folder. As for a GGUF, nothing of a file is believed:
//! reading never panics, and allocates no more than a small multiple of what the folder holds.

mod config;
mod object;
mod safetensors;
mod vocab;

use crate::gguf::{Gguf, Part, TensorInfo, Value};
use crate::model::{ARCHITECTURES, EMBEDDING, Graph, HEAD, LoadError, Model, of_transformers, skeleton};
use crate::tokenizer::{Tokenizer, VocabError};
use config::Config;
use object::Object;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// The hyperparameters.
pub const CONFIG: &str = "config.json";
/// The weights, in one file.
const SINGLE: &str = "model.safetensors";
/// Which of several files holds which weight.
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// Longest file of JSON or text in bytes, and the longest tokenizer.json: what is read of one takes up to 24 times its bytes.
/// The longest that are published have 10 MB and 35 MB.
const MAX_TEXT: u64 = 1 << 24;
const MAX_TOKENIZER: u64 = 1 << 26;

/// A folder that could not be read: the file in it, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct FolderError {
    /// The file, or the folder.
    pub file: PathBuf,
    /// What is wrong with it, and the remedy.
    pub problem: String,
}

/// A folder that was read.
pub struct Opened {
    /// The model.
    pub model: Model,
    /// Its tokenizer, or why there is none: tokens then have to be given.
    pub tokenizer: Result<Tokenizer, VocabError>,
    /// Tokens at which transformers ends a text, where the folder says so.
    pub ends: BTreeSet<u32>,
}

/// Reads the model in the folder at `path`.
///
/// # Errors
/// [`FolderError`] if it is no model that can be run.
pub fn open(path: &Path) -> Result<Opened, FolderError> {
    let refused = |name: &str| {
        let file = path.join(name);
        move |problem: String| FolderError { file: file.clone(), problem }
    };
    if path.join(CONFIG).symlink_metadata().is_err() {
        let problem = format!("is a directory without {CONFIG}; name a .gguf file in it, or a folder of safetensors");
        return Err(FolderError { file: path.to_owned(), problem });
    }
    let first = part(path, CONFIG)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let config = config::read(first.bytes(), &name).map_err(refused(CONFIG))?;
    let names = names(&config);
    let mut parts = vec![first];
    let mut tensors = Vec::new();
    for (file, expected) in shards(path)? {
        let mut part = part(path, &file).map_err(|FolderError { file, problem }| {
            let held = expected.as_ref().and_then(BTreeSet::first);
            let why = held.map(|tensor| format!(". {INDEX} says that it holds `{tensor}`: fetch the folder again"));
            FolderError { file, problem: problem + &why.unwrap_or_default() }
        })?;
        let header = safetensors::header(part.bytes()).map_err(refused(&file))?;
        part.data_offset = header.data;
        let held: BTreeSet<&str> = header.tensors.iter().map(|t| t.name.as_str()).collect();
        if let Some(expected) =
            expected.filter(|expected| !expected.iter().map(String::as_str).eq(held.iter().copied()))
        {
            let differs = |t: &&&str| !expected.contains(**t);
            let missing = expected.iter().find(|t| !held.contains(t.as_str()));
            let what = match (missing, held.iter().find(differs)) {
                (Some(missing), _) => format!("lacks tensor `{missing}`, which {INDEX} says that it holds"),
                (None, other) => format!("holds tensor `{}`, of which {INDEX} does not say so", other.unwrap_or(&"")),
            };
            return Err(refused(&file)(format!("{what}; fetch the folder again")));
        }
        for tensor in header.tensors {
            let Some(own) = names.get(&tensor.name) else {
                let layers = config.layers;
                return Err(refused(&file)(format!(
                    "tensor `{}` is none of a {} model of {layers} layers, and engines may compute with it; use another model",
                    tensor.name, config.arch
                )));
            };
            tensors.push(TensorInfo {
                name: own.clone(),
                dims: tensor.shape.into_iter().rev().collect(),
                ggml_type: tensor.ty,
                part: parts.len(),
                offset: tensor.offset,
                size: tensor.size,
            });
        }
        parts.push(part);
    }
    head(&mut tensors, &parts, &config).map_err(refused(CONFIG))?;
    let (vocabulary, ends) = beside(path, &config)?;
    let mut metadata = config.metadata.clone();
    let usable = vocabulary.map(|keys| metadata.extend(keys));
    let gguf = Gguf::of_folder(metadata, tensors, parts).map_err(|name| {
        refused("")(format!("holds tensor `{}` twice; fetch the folder again", shown(&names, &name)))
    })?;
    let model = Model::new(gguf).map_err(|e| {
        let text = in_own_words(&e, &config, &names);
        // What is wrong with a key is wrong with its file.
        if text.starts_with("key ") { refused(CONFIG)(text) } else { refused("")(text) }
    })?;
    let tokenizer = usable.and_then(|()| Tokenizer::new(model.gguf()));
    Ok(Opened { model, tokenizer, ends })
}

/// The name of each tensor in a GGUF, by its name here.
fn names(config: &Config) -> HashMap<String, String> {
    let graph =
        ARCHITECTURES.iter().find(|(arch, _)| *arch == config.arch).map(|(_, build)| skeleton(*build, config.layers));
    let names = graph.as_ref().map(of_transformers).unwrap_or_default();
    names.into_iter().map(|(own, theirs)| (theirs, own)).collect()
}

/// The name here of a tensor of a GGUF.
fn shown<'a>(names: &'a HashMap<String, String>, own: &'a str) -> &'a str {
    names.iter().find(|(_, name)| *name == own).map_or(own, |(theirs, _)| theirs)
}

/// A file of weights; of several the tensors that it must hold.
type Shard = (String, Option<BTreeSet<String>>);

/// The files of weights, in their order.
fn shards(path: &Path) -> Result<Vec<Shard>, FolderError> {
    let refused = |name: &str, problem: String| Err(FolderError { file: path.join(name), problem });
    let there = |name: &str| path.join(name).symlink_metadata().is_ok();
    match (there(SINGLE), there(INDEX)) {
        (true, false) => return Ok(vec![(SINGLE.to_owned(), None)]),
        (true, true) => {
            let what = format!("is beside {INDEX}, and engines differ in which of them they read; remove one");
            return refused(SINGLE, what);
        }
        (false, false) => {
            let what =
                format!("holds neither {SINGLE} nor {INDEX}; save the model with save_pretrained, or fetch it again");
            return refused("", what);
        }
        (false, true) => {}
    }
    let text = part(path, INDEX)?;
    let read = |text: &[u8]| -> Result<Object<String>, serde_json::Error> {
        let index: Object<Json> = serde_json::from_slice(text)?;
        let map = index.0.into_iter().find(|(key, _)| key == "weight_map").map_or(Json::Null, |(_, map)| map);
        serde_json::from_value(map)
    };
    let map = match read(text.bytes()) {
        Ok(map) => map,
        Err(e) => return refused(INDEX, format!("has no `weight_map` from tensors to files: {e}; fetch it again")),
    };
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in map.0 {
        // Nothing outside the folder.
        if file.contains(['/', '\\', '\0']) || !file.ends_with(".safetensors") {
            let what =
                format!("says that tensor `{tensor}` is in {file:?}, which is no .safetensors file of the folder");
            return refused(INDEX, format!("{what}; fetch it again"));
        }
        files.entry(file).or_default().insert(tensor);
    }
    Ok(files.into_iter().map(|(file, tensors)| (file, Some(tensors))).collect())
}

/// A file of the folder, mapped.
fn part(path: &Path, name: &str) -> Result<Part, FolderError> {
    let file = path.join(name);
    let refused = |problem: String| FolderError { file: file.clone(), problem };
    if file.is_dir() {
        return Err(refused("is a directory, expected a file; fetch the folder again".to_owned()));
    }
    let part = Part::open(&file).map_err(|problem| refused(problem.to_string()))?;
    let most = match name {
        TOKENIZER => MAX_TOKENIZER,
        name if name.ends_with(".safetensors") => u64::MAX,
        _ => MAX_TEXT,
    };
    let long = part.bytes().len() as u64;
    if long > most {
        return Err(refused(format!("has {long} bytes, above the limit of {most}; fetch it again")));
    }
    Ok(part)
}

/// Holds the embedding table and the head against config.json, before anything is as long as that says. A tied head is the
/// table, and a file that holds it as well must hold the same; one that is not tied must be there.
fn head(tensors: &mut Vec<TensorInfo>, parts: &[Part], config: &Config) -> Result<(), String> {
    let [table, head] = [EMBEDDING, HEAD].map(|name| tensors.iter().find(|t| t.name == name));
    let Some(table) = table else { return Ok(()) };
    if table.dims.get(1) != Some(&config.vocabulary) || table.size == 0 {
        let shape: Vec<u64> = table.dims.iter().rev().copied().collect();
        let rows = config.vocabulary;
        return Err(format!(
            "key `vocab_size` is {rows}, and the embedding table has shape {shape:?}; fetch the folder again"
        ));
    }
    let bytes = |t: &TensorInfo| {
        let start = (parts[t.part].data_offset + t.offset) as usize;
        &parts[t.part].bytes()[start..][..t.size as usize]
    };
    match head {
        None if !config.tied => {
            Err("does not say `tie_word_embeddings`, and there is no tensor `lm_head.weight`; fetch the \
                                     folder again"
                .to_owned())
        }
        Some(head)
            if config.tied
                && (head.dims != table.dims || head.ggml_type != table.ggml_type || bytes(head) != bytes(table)) =>
        {
            Err("says `tie_word_embeddings`, and the files hold an `lm_head.weight` that is not the embedding table: \
                 engines differ in which of them they take; remove one"
                .to_owned())
        }
        Some(_) if config.tied => {
            tensors.retain(|t| t.name != HEAD);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The data beside the weights: the vocabulary, under the keys of a GGUF, and the tokens that end a text.
type Beside = (Result<Vec<(String, Value)>, VocabError>, BTreeSet<u32>);

/// The chat template that transformers takes: the file of its own before what tokenizer_config.json says, and of several there
/// the one that is called `default`.
fn template(path: &Path) -> Result<Option<String>, FolderError> {
    if path.join(TEMPLATE).symlink_metadata().is_ok() {
        let problem = "is no text in UTF-8; fetch it again".to_owned();
        let text = String::from_utf8(part(path, TEMPLATE)?.bytes().to_vec());
        return text.map(Some).map_err(|_| FolderError { file: path.join(TEMPLATE), problem });
    }
    if path.join(TOKENIZER_CONFIG).symlink_metadata().is_err() {
        return Ok(None);
    }
    let refused = |problem| FolderError { file: path.join(TOKENIZER_CONFIG), problem };
    let text = part(path, TOKENIZER_CONFIG)?;
    let keys: Object<Json> =
        serde_json::from_slice(text.bytes()).map_err(|e| refused(format!("is no JSON object: {e}; fetch it again")))?;
    let found = keys.get("chat_template").filter(|found| !found.is_null());
    let of_several =
        |all: &Vec<Json>| all.iter().find(|one| one["name"] == "default").map(|one| one["template"].clone());
    let chosen = match found {
        Some(Json::Array(all)) => of_several(all),
        other => other.cloned(),
    };
    match (chosen, found) {
        (Some(Json::String(text)), _) => Ok(Some(text)),
        (_, None) => Ok(None),
        _ => {
            let what = "key `chat_template` is neither a text nor a list with one called `default`; fetch it again";
            Err(refused(what.to_owned()))
        }
    }
}

fn beside(path: &Path, config: &Config) -> Result<Beside, FolderError> {
    let json = |name: &str| -> Option<Object<Json>> { serde_json::from_slice(part(path, name).ok()?.bytes()).ok() };
    // What transformers generates by; without it, what the model says.
    let generation = json(GENERATION).map(|keys| config::ids(keys.get("eos_token_id")));
    let ends: Vec<u32> = generation.filter(|ends| !ends.is_empty()).unwrap_or_else(|| config.ends.clone());
    let file = path.join(TOKENIZER);
    if file.symlink_metadata().is_err() {
        let why = format!("{} holds no {TOKENIZER}, so a text has no tokens; give --tokens", path.display());
        return Ok((Err(VocabError::new(why)), ends.into_iter().collect()));
    }
    let text = part(path, TOKENIZER)?;
    let template = match template(path) {
        Ok(template) => template,
        Err(e) => return Ok((Err(VocabError::new(format!("{e}, or give --tokens"))), ends.into_iter().collect())),
    };
    let rows = config.vocabulary as usize;
    let keys = vocab::read(text.bytes(), rows).map(|mut keys| {
        // The other tokens that end a text are passed separately.
        let end = ends.first().filter(|id| (**id as usize) < rows);
        keys.extend(end.map(|id| ("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(*id))));
        keys.extend(template.map(|text| ("tokenizer.chat_template".to_owned(), config::text_value(&text))));
        keys
    });
    let unusable = |why| VocabError::new(format!("{} {why}; give --tokens", file.display()));
    Ok((keys.map_err(unusable), ends.into_iter().collect()))
}

/// A text about a GGUF of this graph, in words of the folder.
pub fn own_words(text: &str, graph: &Graph) -> String {
    let mut text = text.replace("the GGUF", "the folder");
    for (suffix, key) in config::names() {
        text = text.replace(&format!("{}.{suffix}", graph.config.arch), key);
    }
    of_transformers(graph).iter().fold(text, |text, (own, theirs)| text.replace(own.as_str(), theirs))
}

/// An error about a GGUF, in words of the folder.
fn in_own_words(error: &LoadError, config: &Config, names: &HashMap<String, String>) -> String {
    let text = error.to_string().replace("metadata key", "key");
    let text =
        text.replace(" with llama.cpp's converter", "").replace("convert the model again", "fetch the folder again");
    let words = text.split('`').enumerate().map(|(i, word)| match i % 2 {
        0 => word,
        _ => {
            let suffix = word.strip_prefix(config.arch).and_then(|rest| rest.strip_prefix('.')).unwrap_or(word);
            config::name(suffix).unwrap_or_else(|| shown(names, word))
        }
    });
    words.collect::<Vec<_>>().join("`")
}
