//! Sorting in the order in which libstdc++ leaves equal elements.
//!
//! Neither `std::partial_sort` nor `std::sort` is stable, and which of several candidates of equal logit survives a
//! top-k depends on the very moves they make. So both are followed move by move: `partial_sort` is a heap of the best
//! `n`, sorted at the end; `sort` is introsort (D. Musser, 1997): quicksort by the median of three down to runs of 16,
//! heap sort where that goes too deep, insertion sort at the end.

/// Runs up to this length are left to the insertion sort.
const SHORT: usize = 16;

/// Moves the `n` first elements by `before` to the front, in order; what
/// follows them is in no order. `n` must not exceed the length.
pub(crate) fn partial_sort<T: Copy>(list: &mut [T], n: usize, before: impl Fn(&T, &T) -> bool) {
    if n == 0 {
        return;
    }
    let (heap, rest) = list.split_at_mut(n);
    for parent in (0..n / 2).rev() {
        let value = heap[parent];
        sift(heap, parent, value, &before);
    }
    for other in rest {
        if before(other, &heap[0]) {
            let value = std::mem::replace(other, heap[0]);
            sift(heap, 0, value, &before);
        }
    }
    for last in (1..n).rev() {
        let value = heap[last];
        heap[last] = heap[0];
        sift(&mut heap[..last], 0, value, &before);
    }
}

/// Puts `value` into the heap, whose place `hole` is free: the hole sinks to
/// the bottom along the later child, then `value` rises from there.
fn sift<T: Copy>(heap: &mut [T], mut hole: usize, value: T, before: &impl Fn(&T, &T) -> bool) {
    let top = hole;
    while 2 * hole + 2 < heap.len() {
        let right = 2 * hole + 2;
        let child = if before(&heap[right], &heap[right - 1]) { right - 1 } else { right };
        heap[hole] = heap[child];
        hole = child;
    }
    if 2 * hole + 2 == heap.len() {
        heap[hole] = heap[2 * hole + 1];
        hole = 2 * hole + 1;
    }
    while hole > top && before(&heap[(hole - 1) / 2], &value) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = value;
}

/// Sorts all of `list` by `before`, which must be a strict weak order.
pub(crate) fn sort<T: Copy>(list: &mut [T], before: impl Fn(&T, &T) -> bool) {
    if list.is_empty() {
        return;
    }
    quicksort(list, 2 * list.len().ilog2(), &before);
    insertion_sort(list, &before);
}

fn quicksort<T: Copy>(mut list: &mut [T], mut depth: u32, before: &impl Fn(&T, &T) -> bool) {
    while list.len() > SHORT {
        if depth == 0 {
            let n = list.len();
            return partial_sort(list, n, before);
        }
        depth -= 1;
        let cut = partition(list, before);
        let (front, back) = list.split_at_mut(cut);
        quicksort(back, depth, before);
        list = front;
    }
}

/// Splits by the median of the second, middle and last element, which goes to
/// the front; gives where the second part starts.
fn partition<T: Copy>(list: &mut [T], before: &impl Fn(&T, &T) -> bool) -> usize {
    let (a, b, c) = (1, list.len() / 2, list.len() - 1);
    let less = |x: usize, y: usize| before(&list[x], &list[y]);
    let median = match (less(a, b), less(b, c), less(a, c)) {
        (true, true, _) | (false, false, false) => b,
        (true, false, true) | (false, true, false) => c,
        (true, false, false) | (false, _, true) => a,
    };
    list.swap(0, median);
    let (mut low, mut high) = (1, list.len());
    // The pivot is no extreme of the three, so both runs stop inside the list.
    loop {
        while before(&list[low], &list[0]) {
            low += 1;
        }
        high -= 1;
        while before(&list[0], &list[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        list.swap(low, high);
        low += 1;
    }
}

/// Sorts what is nearly sorted.
fn insertion_sort<T: Copy>(list: &mut [T], before: &impl Fn(&T, &T) -> bool) {
    for i in 1..list.len() {
        let value = list[i];
        let mut at = i;
        while at > 0 && before(&value, &list[at - 1]) {
            list[at] = list[at - 1];
            at -= 1;
        }
        list[at] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::{partial_sort, sort};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sorts(mut list in prop::collection::vec(0u16..500, 0..600), n in 0usize..600) {
            let mut sorted = list.clone();
            sorted.sort_unstable();
            let mut whole = list.clone();
            sort(&mut whole, |a, b| a < b);
            prop_assert_eq!(&whole, &sorted);
            let n = n.min(list.len());
            partial_sort(&mut list, n, |a, b| a < b);
            prop_assert_eq!(&list[..n], &sorted[..n]);
            list.sort_unstable();
            prop_assert_eq!(list, sorted);
        }
    }
}
