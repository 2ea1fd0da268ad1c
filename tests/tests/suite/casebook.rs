//! The commands in the `console` blocks of README.md and docs/*.md: every one has its output, the output names the
//! fault that the command injects, and the figures of the biases are the file's.

use qdiff_engine::gguf::Gguf;
use qdiff_tests::markdown::{self, read};
use qdiff_tests::{empty, folder, real_folder, real_model};

/// A command of a document, and what stands below it.
struct Case {
    command: String,
    output: String,
}

impl Case {
    /// The faults that the command injects.
    fn faults(&self) -> impl Iterator<Item = &str> {
        self.command.split(" --inject ").skip(1).filter_map(|rest| rest.split(' ').next())
    }
}

fn cases() -> Vec<Case> {
    let documents = markdown::documents();
    let blocks = documents.iter().flat_map(|document| document.text.split("```console\n$ ").skip(1));
    let cases: Vec<Case> = blocks
        .map(|rest| {
            let (command, rest) = rest.split_once('\n').unwrap();
            let (output, _) = rest.split_once("```").unwrap();
            Case { command: command.to_owned(), output: output.to_owned() }
        })
        .collect();
    assert!(cases.len() >= 30, "{} commands", cases.len());
    cases
}

/// What stands before the first entry such as `cause`, as one line.
fn first_entry(output: &str) -> String {
    let (first, rest) = output.split_once('\n').unwrap_or((output, ""));
    let more = rest.lines().take_while(|l| l.starts_with("  ")).map(str::trim);
    std::iter::once(first).chain(more).collect::<Vec<_>>().join(" ")
}

/// A line of `mutations list`: the stages in which the fault can be.
fn stages_of(list: &str, name: &str) -> Vec<String> {
    let line = list.lines().find(|l| l.split_whitespace().next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in the catalogue"));
    let (_, stages) = line.trim_end_matches(')').rsplit_once('(').unwrap();
    stages.split_whitespace().map(str::to_owned).collect()
}

/// Every output names the stage and the cause that its command injects.
#[test]
fn every_output_names_stage_and_cause() {
    let list = empty().qdiff("mutations list").stdout;
    for case in cases() {
        let said = first_entry(&case.output);
        assert!(!said.is_empty(), "no output below `{}`", case.command);
        // A recording with a fault in it says what was written, not what is wrong.
        if case.command.starts_with("qdiff record ") {
            continue;
        }
        for fault in case.faults() {
            let (name, target) = fault.split_once('@').unwrap_or((fault, ""));
            let kind = name.split(':').next().unwrap();
            let place = said
                .strip_prefix("DIVERGED at ")
                .and_then(|s| s.split([',', ':']).next())
                .unwrap_or_else(|| panic!("{}\n{said}", case.command));
            let stage = place.rsplit('.').next().unwrap();
            match target {
                "" => assert_eq!(stages_of(&list, kind)[0], stage, "{}", case.command),
                // A layer alone: its first stage that can have the fault.
                layer if layer.starts_with('L') && !layer.contains('.') => {
                    let first = format!("{layer}.{}", stages_of(&list, kind)[0]);
                    assert_eq!(place, first, "{}", case.command);
                }
                stage => assert_eq!(place, stage, "{}", case.command),
            }
            // A region may be reported as a smaller one: a tile of one column is a column.
            let cause = if kind.starts_with("one-") { "one-" } else { name };
            assert!(said.contains(&format!("({cause}")), "{cause}: {said}");
            for figure in name.split([':', ',']).skip(1) {
                let told = said.contains(figure) || cause == "one-";
                assert!(told, "{figure}: {said}");
            }
        }
    }
}

/// What the book says to do with an engine of one's own works for every command
/// in it: without `--inject` and `-n`, on a recording.
#[test]
fn every_command_takes_a_recording_instead() {
    let folder = folder();
    folder.record("mine", "-n 1");
    let mut taken = 0;
    for case in cases().iter().filter(|c| {
        c.command.contains(" --inject ") && !c.command.contains(" --prompt ") && !c.command.starts_with("qdiff record")
    }) {
        let mut words = case.command.split_whitespace().skip(1);
        let mut line = String::new();
        while let Some(word) = words.next() {
            match word {
                "--inject" | "-n" => drop(words.next()),
                word => line += &format!("{word} "),
            }
        }
        folder.qdiff(&format!("{line}--subject capture:mine -m model.gguf")).exits(0);
        taken += 1;
    }
    assert!(taken > 10, "{taken}");
}

/// Each case of the team's morning is in the book under its name in the catalogue.
#[test]
fn the_whole_morning_is_told() {
    let book = read("docs/casebook.md");
    let names = "qkv-weight-transposed lm-head-transposed lm-head-ld kv-position-stuck qkv-bias-omitted vocab-padding \
                 logits-stale quant-bytes-as-f16 compute-16f attn-scale-missing attn-uniform rope-base rope-pairing \
                 embed-transposed tensor-mapped-wrong chat-template-missing ffn-allocates";
    for name in names.split(' ') {
        assert!(book.contains(name), "{name}");
    }
    let soak = read("goldens/h200/soak.txt");
    let last = soak.lines().last().unwrap();
    assert!(book.contains(last), "the book does not show: {last}");
}

/// The file has the biases that the book calls real.
#[test]
fn the_biases_are_those_of_the_file() {
    let book = read("docs/casebook.md");
    let gguf = Gguf::open(&real_model()).unwrap();
    let values = |name: &str| -> Vec<f32> {
        let data = gguf.data(gguf.tensor(name).unwrap());
        let (values, _) = data.as_chunks::<4>();
        values.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let query = values("blk.0.attn_q.bias");
    let begins = format!(
        "{:.3}, {:.3}, {:.3}, {:.3}, {:.2}, {:.2}, …",
        query[0], query[1], query[2], query[3], query[4], query[5]
    );
    assert!(book.contains(&begins), "{begins}");
    let least = query.iter().copied().fold(f32::INFINITY, f32::min);
    let most = query.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let runs = format!("runs from {least:.0} to {most:.0}.");
    assert!(book.contains(&runs), "{runs}");
    let largest =
        (0..24).flat_map(|layer| values(&format!("blk.{layer}.attn_k.bias"))).map(f32::abs).fold(0.0, f32::max);
    let said = format!("the largest K bias of this model is {largest:.0}");
    assert!(book.contains(&said), "{said}");
}

/// The first two commands say on the real model what the documents say.
#[test]
fn the_biases_are_right_and_leaving_them_out_is_the_bug() {
    let (folder, cases) = (real_folder(), cases());
    for (command, code) in [("run -n 2 --inject qkv-bias-omitted", 1), ("weights", 0)] {
        let called = format!("qdiff {command}");
        let mut told = cases.iter().filter(|c| c.command == called).peekable();
        assert!(told.peek().is_some(), "{command}");
        let said = folder.qdiff_with(&[("QDIFF_MODEL", "model.gguf")], command).exits(code).stdout;
        assert!(command != "weights" || said.starts_with("MATCH: 291 tensors"), "{said}");
        for case in told {
            assert_eq!(first_entry(&case.output), first_entry(&said));
        }
    }
}
