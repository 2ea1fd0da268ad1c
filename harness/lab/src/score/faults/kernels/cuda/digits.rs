//! Products of the fused path's decode steps: digits, tiles of weights, block formats, the sums of warps.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug("second-word-of-a-lane-not-loaded", "in decode steps the second 16 of every 32 inputs are the first again"),
    bug(
        "carries-between-digits-left-out",
        "in decode steps the lower digits of an input are read as signed, with no carry to the next: it is too small by \
         2^24, 2^16 and 2^8 of 2^30 where their highest bits are set",
    ),
    bug(
        "largest-of-half-a-group",
        "in decode steps the unit of 32 inputs is that of the largest of the first 16: the others are off by powers of two",
    ),
    bug(
        "unit-of-the-group-before",
        "in decode steps 32 inputs have the unit of the 32 before: they are off by powers of two",
    ),
    bug("groups-added-in-half", "in decode steps the sums of 32 products are rounded to f16"),
    bug(
        "last-warp-of-a-team-lost",
        "in decode steps the last of a block's 8 warps is lost, and with it the last 32 inputs of each half of 256",
    ),
    bug("odd-rows-prefetched-from-even-ones", "in decode steps odd logits are made with the row of weights before"),
    bug("eight-not-subtracted-in-tiles", "Q4_0: in decode steps the 8 in the middle of four bits is not subtracted"),
    bug(
        "minimum-added-by-each-of-four-lanes",
        "Q4_1: in decode steps each of the four lanes of a row adds the minimum, and it counts four times",
    ),
    bug(
        "sixteen-subtracted-where-the-bit-is-set",
        "Q5_0: in decode steps 16 is subtracted where the fifth bit is set, and not where it is not",
    ),
    bug(
        "fifth-bits-of-the-first-half-in-tiles",
        "Q5_1: in decode steps the second 16 weights of a block have the fifth bits of the first",
    ),
    bug(
        "minima-of-two-rows-subtracted",
        "Q4_K: in decode steps the minima of the row 8 apart, in pairs, are subtracted as well",
    ),
    bug(
        "scales-of-row-and-group-crossed",
        "Q4_K: in decode steps odd groups of 32 weights have the scales of the group before in the \
         row 8 further on, in the first 8 of 16 rows; and the other way round",
    ),
    bug(
        "fifth-bits-of-the-first-groups",
        "Q5_K: in decode steps groups of 32 weights have the fifth bits of the block's first two, by turns",
    ),
    bug(
        "scales-of-row-and-half-crossed",
        "Q6_K: in decode steps the second 16 of 32 weights have the scale of the first in the row 8 further on, in the \
         first 8 of 16 rows; and the other way round",
    ),
];
