//! A model that is cut over ranks: each rank's part of each stage is judged on its own slice of the weights, and the broken rank
//! is the one that is named.

use qdiff_engine::quant::GgmlType;
use qdiff_synth::Synth;
use qdiff_tests::markdown::root;
use qdiff_tests::{Folder, Told, exact, folder_with, python_path};

/// What a clean run of these ranks says: everything judged, every shard and every partial result among it.
fn clean(folder: &Folder, ranks: &str, more: &str) {
    let said = folder.qdiff(&format!("run -m model.gguf -n 2 --ranks {ranks} --subject cpu --json out.json {more}"));
    let report = folder.json("out.json");
    let code = if more.contains("none") { 3 } else { 0 };
    assert_eq!(said.code, code, "{ranks} {more}: {said}");
    assert!(report.is_whole(), "{ranks}: {said}");
    let count: usize = ranks.split(':').next().unwrap().parse().unwrap();
    let stages = report.stages();
    let named = |name: &str| stages.iter().filter(|s| s["stage"].as_str().unwrap().ends_with(name)).count();
    let layers = report["model"]["layers"].as_u64().unwrap() as usize;
    for name in [".q_proj", ".attn_out_partial", ".ffn_down_partial", ".ffn_down"] {
        assert_eq!(named(name), layers * count, "{ranks} {name}");
    }
    assert!(stages.iter().all(|s| !s["subject"].is_null() && s["origin"] == false), "{ranks}: {said}");
    assert!(report["run"]["ranks"].as_str().unwrap().starts_with(&format!("{count}:heads=")), "{report}");
    assert!(report["run"]["command"].as_str().unwrap().contains(&format!("--ranks {ranks}")), "{report}");
}

/// A model whose weights are cut between blocks of 32 wherever heads are cut.
fn blocks() -> Synth {
    Synth { weight_type: GgmlType::Q8_0, ..Synth::default() }
}

#[test]
fn ranks_in_threads_match() {
    let folder = folder_with(&blocks());
    for (ranks, more) in [("2", ""), ("2:vocab=whole", ""), ("4", ""), ("2", "--reference none"), ("1", "")] {
        clean(&folder, ranks, more);
    }
}

/// Each fault of a rank is an origin at its stage and rank, and nowhere else.
#[test]
fn the_broken_rank_is_named() {
    let folder = folder_with(&blocks());
    for (fault, origin, cause) in [
        ("shard-shifted:by=-1@r1.L01.q_proj", "r1.L01.q_proj", "shard-shifted"),
        ("shard-of-another-rank:rank=0@r1.L00.k_proj", "r1.L00.k_proj", "shard-of-another-rank"),
        ("all-reduce-missing@r0.L01.attn_out", "r0.L01.attn_out", "all-reduce-missing"),
        ("all-reduce-twice@r1.L00.ffn_down", "r1.L00.ffn_down", "all-reduce-twice"),
        ("part-added-twice:rank=0@r1.L01.ffn_down", "r1.L01.ffn_down", "part-added-twice"),
        ("scales-not-cut@r1.L01.ffn_down_partial", "r1.L01.ffn_down_partial", "scales-not-cut"),
        ("logits-stale@r1.logits_shard", "r1.logits_shard", ""),
    ] {
        let line = format!("run -m model.gguf -n 2 --ranks 2 --subject cpu --inject {fault} --json out.json");
        let said = folder.qdiff(&line).exits(1);
        assert!(said.stdout.starts_with(&format!("DIVERGED at {origin}")), "{fault}: {said}");
        let report = folder.json("out.json");
        assert_eq!(report.origins(), [origin], "{fault}: {said}");
        let first = &report["verdict"]["findings"][0];
        assert!(cause.is_empty() || first.to_string().contains(cause), "{fault}: {first:#}");
    }
}

/// A capture of ranks is judged like the run that it was recorded of; with a stage of one rank left out, the segment is judged.
#[test]
fn a_capture_of_ranks_is_judged() {
    let folder = folder_with(&blocks());
    folder.qdiff("record -m model.gguf -n 2 --ranks 2 --out cut").exits(0);
    assert_eq!(folder.json("cut/manifest.json")["schema_version"], 4);
    for reference in ["llama", "capture:cut"] {
        folder.qdiff(&format!("run -m model.gguf --subject capture:cut --reference {reference}")).exits(0);
    }
    folder.qdiff("record -m model.gguf -n 2 --out whole").exits(0);
    folder.qdiff("run -m model.gguf --subject capture:cut --reference capture:whole").exits(0);
    folder.qdiff("record -m model.gguf -n 2 --ranks 2 --inject all-reduce-missing@r1.L00.attn_out --out bad").exits(0);
    let said = folder.qdiff("run -m model.gguf --subject capture:bad").exits(1);
    assert!(said.stdout.starts_with("DIVERGED at r1.L00.attn_out"), "{said}");
    for (line, why) in [
        ("run -m model.gguf --ranks 2 --subject capture:whole", "is a capture of one rank"),
        ("run -m model.gguf --ranks 2 --subject llama", "runs on one rank"),
        ("run -m model.gguf --ranks 2 --subject cpu --sequences 4,12", "--ranks runs one sequence"),
        ("run -m model.gguf --ranks 0 --subject cpu", "number of ranks"),
        ("run -m model.gguf --ranks 2:heads=1+2 --subject cpu", "heads are dealt out as 1+2"),
    ] {
        let said = folder.qdiff(line).exits(2);
        assert!(said.stderr.contains(why), "{line}: {said}");
    }
}

/// An engine of two processes, each of which dumps its own part: qdiff did not write it.
#[test]
fn a_command_of_two_processes_is_judged() {
    let folder = folder_with(&exact());
    let path = python_path();
    let engine = root().join("tests/tap/ranks.py");
    let judged = |bug: &str| {
        let command =
            format!("cmd: python3 {} {{model}} --tokens {{tokens}} --decoded {{decoded}} {bug}", engine.display());
        let line = format!("run -m model.gguf -n 2 --ranks 2 --json out.json --subject '{command}'");
        folder.qdiff_with(&[("PYTHONPATH", &path), ("OPENBLAS_NUM_THREADS", "1")], &line)
    };
    let said = judged("").exits(0);
    assert!(folder.json("out.json").is_whole(), "{said}");
    for (bug, origins) in [
        ("row", &["r1.L01.q_proj"][..]),
        ("twice", &["r1.L01.ffn_down"]),
        ("missing", &["r0.L00.attn_out"]),
        ("stale", &["r0.L01.ffn_down"]),
        ("heads", &["r1.L01.k_proj"]),
        ("order", &["r0.logits"]),
        ("context", &["r1.L01.attn_out_partial"]),
    ] {
        let said = judged(&format!("--bug {bug}")).exits(1);
        assert!(said.stdout.starts_with(&format!("DIVERGED at {}", origins[0])), "{bug}: {said}");
        let report = folder.json("out.json");
        assert_eq!(report.origins(), origins, "{bug}: {said}");
    }
    // The dump must be cut as it is judged.
    let line = format!(
        "run -m model.gguf -n 1 --ranks 2:vocab=whole --subject 'cmd: python3 {} {{model}} --tokens {{tokens}} --decoded {{decoded}}'",
        engine.display()
    );
    let said = folder.qdiff_with(&[("PYTHONPATH", &path)], &line).exits(2);
    assert!(said.stderr.contains("cut otherwise"), "{said}");
}
