//! What a capture says of itself, or a user allows it, makes no pass of what is wrong.

use qdiff_tests::npz::{rewrite, tamper};
use qdiff_tests::{Folder, Told, folder, headline, python};
use serde_json::{Value, json};

/// Writes what the capture declares of its arithmetic.
fn declare(folder: &Folder, capture: &str, arithmetic: Value) {
    let name = format!("{capture}/manifest.json");
    let mut manifest = folder.json(&name);
    manifest["arithmetic"] = arithmetic;
    folder.write(&name, manifest.to_string());
}

fn status(report: &Value, stage: &str) -> String {
    report.stage(stage)["status"].as_str().unwrap().to_owned()
}

/// Sums in f16 get the bound of sums in f16, and no more; every format reports the declaration.
#[test]
fn declared_arithmetic_excuses_what_it_does_and_nothing_else() {
    let folder = folder();
    let f16 = || json!({ "linear": [{ "accumulation": "f16" }] });
    for (name, inject, code) in [
        ("right", "", 0),
        ("f16", "--inject compute-16f@L00.attn_out", 0),
        ("scaled", "--inject scaled:by=0.75@L01.ffn_down", 1),
    ] {
        folder.record(name, inject);
        declare(&folder, name, f16());
        let (found, _, text) = folder
            .judged(&format!("--subject capture:{name} --report {name}.html --report {name}.md --report {name}.xml"));
        assert_eq!(found, code, "{name}: {text}");
        assert!(text.contains("arithmetic the subject declares f16 sums"), "{text}");
        for format in ["html", "md", "xml"] {
            let file = folder.text(&format!("{name}.{format}"));
            assert!(file.contains("the subject declares f16 sums"), "{name}.{format}");
        }
    }
    tamper(&folder.join("right/capture.npz"), "prefill/L00.ffn_down", |x| x.fill(0.0));
    let (code, report, text) = folder.judged("--subject capture:right");
    assert_eq!((code, status(&report, "L00.ffn_down").as_str()), (1, "diverged"), "{text}");
}

/// A tolerance that a row of zeros keeps proves nothing: no pass, and the report says why.
#[test]
fn a_tolerance_that_lets_zeros_pass_makes_no_match() {
    let folder = folder();
    for name in ["right", "zero"] {
        folder.record(name, "-n 0");
    }
    rewrite(&folder.join("zero/capture.npz"), |_, mut npy| {
        let header = usize::from(u16::from_le_bytes([npy[8], npy[9]]));
        npy[10 + header..].fill(0);
        Some(npy)
    });
    for (capture, rules, code) in
        [("zero", "*=1", 3), ("right", "*=1", 3), ("zero", "*=0.9", 1), ("right", "*=0.9", 0), ("right", "logits=2", 3)]
    {
        let line = format!("--subject capture:{capture} --tolerance {rules} --report said.xml");
        let (found, report, text) = folder.judged(&line);
        assert_eq!(found, code, "{capture} {rules}: {text}");
        let first = headline(&text);
        assert!(code == 0 || !first.contains("are correct"), "{first}");
        if code == 3 {
            assert_eq!(status(&report, "logits"), "inconclusive", "{text}");
            assert!(first.contains("inconclusive") && first.contains("logits"), "{first}");
            assert!(folder.text("said.xml").contains("<skipped message="), "{rules}");
        }
    }
}

#[test]
fn a_capture_is_judged_with_its_own_cache() {
    let folder = folder();
    folder.record("half", "--kv-type f16");
    folder.record("full", "");
    for (capture, kv, own) in [("half", "f32", "f16"), ("half", "bf16", "f16"), ("full", "f16", "f32")] {
        let line = format!("run -m model.gguf --subject capture:{capture} --kv-type {kv} --json none.json");
        folder.refuses(&line, &[capture, &format!("in {own}"), &format!("asks for {kv}")]);
    }
    for kv in ["", "--kv-type f16"] {
        let (code, report, text) = folder.judged(&format!("--subject capture:half {kv}"));
        assert_eq!(code, 0, "{text}");
        assert_eq!(report["reference"]["arithmetic"]["kv"], "f16", "what runs beside it has its cache");
    }
}

/// The first line names what was not judged: stage, rows and positions.
#[test]
fn rows_that_were_not_judged_are_named() {
    let folder = folder();
    folder.record("short", "");
    rewrite(&folder.join("short/capture.npz"), |name, npy| (name != "step1/logits").then_some(npy));
    let (code, report, text) = folder.judged("--subject capture:short");
    assert_eq!(code, 3, "{text}");
    let at = report["run"]["tokens"].as_array().unwrap().len();
    assert_eq!(report["verdict"]["unjudged"][0]["positions"], json!([at]), "{text}");
    assert!(headline(&text).contains(&format!("logits (1 row, position {at})")), "{text}");
    assert!(text.contains("missing    1 stage, 1 row not judged: logits (1 row"), "{text}");
    // A stage without any row judged is named as such.
    rewrite(&folder.join("short/capture.npz"), |name, npy| (!name.ends_with("/logits")).then_some(npy));
    let (_, report, text) = folder.judged("--subject capture:short");
    assert_eq!(report["verdict"]["unjudged"].as_array().unwrap().last().unwrap()["whole"], true, "{text}");
    assert!(headline(&text).contains("stage rows could not be judged: logits"), "{text}");
}

