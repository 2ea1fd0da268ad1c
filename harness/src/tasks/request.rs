//! What several tasks ask for alike: the model, the tokens, the stages, how runners run.

use super::values;
use crate::capture::{Filter, Lengths, Plan, Share, Store};
use crate::loaded::LoadedModel;
use crate::memory::Size;
use crate::number::counted;
use crate::pair::{Settings, TIMEOUT};
use crate::products::{self, OracleChoice};
use crate::prompts::{self, Ready, Style, Template};
use crate::verdict::{CheckMode, Policy, Seed};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use qdiff_engine::cuda::Gemm;
use qdiff_engine::model::{Graph, Placement};
use qdiff_engine::quant::KvType;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The model of a command for which llama.cpp must read it.
pub const GGUF: &str = "GGUF file (`qdiff fetch-model` fetches one)";

/// The prompt of a command that takes no recorded subject.
pub const TEXT: &str = "A built-in prompt (see `qdiff prompts`), text, @FILE, or - for standard input";

/// The model.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What to run")]
pub struct ModelRequest {
    /// GGUF file (`qdiff fetch-model` fetches one) or folder of safetensors
    #[arg(short, long, env = "QDIFF_MODEL", hide_env_values = true)]
    pub model: Option<PathBuf>,
}

impl ModelRequest {
    /// The file to work on.
    ///
    /// # Errors
    /// If none is named.
    pub fn path(&self) -> Result<&Path> {
        self.model
            .as_deref()
            .context("no model: give --model FILE.gguf or set QDIFF_MODEL; `qdiff fetch-model` fetches the default one")
    }

    /// Opens the model.
    ///
    /// # Errors
    /// If none is named, or either side refuses the file.
    pub fn open(&self) -> Result<LoadedModel> {
        LoadedModel::new(self.path()?)
    }
}

/// Which tokens to run, on which model.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What to run")]
pub struct PromptRequest {
    /// The model.
    #[command(flatten)]
    pub model: ModelRequest,
    /// A built-in prompt (see `qdiff prompts`), text, @FILE, or - for standard input; for a recorded subject, the
    /// prompt that its tokens must match
    #[arg(short, long, default_value = "haiku", env = "QDIFF_PROMPT", value_parser = values::PROMPT, hide_possible_values = true)]
    pub prompt: String,
    /// Whether a prompt or tokens were typed.
    #[arg(skip)]
    pub typed: bool,
    /// Use the text alone, without a chat template
    #[arg(long, env = "QDIFF_RAW")]
    pub raw: bool,
    /// A system prompt before the user turn
    #[arg(long, value_name = "TEXT", env = "QDIFF_SYSTEM")]
    pub system: Option<String>,
    /// Template that makes a user turn of the text
    #[arg(long, value_enum, default_value_t = Template::Bare, env = "QDIFF_TEMPLATE")]
    pub template: Template,
    /// Token ids, such as 1,2,3, instead of a prompt
    #[arg(long, value_delimiter = ',', env = "QDIFF_TOKENS")]
    pub tokens: Vec<u32>,
    /// Repeat or cut the tokens to this many
    #[arg(long, value_name = "N", env = "QDIFF_LENGTH", value_parser = values::at_least_one)]
    pub length: Option<usize>,
}

impl PromptRequest {
    /// The prompt and its tokens, checked against the model with `decode` steps after them; token ids have no text.
    ///
    /// # Errors
    /// Ids beyond the vocabulary; no token at all; more than the context holds.
    pub fn ready(&self, opened: &LoadedModel, decode: usize) -> Result<Ready> {
        let mut ready = if self.tokens.is_empty() {
            prompts::resolve(opened, &self.prompt, self.style())?
        } else {
            Ready {
                name: prompts::UNNAMED[2].to_owned(),
                text: String::new(),
                message: None,
                tokens: self.tokens.clone(),
            }
        };
        if let Some(n) = self.length {
            let context = opened.model.graph().config.context;
            if n > context {
                bail!("--length {n} exceeds the model's context of {context} tokens");
            }
            ready.tokens = ready.tokens.iter().copied().cycle().take(n).collect();
            // They are no longer what the text makes.
            ready.text.clear();
        }
        opened.check(&ready.tokens, decode)?;
        Ok(ready)
    }

