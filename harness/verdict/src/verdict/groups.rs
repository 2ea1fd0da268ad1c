//! Products with rows of a weight that are picked token by token, as experts are: of each group of rows the lines that picked
//! it, as of a linear layer of its own, in the same arithmetic.

use super::linear::{Batch, Lines};
use super::operands::Operand;
use super::source::{Block, Sink, Source, Stage};
use crate::arithmetic::LinearRule;
use qdiff_engine::dtype::DType;
use qdiff_engine::ops::Tensor;
use qdiff_engine::ops::anatomy::{Picked, line_of};
use qdiff_engine::quant::SomeRows;
use std::borrow::Cow;
use std::ops::ControlFlow;

/// A step of a side: its operands, and what becomes of them.
struct Part<'a> {
    source: &'a Source<'a>,
    index: usize,
    x: Operand<'a>,
    chosen: Operand<'a>,
    rule: LinearRule,
    /// Rows that each token picks.
    lines: usize,
    /// Which lines picked each group.
    by_group: Vec<Vec<usize>>,
    value: Vec<f64>,
    bound: Vec<f32>,
    terms: Vec<f32>,
}

/// Evaluates the products of all rows of all sides.
pub(super) fn layers(stage: Stage<'_>, picked: Picked, sides: &[Source<'_>], sink: &mut Sink<'_>) -> ControlFlow<()> {
    let name = stage.node.weights[0].name.as_str();
    let (ty, (n, all)) = (stage.weights.ggml_type(name), stage.weights.extent(name));
    let m = all / picked.groups.max(1);
    let mut parts = Vec::new();
    for source in sides {
        parts.extend(source.steps.iter().filter_map(|&index| part(stage, picked, (source, index), (n, m), ty)));
    }
    for group in 0..picked.groups {
        let weights = SomeRows { source: stage.weights, rows: picked.rows(group, all) };
        of_group(Stage { weights: &weights, ..stage }, group, (n, m), &mut parts);
    }
    parts.into_iter().try_for_each(|part| give(stage, part, m, sink))
}

/// A step that can be evaluated.
fn part<'a>(
    stage: Stage<'_>, picked: Picked, (source, index): (&'a Source<'a>, usize), (n, m): (usize, usize),
    ty: qdiff_engine::quant::GgmlType,
) -> Option<Part<'a>> {
    let step = source.step(index);
    let all = 0..step.rows();
    let operand = |i: usize| source.operand(stage.graph, stage.node.inputs[i], index, &all);
    let (x, chosen) = (operand(0)?, operand(1)?);
    let integers = chosen.wide();
    let (len, count) = (x.shape().iter().product::<usize>(), integers.len());
    let lines = count / step.rows().max(1);
    // Operands of other shapes have been reported at their own stages.
    if lines == 0 || lines * step.rows() != count || ![step.rows() * n, count * n].contains(&len) {
        return None;
    }
    let by_group = picked.lines(&integers);
    let rule = source.side.arithmetic.linear(ty, step.tokens.len());
    // What picked nothing is not known.
    let (value, bound, terms) = (vec![f64::NAN; count * m], vec![f32::INFINITY; count * m], vec![0.0; count * m]);
    drop(integers);
    Some(Part { source, index, x, chosen, rule, lines, by_group, value, bound, terms })
}

/// The lines that picked a group, with `stage` reading the rows of that group alone.
fn of_group(stage: Stage<'_>, group: usize, (n, m): (usize, usize), parts: &mut [Part<'_>]) {
    for part in parts.iter_mut().filter(|part| !part.by_group[group].is_empty()) {
        let Part { source, index, x, rule, lines, by_group, value, bound, terms, .. } = part;
        let (step, count) = (source.step(*index), *lines * source.step(*index).rows());
        let asked = |line: &&usize| {
            let row = **line / *lines;
            source.asked(step, &(row..row + 1)) && !source.passed.is_some_and(|p| p.row(source.index, *index, row))
        };
        let (len, narrow) = (x.shape().iter().product::<usize>(), x.narrow());
        let x = Lines::of(x, &narrow);
        let parameters = source.side.arithmetic.parameters;
        let mut batch = Batch::new(stage, (n, m), *lines);
        let mut keep = |block: Block<'_>| {
            let at = block.rows.start * m..block.rows.end * m;
            value[at.clone()].copy_from_slice(&block.value.data);
            bound[at.clone()].copy_from_slice(&block.bound);
            if let Some(of) = &block.terms {
                terms[at].copy_from_slice(of);
            }
            ControlFlow::Continue(())
        };
        // Nothing breaks it off.
        for &line in by_group[group].iter().filter(asked) {
            let row = line_of(len, n, line, count);
            let block = Block { terms: Some(Cow::Owned(Vec::new())), ..source.block(*index, line..line + 1) };
            batch.add(x.part(&(row * n..(row + 1) * n)), block, (rule, parameters));
            if batch.room() == 0 {
                let _ = batch.flush(&mut keep);
            }
        }
        let _ = batch.flush(&mut keep);
    }
}

/// Gives the rows of a step.
fn give(stage: Stage<'_>, part: Part<'_>, m: usize, sink: &mut Sink<'_>) -> ControlFlow<()> {
    let Part { source, index, x, chosen, rule, lines, value, mut bound, terms, .. } = part;
    let (step, width) = (source.step(index), lines * m);
    // No error is carried through a choice: where it may be another, nothing is known.
    for (line, _) in chosen.delta().unwrap_or_default().iter().enumerate().filter(|(_, d)| **d != 0.0) {
        bound[line * m..(line + 1) * m].fill(f32::INFINITY);
    }
    let narrow = source.side.capture.rounding.output(stage.node.id);
    let coarse = rule.coarse() || x.delta().is_some() || narrow != DType::F32;
    let (finite, mut from) = (x.finite() && chosen.finite(), 0);
    while from < step.rows() {
        let rows = source.next_rows(index, from, step.rows());
        from = rows.end;
        if rows.is_empty() {
            break;
        }
        if !source.asked(step, &rows) {
            continue;
        }
        let range = rows.start * width..rows.end * width;
        let known = value[range.clone()].iter().all(|v| v.is_finite());
        let shape = vec![rows.len(), lines, m];
        sink(Block {
            value: Cow::Owned(Tensor { shape, data: value[range.clone()].to_vec() }),
            bound: Cow::Borrowed(&bound[range.clone()]),
            poisoned: !finite || !known,
            coarse,
            terms: (coarse && !rule.coarse() && source.computed.is_none()).then(|| Cow::Borrowed(&terms[range])),
            ..source.block(index, rows)
        })?;
    }
    ControlFlow::Continue(())
}
