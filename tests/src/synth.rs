//! Small synthetic GGUF models: complete files that llama.cpp loads, with seeded
//! weights of any supported type and a real (tiny) byte-level BPE vocabulary.
//!
//! Every tensor's values are drawn from a generator seeded by [`Synth::seed`] and
//! the tensor's own name, before quantisation: two models that differ only in
//! their weight types, their tying or their number of layers share the values of
//! every tensor they have in common.

use std::ffi::CString;
use std::ops::Range;
use std::path::Path;

use llama_cpp_sys_2 as sys;

mod vocab;

#[cfg(test)]
mod tests;

/// Alignment of the data section and of each tensor in it, GGUF's default.
const ALIGNMENT: usize = 32;

/// The storage type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "ggml's own names")]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// 4 bits in blocks of 32, scale.
    Q4_0,
    /// 4 bits in blocks of 32, scale and minimum.
    Q4_1,
    /// 5 bits in blocks of 32, scale.
    Q5_0,
    /// 5 bits in blocks of 32, scale and minimum.
    Q5_1,
    /// 8 bits in blocks of 32, scale.
    Q8_0,
    /// 4 bits in super-blocks of 256.
    Q4_K,
    /// 5 bits in super-blocks of 256.
    Q5_K,
    /// 6 bits in super-blocks of 256.
    Q6_K,
}

impl WeightType {
    /// Every type that a synthetic model can have.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The type's number in ggml and in GGUF files.
    pub const fn id(self) -> u32 {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::BF16 => sys::GGML_TYPE_BF16,
            Self::Q4_0 => sys::GGML_TYPE_Q4_0,
            Self::Q4_1 => sys::GGML_TYPE_Q4_1,
            Self::Q5_0 => sys::GGML_TYPE_Q5_0,
            Self::Q5_1 => sys::GGML_TYPE_Q5_1,
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
            Self::Q4_K => sys::GGML_TYPE_Q4_K,
            Self::Q5_K => sys::GGML_TYPE_Q5_K,
            Self::Q6_K => sys::GGML_TYPE_Q6_K,
        }
    }

    /// Values per block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// `general.file_type` of a file whose matrices mostly have this type.
    const fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 7,
            Self::Q5_0 => 8,
            Self::Q5_1 => 9,
            Self::Q4_K => 14,
            Self::Q5_K => 16,
            Self::Q6_K => 18,
            Self::BF16 => 32,
        }
    }
}

/// The description of a synthetic model. Every field has a default.
#[derive(Clone, Debug)]
pub struct Synth {
    /// `qwen2` (biases on Q, K and V) or `qwen3` (norms on Q and K, no bias).
    pub arch: &'static str,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head; for `qwen2` it must be `n_embd / n_heads`.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub n_ff: usize,
    /// Size of the vocabulary, at least [`base_vocab`]; ids past that are
    /// padding tokens `[PADn]`.
    pub n_vocab: usize,
    /// Trained context length.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Whether the output matrix is the token embedding (no `output.weight`).
    pub tied: bool,
    /// Type of the 2-D tensors.
    pub weight_type: WeightType,
    /// Types of single tensors, by full name (`blk.0.attn_q.weight`); for one
    /// that is not 2-D as well, though llama.cpp may refuse the result.
    pub overrides: Vec<(String, WeightType)>,
    /// Seed of the weights.
    pub seed: u64,
    /// The chat template; none where empty.
    pub chat_template: String,
}

impl Default for Synth {
    fn default() -> Self {
        Self {
            arch: "qwen2",
            n_embd: 256,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            n_ff: 512,
            n_vocab: 512,
            context: 2048,
            rope_base: 1e6,
            eps: 1e-6,
            tied: false,
            weight_type: WeightType::Q8_0,
            overrides: Vec::new(),
            seed: 1,
            chat_template: vocab::CHAT_TEMPLATE.to_owned(),
        }
    }
}

/// How a tensor's values are drawn.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// Bell-shaped with standard deviation `gain / sqrt(row length)`, each row
    /// with a scale of its own.
    Matrix { gain: f32 },
    /// Around 1 with spread.
    Norm,
    /// Small, but per head of `head` values `large` of them with a magnitude in `lo..hi`.
    Bias {
        head: usize,
        large: usize,
        lo: f32,
        hi: f32,
    },
}

/// One tensor of the model: name, dimensions (innermost first), type, filling.
#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    ne: Vec<usize>,
    ty: WeightType,
    fill: Fill,
}

/// Number of tokens of the vocabulary without padding tokens.
pub fn base_vocab() -> usize {
    vocab::Vocab::build().tokens.len()
}

