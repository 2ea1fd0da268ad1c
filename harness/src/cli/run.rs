//! `qdiff run`.

use super::args::{Reference, RunArgs, Subject};
use super::session::{self, Opened};
use super::{exit, say, verify_oracle};
use crate::capture::{Capture, Filter, npz};
use crate::mutations::Injection;
use crate::oracle::Oracle;
use crate::report::{ModelInfo, Report, RunInfo, SCHEMA_VERSION, json, terminal};
use crate::runners::{self, Arithmetic, Manifest, Runner, cpu::Cpu, cuda::Cuda, llama::Llama};
use crate::verdict::{Policy, Side, judge};
use crate::weights;
use anyhow::{Result, bail};
use qdiff_engine::model::Graph;
use qdiff_engine::quant::GgmlType;
use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

/// Runs both sides, judges, reports; gives the exit code.
pub(super) fn run(args: &RunArgs) -> Result<u8> {
    let injections = args
        .inject
        .iter()
        .map(|text| Injection::parse(text))
        .collect::<Result<Vec<_>>>()?;
    if let Some(path) = &args.json {
        json::check(path)?;
    }
    let on_cuda = subject_is_cuda(args)?;
    let threads = session::threads(args.prompt.threads)?;
    let opened = session::open(args.prompt.model.as_ref())?;
    let bytes = opened.model.gguf().bytes();
    let oracle = Oracle::new(&opened.path, bytes, &opened.llama)?;
    let filter = Filter::new(
        &oracle.graph,
        &args.stages,
        args.layers.as_deref(),
        args.positions.as_deref(),
    )?;
    let policy = Policy::new(&oracle.graph, &args.tolerance)?;
    let recorded = Recorded::open(args)?;
    let (prompt, tokens) = match recorded.manifest() {
        Some(manifest) => ("recorded".to_owned(), manifest.tokens.clone()),
        None => session::tokens(&opened, &args.prompt)?,
    };
    let steps = recorded.manifest().map_or(&[][..], |m| &m.decoded);
    session::check(
        &opened,
        &[&tokens, steps].concat(),
        if steps.is_empty() {
            args.prompt.decode
        } else {
            0
        },
    )?;
    filter.check(
        &oracle.graph,
        tokens.len() + steps.len().max(args.prompt.decode),
    )?;
    let mut graph = opened.model.graph().clone();
    let injected = injections
        .iter()
        .map(|i| i.apply(&mut graph))
        .collect::<Result<Vec<_>>>()?;

    let (hash, checked) = std::thread::scope(|scope| {
        let hash = scope.spawn(|| session::sha256(bytes));
        let checked = weights::check(&opened.model, &oracle);
        (hash.join().expect("hashing does not panic"), checked)
    });
    recorded.check_model(&hash)?;

    let sides = Sides {
        opened: &opened,
        oracle: &oracle,
        filter: &filter,
        decode: recorded
            .manifest()
            .map_or(args.prompt.decode, |m| m.decoded.len()),
        threads,
    };
    let forced = recorded.manifest().map(|m| m.decoded.as_slice());
    let (reference, fed, of_reference) = match &recorded.reference {
        Some((folder, manifest)) => {
            let (capture, of) = sides.recorded(folder, manifest)?;
            (capture, manifest.decoded.clone(), of)
        }
        None => sides.reference(&tokens, forced)?,
    };
    let (subject, of_subject) = match &recorded.subject {
        Some((folder, manifest)) => sides.recorded(folder, manifest)?,
        None if on_cuda => sides.cuda(&tokens, &fed)?,
        None => sides.cpu(&tokens, &fed, graph, injected)?,
    };

    let bar = session::progress("judging against f64", oracle.graph.nodes.len());
    let verdict = judge(
        &oracle,
        Side {
            capture: &subject,
            arithmetic: &of_subject.arithmetic,
        },
        Side {
            capture: &reference,
            arithmetic: &of_reference.arithmetic,
        },
        &filter,
        &policy,
        &|done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        },
    );
    bar.finish_and_clear();

    let mut code = if verdict.diverged() || !checked.mismatches.is_empty() {
        exit::DIVERGED
    } else if verdict.coverage.complete() {
        exit::MATCH
    } else {
        exit::INCOMPLETE
    };
    let mut doubt = None;
    if !verdict.diverged() && verdict.disputed().next().is_some() {
        let suspects: Vec<_> = verdict.disputed().map(|s| s.id.name).collect();
        match verify_oracle::failing(&opened, &tokens, &fed, threads) {
            Ok(failing) if suspects.iter().any(|s| failing.contains(s)) => {
                doubt = Some(
                    "oracle-suspect: llama.cpp misses f64 with F32 weights too; qdiff itself is in doubt".to_owned(),
                );
                code = exit::TROUBLE;
            }
            Ok(_) => {
                doubt = Some(
                    "reference-suspect: with F32 weights llama.cpp meets f64 on these tokens"
                        .to_owned(),
                );
                code = exit::DIVERGED;
            }
            Err(e) => {
                doubt = Some(format!(
                    "which of the two is wrong could not be tested: {e:#}"
                ));
                code = exit::TROUBLE;
            }
        }
    }

    let decoded_text = fed.iter().map(|&t| opened.llama.piece(t)).collect();
    let report = Report {
        schema_version: SCHEMA_VERSION,
        model: describe(&opened, hash),
        run: RunInfo {
            prompt: prompt.clone(),
            tokens,
            decoded: fed,
            decoded_text,
            command: command(args, on_cuda),
            filters: filters(args),
        },
        subject: of_subject,
        reference: of_reference,
        weights: checked,
        verdict,
        doubt,
    };
    say(&terminal::render(&report, args.full))?;
    save(&report, args, &prompt)?;
    Ok(match code {
        exit::TROUBLE | exit::INCOMPLETE if args.bisect => exit::SKIP,
        code => code,
    })
}

