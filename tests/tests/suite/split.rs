//! Models in several files: llama.cpp takes what qdiff takes, every command reads them as one model, and an error
//! names the file that has it.

use super::llama_says::{Asked, Beside, loaded_beside, write};
use qdiff_engine::gguf::{Gguf, split};
use qdiff_engine::model::Model;
use qdiff_tests::synth::{Kv, Synth, part_name, patch};
use qdiff_tests::{Folder, empty};
use std::process::Command;

const STEM: &str = "model";

/// A model of little work.
fn tiny() -> Synth {
    Synth { n_embd: 64, n_heads: 2, n_kv_heads: 1, head_dim: 32, n_ff: 64, ..Synth::default() }
}

/// Parts under the names that they must have.
fn named(parts: Vec<Vec<u8>>) -> Beside {
    let count = parts.len();
    parts.into_iter().enumerate().map(|(no, bytes)| (part_name(STEM, no, count), bytes)).collect()
}

fn parts(count: usize) -> Beside {
    named(tiny().to_parts(count))
}

/// Three parts, with other metadata in one of them.
fn with(no: usize, change: impl Fn(&mut Kv)) -> Beside {
    named(tiny().to_parts_with(3, |part, metadata| {
        if part == no {
            change(metadata)
        }
    }))
}

/// Three parts, one of which is another file.
fn replaced(no: usize, bytes: Vec<u8>) -> Beside {
    let mut files = parts(3);
    files[no].1 = bytes;
    files
}

/// Three parts, renamed; the question is about the first.
fn renamed(names: [&str; 3]) -> Beside {
    names.iter().zip(parts(3)).map(|(name, (_, bytes))| ((*name).to_owned(), bytes)).collect()
}

/// Three parts, beginning with this one.
fn from(no: usize) -> Beside {
    let mut files = parts(3);
    files.rotate_left(no);
    files
}

/// Files, whether llama.cpp takes them, and what qdiff says of those that it does not take.
fn cases() -> Vec<(Beside, bool, Option<&'static [&'static str]>)> {
    let taken = |files| (files, true, None);
    let refused = |words: &'static [&'static str], files| (files, false, Some(words));
    let stricter = |words: &'static [&'static str], files| (files, true, Some(words));
    let of_tensors = tiny().tensor_names().len();
    let part_of = |model: Synth, no: usize| model.to_parts(3).swap_remove(no);
    let twice = tiny()
        .to_parts_with(3, |no, kv| {
            if no == 1 {
                kv.u16(split::NO, 2)
            }
        })
        .swap_remove(1);
    let cut = |bytes: usize| {
        let mut files = parts(3);
        let left = files[2].1.len() - bytes;
        files[2].1.truncate(left);
        files
    };
    vec![
        taken(parts(2)),
        taken(parts(3)),
        // As `--no-tensor-first-split` leaves the first part.
        taken(parts(of_tensors + 1)),
        taken(with(0, |kv| kv.align(64))),
        taken(with(1, |kv| kv.align(128))),
        taken(vec![("alone.gguf".to_owned(), tiny().to_bytes_with(|kv| kv.u16(split::COUNT, 1)))]),
        taken(with(2, |kv| kv.string("general.architecture", "qwen2"))),
        refused(&["model-00003-of-00003.gguf", "no such file", "part 3 of 3"], parts(3)[..2].to_vec()),
        refused(&["part 2 of 3", "name its first part, ", "model-00001-of-00003.gguf"], from(1)),
        refused(&["part 3 of 3", "name its first part"], from(2)),
        refused(&["must end in NAME-00001-of-00003.gguf"], renamed(["model.gguf", "b.gguf", "c.gguf"])),
        refused(
            &["must end in NAME-00001-of-00003.gguf"],
            renamed(["m-0001-of-0003.gguf", "m-0002-of-0003.gguf", "m-0003-of-0003.gguf"]),
        ),
        // More or fewer than there are.
        refused(&["must end in NAME-00001-of-00004.gguf"], with(0, |kv| kv.u16(split::COUNT, 4))),
        refused(&["must end in NAME-00001-of-00002.gguf"], with(0, |kv| kv.u16(split::COUNT, 2))),
        refused(
            &["has 27 tensors in 3 parts", "says 28"],
            named(tiny().to_parts_with(3, |_, kv| kv.i32(split::TENSORS, 28))),
        ),
        // Keys that are missing, of another type, or of another part.
        refused(&["model-00001-of-00003.gguf", "split.no", "missing", "u16"], with(0, |kv| kv.remove(split::NO))),
        refused(&["split.no", "(u32)", "expected a u16"], with(0, |kv| kv.u32(split::NO, 0))),
        refused(&["split.count", "(u32)", "expected a u16"], with(0, |kv| kv.u32(split::COUNT, 3))),
        refused(&["split.tensors.count", "missing", "an i32"], with(0, |kv| kv.remove(split::TENSORS))),
        refused(&["split.tensors.count", "(u32)"], with(0, |kv| kv.u32(split::TENSORS, 27))),
        refused(&["split.tensors.count", "-1 (i32)"], with(0, |kv| kv.i32(split::TENSORS, -1))),
        refused(&["model-00002-of-00003.gguf", "split.no", "missing"], with(1, |kv| kv.remove(split::NO))),
        refused(&["model-00002-of-00003.gguf", "split.no", "(u32)"], with(1, |kv| kv.u32(split::NO, 1))),
        refused(&["model-00002-of-00003.gguf", "is part 3", "expected part 2"], replaced(1, part_of(tiny(), 2))),
        refused(&["model-00003-of-00003.gguf", "is in another part"], replaced(2, twice)),
        // Parts of other models, where that can be seen.
        refused(
            &["part of another model", "split.tensors.count"],
            replaced(2, part_of(Synth { n_layers: 3, ..tiny() }, 2)),
        ),
        refused(&["has shape"], replaced(2, part_of(Synth { n_ff: 96, ..tiny() }, 2))),
        stricter(
            &["model-00002-of-00003.gguf", "part of another model", "general.name"],
            with(1, |kv| kv.string("general.name", "x")),
        ),
        stricter(&["part of another model", "split.count"], with(2, |kv| kv.u16(split::COUNT, 7))),
        refused(&["general.alignment", "is 16"], with(1, |kv| kv.align(16))),
        // Damage of a part alone.
        refused(&["model-00003-of-00003.gguf", "truncated"], cut(64)),
        refused(&["model-00003-of-00003.gguf", "is empty"], replaced(2, Vec::new())),
        refused(&["model-00002-of-00003.gguf", "not a GGUF file"], replaced(1, b"version https://git-lfs".to_vec())),
    ]
}

