//! Memory that this process takes, and may take. What is mapped of files, as a model's weights are, is the system's cache,
//! which it takes back when it must: it counts for nothing here.

use qdiff_engine::model::{Graph, Node, row_len};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(20);

/// The smallest limit if none is set.
const LEAST: u64 = 1 << 30;

/// What is taken before any stage is: the program, the vocabulary on both sides.
const BASE: usize = 128 << 20;

/// Bytes that probes take for each input of a linear layer, of a batch of rows.
pub const PROBED_ROWS: usize = 6 << 10;
/// Bytes that probes take for each input of a linear layer, of the combinations that a thread makes.
pub const PROBED_WEIGHTS: usize = 1280;

/// The most that was taken since [`watch`], and since [`begin`].
static PEAK: AtomicU64 = AtomicU64::new(0);
static OF_RUN: AtomicU64 = AtomicU64::new(0);

/// A number of bytes as people write it: `6G`, `512M`, or MiB without a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let shift = match unit {
            "" | "M" | "MiB" => 20,
            "G" | "GiB" => 30,
            _ => return Err("a size such as 6G or 512M is expected".to_owned()),
        };
        let bytes = digits.parse().ok().and_then(|n: u64| n.checked_mul(1 << shift));
        bytes.map(Self).ok_or_else(|| "a size such as 6G or 512M is expected".to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            few if few < 1 << 30 => write!(f, "{} MiB", few.div_ceil(1 << 20)),
            many => write!(f, "{:.1} GiB", many as f64 / f64::from(1 << 30)),
        }
    }
}

impl Size {
    /// Half of what the system says is free, of which a container may leave less; 1 GiB at least.
    pub fn usual() -> Self {
        Self((available().unwrap_or_default() / 2).max(LEAST))
    }

    /// All that is free; `None` where nothing is known.
    pub fn free() -> Option<Self> {
        available().map(Self)
    }
}

/// Looks from now on how much is taken.
pub fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        let look = || {
            while let Some(taken) = taken() {
                PEAK.fetch_max(taken, Ordering::Relaxed);
                OF_RUN.fetch_max(taken, Ordering::Relaxed);
                thread::sleep(LOOK);
            }
        };
        // Without a thread for it, nothing is reported.
        let _ = thread::Builder::new().stack_size(1 << 16).spawn(look);
    });
}

/// The most that was taken since [`watch`], as far as it was looked; `None` where nothing is known.
pub fn peak() -> Option<Size> {
    Some(PEAK.load(Ordering::Relaxed)).filter(|peak| *peak > 0).map(Size)
}

/// Begins a run: of what was taken before, what is still there counts for it.
pub fn begin() {
    OF_RUN.store(taken().unwrap_or_default(), Ordering::Relaxed);
}

/// The most that was taken since [`begin`].
pub fn peak_of_run() -> Option<Size> {
    Some(OF_RUN.load(Ordering::Relaxed)).filter(|peak| *peak > 0).map(Size)
}

/// Bytes that are resident now, but for those of files.
fn taken() -> Option<u64> {
    kilobytes("/proc/self/status", "RssAnon:")
}

/// What a line of a file of the system says.
fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Bytes that may be taken without anything being written to swap.
fn available() -> Option<u64> {
    let system = kilobytes("/proc/meminfo", "MemAvailable:")?;
    let read = |file: &str| fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).ok()?.trim().parse::<u64>().ok();
    let of_container = read("memory.max").or_else(|| read("memory/memory.limit_in_bytes"));
    Some(of_container.map_or(system, |most| most.min(system)))
}

/// About how many bytes a run in these steps takes besides what is kept of its stages: the caches of both sides, which may
/// run at once, and what is computed at a time of the stages that `judged` takes. It grows with the width of a model and the tokens of
/// a step; with its layers only as far as caches do.
pub fn beside(graph: &Graph, judged: impl Fn(&Node) -> bool, steps: &[Extent]) -> usize {
    let longest = steps.iter().map(|step| step.tokens).max().unwrap_or_default();
    let keys = steps.last().map_or(0, |step| step.keys);
    let of_longest = |node: &Node| bytes(node, Extent { tokens: longest, keys });
    let (caches, stages): (Vec<&Node>, Vec<&Node>) = graph.nodes.iter().partition(|node| node.op.has_state());
    let caches: usize = caches.into_iter().map(of_longest).sum();
    let mut stages: Vec<(usize, usize)> =
        stages.into_iter().filter(|node| judged(node)).map(|node| (of_longest(node), at_once(node))).collect();
    stages.sort_unstable_by(|a, b| b.cmp(a));
    let largest = stages.first().map_or(0, |(bytes, _)| *bytes);
    let others = stages.iter().skip(1).map(|(bytes, times)| bytes * times).max().unwrap_or_default();
    let inputs = graph
        .nodes
        .iter()
        .filter(|node| node.op.anatomy().is_layer())
        .map(|node| row_len(&graph.nodes[node.inputs[0]]));
    let probes = inputs.max().unwrap_or_default() * (PROBED_ROWS + PROBED_WEIGHTS * rayon::current_num_threads());
    BASE + 2 * caches + 4 * largest + rayon::current_num_threads() * others + probes
}

/// How often the values of a stage are in memory while it is judged: of experts all lines of both sides, each with the right value
/// and the bound; of other stages a batch of rows at a time.
fn at_once(node: &Node) -> usize {
    if matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Weight(Some(_)))) { 7 } else { 3 }
}

/// Bytes of all stages that are kept of a run in these steps.
pub fn of_stages(graph: &Graph, keeps: impl Fn(&Node) -> bool, steps: &[Extent]) -> u64 {
    let nodes = graph.nodes.iter().filter(|node| keeps(node));
    nodes.map(|node| steps.iter().map(|step| bytes(node, *step) as u64).sum::<u64>()).sum()
}

/// What a stage of a step is made of.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Tokens of the step.
    pub tokens: usize,
    /// Tokens so far.
    pub keys: usize,
}

fn bytes(node: &Node, Extent { tokens, keys }: Extent) -> usize {
    4 * Graph::extent(node, tokens, keys).iter().product::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_told() {
        let read = |text: &str| text.parse::<Size>().ok().map(|size| size.to_string());
        assert_eq!(read("6G").as_deref(), Some("6.0 GiB"));
        assert_eq!(read("1500").as_deref(), Some("1.5 GiB"));
        assert_eq!(read("512M").as_deref(), Some("512 MiB"));
        assert_eq!(read("0").as_deref(), Some("0 MiB"));
        for bad in ["", "G", "6g", "-1", "6 G", "1.5G", "99999999999999G"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_taken_is_seen() {
        // Other tests of this process take memory and give it back meanwhile: what is held is far more than all of theirs.
        const HELD: usize = 512 << 20;
        watch();
        let much = vec![1u8; HELD];
        assert!(taken().expect("Linux tells it") >= HELD as u64);
        thread::sleep(5 * LOOK);
        assert!(peak().is_some_and(|peak| peak.0 >= HELD as u64));
        assert!(much.iter().all(|b| *b == 1) && available().is_some_and(|free| free > 0));
    }
}
