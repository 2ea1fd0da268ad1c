//! Every CUDA kernel compiles, on a machine without a GPU, for the cards of
//! four generations, with the parameters that launches give it. `./scripts/test` brings NVRTC along.

use qdiff_engine::cuda::compile::{Source, cached, compile};
use qdiff_engine::cuda::kernel::Kernel;
use qdiff_engine::cuda::kernels::File;
use qdiff_engine::cuda::operand::{Part, cache_tile, product_of, tiles_at_once};
use qdiff_engine::cuda::tiles::most_held;
use qdiff_engine::cuda::wide::image_of;
use qdiff_engine::cuda::{CudaError, read_by_kernels};
use qdiff_engine::quant::{CACHES, GgmlType};

/// What a file's kernel is made for: all formats and types; what is made per model, for the shapes of Qwen2.5-0.5B
/// (Q4_K_M), Qwen2.5-7B and Qwen3-0.6B.
fn arguments(file: File) -> Vec<String> {
    let listed = |all: &[&str]| all.iter().map(|&a| a.to_owned()).collect();
    match file {
        File::Embed | File::Linear | File::ExpertLinear | File::ExpertRows | File::Dequantise | File::EmbedToken => {
            read_by_kernels().map(|ty| ty.to_string()).collect()
        }
        File::Unary => listed(&["Sigmoid", "Silu"]),
        File::Curve => listed(&["SiluOfShare", "TwiceSigmoidOfShare", "SigmoidOfRoot"]),
        // Warps that make whole tiles, warps that share one, and warps with a ring each.
        File::LmHead => {
            let alone = read_by_kernels()
                .flat_map(|ty| [(true, 1536), (false, 0)].map(|(own, n)| format!("{ty}, {own}, 0, {n}")));
            alone.chain(in_rings().map(|(ty, stages)| format!("{ty}, false, {stages}, 3584"))).collect()
        }
        // With as much unpacked ahead as a kind of format may have, with nothing, and with rings.
        File::HalfLinear => {
            let held = |ty: GgmlType| [most_held(ty), 0].map(|held| format!("{ty}, {held}, 0, 4864, 80"));
            let rings = in_rings().map(|(ty, stages)| format!("{ty}, 0, {stages}, 18944, 296"));
            read_by_kernels().flat_map(held).chain(rings).collect()
        }
        File::Router => listed(&["F32, 2", "F32, 4", "F16, 2", "Q8_0, 2", "Q6_K, 1"]),
        File::ExpertAct => {
            let rings = in_rings().map(|(ty, stages)| format!("{ty}, {ty}, {stages}"));
            read_by_kernels().map(|ty| format!("{ty}, {ty}, 0")).chain(rings).collect()
        }
        File::ExpertDown => {
            let rings = in_rings().map(|(ty, stages)| format!("{ty}, {stages}"));
            read_by_kernels().map(|ty| format!("{ty}, 0")).chain(rings).collect()
        }
        File::MixerIn => {
            let rings = in_rings().map(|(ty, n)| format!("{ty}, {ty}, {ty}, {ty}, {n}, {n}, {n}, {n}"));
            let plain = read_by_kernels().map(|ty| format!("{ty}, {ty}, {ty}, {ty}, 0, 0, 0, 0"));
            rings.chain(plain).chain(["Q5_K, Q4_K, Q8_0, F32, 3, 3, 0, 0".to_owned()]).collect()
        }
        File::MixerOut => {
            let rings = in_rings().flat_map(|(ty, n)| [0, 128].map(|d| format!("{ty}, {d}, {n}")));
            rings.chain(read_by_kernels().flat_map(|ty| [0, 16, 64].map(|d| format!("{ty}, {d}, 0")))).collect()
        }
        File::DeltaStep => listed(&["16", "32", "64", "128"]),
        File::GatedHeads => listed(&["KvF32, 32", "KvF16, 64", "KvF32, 128", "KvF16, 256"]),
        File::GatedContext => listed(&["32", "64", "128", "256"]),
        File::AttnOut => {
            let of = |(ty, d)| format!("{ty}, {d}, {}, 0, 1536", most_held(ty) / 2);
            let held = [(GgmlType::Q5_0, 64), (GgmlType::Q4_K, 128), (GgmlType::F16, 128)].map(of);
            let rings = in_rings().map(|(ty, stages)| format!("{ty}, 128, 0, {stages}, 3584"));
            tapped_or_not(held.into_iter().chain(rings))
        }
        File::CacheRows => listed(&["KvF32", "KvF16"]),
        File::KvCache | File::KvRead | File::AttnScores | File::AttnContext | File::BlockScores => {
            CACHES.map(|(_, format, _)| format!("Kv{format:?}")).to_vec()
        }
        File::AttnQkv => {
            let of = |(formats, rest): ([GgmlType; 3], &str)| {
                let [q, k, v] = formats;
                format!("{q}, {k}, {v}, {rest}, {}, {}, {}, 1536", most_held(q), most_held(k), most_held(v))
            };
            let mixed = [GgmlType::Q5_0, GgmlType::Q5_0, GgmlType::Q8_0];
            let minima = [GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q6_K];
            let held = [(mixed, "KvF32, 64, 1, false"), (minima, "KvF16, 128, 1, false")].map(of);
            let [q, k, v] = minima;
            let rings = [2, 4].map(|n| format!("{q}, {k}, {v}, KvF16, 128, 0, false, {n}, {n}, {n}, 3584"));
            let normed = ["F16, F16, F16, KvF32, 128, 4, true, 0, 0, 0, 0".to_owned()];
            tapped_or_not(held.into_iter().chain(rings).chain(normed))
        }
        File::AttentionHalves => tapped_or_not(listed(&["64, 7, 6, 2", "128, 8, 3, 8", "32, 1, 12, 1"])),
        File::Attention => {
            let alone = tapped_or_not(listed(&[
                "KvF32, 64, 7, 64, false", "KvF16, 128, 7, 64, true", "KvF32, 128, 2, 32, false",
                "KvF16, 256, 4, 64, false",
            ]));
            // And of several sequences.
            let batches = alone.iter().map(|arguments| format!("{arguments}, true")).collect();
            [alone, batches].concat()
        }
        File::Products => {
            let alone = read_by_kernels().map(|ty| vec![ty]);
            let mixed = [GgmlType::Q5_0, GgmlType::Q5_0, GgmlType::Q8_0].to_vec();
            let minima = [GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q6_K].to_vec();
            let brain = [GgmlType::F16, GgmlType::BF16].to_vec();
            // For a card with much shared memory, and for one with little.
            let large = alone.chain([mixed, minima.clone(), brain]).map(|formats| product_of(&formats, 222 << 10).0);
            large.chain([vec![GgmlType::BF16], minima].map(|formats| product_of(&formats, 94 << 10).0)).collect()
        }
        File::WideProducts => {
            let of = |formats: [GgmlType; 3]| formats.map(image_of).join(", ");
            let alone = [GgmlType::Q5_0, GgmlType::Q6_K, GgmlType::Q4_K, GgmlType::Q4_1].map(|ty| of([ty; 3]));
            alone.into_iter().chain([of([GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q6_K])]).collect()
        }
        File::Widen => {
            let formats = read_by_kernels().filter(|&ty| Part::of(&[ty]) == Part::Half);
            formats.map(|ty| ty.to_string()).collect()
        }
        File::NormRows | File::PrepareRows | File::ActRows => listed(&["HalfPart", "BrainPart"]),
        File::JoinShares => listed(&["64", "128", "32"]),
        File::HeadRows => listed(&["KvF32, 64", "KvF16, 128", "KvF32, 32"]),
        File::CacheTiles => {
            let of = |(kv, d)| format!("{kv}, {d}, {}", cache_tile(d).0);
            [("KvF32", 64), ("KvF16", 128), ("KvF32", 32)].map(of).to_vec()
        }
        File::AttentionRows => {
            // For a card with much shared memory, and for one with little.
            let of = |(d, tapped, kib): (usize, bool, usize)| {
                format!("{d}, {tapped}, {}, {}", cache_tile(d).1, tiles_at_once(d, kib << 10))
            };
            let much =
                [(64, false), (64, true), (128, false), (128, true), (32, true)].map(|(d, tapped)| (d, tapped, 222));
            much.into_iter().chain([(64, false, 94), (64, true, 94)]).map(of).collect()
        }
        File::WideAttention => {
            let of = |(d, tapped)| format!("{d}, {tapped}, {}", cache_tile(d).1);
            [(64, false), (64, true), (128, false), (128, true)].map(of).to_vec()
        }
        File::FfnAct => {
            let of = |(gate, up, tiles, held, n): (GgmlType, GgmlType, usize, usize, usize)| {
                format!("{gate}, {up}, {tiles}, {held}, {n}")
            };
            let held = |(ty, tiles, n)| of((ty, ty, tiles, most_held(ty), n));
            let alike = [(GgmlType::Q5_0, 4, 896), (GgmlType::Q4_K, 2, 1536), (GgmlType::F16, 2, 1792)].map(held);
            let rest =
                [of((GgmlType::Q4_K, GgmlType::Q6_K, 2, 0, 0)), of((GgmlType::Q4_K, GgmlType::Q4_K, 1, 1, 1536))];
            let rings = in_rings().map(|(ty, stages)| of((ty, ty, 0, stages, 3584)));
            tapped_or_not(alike.into_iter().chain(rest).chain(rings))
        }
        _ => listed(&[""]),
    }
}

