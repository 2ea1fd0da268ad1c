//! Where a decode step writes its taps: one piece of device memory, which travels to the host at once.

use super::known::is_cache;
use super::layouts::Ptr;
use crate::model::{Graph, Node, row_len};

/// Steps of the number of keys that a slot has room for: it is laid out anew so seldom, and so little travels in vain.
const KEYS: usize = 128;
/// Elements at whose multiples a tensor begins.
const ALIGN: usize = 4;
/// Bytes of a slot of which one must do.
const LARGE: usize = 256 << 20;

/// A tensor's place in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node, by index.
    pub node: usize,
    /// Its first element.
    pub at: usize,
    /// Elements that it has room for.
    pub room: usize,
}

/// The places in a slot: caches first, of which a step gives the newest row and a word behind it (`cache_rows.cu`).
#[derive(Debug, Default)]
pub struct Slots {
    wanted: Vec<bool>,
    keys: usize,
    /// One after the other.
    pub places: Vec<Place>,
    /// How many of them are caches'.
    pub caches: usize,
    /// Elements of a slot.
    pub len: usize,
}

impl Slots {
    /// The layout for the nodes `wanted` of steps that see up to `keys` tokens, or some more in a context of so many.
    pub fn new(graph: &Graph, wanted: &[bool], keys: usize, context: usize) -> Self {
        let mut slots =
            Self { wanted: wanted.to_vec(), keys: keys.next_multiple_of(KEYS).min(context), ..Self::default() };
        let room = |node: &Node| match is_cache(node) {
            true => row_len(node) + 1,
            false => Graph::extent(node, 1, slots.keys).iter().product(),
        };
        let of_kind = |state: bool| {
            let all = graph.nodes.iter().enumerate();
            all.filter(move |&(i, node)| wanted[i] && is_cache(node) == state)
        };
        let (mut places, mut len) = (Vec::new(), 0);
        for (node, of) in of_kind(true).chain(of_kind(false)) {
            places.push(Place { node, at: len, room: room(of) });
            len = (len + room(of)).next_multiple_of(ALIGN);
        }
        (slots.caches, slots.places, slots.len) = (of_kind(true).count(), places, len);
        slots
    }

    /// Whether it is made for these nodes, and has room for so many keys.
    pub fn fit(&self, wanted: &[bool], keys: usize) -> bool {
        self.wanted == wanted && keys <= self.keys
    }

    /// Whether it is made for these nodes.
    pub fn are_of(&self, wanted: &[bool]) -> bool {
        self.wanted == wanted
    }

    /// The place of a node, if it has one.
    pub fn place(&self, node: usize) -> Option<&Place> {
        self.places.iter().find(|place| place.node == node)
    }

    /// Where the nodes write in the slot at `start`; 0 where they do not: a cache stands where it is.
    pub fn addresses(&self, start: Ptr) -> Vec<Ptr> {
        let mut all = vec![0; self.wanted.len()];
        for place in &self.places[self.caches..] {
            all[place.node] = start + 4 * place.at as u64;
        }
        all
    }
}

/// Slots that an engine takes: two, so that one travels while a step writes the other, unless they are large; and the
/// bytes of one.
pub fn taken(graph: &Graph, context: usize) -> (usize, usize) {
    let bytes = 4 * Slots::new(graph, &vec![true; graph.nodes.len()], context, context).len;
    (if bytes > LARGE { 1 } else { 2 }, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::testing::graphs;

    #[test]
    fn the_tensors_of_a_slot_stand_beside_each_other_and_are_laid_out_anew_where_keys_or_nodes_are_others() {
        for graph in &graphs() {
            let all = vec![true; graph.nodes.len()];
            let (context, most) = (1000, taken(graph, 1000).1);
            for keys in [1, 128, 129, 1000] {
                let slots = Slots::new(graph, &all, keys, context);
                assert!(slots.fit(&all, keys) && !slots.fit(&all, context + 1) && 4 * slots.len <= most);
                assert!(keys > 128 || !slots.fit(&all, 129));
                assert_eq!(slots.places.len(), graph.nodes.len());
                assert!(slots.places.windows(2).all(|p| p[0].at + p[0].room <= p[1].at && p[1].at % 4 == 0));
                assert!(slots.places.iter().all(|p| {
                    let extent: usize = Graph::extent(&graph.nodes[p.node], 1, keys).iter().product();
                    is_cache(&graph.nodes[p.node]) || extent <= p.room
                }));
                let written = slots.addresses(1 << 20).iter().filter(|&&at| at > 0).count();
                assert_eq!(written, graph.nodes.len() - slots.caches);
            }
            let mut fewer = all.clone();
            fewer[3] = false;
            let slots = Slots::new(graph, &fewer, 100, context);
            assert!(!slots.fit(&all, 100) && slots.addresses(1 << 20)[3] == 0);
        }
    }
}