/// The captures that stand for live runners.
struct Recorded {
    subject: Option<(PathBuf, npz::Manifest)>,
    reference: Option<(PathBuf, npz::Manifest)>,
}

impl Recorded {
    fn open(args: &RunArgs) -> Result<Self> {
        let open = |folder: &PathBuf| npz::manifest(folder).map(|m| (folder.clone(), m));
        let recorded = Self {
            subject: match &args.subject {
                Subject::Capture(folder) => Some(open(folder)?),
                _ => None,
            },
            reference: match &args.reference {
                Reference::Capture(folder) => Some(open(folder)?),
                Reference::Llama => None,
            },
        };
        if let (Some((a, x)), Some((b, y))) = (&recorded.subject, &recorded.reference)
            && (x.tokens != y.tokens || x.decoded != y.decoded)
        {
            bail!(
                "{} and {} are captures of different tokens; record both on the same ones",
                session::show(a),
                session::show(b)
            );
        }
        Ok(recorded)
    }

    /// The manifest whose tokens the run is about.
    fn manifest(&self) -> Option<&npz::Manifest> {
        self.subject
            .as_ref()
            .or(self.reference.as_ref())
            .map(|(_, m)| m)
    }

    fn check_model(&self, sha256: &str) -> Result<()> {
        for (folder, manifest) in self.subject.iter().chain(&self.reference) {
            if let Some(other) = manifest.model_sha256.as_ref().filter(|h| *h != sha256) {
                bail!(
                    "{} was recorded on another model (sha256 {other}, this one has {sha256}); name that model with -m",
                    session::show(folder)
                );
            }
        }
        Ok(())
    }
}

/// Whether the subject runs on a GPU; `auto` says what it took.
fn subject_is_cuda(args: &RunArgs) -> Result<bool> {
    match &args.subject {
        Subject::Capture(_) if !args.inject.is_empty() => {
            bail!("--inject cannot change a recorded capture; use --subject cpu")
        }
        Subject::Cpu | Subject::Capture(_) => Ok(false),
        Subject::Cuda if !args.inject.is_empty() => {
            bail!("--inject rewrites the graph that the CPU engine interprets; use --subject cpu")
        }
        Subject::Cuda => {
            qdiff_engine::cuda::devices()?;
            Ok(true)
        }
        Subject::Auto if !args.inject.is_empty() => Ok(false),
        Subject::Auto => {
            let found = qdiff_engine::cuda::devices();
            if let (Err(e), true) = (&found, std::io::stderr().is_terminal()) {
                anstream::eprintln!("qdiff: the subject is the CPU engine: {e}");
            }
            Ok(found.is_ok())
        }
    }
}

struct Sides<'a> {
    opened: &'a Opened,
    oracle: &'a Oracle<'a>,
    filter: &'a Filter,
    decode: usize,
    threads: usize,
}

