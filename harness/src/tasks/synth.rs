//! A small model with random weights, for tests of an engine: it is written in a second and needs no download.

use crate::cleanup;
use crate::report::file;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use qdiff_engine::model::ARCHITECTURES;
use qdiff_engine::quant::GgmlType;
use qdiff_synth::{Kv, Lora, Setting, Synth, base_vocab};
use std::io::Write as _;
use std::path::PathBuf;

/// As what a model is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SynthFormat {
    /// A GGUF file
    #[default]
    Gguf,
    /// A folder of safetensors with config.json and tokenizer.json, all tensors of one format: F32, F16 or BF16
    Safetensors,
}

/// The model to write. Every size has a default.
#[derive(Clone, Debug, Args)]
pub struct SynthRequest {
    /// File to write, which is replaced if it exists; with `--format safetensors` a folder, which must not exist
    #[arg(value_name = "OUT.gguf")]
    pub out: PathBuf,
    /// Format of the model file
    #[arg(long, value_enum, default_value_t)]
    pub format: SynthFormat,
    /// Architecture
    #[arg(long, default_value = ARCHITECTURES[0].0, value_parser = PossibleValuesParser::new(ARCHITECTURES.iter().map(|(name, _)| *name)))]
    pub arch: String,
    /// Use the token embedding as the output matrix: the file has no output.weight
    #[arg(long)]
    pub tied: bool,
    /// Store the matrices of queries, keys and values as one tensor, and gate and up of experts as one tensor too, if
    /// the architecture allows it
    #[arg(long)]
    pub fused: bool,
    /// Number of blocks for multi-token prediction behind the layers; for hybrid architectures, such as qwen35
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mtp: usize,
    /// Give the model magnitudes of real Qwen models: massive activations of two tokens in two channels; key biases in the hundreds
    /// (in architectures without biases, head norms that make scores as large); routers that are nearly undecided in even layers
    /// and give one expert nearly all the weight in odd layers
    #[arg(long)]
    pub massive: bool,
    /// Format of all matrices; vectors are F32
    #[arg(long, value_name = "FORMAT", ignore_case = true, default_value = "q8_0", value_parser = formats())]
    pub weights: GgmlType,
    /// Format of one tensor, such as blk.0.ffn_down.weight=Q6_K; repeat for more
    #[arg(long, value_name = "TENSOR=FORMAT", value_parser = stored)]
    pub tensor: Vec<(String, GgmlType)>,
    /// Number of layers
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub layers: usize,
    /// Width of the residual stream
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub embedding: usize,
    /// Number of query heads
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub heads: usize,
    /// Number of key and value heads; must divide --heads
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub kv_heads: usize,
    /// Width of a head; by default --embedding divided by --heads
    #[arg(long, value_name = "N")]
    pub head_dim: Option<usize>,
    /// Width of the feed-forward part
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub ffn: usize,
    /// Number of tokens in the vocabulary; the default is the smallest
    #[arg(long, value_name = "N", default_value_t = base_vocab())]
    pub vocab: usize,
    /// Context length
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub context: usize,
    /// Base of the rotary frequencies
    #[arg(long, value_name = "X", default_value_t = 1e6)]
    pub rope_base: f32,
    /// Epsilon of the RMS norms
    #[arg(long, value_name = "X", default_value_t = 1e-6)]
    pub eps: f32,
    /// Seed of the weights: the same options with the same seed write the same bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write a LoRA adapter of rank N for the model that the other options describe, in place of the model: F32, or F16 and BF16
    /// with --weights
    #[arg(long, value_name = "N", value_parser = super::values::at_least_one)]
    pub lora: Option<usize>,
    /// Alpha of the adapter: its terms are multiplied by alpha / N
    #[arg(long, value_name = "X", default_value_t = 16.0, requires = "lora")]
    pub lora_alpha: f32,
    /// Value of a metadata key of the architecture, such as expert_count=7 or rope.scaling.type=yarn; repeat for more
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub set: Vec<(String, Setting)>,
    /// Omit a metadata key, such as general.name; repeat for more. An engine may rely on an optional key
    #[arg(long, value_name = "KEY")]
    pub without: Vec<String>,
}

/// A supported block format, by its name.
pub(super) fn formats() -> impl clap::builder::TypedValueParser<Value = GgmlType> {
    let names = GgmlType::ALL_SUPPORTED.iter().map(|ty| ty.name());
    PossibleValuesParser::new(names).try_map(|name| format(&name))
}

fn format(name: &str) -> Result<GgmlType> {
    let known = GgmlType::ALL_SUPPORTED;
    known.iter().find(|ty| ty.name().eq_ignore_ascii_case(name)).copied().with_context(|| {
        let names: Vec<_> = known.iter().map(|ty| ty.name()).collect();
        format!("unknown format {name:?}; known: {}", names.join(", "))
    })
}

fn stored(text: &str) -> Result<(String, GgmlType)> {
    let (tensor, name) = text.split_once('=').context("expected TENSOR=FORMAT")?;
    Ok((tensor.to_owned(), format(name)?))
}

