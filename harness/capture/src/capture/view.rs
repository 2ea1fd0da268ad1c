//! Which elements of an array are meant: slices, chosen rows and other brackets, without moving anything; then the
//! elements, taken in one pass over the array.

use anyhow::{Context as _, Result, ensure};

/// Most places that are listed for an axis, and most pieces that elements are taken in.
const LISTED: usize = 1 << 22;

/// Stands for an entry of a table that is no index of its array: refused where the element is used.
const NOWHERE: usize = usize::MAX;

/// Elements that are read at once.
const CHUNK: usize = 1 << 14;

/// A choice along one axis, as numpy writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// One entry; the axis goes.
    At(i64),
    /// `from:to:step`; negative ends count from the end.
    Slice(Option<i64>, Option<i64>, usize),
    /// These entries, in this order; an entry may be no index as long as nothing is taken from it.
    Rows(Vec<i64>),
    /// `...`: as many whole axes as are left over.
    Rest,
}

/// Elements of an array, in axes of their own.
#[derive(Clone, Debug)]
pub(super) struct View {
    first: usize,
    axes: Vec<Axis>,
}

/// Where the entries of an axis lie, counted in elements from the first.
#[derive(Clone, Debug)]
enum Axis {
    Even { extent: usize, stride: usize },
    Listed(Vec<usize>),
}

impl Axis {
    fn extent(&self) -> usize {
        match self {
            Self::Even { extent, .. } => *extent,
            Self::Listed(places) => places.len(),
        }
    }

    fn place(&self, index: usize) -> usize {
        match self {
            Self::Even { stride, .. } => index * stride,
            Self::Listed(places) => places[index],
        }
    }

    fn listed(indices: impl ExactSizeIterator<Item = usize>) -> Result<Self> {
        ensure!(indices.len() <= LISTED, "takes more than {LISTED} entries one by one");
        Ok(Self::Listed(indices.collect()))
    }

    /// This axis and the one within it as one.
    fn merged(&self, inner: &Self) -> Result<Self> {
        let (outer, extent) = (self.extent(), inner.extent());
        match (self, inner) {
            (_, Self::Even { extent: 1, .. }) => Ok(self.clone()),
            (Self::Even { extent: 1, .. }, _) => Ok(inner.clone()),
            (Self::Even { stride: far, .. }, Self::Even { stride, .. }) if *far == stride * extent => {
                Ok(Self::Even { extent: outer * extent, stride: *stride })
            }
            _ => {
                let count = outer.checked_mul(extent).context("is larger than any array")?;
                let place = |i: usize| sum(self.place(i / extent), inner.place(i % extent));
                Self::listed((0..count).map(place))
            }
        }
    }

    /// The same entries in two axes, the inner one of this extent.
    fn split(&self, inner: usize) -> Result<[Self; 2]> {
        match self {
            Self::Even { extent, stride } => Ok([
                Self::Even { extent: extent / inner, stride: stride * inner },
                Self::Even { extent: inner, stride: *stride },
            ]),
            Self::Listed(places) if places.len() == inner => Ok([Self::Even { extent: 1, stride: 0 }, self.clone()]),
            Self::Listed(places) => {
                let chunks = || places.chunks(inner);
                let base = |chunk: &[usize]| chunk.iter().copied().min().unwrap_or(NOWHERE);
                let one = chunks().find(|c| base(c) != NOWHERE).unwrap_or(&places[..inner]);
                let within: Vec<usize> = one.iter().map(|p| p - base(one)).collect();
                ensure!(
                    chunks().all(|c| base(c) == NOWHERE || c.iter().zip(&within).all(|(p, w)| *p == sum(base(c), *w))),
                    "is reshaped after its entries were taken in an order that has no such axes"
                );
                Ok([Self::Listed(chunks().map(base).collect()), Self::Listed(within)])
            }
        }
    }
}

fn sum(a: usize, b: usize) -> usize {
    if a == NOWHERE || b == NOWHERE { NOWHERE } else { a + b }
}

