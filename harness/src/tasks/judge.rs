//! Two captures judged on several machines: each judges the stages of some layers, and their results are put
//! together to the verdict that one machine gives.

use super::Console;
use super::compare::{CompareRequest, of_captures};
use super::request::{FilterRequest, MemoryRequest, PositionsRequest, ThreadsRequest, ToleranceRequest};
use super::run;
use super::sides::{MapRequest, WhyRequest};
use crate::capture::manifest::Manifest;
use crate::capture::{Names, container};
use crate::compare::{comparable, fed_otherwise};
use crate::hash::sha256;
use crate::input;
use crate::loaded::LoadedModel;
use crate::pair::{Pair, Settings};
use crate::report::{Asked, Part, Report, file};
use crate::shard::Shard;
use crate::verdict::{measure, read_for};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use qdiff_engine::model::{Graph, StageId};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Which part of what to judge.
#[derive(Clone, Debug, Args)]
pub struct JudgeRequest {
    #[command(flatten)]
    pub captures: CompareRequest,
    /// Part of the stages, such as 1/4: whole layers
    #[arg(long, value_name = "PART/PARTS", help_heading = "What is judged")]
    pub shard: Shard,
    /// File to write; `qdiff report` combines it with those of the other parts
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub out: PathBuf,
}

/// Judges a part of the stages, each alone. It reads only the needed parts of the captures.
///
/// # Errors
/// Captures that cannot be read or judged together; a file that cannot be written.
pub fn judge(request: &JudgeRequest, console: Console<'_>) -> Result<Part> {
    let JudgeRequest { captures, shard, out } = request;
    file::check(out, "--out")?;
    let asked = asked(captures)?;
    let opened = LoadedModel::new(&asked.model)?;
    let work = work(&asked, shard.of, &opened)?;
    let settings =
        Settings { threads: captures.threads.apply()?, store: captures.memory.store(), ..Settings::default() };
    let mut pair = Pair::new(&opened, settings, console.progress)?;
    let graph = &pair.oracle.graph;
    let own = shard.stages(graph).context("--shard")?;
    pair.filter = captures.filter.filter(graph)?;
    pair.policy = captures.tolerance.policy(graph, false)?;
    let names = match &asked.map {
        Some(path) => Names::read(graph, path)?,
        None => Names::of(graph),
    };
    let start = Instant::now();
    let [subject, reference] =
        [(&asked.subject, names), (&asked.reference, Names::of(graph))].map(|(folder, names)| {
            let manifest = container::manifest(folder)?;
            let names = needed(graph, (folder, &manifest), names, (*shard, &own))?;
            opened.check(&[manifest.tokens.as_slice(), &manifest.decoded].concat(), 0)?;
            pair.read(folder, &manifest, &names, &manifest.how())
        });
    let (subject, reference) = (subject?, reference?);
    let (policy, progress) = (&pair.policy, pair.progress);
    let asked_of = (&pair.filter, &own);
    let stages = measure(&pair.oracle, subject.side(), reference.side(), asked_of, policy, progress)?;
    let seconds = start.elapsed().as_secs_f64();
    let (qdiff, checksum) = (env!("CARGO_PKG_VERSION").to_owned(), String::new());
    let mut part = Part { qdiff, shard: *shard, work, asked, stages, seconds, checksum };
    file::write(out, part.sealed()?.as_bytes())?;
    Ok(part)
}

/// The names of what judging these stages takes of the capture in `folder`.
fn needed(
    graph: &Graph, (folder, manifest): (&Path, &Manifest), names: Names, (shard, own): (Shard, &HashSet<StageId>),
) -> Result<Names> {
    let steps = manifest.steps().len();
    let (mut any, mut all) = (HashSet::new(), HashSet::new());
    for (name, held) in container::held(folder)? {
        for named in names.get(None, &name).unwrap_or_default() {
            any.insert(named.node);
            if held.len() >= steps {
                all.insert(named.node);
            }
        }
    }
    let part = (0..graph.nodes.len()).filter(|i| any.contains(i) && own.contains(&graph.nodes[*i].id));
    let needed = part.flat_map(|i| read_for(graph, i, &|i| any.contains(&i), &|i| all.contains(&i)));
    let needed = needed.map(|i| graph.nodes[i].id).collect();
    Ok(names.only(graph, shard, &needed))
}

fn asked(request: &CompareRequest) -> Result<Asked> {
    let CompareRequest { a, b, model, map, filter, tolerance, why, threads: _, memory: _ } = request;
    let model = model.clone().context("judging takes the model of the captures: -m FILE.gguf")?;
    let manifests = [container::manifest(a)?, container::manifest(b)?];
    comparable((a, &manifests[0]), (b, &manifests[1]))?;
    if fed_otherwise(&manifests[0], &manifests[1]) {
        bail!("the captures have other steps, and are judged separately: use `qdiff compare`");
    }
    Ok(Asked {
        model,
        subject: a.clone(),
        reference: b.clone(),
        map: map.map.clone(),
        stages: filter.stages.clone(),
        layers: filter.layers.clone(),
        positions: filter.positions.positions.clone(),
        tolerance: tolerance.tolerance.clone(),
        tolerance_from: tolerance.from.clone(),
        check: tolerance.check,
        probe_seed: tolerance.probe_seed,
        why_budget: why.why_budget,
    })
}