impl Sides<'_> {
    fn capture(
        &self,
        runner: &mut dyn Runner,
        what: &'static str,
        tokens: &[u32],
        forced: Option<&[u32]>,
    ) -> Result<(Capture, Vec<u32>)> {
        let wanted = self.filter.capture_set(&self.oracle.graph);
        let logits = self.oracle.graph.nodes[self.oracle.graph.nodes.len() - 1].id;
        let bar = session::progress(what, self.decode + 1);
        let done = runners::run(runner, tokens, self.decode, forced, &wanted, logits, |i| {
            bar.set_position(i as u64 + 1);
        });
        bar.finish_and_clear();
        done
    }

    fn reference(
        &self,
        tokens: &[u32],
        forced: Option<&[u32]>,
    ) -> Result<(Capture, Vec<u32>, Manifest)> {
        let n_ctx = tokens.len() + self.decode;
        let mut llama = Llama::new(&self.opened.llama, &self.oracle.graph, n_ctx, self.threads)?;
        let (capture, fed) = self.capture(&mut llama, "running llama.cpp", tokens, forced)?;
        Ok((capture, fed, llama.manifest().clone()))
    }

    fn recorded(&self, folder: &Path, manifest: &npz::Manifest) -> Result<(Capture, Manifest)> {
        let capture = npz::read(folder, manifest, &self.oracle.graph)?;
        let declared = if manifest.arithmetic.is_some() {
            ""
        } else {
            ", arithmetic not declared: f32 assumed"
        };
        let of = Manifest {
            name: format!("{} (recorded{declared})", manifest.engine),
            arithmetic: manifest.arithmetic.clone().unwrap_or_else(Arithmetic::f32),
            injected: Vec::new(),
        };
        Ok((capture, of))
    }

    fn cuda(&self, tokens: &[u32], fed: &[u32]) -> Result<(Capture, Manifest)> {
        let n_ctx = tokens.len() + self.decode;
        let mut cuda = Cuda::new(&self.opened.model, tokens.len(), n_ctx)?;
        let (capture, _) =
            self.capture(&mut cuda, "running the subject (cuda)", tokens, Some(fed))?;
        Ok((capture, cuda.manifest().clone()))
    }

    fn cpu(
        &self,
        tokens: &[u32],
        fed: &[u32],
        graph: Graph,
        injected: Vec<String>,
    ) -> Result<(Capture, Manifest)> {
        let mut cpu = Cpu::new(&self.opened.model, graph, injected);
        let (capture, _) =
            self.capture(&mut cpu, "running the subject (cpu)", tokens, Some(fed))?;
        Ok((capture, cpu.manifest().clone()))
    }
}

fn describe(opened: &Opened, sha256: String) -> ModelInfo {
    let mut bytes: HashMap<GgmlType, u64> = HashMap::new();
    for t in opened.model.gguf().tensors() {
        *bytes.entry(t.ggml_type).or_default() += t.size;
    }
    let most = bytes
        .iter()
        .max_by_key(|(_, n)| **n)
        .map(|(t, _)| t.to_string());
    let config = &opened.model.graph().config;
    ModelInfo {
        path: session::show(&opened.path),
        name: config.name.clone(),
        arch: config.arch.clone(),
        layers: config.n_layers,
        format: format!("(mostly {})", most.unwrap_or_default()),
        sha256,
    }
}

/// The report's file: the one asked for, else one under `qdiff-report/`, which
/// is a courtesy and fails with a remark only.
fn save(report: &Report, args: &RunArgs, prompt: &str) -> Result<()> {
    if let Some(path) = &args.json {
        json::write(report, path)?;
        return say(&format!("report     {}\n", session::show(path)));
    }
    let folder: PathBuf = Path::new("qdiff-report").join(file_name(prompt));
    let path = folder.join("report.json");
    match std::fs::create_dir_all(&folder)
        .map_err(Into::into)
        .and_then(|()| json::write(report, &path))
    {
        Ok(()) => say(&format!("report     {}\n", session::show(&path))),
        Err(e) => {
            anstream::eprintln!("qdiff: no report file: {e:#}");
            Ok(())
        }
    }
}

fn file_name(prompt: &str) -> String {
    prompt
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .collect()
}

fn command(args: &RunArgs, on_cuda: bool) -> String {
    let quote = |s: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,".contains(c);
        if !s.is_empty() && s.chars().all(plain) {
            s.to_owned()
        } else {
            format!("'{}'", s.replace('\'', r"'\''"))
        }
    };
    let mut words = vec!["qdiff run".to_owned()];
    let recorded = matches!(args.subject, Subject::Capture(_))
        || matches!(args.reference, Reference::Capture(_));
    if recorded {
        // The capture names the tokens.
    } else if args.prompt.tokens.is_empty() {
        words.push(format!("--prompt {}", quote(&args.prompt.prompt)));
    } else {
        let ids: Vec<String> = args.prompt.tokens.iter().map(ToString::to_string).collect();
        words.push(format!("--tokens {}", ids.join(",")));
    }
    if args.prompt.raw {
        words.push("--raw".to_owned());
    }
    if args.prompt.decode != 8 {
        words.push(format!("-n {}", args.prompt.decode));
    }
    match &args.subject {
        Subject::Auto => {}
        Subject::Capture(folder) => words.push(format!(
            "--subject {}",
            quote(&format!("capture:{}", folder.display()))
        )),
        _ => words.push(format!(
            "--subject {}",
            if on_cuda { "cuda" } else { "cpu" }
        )),
    }
    if let Reference::Capture(folder) = &args.reference {
        words.push(format!(
            "--reference {}",
            quote(&format!("capture:{}", folder.display()))
        ));
    }
    words.extend(args.inject.iter().map(|i| format!("--inject {}", quote(i))));
    words.extend(
        args.tolerance
            .iter()
            .map(|t| format!("--tolerance {}", quote(t))),
    );
    words.join(" ")
}

fn filters(args: &RunArgs) -> String {
    let mut words = Vec::new();
    if !args.stages.is_empty() {
        words.push(format!("--stages {}", args.stages.join(",")));
    }
    words.extend(args.layers.iter().map(|l| format!("--layers {l}")));
    words.extend(args.positions.iter().map(|p| format!("--positions {p}")));
    words.join(" ")
}
