//! Groups of the terms of a sum, as a kernel deals them out, and what they are called: runs of terms, terms modulo a number
//! (lanes of a warp or of a vector), terms counted from the last one.

use super::scene::Scene;
use super::short;
use crate::number::ordinal;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};

/// A way to sort the terms of a sum into groups.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Groups {
    /// Runs of so many terms.
    Runs(usize),
    /// Terms modulo a number.
    Lanes(usize),
    /// Terms in runs, dealt out to so many lanes in turn.
    Dealt { run: usize, lanes: usize },
    /// Terms counted from the last one, up to so many; the rest is one group.
    FromEnd(usize),
    /// Terms modulo a number, of as many whole runs as there are; what is left over is the last group.
    Unrolled(usize),
    /// Runs within a stretch of terms; the rest is the first group.
    Near { from: usize, len: usize, run: usize },
}

impl Groups {
    pub(super) fn of(self, term: usize, terms: usize) -> usize {
        match self {
            Self::Runs(n) => term / n,
            Self::Lanes(n) => term % n,
            Self::Dealt { run, lanes } => term / run % lanes,
            Self::FromEnd(n) => (terms - 1 - term).min(n),
            Self::Unrolled(n) => {
                if term < terms / n * n {
                    term % n
                } else {
                    n
                }
            }
            Self::Near { from, len, run } => match term.checked_sub(from) {
                Some(at) if at < len => 1 + at / run,
                _ => 0,
            },
        }
    }

    /// The sum of each of so many groups of these terms.
    pub(super) fn sums(self, terms: &[f64], count: usize) -> Vec<f64> {
        let mut sums = vec![0f64; count];
        match self {
            Self::Runs(n) => sums.iter_mut().zip(terms.chunks(n)).for_each(|(sum, run)| *sum = run.iter().sum()),
            Self::Lanes(n) => {
                terms.chunks(n).for_each(|turn| sums.iter_mut().zip(turn).for_each(|(sum, term)| *sum += term));
            }
            Self::Dealt { .. } | Self::FromEnd(_) | Self::Unrolled(_) | Self::Near { .. } => {
                terms.iter().enumerate().for_each(|(k, term)| sums[self.of(k, terms.len())] += term);
            }
        }
        sums
    }

    pub(super) fn count(self, terms: usize) -> usize {
        match self {
            Self::Runs(n) => terms.div_ceil(n),
            Self::Lanes(n) => n.min(terms),
            Self::Dealt { run, lanes } => lanes.min(terms.div_ceil(run)),
            Self::FromEnd(n) | Self::Unrolled(n) => n + 1,
            Self::Near { len, run, .. } => 1 + len.div_ceil(run),
        }
    }
}

/// After how many groups the next of these comes, where that is always as many and none of so many groups is left out.
fn period(same: &[usize], groups: usize) -> Option<usize> {
    let step = same.get(1)? - same[0];
    let even = same.windows(2).all(|pair| pair[1] - pair[0] == step);
    (even && same[0] < step && same[same.len() - 1] + step >= groups).then_some(step)
}

/// What a term is called: one, and many.
pub(super) fn term(op: Anatomy<'_>) -> (&'static str, &'static str) {
    match op {
        Anatomy::Contraction(Contraction::Context(_)) | Anatomy::RowReduction(RowReduction::Exponentials(_)) => {
            ("key", "keys")
        }
        Anatomy::Contraction(Contraction::Scores(_)) => ("head element", "head elements"),
        Anatomy::Contraction(Contraction::Rows(_)) => ("chosen expert", "chosen experts"),
        _ => ("input", "inputs"),
    }
}

