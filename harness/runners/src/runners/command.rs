//! Any engine as a runner, by the command that starts it. `cmd:` runs once for all tokens and leaves a dump; `serve:` stays
//! up, reads a step as a line of JSON from its standard input, and answers with a line when the dump of it is whole.

use super::kind::CommandLine;
use super::process::Process;
use super::{Manifest, Reads, Runner, RunnerKind, Start, Tokens};
use crate::arithmetic::Arithmetic;
use crate::capture::dump::Expected;
use crate::capture::manifest::SCHEMA_VERSION;
use crate::capture::{Fed, Lengths, Names, Passes, Plan, Step, Store, Want, container, raw};
use crate::home::Home;
use crate::metrics::argmax;
use crate::own::OwnFolder;
use anyhow::{Context as _, Result, bail, ensure};
use qdiff_engine::cpu::Row;
use qdiff_engine::model::Graph;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What stands before a command that runs once.
pub const RUN: &str = "cmd:";

/// What stands before a command that stays up.
pub const SERVE: &str = "serve:";

/// What qdiff replaces in a command: the word in braces, and what takes its place.
pub const PLACEHOLDERS: [(&str, &str); 10] = [
    ("model", "the model: a GGUF file, or a folder of safetensors"),
    ("dir", "the folder to dump to; the variable QDIFF_DUMP names it too"),
    ("tokens", "a file with the ids of the prompt, one a line"),
    ("ids", "these ids, with commas between them"),
    ("n", "how many tokens to decode, where the engine chooses them"),
    ("decoded", "a file with the ids to feed at the decode steps, one a line"),
    ("decoded_ids", "these ids, with commas between them"),
    ("ubatch", "the most tokens of the prompt in one pass"),
    ("passes", "the lengths of all passes over the prompt, with commas between them"),
    ("sequences", "a file with a line of JSON for each pass of several sequences"),
];

/// The folder that a command dumps to, in the one of its run.
const DUMP: &str = "dump";

/// A file that is as old as the run.
const BEGUN: &str = "begun";

/// The file of passes of several sequences.
const PASSES: &str = "passes";

/// What says of a dump which tokens it is of.
const MANIFEST: &str = "manifest.json";

impl CommandLine {
    /// Whether the command has this placeholder.
    fn takes(&self, placeholder: &str) -> bool {
        self.serves || self.line.contains(&format!("{{{placeholder}}}"))
    }

    /// Whether it takes the number of tokens to decode.
    pub fn decodes(&self) -> bool {
        self.takes("n") || self.forced()
    }

    /// Whether it takes the tokens to feed.
    pub fn forced(&self) -> bool {
        self.takes("decoded") || self.takes("decoded_ids") || self.rows_alone()
    }

    /// Whether it takes rows of sequences and no prompt: a run of one sequence is passes of its rows.
    fn rows_alone(&self) -> bool {
        !self.serves && self.sequences() && !self.takes("tokens") && !self.takes("ids")
    }

    /// Whether it feeds what somebody else chose, and chooses nothing.
    pub fn waits(&self) -> bool {
        !self.serves && self.forced()
    }

    /// Whether it takes the parts of the prompt.
    pub fn parts(&self) -> bool {
        self.takes("ubatch") || self.passes()
    }

    /// Whether it takes passes with rows of several sequences.
    pub fn sequences(&self) -> bool {
        self.takes("sequences")
    }

    /// Whether it takes passes of any lengths.
    pub fn passes(&self) -> bool {
        self.takes("passes") || self.rows_alone()
    }