    /// How texts become prompts.
    pub fn style(&self) -> Style<'_> {
        Style { raw: self.raw, system: self.system.as_deref(), template: self.template }
    }
}

/// A LoRA adapter, and the sequences that have it; all if none is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterOf {
    sequences: BTreeSet<u32>,
    path: PathBuf,
}

impl FromStr for AdapterOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = |list: &str| list.split(',').map(str::parse).collect::<Result<BTreeSet<u32>, _>>().ok();
        // A file may have the sign in its name.
        let named = text.split_once('=').and_then(|(list, path)| Some((numbers(list)?, path)));
        let (sequences, path) = named.unwrap_or((BTreeSet::new(), text));
        if path.is_empty() {
            return Err("it names no file; give FILE.gguf, or 1,2=FILE.gguf".to_owned());
        }
        Ok(Self { sequences, path: path.into() })
    }
}

impl Display for AdapterOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.sequences.iter().map(ToString::to_string).collect();
        let path = self.path.display();
        if numbers.is_empty() { write!(f, "{path}") } else { write!(f, "{}={path}", numbers.join(",")) }
    }
}

/// LoRA adapters.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What to run")]
pub struct AdaptersRequest {
    /// Add a LoRA adapter (GGUF) to the model; with --sequences, 1,2=FILE adds it to sequences 1 and 2 alone. Repeatable
    #[arg(long, value_name = "FILE")]
    pub adapter: Vec<AdapterOf>,
}

impl AdaptersRequest {
    /// The model with these adapters, for a run of `plan`, or of one sequence.
    ///
    /// # Errors
    /// As [`LoadedModel::with_adapters`]; sequences that the run does not have; a prefix that a sequence with another adapter wrote.
    pub fn added(&self, opened: LoadedModel, plan: Option<&Plan>) -> Result<LoadedModel> {
        let opened = self.of_plans(opened, plan.map_or(1, Plan::sequences))?;
        if let Some((from, to)) = plan.and_then(|plan| shared_across(&opened, plan)) {
            bail!(
                "--adapter: sequence {to} begins with cached tokens of sequence {from}, which another adapter wrote; give both the \
                 same adapter, or leave the prefix out"
            );
        }
        Ok(opened)
    }

    /// The model with these adapters, for runs of so many sequences at most.
    ///
    /// # Errors
    /// As [`LoadedModel::with_adapters`]; a sequence that no run has.
    pub fn of_plans(&self, opened: LoadedModel, sequences: usize) -> Result<LoadedModel> {
        let given: Vec<_> = self.adapter.iter().map(|of| (of.path.clone(), of.sequences.clone())).collect();
        let named = given.iter().flat_map(|(_, own)| own).find(|own| **own as usize >= sequences);
        if let Some(number) = named {
            bail!("--adapter names sequence {number}, and the run has {}", counted(sequences, "sequence"));
        }
        opened.with_adapters(&given).context("--adapter")
    }
}

/// A sequence, and another with another adapter that begins with its cached tokens.
pub fn shared_across(opened: &LoadedModel, plan: &Plan) -> Option<(u32, u32)> {
    let prefixes = |pass: &Vec<Share>| {
        let of = |(to, share): (usize, &Share)| Some((share.prefix?, to as u32));
        pass.iter().enumerate().filter_map(of).collect::<Vec<_>>()
    };
    let mut pairs = plan.0.iter().flat_map(prefixes);
    pairs.find(|(from, to)| opened.adapter_of(*from) != opened.adapter_of(*to))
}

/// A graph that is cut over ranks.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What to run")]
pub struct RanksRequest {
    /// Cut the model over N ranks, as tensor parallelism does; each rank has its own part of every stage: 2, or
    /// 2:heads=7+7,ffn=2560+2304,vocab=whole with the heads, columns of the feed-forward network and ids of each rank.
    /// The CPU engine runs each rank in a thread; the dump of a command must name the same ranks
    #[arg(long, value_name = "N", env = "QDIFF_RANKS")]
    pub ranks: Option<Placement>,
}

