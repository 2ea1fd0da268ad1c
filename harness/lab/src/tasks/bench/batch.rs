//! `qdiff-lab bench --measure batch`: decode steps of several sequences in one pass, by the fused CUDA path and by llama.cpp on the
//! same card.

use super::cuda::{DECODE, Reader, percentile};
use super::{BenchRequest, median};
use crate::report::bench::{Bench, BenchRow, usual_depth};
use anyhow::{Context as _, Result, ensure};
use qdiff::llama::context::Plain;
use qdiff::llama::{Load, Model};
use qdiff::loaded::LoadedModel;
use qdiff_engine::cpu::Row;
use qdiff_engine::cuda::{CudaEngine, Options, Path, bandwidth, link};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::StageId;
use qdiff_engine::ops::Tensor;
use qdiff_engine::tap::{NoTaps, Part, TapSink};
use std::sync::Arc;
use std::time::Instant;

/// Sequences of one length that decode together, each with other tokens.
struct Batch {
    sequences: usize,
    /// Tokens of each before the first timed step.
    depth: usize,
    /// Tokens of a pass of the prefill.
    prefill: usize,
    /// What their tokens are taken from.
    tokens: Vec<u32>,
}

impl Batch {
    fn row(&self, sequence: usize, position: usize) -> Row {
        let token = self.tokens[(position + sequence) % self.tokens.len()];
        Row { sequence: sequence as u32, position: position as u32, token }
    }

    /// The passes of the prefill, one sequence after another.
    fn prefill(&self) -> impl Iterator<Item = Vec<Row>> {
        (0..self.sequences).flat_map(move |sequence| {
            let parts = (0..self.depth).step_by(self.prefill);
            parts.map(move |first| {
                let end = self.depth.min(first + self.prefill);
                (first..end).map(|position| self.row(sequence, position)).collect()
            })
        })
    }

    /// Seconds of each decode step, in which every sequence has a row.
    fn decode(&self, mut pass: impl FnMut(&[Row]) -> Result<()>) -> Result<Vec<f64>> {
        let step = |i: usize| {
            let rows: Vec<Row> = (0..self.sequences).map(|sequence| self.row(sequence, self.depth + i)).collect();
            let start = Instant::now();
            pass(&rows)?;
            Ok(start.elapsed().as_secs_f64())
        };
        (0..DECODE).map(step).collect()
    }
}

/// Keeps the logits of a pass, of which all stages are tapped or these alone.
struct Kept {
    logits: StageId,
    all: bool,
    values: Vec<f32>,
}

impl TapSink for Kept {
    fn wants(&self, id: StageId) -> bool {
        self.all || id == self.logits
    }
    fn tap(&mut self, _: StageId, _: Arc<Tensor<f32>>) {}
    fn part(&mut self, part: Part<'_>) {
        if part.id == self.logits {
            self.values.extend_from_slice(part.values);
        }
    }
}

/// The fused path with a batch.
struct Ours {
    engine: CudaEngine,
    logits: StageId,
}

impl Ours {
    fn new(opened: &LoadedModel, batch: &Batch) -> Result<Self> {
        let options = Options {
            step: batch.prefill.max(batch.sequences),
            context: batch.sequences * (batch.depth + DECODE),
            more_sequences: batch.sequences - 1,
            path: Path::Fast,
            // As llama.cpp keeps them.
            kv: DType::F16.into(),
            taps: true,
            ..Options::default()
        };
        let mut engine = CudaEngine::new(&opened.model, options)?;
        let logits = engine.graph().nodes.last().context("a graph has nodes")?.id;
        batch.prefill().try_for_each(|rows| engine.step_rows(&rows, &mut NoTaps))?;
        let mut ours = Self { engine, logits };
        // A decode step of one sequence is another path, whose kernels may round otherwise where they are tapped.
        ensure!(
            batch.sequences == 1 || ours.step(batch, true)? == ours.step(batch, false)?,
            "the pass that is timed gives other logits than the pass whose stages are all tapped: a bug in qdiff"
        );
        Ok(ours)
    }

    fn take_back(&mut self, batch: &Batch) -> Result<()> {
        Ok((0..batch.sequences).try_for_each(|sequence| self.engine.take_back(sequence as u32, batch.depth))?)
    }