    /// Refuses a command that takes no tokens, or begins with a program that is not there; one that stays up if it has a
    /// placeholder for what is sent to it later.
    ///
    /// # Errors
    /// What is missing, or the placeholder.
    pub fn check(&self) -> Result<()> {
        let sent = |name: &str| !["model", "dir"].contains(&name) && self.line.contains(&format!("{{{name}}}"));
        if let Some((name, _)) = PLACEHOLDERS.iter().find(|(name, _)| self.serves && sent(name)) {
            bail!(
                "`{SERVE} {}` has {{{name}}}, and {SERVE} takes {{model}} and {{dir}} alone: qdiff sends the tokens of each step \
                 to the engine's standard input",
                self.line
            );
        }
        ensure!(
            self.takes("tokens") || self.takes("ids") || self.sequences(),
            "`{RUN} {}` takes no tokens: it needs {{tokens}}, a file of ids, or {{ids}}",
            self.line
        );
        let Some(program) = self.program() else { return Ok(()) };
        let asked = Command::new("sh").args(["-c", "command -v \"$0\" >/dev/null", program]).status();
        ensure!(
            asked.context("cannot start sh, which runs commands")?.success(),
            "`{} {}` begins with {program}, and there is no such program; build it, or mend its path",
            self.kind(),
            self.line
        );
        Ok(())
    }

    /// What stands before it.
    fn kind(&self) -> &'static str {
        if self.serves { SERVE } else { RUN }
    }

    /// The first word, where the shell takes it for a program or a command of its own for any words behind it.
    fn program(&self) -> Option<&str> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        self.line.split_whitespace().next().filter(|word| word.chars().all(plain))
    }
}

/// The runner of this name, if it is a command: made when it is first named.
pub fn kind(name: &str) -> Option<&'static RunnerKind> {
    static KINDS: Mutex<Vec<&'static RunnerKind>> = Mutex::new(Vec::new());
    let (line, serves) = match (name.strip_prefix(RUN), name.strip_prefix(SERVE)) {
        (Some(line), _) => (line.trim(), false),
        (_, Some(line)) => (line.trim(), true),
        _ => return None,
    };
    if line.is_empty() {
        return None;
    }
    let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kind) = kinds.iter().find(|kind| kind.name == name) {
        return Some(kind);
    }
    let command = CommandLine { line: line.to_owned().leak(), serves };
    let kind: &'static RunnerKind = Box::leak(Box::new(RunnerKind {
        name: name.to_owned().leak(),
        about: "a command",
        faults: false,
        llama: false,
        sequences: command.sequences(),
        shifts: false,
        ranks: true,
        device: false,
        reads: |_| Reads::Stored,
        ready: || Ok(()),
        start: Start::Command(command),
    }));
    kinds.push(kind);
    Some(kind)
}

/// An engine behind a command, for one run.
pub struct Engine {
    /// Of `serve:`, once it is started. It ends before its folder goes.
    running: Option<Process>,
    command: CommandLine,
    model: PathBuf,
    timeout: Duration,
    graph: Graph,
    names: Names,
    manifest: Manifest,
    /// Holds the dump and the files of ids, each run in a folder of its own.
    home: Home,
    /// The same, independent of what the command does with its path.
    own: OwnFolder,
    /// Where it dumps.
    dump: PathBuf,
    steps: usize,
    position: usize,
    /// Whether the prompt was run before the rest of the tokens was known.
    begun: bool,
}

