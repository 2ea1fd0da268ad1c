//! The same models as transformers writes them: config.json, model.safetensors, tokenizer.json.

use crate::quantize::{quantize, writes};
use crate::{Synth, vocab};
use qdiff_engine::model::{of_transformers, qwen2, qwen3};
use qdiff_engine::quant::GgmlType;
use qdiff_engine::tokenizer::Rule;
use serde_json::{Map, Value, json};

impl Synth {
    /// The files of a folder by their names; every tensor is of [`Synth::weight_type`].
    ///
    /// # Errors
    /// A type that safetensors do not have; an architecture of which no folder is written.
    ///
    /// # Panics
    /// As [`Synth::to_bytes`].
    pub fn to_folder(&self) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
        if ![qwen2::ARCH, qwen3::ARCH].contains(&self.arch) {
            return Err(format!(
                "folders are written of qwen2 and qwen3 alone (--arch); write a GGUF of {}",
                self.arch
            ));
        }
        let dtype = match self.weight_type {
            GgmlType::F32 => "F32",
            GgmlType::F16 => "F16",
            GgmlType::BF16 => "BF16",
            other => return Err(format!("safetensors hold no {}; choose F32, F16 or BF16 (--weights)", other.name())),
        };
        if !writes(self.weight_type) {
            return Err(format!(
                "this build has no ggml, which makes {dtype} of the values; choose F32 (--weights f32)"
            ));
        }
        let names = of_transformers(&self.graph());
        let (mut header, mut data) = (Map::new(), Vec::new());
        header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        for mut tensor in self.tensors() {
            tensor.ty = self.weight_type;
            let begin = data.len();
            data.extend(quantize(&tensor, &self.draw(&tensor)));
            let shape: Vec<usize> = tensor.ne.iter().rev().copied().collect();
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]});
            header.insert(names[&tensor.name].clone(), entry);
        }
        let mut header = Value::Object(header).to_string();
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
        let weights = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        let vocab = vocab::Vocab::build();
        Ok(vec![
            ("config.json", self.config(vocab.im_end).to_string().into_bytes()),
            ("model.safetensors", weights),
            ("tokenizer.json", tokenizer(&vocab).to_string().into_bytes()),
        ])
    }

    fn config(&self, eos: u32) -> Value {
        let class = if self.arch == qwen3::ARCH { "Qwen3ForCausalLM" } else { "Qwen2ForCausalLM" };
        json!({
            "architectures": [class],
            "model_type": self.arch,
            "hidden_act": "silu",
            "hidden_size": self.n_embd,
            "intermediate_size": self.n_ff,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.eps,
            "rope_theta": self.rope_base,
            "tie_word_embeddings": self.tied,
            "use_sliding_window": false,
            "vocab_size": self.n_vocab,
            "eos_token_id": eos,
        })
    }
}

/// tokenizer.json, in the form of Qwen's.
fn tokenizer(vocab: &vocab::Vocab) -> Value {
    let (mut normal, mut added) = (Map::new(), Vec::new());
    for (id, (text, kind)) in vocab.tokens.iter().zip(&vocab.types).enumerate() {
        if *kind == 1 {
            normal.insert(text.clone(), json!(id));
        } else {
            added.push(json!({"id": id, "content": text, "special": true, "normalized": false}));
        }
    }
    let rules = [
        Rule::Contraction,
        Rule::Letters,
        Rule::Number,
        Rule::Symbols,
        Rule::LineEnds,
        Rule::SpacesBeforeText,
        Rule::Spaces,
    ];
    let expression = rules.map(|rule| rule.to_string()).join("|");
    json!({
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "dropout": null, "vocab": normal, "merges": vocab.merges},
    })
}
