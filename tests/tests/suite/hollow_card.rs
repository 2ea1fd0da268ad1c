//! The CUDA engine on a Hopper card that is not there and computes nothing (`tests/emulated/hollow.cpp`): NVRTC compiles the kernels
//! that models of real sizes take, each with the parameters that its launches give, and an H200 would take every launch.

use qdiff_engine::gguf::Gguf;
use qdiff_engine::quant::GgmlType;
use qdiff_tests::card::Card;
use qdiff_tests::empty;
use qdiff_tests::synth::Synth;

/// Models of the widths of Qwen2.5 0.5B, 1.5B and 7B in the formats of their Q4_K_M, of few layers and tokens.
fn of_real_widths() -> [Synth; 3] {
    let types = |all: &[(&str, GgmlType)]| all.iter().map(|(name, ty)| ((*name).to_owned(), *ty)).collect();
    let few = |n_layers| Synth { n_layers, n_vocab: Synth::default().n_vocab, ..Synth::qwen2_5_7b() };
    let more_bits = [
        ("blk.0.attn_v.weight", GgmlType::Q6_K),
        ("blk.0.ffn_down.weight", GgmlType::Q6_K),
        ("output.weight", GgmlType::Q6_K),
    ];
    let small = [
        ("blk.0.attn_v.weight", GgmlType::Q8_0),
        ("blk.0.ffn_down.weight", GgmlType::Q6_K),
        ("blk.1.ffn_down.weight", GgmlType::Q4_K),
        ("output.weight", GgmlType::Q8_0),
    ];
    let large = Synth { weight_type: GgmlType::Q4_K, overrides: types(&more_bits), ..few(2) };
    [
        Synth {
            n_embd: 896,
            n_heads: 14,
            n_kv_heads: 2,
            head_dim: 64,
            n_ff: 4864,
            weight_type: GgmlType::Q5_0,
            ..few(2)
        },
        Synth { n_embd: 1536, n_heads: 12, n_kv_heads: 2, n_ff: 8960, ..large.clone() },
        Synth { n_layers: 1, ..large },
    ]
    .map(|model| if model.n_embd == 896 { Synth { overrides: types(&small), ..model } } else { model })
}

#[test]
fn launches_for_models_of_real_sizes_fit_hopper() {
    let (card, like) = (Card::hollow(), Gguf::from_bytes(Synth::default().to_bytes()).unwrap());
    for model in of_real_widths() {
        let folder = empty();
        model.write_like(&like, 1, &folder, "model").unwrap();
        for (no, way) in ["cuda", "cuda-fast", "cuda-fast --gemm cublas", "cuda-fast --kv-type f16"].iter().enumerate()
        {
            let line = format!("record -m model.gguf --runner {way} -n 2 --out {no}");
            let said = folder.qdiff_on(&card, &line).exits(0);
            assert!(said.stdout.contains("(hollow card"), "{line}: {said}");
        }
        let several = "record -m model.gguf --runner cuda-fast --sequences 11+3,1+1 --length 16 --out several";
        folder.qdiff_on(&card, several).exits(0);
    }
}