/// Which tokens to run, and how many decode steps after them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What to run")]
pub struct TokensRequest {
    #[command(flatten)]
    pub prompt: PromptRequest,
    /// Decode steps after the prompt. The reference chooses their tokens; a command that is given only the number of
    /// steps chooses the tokens itself
    #[arg(short = 'n', long, default_value_t = 8, env = "QDIFF_DECODE")]
    pub decode: usize,
}

impl TokensRequest {
    /// As [`PromptRequest::ready`], with its errors.
    pub fn ready(&self, opened: &LoadedModel) -> Result<Ready> {
        self.prompt.ready(opened, self.decode)
    }
}

/// Threads of this process.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How to run it")]
pub struct ThreadsRequest {
    /// Threads for llama.cpp and the CPU engine [default: all cores]
    #[arg(short, long, env = "QDIFF_THREADS")]
    pub threads: Option<usize>,
}

impl ThreadsRequest {
    /// Sets the number of threads for both engines and gives it.
    ///
    /// # Errors
    /// If it is zero.
    pub fn apply(&self) -> Result<usize> {
        let n = self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if n == 0 {
            bail!("--threads must be at least 1");
        }
        // A second call in one process (tests) keeps the first pool.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(n).build_global();
        Ok(n)
    }
}

/// Linear layers of the CUDA engine.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How to run it")]
pub struct GemmRequest {
    /// Linear layers of the CUDA engine: own kernels, or cublas
    #[arg(long, value_name = "GEMM", default_value = "own", env = "QDIFF_GEMM")]
    pub gemm: Gemm,
}

/// Folder for files that exist while qdiff runs.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How to run it")]
pub struct TmpRequest {
    /// Folder for temporary files: captured stages beyond --memory, or a dequantised copy of the model [default: the
    /// system's]
    #[arg(long, value_name = "DIR", env = "QDIFF_TMP")]
    pub tmp: Option<PathBuf>,
}

/// Where captured stages stay.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How to run it")]
pub struct MemoryRequest {
    /// Memory that qdiff may take, such as 6G or 512M: captured stages beyond it go to an unlinked temporary file.
    /// Mapped model files do not count [default: half of the free memory]
    #[arg(long, value_name = "SIZE", env = "QDIFF_MEMORY")]
    pub memory: Option<Size>,
    #[command(flatten)]
    pub tmp: TmpRequest,
}

impl MemoryRequest {
    /// What may be taken.
    pub fn allowed(&self) -> Size {
        self.memory.unwrap_or_else(Size::usual)
    }

    /// Where captured stages go: half of it is theirs, until it is known what else a run takes.
    pub fn store(&self) -> Arc<Store> {
        let folder = self.tmp.tmp.clone().unwrap_or_else(std::env::temp_dir);
        Store::new(folder, usize::try_from(self.allowed().0 / 2).unwrap_or(usize::MAX))
    }
}

/// How runners run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How to run it")]
pub struct RunnerRequest {
    #[command(flatten)]
    pub threads: ThreadsRequest,
    #[command(flatten)]
    pub gemm: GemmRequest,
    #[command(flatten)]
    pub memory: MemoryRequest,
    /// Seconds that a subject `cmd:` may take, or one step of a subject `serve:`
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT.as_secs(), env = "QDIFF_TIMEOUT",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
}

impl RunnerRequest {
    /// As both runners take it.
    pub fn settings(&self) -> Result<Settings> {
        let threads = self.threads.apply()?;
        let (gemm, store, timeout) = (self.gemm.gemm, self.memory.store(), Duration::from_secs(self.timeout));
        let memory = Some(self.memory.allowed());
        Ok(Settings { threads, gemm, store, memory, timeout, ..Settings::default() })
    }
}