/// An engine that computes the last stages of the prompt's last token alone is judged by these, with or without the stages
/// that nothing else shows, and with the prompt in one part or several. Stages that other tokens read are requested for whole.
#[test]
fn the_last_rows_of_a_prompt_are_enough() {
    let folder = folder();
    for (name, of_record) in [("whole", ""), ("parts", "--ubatch 12"), ("wrong", "--inject scaled:by=0.99@logits")] {
        folder.record(name, of_record);
        python(
            &folder,
            &format!(
                "import numpy as np
a = dict(np.load('{name}/capture.npz'))
parts = sorted((k for k in a if k.startswith('prefill') and k.endswith('/logits')), key=lambda k: int((k.split('/')[0] + '@0').split('@')[1]))
for k in parts[:-1]: del a[k]
a[parts[-1]] = a[parts[-1]][-1:]
np.savez('{name}/capture.npz', **a)
import os, shutil
def save(kind):
    os.makedirs('{name}-' + kind)
    shutil.copy('{name}/manifest.json', '{name}-' + kind)
    np.savez('{name}-' + kind + '/capture.npz', **a)
last = ['L01.' + s for s in 'attn_out attn_residual ffn_norm ffn_gate ffn_up ffn_act ffn_down layer_out'.split()] + ['final_norm']
for k in list(a):
    if k.startswith('prefill') and k.split('/')[1] in last:
        if k.split('/')[0] != parts[-1].split('/')[0]: del a[k]
        else: a[k] = a[k][-1:]
save('layer')
for k in [k for k in a if k.endswith('/final_norm')]: del a[k]
save('less')
for stage in ['q_proj', 'k_proj']:
    there = parts[-1].split('/')[0] + '/L01.' + stage
    whole, a[there] = a[there], a[there][-1:]
    save(stage)
    a[there] = whole"
            ),
        );
        folder.refuses(
            &format!("run -m model.gguf --subject capture:{name}-q_proj"),
            &["L01.q_proj of prefill", "holds the row of the last token alone", "L01.q_biased", "dump all rows"],
        );
        folder.refuses(&format!("run -m model.gguf --subject capture:{name}-k_proj"), &["L01.k_proj", "has shape"]);
        for capture in [name.to_owned(), format!("{name}-layer"), format!("{name}-less")] {
            let (code, report, text) = folder.judged(&format!("--subject capture:{capture}"));
            assert_eq!(code, i32::from(name == "wrong"), "{capture}: {text}");
            let coverage = &report["verdict"]["coverage"];
            assert_eq!(coverage["asked"], coverage["judged"], "{capture}: {text}");
            assert_eq!(coverage["last_row"], true, "{capture}: {text}");
            assert!(name != "wrong" || headline(&text).contains("all positions"), "{text}");
            // Nothing that is not there is shown or counted.
            let first = report["verdict"]["logits"][0]["position"].as_u64().unwrap();
            assert_eq!(first + 1, report["run"]["tokens"].as_array().unwrap().len() as u64, "{capture}");
            assert_eq!(report["verdict"]["health"], json!([]), "{capture}");
        }
    }
    let logits = folder.qdiff("logits -m model.gguf --subject capture:whole");
    assert_eq!(logits.code, 0, "{logits}");
}

/// A stage that occurs twice in a step, by one name or two, is refused.
#[test]
fn a_stage_written_twice_is_refused() {
    let folder = folder();
    folder.record("twice", "-n 0 --stages logits");
    folder.write("map", "mine = logits\nyours = logits\n");
    python(
        &folder,
        "import io, os, shutil, warnings, zipfile
import numpy as np
warnings.simplefilter('ignore')
a = io.BytesIO()
np.save(a, np.load('twice/capture.npz')['prefill/logits'])
os.makedirs('mapped')
shutil.copy('twice/manifest.json', 'mapped')
for file, names in [('twice', ['logits', 'logits']), ('mapped', ['mine', 'yours'])]:
    with zipfile.ZipFile(file + '/capture.npz', 'w') as z:
        for name in names: z.writestr('prefill/' + name + '.npy', a.getvalue())",
    );
    for (args, expected) in [("twice", "two arrays of one name"), ("mapped --map map", "there already")] {
        let said = folder.qdiff(&format!("run -m model.gguf --subject capture:{args} --json failed.json")).exits(2);
        assert!(said.stderr.contains(expected), "{said}");
        let report = folder.json("failed.json");
        assert!(report["verdict"].is_null() && report.to_string().contains(expected), "{report}");
    }
}