    /// The bits of the logits of the first decode step, in which all stages are tapped or the logits alone.
    fn step(&mut self, batch: &Batch, all: bool) -> Result<Vec<u32>> {
        self.take_back(batch)?;
        let rows: Vec<Row> = (0..batch.sequences).map(|sequence| batch.row(sequence, batch.depth)).collect();
        let mut kept = Kept { logits: self.logits, all, values: Vec::new() };
        self.engine.step_rows(&rows, &mut kept)?;
        Ok(kept.values.into_iter().map(f32::to_bits).collect())
    }

    /// Times decode steps, whose logits come to the host or not.
    fn time(&mut self, batch: &Batch, to_host: bool) -> Result<Vec<f64>> {
        self.take_back(batch)?;
        let (mut logits, mut none) = (Reader::of(self.logits), NoTaps);
        let taps: &mut dyn TapSink = if to_host { &mut logits } else { &mut none };
        batch.decode(|rows| Ok(self.engine.step_rows(rows, taps)?))
    }
}

/// llama.cpp with a batch.
struct Theirs(Plain);

impl Theirs {
    fn time(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.0.clear();
        batch.prefill().try_for_each(|rows| self.0.rows(&rows))?;
        batch.decode(|rows| self.0.rows(rows))
    }
}

/// Times all batches; both sides run in each round.
pub(super) fn measure(request: &BenchRequest) -> Result<Bench> {
    let opened = request.prompt.model.open()?;
    let (depth, rounds) = (request.depth.max(1), usize::from(request.rounds));
    ensure!(!request.sequences.contains(&0), "--sequences counts sequences, from 1 on");
    let mut bench = Bench {
        device: String::new(),
        bandwidth: bandwidth()?,
        link: link()?,
        model: opened.model.graph().config.name.clone(),
        format: opened.main_format().0,
        weight_bytes: 0,
        rounds,
        rows: Vec::new(),
        kernels: Vec::new(),
        prefill_kernels: Vec::new(),
        card: Vec::new(),
        taps: Vec::new(),
        stages: Vec::new(),
        depth,
        prefill: request.prefill.min(usual_depth()),
        step: None,
    };
    let llama = (!request.alone).then(|| Model::load(&opened.path, Load::Cuda).map(Arc::new)).transpose()?;
    for &sequences in &request.sequences {
        let tokens = request.cycled(&opened, depth + DECODE + sequences)?;
        let batch = Batch { sequences, depth, prefill: bench.prefill.clamp(1, depth), tokens };
        let mut ours = Ours::new(&opened, &batch).with_context(|| format!("timing {sequences} sequences"))?;
        bench.device = ours.engine.device().to_owned();
        bench.weight_bytes = ours.engine.weight_bytes();
        let step = batch.prefill.max(sequences);
        let of_llama = |model| Plain::of_sequences(model, depth + DECODE, step, sequences).map(Theirs);
        let mut theirs = llama.as_ref().map(of_llama).transpose()?;
        let mut times: [Vec<f64>; 3] = Default::default();
        // Once unmeasured.
        for round in 0..=rounds {
            let mut add = |who: usize, steps: Vec<f64>| times[who].extend(steps.into_iter().filter(|_| round > 0));
            add(0, ours.time(&batch, true)?);
            add(1, ours.time(&batch, false)?);
            if let Some(theirs) = &mut theirs {
                add(2, theirs.time(&batch)?);
            }
        }
        for (who, steps) in
            ["cuda-fast", "cuda-fast, logits stay on the card", "llama.cpp (cuda)"].into_iter().zip(times)
        {
            if !steps.is_empty() {
                bench.rows.push(row(sequences, who, steps));
            }
        }
    }
    bench.hold_against_llama();
    Ok(bench)
}

fn row(sequences: usize, who: &str, steps: Vec<f64>) -> BenchRow {
    let tokens = sequences as f64;
    BenchRow {
        what: format!("decode of {sequences}"),
        who: who.to_owned(),
        spread: Some([0, 95].map(|which| tokens / percentile(steps.clone(), which))),
        tokens_per_second: tokens / median(steps),
        of_bandwidth: None,
        ratio: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_of_a_batch_goes_on_where_it_ended() {
        let batch = Batch { sequences: 3, depth: 5, prefill: 2, tokens: vec![7, 8, 9] };
        let mut next = [0; 3];
        let mut see = |rows: &[Row]| {
            for row in rows {
                assert_eq!(row.position, next[row.sequence as usize]);
                next[row.sequence as usize] += 1;
            }
        };
        batch.prefill().for_each(|rows| see(&rows));
        let steps = batch.decode(|rows| {
            see(rows);
            Ok(())
        });
        assert_eq!((steps.expect("nothing fails").len(), next), (DECODE, [5 + DECODE as u32; 3]));
    }
}