/// In which passes the prompt is fed.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What to run")]
pub struct PassesRequest {
    /// Feed the tokens of the prompt in passes of these lengths, as a conversation does: 600,10x1,40 is a prompt of 600
    /// tokens, ten decode steps, and a second turn of 40 tokens. The -n decode steps come after the last pass
    #[arg(long, value_name = "LIST")]
    pub passes: Option<Lengths>,
}

impl PassesRequest {
    /// The lengths, for a prompt of so many tokens; none by default.
    ///
    /// # Errors
    /// Passes of fewer or more tokens than the prompt has.
    pub fn lengths(&self, prompt: usize) -> Result<Option<Vec<usize>>> {
        let Some(passes) = &self.passes else { return Ok(None) };
        let asked = passes.tokens();
        ensure!(
            asked == prompt,
            "--passes {passes} takes {asked} tokens, and the prompt has {prompt}; name passes of {prompt} tokens in all, or \
             add --length {asked}"
        );
        Ok(Some(passes.0.clone()))
    }
}

/// The default of the most tokens of the prompt in one pass.
pub(super) const UBATCH: usize = 512;

/// How captured stages come about.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How to run it")]
pub struct CaptureRequest {
    #[command(flatten)]
    pub runner: RunnerRequest,
    /// Largest number of tokens of the prompt in one pass, on both sides; 1 is token by token
    #[arg(long, value_name = "N", default_value_t = UBATCH, env = "QDIFF_UBATCH", value_parser = values::at_least_one)]
    pub ubatch: usize,
    /// Type of the KV cache on both sides, or two as in q8_0/q4_1 for keys and values; llama.cpp has no f8 types
    /// [default: f32; with a capture, the capture's]
    #[arg(long, value_name = "TYPE", value_parser = values::KvTypes, env = "QDIFF_KV_TYPE")]
    pub kv_type: Option<KvType>,
}

impl CaptureRequest {
    /// As [`RunnerRequest::settings`], with its errors.
    pub fn settings(&self) -> Result<Settings> {
        Ok(Settings { kv: self.kv_type.unwrap_or_default(), ..self.runner.settings()? })
    }
}

/// Which token positions.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What is judged")]
pub struct PositionsRequest {
    /// Only these token positions, such as 0,12-15
    #[arg(long, value_name = "LIST", env = "QDIFF_POSITIONS")]
    pub positions: Option<String>,
}

/// Which stages, layers and positions.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What is judged")]
pub struct FilterRequest {
    /// Only stages that match the pattern, such as 'L07.*' or 'attn_*', and their operands; repeatable
    #[arg(long, value_name = "GLOB", value_delimiter = ',', env = "QDIFF_STAGES", value_parser = values::STAGE, hide_possible_values = true)]
    pub stages: Vec<String>,
    /// Only these layers, such as 0,5-7
    #[arg(long, value_name = "LIST", env = "QDIFF_LAYERS")]
    pub layers: Option<String>,
    #[command(flatten)]
    pub positions: PositionsRequest,
}

impl FilterRequest {
    /// Read against the graph it is for.
    pub fn filter(&self, graph: &Graph) -> Result<Filter> {
        Filter::new(graph, &self.stages, self.layers.as_deref(), self.positions.positions.as_deref())
    }
}

/// What stages are allowed.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What is judged")]
pub struct ToleranceRequest {
    /// Allow this relative L2 error per row of a stage instead of its bound; repeatable, the last rule that matches wins
    #[arg(long, value_name = "GLOB=NUMBER")]
    pub tolerance: Vec<String>,
    /// How linear layers and attention are checked: every row is computed, or rows are probed by random sums of their
    /// outputs and computed if a probe is suspicious
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub check: CheckMode,
    /// Seed of the probes' random numbers, as a report prints it, instead of a hash of the judged values
    #[arg(long, value_name = "HEX")]
    pub probe_seed: Option<Seed>,
    /// Where linear layers are evaluated in f64
    #[arg(long, value_name = "WHERE", value_enum, default_value_t)]
    pub oracle: OracleChoice,
    /// The file that set them, where it was not the command line.
    #[arg(skip)]
    pub from: Option<PathBuf>,
}

