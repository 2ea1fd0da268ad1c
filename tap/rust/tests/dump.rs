//! The contents of a dump's folder.

use proptest::prelude::*;
use qdiff_tap::{Array, Element, Elements, Rows, Strided, Tap};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// The lines of a dump, and the bytes of its elements.
fn read(folder: &Path) -> (Vec<Value>, Vec<u8>) {
    let lines = std::fs::read_to_string(folder.join("capture.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (lines, std::fs::read(folder.join("capture.bin")).unwrap())
}

fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    elements.iter().for_each(|element| element.put(&mut bytes));
    bytes
}

/// An engine that computes one token after the other appends its rows, and the step has them as one array.
#[test]
fn rows_of_a_step_are_appended() {
    let work = tempfile::tempdir().unwrap();
    let tap = Tap::in_folder(&work.path().join("dump"), "mine", "").unwrap();
    tap.step(0, &[7, 8, 9]).unwrap();
    for token in 0..3u8 {
        let x = f32::from(token);
        tap.append("embed", None, Rows { data: &[x, 10.0 + x], width: 2 }).unwrap();
        tap.append("q_rope", 1, Strided { data: &[x; 4], shape: &[1, 2, 2], strides: &[4, 2, 1] }).unwrap();
    }
    tap.step(3, &[5]).unwrap();
    tap.append("embed", None, Rows { data: &[3f32, 13.0], width: 2 }).unwrap();
    tap.close().unwrap();
    let (lines, elements) = read(&work.path().join("dump"));
    let arrays: Vec<_> = lines
        .iter()
        .filter(|line| line.get("name").is_some())
        .map(|line| (&line["step"], &line["name"], &line["shape"]))
        .collect();
    let expected = [
        (&json!(0), &json!("L01.q_rope"), &json!([3, 2, 2])),
        (&json!(0), &json!("embed"), &json!([3, 2])),
        (&json!(1), &json!("embed"), &json!([1, 2])),
    ];
    assert_eq!(arrays, expected);
    let heads: Vec<f32> = (0..12u8).map(|at| f32::from(at / 4)).collect();
    assert_eq!(elements, [bytes(&heads), bytes(&[0f32, 10.0, 1.0, 11.0, 2.0, 12.0]), bytes(&[3f32, 13.0])].concat());
    // Rows of another width, and an array that is whole already.
    for (first, second, why) in [
        (2, Ok(3), "rows of shape [3] in f32 follow rows of shape [2] in f32"),
        (2, Err(2), "was appended to in this step before"),
    ] {
        let tap = Tap::in_folder(&work.path().join(format!("{second:?}")), "mine", "").unwrap();
        tap.step(0, &[7, 8]).unwrap();
        tap.append("embed", None, Rows { data: &vec![0f32; first], width: first }).unwrap();
        let told = match second {
            Ok(width) => tap.append("embed", None, Rows { data: &vec![0f32; width], width }),
            Err(width) => tap.rows("embed", None, &vec![0f32; width], width),
        };
        assert!(told.unwrap_err().to_string().contains(why), "{why}");
    }
}

#[test]
fn lines_name_the_elements_and_the_ends_of_steps() {
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("new/dump");
    let tap = Tap::in_folder(&folder, "an \"engine\"\n", "\"arithmetic\":\r\n\"f32\"").unwrap();
    assert!(tap.writes());
    tap.step(0, &[7, 8]).unwrap();
    tap.rows("embed", None, &[1f32, 2.0, 3.0, 4.0], 2).unwrap();
    let transposed = Strided { data: &[1f64, 3.0, 2.0, 4.0], shape: &[2, 2], strides: &[1, 2] };
    tap.add("layer_out", 7, transposed).unwrap();
    tap.step(2, &[9]).unwrap();
    let narrow = Elements { format: "f8_e4m3", shape: vec![1, 3], bytes: vec![1, 2, 3] };
    tap.add("logits", None, narrow).unwrap();
    tap.close().unwrap();
    tap.close().unwrap();
    assert!(tap.step(3, &[1]).unwrap_err().to_string().contains("after the dump was closed"));
    let (mut lines, elements) = read(&folder);
    let dump = lines[0].as_object_mut().unwrap().remove("dump").unwrap();
    assert_eq!((&dump["closes"], &dump["pid"]), (&json!(true), &json!(std::process::id())));
    let age =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() - dump["started"].as_u64().unwrap();
    assert!(age < 3600 && dump["nonce"].as_str().unwrap().len() == 16, "{dump}");
    let array = |step: usize, name: &str, dtype: &str, shape: [usize; 2], offset: usize| {
        let file = "capture.bin";
        json!({"step": step, "name": name, "dtype": dtype, "shape": shape, "file": file, "offset": offset})
    };
    let expected = [
        json!({"schema_version": 3, "engine": "an \"engine\"\n", "arithmetic": "f32"}),
        array(0, "embed", "f32", [2, 2], 0),
        array(0, "L07.layer_out", "f64", [2, 2], 16),
        json!({"end": 0, "first": 0, "tokens": [7, 8]}),
        array(1, "logits", "f8_e4m3", [1, 3], 48),
        json!({"end": 1, "first": 2, "tokens": [9]}),
        json!({"closed": 2}),
        json!({"trouble": "a step was begun after the dump was closed"}),
    ];
    assert_eq!(lines, expected);
    assert_eq!(elements, [bytes(&[1f32, 2.0, 3.0, 4.0]), bytes(&[1f64, 2.0, 3.0, 4.0]), vec![1, 2, 3]].concat());
}

/// An error names its array, the dump has the error too, and nothing is written after it.
#[test]
fn what_cannot_be_dumped_rightly_is_said() {
    let one = [1f32];
    let rows = |data: &'static [f32], width| Rows { data, width }.elements();
    assert_eq!(rows(&[1.0, 2.0, 3.0], 2).unwrap_err(), "3 elements are no rows of 2");
    assert!(rows(&[1.0], 0).is_err());
    type Act<'a> = Box<dyn Fn(&Tap) -> qdiff_tap::Result<()> + 'a>;
    let rows = |name: &'static str| -> Act { Box::new(move |tap: &Tap| tap.rows(name, 3, &one, 1)) };
    let step = |tokens: &'static [u32]| -> Act { Box::new(|tap: &Tap| tap.step(0, tokens)) };
    let add = |array: Elements| -> Act { Box::new(move |tap: &Tap| tap.add("embed", None, &array)) };
    let array = |format, shape: &[usize]| Elements { format, shape: shape.to_vec(), bytes: vec![0; 4] };
    for (acts, why) in [
        (vec![rows("q_rope")], "L03.q_rope of step 0: was tapped before the step began"),
        (vec![step(&[1]), rows("k"), rows("k")], "L03.k of step 0: was tapped in this step before"),
        (vec![step(&[1]), step(&[])], "step 1 has no tokens"),
        (vec![step(&[1]), add(array("f24", &[1]))], "embed of step 0: qdiff reads no number format f24"),
        (vec![step(&[1]), add(array("f32", &[]))], "embed of step 0: an array of shape [] has no rows"),
        (vec![step(&[1]), add(array("f32", &[0]))], "embed of step 0: an array of shape [0] has no rows"),
        (vec![step(&[1]), add(array("f32", &[2]))], "embed of step 0: 4 bytes are no array of shape [2] in f32"),
        (vec![step(&[1]), add(array("f32", &[usize::MAX, 2]))], "4 bytes are no array of shape"),
    ] {
        let work = tempfile::tempdir().unwrap();
        let tap = Tap::in_folder(work.path(), "mine", "").unwrap();
        let (last, before) = acts.split_last().unwrap();
        before.iter().for_each(|act| act(&tap).unwrap());
        let error = last(&tap).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(tap.close(), Err(error.clone()), "what came before is not said to be whole");
        let (lines, _) = read(work.path());
        let said = lines.last().unwrap()["trouble"].as_str().unwrap();
        assert_eq!(format!("qdiff_tap: {said}"), error.to_string());
    }
}

/// Whatever an earlier dump left is gone before a new one writes, or the folder says why it is no capture.
#[test]
fn an_earlier_dump_is_replaced_or_refused() {
    let work = tempfile::tempdir().unwrap();
    let (folder, trouble) = (work.path(), work.path().join("capture.trouble"));
    let dump = |value: f32| -> qdiff_tap::Result<()> {
        let tap = Tap::in_folder(folder, "mine", "")?;
        tap.step(0, &[1])?;
        tap.rows("embed", None, &[value], 1)?;
        tap.close()
    };
    dump(1.0).unwrap();
    dump(2.0).unwrap();
    assert_eq!(read(folder).1, bytes(&[2f32]));
    let refused = |words: &str| {
        let why = dump(3.0).unwrap_err().to_string();
        assert!(why.contains(words) && why.contains(folder.to_str().unwrap()), "{why}");
        assert_eq!(format!("qdiff_tap: {}", std::fs::read_to_string(&trouble).unwrap()), why + "\n");
        assert_eq!(read(folder).1, bytes(&[2f32]), "what another one writes stays");
    };
    let open = std::fs::File::options().append(true).open(folder.join("capture.bin")).unwrap();
    open.try_lock().unwrap();
    refused("another dump to");
    drop(open);
    std::fs::write(folder.join("manifest.json"), "{}").unwrap();
    refused("a capture of an earlier run, with a manifest.json");
    std::fs::remove_file(folder.join("manifest.json")).unwrap();
    dump(4.0).unwrap();
    assert!(!trouble.exists() && read(folder).1 == bytes(&[4f32]));
    // Not even the reason can be left: then the old lines go.
    std::fs::create_dir(&trouble).unwrap();
    dump(5.0).unwrap_err();
    assert!(!folder.join("capture.jsonl").exists());
    let work = tempfile::tempdir().unwrap();
    std::fs::write(work.path().join("capture.bin"), "").unwrap();
    let file = work.path().join("capture.bin/below");
    let nowhere = Tap::in_folder(&file, "mine", "").unwrap_err().to_string();
    assert!(nowhere.contains("cannot make the folder") && nowhere.contains("capture.bin/below"), "{nowhere}");
}

/// What the process of the next test does: it is the same program, told so by its environment.
#[test]
fn engine() {
    let tap = Tap::begin("mine").unwrap();
    let dumps = std::env::var_os("QDIFF_DUMP").is_some_and(|folder| !folder.is_empty());
    assert_eq!(tap.writes(), dumps);
    tap.step(0, &[1]).unwrap();
    tap.rows("embed", None, &[1f32], 1).unwrap();
    tap.step(1, &[2]).unwrap();
    tap.rows("embed", None, &[2f32], 1).unwrap();
    if dumps {
        std::process::abort();
    }
}

/// After a killed run the folder has the ended steps, and the begun part of the next.
#[test]
fn a_run_that_is_killed_leaves_whole_steps() {
    let work = tempfile::tempdir().unwrap();
    for (folder, ends) in [("", true), ("dump", false)] {
        let folder = if folder.is_empty() { folder.into() } else { work.path().join(folder) };
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", "engine"]).env("QDIFF_DUMP", &folder).output().unwrap();
        assert_eq!(output.status.success(), ends, "{}", String::from_utf8_lossy(&output.stdout));
    }
    let (lines, elements) = read(&work.path().join("dump"));
    assert_eq!(elements, bytes(&[1f32, 2.0]));
    let ends = lines.iter().filter(|line| line.get("end").is_some()).count();
    assert_eq!((lines.len(), ends), (4, 1), "{lines:?}");
}

proptest! {
    /// Every element is the one that its indices and the strides name, whether they overlap or leave gaps.
    #[test]
    fn strided_arrays_come_row_major(axes in prop::collection::vec((1usize..5, 0usize..40), 1..5)) {
        let (shape, strides): (Vec<usize>, Vec<usize>) = axes.into_iter().unzip();
        let last: usize = shape.iter().zip(&strides).map(|(extent, stride)| (extent - 1) * stride).sum();
        let data: Vec<f32> = (0..=last).map(|i| i as f32).collect();
        let taken = Strided { data: &data, shape: &shape, strides: &strides }.elements().unwrap();
        let mut expected = Vec::new();
        for n in 0..shape.iter().product() {
            let (mut rest, mut at) = (n, 0);
            for (extent, stride) in shape.iter().zip(&strides).rev() {
                at += rest % extent * stride;
                rest /= extent;
            }
            expected.push(data[at]);
        }
        prop_assert_eq!(taken, Elements { format: "f32", bytes: bytes(&expected), shape: shape.clone() });
        // One element less is not enough.
        let short = Strided { data: &data[..last], shape: &shape, strides: &strides }.elements();
        prop_assert!(short.unwrap_err().contains("hold no array of shape"));
    }

    /// Whatever an engine and a stage are called, their lines are JSON and say so.
    #[test]
    fn names_of_any_letters_are_kept(engine in any::<String>(), stage in any::<String>(), layer in any::<usize>()) {
        let work = tempfile::tempdir().unwrap();
        let tap = Tap::in_folder(work.path(), &engine, "").unwrap();
        tap.step(layer, &[u32::MAX]).unwrap();
        tap.rows(&stage, layer, &[0i64], 1).unwrap();
        tap.end().unwrap();
        let (lines, _) = read(work.path());
        prop_assert_eq!(&lines[0]["engine"], &json!(engine));
        prop_assert_eq!(&lines[1]["name"], &json!(format!("L{layer:02}.{stage}")));
        prop_assert_eq!(&lines[2], &json!({"end": 0, "first": layer, "tokens": [u32::MAX]}));
    }
}

#[cfg(feature = "half")]
#[test]
fn narrow_floats_keep_their_bits() {
    let halves = [half::f16::from_f32(1.5), half::f16::INFINITY];
    let taken = Rows { data: &halves, width: 2 }.elements().unwrap();
    assert_eq!(taken, Elements { format: "f16", shape: vec![1, 2], bytes: vec![0, 0x3e, 0, 0x7c] });
    let taken = Rows { data: &[half::bf16::from_f32(1.5)], width: 1 }.elements().unwrap();
    assert_eq!(taken, Elements { format: "bf16", shape: vec![1, 1], bytes: vec![0xc0, 0x3f] });
}

#[cfg(feature = "ndarray")]
#[test]
fn views_of_ndarray_come_row_major() {
    let array = ndarray::Array2::from_shape_fn((2, 3), |(r, c)| (3 * r + c) as f32);
    let mut view = array.t();
    view.invert_axis(ndarray::Axis(0));
    assert_eq!(view.elements().unwrap(), Elements::of(vec![3, 2], [2f32, 5.0, 1.0, 4.0, 0.0, 3.0]));
}

#[cfg(feature = "candle")]
#[test]
fn tensors_of_candle_come_row_major() {
    use candle_core::{DType, Device, Tensor};
    let tensor = Tensor::arange(0f32, 6.0, &Device::Cpu).unwrap().reshape((2, 3)).unwrap();
    let view = tensor.t().unwrap().narrow(0, 1, 2).unwrap();
    assert_eq!(view.elements().unwrap(), Elements::of(vec![2, 2], [1f32, 4.0, 2.0, 5.0]));
    assert_eq!(view.to_dtype(DType::BF16).unwrap().elements().unwrap().format, "bf16");
    assert!(view.to_dtype(DType::U8).unwrap().elements().unwrap_err().contains("u8"));
}
