//! Raw containers: elements in files `*.bin`, and `capture.jsonl`, which says in one line of JSON each where an array
//! stands and when a step is whole. It is appended to while the engine runs; what a killed run leaves is read up to the
//! last step that it ended.

use super::array::Format;
use super::dump::Dump;
use super::intake::{Intake, Pass};
use super::located::Source;
use super::manifest::{Manifest, SCHEMA_VERSION};
use super::{Plan, quoted};
use crate::input;
use crate::number::counted;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// The dump has more passes than its manifest names.
#[derive(Debug)]
pub struct MorePasses {
    /// Passes that ended.
    pub ended: usize,
    /// Passes of the manifest.
    pub named: usize,
    name: String,
}

impl std::fmt::Display for MorePasses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ended, and the manifest has {}", self.name, counted(self.ended, "step"), self.named)
    }
}

impl std::error::Error for MorePasses {}

/// The file of lines.
pub const LINES: &str = "capture.jsonl";

/// Most bytes of it: a million arrays.
const LONGEST: u64 = 256 << 20;

/// What is missing of a run that was ended after a step, or never says that it has ended.
const UNCLOSED: &str =
    "there is no closing line after its last step; end the dump with QDIFF_END, Tap::close or Capture.close";

/// A line of `capture.jsonl`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Line {
    /// Where an array stands.
    Array(Place),
    /// Whose the rows of a step are, of a run of several sequences.
    Rows(Rows),
    /// That a step is whole.
    End(End),
    /// That nothing follows: the last line of a run that ended as it should.
    Closed(Closed),
    /// Why the arrays are not what they should be, as whoever wrote them noticed: they are not judged then.
    Trouble {
        /// In words.
        trouble: String,
    },
    /// Fields of the manifest, of an engine that writes none of its own.
    Head {
        /// Version of the layout.
        schema_version: u32,
        /// The other fields.
        #[serde(flatten)]
        fields: Map<String, Value>,
    },
}

/// Where an array stands.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Number of the step, from 0 on, in the order in which they were run.
    step: usize,
    /// The stage, such as `L07.q_rope`.
    name: String,
    /// Number format of the elements, little-endian.
    dtype: String,
    /// Extents, outermost axis first.
    shape: Vec<usize>,
    /// How many elements apart the elements of an axis are; row-major where it is not given.
    #[serde(default)]
    strides: Option<Vec<u64>>,
    /// The file, in the same folder.
    file: String,
    /// Byte at which the first element stands.
    offset: u64,
    /// The sequence whose rows it holds, in a step of several sequences; all rows if it is absent.
    #[serde(default)]
    sequence: Option<u32>,
}

/// Whose the rows of a step are.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// Number of the step.
    step: usize,
    /// The sequence of each of its tokens, numbered from 0 on in the order in which they begin; all of sequence 0 where not given.
    #[serde(default)]
    sequences: Option<Vec<u32>>,
    /// Sequences that begin in the step with cached tokens of another one: whose, which, and how many.
    #[serde(default)]
    prefixes: Vec<(u32, u32, usize)>,
    /// Sequences that take tokens back before the step: which, and how many tokens they keep.
    #[serde(default)]
    taken_back: Vec<(u32, usize)>,
}

/// The end of a step.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Number of the step that is whole.
    end: usize,
    /// Position of its first token; where it is not given, the manifest says it.
    #[serde(default)]
    first: Option<usize>,
    /// Its tokens; where they are not given, the manifest says them.
    #[serde(default)]
    tokens: Option<Vec<u32>>,
}

/// The closing line.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// How many steps there are.
    closed: usize,
}

/// What the lines say.
#[derive(Debug, Default)]
pub(super) struct Lines {
    head: Map<String, Value>,
    /// Arrays of steps that are whole.
    places: Vec<Place>,
    ends: Vec<End>,
    /// Of steps of several sequences, whose their rows are.
    rows: BTreeMap<usize, Rows>,
    /// Whether the closing line has come.
    closed: bool,
    /// What stands after the last end of a step.
    cut: Option<String>,
    /// Whether there is no manifest.json.
    alone: bool,
}

