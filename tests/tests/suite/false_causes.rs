//! Errors planted in captures that no mutation of the catalogue makes, or makes in another place: none gets its name.

use half::f16;
use qdiff_engine::model::{Model, WeightSource as _};
use qdiff_tests::{Folder, Told, exact, folder_with, npz};
use serde_json::Value;
use std::path::PathBuf;

/// What an engine made of a stage: operands `[T, n]`, weights `[m, n]`, the right output `[T, m]`.
type Plant = fn(&[f64], &[f64], usize, &mut [f32]);

/// Linear stages of a layer with operand and weight.
const LINEAR: [(&str, &str, &str); 7] = [
    ("q_proj", "attn_norm", "attn_q"),
    ("k_proj", "attn_norm", "attn_k"),
    ("v_proj", "attn_norm", "attn_v"),
    ("attn_out", "attn_context", "attn_output"),
    ("ffn_gate", "ffn_norm", "ffn_gate"),
    ("ffn_up", "ffn_norm", "ffn_up"),
    ("ffn_down", "ffn_act", "ffn_down"),
];

/// Rounded to so many bits of mantissa.
fn bits(x: f64, kept: u32) -> f64 {
    let unit = 1u32 << (23 - kept);
    f64::from(f32::from_bits(((x as f32).to_bits() + unit / 2) & !(unit - 1)))
}

fn dot(x: &[f64], w: &[f64]) -> f64 {
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

/// The products of operands and weights that `change` alters.
fn product(x: &[f64], w: &[f64], n: usize, out: &mut [f32], change: impl Fn(&[f64], &[f64]) -> f64) {
    let m = w.len() / n;
    for (i, y) in out.iter_mut().enumerate() {
        *y = change(&x[i / m * n..][..n], &w[i % m * n..][..n]) as f32;
    }
}

fn tf32(x: &[f64], w: &[f64], n: usize, out: &mut [f32]) {
    let rounded = |v: &[f64]| -> Vec<f64> { v.iter().map(|v| bits(*v, 10)).collect() };
    product(&rounded(x), &rounded(w), n, out, dot);
}

fn bf16_weights(x: &[f64], w: &[f64], n: usize, out: &mut [f32]) {
    product(x, &w.iter().map(|w| bits(*w, 7)).collect::<Vec<_>>(), n, out, dot);
}

/// Weights of four bits: a residual of a tenth.
fn int4_weights(x: &[f64], w: &[f64], n: usize, out: &mut [f32]) {
    let block = |b: &[f64]| {
        let scale = b.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs())) / 7.0;
        b.iter().map(|v| (v / scale).round() * scale).collect::<Vec<f64>>()
    };
    product(x, &w.chunks(32).flat_map(block).collect::<Vec<_>>(), n, out, dot);
}

fn swapped_columns(x: &[f64], w: &[f64], n: usize, out: &mut [f32]) {
    let swapped = |w: &[f64]| -> Vec<f64> {
        let mut w = w.to_vec();
        w.swap(3, 100);
        w
    };
    product(x, w, n, out, |x, w| dot(x, &swapped(w)));
}

fn noise(x: &[f64], w: &[f64], n: usize, out: &mut [f32]) {
    product(x, w, n, out, dot);
    let size = (out.iter().map(|y| y * y).sum::<f32>() / out.len() as f32).sqrt();
    for (i, y) in out.iter_mut().enumerate() {
        *y += 1e-3 * size * (((i * 7919) % 1009) as f32 / 504.0 - 1.0);
    }
}

/// What an engine gives that stores in f16 what it sums in f32.
fn f16_output(x: &[f64], w: &[f64], n: usize, out: &mut [f32]) {
    product(x, w, n, out, |x, w| f16::from_f64(dot(x, w)).to_f64());
}

fn bf16_sums(x: &[f64], w: &[f64], n: usize, out: &mut [f32]) {
    product(x, w, n, out, |x, w| x.chunks(64).zip(w.chunks(64)).fold(0.0, |sum, (x, w)| bits(sum + dot(x, w), 7)));
}

fn f16_sums<const CHUNK: usize>(x: &[f64], w: &[f64], n: usize, out: &mut [f32]) {
    let chunks = |v: &[f64]| v.chunks(CHUNK).map(<[f64]>::to_vec).collect::<Vec<_>>();
    product(x, w, n, out, |x, w| {
        chunks(x).iter().zip(chunks(w)).fold(f16::ZERO, |sum, (x, w)| f16::from_f64(sum.to_f64() + dot(x, &w))).to_f64()
    });
}

/// A capture of the clean engine, on weights that both sides take as they are.
struct Recorded {
    folder: Folder,
    capture: PathBuf,
}

impl Recorded {
    fn new() -> Self {
        let folder = folder_with(&exact());
        folder.record("mine", "-n 0");
        let capture = folder.join("mine/capture.npz");
        Self { folder, capture }
    }

