//! Captures in every container: the same arrays get the same verdict in each; what is no container is
//! refused; what a killed run left is judged up to its last whole step.

use qdiff::capture::{Names, Shapes, Store, container};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{ARCHITECTURES, Graph, Node, StageId, skeleton};
use qdiff_engine::ops::Anatomy;
use qdiff_tests::containers::{arrays, npy, safetensors, write_npy, write_raw, write_safetensors};
use qdiff_tests::{Folder, empty, folder};
use serde_json::{Value, json};
use std::path::Path;

/// A capture with a fault at a stage, in all containers, and what its verdict is.
fn in_all_containers() -> (Folder, Value) {
    let folder = folder();
    folder.record("npz", "--inject rope-base@L01");
    let (code, report, text) = folder.judged("--subject capture:npz");
    assert_eq!(code, 1, "{text}");
    let all = arrays(&folder.join("npz"));
    write_npy(&folder.join("npy"), &all);
    write_safetensors(&folder.join("safetensors"), &all);
    write_raw(&folder.join("raw"), &all, |step| json!({"end": step}));
    for name in ["npy", "safetensors", "raw"] {
        folder.write(&format!("{name}/manifest.json"), folder.text("npz/manifest.json"));
    }
    let manifest = folder.json("npz/manifest.json");
    let tokens = manifest["tokens"].as_array().unwrap();
    write_raw(&folder.join("alone"), &all, |step| match step {
        0 => json!({"end": 0, "first": 0, "tokens": tokens}),
        n => json!({"end": n, "first": tokens.len() + n - 1, "tokens": [manifest["decoded"][n - 1]]}),
    });
    let head = json!({"schema_version": 3, "engine": "mine", "arithmetic": manifest["arithmetic"]});
    let lines = format!("{head}\n{}", folder.text("alone/capture.jsonl"));
    folder.write("alone/capture.jsonl", lines);
    (folder, report)
}

#[test]
fn every_container_gets_the_verdict_of_the_npz() {
    let (folder, npz) = in_all_containers();
    for name in ["npy", "safetensors", "raw", "alone"] {
        let (code, report, text) = folder.judged(&format!("--subject capture:{name}"));
        assert_eq!(code, 1, "{text}");
        assert_eq!(report["verdict"]["findings"], npz["verdict"]["findings"], "{name}: {text}");
        let rows = |report: &Value| report["verdict"]["coverage"].clone();
        assert_eq!(rows(&report), rows(&npz), "{name}: {text}");
        // Without a model too.
        let said = folder.qdiff(&format!("compare {name} npz")).exits(3);
        assert!(said.stdout.starts_with("INCOMPLETE: without the model"), "{said}");
    }
    // Nothing says that these are all of its steps.
    let name = "mine (recorded, without a closing line: later steps may be missing)";
    assert_eq!(folder.judged("--subject capture:alone").1["subject"]["name"], name);
}