/// The manifest of these fields.
fn parse(mut fields: Map<String, Value>, name: &str) -> Result<Manifest> {
    fields.entry("schema_version").or_insert_with(|| SCHEMA_VERSION.into());
    fields.entry("engine").or_insert_with(|| "an engine without a name".into());
    super::manifest::parse(Value::Object(fields).to_string().as_bytes(), name)
}

impl Lines {
    /// Reads those of the folder.
    ///
    /// # Errors
    /// As [`Lines::parse`].
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(LINES);
        let bytes = input::bytes(&path, LONGEST).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&bytes, &path.display().to_string())
    }

    /// Reads the lines of a file called `name`.
    ///
    /// # Errors
    /// Lines that are none of [`Line`], but for the last, which a killed run did not finish; steps that end twice or in
    /// another order; arrays of a step that has ended; trouble.
    fn parse(bytes: &[u8], name: &str) -> Result<Self> {
        let mut lines = Self::default();
        let mut rest = bytes.split_inclusive(|byte| *byte == b'\n').enumerate().peekable();
        while let Some((i, line)) = rest.next() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let problem = || format!("{name} line {}", i + 1);
            let whole = line.ends_with(b"\n") || rest.peek().is_some();
            match serde_json::from_slice(line) {
                Ok(line) => lines.add(line).with_context(problem)?,
                Err(_) if !whole => lines.cut = Some("its last line is not whole".to_owned()),
                Err(_) => bail!(
                    "{}: `{}` is no line of a capture: an array, the end of a step, or fields of the manifest",
                    problem(),
                    quoted(&String::from_utf8_lossy(line.trim_ascii()))
                ),
            }
        }
        let begun = lines.places.iter().filter(|place| place.step == lines.ends.len()).count();
        if begun > 0 {
            lines.cut = Some(format!("{} of step {} without its end", counted(begun, "array"), lines.ends.len()));
            lines.places.retain(|place| place.step < lines.ends.len());
        }
        Ok(lines)
    }

    fn add(&mut self, line: Line) -> Result<()> {
        let now = self.ends.len();
        ensure!(
            !self.closed,
            "a line after the closing one: two runs wrote to the folder; dump each to a folder of its own"
        );
        match line {
            Line::Array(place) => {
                ensure!(place.step >= now, "an array of step {}, which has ended already", place.step);
                ensure!(place.step == now, "an array of step {}, before step {now} has ended", place.step);
                self.places.push(place);
            }
            Line::Rows(rows) => {
                ensure!(rows.step == now, "the sequences of step {}, and step {now} is the current one", rows.step);
                let all = self.rows.entry(now).or_default();
                ensure!(
                    rows.sequences.is_none() || all.sequences.is_none(),
                    "the sequences of step {now} are named twice"
                );
                all.sequences = rows.sequences.or(all.sequences.take());
                all.prefixes.extend(rows.prefixes);
                all.taken_back.extend(rows.taken_back);
            }
            Line::End(end) => {
                ensure!(end.end == now, "step {} ends where step {now} should; steps end in order, from 0 on", end.end);
                self.ends.push(end);
            }
            Line::Closed(Closed { closed }) => {
                ensure!(closed == now, "{} were closed, and {now} ended: lines are missing", counted(closed, "step"));
                self.closed = true;
            }
            Line::Trouble { trouble } => bail!("the engine says of its own arrays: {}", quoted(&trouble)),
            Line::Head { schema_version, fields } => {
                self.head = fields;
                self.head.insert("schema_version".to_owned(), schema_version.into());
            }
        }
        Ok(())
    }

    /// The manifest: what `given` says, the text of manifest.json where there is one, before what the lines say.
    ///
    /// # Errors
    /// No tokens, or others than the manifest's.
    pub(super) fn manifest(self, given: Option<Vec<u8>>, name: &str) -> Result<Manifest> {
        let alone = given.is_none();
        let manifest = match given.map(|bytes| serde_json::from_slice(&bytes)) {
            Some(Ok(Value::Object(given))) => {
                let mut fields = self.head.clone();
                fields.extend(given);
                parse(fields, name)?
            }
            Some(_) => bail!("{name} is no object of JSON"),
            None => self.described(name)?,
        };
        if !self.rows.is_empty() {
            ensure!(alone, "{name}: lines that name sequences have no manifest.json beside them; remove {name}");
            return Ok(Self { alone, ..self }.ended_by(manifest, None));
        }
        ensure!(
            manifest.sequences.is_none(),
            "{name}: its lines name no sequences; give each line that ends a step the `sequences` of its tokens"
        );
        let steps = manifest.steps();
        let (ended, named) = (self.ends.len(), steps.len());
        ensure!(ended <= named, MorePasses { ended, named, name: name.to_owned() });
        for (end, step) in self.ends.iter().zip(&steps) {
            let tokens = end.tokens.as_ref().is_none_or(|tokens| *tokens == step.tokens);
            ensure!(
                tokens && end.first.is_none_or(|first| first == step.first),
                "{name}: step {} has other tokens or another position than {} of the manifest",
                end.end,
                step.label()
            );
        }
        let missing = steps.get(self.ends.len()).map(|step| format!("it ends before {} is whole", step.label()));
        Ok(Self { alone, ..self }.ended_by(manifest, missing))
    }

    /// The manifest with the known facts about the end of the run.
    fn ended_by(self, mut manifest: Manifest, missing: Option<String>) -> Manifest {
        let alone = self.alone;
        // A manifest.json names all steps; without one, only the closing line says that there were no more.
        let unclosed = alone && !self.closed;
        let closes = manifest.dump.as_ref().is_some_and(|dump| dump.closes);
        let no_end = (unclosed && closes).then(|| UNCLOSED.to_owned());
        manifest.cut = self.cut.or(missing).or(no_end);
        manifest.open_end = unclosed && manifest.cut.is_none();
        manifest
    }

    /// The manifest of lines that name sequences.
    fn of_sequences(&self, name: &str) -> Result<Manifest> {
        let (mut plan, mut tokens, mut orders) = (Plan(Vec::new()), Vec::new(), Vec::new());
        for end in &self.ends {
            let problem = || format!("{name}: step {}", end.end);
            let fed = end.tokens.as_ref().filter(|tokens| !tokens.is_empty()).with_context(problem)?;
            let rows = self.rows.get(&end.end);
            let order = rows.and_then(|rows| rows.sequences.clone()).unwrap_or_else(|| vec![0; fed.len()]);
            let (prefixes, backs) = rows.map_or((&[][..], &[][..]), |rows| (&rows.prefixes, &rows.taken_back));
            ensure!(order.len() == fed.len(), "{} names {} sequences of {} tokens", problem(), order.len(), fed.len());
            let last = order.iter().copied().max().unwrap_or(0);
            plan.add(&order, prefixes, backs).with_context(problem)?;
            let of =
                |sequence: u32| fed.iter().zip(&order).filter(move |(_, of)| **of == sequence).map(|(token, _)| *token);
            tokens.extend((0..=last).flat_map(of));
            orders.push(order);
        }
        plan.check().with_context(|| name.to_owned())?;
        let mut fields = self.head.clone();
        fields.insert("schema_version".to_owned(), SCHEMA_VERSION.into());
        fields.insert("tokens".to_owned(), tokens.into());
        fields.insert("sequences".to_owned(), plan.to_string().into());
        Ok(Manifest { orders, ..parse(fields, name)? })
    }

    /// The manifest that the lines alone come to.
    fn described(&self, name: &str) -> Result<Manifest> {
        if !self.rows.is_empty() {
            return self.of_sequences(name);
        }
        let mut sizes = Vec::new();
        let mut all: Vec<u32> = Vec::new();
        for end in &self.ends {
            let problem = || format!("{name}: step {}", end.end);
            let tokens = end.tokens.as_ref().filter(|tokens| !tokens.is_empty());
            let tokens =
                tokens.ok_or_else(|| anyhow!("has no tokens, and there is no manifest.json")).with_context(problem)?;
            if let Some(first) = end.first.filter(|first| *first != all.len()) {
                bail!("{} begins at position {first}, and the steps before it have {} tokens", problem(), all.len());
            }
            sizes.push(tokens.len());
            all.extend(tokens);
        }
        ensure!(!sizes.is_empty(), "{name} holds no step that is whole: nothing can be judged");
        // Parts of one size, the last of them shorter; then tokens one by one. A single token may be the last
        // part or the first that was decoded: the steps are the same.
        let ubatch = sizes[0];
        let parts = 1 + sizes[1..].iter().take_while(|size| **size == ubatch && ubatch > 1).count();
        let short = sizes.get(parts).is_some_and(|size| (2..ubatch).contains(size));
        let prefill = parts + usize::from(short);
        let regular = sizes[prefill..].iter().all(|size| *size == 1);
        // Of any other passes those behind the last of several tokens were decoded.
        let later = sizes[1..].iter().rev().take_while(|size| **size == 1).count();
        let prompt = if regular { prefill } else { sizes.len() - later };
        let decoded = all.split_off(sizes[..prompt].iter().sum());
        let mut fields = self.head.clone();
        fields.insert("tokens".to_owned(), all.into());
        fields.insert("decoded".to_owned(), decoded.into());
        if !regular {
            fields.insert("passes".to_owned(), sizes.into());
        } else if prefill > 1 {
            fields.insert("ubatch".to_owned(), ubatch.into());
        }
        parse(fields, name)
    }

    /// Which dump it is, as the first line says.
    ///
    /// # Errors
    /// If that is not what [`Dump`] is.
    pub(super) fn dump(&self) -> Result<Option<Dump>> {
        let dump = self.head.get("dump").map(|dump| serde_json::from_value(dump.clone()));
        dump.transpose().with_context(|| format!("`dump` in the first line of {LINES}"))
    }

    /// Whether some say whose the rows of a step are.
    pub(super) fn name_sequences(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The files of the elements.
    pub(super) fn files(&self) -> BTreeSet<&str> {
        self.places.iter().map(|place| place.file.as_str()).collect()
    }

    /// The names of the arrays, without their step.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| place.name.as_str())
    }

    /// Whether the step of this number is whole.
    pub(super) fn ended(&self, step: usize) -> bool {
        step < self.ends.len()
    }

    /// Hands over the arrays of steps that are whole, the first of which `intake` has is the one of number `from`.
    ///
    /// # Errors
    /// As [`Intake::take`]; arrays that are not in their file, files that are not in the folder.
    pub(super) fn read(&self, pass: Pass, folder: &Path, from: usize, intake: &mut Intake<'_>) -> Result<()> {
        let mut sources: HashMap<&str, Source> = HashMap::new();
        for place in self.places.iter().filter(|place| place.step >= from) {
            let file = place.file.as_str();
            let plain = Path::new(file).file_name().is_some_and(|name| name == file) && file.ends_with(".bin");
            let shown = folder.join(LINES);
            ensure!(plain, "{}: `{}` is no file *.bin of its folder", shown.display(), quoted(file));
            let source = match sources.get(file) {
                Some(source) => source.clone(),
                None => sources.entry(file).or_insert(Source::open(&folder.join(file))?).clone(),
            };
            let step = intake
                .label(place.step - from, place.sequence)
                .with_context(|| format!("{}: step {}", shown.display(), place.step))?;
            intake.take(pass, &format!("{step}/{}", place.name), source.length, |_| {
                let format = Format::named(&place.dtype)?;
                source.array(format, place.shape.clone(), place.strides.as_deref(), place.offset)
            })?;
        }
        Ok(())
    }
}