impl View {
    /// All of an array of this shape, whose axes lie in this order, the one that changes slowest first.
    ///
    /// # Errors
    /// Nothing in it, or more than can be counted.
    pub(super) fn of(shape: &[usize], lies: &[usize]) -> Result<Self> {
        ensure!(!shape.contains(&0), "has shape {shape:?}, which is empty");
        let mut axes: Vec<Axis> = shape.iter().map(|&extent| Axis::Even { extent, stride: 1 }).collect();
        let mut stride = 1usize;
        for i in (0..shape.len()).rev() {
            let axis = lies.get(i).copied().unwrap_or(i);
            axes[axis] = Axis::Even { extent: shape[axis], stride };
            stride = stride.checked_mul(shape[axis]).context("is larger than any array")?;
        }
        Ok(Self { first: 0, axes })
    }

    /// Its extents.
    pub(super) fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(Axis::extent).collect()
    }

    /// The number of its elements.
    ///
    /// # Errors
    /// More than can be counted: tables may name a row any number of times.
    pub(super) fn count(&self) -> Result<usize> {
        self.axes.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.extent())).context("is larger than any array")
    }

    /// What these choices leave, an axis each from the first on.
    ///
    /// # Errors
    /// More choices than axes, ends beyond them, nothing left.
    pub(super) fn choose(&self, choices: &[Choice]) -> Result<Self> {
        let given = choices.iter().filter(|c| **c != Choice::Rest).count();
        let shape = self.shape();
        ensure!(
            given <= shape.len() && choices.len() <= given + 1,
            "has {} axes, shape {shape:?}, and the map chooses of {given}",
            shape.len()
        );
        let mut axes = self.axes.iter();
        let mut left = Self { first: self.first, axes: Vec::new() };
        for choice in choices {
            if *choice == Choice::Rest {
                left.axes.extend(axes.by_ref().take(shape.len() - given).cloned());
                continue;
            }
            let axis = axes.next().context("an axis for each choice")?;
            let extent = axis.extent();
            let from_start = |i: i64| if i < 0 { i + extent as i64 } else { i };
            let end = |i: i64| usize::try_from(from_start(i)).ok().filter(|i| *i <= extent);
            match choice {
                Choice::At(i) => {
                    let at = end(*i).filter(|at| *at < extent);
                    let at =
                        at.with_context(|| format!("has shape {shape:?}, and the map takes entry {i} of {extent}"))?;
                    left.first = sum(left.first, axis.place(at));
                }
                Choice::Slice(from, to, step) => {
                    // Other than numpy's, a slice is never cut off: what is not there is no smaller stage.
                    let bounds = end(from.unwrap_or(0)).zip(end(to.unwrap_or(extent as i64)));
                    let (from_, to_) = bounds.filter(|(from, to)| from < to).with_context(|| {
                        let shown = |i: &Option<i64>| i.map_or_else(String::new, |i| i.to_string());
                        format!("has shape {shape:?}, and the map takes {}:{} of {extent}", shown(from), shown(to))
                    })?;
                    let count = (to_ - from_).div_ceil(*step);
                    left.axes.push(match axis {
                        Axis::Even { stride, .. } => {
                            left.first = sum(left.first, from_ * stride);
                            Axis::Even { extent: count, stride: stride * step }
                        }
                        Axis::Listed(places) => {
                            Axis::Listed(places[from_..to_].iter().step_by(*step).copied().collect())
                        }
                    });
                }
                Choice::Rows(rows) => {
                    ensure!(!rows.is_empty(), "is taken by a table without entries");
                    let place =
                        |i: &i64| usize::try_from(*i).ok().filter(|i| *i < extent).map_or(NOWHERE, |i| axis.place(i));
                    left.axes.push(Axis::listed(rows.iter().map(place))?);
                }
                Choice::Rest => {}
            }
        }
        left.axes.extend(axes.cloned());
        Ok(left)
    }

    /// The same elements in the same order, in axes of these extents; one of them may be left open.
    ///
    /// # Errors
    /// Extents that do not come to the same number of elements.
    pub(super) fn reshape(&self, extents: &[Option<usize>]) -> Result<Self> {
        let (count, shape) = (self.count()?, self.shape());
        let known = extents.iter().flatten().try_fold(1usize, |n, e| n.checked_mul(*e)).filter(|n| *n > 0);
        let shown: Vec<String> = extents.iter().map(|e| e.map_or("-1".to_owned(), |e| e.to_string())).collect();
        let problem = || format!("has shape {shape:?}, which has no shape ({})", shown.join(", "));
        let known = known.filter(|known| count % known == 0).with_context(problem)?;
        let open = extents.iter().filter(|e| e.is_none()).count();
        ensure!(open == 1 || open == 0 && known == count, "{}", problem());
        let mut wanted = extents.iter().map(|e| e.unwrap_or(count / known)).rev();
        // From the innermost axis on: merged until the wanted extent divides what there is.
        let mut given = self.axes.iter().rev();
        let mut rest = Axis::Even { extent: 1, stride: 1 };
        let mut axes = Vec::new();
        for extent in wanted.by_ref() {
            while !rest.extent().is_multiple_of(extent) {
                rest = given.next().with_context(problem)?.merged(&rest)?;
            }
            let [outer, inner] = rest.split(extent)?;
            axes.push(inner);
            rest = outer;
        }
        // What is left over holds one entry each, which need not be the first.
        let mut first = sum(self.first, rest.place(0));
        ensure!(rest.extent() == 1, "{}", problem());
        for axis in given {
            ensure!(axis.extent() == 1, "{}", problem());
            first = sum(first, axis.place(0));
        }
        axes.reverse();
        Ok(Self { first, axes })
    }

    /// Its axes in this order; as they are where there is none.
    ///
    /// # Errors
    /// An order of another number of axes.
    pub(super) fn ordered(mut self, order: &[usize]) -> Result<Self> {
        if !order.is_empty() {
            ensure!(order.len() == self.axes.len(), "has {} axes, and the map orders {}", self.axes.len(), order.len());
            self.axes = order.iter().map(|&axis| self.axes[axis].clone()).collect();
        }
        Ok(self)
    }

    /// Appends the pieces that it is taken in, for the target of this number.
    ///
    /// # Errors
    /// Too many; an entry of a table that is no index.
    fn pieces(&self, target: usize, pieces: &mut Vec<Piece>) -> Result<()> {
        let mut axes: Vec<Axis> = Vec::new();
        for axis in &self.axes {
            match (axes.last(), axis) {
                (Some(Axis::Even { stride: far, .. }), Axis::Even { stride, extent }) if *far == stride * extent => {
                    let merged = axes[axes.len() - 1].merged(axis)?;
                    axes.pop();
                    axes.push(merged);
                }
                _ if axis.extent() == 1 && axis.place(0) == 0 => {}
                _ => axes.push(axis.clone()),
            }
        }
        let innermost = axes.pop_if(|axis| matches!(axis, Axis::Even { .. }));
        let (count, step) = match innermost {
            Some(Axis::Even { extent, stride }) => (extent, stride),
            _ => (1, 1),
        };
        let outer: usize = axes.iter().map(Axis::extent).product();
        ensure!(
            pieces.len() + outer <= LISTED,
            "is taken in more than {LISTED} pieces; dump what is meant as an array of its own"
        );
        for i in 0..outer {
            let mut rest = i;
            let from = axes.iter().rev().fold(self.first, |from, axis| {
                let place = axis.place(rest % axis.extent());
                rest /= axis.extent();
                sum(from, place)
            });
            ensure!(
                from != NOWHERE,
                "is taken by a table with an entry, among those that count, that is no index of it"
            );
            pieces.push(Piece { from, step, count, target, to: i * count });
        }
        Ok(())
    }

    /// The places of its elements, in their order.
    ///
    /// # Errors
    /// As [`gather`].
    pub(super) fn places(&self) -> Result<Vec<usize>> {
        let mut pieces = Vec::new();
        self.pieces(0, &mut pieces)?;
        ensure!(self.count()? <= LISTED, "has more than {LISTED} entries");
        Ok(pieces.iter().flat_map(|p| (0..p.count).map(|i| p.from + i * p.step)).collect())
    }
}