impl ToleranceRequest {
    /// The bounds, and how they are checked. Only computed rows show whether an injected fault acts.
    ///
    /// # Errors
    /// As [`Policy::new`] and [`products::ready`].
    pub fn policy(&self, graph: &Graph, injected: bool) -> Result<Policy> {
        let mode = if injected && self.check == CheckMode::Auto { CheckMode::Full } else { self.check };
        products::ready(self.oracle)?;
        let mut policy = Policy::new(graph, &self.tolerance, mode, self.oracle)?;
        policy.seed = self.probe_seed;
        Ok(policy)
    }

    /// The rules as reports tell them, with the file that set them.
    pub fn words(&self) -> Vec<String> {
        let from = self.from.as_ref().map_or_else(String::new, |path| format!(" (set by {})", path.display()));
        self.tolerance.iter().map(|rule| format!("{rule}{from}")).collect()
    }
}

/// Faults to inject.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sides")]
pub struct FaultRequest {
    /// Faults, as `--inject` writes them.
    #[arg(help = "Inject a fault into the subject: NAME[:PARAM=VALUE,…][@L07, @L07.q_rope, @r1.L07 (rank 1) or @p3000..]; repeatable (see `qdiff mutations`)", long, value_name = "MUTATION", value_parser = values::FAULT, hide_possible_values = true)]
    pub inject: Vec<String>,
}

/// Several sequences in one run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What to run")]
pub struct SequencesRequest {
    /// Distribute the tokens of the prompt over several sequences that share passes. In 7,5+1+17@0 the first pass feeds 7
    /// tokens of sequence 0. The second pass feeds 5 more tokens of sequence 0, 1 token of sequence 1, and 17 tokens of
    /// sequence 2, which begins with the 7 cached tokens of sequence 0; with 17@0:4 it begins with the first 4 of them. In
    /// 9,5,1~4 sequence 0 takes its last 4 tokens back before the third pass, as after a rejected draft; 1~all takes all its
    /// tokens back. In 9,5-4:2 a context shift removes the 4 tokens from position 2 on before the second pass. Nothing is decoded. Each sequence is a run of its own; after tokens were taken back, a new run
    /// begins. --inject works with one sequence only
    #[arg(long, value_name = "LIST")]
    pub sequences: Option<Plan>,
    /// Let llama.cpp keep a KV cache of its own for each sequence (kv_unified = false), not one for all; it then runs a pass
    /// in ubatches with as many tokens of each sequence
    #[arg(long)]
    pub no_kv_unified: bool,
}

impl SequencesRequest {
    /// These settings, with what is asked of llama.cpp's KV cache, in a run of `plan` that llama.cpp takes part in or not.
    ///
    /// # Errors
    /// A cache for each sequence in a run without llama.cpp, or of one sequence.
    pub fn settings(&self, settings: Settings, plan: Option<&Plan>, llama: bool) -> Result<Settings> {
        ensure!(
            !self.no_kv_unified || plan.is_some(),
            "--no-kv-unified is about a run of several sequences; name them with --sequences, or leave it out"
        );
        ensure!(
            !self.no_kv_unified || llama,
            "--no-kv-unified is about llama.cpp's KV cache, and llama.cpp does not run here; take --subject llama or --reference \
             llama, or leave it out"
        );
        Ok(Settings { split_kv: self.no_kv_unified, ..settings })
    }

    /// The plan, for a prompt of so many tokens; none by default.
    ///
    /// # Errors
    /// A plan of fewer or more tokens than the prompt has.
    pub fn plan(&self, prompt: usize) -> Result<Option<&Plan>> {
        let Some(plan) = &self.sequences else { return Ok(None) };
        let asked = plan.tokens();
        ensure!(
            asked == prompt,
            "--sequences {plan} takes {asked} tokens, and the prompt has {prompt}; name sequences of {prompt} tokens in all, \
             or add --length {asked}"
        );
        Ok(Some(plan))
    }
}
