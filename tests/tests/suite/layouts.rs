//! Layouts of engines: what a map makes stages of. Each is made of a recorded capture and judged as that is; with one
//! value changed, the stage it belongs to is found.

use qdiff_tests::containers::{Array, arrays, npy, write_npy, write_safetensors};
use qdiff_tests::{Folder, folder, headline};
use std::collections::BTreeMap;

/// Heads, heads of keys and values, width of a head of the small model.
const H: usize = 4;
const G: usize = 2;
const D: usize = 64;

/// The arrays of a step, by stage; what a layout leaves of them stays as it is.
type Step = BTreeMap<String, Array>;

fn array(name: &str, shape: &[usize], values: Vec<f32>) -> Array {
    assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
    Array { name: name.to_owned(), shape: shape.to_vec(), values }
}

/// Row `r` of an array of any rank.
fn row(x: &Array, r: usize) -> &[f32] {
    let width = x.values.len() / x.shape[0];
    &x.values[r * width..][..width]
}

/// Rows put together by `of`, one for each of `from`'s first axis.
fn rows(from: &Array, of: impl Fn(usize) -> Vec<f32>) -> Vec<f32> {
    (0..from.shape[0]).flat_map(of).collect()
}

/// What a layout makes of a step.
type Layout = fn(&mut Step, usize);

