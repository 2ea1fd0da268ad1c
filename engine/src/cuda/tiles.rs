//! How the fused kernels of a decode step go through rows of weights: tiles of 16 rows in shared memory.
//!
//! What is laid out here is read by `fused/rows.cuh`.

use super::kernels::constant;
use super::layouts::Walk;
use super::weights;
use crate::quant::GgmlType;
use std::collections::HashSet;

/// Rows of a tile.
pub const TILE: usize = constant!("fused/tile.cuh", "TILE") as usize;
/// Warps of a block.
const WARPS: usize = constant!("fused/tile.cuh", "MOST_WARPS") as usize;
/// Bytes of a group of 32 elements of the vector, for weights that are integers and for floats.
const INTEGER_GROUP: usize = constant!("fused/digits.cuh", "INTEGER_GROUP") as usize;
const FLOAT_GROUP: usize = constant!("fused/digits.cuh", "FLOAT_GROUP") as usize;
/// Stages of shared memory, where rows come one set after another.
const STAGES: usize = 2;
/// Warps that make tiles alone: of a block at most, the fewest that keep the memory busy, and the stages of each at
/// most.
const OWN_WARPS: usize = constant!("fused/lm_head.cu", "OWN_WARPS") as usize;
const OWN_LEAST: usize = 6;
const OWN_STAGES: usize = constant!("fused/rows.cuh", "OWN_STAGES") as usize;
/// Warps of a block that brings its rows through rings, groups of a piece, and stages of a warp's ring at most: more brought no speed.
const RING_WARPS: usize = constant!("fused/ring.cuh", "RING_WARPS") as usize;
const PIECE: usize = constant!("fused/ring.cuh", "PIECE") as usize;
const RING_STAGES: usize = 4;
/// Threads of a block.
pub const THREADS: u32 = 32 * WARPS as u32;

/// Rows of weights that a block makes: of these formats in turn, `groups` groups of 32 long.
#[derive(Clone, Debug)]
pub struct Task {
    /// Formats of the rows.
    pub formats: Vec<GgmlType>,
    /// Groups of a row.
    pub groups: usize,
    /// Tiles at a time.
    pub tiles: usize,
    /// Bytes of shared memory that a block may have.
    pub limit: usize,
}

/// Bytes that a tile of rows takes of as many as `groups` groups, or fewer, of which a plane may need more for its rows to
/// begin at an odd number of 16 (`pitch_of` in `tile.cuh`).
fn tile_bytes(ty: GgmlType, groups: usize) -> usize {
    let pitch = |width: usize| (width.div_ceil(16) | 1) * 16;
    let plane = |len: usize| TILE * pitch((len * (32 * groups)).div_ceil(ty.block_size()));
    weights::plane_lengths(ty).map(plane).sum()
}

/// Groups that a warp takes together, and how often it may, if it unpacks them before its turn: `ATOM` of a format's
/// tile in `tile.cuh`, and what fits the registers of a thread.
fn atom(ty: GgmlType) -> (usize, usize) {
    match ty {
        GgmlType::F32 => (1, 3),
        GgmlType::F16 | GgmlType::BF16 => (1, 7),
        GgmlType::Q8_0 => (1, 12),
        GgmlType::Q4_0 | GgmlType::Q5_0 => (2, 7),
        GgmlType::Q4_1 | GgmlType::Q5_1 => (2, 5),
        GgmlType::Q4_K | GgmlType::Q5_K | GgmlType::Q6_K => (8, 2),
        _ => unreachable!("{ty}: no format without kernels is kept on a device"),
    }
}

/// How many atoms of a row of format `ty` a warp may unpack before its turn.
pub fn most_held(ty: GgmlType) -> usize {
    atom(ty).1
}