impl Synth {
    /// Writes the model to `path`.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    ///
    /// # Panics
    ///
    /// As [`Synth::to_bytes`].
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }

    /// The names of all tensors, in the order of the file.
    pub fn tensor_names(&self) -> Vec<String> {
        self.tensors().into_iter().map(|t| t.name).collect()
    }

    /// The values of one tensor before quantisation, rows one after the other.
    ///
    /// # Panics
    ///
    /// If the model has no tensor of that name.
    pub fn values(&self, tensor: &str) -> Vec<f32> {
        let all = self.tensors();
        let found = all.iter().find(|t| t.name == tensor);
        self.draw(found.unwrap_or_else(|| panic!("no tensor {tensor:?}")))
    }

    /// The model as the bytes of a GGUF file.
    ///
    /// # Panics
    ///
    /// If the description is inconsistent: an unknown architecture, a vocabulary
    /// below [`base_vocab`], rows that are not whole blocks of their type, an
    /// override for a tensor that is not there.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.check();
        let tensors = self.tensors();
        for (name, _) in &self.overrides {
            assert!(
                tensors.iter().any(|t| t.name == *name),
                "override for unknown tensor {name:?}"
            );
        }
        let data: Vec<Vec<u8>> = tensors.iter().map(|t| quantize(t, &self.draw(t))).collect();

        let kv = self.metadata();
        let mut out = Vec::new();
        out.extend_from_slice(b"GGUF");
        put_u32(&mut out, 3);
        put_u64(&mut out, tensors.len());
        put_u64(&mut out, kv.count);
        out.extend_from_slice(&kv.bytes);
        let mut offset = 0;
        for (t, d) in tensors.iter().zip(&data) {
            put_str(&mut out, &t.name);
            put_u32(&mut out, t.ne.len() as u32);
            for &n in &t.ne {
                put_u64(&mut out, n);
            }
            put_u32(&mut out, t.ty.id());
            put_u64(&mut out, offset);
            offset += d.len().next_multiple_of(ALIGNMENT);
        }
        pad(&mut out);
        for d in &data {
            out.extend_from_slice(d);
            pad(&mut out);
        }
        out
    }

    fn check(&self) {
        assert!(
            matches!(self.arch, "qwen2" | "qwen3"),
            "unknown architecture {:?}",
            self.arch
        );
        assert!(
            self.n_vocab >= base_vocab(),
            "n_vocab must be at least {}",
            base_vocab()
        );
        assert!(
            self.n_heads.is_multiple_of(self.n_kv_heads),
            "n_heads must be a multiple of n_kv_heads"
        );
        assert!(self.head_dim.is_multiple_of(2), "head_dim must be even");
        assert!(
            self.arch != "qwen2" || self.head_dim * self.n_heads == self.n_embd,
            "qwen2 needs head_dim * n_heads = n_embd"
        );
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (embd, ff) = (self.n_embd, self.n_ff);
        let (q, kv) = (
            self.n_heads * self.head_dim,
            self.n_kv_heads * self.head_dim,
        );
        let mut list = Vec::new();
        let mut add = |name: String, ne: Vec<usize>, fill: Fill| {
            let usual = if ne.len() == 2 {
                self.weight_type
            } else {
                WeightType::F32
            };
            let own = self.overrides.iter().rev().find(|(n, _)| *n == name);
            list.push(Tensor {
                ty: own.map_or(usual, |o| o.1),
                name,
                ne,
                fill,
            });
        };
        // Logits with a spread of about 3, so that one token tends to stand out.
        let head = Fill::Matrix { gain: 3.0 };
        let matrix = Fill::Matrix { gain: 1.0 };
        add("token_embd.weight".into(), vec![embd, self.n_vocab], head);
        for i in 0..self.n_layers {
            let n = |part: &str| format!("blk.{i}.{part}");
            add(n("attn_norm.weight"), vec![embd], Fill::Norm);
            add(n("attn_q.weight"), vec![embd, q], matrix);
            add(n("attn_k.weight"), vec![embd, kv], matrix);
            add(n("attn_v.weight"), vec![embd, kv], matrix);
            if self.arch == "qwen2" {
                let head = self.head_dim;
                let large = (head / 32).max(1);
                let qk = Fill::Bias {
                    head,
                    large,
                    lo: 10.0,
                    hi: 30.0,
                };
                add(n("attn_q.bias"), vec![q], qk);
                add(n("attn_k.bias"), vec![kv], qk);
                // Value biases stay moderate, as in Qwen: a large one would
                // drown the content in a constant.
                add(
                    n("attn_v.bias"),
                    vec![kv],
                    Fill::Bias {
                        head,
                        large: 1,
                        lo: 2.0,
                        hi: 4.0,
                    },
                );
            } else {
                add(n("attn_q_norm.weight"), vec![self.head_dim], Fill::Norm);
                add(n("attn_k_norm.weight"), vec![self.head_dim], Fill::Norm);
            }
            add(n("attn_output.weight"), vec![q, embd], matrix);
            add(n("ffn_norm.weight"), vec![embd], Fill::Norm);
            add(n("ffn_gate.weight"), vec![embd, ff], matrix);
            add(n("ffn_up.weight"), vec![embd, ff], matrix);
            add(n("ffn_down.weight"), vec![ff, embd], matrix);
        }
        add("output_norm.weight".into(), vec![embd], Fill::Norm);
        if !self.tied {
            add("output.weight".into(), vec![embd, self.n_vocab], head);
        }
        list
    }

    fn draw(&self, t: &Tensor) -> Vec<f32> {
        let mut rng = Rng::new(self.seed, &t.name);
        let count = t.ne.iter().product();
        match t.fill {
            Fill::Matrix { gain } => {
                let std = gain / (t.ne[0] as f32).sqrt();
                let mut values = Vec::with_capacity(count);
                for _ in 0..count / t.ne[0] {
                    let row = std * rng.between(0.75, 1.25);
                    values.extend((0..t.ne[0]).map(|_| row * rng.bell()));
                }
                values
            }
            Fill::Norm => (0..count).map(|_| 1.0 + 0.2 * rng.bell()).collect(),
            Fill::Bias {
                head,
                large,
                lo,
                hi,
            } => {
                let mut values: Vec<f32> = (0..count).map(|_| 0.4 * rng.bell()).collect();
                for chunk in values.chunks_mut(head) {
                    for _ in 0..large {
                        let at = (rng.next() % chunk.len() as u64) as usize;
                        let sign = if rng.next() >> 63 == 0 { 1.0 } else { -1.0 };
                        chunk[at] = sign * rng.between(lo, hi);
                    }
                }
                values
            }
        }
    }

    fn metadata(&self) -> Kv {
        let mut kv = Kv::default();
        kv.string("general.architecture", self.arch);
        kv.string("general.name", &format!("synthetic {}", self.arch));
        kv.u32("general.file_type", self.weight_type.file_type());
        kv.u32("general.quantization_version", 2);

        let key = |k: &str| format!("{}.{k}", self.arch);
        kv.u32(&key("block_count"), self.n_layers as u32);
        kv.u32(&key("context_length"), self.context as u32);
        kv.u32(&key("embedding_length"), self.n_embd as u32);
        kv.u32(&key("feed_forward_length"), self.n_ff as u32);
        kv.u32(&key("attention.head_count"), self.n_heads as u32);
        kv.u32(&key("attention.head_count_kv"), self.n_kv_heads as u32);
        if self.arch == "qwen3" {
            kv.u32(&key("attention.key_length"), self.head_dim as u32);
            kv.u32(&key("attention.value_length"), self.head_dim as u32);
        }
        kv.f32(&key("attention.layer_norm_rms_epsilon"), self.eps);
        kv.f32(&key("rope.freq_base"), self.rope_base);

        let mut vocab = vocab::Vocab::build();
        vocab.pad_to(self.n_vocab);
        kv.string("tokenizer.ggml.model", "gpt2");
        kv.string("tokenizer.ggml.pre", "qwen2");
        kv.strings("tokenizer.ggml.tokens", &vocab.tokens);
        kv.i32s("tokenizer.ggml.token_type", &vocab.types);
        kv.strings("tokenizer.ggml.merges", &vocab.merges);
        kv.u32("tokenizer.ggml.eos_token_id", vocab.im_end);
        kv.u32("tokenizer.ggml.padding_token_id", vocab.endoftext);
        kv.u32("tokenizer.ggml.bos_token_id", vocab.endoftext);
        kv.bool("tokenizer.ggml.add_bos_token", false);
        if !self.chat_template.is_empty() {
            kv.string("tokenizer.chat_template", &self.chat_template);
        }
        kv
    }
}