/// A layout: its map, what makes it, and an array and element whose change shows at a stage.
struct Case {
    map: &'static str,
    layout: Layout,
    changed: (&'static str, usize),
    stage: &'static str,
}

/// A recorded capture in this layout, in the folder `mine`, with one element changed where it says which.
fn made(folder: &Folder, case: &Case, change: bool) {
    let _ = std::fs::remove_dir_all(folder.join("mine"));
    let mut steps: BTreeMap<String, Step> = BTreeMap::new();
    for Array { name, shape, values } in arrays(&folder.join("recorded")) {
        let (step, stage) = name.split_once('/').unwrap();
        let array = Array { name: stage.to_owned(), shape, values };
        steps.entry(step.to_owned()).or_default().insert(stage.to_owned(), array);
    }
    let mut all = Vec::new();
    for (label, step) in &mut steps {
        (case.layout)(step, usize::from(label != "prefill"));
        for (name, array) in std::mem::take(step) {
            all.push(Array { name: format!("{label}/{name}"), ..array });
        }
    }
    if change {
        let found = all.iter_mut().find(|a| a.name == case.changed.0).unwrap();
        found.values[case.changed.1] += 3.0;
    }
    write_safetensors(&folder.join("mine"), &all);
    folder.write("mine/manifest.json", folder.text("recorded/manifest.json"));
    folder.write("map", case.map);
}

fn is_read(case: &Case) {
    let folder = folder();
    folder.record("recorded", "-n 1 --tokens 3,1,4,1,5,9,2");
    made(&folder, case, false);
    let judge = "--subject capture:mine --map map";
    let (code, _, text) = folder.judged(judge);
    assert_eq!(code, 0, "{}\n{text}", case.map);
    assert!(text.starts_with("MATCH"), "{text}");
    made(&folder, case, true);
    let (code, _, text) = folder.judged(judge);
    assert_eq!(code, 1, "{}\n{text}", case.map);
    assert!(headline(&text).contains(case.stage), "{}: {}", case.stage, headline(&text));
}

/// Puts `array` in the place of others.
fn replace(step: &mut Step, taken: &[String], new: Vec<Array>) {
    for stage in taken {
        step.remove(stage).unwrap();
    }
    step.extend(new.into_iter().map(|a| (a.name.clone(), a)));
}

fn names<const N: usize>(layer: usize, stages: [&str; N]) -> [String; N] {
    stages.map(|s| format!("L{layer:02}.{s}"))
}

#[test]
fn a_fused_projection_is_sliced() {
    is_read(&Case {
        map: "qkv.{L}[:, 0:256] = q_biased\nqkv.{L}[:, 256:384] = k_biased\nqkv.{L}[..., -128:] = v_biased\n",
        layout: |step, _| {
            for layer in 0..2 {
                let taken = names(layer, ["q_biased", "k_biased", "v_biased"]);
                let [q, k, v] = taken.each_ref().map(|n| &step[n]);
                let values = rows(q, |r| [row(q, r), row(k, r), row(v, r)].concat());
                let new = array(&format!("qkv.{layer}"), &[q.shape[0], 512], values);
                replace(step, &taken, vec![new]);
            }
        },
        changed: ("prefill/qkv.1", 2 * 512 + 300),
        stage: "L01.k_biased, position 2",
    });
}

/// As Megatron stores them: for each group its queries, then its key and value.
#[test]
fn heads_that_are_interleaved_by_group_are_taken_apart() {
    is_read(&Case {
        map: "qkv.{L}.reshape(-1, 2, 4, 64)[:, :, 0:2] = q_biased\nqkv.{L}.reshape(-1, 2, 4, 64)[:, :, 2] = k_biased\n\
              qkv.{L}.reshape(-1, 2, 4, 64)[:, :, 3] = v_biased\n",
        layout: |step, _| {
            for layer in 0..2 {
                let taken = names(layer, ["q_biased", "k_biased", "v_biased"]);
                let [q, k, v] = taken.each_ref().map(|n| &step[n]);
                let per = H / G * D;
                let group = |r: usize, g: usize| {
                    [&row(q, r)[g * per..][..per], &row(k, r)[g * D..][..D], &row(v, r)[g * D..][..D]].concat()
                };
                let values = rows(q, |r| (0..G).flat_map(|g| group(r, g)).collect());
                let new = array(&format!("qkv.{layer}"), &[q.shape[0], 512], values);
                replace(step, &taken, vec![new]);
            }
        },
        // The value of the second group.
        changed: ("step1/qkv.0", 256 + 3 * 64 + 5),
        stage: "L00.v_biased, position 7, at decode step 1",
    });
}

#[test]
fn gate_and_up_stand_alternately() {
    is_read(&Case {
        map: "gate_up.{L}[:, ::2] = ffn_gate\ngate_up.{L}[:, 1::2] = ffn_up\n",
        layout: |step, _| {
            for layer in 0..2 {
                let taken = names(layer, ["ffn_gate", "ffn_up"]);
                let [gate, up] = taken.each_ref().map(|n| &step[n]);
                let values = gate.values.iter().zip(&up.values).flat_map(|(g, u)| [*g, *u]).collect();
                let new = array(&format!("gate_up.{layer}"), &[gate.shape[0], 1024], values);
                replace(step, &taken, vec![new]);
            }
        },
        changed: ("prefill/gate_up.1", 1024 + 7),
        stage: "L01.ffn_up, position 1",
    });
}

/// Two ranks: heads and columns are split, the norm is the same on both, sums are not yet reduced.
#[test]
fn ranks_are_put_together() {
    is_read(&Case {
        map: "rank{0..1}/gate.{L} = ffn_gate : join 1\nrank{0..1}/q.{L} = q_rope : join 0; 1,0,2\n\
              rank{0,1}/norm.{L} = attn_norm : same\nrank{0..1}/o.{L} = attn_out : sum\n",
        layout: |step, _| {
            for layer in 0..2 {
                let taken = names(layer, ["ffn_gate", "q_rope", "attn_norm", "attn_out"]);
                let [gate, q, norm, out] = taken.each_ref().map(|n| &step[n]);
                let tokens = gate.shape[0];
                let mut new = Vec::new();
                for rank in 0..2 {
                    let name = |of: &str| format!("rank{rank}/{of}.{layer}");
                    let half = rows(gate, |r| row(gate, r)[rank * 256..][..256].to_vec());
                    new.push(array(&name("gate"), &[tokens, 256], half));
                    // [heads, tokens, head_dim]
                    let heads = rank * 2..rank * 2 + 2;
                    let q = heads.flat_map(|h| (0..tokens).flat_map(move |r| row(q, r)[h * D..][..D].to_vec()));
                    new.push(array(&name("q"), &[2, tokens, D], q.collect()));
                    new.push(array(&name("norm"), &norm.shape, norm.values.clone()));
                    // Both parts are exact, and so is their sum.
                    let part = |v: &f32| if rank == 0 { 0.75 * v } else { v - 0.75 * v };
                    new.push(array(&name("o"), &out.shape, out.values.iter().map(part).collect()));
                }
                replace(step, &taken, new);
            }
        },
        changed: ("prefill/rank1/q.0", 3 * D),
        stage: "L00.q_rope, position 3",
    });
}

/// The third of four sequences, padded on the left to the longest.
#[test]
fn a_sequence_of_a_padded_batch_is_taken() {
    is_read(&Case {
        map: "x.{L}[2, -{T}:] = layer_out\nk.{L}[2, :, -{N}:] = k_cache : 1,0,2\nw.{L}[2, :, -{T}:, -{N}:] = attn_weights\n\
              logits[2, -1:] = logits\n",
        layout: |step, decode| {
            let pad = 5 * (1 - decode);
            for layer in 0..2 {
                let taken = names(layer, ["layer_out", "k_cache", "attn_weights"]);
                let [x, k, w] = taken.each_ref().map(|n| &step[n]);
                let (tokens, keys) = (x.shape[0], k.shape[0]);
                let mut batch = vec![9.0; 4 * (tokens + pad) * 256];
                batch[(2 * (tokens + pad) + pad) * 256..][..tokens * 256].copy_from_slice(&x.values);
                // The cache keeps the padding.
                let cells = keys + 5;
                let mut cache = vec![9.0; 4 * G * cells * D];
                for (g, r) in (0..G).flat_map(|g| (0..keys).map(move |r| (g, r))) {
                    cache[((2 * G + g) * cells + 5 + r) * D..][..D].copy_from_slice(&row(k, r)[g * D..][..D]);
                }
                let (high, wide) = (tokens + pad, keys + 5);
                let mut weights = vec![9.0; 4 * H * high * wide];
                for (h, r) in (0..H).flat_map(|h| (0..tokens).map(move |r| (h, r))) {
                    let to = ((2 * H + h) * high + pad + r) * wide + 5;
                    weights[to..][..keys].copy_from_slice(&w.values[(h * tokens + r) * keys..][..keys]);
                }
                let new = vec![
                    array(&format!("x.{layer}"), &[4, tokens + pad, 256], batch),
                    array(&format!("k.{layer}"), &[4, G, cells, D], cache),
                    array(&format!("w.{layer}"), &[4, H, high, wide], weights),
                ];
                replace(step, &taken, new);
            }
            // Only of the last token.
            let x = &step["logits"];
            let (tokens, last) = (x.shape[0], row(x, x.shape[0] - 1).to_vec());
            let mut batch = vec![9.0; 4 * tokens * 512];
            batch[(3 * tokens - 1) * 512..][..512].copy_from_slice(&last);
            replace(step, &["logits".to_owned()], vec![array("logits", &[4, tokens, 512], batch)]);
        },
        // Row 2 of the sequence, after 5 rows of padding.
        changed: ("prefill/x.0", ((2 * 12) + 5 + 2) * 256),
        stage: "L00.layer_out, position 2",
    });
}

/// Sequences one after the other, as `cu_seqlens` says; caches in blocks of 4 rows, as a table says.
fn packed(step: &mut Step, decode: usize) {
    let tokens = step["embed"].shape[0];
    let begin = [0, 3 - 2 * decode, 3 - 2 * decode + tokens];
    let ends = begin.iter().map(|b| *b as f32).chain([20.0]).collect();
    step.insert("cu_seqlens".into(), array("cu_seqlens", &[4], ends));
    // Blocks 5, 0 and 3; what follows is no block, or one of somebody else.
    let table: Vec<f32> = [7, 7, 7, 7, 7, 5, 0, 3, -1, 99].map(|b| b as f32).to_vec();
    step.insert("tables".into(), array("tables", &[2, 5], table));
    for layer in 0..2 {
        let taken = names(layer, ["attn_residual", "v_cache"]);
        let [x, v] = taken.each_ref().map(|n| &step[n]);
        let mut all = vec![9.0; 20 * 256];
        all[begin[1] * 256..][..x.values.len()].copy_from_slice(&x.values);
        let mut cache = vec![9.0; 2 * 8 * 4 * G * D];
        for r in 0..v.shape[0] {
            let cell = 32 + [5, 0, 3][r / 4] * 4 + r % 4;
            cache[cell * G * D..][..G * D].copy_from_slice(row(v, r));
        }
        let new = vec![
            array(&format!("x.{layer}"), &[20, 256], all),
            // As vLLM has it: keys, then values.
            array(&format!("kv.{layer}"), &[2, 8, 4, G, D], cache),
        ];
        replace(step, &taken, new);
    }
}

const PACKED: &str = "x.{L}[cu_seqlens[1]:cu_seqlens[2]] = attn_residual\n\
                      kv.{L}[1][tables[1]].reshape(-1, 2, 64)[:{N}] = v_cache\n";

#[test]
fn packed_sequences_and_paged_caches_are_found_by_their_tables() {
    is_read(&Case {
        map: PACKED,
        layout: packed,
        // Cell 2 of block 0, which is the second: row 6.
        changed: ("prefill/kv.1", (32 + 2) * G * D + 1),
        stage: "L01.v_cache",
    });
    is_read(&Case { map: PACKED, layout: packed, changed: ("step1/x.0", 256), stage: "L00.attn_residual, position 7" });
}

/// Tables of whole numbers, as numpy writes them.
#[test]
fn tables_may_be_integers() {
    let folder = folder();
    folder.record("recorded", "-n 0 --tokens 3,1,4,1 --stages embed,layer_out,logits");
    let mut all = arrays(&folder.join("recorded"));
    let embed = all.iter().position(|a| a.name == "prefill/embed").unwrap();
    let embed = all.remove(embed);
    write_npy(&folder.join("mine"), &all);
    folder.write("mine/manifest.json", folder.text("recorded/manifest.json"));
    let cells: Vec<usize> = vec![5, 0, 3, 2];
    let mut pool = vec![9f32; 6 * 256];
    cells.iter().enumerate().for_each(|(r, cell)| pool[cell * 256..][..256].copy_from_slice(row(&embed, r)));
    let pool = array("pool", &[6, 256], pool);
    folder.write("mine/prefill/pool.npy", npy("<f4", "False", &pool.shape, &pool.bytes()));
    folder.write("map", "pool[slots[:{T}]] = embed");
    let wide = |size: usize, big: bool| -> Vec<u8> {
        let entry = |c: &i64| match (size, big) {
            (4, true) => (*c as i32).to_be_bytes().to_vec(),
            (4, false) => (*c as i32).to_le_bytes().to_vec(),
            _ => c.to_le_bytes().to_vec(),
        };
        cells.iter().map(|c| *c as i64).chain([-1]).collect::<Vec<_>>().iter().flat_map(entry).collect()
    };
    for (descr, size, big) in [("<i4", 4, false), (">i4", 4, true), ("<i8", 8, false)] {
        folder.write("mine/prefill/slots.npy", npy(descr, "False", &[5], &wide(size, big)));
        let (code, _, text) = folder.judged("--subject capture:mine --map map");
        assert_eq!(code, 0, "{descr}: {text}");
    }
    // What is no table, no entry, or not there.
    let judge = "run -m model.gguf --subject capture:mine --map map";
    folder.write("map", "pool[slots[1:]] = embed");
    folder.refuses(judge, &["line 1 of the map, `pool[slots[1:]] = embed`", "is no index of it"]);
    folder.write("map", "pool[slots] = embed");
    folder.refuses(
        judge,
        &["has shape [5, 256], of what the map takes", "check the exporter: axis 0 has 5 entries for 4"],
    );
    folder.write("map", "pool[absent[:{T}]] = embed");
    folder.refuses(judge, &["the table `absent`, which prefill does not have"]);
    folder.write("mine/prefill/slots.npy", npy("<f4", "False", &[5], &[0.5f32; 5].map(f32::to_le_bytes).concat()));
    folder.write("map", "pool[slots[:{T}]] = embed");
    folder.refuses(judge, &["prefill/slots", "no whole number"]);
}

/// What does not fit is refused with the line, the array and a remedy.
#[test]
fn what_a_map_may_not_say_is_refused() {
    let folder = folder();
    folder.record("recorded", "-n 0 --tokens 3,1,4 --stages embed,layer_out,logits");
    let mut all = arrays(&folder.join("recorded"));
    for a in &mut all {
        if a.name == "prefill/embed" {
            a.name = "prefill/rank0/x".to_owned();
        }
    }
    write_safetensors(&folder.join("mine"), &all);
    folder.write("mine/manifest.json", folder.text("recorded/manifest.json"));
    for (map, words) in [
        (
            "\nrank0/x[0:2] = embed",
            vec!["`prefill/rank0/x`, line 2 of the map", "has shape [2, 256], and the stage has [3, 256]"],
        ),
        ("rank0/x[0:9] = embed", vec!["the map takes 0:9 of 3"]),
        ("rank0/x.reshape(-1, 100) = embed", vec!["which has no shape (-1, 100)"]),
        ("rank{0..1}/x = embed : join 1", vec!["embed of prefill", "`rank0/x` is there, and `rank1/x` is not"]),
        ("rank{0..3}/x = embed : sum", vec!["map line 1", "leave the stage out"]),
        ("rank0/x[[0, 1]] = embed", vec!["does not begin with the name"]),
    ] {
        folder.write("map", map);
        folder.refuses("run -m model.gguf --subject capture:mine --map map", &words);
    }
}
