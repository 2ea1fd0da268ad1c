//! What a residual looks like, for a fault that no hypothesis explains: which
//! part of the rows is wrong, in what pattern, and whether a factor or an
//! offset would mend it.

use super::evaluate::{Block, evaluate, rows_of};
use super::local::Side;
use super::tolerance::ELEMENT_FACTOR;
use crate::capture::Filter;
use crate::oracle::Oracle;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::{Op, Tensor};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Share of a residual that a fit must leave at most to be mentioned.
const FITTED: f64 = 1e-3;

/// Wrong elements that a factor or an offset is fitted to, at most.
const FITTED_TO: usize = 1 << 20;

/// The wrong elements of a stage, as they are gathered.
#[derive(Default)]
struct Wrong {
    columns: BTreeSet<usize>,
    width: usize,
    bad: usize,
    all: usize,
    /// Whether every one of them is zero.
    zero: bool,
    /// What is and what should be, of the first of them.
    pairs: Vec<(f64, f64)>,
}

impl Wrong {
    fn take(&mut self, got: &Tensor<f32>, block: &Block<'_>) {
        self.width = got.row_len().max(1);
        let (want, bound) = (&block.value.data, &block.bound);
        for (i, ((g, w), b)) in got.data.iter().zip(want).zip(bound).enumerate() {
            if w.is_nan() {
                // A cached row that nothing is known of.
                continue;
            }
            self.all += 1;
            if (f64::from(*g) - w).abs() > ELEMENT_FACTOR * f64::from(*b) || !g.is_finite() {
                self.zero = *g == 0.0 && (self.zero || self.bad == 0);
                self.bad += 1;
                self.columns.insert(i % self.width);
                if self.pairs.len() < FITTED_TO {
                    self.pairs.push((f64::from(*g), *w));
                }
            }
        }
    }
}

/// Describes the residual of `node` in words; empty if nothing is wrong.
pub fn describe(node: &Node, oracle: &Oracle<'_>, side: &Side<'_>, filter: &Filter) -> String {
    let mut wrong = Wrong::default();
    let sides = std::slice::from_ref(side);
    let (graph, weights) = (&oracle.graph, &oracle.weights);
    evaluate(node, graph, weights, sides, filter, &mut |block| {
        let stored = block.step.stages.get(&node.id);
        let got = stored.and_then(|s| rows_of(node, s, &block.rows));
        if let Some(got) = got.filter(|g| g.data.len() == block.value.data.len()) {
            wrong.take(&got, &block);
        }
        ControlFlow::Continue(())
    });
    if wrong.bad == 0 {
        return String::new();
    }
    let mut words = vec![format!("{} of {} elements are wrong", wrong.bad, wrong.all)];
    let columns: Vec<usize> = wrong.columns.into_iter().collect();
    words.push(pattern(&columns, wrong.width));
    if let Some(heads) = heads(node, &oracle.graph, &columns, wrong.width) {
        words.push(heads);
    }
    if wrong.zero {
        words.push("all of them are zero: not written, or cleared".to_owned());
    } else if let Some(fit) = fit(&wrong.pairs) {
        words.push(fit);
    }
    words.join("; ")
}

/// Which columns of a row.
fn pattern(columns: &[usize], width: usize) -> String {
    let (first, last) = (columns[0], columns[columns.len() - 1]);
    let contiguous = last - first + 1 == columns.len();
    match columns {
        [one] => format!("one column, {one}"),
        _ if columns.len() == width => "in every column".to_owned(),
        _ if contiguous && last + 1 == width => format!("a tail, columns {first} to {last}"),
        _ if contiguous => format!("a run of {} columns, {first} to {last}", columns.len()),
        _ => {
            let step = columns[1] - columns[0];
            if columns.windows(2).all(|w| w[1] - w[0] == step) {
                format!("every {step}th column from {first} on")
            } else {
                format!("{} columns of {width}, scattered", columns.len())
            }
        }
    }
}