/// What all parts of a verdict have in common, wherever the files lie.
fn work(asked: &Asked, of: usize, opened: &LoadedModel) -> Result<String> {
    let mut told = vec![env!("CARGO_PKG_VERSION").to_owned(), of.to_string(), opened.sha256()];
    for folder in [&asked.subject, &asked.reference] {
        let manifest = container::manifest(folder)?;
        manifest.check_model(folder, &opened.sha256())?;
        told.push(serde_json::to_string(&manifest)?);
    }
    let map = asked
        .map
        .as_ref()
        .map(|path| input::text(path, input::TEXT).with_context(|| format!("cannot read the map {}", path.display())));
    let Asked { stages, layers, positions, tolerance, tolerance_from, check, probe_seed, why_budget, .. } = asked;
    let rules = (tolerance, tolerance_from, check, probe_seed, why_budget);
    told.push(serde_json::to_string(&(map.transpose()?, stages, layers, positions, rules))?);
    Ok(sha256(told.join("\n").as_bytes()))
}

/// What is put together of parts.
pub struct Merged {
    /// The report of one machine.
    pub report: Report,
    /// The parts that are not there.
    pub absent: Vec<Shard>,
}

/// The verdict of the parts in these files. The captures and the model are where the first of them says.
///
/// # Errors
/// Parts of different verdicts, or one part twice; captures or a model that are not those that were judged.
pub fn merge(parts: Vec<(&Path, Part)>, console: Console<'_>) -> Result<Merged> {
    let (first, Part { asked, work: common, shard: Shard { of, .. }, .. }) =
        parts.first().map(|(path, part)| (*path, part.clone())).context("no part")?;
    let mut there: BTreeMap<usize, &Path> = BTreeMap::new();
    for (path, part) in &parts {
        ensure!(
            part.shard.of == of && (1..=of).contains(&part.shard.index),
            "{} says that it is part {}, and {} is one of {of}",
            path.display(),
            part.shard,
            first.display()
        );
        ensure!(
            part.work == common,
            "{} and {} are parts of different verdicts: of other captures, of another model or with other options",
            first.display(),
            path.display()
        );
        if let Some(other) = there.insert(part.shard.index, path) {
            bail!("{} and {} are the same part, {}; leave one out", other.display(), path.display(), part.shard);
        }
    }
    let problem = || format!("{} was judged on what it names", first.display());
    let opened = LoadedModel::new(&asked.model).with_context(problem)?;
    ensure!(
        work(&asked, of, &opened).with_context(problem)? == common,
        "the model, the captures or the map that {} names are not those that were judged: judge the parts again",
        first.display()
    );
    let graph = opened.model.graph();
    for (path, part) in &parts {
        let own = part.shard.stages(graph)?;
        let mut once = HashSet::new();
        for measured in &part.stages {
            let id = measured.stage;
            ensure!(
                own.contains(&id) && once.insert(id),
                "{}: {id} is none of its part, or occurs twice",
                path.display()
            );
            ensure!(!measured.contradicts_itself(), "{}: its figures for {id} contradict each other", path.display());
        }
    }
    let absent: Vec<Shard> = Shard::all(of).filter(|shard| !there.contains_key(&shard.index)).collect();
    let measured = parts.into_iter().flat_map(|(_, part)| part.stages).collect();
    let request = of_captures(&CompareRequest {
        a: asked.subject,
        b: asked.reference,
        model: Some(asked.model),
        map: MapRequest { map: asked.map },
        filter: FilterRequest {
            stages: asked.stages,
            layers: asked.layers,
            positions: PositionsRequest { positions: asked.positions },
        },
        tolerance: ToleranceRequest {
            tolerance: asked.tolerance,
            check: asked.check,
            probe_seed: asked.probe_seed,
            from: asked.tolerance_from,
            ..ToleranceRequest::default()
        },
        why: WhyRequest { why_budget: asked.why_budget },
        threads: ThreadsRequest::default(),
        memory: MemoryRequest::default(),
    });
    let report = run::judged(&request, Some(measured), console)?.reports.pop().context("nothing was judged")?;
    if let Some(what) = report.miscounts() {
        bail!("{what}: one part claims more rows than the whole run has");
    }
    // An empty part is not missed.
    let missed = |shard: &Shard| {
        let own = shard.stages(graph).unwrap_or_default();
        report.diagnosis.verdict.stages.iter().any(|stage| own.contains(&stage.id))
    };
    let absent: Vec<Shard> = absent.into_iter().filter(missed).collect();
    Ok(Merged { report, absent })
}