/// Elements at even distances in an array, which follow each other in a target.
struct Piece {
    from: usize,
    step: usize,
    count: usize,
    target: usize,
    to: usize,
}

/// The elements of several views of an array of `total` elements, which `read` gives from the first to the last, or passes
/// over if none of them is selected.
///
/// # Errors
/// Those of `read`; views in too many pieces, or by a table with an entry that is no index.
pub(super) fn gather(
    views: &[View], total: usize, mut read: impl FnMut(usize, Option<&mut [f32]>) -> Result<()>,
) -> Result<Vec<Vec<f32>>> {
    let mut pieces = Vec::new();
    let mut targets = Vec::new();
    for (target, view) in views.iter().enumerate() {
        view.pieces(target, &mut pieces)?;
        targets.push(vec![0f32; view.count()?]);
    }
    pieces.sort_unstable_by_key(|p| p.from);
    let (mut next, mut open, mut at) = (0, Vec::<usize>::new(), 0);
    let mut chunk = vec![0f32; CHUNK.min(total)];
    while at < total {
        // What is passed over at once ends where the next piece begins.
        let begin = pieces.get(next).map_or(total, |p| p.from);
        if open.is_empty() && begin > at {
            read(begin - at, None)?;
            at = begin;
            continue;
        }
        let chunk = &mut chunk[..CHUNK.min(total - at)];
        let end = at + chunk.len();
        read(chunk.len(), Some(chunk))?;
        while pieces.get(next).is_some_and(|p| p.from < end) {
            open.push(next);
            next += 1;
        }
        open.retain(|&i| {
            let p = &pieces[i];
            let first = at.saturating_sub(p.from).div_ceil(p.step);
            let last = (end - p.from).div_ceil(p.step).min(p.count);
            for i in first..last {
                targets[p.target][p.to + i] = chunk[p.from + i * p.step - at];
            }
            last < p.count
        });
        at = end;
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What numpy does, element by element.
    #[derive(Clone, Debug)]
    struct Plain {
        shape: Vec<usize>,
        data: Vec<f32>,
    }

    impl Plain {
        fn choose(&self, axis: usize, choice: &Choice) -> Self {
            let extent = self.shape[axis];
            let index = |i: i64| if i < 0 { (i + extent as i64) as usize } else { i as usize };
            let (indices, stays): (Vec<usize>, bool) = match choice {
                Choice::At(i) => (vec![index(*i)], false),
                Choice::Slice(a, b, s) => ((a.map_or(0, index)..b.map_or(extent, index)).step_by(*s).collect(), true),
                Choice::Rows(rows) => (rows.iter().map(|r| *r as usize).collect(), true),
                Choice::Rest => unreachable!("not asked"),
            };
            let inner: usize = self.shape[axis + 1..].iter().product();
            let outer: usize = self.shape[..axis].iter().product();
            let mut shape = self.shape.clone();
            shape[axis] = indices.len();
            if !stays {
                shape.remove(axis);
            }
            let at = |o: usize, i: usize| self.data[(o * extent + i) * inner..][..inner].to_vec();
            let indices = &indices;
            let data = (0..outer).flat_map(|o| indices.iter().flat_map(move |&i| at(o, i))).collect();
            Self { shape, data }
        }
    }

    /// A step of a chain, by numbers that are brought into range as they come to an axis.
    fn chosen(kind: usize, a: usize, b: usize, extent: usize) -> Choice {
        let (a, b) = (a % extent, b % extent);
        let signed = |i: usize, negative: bool| if negative { i as i64 - extent as i64 } else { i as i64 };
        match kind % 4 {
            0 => Choice::At(signed(a, b % 2 == 0)),
            1 => Choice::Slice(Some(signed(a.min(b), a < b)), Some(a.max(b) as i64 + 1), 1),
            2 => Choice::Slice(None, None, 1 + a),
            _ => Choice::Rows(vec![a as i64, b as i64, a as i64]),
        }
    }

    proptest! {
        /// For any selection and any order of axes: the elements that numpy would give.
        #[test]
        fn takes_what_numpy_takes(
            shape in prop::collection::vec(1usize..5, 1..4), reverse: bool,
            chain in prop::collection::vec((0usize..5, 0usize..3, 0usize..9, 0usize..9), 0..5),
        ) {
            let total: usize = shape.iter().product();
            let rank = shape.len();
            let lies: Vec<usize> = if reverse { (0..rank).rev().collect() } else { Vec::new() };
            let mut view = View::of(&shape, &lies).unwrap();
            // The elements are numbered as they lie.
            let lying: Vec<usize> = if reverse { shape.iter().rev().copied().collect() } else { shape.clone() };
            let place = |mut i: usize| {
                let mut index = vec![0; rank];
                for axis in (0..rank).rev() { index[axis] = i % shape[axis]; i /= shape[axis]; }
                if reverse { index.reverse(); }
                index.iter().zip(&lying).fold(0, |n, (i, e)| n * e + i) as f32
            };
            let mut plain = Plain { data: (0..total).map(place).collect(), shape: shape.clone() };
            for (kind, axis, a, b) in chain {
                if kind == 4 || plain.shape.is_empty() {
                    // All in one, then in two.
                    let n = plain.data.len();
                    let part = (1..=n).filter(|p| n.is_multiple_of(*p)).nth(a % 3).unwrap_or(1);
                    // Rows in an order of their own have no other axes: an error says so.
                    let Ok(two) = view.reshape(&[None]).and_then(|one| one.reshape(&[None, Some(part)])) else { break };
                    view = two;
                    plain.shape = vec![n / part, part];
                    continue;
                }
                let axis = axis % plain.shape.len();
                let choice = chosen(kind, a, b, plain.shape[axis]);
                let choices: Vec<Choice> = (0..axis).map(|_| Choice::Slice(None, None, 1)).chain([choice.clone()]).collect();
                view = view.choose(&choices).unwrap();
                plain = plain.choose(axis, &choice);
            }
            prop_assert_eq!(view.shape(), plain.shape.clone());
            let mut next = 0;
            let got = gather(&[view.clone(), view], total, |count, out| {
                for (i, v) in out.into_iter().flatten().enumerate() { *v = (next + i) as f32; }
                next += count;
                Ok(())
            }).unwrap();
            prop_assert_eq!(&got[0], &plain.data);
            prop_assert_eq!(&got[1], &plain.data);
            prop_assert_eq!(next, total);
        }
    }

    #[test]
    fn an_axis_of_one_chosen_entry_keeps_it_when_it_goes() {
        let rows = View::of(&[4, 3], &[]).unwrap().choose(&[Choice::Rows(vec![1])]).unwrap();
        assert_eq!(rows.reshape(&[Some(3)]).unwrap().places().unwrap(), [3, 4, 5]);
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let view = View::of(&[4, 6], &[]).unwrap();
        for (choices, why) in [
            (vec![Choice::At(4)], "takes entry 4 of 4"),
            (vec![Choice::At(-5)], "takes entry -5 of 4"),
            (vec![Choice::Slice(Some(2), Some(9), 1)], "takes 2:9 of 4"),
            (vec![Choice::Slice(Some(2), Some(2), 1)], "takes 2:2 of 4"),
            (vec![Choice::At(0), Choice::At(0), Choice::At(0)], "the map chooses of 3"),
        ] {
            let said = view.choose(&choices).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        assert!(view.reshape(&[Some(5), None]).unwrap_err().to_string().contains("has no shape (5, -1)"));
        // A table's entry that is no index counts only where something is taken by it.
        let rows = view.choose(&[Choice::Rows(vec![3, -1])]).unwrap();
        assert!(rows.places().unwrap_err().to_string().contains("that is no index"));
        assert_eq!(
            rows.choose(&[Choice::Slice(None, Some(1), 1)]).unwrap().places().unwrap(),
            [18, 19, 20, 21, 22, 23]
        );
    }

    #[test]
    fn a_table_that_names_a_row_a_million_times_takes_no_memory() {
        let view = View::of(&[1, 1 << 20], &[]).unwrap();
        let rows = view.choose(&[Choice::Rows(vec![0; 1 << 20])]).unwrap();
        assert_eq!(rows.count().unwrap(), 1 << 40);
        assert!(view.choose(&[Choice::Rows(vec![0; LISTED + 1])]).is_err());
    }
}