/// These groups in words, as the author of a kernel calls them.
pub(super) fn which(scene: &Scene<'_>, kind: Groups, same: &[usize], terms: usize) -> String {
    let (one, many) = term(scene.node().op.anatomy());
    let (first, last) = (same[0], same[same.len() - 1]);
    let run = last - first + 1 == same.len();
    let list = || {
        let shown: Vec<String> = same.iter().take(6).map(ToString::to_string).collect();
        let more = same.len().saturating_sub(6);
        shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
    };
    match kind {
        Groups::Near { from, run: n, .. } if run && first > 0 => {
            let (a, b) = (from + (first - 1) * n, (from + last * n).min(terms) - 1);
            if a == b { format!("{one} {a}") } else { format!("{many} {a}..{b}") }
        }
        Groups::Near { from, run: n, .. } => {
            let shown = same.iter().take(6).map(|g| match (g.checked_sub(1), n) {
                (None, _) => "all others".to_owned(),
                (Some(g), 1) => (from + g).to_string(),
                (Some(g), n) => format!("{}..{}", from + g * n, from + (g + 1) * n - 1),
            });
            let more = same.len().saturating_sub(6);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{many} {}{more}", shown.collect::<Vec<_>>().join(", "))
        }
        Groups::Runs(n) if run => {
            let (a, b) = (first * n, ((last + 1) * n).min(terms) - 1);
            let tail = if b + 1 == terms { ", the tail," } else { "" };
            // How many keys there are is a number of the run.
            if b + 1 == terms && matches!(scene.node().op.anatomy(), Anatomy::Contraction(Contraction::Context(_))) {
                return format!("{many} from {a} on");
            }
            if a == b { format!("{one} {a}{tail}") } else { format!("{many} {a}..{b}{tail}") }
        }
        Groups::Runs(1) => format!("{many} {}", list()),
        Groups::Runs(n) => match period(same, terms.div_ceil(n)) {
            Some(m) => format!("{many} ≡ {}..{} mod {}", first * n, (first + 1) * n - 1, m * n),
            None => format!("runs {} of {n} {many} each", list()),
        },
        Groups::Lanes(n) if run && first == last => {
            format!("every {} of the {many}, those ≡ {first} mod {n},", ordinal(n))
        }
        Groups::Lanes(n) if run => format!("{many} ≡ {first}..{last} mod {n}"),
        Groups::Lanes(n) => format!("{many} ≡ {} mod {n}", list()),
        Groups::Dealt { run: n, lanes } if run => {
            format!("{many} ≡ {}..{} mod {}", first * n, (last + 1) * n - 1, n * lanes)
        }
        Groups::Dealt { run: n, lanes } => {
            let runs: Vec<String> = same.iter().take(6).map(|g| format!("{}..{}", g * n, (g + 1) * n - 1)).collect();
            let more = if same.len() > 6 { format!(" and {} more", same.len() - 6) } else { String::new() };
            format!("{many} ≡ {}{more} mod {}", runs.join(", "), n * lanes)
        }
        Groups::Unrolled(n) if *same == [n] => format!("{many} after the last whole {n}"),
        Groups::Unrolled(n) => format!("{many} ≡ {} mod {n}, of whole {n}s,", list()),
        Groups::FromEnd(n) if *same == [0] && n > 0 => format!("the last {one}"),
        Groups::FromEnd(n) if run && first == 0 && last < n => format!("the last {} {many}", last + 1),
        Groups::FromEnd(n) if run && last == n => format!("all {many} but the last {first}"),
        Groups::FromEnd(_) => format!("{many} {} before the last", list()),
    }
}

/// What became of groups of terms, in words.
pub(super) fn told(scene: &Scene<'_>, kind: Groups, taken: &[f64], terms: usize) -> String {
    let (one, many) = term(scene.node().op.anatomy());
    let mut factors: Vec<f64> = Vec::new();
    for c in taken.iter().filter(|c| **c != 0.0) {
        if !factors.contains(c) {
            factors.push(*c);
        }
    }
    // Lanes of which one is taken for another are two of them.
    let most = if matches!(kind, Groups::Lanes(_) | Groups::Unrolled(_)) { 2 } else { 1 };
    let each = factors.iter().take(most).map(|&factor| {
        let same: Vec<usize> = (0..taken.len()).filter(|&g| taken[g] == factor).collect();
        let which = which(scene, kind, &same, terms);
        let verb = match factor {
            -1.0 => "missing from every sum".to_owned(),
            1.0 => "taken twice in every sum".to_owned(),
            c if c.fract() == 0.0 && c > 0.0 => format!("taken {} times in every sum", c + 1.0),
            -2.0 => "subtracted instead of added in every sum".to_owned(),
            c => format!("taken times {} in every sum", short(1.0 + c)),
        };
        let single = which.starts_with(one) && !which.starts_with(many) || which == format!("the last {one}");
        (same.len(), format!("{which} {} {verb}", if single { "is" } else { "are" }))
    });
    let each: Vec<(usize, String)> = each.collect();
    let shown: usize = each.iter().map(|(groups, _)| groups).sum();
    let others = taken.iter().filter(|c| **c != 0.0).count() - shown;
    let more = if others > 0 {
        format!("; and {} otherwise", crate::number::counted(others, "other group"))
    } else {
        String::new()
    };
    each.into_iter().map(|(_, told)| told).collect::<Vec<_>>().join(", and ") + &more
}
