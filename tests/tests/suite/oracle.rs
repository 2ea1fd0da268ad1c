//! `--oracle`: where linear layers are evaluated, the message where they cannot be, and the report of it.

use qdiff_tests::{Folder, empty, folder, unwrapped};
use serde_json::{Value, json};

const COMMANDS: [&str; 3] = ["run -m model.gguf -n 0", "sweep -m model.gguf -n 0", "compare mine mine -m model.gguf"];

/// What the report of a run says of it, and the screen's line, if there is one.
fn told(folder: &Folder, options: &str) -> (Value, Option<String>) {
    let (code, report, screen) = folder.told(&format!("run -m model.gguf --subject cpu -n 0 {options}"));
    assert_eq!(code, 0, "{screen}");
    let line = screen.lines().find(|line| line.starts_with("oracle "));
    (report["verdict"]["evaluators"].clone(), line.map(str::to_owned))
}

/// Without a GPU, `--oracle cuda` is an error before anything runs, and `auto` gives no message.
#[test]
fn a_gpu_that_is_asked_for() {
    let folder = folder();
    folder.record("mine", "-n 0");
    let nobody = json!({"devices": [], "on_device": 0, "held": [], "on_cpu": 0});
    assert_eq!(told(&folder, "--oracle cpu"), (nobody.clone(), None));
    for choice in ["cuda", "both"] {
        let option = format!("--oracle {choice}");
        match qdiff_engine::cuda::devices() {
            Ok(devices) => {
                let (evaluators, line) = told(&folder, &option);
                assert_eq!(evaluators["devices"].as_array().unwrap().len(), 1, "of {devices:?}: {evaluators}");
                assert!(evaluators["on_device"].as_u64() > Some(0) && evaluators["on_cpu"] == 0, "{evaluators}");
                assert!(evaluators["held"].as_array().is_some_and(|held| held.len() >= 2), "{evaluators}");
                assert!(line.is_some_and(|line| line.contains("on the CPU too, with the same result")));
            }
            Err(missing) => {
                let what = missing.to_string();
                let what = what.split([';', ',']).next().unwrap();
                for command in COMMANDS {
                    folder.refuses(&format!("{command} {option}"), &[&option, "--oracle cpu needs no GPU", what]);
                }
                assert_eq!(told(&folder, ""), (nobody.clone(), None), "by default");
            }
        }
    }
}

/// A row of the bench is of the oracle that it says, or there is an error.
#[test]
fn verdicts_are_timed_by_each_oracle() {
    let folder = folder();
    let bench = "qdiff-lab bench -m model.gguf --measure verdict --lengths 8 --check full --rounds 1 --oracle cpu,cuda";
    match qdiff_engine::cuda::devices() {
        Ok(_) => {
            let (code, report, text) = folder.told(bench);
            let rows = report["verdicts"].as_array().unwrap();
            let oracles: Vec<_> = rows.iter().filter_map(|row| row["oracle"].as_str()).collect();
            assert_eq!((code, oracles), (0, vec!["cpu", "cuda"]), "{text}");
            assert!(report["gpu"]["opening"].as_f64() >= Some(0.0) && text.contains("Every row computed"), "{text}");
        }
        Err(_) => folder.refuses(bench, &["--oracle cuda", "--oracle cpu needs no GPU"]),
    }
    folder.refuses_options("qdiff-lab bench -m model.gguf --oracle cpu", &["'--oracle' says nothing about what"]);
}

#[test]
fn a_choice_that_there_is_not() {
    let folder = folder();
    for command in COMMANDS {
        folder.refuses_options(&format!("{command} --oracle gpu"), &["'gpu'", "--oracle", "auto, cpu, cuda, both"]);
    }
    for command in ["run", "sweep", "compare", "judge"] {
        let help = empty().qdiff(&format!("{command} --help")).exits(0).stdout;
        let text = help.split("--oracle <").nth(1).unwrap_or_else(|| panic!("{help}"));
        let text = text.split("\n  -").next().unwrap();
        for said in ["evaluated in f64", "- auto:", "- cpu:", "- cuda:", "- both:", "[default: auto]"] {
            assert!(text.contains(said), "{command}: `{said}` is not in {text}");
        }
    }
}

/// What a report says of it, as any command shows it that reads one.
#[test]
fn who_evaluated_is_on_the_screen() {
    let folder = folder();
    let (_, mut report, _) = folder.told("run -m model.gguf --subject cpu -n 0 --oracle cpu");
    let held = json!(["L00.q_proj", "logits"]);
    let device = json!({"devices": ["a GPU"], "on_device": 15, "held": held, "on_cpu": 0});
    let lost = json!({"devices": ["a GPU"], "on_device": 1, "held": [], "on_cpu": 14, "because": ["CUDA: it is lost"]});
    let refused = json!({"devices": [], "on_device": 0, "held": [], "on_cpu": 1, "because": ["no cuBLAS"]});
    let by_device = |stages, held| {
        format!(
            "linear layers of {stages} evaluated on a GPU; rows of {held} of them on the CPU too, with the same result but for \
             rounding"
        )
    };
    let by_cpu = |stages, why| format!("linear layers of {stages}, or a part of them, on the CPU: {why}");
    for (evaluators, expected) in [
        (device, by_device("15 stages", 2)),
        (lost, format!("{}; {}", by_device("1 stage", 0), by_cpu("14 stages", "CUDA: it is lost"))),
        (refused, by_cpu("1 stage", "no cuBLAS")),
    ] {
        report["verdict"]["evaluators"] = evaluators;
        folder.write("told.json", report.to_string());
        let screen = folder.qdiff("report told.json").exits(0).stdout;
        let words = unwrapped(&screen);
        assert!(words.contains(&format!(" oracle {expected}")), "{screen}");
    }
}