/// A run that was killed: whole steps are judged, the rest is reported, and what the manifest promised is missing.
#[test]
fn what_a_killed_run_left_is_judged_up_to_its_last_whole_step() {
    let folder = folder();
    folder.record("npz", "");
    let (all, manifest) = (arrays(&folder.join("npz")), folder.json("npz/manifest.json"));
    let end = |step: usize| {
        let first = manifest["tokens"].as_array().unwrap().len();
        match step {
            0 => json!({"end": 0, "first": 0, "tokens": manifest["tokens"]}),
            n => json!({"end": n, "first": first + n - 1, "tokens": [manifest["decoded"][n - 1]]}),
        }
    };
    write_raw(&folder.join("cut"), &all, end);
    let lines = folder.text("cut/capture.jsonl");
    let second = lines.match_indices("\"end\":1").next().unwrap().0;
    let after = second + lines[second..].find('\n').unwrap() + 1;
    folder
        .write("cut/capture.jsonl", format!("{{\"schema_version\":3,\"engine\":\"mine\"}}\n{}", &lines[..after + 300]));
    let (code, report, text) = folder.judged("--subject capture:cut");
    assert_eq!(code, 3, "{text}");
    assert!(
        text.starts_with("INCOMPLETE: no divergence, but the run was cut short, and later steps may be missing"),
        "{text}"
    );
    let name = report["subject"]["name"].as_str().unwrap();
    assert!(name.starts_with("mine, cut short: ") && name.contains("of step 2 without its end"), "{name}");
    assert_eq!(report["run"]["decoded"].as_array().unwrap().len(), 1);
    // Where a manifest promised two steps after the prompt, the second is missing.
    folder.write("cut/manifest.json", manifest.to_string());
    let (code, _, text) = folder.judged("--subject capture:cut");
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("cut short") && text.starts_with("INCOMPLETE"), "{text}");
    std::fs::remove_file(folder.join("cut/manifest.json")).unwrap();

    // Wherever it was killed: the steps that had ended by then, and never an error but where there is none.
    let marks: Vec<usize> = lines.match_indices("\"end\":").map(|(at, _)| at).collect();
    for at in (0..lines.len()).step_by(97).chain(marks.iter().flat_map(|at| at - 2..at + 2)) {
        folder.write("cut/capture.jsonl", &lines[..at]);
        let read = container::manifest(&folder.join("cut"));
        let whole = lines[..at].lines().filter(|l| l.starts_with("{\"end\"") && l.ends_with('}')).count();
        match read {
            Ok(manifest) => {
                assert_eq!(manifest.steps().len(), whole, "at byte {at}");
                assert_eq!(manifest.cut.is_some(), !lines[..at].trim_end().ends_with(&end(whole - 1).to_string()));
            }
            Err(why) => assert!(whole == 0 && why.to_string().contains("no step that is whole"), "at {at}: {why}"),
        }
    }
}

/// A stream that was cut just after a step's end looks whole: a tap's last line says that it is, and without that line the
/// run is no pass.
#[test]
fn a_stream_that_is_cut_at_the_end_of_a_step_is_no_pass() {
    let folder = folder();
    folder.record("npz", "-n 1 --stages embed,layer_out,logits");
    let (all, manifest) = (arrays(&folder.join("npz")), folder.json("npz/manifest.json"));
    let tokens = manifest["tokens"].as_array().unwrap();
    write_raw(&folder.join("dump"), &all, |step| match step {
        0 => json!({"end": 0, "first": 0, "tokens": tokens}),
        _ => json!({"end": 1, "first": tokens.len(), "tokens": manifest["decoded"]}),
    });
    let lines = folder.text("dump/capture.jsonl");
    let head = json!({"schema_version": 3, "engine": "mine", "arithmetic": manifest["arithmetic"],
                      "dump": {"nonce": "a", "started": 1_700_000_000, "pid": 7, "closes": true}});
    let judged = |lines: String| {
        folder.write("dump/capture.jsonl", lines);
        folder.judged("--subject capture:dump")
    };
    let (code, report, text) = judged(format!("{head}\n{lines}{{\"closed\":2}}\n"));
    assert_eq!((code, &report["subject"]["name"]), (0, &json!("mine (recorded 2023-11-14 22:13:20 UTC)")), "{text}");
    let first = lines.find("\"end\":0").map(|at| at + lines[at..].find('\n').unwrap() + 1).unwrap();
    for cut in [&lines[..], &lines[..first]] {
        let (code, report, text) = judged(format!("{head}\n{cut}"));
        assert_eq!(code, 3, "{text}");
        assert!(report["subject"]["name"].as_str().unwrap().contains("cut short: there is no closing line"), "{text}");
        assert!(text.starts_with("INCOMPLETE: no divergence, but the run was cut short"), "{text}");
    }
    // A manifest.json names all steps: then they are counted.
    folder.write("dump/manifest.json", manifest.to_string());
    assert_eq!(judged(format!("{head}\n{lines}")).0, 0);
    assert_eq!(judged(format!("{head}\n{}", &lines[..first])).0, 3);
    std::fs::remove_file(folder.join("dump/manifest.json")).unwrap();
    for (more, why) in [
        ("{\"closed\":3}\n", "3 steps were closed, and 2 ended: lines are missing"),
        ("{\"closed\":2}\n{\"end\":2}\n", "a line after the closing one: two runs wrote to the folder"),
    ] {
        folder.write("dump/capture.jsonl", format!("{head}\n{lines}{more}"));
        folder.refuses("run -m model.gguf --subject capture:dump", &[why]);
    }
}

/// Shape and values of an array, and their format in the file.
type Read = (Vec<usize>, Vec<f32>, DType);