#[test]
fn llama_cpp_takes_what_is_taken() {
    let cases = cases();
    let files: Vec<Beside> = cases.iter().map(|(files, ..)| files.clone()).collect();
    let mut wrong = Vec::new();
    for ((files, takes, words), loads) in cases.iter().zip(loaded_beside(&files, Asked::Model)) {
        let folder = empty();
        write(&folder, files);
        let path = folder.join(&files[0].0);
        let said = Model::open(&path).err().map(|e| e.to_string());
        let as_told = match (&said, words) {
            (None, None) => true,
            (Some(said), Some(words)) => words.iter().all(|word| said.contains(word)) && !said.contains('\n'),
            _ => false,
        };
        if loads != *takes || !as_told {
            wrong.push(format!("{}: llama.cpp loads it: {loads}; {words:?}: {said:?}", files[0].0));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Bits of the header of a part that is not the first, flipped.
#[test]
fn bit_flips_in_a_part_agree() {
    let whole = parts(2);
    const HEADER: usize = 900;
    let flipped = |bit: usize| {
        let mut files = whole.clone();
        files[1].1[bit / 8] ^= 1 << (bit % 8);
        files
    };
    let files: Vec<Beside> = (0..8 * HEADER).step_by(13).map(flipped).collect();
    let mut taken = 0;
    for (files, loads) in files.iter().zip(loaded_beside(&files, Asked::Model)) {
        let folder = empty();
        write(&folder, files);
        let ours = Model::open(&folder.join(&files[0].0));
        taken += usize::from(ours.is_ok() && loads);
        let stricter =
            ours.as_ref().is_err_and(|e| ["UTF-8", "another model"].iter().any(|w| e.to_string().contains(w)));
        assert!(ours.is_ok() == loads || stricter, "llama.cpp loads it: {loads}, qdiff: {:?}", ours.err());
    }
    assert!((5..files.len() - 5).contains(&taken), "{taken} of {} were taken", files.len());
}

/// A folder with a model as one file, and as three.
fn both() -> Folder {
    let folder = qdiff_tests::folder_with(&tiny());
    write(&folder, &parts(3));
    folder
}

const FIRST: &str = "model-00001-of-00003.gguf";

#[test]
fn every_command_reads_them_as_one_model() {
    let folder = both();
    let (code, split, _) = folder.told(&format!("run -m {FIRST} --tokens 1,2,3 -n 1"));
    let (_, whole, _) = folder.told("run -m model.gguf --tokens 1,2,3 -n 1");
    assert_eq!(
        (code, &split["outcome"], &split["weights"]["tensors"]),
        (0, &whole["outcome"], &whole["weights"]["tensors"])
    );
    assert_eq!(
        split["diagnosis"]["verdict"]["stages"].as_array().map(Vec::len),
        whole["diagnosis"]["verdict"]["stages"].as_array().map(Vec::len)
    );
    let summed =
        Command::new("sh").args(["-c", "cat model-0*.gguf | sha256sum"]).current_dir(&*folder).output().unwrap();
    let summed = String::from_utf8_lossy(&summed.stdout).into_owned();
    assert_eq!(split["model"]["sha256"].as_str(), summed.split(' ').next());
    // Recorded of the parts, judged on them, and refused on another model: the same as one file is another file.
    folder.qdiff(&format!("record -m {FIRST} --runner cpu --out mine --tokens 1,2,3 -n 1")).exits(0);
    folder.qdiff(&format!("run -m {FIRST} --subject capture:mine")).exits(0);
    folder.refuses("run -m model.gguf --subject capture:mine", &["recorded on another model"]);
    // One file against the parts: the same weights, and keys that say no more than into how many it was split.
    let against = folder.qdiff(&format!("weights {FIRST} --against model.gguf")).exits(0).stdout;
    assert!(against.contains("split.count: 3") && against.contains("no computation uses it"), "{against}");
    folder.qdiff(&format!("weights {FIRST}")).exits(0);
    let inspected = folder.qdiff(&format!("inspect {FIRST} --json told.json")).exits(0).stdout;
    let size: u64 = parts(3).iter().map(|(_, bytes)| bytes.len() as u64).sum();
    assert!(inspected.contains(&format!("27 tensors, {size} bytes in 3 files")), "{inspected}");
    assert_eq!(folder.json("told.json")["tensors"][26]["file"], "model-00003-of-00003.gguf");
    // A copy is one file.
    folder.qdiff(&format!("dequantise -m {FIRST} --to f32 --out copy.gguf")).exits(0);
    folder.qdiff("run -m copy.gguf --tokens 1,2,3 -n 0").exits(0);
}

#[test]
fn damage_is_told_of_the_file_it_is_in() {
    let folder = both();
    let last = "model-00003-of-00003.gguf";
    folder.refuses("run -m model-00002-of-00003.gguf", &["model-00002-of-00003.gguf: is part 2 of 3", FIRST]);
    let tensor = tiny().tensor_names().pop().unwrap();
    folder.edit(last, |bytes| patch(bytes, &tensor, |data| data[70] ^= 1));
    let differs = folder.qdiff(&format!("weights {FIRST} --against model.gguf")).exits(1).stdout;
    assert!(differs.contains(&tensor) && differs.contains(&format!("of {last};")), "{differs}");
    folder.edit(last, |bytes| patch(bytes, &tensor, |data| data[1] = 0x7c));
    folder.refuses(&format!("run -m {FIRST}"), &[&tensor, last, "the file itself is damaged"]);
    std::fs::remove_file(folder.join(last)).unwrap();
    folder.refuses(&format!("run -m {FIRST}"), &[last, "part 3 of 3", "fetch it too"]);
    let made = Command::new("mkfifo").arg(folder.join(last)).status().unwrap();
    assert!(made.success());
    folder.refuses(&format!("run -m {FIRST}"), &[last, "not a regular file"]);
}

/// What llama.cpp opens by its name later must be the file that was mapped.
#[test]
fn a_part_in_the_place_of_one_that_was_opened_is_seen() {
    let folder = empty();
    let named: Vec<_> = parts(2).into_iter().map(|(name, bytes)| (folder.join(&name), bytes)).collect();
    named.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    let [(first, _), (second, bytes)] = &named[..] else { unreachable!("there are two") };
    let opened = Gguf::open(first).unwrap();
    assert_eq!(opened.changed(), None);
    let other = folder.join("other");
    std::fs::write(&other, bytes).unwrap();
    std::fs::rename(&other, second).unwrap();
    assert_eq!(opened.changed(), Some(second.as_path()));
    assert_eq!(Gguf::open(first).unwrap().changed(), None);
    std::fs::remove_file(first).unwrap();
    assert_eq!(opened.changed(), Some(first.as_path()));
    assert_eq!(Gguf::from_bytes(bytes.clone()).unwrap().changed(), None);
}