/// Hands `f` the raw bytes of one tensor in the GGUF image `bytes`.
///
/// # Panics
///
/// As [`tensor_range`].
pub fn patch(bytes: &mut [u8], tensor: &str, f: impl FnOnce(&mut [u8])) {
    let range = tensor_range(bytes, tensor);
    f(&mut bytes[range]);
}

/// Where the data of one tensor lies in the GGUF image `bytes`.
///
/// # Panics
///
/// If the image is no GGUF file, or has no tensor of that name, or ends before
/// the tensor does.
pub fn tensor_range(bytes: &[u8], tensor: &str) -> Range<usize> {
    let name = CString::new(tensor).expect("a tensor name without NUL");
    let params = sys::gguf_init_params {
        no_alloc: true,
        ctx: std::ptr::null_mut(),
    };
    // SAFETY: the buffer is live and of the stated length; ggml copies from it.
    let ctx = unsafe { sys::gguf_init_from_buffer(bytes.as_ptr().cast(), bytes.len(), params) };
    assert!(!ctx.is_null(), "not a GGUF image");
    // SAFETY: `ctx` is a live context until `gguf_free`, `name` a C string; the
    // queries by id are made for an id that `gguf_find_tensor` gave.
    let found = unsafe {
        let id = sys::gguf_find_tensor(ctx, name.as_ptr());
        let found = (id >= 0).then(|| {
            let start = sys::gguf_get_data_offset(ctx) + sys::gguf_get_tensor_offset(ctx, id);
            start..start + sys::gguf_get_tensor_size(ctx, id)
        });
        sys::gguf_free(ctx);
        found
    };
    let range = found.unwrap_or_else(|| panic!("no tensor {tensor:?}"));
    assert!(
        range.end <= bytes.len(),
        "the image ends before tensor {tensor:?} does"
    );
    range
}