impl Task {
    /// Bytes of the vector, prepared for all formats.
    fn vector(&self) -> usize {
        let float = |&&ty: &&GgmlType| matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
        let floats: HashSet<_> = self.formats.iter().filter(float).collect();
        // Digits of groups, and digits of blocks of 256.
        let digits: HashSet<_> = self.formats.iter().filter(|ty| !float(ty)).map(|ty| ty.block_size()).collect();
        let integers = digits.len();
        // Groups by two: see `padded_groups` in `digits.cuh`.
        let groups = self.groups.next_multiple_of(2);
        (groups * (integers * INTEGER_GROUP + floats.len() * FLOAT_GROUP)).next_multiple_of(16)
    }

    /// Bytes of a stage that holds `chunk` groups of every row.
    fn stage(&self, chunk: usize) -> usize {
        self.tiles * self.formats.iter().map(|&ty| tile_bytes(ty, chunk)).max().unwrap_or(0)
    }

    /// How many atoms of rows of format `ty` each warp unpacks before its turn: all, or none where they are too many.
    pub fn held(&self, ty: GgmlType) -> usize {
        let (groups, most) = atom(ty);
        let needed = self.groups.div_ceil(groups).div_ceil(WARPS / self.tiles);
        if needed <= most && self.whole() { needed } else { 0 }
    }

    /// [`Self::held`] of a kernel that needs half of its registers before the weights' turn.
    pub fn half_held(&self, ty: GgmlType) -> usize {
        let held = self.held(ty);
        if 2 * held <= most_held(ty) { held } else { 0 }
    }

    /// Threads of a block that unpacks weights as it multiplies them: all it may have, and as few as give no warp more to do.
    pub fn threads(&self) -> [u32; 2] {
        let all = WARPS / self.tiles;
        let each = |ty: GgmlType, team: usize| self.groups.div_ceil(atom(ty).0).div_ceil(team);
        let same = |&team: &usize| self.formats.iter().all(|&ty| each(ty, team) == each(ty, all));
        let fewer = (1..=all).find(same).unwrap_or(all);
        [all, fewer].map(|team| (32 * self.tiles * team) as u32)
    }

    /// The way of a block whose warps make whole tiles alone, of `rows` rows that `blocks` blocks share out, its
    /// threads and the bytes of shared memory that it takes; nothing where too few warps find room.
    pub fn own(&self, rows: usize, blocks: usize) -> Option<(Walk, u32, u32)> {
        let (vector, stride) = (self.vector(), self.stage(self.groups));
        let room = self.limit.saturating_sub(vector) / stride;
        let warps = room.min(OWN_WARPS);
        if warps < OWN_LEAST {
            return None;
        }
        let stages = (room / warps).min(OWN_STAGES);
        let sets = rows.div_ceil(TILE).div_ceil(blocks * warps);
        let walk = Walk { sets: sets as i32, ..self.walk_of(warps, stages, self.groups) };
        Some((walk, 32 * warps as u32, (vector + warps * stages * stride) as u32))
    }

    /// The way of a block whose warps bring `tiles` tiles at most through rings, its threads and the bytes of shared memory that it
    /// takes; nothing for rows without blocks of 256 weights, and where there is no room.
    pub fn ring(&self, tiles: usize) -> Option<(Walk, u32, u32)> {
        if self.formats.iter().any(|ty| ty.block_size() != 32 * PIECE) {
            return None;
        }
        let pitch = |width: usize| if width.is_multiple_of(16) { (width.div_ceil(16) | 1) * 16 } else { 4 };
        let bytes = |&ty: &GgmlType| weights::plane_lengths(ty).map(|width| TILE * pitch(width)).sum::<usize>();
        let stride = self.formats.iter().map(bytes).max()?;
        // A warp has no more stages than pieces.
        let pieces = |warps: usize| (tiles * self.groups / PIECE).div_ceil(warps);
        (4..=RING_WARPS).rev().step_by(4).find_map(|warps| {
            let besides = self.vector() + (tiles + warps) * TILE * size_of::<f32>();
            let room = (self.limit.saturating_sub(besides) / (warps * stride)).min(RING_STAGES);
            let stages = room.min(pieces(warps));
            let walk = Walk { stride: stride as i32, ..self.walk_of(warps, stages, PIECE) };
            (room > 1).then_some((walk, 32 * warps as u32, (besides + warps * stages * stride) as u32))
        })
    }

