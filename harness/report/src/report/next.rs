//! What to do after a run: the command to run next, and what an engine has to dump so that it tells more.

use super::Report;
use super::screen::{Line, Next};
use crate::diagnose::Finding;
use crate::mutations::Explains;
use crate::number::counted;
use qdiff_engine::model::StageId;

/// Most layers of a segment whose stages are all listed; with more, the last stage of each layer comes first.
const WHOLE: usize = 2;

/// Stages that are named one by one.
const NAMED: usize = 24;

/// Stages of a layer that a command names one by one.
const FEW: usize = 4;

/// The path of qdiff's own engine that does not hand out every stage, as a command names it.
const FUSED: &str = "--subject cuda-fast";

/// The command to run next.
pub(super) fn next(report: &Report) -> Next {
    let command = &report.run.command;
    let Some(first) = report.diagnosis.findings.first() else {
        let repeat = report.run.repeat();
        let full = repeat.split_whitespace().any(|word| word == "--full");
        let (option, why) =
            if full { ("--html report.html", "every stage on a page") } else { ("--full", "a row per layer") };
        return Next { command: format!("{repeat} {option}"), why };
    };
    let layer = first.id.layer.map_or_else(String::new, |l| format!(" --layers {l}"));
    let alone = format!("{command} --stages '{}'{layer}", first.id.name);
    let tapped = command.contains(" --taps ");
    if known(first) {
        return Next { command: format!("{alone} --full"), why: "the first origin alone" };
    }
    match wanted(report, first).as_slice() {
        [] if report.run.dumped || tapped || report.repeated.is_some() => Next {
            command: format!("{alone} --html origin.html"),
            why: "the wrong elements of the first origin as a map",
        },
        // Several sequences run once.
        [] if command.contains(" --sequences ") => {
            Next { command: format!("{alone} --full"), why: "the first origin alone" }
        }
        [] => Next {
            command: format!("{alone} --repeat 3"),
            why: "whether the origin is wrong in the same way each time",
        },
        _ if report.run.dumped => {
            Next { command: report.run.repeat(), why: "the same again, once the engine dumps these stages too" }
        }
        wanted if tapped => Next {
            command: format!("{command} --taps '{}'", patterns(wanted).join(",")),
            why: "the same with these stages tapped too",
        },
        // What a fused kernel keeps to itself, the other path of the engine hands out.
        _ if command.contains(FUSED) => {
            Next { command: command.replace(FUSED, "--subject cuda"), why: "the same without fused kernels" }
        }
        _ => Next { command: format!("{alone} --full"), why: "the first origin alone" },
    }
}

/// Stages as `--taps` takes them: the pattern of a layer in place of many names.
fn patterns(wanted: &[StageId]) -> Vec<String> {
    let by_layer = wanted.chunk_by(|a, b| a.layer == b.layer);
    let words = by_layer.flat_map(|stages| {
        let names: Vec<String> = stages.iter().map(ToString::to_string).collect();
        match names[0].rsplit_once('.') {
            Some((layer, _)) if names.len() > FEW => vec![format!("{layer}.*")],
            _ => names,
        }
    });
    words.collect()
}

/// What of the first origin was not dumped, where no cause is known: which of it to dump, and how.
pub(super) fn dump(report: &Report) -> Vec<Line> {
    let Some(first) = report.diagnosis.findings.first().filter(|f| !known(f)) else { return Vec::new() };
    let wanted = wanted(report, first);
    let [sample, ..] = wanted.as_slice() else { return Vec::new() };
    let names: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    let list = match names.as_slice() {
        [from, .., to] if names.len() > NAMED => format!("{from} … {to}"),
        all => all.join(" "),
    };
    let stages = counted(names.len(), "stage");
    let text = format!("{list}: {stages} that qdiff did not see; with their values it finds the wrong one");
    let mut lines = vec![("dump", text)];
    if report.run.dumped {
        let (name, layer) = (sample.name, sample.layer.map_or(-1, i32::from));
        let python = sample.layer.map_or_else(String::new, |l| format!(", layer={l}"));
        let text = format!(
            "one for each stage; in C: QDIFF_TAP(qd, \"{name}\", {layer}, data, QDIFF_F32, ndim, dims, strides); \
             in Python: capture.add(\"{name}\", array{python})"
        );
        lines.push(("lines", text));
    }
    lines
}

/// Whether it is known what is wrong, and not only where.
fn known(finding: &Finding) -> bool {
    let named = finding.cause.as_ref().is_some_and(|c| c.kind != Explains::Place);
    named || finding.solution.is_some() || finding.unread || finding.evident
}

/// The stages of the segment that a finding was judged over and that were captured in no step: all of them, or, of a segment
/// over many layers, the last of each layer.
fn wanted(report: &Report, finding: &Finding) -> Vec<StageId> {
    let judged = |id: StageId| report.diagnosis.verdict.stages.iter().find(|s| s.id == id)?.subject.as_ref();
    let segment = judged(finding.id).and_then(|local| local.segment.as_ref());
    let inside = segment.iter().flat_map(|s| &s.stages).copied();
    let inside: Vec<StageId> = inside.filter(|id| *id != finding.id && judged(*id).is_none()).collect();
    let by_layer: Vec<&[StageId]> = inside.chunk_by(|a, b| a.layer == b.layer).collect();
    if by_layer.len() <= WHOLE {
        return inside;
    }
    by_layer.into_iter().filter_map(|layer| layer.last().copied()).collect()
}