/// A stage of a graph of one layer, with which arrays are read that no engine gave.
struct Reader(Graph, String);

impl Reader {
    fn new() -> Self {
        let graph = skeleton(ARCHITECTURES[0].1, 1);
        let stage = graph.nodes[0].id.to_string();
        Self(graph, stage)
    }

    /// For a stage that gives integers.
    fn of_choices() -> Self {
        let mixture = ARCHITECTURES.iter().map(|(_, build)| skeleton(*build, 1));
        let choice = |node: &Node| matches!(node.op.anatomy(), Anatomy::Decision(_));
        let found = mixture
            .filter_map(|graph| graph.nodes.iter().find(|n| choice(n)).map(|n| n.id.to_string()).map(|id| (graph, id)));
        let (graph, stage) = found.into_iter().next().expect("a choice");
        Self(graph, stage)
    }

    /// The values of the first stage in the first step, and their format in the file.
    fn read(&self, folder: &Path) -> Result<Read, String> {
        let manifest = container::manifest(folder).map_err(|e| format!("{e:#}"))?;
        let names = Names::of(&self.0);
        let store = Store::usual(None);
        let capture = container::read(folder, &manifest, (&self.0, &names), Shapes::Unknown, &store);
        let capture = capture.map_err(|e| format!("{e:#}"))?;
        let stored = &capture.steps[0].stages[&self.1.parse::<StageId>().unwrap()];
        Ok((stored.shape().to_vec(), stored.get().data.clone(), stored.element()))
    }

    /// What the container of this line and these elements is refused with, or its values.
    fn raw(&self, folder: &Folder, line: Value, elements: &[u8]) -> Result<Read, String> {
        let mut line = line;
        for (key, value) in [("step", json!(0)), ("name", json!(self.1)), ("file", json!("a.bin"))] {
            line.as_object_mut().unwrap().entry(key).or_insert(value);
        }
        folder.write("a.bin", elements);
        folder.write("capture.jsonl", format!("{line}\n{{\"end\":0,\"first\":0,\"tokens\":[5,6]}}\n"));
        self.read(folder)
    }
}

#[test]
fn elements_of_every_format_are_read() {
    let (folder, reader) = (empty(), Reader::new());
    let values = [1.0, -2.0, 0.5, 448.0, -0.0, 1.75];
    // None: f64, which is read as f32.
    let written = |element: Option<DType>| -> Vec<u8> {
        let one = |v: f32| -> Vec<u8> {
            let Some(element) = element else { return f64::from(v).to_le_bytes().to_vec() };
            match element {
                DType::F32 => v.to_le_bytes().to_vec(),
                DType::F16 => half::f16::from_f32(v).to_le_bytes().to_vec(),
                DType::Bf16 => half::bf16::from_f32(v).to_le_bytes().to_vec(),
                DType::F8E5m2 => vec![half::f16::from_f32(v).to_le_bytes()[1]],
                DType::F8E4m3 => vec![(0..=u8::MAX).find(|b| decoded(*b).to_bits() == v.to_bits()).unwrap()],
            }
        };
        values.iter().flat_map(|v| one(*v)).collect()
    };
    fn decoded(byte: u8) -> f32 {
        let mut out = [0.0];
        DType::F8E4m3.decode(&[byte], &mut out);
        out[0]
    }
    for own in DType::ALL.map(Some).into_iter().chain([None]) {
        let (bytes, expected) = (written(own), values.to_vec());
        let (element, named) = (own.unwrap_or_default(), own.map_or("f64", DType::name));
        let line = json!({"dtype": named, "shape": [2, 3], "offset": 0});
        assert_eq!(reader.raw(&folder, line, &bytes).unwrap(), (vec![2, 3], expected.clone(), element));
        for name in ["a.bin", "capture.jsonl"] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        let mut manifest = json!({"schema_version": 3, "engine": "mine", "tokens": [5, 6]});
        folder.write("manifest.json", manifest.to_string());
        let header = json!({format!("prefill/{}", reader.1): {
            "dtype": named.to_uppercase(), "shape": [2, 3], "data_offsets": [0, bytes.len()]}});
        folder.write("a.safetensors", safetensors(&header.to_string(), &bytes));
        assert_eq!(reader.read(&folder).unwrap(), (vec![2, 3], expected.clone(), element));
        std::fs::remove_file(folder.join("a.safetensors")).unwrap();
        // numpy has words for three of them; the size identifies bf16 as ml_dtypes writes it, the manifest the rest.
        let name = format!("prefill/{}.npy", reader.1);
        folder.create("prefill");
        let descr: &[&str] = match own {
            Some(DType::F32) => &["<f4"],
            None => &["<f8"],
            Some(DType::F16) => &["<f2"],
            Some(DType::Bf16) => &["<V2", "|V2", "<u2"],
            Some(DType::F8E4m3 | DType::F8E5m2) => &["|V1", "|u1"],
        };
        for descr in descr {
            folder.write(&name, npy(descr, "False", &[2, 3], &bytes));
            manifest["elements"] = json!({});
            if descr.contains(['u', '1']) {
                folder.write("manifest.json", manifest.to_string());
                let why = reader.read(&folder).unwrap_err();
                assert!(why.contains("under `elements` of the manifest"), "{why}");
                manifest["elements"] = json!({"*": element});
            }
            folder.write("manifest.json", manifest.to_string());
            assert_eq!(reader.read(&folder).unwrap(), (vec![2, 3], expected.clone(), element), "{descr}");
        }
        std::fs::remove_dir_all(folder.join("prefill")).unwrap();
        std::fs::remove_file(folder.join("manifest.json")).unwrap();
    }
}