    /// The way of a block that has `tiles` tiles in shared memory, whose atoms its warps share out, and the bytes that it takes.
    pub fn shared_out(&self, tiles: usize) -> (Walk, u32) {
        let sums = |&ty: &GgmlType| tiles * self.groups.div_ceil(atom(ty).0) * TILE * size_of::<f32>();
        let sums = self.formats.iter().map(sums).max().unwrap_or(0);
        let bytes = self.vector() + tiles * self.stage(self.groups) / self.tiles + sums;
        (self.walk_of(tiles, 1, self.groups), bytes as u32)
    }

    /// The way for one set.
    fn walk_of(&self, tiles: usize, stages: usize, chunk: usize) -> Walk {
        let stride = (self.stage(chunk) / self.tiles) as i32;
        Walk { tiles: tiles as i32, sets: 1, chunk: chunk as i32, stages: stages as i32, stride }
    }

    /// Whether shared memory holds the rows whole.
    fn whole(&self) -> bool {
        self.vector() + self.stage(self.groups) <= self.limit
    }

    /// Groups of the pieces of a row, of which `STAGES` fit: as long as can be, but of those that give the warps of a tile
    /// the fewest atoms one after another.
    fn piece(&self, room: usize) -> usize {
        let least = self.formats.iter().map(|ty| (ty.block_size() / 32).max(2)).max().unwrap_or(2);
        let atom = self.formats.iter().map(|&ty| atom(ty).0).max().unwrap_or(1);
        let of = |groups: usize| groups.div_ceil(atom).div_ceil(WARPS / self.tiles);
        let turns = |&piece: &usize| self.groups / piece * of(piece) + of(self.groups % piece);
        let fitting = (least..self.groups).step_by(least).filter(|&piece| STAGES * self.stage(piece) <= room);
        fitting.min_by_key(|piece| (turns(piece), usize::MAX - piece)).unwrap_or(least)
    }

