//! The first two pages: what qdiff is, what was measured and on which set, and what qdiff cannot do. Every figure is counted
//! from the same files as the tables behind.

use super::runs::Figures;
use super::verdicts::share;
use super::{Book, Judgement, OnFile};
use crate::score::{Case, Grading, Score, Worth};
use qdiff::number::counted;
use qdiff::report::{Outcome, Section, Table, grouped, markdown};

/// The pages.
pub(super) fn render(book: &Book, out: &mut String) {
    out.push_str(WHAT);
    let rows = [runs(book), alarms(book), scores(book), costs(book), speeds(book), field(book)].concat();
    let table = Table::new(&["question", "result", "measured on"], &[], rows.into_iter().map(Vec::from));
    markdown::section(&Section::table("What was measured", table), 3, out);
    out.push_str(WORDS);
    out.push_str(LIMITS);
}

const WHAT: &str = "\n## Summary\n\n\
### What qdiff is\n\n\
A large language model can run on many engines. An engine with a bug still prints text, and the text is often plausible.\n\
qdiff finds the bug. qdiff runs the engine and llama.cpp on the same model and the same tokens, and captures the result of\n\
every step of the computation, called a stage. qdiff then computes each stage again in double precision from the inputs\n\
that the engine itself used. Rounding explains a small error; qdiff computes how much. A stage with a larger error is wrong.\n\n\
The answer is one of these: MATCH (every stage is correct), DIVERGED (the first wrong stage, its positions, and where qdiff\n\
can tell, the cause), INCOMPLETE (no wrong stage was found, and not everything could be judged), REFERENCE-SUSPECT\n\
(llama.cpp alone is wrong), or an error message.\n";

const WORDS: &str = "\nA planted fault is a bug that was put into an engine on purpose. Faults that share no code with qdiff's catalogue of known\n\
bugs are called independent; only independent faults count. A fault is inert if its effect is smaller than correct rounding:\n\
no method can find such a fault, and the tables list each one. The goal of a score is: every fault at its stage, 90 of 100\n\
causes right, no false cause, no false alarm. A model is named as its file names itself: the default model,\n\
Qwen2.5-Coder-0.5B-Instruct in Q4_K_M, says AWQ, and most of its blocks are Q5_0.\n";

const LIMITS: &str = "\n### What qdiff cannot do\n\n\
- **Other models.** qdiff knows Qwen2, Qwen2.5, Qwen3, Qwen3-Next and Qwen3.5. README.md lists the architectures. Of other\n\
models qdiff says that it does not know them.\n\
- **Engines that show nothing.** An engine must dump arrays. With the embedding, one array per layer and the logits, qdiff\n\
names the layer. qdiff names the stage only if the stages of that layer are dumped too.\n\
- **Every cause.** The stage is found more often than the cause. Where no cause is known, qdiff says so and describes the error.\n\
The table above counts the causes that are right and those that are false.\n\
- **Errors within rounding.** In bfloat16 the rounding is large, and qdiff allows what it must. An error below that is not\n\
seen. Rows where rounding could hide a fault are counted as inconclusive, never as correct.\n\
- **Bugs that a run does not reach.** A verdict holds for its tokens and lengths. The report lists what a run did not exercise;\n\
`qdiff check` tries more.\n\
- **Quality.** qdiff does not say whether a model or its quantisation is good. qdiff says whether an engine computes what the\n\
model file says.\n\n\
### What follows\n\n\
The tables behind this page are complete and long. [Every model on every path](#every-model-on-every-path) has the verdicts.\n\
[What qdiff found in the field](#what-qdiff-found-in-the-field) describes bugs and differences in unchanged engines.\n\
[How often a fault is found and named](#how-often-a-fault-is-found-and-named) has every planted fault that was missed or named\n\
wrongly. [Speed](#speed) has times and memory. All figures come from files in `goldens/`; each table names its command.\n";

type Row = [String; 3];

/// How many runs of engines as they are were judged, with which verdict.
fn runs(book: &Book) -> Vec<Row> {
    let all: Vec<_> = book.runs.iter().flat_map(|runs| &runs.runs).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let matched = all.iter().filter(|run| run.outcome == Outcome::Match).count();
    let sum = |of: fn(&super::Rows) -> usize| all.iter().map(|run| of(&run.coverage)).sum::<usize>();
    let worst = all.iter().filter_map(|run| run.worst(|s| s.subject)).reduce(Figures::or);
    let models = grouped(&all, |run| &run.model.sha256).len();
    let paths = grouped(&all, |run| (&run.model.sha256, run.path())).len();
    vec![[
        "Do qdiff's own engines and llama.cpp agree?".to_owned(),
        format!(
            "{matched} of {} are MATCH; {} of {} stage rows were judged; the largest error is {} of what rounding allows",
            counted(all.len(), "run"),
            sum(|c| c.judged),
            sum(|c| c.asked),
            share(worst)
        ),
        format!("{}, {} through the engines, built-in prompts", counted(models, "model file"), counted(paths, "path")),
    ]]
}