/// The values of a tensor in its storage type, by ggml's own quantisation.
fn quantize(t: &Tensor, values: &[f32]) -> Vec<u8> {
    let per_row = t.ne[0];
    let rows = values.len() / per_row;
    assert!(
        per_row.is_multiple_of(t.ty.block_len()),
        "{}: rows of {per_row} values are not whole blocks of {:?}",
        t.name,
        t.ty
    );
    let size = values.len() / t.ty.block_len() * t.ty.block_bytes();
    // Of u64, so that the blocks' own fields are aligned.
    let mut buffer = vec![0_u64; size.div_ceil(8)];
    // SAFETY: `values` has `rows * per_row` floats, `buffer` at least `size`
    // bytes, what ggml's row size makes of them (checked below); none of the
    // supported types needs an importance matrix.
    let written = unsafe {
        assert_eq!(
            sys::ggml_row_size(t.ty.id() as sys::ggml_type, per_row as i64) * rows,
            size
        );
        sys::ggml_quantize_chunk(
            t.ty.id() as sys::ggml_type,
            values.as_ptr(),
            buffer.as_mut_ptr().cast(),
            0,
            rows as i64,
            per_row as i64,
            std::ptr::null(),
        )
    };
    assert_eq!(written, size, "{}: ggml wrote another size", t.name);
    let mut bytes: Vec<u8> = buffer.iter().flat_map(|w| w.to_ne_bytes()).collect();
    bytes.truncate(size);
    bytes
}

/// Encoded key-value pairs.
#[derive(Default)]
struct Kv {
    count: usize,
    bytes: Vec<u8>,
}

impl Kv {
    fn key(&mut self, key: &str, ty: u32) {
        self.count += 1;
        put_str(&mut self.bytes, key);
        put_u32(&mut self.bytes, ty);
    }

    fn u32(&mut self, key: &str, value: u32) {
        self.key(key, sys::GGUF_TYPE_UINT32);
        put_u32(&mut self.bytes, value);
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.key(key, sys::GGUF_TYPE_FLOAT32);
        put_u32(&mut self.bytes, value.to_bits());
    }

    fn bool(&mut self, key: &str, value: bool) {
        self.key(key, sys::GGUF_TYPE_BOOL);
        self.bytes.push(value.into());
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key, sys::GGUF_TYPE_STRING);
        put_str(&mut self.bytes, value);
    }

    fn strings(&mut self, key: &str, values: &[String]) {
        self.key(key, sys::GGUF_TYPE_ARRAY);
        put_u32(&mut self.bytes, sys::GGUF_TYPE_STRING);
        put_u64(&mut self.bytes, values.len());
        for v in values {
            put_str(&mut self.bytes, v);
        }
    }

    fn i32s(&mut self, key: &str, values: &[i32]) {
        self.key(key, sys::GGUF_TYPE_ARRAY);
        put_u32(&mut self.bytes, sys::GGUF_TYPE_INT32);
        put_u64(&mut self.bytes, values.len());
        for v in values {
            self.bytes.extend_from_slice(&v.to_le_bytes());
        }
    }
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&(value as u64).to_le_bytes());
}

fn put_str(out: &mut Vec<u8>, value: &str) {
    put_u64(out, value.len());
    out.extend_from_slice(value.as_bytes());
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

/// splitmix64, with sums and products only, so that the values are the same on
/// every machine.
struct Rng(u64);

impl Rng {
    fn new(seed: u64, name: &str) -> Self {
        // FNV-1a of the name.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut rng = Self(seed);
        Self(rng.next() ^ hash)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `lo..hi`.
    fn between(&mut self, lo: f32, hi: f32) -> f32 {
        lo + (hi - lo) * (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Bell-shaped with mean 0 and standard deviation 1: a sum of six uniforms.
    fn bell(&mut self) -> f32 {
        let mut sum = 0_u64;
        for _ in 0..3 {
            let bits = self.next();
            sum += (bits >> 32) + (bits & 0xffff_ffff);
        }
        ((sum as f64 / 4_294_967_296.0 - 3.0) * std::f64::consts::SQRT_2) as f32
    }
}