/// Engines keep what was chosen, such as experts, as integers; of any other stage they are refused.
#[test]
fn choices_are_read_as_integers() {
    let (folder, choices, others) = (empty(), Reader::of_choices(), Reader::new());
    let values = [3i64, 0, 127, 64];
    for (descr, size) in [("<i4", 4), ("<i8", 8), ("<u4", 4)] {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()[..size].to_vec()).collect();
        for reader in [&choices, &others] {
            folder.write("manifest.json", json!({"schema_version": 3, "engine": "mine", "tokens": [5, 6]}).to_string());
            folder.create("prefill");
            folder.write(&format!("prefill/{}.npy", reader.1), npy(descr, "False", &[2, 2], &bytes));
            let read = reader.read(&folder);
            if reader.1 == choices.1 {
                assert_eq!(read.unwrap().1, [3.0, 0.0, 127.0, 64.0], "{descr}");
            } else {
                assert!(read.unwrap_err().contains("whole numbers"), "{descr}");
            }
            std::fs::remove_dir_all(folder.join("prefill")).unwrap();
        }
    }
}

/// However the elements lie: transposed, with gaps, with the columns of others between them, repeated, backwards in numpy.
#[test]
fn elements_are_found_wherever_they_lie() {
    let (folder, reader) = (empty(), Reader::new());
    let f32s = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let (rows, width) = (2usize, 40_000usize);
    let value = |r: usize, c: usize| (r * width + c) as f32;
    let expected: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
    for (row, column) in [(width, 1), (1, rows), (width + 7, 1), (3 * width, 3), (1, 3), (100 * width, 100), (1, 70)] {
        let mut stored = vec![f32::NAN; (rows - 1) * row + (width - 1) * column + 1 + 2];
        (0..rows).for_each(|r| (0..width).for_each(|c| stored[2 + r * row + c * column] = value(r, c)));
        let line = json!({"dtype": "f32", "shape": [rows, width], "strides": [row, column], "offset": 8});
        let (shape, data, _) = reader.raw(&folder, line, &f32s(&stored)).unwrap();
        assert!(shape == [rows, width] && data == expected, "strides {row}, {column}");
    }
    let line = json!({"dtype": "f32", "shape": [2, 3], "strides": [0, 1], "offset": 0});
    assert_eq!(reader.raw(&folder, line, &f32s(&[1., 2., 3., 0., 0., 0.])).unwrap().1, [1., 2., 3., 1., 2., 3.]);
    for name in ["a.bin", "capture.jsonl"] {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    folder.create("prefill");
    folder.write("manifest.json", json!({"schema_version": 3, "engine": "mine", "tokens": [5, 6]}).to_string());
    let name = format!("prefill/{}.npy", reader.1);
    folder.write(&name, npy("<f4", "True", &[2, 3], &f32s(&[1., 4., 2., 5., 3., 6.])));
    assert_eq!(reader.read(&folder).unwrap().1, [1., 2., 3., 4., 5., 6.]);
    let big: Vec<u8> = [1f32, 2., 3., 4., 5., 6.].iter().flat_map(|v| v.to_be_bytes()).collect();
    folder.write(&name, npy(">f4", "False", &[2, 3], &big));
    assert_eq!(reader.read(&folder).unwrap().1, [1., 2., 3., 4., 5., 6.]);
}

#[test]
fn raw_containers_that_lie_are_refused() {
    let (folder, reader) = (empty(), Reader::new());
    let huge = u64::MAX;
    for (line, why) in [
        (json!({"dtype": "f32", "shape": [2, 4], "offset": 0}), "not wholly in its file"),
        (json!({"dtype": "f32", "shape": [2, 3], "offset": 4}), "not wholly in its file"),
        (json!({"dtype": "f32", "shape": [2, 3], "offset": huge}), "not wholly in its file"),
        (json!({"dtype": "f32", "shape": [2, 3], "strides": [huge, 1], "offset": 0}), "not wholly in its file"),
        (json!({"dtype": "f32", "shape": [2, 1u64 << 60], "offset": 0}), "not wholly in its file"),
        (
            json!({"dtype": "f32", "shape": [2, 1u64 << 60], "strides": [0, 0], "offset": 0}),
            "more than such a file can hold",
        ),
        (
            json!({"dtype": "f32", "shape": [1u64 << 40, 1u64 << 40, 2], "strides": [0, 0, 0], "offset": 0}),
            "larger than any file",
        ),
        (json!({"dtype": "f32", "shape": [2, 0], "offset": 0}), "is empty"),
        (json!({"dtype": "f32", "shape": [2, 3], "strides": [3], "offset": 0}), "2 axes and 1 strides"),
        (json!({"dtype": "f32", "shape": [2, 3], "strides": [-3, 1], "offset": 0}), "is no line of a capture"),
        (json!({"dtype": "i8", "shape": [2, 3], "offset": 0}), "has dtype i8; write f32, f64"),
        (json!({"dtype": "f64", "shape": [2, 3], "offset": 0}), "not wholly in its file"),
        (json!({"dtype": "f32", "shape": [3, 2], "offset": 0}), "has shape [3, 2], and the stage has [2,"),
        (json!({"dtype": "f32", "shape": [2, 3], "offset": 0, "file": "../a.bin"}), "no file *.bin of its folder"),
        (json!({"dtype": "f32", "shape": [2, 3], "offset": 0, "file": "/etc/passwd"}), "no file *.bin of its folder"),
        (json!({"dtype": "f32", "shape": [2, 3], "offset": 0, "file": "b.bin"}), "cannot read"),
        (json!({"dtype": "f32", "shape": [2, 3], "offset": 0, "name": "nonsense"}), "belongs to no stage"),
        (json!({"dtype": "f32", "shape": [2, 3], "offset": 0, "step": 1}), "before step 0 has ended"),
        (json!({"dtype": "f32", "shape": [2, 3], "offset": 0, "more": 1}), "is no line of a capture"),
        (json!({"trouble": "the disk is full"}), "the engine says of its own arrays: the disk is full"),
    ] {
        let said = match &line {
            trouble if trouble.get("trouble").is_some() => {
                folder.write("capture.jsonl", format!("{trouble}\n"));
                reader.read(&folder)
            }
            _ => reader.raw(&folder, line.clone(), &[0; 24]),
        };
        let said = said.expect_err("it is refused");
        assert!(said.contains(why), "{line}: {said}");
    }
    let place = json!({"step": 0, "name": reader.1, "dtype": "f32", "shape": [2, 3], "offset": 0, "file": "a.bin"});
    let end = |step: usize, first: usize, tokens: &[u32]| json!({"end": step, "first": first, "tokens": tokens});
    for (lines, why) in [
        (vec![place.clone(), place.clone(), end(0, 0, &[5, 6])], "which is there already"),
        (vec![place.clone(), end(0, 0, &[5, 6]), end(0, 0, &[5, 6])], "step 0 ends where step 1 should"),
        (vec![end(0, 0, &[5, 6]), place.clone(), end(1, 2, &[7])], "of step 0, which has ended already"),
        (vec![place.clone(), end(0, 1, &[5, 6])], "begins at position 1, and the steps before it have 0 tokens"),
        (vec![place.clone(), end(0, 0, &[])], "has no tokens, and there is no manifest.json"),
        (vec![json!({"schema_version": 9, "engine": "x"}), place, end(0, 0, &[5, 6])], "schema_version 9"),
        (vec![], "no step that is whole"),
    ] {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        folder.write("capture.jsonl", &text);
        let said = reader.read(&folder).expect_err("it is refused");
        assert!(said.contains(why), "{text}: {said}");
    }
    // Against a manifest.
    folder.write("manifest.json", json!({"schema_version": 3, "engine": "mine", "tokens": [5, 7]}).to_string());
    folder.write("capture.jsonl", format!("{}\n", end(0, 0, &[5, 6])));
    let said = reader.read(&folder).expect_err("it is refused");
    assert!(said.contains("step 0 has other tokens or another position than prefill"), "{said}");
}

#[test]
fn safetensors_and_folders_that_lie_are_refused() {
    let (folder, reader) = (empty(), Reader::new());
    folder.write("manifest.json", json!({"schema_version": 3, "engine": "mine", "tokens": [5, 6]}).to_string());
    let name = format!("prefill/{}", reader.1);
    let refused = |why: &str| {
        let said = reader.read(&folder).expect_err("it is refused");
        assert!(said.contains(why) && said.len() < 1000, "`{why}` is not in: {said}");
    };
    let info = |dtype: &str, shape: Value, offsets: [u64; 2]| {
        json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}).to_string()
    };
    let one = |info: String| safetensors(&format!("{{\"{name}\":{info}}}"), &[0; 24]);
    let twice = format!("{{\"{name}\":{0},\"{name}\":{0}}}", info("F32", json!([2, 3]), [0, 24]));
    for (file, why) in [
        (vec![0; 7], "no safetensors file: ends early"),
        (u64::MAX.to_le_bytes().to_vec(), "are read at most"),
        (1000u64.to_le_bytes().to_vec(), "no safetensors file: ends early"),
        (safetensors("[]", &[]), "an object of arrays"),
        (safetensors(&twice, &[0; 24]), "two arrays have one name"),
        (one(info("F32", json!([2, 3]), [0, 23])), "hold another number of elements"),
        (one(info("F32", json!([2, 3]), [24, 0])), "hold another number of elements"),
        (one(info("F32", json!([2, 3]), [4, 28])), "not wholly in its file"),
        (one(info("F32", json!([2, 3]), [u64::MAX - 24, u64::MAX])), "beyond any file"),
        (one(info("I8", json!([2, 3]), [0, 6])), "has dtype I8"),
        (one(info("F32", json!([3, 2]), [0, 24])), "has shape [3, 2]"),
        (
            safetensors(&format!("{{\"prefill/x\":{}}}", info("F32", json!([2, 3]), [0, 24])), &[0; 24]),
            "belongs to no stage",
        ),
    ] {
        folder.write("a.safetensors", file);
        refused(why);
    }
    folder.write("a.safetensors", one(info("F32", json!([2, 3]), [0, 24])));
    assert_eq!(reader.read(&folder).unwrap().0, [2, 3]);
    folder.write("b.safetensors", one(info("F32", json!([2, 3]), [0, 24])));
    refused("which is there already");
    std::fs::remove_file(folder.join("b.safetensors")).unwrap();
    folder.create("prefill");
    folder.write(&format!("{name}.npy"), npy("<f4", "False", &[2, 3], &[0; 24]));
    refused("holds *.safetensors and STEP/STAGE.npy: it is not clear which of them is the capture");
    std::fs::remove_file(folder.join("a.safetensors")).unwrap();
    assert_eq!(reader.read(&folder).unwrap().0, [2, 3]);
    for (file, why) in [
        (npy("<f4", "False", &[2, 3], &[0; 23]), "ends before its last element"),
        (npy("<f4", "False", &[2, 3], &[0; 25]), "goes on after its last element"),
        (npy("<f4", "False", &[2, 1 << 40], &[0; 24]), "more than such a file can hold"),
        (npy("<i4", "False", &[2, 3], &[0; 24]), "under `elements` of the manifest"),
    ] {
        folder.write(&format!("{name}.npy"), file);
        refused(why);
    }
    std::fs::remove_dir_all(folder.join("prefill")).unwrap();
    refused("holds no arrays");
}