impl Engine {
    /// For the model in this file, with a folder of its own in `tmp`. What it does may take `timeout` at the longest.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn new(command: CommandLine, model: &Path, graph: &Graph, tmp: &Path, timeout: Duration) -> Result<Self> {
        let home = Home::new(".qdiff-command-", tmp);
        let home =
            home.with_context(|| format!("cannot write in {}; name another folder with --tmp", tmp.display()))?;
        let (dump, own) = (home.path().join(DUMP), OwnFolder::open(home.path())?);
        std::fs::create_dir(&dump).context("cannot make the folder to dump to")?;
        let name = format!("{} {}", command.kind(), command.line);
        Ok(Self {
            command,
            model: std::path::absolute(model)?,
            timeout,
            graph: graph.clone(),
            names: Names::of(graph),
            manifest: Manifest {
                name,
                arithmetic: Arithmetic::default(),
                injected: Vec::new(),
                stored: None,
                unkept: None,
            },
            home,
            own,
            dump,
            running: None,
            steps: 0,
            position: 0,
            begun: false,
        })
    }

    /// The command line, its placeholders replaced.
    fn line(&self, values: &[(&str, String)]) -> String {
        let model = self.model.display().to_string();
        let dump = self.dump.display().to_string();
        let own = [("model", model), ("dir", dump)];
        let all = own.iter().chain(values);
        all.fold(self.command.line.to_owned(), |line, (name, value)| {
            line.replace(&format!("{{{name}}}"), &quoted(value))
        })
    }

    fn file(&self, name: &str, ids: &[u32]) -> Result<String> {
        let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
        self.own.write(name, &text)?;
        Ok(self.home.path().join(name).display().to_string())
    }

    /// The file of these passes.
    fn passes(&self, fed: &[Fed]) -> Result<String> {
        let lines: String = fed.iter().enumerate().map(|(step, pass)| format!("{}\n", told(step, pass))).collect();
        self.own.write(PASSES, &lines)?;
        Ok(self.home.path().join(PASSES).display().to_string())
    }

    /// Runs the command once, for all tokens.
    fn run(&self, tokens: Tokens<'_>) -> Result<()> {
        let (command, decode) = (self.command, tokens.decode);
        ensure!(
            decode == 0 || command.decodes(),
            "`{}` takes no decode steps: it needs {{n}}, or {{decoded}} for the ids to feed, and {decode} are requested",
            self.manifest.name
        );
        let lengths = Lengths(tokens.fed().map(<[u32]>::len).collect());
        match tokens.passes {
            // An engine that is not told may know one way alone, token by token: its dump shows whether it does.
            Passes::Of(most) => ensure!(
                most == 1 || lengths.0.len() == 1 || command.parts(),
                "`{}` takes no parts of the prompt: it needs {{passes}} or {{ubatch}}, and parts of {most} tokens are requested",
                self.manifest.name
            ),
            Passes::Lengths(_) => ensure!(
                lengths.0.len() == 1 || command.passes(),
                "`{}` takes no passes: it needs {{passes}}, their lengths with commas between them, and passes of \
                 {lengths} tokens are requested",
                self.manifest.name
            ),
        }
        let ids = |ids: &[u32]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let forced = tokens.forced.unwrap_or_default();
        let passes: Vec<Fed> =
            if command.rows_alone() { of_one(tokens.fed().chain(forced.chunks(1))) } else { Vec::new() };
        let values = [
            ("sequences", self.passes(&passes)?),
            ("tokens", self.file("tokens", tokens.prompt)?),
            ("ids", ids(tokens.prompt)),
            ("n", decode.to_string()),
            ("decoded", self.file("decoded", forced)?),
            ("decoded_ids", ids(forced)),
            ("ubatch", if let Passes::Of(most) = tokens.passes { most } else { tokens.longest() }.to_string()),
            ("passes", lengths.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
        ];
        self.start(&values)
    }

    /// Runs the command once, with these words in the place of its placeholders.
    fn start(&self, values: &[(&str, String)]) -> Result<()> {
        let expected = self.begins()?;
        let line = self.line(values);
        let run = Process::start(&line, &self.dump, &expected.run, false).and_then(|run| run.finish(self.timeout));
        let run = run.map_err(|error| self.hint_at_ids(error, &line, values));
        let dumped = run.and_then(|()| {
            ensure!(
                std::fs::read_dir(&self.dump)?.next().is_some(),
                "`{}` wrote nothing into {{dir}}, which QDIFF_DUMP names too; it must dump its arrays into that folder",
                self.manifest.name
            );
            container::check_run(&self.dump, &expected).context("the engine's dump")
        });
        let Some(word) = unknown(&line) else { return dumped };
        dumped.with_context(|| {
            let names = PLACEHOLDERS.map(|(name, _)| format!("{{{name}}}")).join(", ");
            format!("the command has {word}, which qdiff does not replace; qdiff replaces {names}")
        })
    }

    /// The error of a command, with a hint at `{ids}` if the command complains about the path of its file of tokens.
    fn hint_at_ids(&self, error: anyhow::Error, line: &str, values: &[(&str, String)]) -> anyhow::Error {
        let file = values.iter().find(|(name, _)| *name == "tokens").map(|(_, path)| path.as_str());
        let complains = |path: &str| format!("{error:#}").matches(path).count() > line.matches(path).count();
        if file.is_some_and(complains) {
            return error.context("{tokens} is a file of ids; for the ids themselves, as 1,2,3, write {ids}");
        }
        error
    }

    /// The run that is about to begin: what the engine dumps must be of it.
    fn begins(&self) -> Result<Expected> {
        let since = self.home.path().join(BEGUN);
        self.own.write(BEGUN, "")?;
        Ok(Expected::now(&since))
    }

    /// Has the next tokens run by a command that stays up; gives the number of the step.
    fn feed(&mut self, tokens: &[u32]) -> Result<usize> {
        let step = self.steps;
        self.tell(&json!({ "step": step, "first": self.position, "tokens": tokens }))?;
        self.position += tokens.len();
        Ok(step)
    }

    /// Has a pass run by a command that stays up; gives its answer.
    fn tell(&mut self, told: &Value) -> Result<Value> {
        let step = self.steps;
        let mut begun = None;
        let running = match &mut self.running {
            Some(running) => running,
            None => {
                let (line, expected) = (self.line(&[]), self.begins()?);
                let running = Process::start(&line, &self.dump, &expected.run, true)?;
                begun = Some(expected);
                self.running.insert(running)
            }
        };
        let answer = running.ask(&format!("{told}\n"), self.timeout, |line| {
            let answer: Value = serde_json::from_str(line).ok()?;
            (answer.get("step").is_some() || answer.get("error").is_some()).then_some(answer)
        })?;
        if let Some(error) = answer.get("error") {
            bail!("`{}` says of step {step}: {error}", self.manifest.name);
        }
        ensure!(answer["step"] == step, "`{}` answers {answer} to a request for step {step}", self.manifest.name);
        if let Some(expected) = begun {
            container::check_run(&self.dump, &expected).context("the engine's dump")?;
        }
        self.steps += 1;
        Ok(answer)
    }

    /// Has the prompt run by a command that stays up.
    fn prefill(&mut self, tokens: Tokens<'_>) -> Result<()> {
        tokens.fed().try_for_each(|pass| self.feed(pass).map(drop))
    }

    /// What was dumped of a step of `tokens` that was fed.
    fn fed(&self, index: usize, tokens: &[u32], store: &Arc<Store>) -> Result<Step> {
        let step = Step::new(self.position - tokens.len(), tokens.to_vec());
        container::step(&self.dump, index, step, (&self.graph, &self.names), store)
    }

    /// Writes the manifest for an engine that wrote none: it ran the given tokens.
    fn complete(&self, tokens: Tokens<'_>, decoded: &[u32]) -> Result<()> {
        let there = self.dump.join(MANIFEST).symlink_metadata().is_ok();
        // Only the engine can name the tokens that it chose; lines that name the sequences of rows name tokens too.
        if there || self.chooses(tokens) || container::names_sequences(&self.dump) {
            return Ok(());
        }
        let mut manifest = json!({ "schema_version": SCHEMA_VERSION, "tokens": tokens.prompt, "decoded": decoded });
        match tokens.passes {
            Passes::Of(most) if most < tokens.prompt.len() => manifest["ubatch"] = most.into(),
            Passes::Of(_) => {}
            Passes::Lengths(_) => manifest["passes"] = tokens.lengths().into(),
        }
        self.describe(manifest)
    }

    /// Writes this manifest to the dump, with the name of the engine.
    fn describe(&self, mut manifest: Value) -> Result<()> {
        if !self.dump.join(raw::LINES).exists() {
            manifest["engine"] = self.manifest.name.as_str().into();
        }
        let dump = self.own.folder(DUMP).with_context(|| {
            format!(
                "`{}` put something else in the place of {{dir}}; it must dump into that folder",
                self.manifest.name
            )
        })?;
        dump.write(MANIFEST, &manifest.to_string())
    }
}