    /// The way through `sets` sets of tiles, and the bytes of shared memory that it takes. Where no way is small enough
    /// for the card it is the smallest, which the card then refuses.
    pub fn walk(&self, sets: usize) -> (Walk, u32) {
        let room = self.limit.saturating_sub(self.vector());
        let (chunk, stages) = match room / self.stage(self.groups) {
            1.. if sets == 1 => (self.groups, 1),
            STAGES.. => (self.groups, STAGES),
            _ => (self.piece(room), STAGES),
        };
        let walk = Walk { sets: sets as i32, ..self.walk_of(self.tiles, stages, chunk) };
        (walk, (self.vector() + stages * self.stage(chunk)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn task() -> impl Strategy<Value = Task> {
        let kept: Vec<GgmlType> = weights::read_by_kernels().collect();
        let formats = prop::collection::vec(prop::sample::select(kept), 1..3);
        let tiles = prop::sample::select(vec![1, 2, 4, 8]);
        (formats, 1usize..120, tiles, 90usize..230).prop_map(|(formats, blocks, tiles, limit)| {
            let block = formats.iter().map(|ty| ty.block_size().div_ceil(32)).max().unwrap_or(1);
            Task { formats, groups: blocks * block, tiles, limit: limit << 10 }
        })
    }

    proptest! {
        #[test]
        fn a_walk_fits_the_card_or_is_the_smallest(task in task(), sets in 1usize..40) {
            let (walk, shared) = task.walk(sets);
            let least = task.formats.iter().map(|ty| (ty.block_size() / 32).max(2)).max().unwrap_or(2);
            prop_assert!(shared as usize <= task.limit || walk.chunk as usize == least);
            prop_assert_eq!(walk.stride % 16, 0);
            prop_assert!(shared as usize >= task.vector() + (walk.stages * walk.tiles * walk.stride) as usize);
            // Pieces end with a block of weights, or with the row.
            let chunk = walk.chunk as usize;
            prop_assert!(chunk >= task.groups || task.formats.iter().all(|ty| (chunk * 32).is_multiple_of(ty.block_size())));
        }

        #[test]
        fn a_tile_holds_all_bytes_of_its_rows_and_of_shorter_ones(task in task()) {
            let pitch = |width: usize| if width.is_multiple_of(16) { ((width / 16) | 1) * 16 } else { width };
            for &ty in &task.formats {
                let block = ty.block_size().div_ceil(32);
                for groups in (block..=task.groups).step_by(block) {
                    let plane = |len: usize| (TILE * pitch(len * 32 * groups / ty.block_size())).next_multiple_of(16);
                    let bytes: usize = weights::plane_lengths(ty).map(plane).sum();
                    prop_assert!(tile_bytes(ty, task.groups) >= bytes);
                }
            }
        }

        #[test]
        fn fewer_threads_leave_no_warp_more_to_do(task in task()) {
            let [all, fewer] = task.threads();
            prop_assert!(0 < fewer && fewer <= all && all == THREADS);
            let team = |threads: u32| threads as usize / 32 / task.tiles;
            for &ty in &task.formats {
                let atoms = task.groups.div_ceil(atom(ty).0);
                prop_assert_eq!(atoms.div_ceil(team(all)), atoms.div_ceil(team(fewer)));
            }
        }

        #[test]
        fn warps_that_make_tiles_by_themselves_make_all_rows_in_the_room_there_is(task in task(), rows in 1usize..5000, blocks in 1usize..200) {
            let task = Task { tiles: 1, ..task };
            if let Some((walk, threads, shared)) = task.own(rows, blocks) {
                prop_assert!(shared as usize <= task.limit && threads == 32 * walk.tiles as u32);
                prop_assert!(shared as usize >= task.vector() + (walk.tiles * walk.stages * walk.stride) as usize);
                let made = TILE * blocks * (walk.tiles * walk.sets) as usize;
                prop_assert!(made >= rows && made - TILE * blocks * walk.tiles as usize <= rows);
            }
        }

        #[test]
        fn rings_fit_the_card_and_hold_pieces(task in task(), tiles in 1usize..80) {
            if let Some((walk, threads, shared)) = task.ring(tiles) {
                prop_assert!(shared as usize <= task.limit && threads == 32 * walk.tiles as u32);
                prop_assert!((1..=RING_STAGES).contains(&(walk.stages as usize)) && walk.stride % 16 == 0);
                // A piece as `Tile::hold` finds it, whose last plane may be that of 2 bytes in words.
                prop_assert!(task.formats.iter().all(|&ty| walk.stride as usize >= weights::plane_lengths(ty).map(|len| TILE * len).sum()));
                let parts = TILE * size_of::<f32>() * (tiles + walk.tiles as usize);
                prop_assert_eq!(shared as usize, task.vector() + (walk.tiles * walk.stages * walk.stride) as usize + parts);
            } else {
                prop_assert!(task.formats.iter().any(|ty| ty.block_size() != 256) || task.limit < task.vector() + (64 << 10));
            }
        }

        #[test]
        fn what_is_held_is_all_of_a_row(task in task()) {
            for &ty in &task.formats {
                let (held, (groups, most)) = (task.held(ty), atom(ty));
                prop_assert!(held <= most);
                if held > 0 {
                    prop_assert!(held * groups * (WARPS / task.tiles) >= task.groups);
                    let (walk, _) = task.walk(1);
                    prop_assert_eq!((walk.chunk as usize, walk.stages), (task.groups, 1));
                }
            }
        }
    }
}