fn setting(text: &str) -> Result<(String, Setting)> {
    let (key, value) = text.split_once('=').context("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.parse()?))
}

impl SynthRequest {
    fn model(&self) -> Result<Synth> {
        let arch = ARCHITECTURES.iter().map(|(name, _)| *name).find(|name| *name == self.arch);
        let model = Synth {
            arch: arch.with_context(|| format!("unknown architecture {:?}", self.arch))?,
            n_embd: self.embedding,
            n_layers: self.layers,
            n_heads: self.heads,
            n_kv_heads: self.kv_heads,
            head_dim: self.head_dim.unwrap_or(self.embedding / self.heads.max(1)),
            n_ff: self.ffn,
            n_vocab: self.vocab,
            context: self.context,
            rope_base: self.rope_base,
            eps: self.eps,
            tied: self.tied,
            fused: self.fused,
            mtp: self.mtp,
            massive: self.massive,
            weight_type: self.weights,
            overrides: self.tensor.clone(),
            seed: self.seed,
            settings: self.set.clone(),
            ..Synth::default()
        };
        model.validate().map_err(|problem| anyhow!("no such model can be written: {problem}"))?;
        Ok(model)
    }
}

impl SynthRequest {
    fn adapter(&self, rank: usize) -> Result<Lora<'static>> {
        if !self.without.is_empty() || !self.tensor.is_empty() {
            bail!("--lora takes neither --without nor --tensor; leave them out");
        }
        let plain = [GgmlType::F16, GgmlType::BF16].contains(&self.weights);
        let ty = if plain { self.weights } else { GgmlType::F32 };
        Ok(Lora { rank, alpha: self.lora_alpha, matrices: &[], ty, seed: self.seed })
    }
}

/// Takes `keys` out of the metadata.
fn leave_out(metadata: &mut Kv, keys: &[String]) -> Result<()> {
    for key in keys {
        if !metadata.keys().any(|known| known == key) {
            let known: Vec<_> = metadata.keys().collect();
            bail!("--without {key}: the model has no such key. It has {}", known.join(", "));
        }
        metadata.remove(key);
    }
    Ok(())
}

/// Writes the model; gives its size in bytes.
///
/// # Errors
/// Options that contradict each other, a key that the model does not have, and a file that cannot be written.
pub fn synth(request: &SynthRequest) -> Result<u64> {
    if request.format == SynthFormat::Safetensors {
        ensure!(request.lora.is_none(), "--lora writes a GGUF file; leave --format out");
        return folder(request);
    }
    file::check(&request.out, "OUT.gguf")?;
    let model = request.model()?;
    let mut left_out = Ok(());
    let bytes = match request.lora {
        Some(rank) => model.adapter(&request.adapter(rank)?),
        None => model.to_bytes_with(|metadata| left_out = leave_out(metadata, &request.without)),
    };
    left_out?;
    let problem = || format!("cannot write {}; choose a folder with room", request.out.display());
    let mut part = file::temporary(&request.out)?;
    let _cleanup = cleanup::guard(part.path());
    part.write_all(&bytes).with_context(problem)?;
    part.persist(&request.out).map_err(|e| e.error).with_context(problem)?;
    Ok(bytes.len() as u64)
}

/// Writes the model as a folder; gives the size of its files in bytes.
fn folder(request: &SynthRequest) -> Result<u64> {
    if !request.without.is_empty() || !request.tensor.is_empty() {
        bail!("--format safetensors takes neither --without nor --tensor; leave them out");
    }
    if request.fused || request.mtp > 0 {
        bail!(
            "--format safetensors takes neither --fused nor --mtp, as transformers has no such tensors; leave them out"
        );
    }
    let files = request.model()?.to_folder().map_err(|problem| anyhow!("--format safetensors: {problem}"))?;
    let problem = || format!("cannot write the folder {}; name one that does not exist", request.out.display());
    std::fs::create_dir(&request.out).with_context(problem)?;
    for (name, bytes) in &files {
        std::fs::write(request.out.join(name), bytes).with_context(problem)?;
    }
    Ok(files.iter().map(|(_, bytes)| bytes.len() as u64).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use qdiff_engine::gguf::Gguf;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        request: SynthRequest,
    }

    fn request(words: &str) -> SynthRequest {
        Words::try_parse_from(["synth"].into_iter().chain(words.split(' '))).expect("parsed").request
    }

    /// A released engine ignored the output matrix of untied models, another needed a key that is optional: a model of
    /// either kind comes out of the binary.
    #[test]
    fn a_model_is_what_the_options_say() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("m.gguf");
        let mut wanted = request(
            "m.gguf --arch qwen3 --tied --weights Q4_0 --tensor blk.0.ffn_down.weight=F16 --head-dim 32 --without general.name",
        );
        wanted.out.clone_from(&out);
        let bytes = synth(&wanted).expect("written");
        assert_eq!(std::fs::metadata(&out).expect("there").len(), bytes);
        let model = Gguf::open(&out).expect("read");
        let of = |name: &str| model.tensors.iter().find(|t| t.name == name).map(|t| t.ggml_type);
        assert_eq!((of("output.weight"), of("blk.0.ffn_down.weight")), (None, Some(GgmlType::F16)));
        assert_eq!(of("blk.1.attn_q.weight"), Some(GgmlType::Q4_0));
        assert!(model.get("general.name").is_none() && model.get("general.architecture").is_some());
    }

    #[test]
    fn options_that_contradict_each_other_are_named() {
        let says = |words: &str| format!("{:#}", synth(&request(words)).expect_err(words));
        assert!(says("no.gguf --heads 3 --kv-heads 2 --head-dim 64").contains("multiple of key-value heads"));
        assert!(says("no.gguf --heads 0").contains("at least 1"));
        assert!(says("no.gguf --embedding 96 --weights Q4_K").contains("whole blocks of q4_K"));
        assert!(says("no.gguf --tensor blk.9.attn_q.weight=F32").contains("no tensor \"blk.9.attn_q.weight\""));
        assert!(says("no.gguf --without rope.freq_base").contains("qwen2.rope.freq_base"));
        assert!(says("no.gguf --vocab 3").contains("at least"));
    }
}
