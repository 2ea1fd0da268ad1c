//! mlx-lm: modules as those of transformers, and a module that rotates.

use super::{Place, Site, at, transformers};
use crate::model::{Node, Role};
use crate::ops::Op;

/// Where it has a stage.
pub(super) fn place(node: &Node) -> Option<Place> {
    let heads = "as [batch, G, N, D]";
    Some(match (&node.op, node.role) {
        (Op::Rope(_), Role::Query) => at(Site::Call("self_attn.rope", 0)).noted("as [batch, H, T, D]"),
        (Op::Rope(_), _) => at(Site::Call("self_attn.rope", 1)).noted("as [batch, G, T, D]"),
        (Op::KvCache(_), Role::Key) => at(Site::Kept("cache[i].keys")).noted(heads),
        (Op::KvCache(_), _) => at(Site::Kept("cache[i].values")).noted(heads),
        _ => return transformers::modules(node),
    })
}