    fn change(&self, stage: &str, change: impl Fn(&mut [f32])) {
        npz::tamper(&self.capture, &format!("prefill/{stage}"), change);
    }

    /// The causes of the linear stages, whose operands were left as they were, and the screen.
    fn causes(&self) -> (Vec<(String, Value)>, String) {
        let linear: Vec<&str> = LINEAR.iter().map(|(stage, ..)| *stage).collect();
        let line = format!("--subject capture:mine --reference none --stages {}", linear.join(","));
        let (code, report, text) = self.folder.judged(&line);
        assert_eq!(code, 1, "{text}");
        let findings = report.findings();
        let cause = |f: &Value| (f["stage"].as_str().unwrap().to_owned(), f["cause"].clone());
        (findings.iter().map(cause).collect(), text)
    }
}

/// Among errors everywhere in a product only sums in f16 get that cause, at any size.
#[test]
fn a_dense_error_is_no_sum_in_f16_unless_it_is() {
    let recorded = Recorded::new();
    let model = Model::open(&recorded.folder.join("model.gguf")).unwrap();
    let plants: [[(Plant, bool); 7]; 2] = [
        [
            (tf32, false),
            (bf16_weights, false),
            (noise, false),
            (swapped_columns, false),
            (f16_sums::<1>, true),
            (f16_output, false),
            (tf32, false),
        ],
        [
            (swapped_columns, false),
            (bf16_sums, false),
            (int4_weights, false),
            (bf16_weights, false),
            (f16_output, false),
            (f16_sums::<16>, true),
            (f16_sums::<4>, true),
        ],
    ];
    let mut wanted = Vec::new();
    for (layer, plants) in plants.iter().enumerate() {
        for ((stage, operand, weight), (plant, sums)) in LINEAR.iter().zip(plants) {
            let weight = format!("blk.{layer}.{weight}.weight");
            let (n, m) = model.extent(&weight);
            let mut w = vec![0f32; n * m];
            for (o, row) in w.chunks_mut(n).enumerate() {
                model.rows(&weight, o, row);
            }
            let wide = |v: Vec<f32>| v.into_iter().map(f64::from).collect::<Vec<f64>>();
            let x = wide(npz::values(&recorded.capture, &format!("prefill/L{layer:02}.{operand}")));
            let w = wide(w);
            let stage = format!("L{layer:02}.{stage}");
            recorded.change(&stage, |out| plant(&x, &w, n, out));
            wanted.push((stage, *sums));
        }
    }
    let (causes, text) = recorded.causes();
    for (stage, sums) in wanted {
        let cause = &causes.iter().find(|(s, _)| *s == stage).unwrap_or_else(|| panic!("{stage}: {text}")).1;
        assert_eq!(cause["kind"] == "rounding", sums, "{stage}: {cause}");
        assert_eq!(cause.is_null(), !sums, "{stage}: {cause}");
    }
}

/// NaN is no value that a fault could reproduce; a weight is not loaded for some rows and for others not; a part that
/// holds right elements is not the part that is wrong.
#[test]
fn a_cause_claims_nothing_that_is_right() {
    let recorded = Recorded::new();
    // 256 wide: heads of 64 in q, 2 of them in k and v.
    recorded.change("L00.q_proj", |x| x[28 * 256..].fill(f32::NAN));
    recorded.change("L00.k_proj", |x| x[5 * 128..9 * 128].fill(0.0));
    recorded.change("L00.v_proj", |x| x[28 * 128..].fill(0.0));
    recorded.change("L00.attn_out", |x| x.fill(f32::INFINITY));
    // Nine of ten elements of a rectangle, and half of a head.
    recorded.change("L00.ffn_up", |x| {
        for (i, v) in x.iter_mut().enumerate().filter(|(i, _)| i % 10 > 0) {
            let (row, column) = (i / 512, i % 512);
            if (8..16).contains(&row) && (32..64).contains(&column) {
                *v += ((i * 31) % 17) as f32 - 8.3;
            }
        }
    });
    recorded.change("L01.q_proj", |x| {
        for row in [8, 15] {
            for (i, v) in x[row * 256..][..32].iter_mut().enumerate() {
                *v += ((i * 31) % 17) as f32 - 8.3;
            }
        }
    });
    let (causes, text) = recorded.causes();
    let cause = |stage: &str| {
        let found = causes.iter().find(|(s, _)| s == stage).unwrap_or_else(|| panic!("{stage}: {text}"));
        found.1["name"].as_str().map(str::to_owned)
    };
    assert_eq!(cause("L00.q_proj"), None);
    assert_eq!(cause("L00.k_proj").as_deref(), Some("zeroed"), "the rows after it are right");
    assert_eq!(cause("L00.v_proj").as_deref(), Some("zeroed@p28.."));
    assert_eq!(cause("L00.attn_out"), None);
    assert_eq!(cause("L00.ffn_up"), None);
    assert_eq!(cause("L01.q_proj"), None);
    // An error as large as this is nothing to tolerate.
    assert!(!text.contains("would pass"), "{text}");
}