/// Each with taps and without.
fn tapped_or_not(all: impl IntoIterator<Item = String>) -> Vec<String> {
    all.into_iter().flat_map(|arguments| [false, true].map(|tapped| format!("{arguments}, {tapped}"))).collect()
}

/// Formats whose blocks of 256 weights warps bring through rings, with stages of a ring.
fn in_rings() -> impl Iterator<Item = (GgmlType, usize)> {
    [(GgmlType::Q4_K, 2), (GgmlType::Q4_K, 4), (GgmlType::Q6_K, 3)].into_iter()
}

/// Bytes that a thread may keep in local memory: what two blocks of a multiprocessor's registers leave over of the
/// attention of many heads, touched a few times a tile; and of the large tiles of a prefill.
fn most_spilled(file: File) -> usize {
    if matches!(file, File::Products | File::AttentionRows) { 320 } else { 64 }
}

/// The compiler's words and machine code come from the cache where the same compiler has met the same text before, as
/// Cargo keeps what it has compiled.
fn all_kernels_compile(arch: &str) {
    for &file in File::ALL {
        let kernels: Vec<Kernel> = arguments(file).into_iter().map(|arguments| Kernel::new(file, arguments)).collect();
        let source = Source::new(&kernels[0], &kernels);
        let compiled = cached(&source, arch).unwrap_or_else(|e| panic!("{e}"));
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} for {arch} is no cubin", source.name);
        assert_eq!(compiled.names.len(), kernels.len(), "{} for {arch}", source.name);
        for line in compiled.log.lines().filter(|l| l.contains("registers") || l.contains("spill")) {
            println!("{} {arch}: {}", source.name, line.trim());
            let spilled =
                line.split(", ").find_map(|part| part.strip_suffix(" bytes spill stores")?.parse::<usize>().ok());
            assert!(spilled.unwrap_or(0) <= most_spilled(file), "{} spills for {arch}: {line}", source.name);
        }
        assert!(compiled.log.contains("registers"), "ptxas said nothing of {}: {}", source.name, compiled.log);
    }
}