/// The first word in braces: a placeholder that is none, or a word of the shell.
fn unknown(line: &str) -> Option<&str> {
    let braces = line.match_indices('{').filter_map(|(at, _)| Some(&line[at..=at + line[at..].find('}')?]));
    braces
        .into_iter()
        .find(|word| word.len() > 2 && word[1..word.len() - 1].bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
}

impl Runner for Engine {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn begin(&mut self, tokens: Tokens<'_>) -> Result<()> {
        if self.command.serves {
            self.prefill(tokens)?;
            self.begun = true;
        }
        Ok(())
    }

    fn dump(&mut self, tokens: Tokens<'_>, store: &Arc<Store>) -> Result<Option<PathBuf>> {
        if !self.command.serves {
            self.run(tokens)?;
            self.complete(tokens, tokens.forced.unwrap_or_default())?;
            return Ok(Some(self.dump.clone()));
        }
        if !std::mem::take(&mut self.begun) {
            self.prefill(tokens)?;
        }
        let pass = tokens.fed().last().unwrap_or_default();
        let mut last = (self.steps.saturating_sub(1), pass);
        let mut decoded: Vec<u32> = Vec::with_capacity(tokens.decode);
        for index in 0..tokens.decode {
            let before = decoded.last().copied();
            let next = match tokens.forced {
                Some(forced) => forced[index],
                None => {
                    let fed = before.as_ref().map_or(last.1, std::slice::from_ref);
                    choice(&self.fed(last.0, fed, store)?).with_context(|| no_logits(&self.manifest.name))?
                }
            };
            last.0 = self.feed(&[next])?;
            decoded.push(next);
        }
        self.complete(tokens, &decoded)?;
        Ok(Some(self.dump.clone()))
    }

    fn dump_plan(&mut self, plan: &Plan, tokens: &[u32]) -> Result<Option<PathBuf>> {
        let fed = plan.fed(tokens);
        if self.command.serves {
            for (step, pass) in fed.iter().enumerate() {
                let (answer, rows) = (self.tell(&told(step, pass))?, pass.rows.len());
                // An engine that reads the tokens alone would run the rows of all sequences as one.
                ensure!(
                    answer["rows"] == rows,
                    "`{}` answers {answer} to a pass of several sequences; an engine that ran the rows of all of them says \
                     how many, as {}",
                    self.manifest.name,
                    json!({ "step": step, "rows": rows })
                );
            }
        } else {
            self.start(&[("sequences", self.passes(&fed)?)])?;
        }
        // Lines that grow name the sequences of their rows themselves.
        if [MANIFEST, raw::LINES].iter().all(|name| self.dump.join(name).symlink_metadata().is_err()) {
            self.describe(
                json!({ "schema_version": SCHEMA_VERSION, "tokens": tokens, "sequences": plan.to_string() }),
            )?;
        }
        Ok(Some(self.dump.clone()))
    }

    fn chooses(&self, tokens: Tokens<'_>) -> bool {
        let told = tokens.forced.is_some() && self.command.forced();
        !self.command.serves && !told && tokens.decode > 0
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        ensure!(
            self.command.serves,
            "`{}` runs all tokens at once and cannot take one after the other; an engine that stays up can, as \
             `{SERVE} COMMAND`",
            self.manifest.name
        );
        let index = self.feed(tokens)?;
        self.fed(index, tokens, &want.store)
    }
}

/// The passes of a run of one sequence.
fn of_one<'a>(fed: impl Iterator<Item = &'a [u32]>) -> Vec<Fed> {
    let mut position = 0..;
    let mut row = |&token| Row { sequence: 0, position: position.next().unwrap_or_default(), token };
    fed.map(|tokens| Fed { rows: tokens.iter().map(&mut row).collect(), ..Fed::default() }).collect()
}

/// What qdiff gives an engine for a pass of several sequences.
fn told(step: usize, Fed { backs, prefixes, rows, shifts: _ }: &Fed) -> Value {
    let of = |number: fn(&Row) -> u32| rows.iter().map(number).collect::<Vec<_>>();
    json!({
        "step": step,
        "taken_back": backs,
        "prefixes": prefixes,
        "tokens": of(|row| row.token),
        "sequences": of(|row| row.sequence),
        "positions": of(|row| row.position),
    })
}

fn no_logits(name: &str) -> String {
    format!("`{name}` dumped no logits to choose a token from")
}

/// The token that the logits after a step choose.
fn choice(step: &Step) -> Option<u32> {
    Some(argmax(&step.choice.as_ref()?.get().data) as u32)
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
