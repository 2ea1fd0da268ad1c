//! Tiles of a product that blocks share by steps of its inputs (stream-k), of which one block's part alone is kept: what the others
//! have computed is never added.

use super::factors::Other;
use super::scene::Scene;
use crate::verdict::RowAt;
use qdiff_engine::model::WeightSource as _;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use std::rc::Rc;

/// Columns of a tile, inputs of a step, and blocks at most.
const TILES: [usize; 4] = [64, 32, 128, 16];
const STEPS: [usize; 5] = [64, 32, 128, 16, 256];
const BLOCKS: usize = 64;

/// How a product is shared out.
#[derive(Clone, Copy)]
struct Shared {
    tile: usize,
    step: usize,
    blocks: usize,
    /// Whether the part of the block that ends the tile is kept, and not that of the one that begins it.
    last: bool,
}

impl Shared {
    /// The inputs of a column that are kept, of so many.
    fn kept(self, column: usize, (columns, inputs): (usize, usize)) -> (usize, usize) {
        let steps = inputs.div_ceil(self.step);
        let all = columns.div_ceil(self.tile) * steps;
        let (begin, end) = (column / self.tile * steps, (column / self.tile + 1) * steps);
        // Block b begins at this step of all tiles.
        let begins = |block: usize| block * all / self.blocks;
        let mut inside = (1..self.blocks).map(begins).filter(|at| (begin + 1..end).contains(at));
        let (from, until) = match self.last {
            true => (inside.next_back().unwrap_or(begin), end),
            false => (begin, inside.next().unwrap_or(end)),
        };
        ((from - begin) * self.step, ((until - begin) * self.step).min(inputs))
    }
}

pub(super) fn others<'a>(scene: &'a Scene<'a>, all: &mut Vec<Other<'a>>) {
    let (Anatomy::Contraction(Contraction::Weight(None)), Some(columns)) = (scene.node().op.anatomy(), scene.width())
    else {
        return;
    };
    let inputs = scene.weights().extent(&scene.node().weights[0].name).0;
    // A wrong column is one of which something is left out.
    let wrong: Vec<usize> = scene.fit.iter().map(|&(r, i)| scene.token(&scene.e.rows[r]).1 + i).collect();
    let fits = |shared: &Shared| wrong.iter().all(|c| shared.kept(*c, (columns, inputs)) != (0, inputs));
    let of_steps = TILES.into_iter().flat_map(|tile| STEPS.map(|step| (tile, step)));
    let of_blocks = of_steps.flat_map(|(tile, step)| {
        let most = columns.div_ceil(tile) * inputs.div_ceil(step);
        (2..=BLOCKS.min(most)).flat_map(move |blocks| [true, false].map(|last| Shared { tile, step, blocks, last }))
    });
    for shared in of_blocks.filter(fits) {
        let Shared { tile, step, blocks, last } = shared;
        let which = if last { "that ends it" } else { "that begins it" };
        let what = format!(
            "{blocks} blocks share out the tiles of {tile} columns by steps of {step} inputs, and of a tile that several of them compute the part of the block {which} is kept alone"
        );
        all.push((
            what,
            Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
                let (from, until) = shared.kept(scene.token(row).1 + i, (columns, inputs));
                let product = |k: usize| if (from..until).contains(&k) { a[k] * b[k] } else { 0.0 };
                Some((0..a.len()).map(product).collect())
            }),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::Shared;

    /// 5 tiles of 6 steps over 4 blocks: the blocks begin at steps 7, 15 and 22.
    #[test]
    fn a_tile_keeps_the_part_of_one_block() {
        let kept = |last: bool| {
            let shared = Shared { tile: 64, step: 64, blocks: 4, last };
            [0, 64, 128, 192, 256].map(|column| shared.kept(column, (320, 384)))
        };
        assert_eq!(kept(true), [(0, 384), (64, 384), (192, 384), (256, 384), (0, 384)]);
        assert_eq!(kept(false), [(0, 384), (0, 64), (0, 192), (0, 256), (0, 384)]);
    }
}