/// How near unusual right engines come.
fn alarms(book: &Book) -> Vec<Row> {
    let engines: Vec<_> = book.alarms.iter().flat_map(|alarms| &alarms.engines).collect();
    let Some(most) = engines.iter().map(|engine| engine.percent).max() else { return Vec::new() };
    let (captures, wrong): (usize, usize) =
        engines.iter().fold((0, 0), |(c, d), engine| (c + engine.captures, d + engine.diverged));
    vec![[
        "Is a right engine accused?".to_owned(),
        format!("{wrong} of {captures} captures; the largest error is {most} % of what rounding allows"),
        format!("{} of correct arithmetic, one small synthetic model", counted(engines.len(), "style")),
    ]]
}

/// Whether planted bugs are found and named: a row for each score.
fn scores(book: &Book) -> Vec<Row> {
    let row = |score: &Score| {
        let cases: Vec<&Case> = score.independent().collect();
        let count = |right: fn(&Case) -> bool| cases.iter().filter(|c| right(c)).count();
        let graded = match score.grading {
            Grading::Prediction => "right on other tokens",
            Grading::Words => "named in the right words",
        };
        let alarms = match score.clean.alarms.len() {
            0 => "no false alarm".to_owned(),
            n => counted(n, "false alarm"),
        };
        [
            format!("Is a planted bug of the {} engine found and named?", score.subject),
            format!(
                "{} of {} are found at their stage; {} causes are {graded}, {} false; {alarms} in {}; the goal is {}",
                count(|c| c.detected && c.stage_right),
                counted(cases.len(), "independent fault"),
                count(Case::cause_right),
                count(|c| c.worth == Some(Worth::False)),
                counted(score.clean.runs, "clean run"),
                if score.reached() { "reached" } else { "missed" },
            ),
            match score.models.as_slice() {
                [only] => format!("{}: {only}", score.on),
                several => format!("{}: {}", score.on, counted(several.len(), "model")),
            },
        ]
    };
    book.scores.iter().map(row).collect()
}

/// What a verdict takes.
fn costs(book: &Book) -> Vec<Row> {
    let row = |cost: &super::VerdictCost| {
        let (own, other) = (&cost.own, &cost.other);
        [
            "What does a verdict cost?".to_owned(),
            format!(
                "{:.2} s and {:.0} MiB for the prompt {}, {:.2} times the time of llama.cpp's llama-eval-callback; {:.1} s \
                 and {:.0} MiB for the prompt long",
                own.wall,
                own.peak,
                cost.prompt,
                own.wall / other.wall,
                cost.long.wall,
                cost.long.peak
            ),
            format!("{}, {}", cost.model, cost.machine),
        ]
    };
    book.costs.iter().map(row).collect()
}

/// How fast the engine on a GPU is beside llama.cpp: every measurement of one card that was made beside it, in a row.
fn speeds(book: &Book) -> Vec<Row> {
    let benches = book.benches.iter().filter_map(|bench| match bench {
        OnFile::Cuda(bench) if bench.rows.iter().any(|row| row.ratio.is_some()) => Some(bench),
        OnFile::Cuda(_) | OnFile::Verdict(_) => None,
    });
    let rows = grouped(benches, |bench| &bench.device).into_iter().filter_map(|(device, benches)| {
        let of = |what: &str| {
            let ratios = benches.iter().flat_map(|b| &b.rows).filter(|row| row.what == what && row.who == "cuda-fast");
            let mut ratios: Vec<f64> = ratios.filter_map(|row| row.ratio).collect();
            ratios.sort_by(f64::total_cmp);
            Some(format!("{:.2} to {:.2}", ratios.first()?, ratios.last()?))
        };
        let (prefill, decode) = (of("prefill")?, of("decode")?);
        Some([
            "How fast is qdiff's CUDA engine (cuda-fast)?".to_owned(),
            format!("{prefill} times llama.cpp in prefill, {decode} times in decode"),
            format!("{device}, {}", counted(benches.len(), "measurement")),
        ])
    });
    rows.collect()
}

/// What was found in engines that nobody had changed.
fn field(book: &Book) -> Vec<Row> {
    let findings: Vec<_> = book.field.iter().flat_map(|field| &field.findings).collect();
    if findings.is_empty() {
        return Vec::new();
    }
    let count = |judgement| findings.iter().filter(|f| f.judgement == judgement).count();
    vec![[
        "What did qdiff find in engines as they are?".to_owned(),
        format!(
            "{}, {} between correct engines explained, {} refuted; FIELD.md has released engines",
            counted(count(Judgement::Defect), "defect"),
            counted(count(Judgement::Legitimate), "difference"),
            counted(count(Judgement::Refuted), "suspicion")
        ),
        grouped(&findings, |f| &f.subject).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("; "),
    ]]
}
