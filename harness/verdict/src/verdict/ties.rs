//! Quantised activations whose rounding is at a tie.
//!
//! A quantiser whose last bit nobody can follow (CUDA's fast division) may round a value at a tie to either side, and a
//! whole quant's step follows. The values that the runner then computed show which side it took: a row has hundreds of
//! outputs, and few ties. So ties are read off the outputs instead of being allowed for, and what remains is held to
//! the bound of the sums alone.

use qdiff_engine::model::WeightSource;
use qdiff_engine::quant::Tie;
use rayon::prelude::*;

/// A row with ties, and what the runner made of it.
pub(super) struct Undecided {
    /// Which row of the outputs.
    pub row: usize,
    /// Its ties.
    pub ties: Vec<Tie>,
    /// The runner's outputs.
    pub given: Vec<f32>,
}

/// Takes each tie, in the `[T, m]` outputs `y`, the way that leaves the smaller distance to the given values.
pub(super) fn settle(rows: &[Undecided], (weights, name): (&dyn WeightSource, &str), y: &mut [f64]) {
    if rows.is_empty() {
        return;
    }
    let (n, m) = weights.extent(name);
    // Per output, what every tie would add to it, of all rows in one pass.
    let effects: Vec<Vec<f64>> = (0..m)
        .into_par_iter()
        .map_init(
            || vec![0f32; n],
            |weight, o| {
                weights.rows(name, o, weight);
                let ties = rows.iter().flat_map(|r| &r.ties);
                ties.map(|tie| effect(tie, weight)).collect()
            },
        )
        .collect();
    let mut first = 0;
    for row in rows {
        let columns = first..first + row.ties.len();
        first = columns.end;
        let y = &mut y[row.row * m..][..m];
        let effects: Vec<Vec<f64>> = columns.map(|c| effects.iter().map(|of| of[c]).collect()).collect();
        decide(&effects, &row.given, y);
    }
}

fn effect(tie: &Tie, weight: &[f32]) -> f64 {
    let pairs = tie.change.iter().zip(&weight[tie.first..]);
    pairs.map(|(d, w)| d * f64::from(*w)).sum()
}

/// Adds to `y` those of `effects` that bring it nearer to `given`, the one that
/// helps most first. One taken once is never taken back.
fn decide(effects: &[Vec<f64>], given: &[f32], y: &mut [f64]) {
    let mut open: Vec<&Vec<f64>> = effects.iter().collect();
    loop {
        // How much shorter the residual r becomes: |r|^2 - |r - e|^2 = 2 re - ee.
        let gain = |e: &[f64]| -> f64 {
            let outputs = e.iter().zip(given).zip(y.iter());
            outputs.map(|((e, g), y)| e * (2.0 * (f64::from(*g) - y) - e)).sum()
        };
        let best = (0..open.len()).map(|i| (gain(open[i]), i)).max_by(|a, b| a.0.total_cmp(&b.0));
        match best {
            // Not of a NaN.
            Some((gain, i)) if gain > 0.0 && gain.is_finite() => {
                let taken = open.swap_remove(i);
                y.iter_mut().zip(taken).for_each(|(y, e)| *y += e);
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whichever ties were taken, they are found again.
        #[test]
        fn what_was_taken_is_found(
            effects in prop::collection::vec(prop::collection::vec(-1.0..1.0_f64, 64), 1..5),
            taken in prop::collection::vec(any::<bool>(), 5),
            noise in prop::collection::vec(-1e-4..1e-4_f64, 64),
        ) {
            let mut want = vec![0.25; 64];
            for (e, _) in effects.iter().zip(&taken).filter(|(_, taken)| **taken) {
                want.iter_mut().zip(e).for_each(|(w, e)| *w += e);
            }
            let given: Vec<f32> = want.iter().zip(&noise).map(|(w, n)| (w + n) as f32).collect();
            let mut y = vec![0.25; 64];
            decide(&effects, &given, &mut y);
            for (y, w) in y.iter().zip(&want) {
                prop_assert!((y - w).abs() < 1e-9, "{y} for {w}");
            }
        }
    }

    #[test]
    fn nothing_is_read_off_what_is_not_finite() {
        let mut y = vec![1.0; 4];
        decide(&[vec![1.0; 4]], &[f32::NAN; 4], &mut y);
        decide(&[vec![1.0; 4]], &[f32::INFINITY; 4], &mut y);
        assert_eq!(y, [1.0; 4]);
    }
}