/// Whole heads, where a row is made of heads.
fn heads(node: &Node, graph: &Graph, columns: &[usize], width: usize) -> Option<String> {
    let d = graph.config.head_dim;
    let of_heads = matches!(node.op, Op::AttnContext(_) | Op::Rope(_) | Op::Bias)
        || graph.nodes.iter().any(|n| {
            matches!(n.op, Op::Rope(_) | Op::Bias)
                && n.inputs.iter().any(|&i| graph.nodes[i].id == node.id)
        });
    if !of_heads || columns.len() == width {
        return None;
    }
    let heads: BTreeSet<usize> = columns.iter().map(|c| c / d).collect();
    let whole = columns.len() * 10 >= heads.len() * d * 9;
    let list: Vec<String> = heads.iter().map(ToString::to_string).collect();
    whole.then(|| {
        format!(
            "head{} {}",
            if heads.len() == 1 { "" } else { "s" },
            list.join(", ")
        )
    })
}

/// `got = a·want + b` by least squares, if that explains the wrong elements.
fn fit(pairs: &[(f64, f64)]) -> Option<String> {
    if pairs.len() < 8 || pairs.iter().any(|(g, _)| !g.is_finite()) {
        return None;
    }
    let n = pairs.len() as f64;
    let (mut g, mut w, mut ww, mut gw) = (0.0, 0.0, 0.0, 0.0);
    for (got, want) in pairs {
        g += got / n;
        w += want / n;
    }
    for (got, want) in pairs {
        ww += (want - w).powi(2);
        gw += (got - g) * (want - w);
    }
    let scale = if ww > 0.0 { gw / ww } else { 1.0 };
    let offset = g - scale * w;
    let (mut left, mut was) = (0.0, 0.0);
    for (got, want) in pairs {
        left += (got - scale * want - offset).powi(2);
        was += (got - want).powi(2);
    }
    if left.sqrt() > FITTED * was.sqrt() {
        return None;
    }
    let size = pairs.iter().map(|(_, want)| want.abs()).sum::<f64>() / n;
    let scaled = (scale - 1.0).abs() > 1e-6;
    let shifted = offset.abs() > 1e-5 * size;
    match (scaled, shifted) {
        (true, false) => Some(format!("scaled by {scale:.6}")),
        (false, true) => Some(format!("offset by {offset:.6}")),
        (true, true) => Some(format!("scaled by {scale:.6} and offset by {offset:.6}")),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_named() {
        assert_eq!(pattern(&[7], 100), "one column, 7");
        assert_eq!(pattern(&(0..9).collect::<Vec<_>>(), 9), "in every column");
        assert_eq!(
            pattern(&(96..100).collect::<Vec<_>>(), 100),
            "a tail, columns 96 to 99"
        );
        assert_eq!(
            pattern(&(32..64).collect::<Vec<_>>(), 100),
            "a run of 32 columns, 32 to 63"
        );
        assert_eq!(
            pattern(&[3, 35, 67, 99], 100),
            "every 32th column from 3 on"
        );
        assert_eq!(pattern(&[3, 5, 67], 100), "3 columns of 100, scattered");
    }

    #[test]
    fn factors_and_offsets_are_fitted() {
        let want: Vec<f64> = (0..50).map(|i| f64::from(i * i % 17) - 8.0).collect();
        let told =
            |f: &dyn Fn(f64) -> f64| fit(&want.iter().map(|&w| (f(w), w)).collect::<Vec<_>>());
        assert_eq!(told(&|w| 0.5 * w).unwrap(), "scaled by 0.500000");
        assert_eq!(told(&|w| w + 3.0).unwrap(), "offset by 3.000000");
        assert_eq!(
            told(&|w| 2.0 * w - 1.0).unwrap(),
            "scaled by 2.000000 and offset by -1.000000"
        );
        assert_eq!(told(&|w| w * w), None);
    }
}