#[test]
fn all_kernels_compile_for_ampere() {
    all_kernels_compile("sm_80");
}

#[test]
fn all_kernels_compile_for_ada() {
    all_kernels_compile("sm_89");
}

#[test]
fn all_kernels_compile_for_hopper() {
    all_kernels_compile("sm_90a");
}

#[test]
fn all_kernels_compile_for_blackwell() {
    all_kernels_compile("sm_100");
}

#[test]
fn a_kernel_that_is_wrong_is_named_with_the_compilers_words() {
    let source = |text: &str| Source { name: "broken", text: text.to_owned(), kernels: vec!["broken".to_owned()] };
    let undeclared = "__global__ void broken() { no_such_thing(); }";
    // As the checks of a kernel's parameters.
    let misplaced = "struct P { int a; float b; };\n__global__ void broken(P p) {}\n\
                     static_assert(__INTADDR__(&((P *)0)->b) == 8, \"P::b is f32 at 8 in Rust\");";
    for (text, word) in [(undeclared, "no_such_thing"), (misplaced, "P::b is f32 at 8 in Rust")] {
        match compile(&source(text), "sm_90a") {
            Err(CudaError::Compile { name, log, .. }) => {
                assert_eq!(name, "broken");
                assert!(log.contains(word), "{log}");
            }
            other => panic!("{other:?}"),
        }
    }
}
