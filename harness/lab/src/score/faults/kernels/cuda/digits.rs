//! Products of the fused path's decode steps: digits, tiles of weights, block formats, the sums of warps.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "second-word-of-a-lane-not-loaded",
        "in decode steps the second 16 of every 32 inputs are the first again",
        &[&["input 16 before", "16..31 mod 32"], &["input 16 before"], &["16 before", "mod 32"]],
    ),
    bug(
        "carries-between-digits-left-out",
        "in decode steps the lower digits of an input are read as signed, with no carry to the next: it is too small by \
         2^24, 2^16 and 2^8 of 2^30 where their highest bits are set",
        &[
            &["carr", "digit"],
            &["digit", "sign"],
            &["inputs", "lack", "digit"],
            &["activations", "digit"],
            &["bytes of the activations", "sign"],
        ],
    ),
    bug(
        "largest-of-half-a-group",
        "in decode steps the unit of 32 inputs is that of the largest of the first 16: the others are off by powers of two",
        &[
            &["16..31 mod 32", "power", "two"],
            &["16..31 mod 32", "unit"],
            &["16..31 mod 32", "scale"],
            &["largest of", "first 16"],
        ],
    ),
    bug(
        "unit-of-the-group-before",
        "in decode steps 32 inputs have the unit of the 32 before: they are off by powers of two",
        &[&["scale", "group before"], &["scale", "32 before"], &["unit", "32 before"], &["inputs", "power", "two"]],
    ),
    bug(
        "groups-added-in-half",
        "in decode steps the sums of 32 products are rounded to f16",
        &[
            &["sums", " in f16"],
            &["sums", " to f16"],
            &["sums of 32", "f16"],
            &["accumulat", "f16"],
            &["each sum of 32 inputs is rounded to f16", "decode steps"],
        ],
    ),
    bug(
        "last-warp-of-a-team-lost",
        "in decode steps the last of a block's 8 warps is lost, and with it the last 32 inputs of each half of 256",
        &[&["224..255 mod 256", "missing"], &["224..255", "480..511", "missing"], &["7, 15 of 16 ", "missing"]],
    ),
    bug(
        "odd-rows-prefetched-from-even-ones",
        "in decode steps odd logits are made with the row of weights before",
        &[&["column 1 before", "column is odd"], &["1 apart, in pairs", "column is odd"], &["id", "1 before", "odd"]],
    ),
    bug(
        "eight-not-subtracted-in-tiles",
        "Q4_0: in decode steps the 8 in the middle of four bits is not subtracted",
        &[
            &["zero point", " 8"],
            &["middle", " 8"],
            &["8 is not subtracted"],
            &["offset", "left out"],
            &["offset", "not subtracted"],
            &["8 times", "scale"],
            &["8 scales"],
            &["quants are more by 8"],
        ],
    ),
    bug(
        "minimum-added-by-each-of-four-lanes",
        "Q4_1: in decode steps each of the four lanes of a row adds the minimum, and it counts four times",
        &[
            &["minimum", "4 times"],
            &["minimum", "four times"],
            &["minimum", "multiplied by 4"],
            &["minimum", "by=4"],
            &["offset", "4 times"],
            &["offset", "multiplied by 4"],
        ],
    ),
    bug(
        "sixteen-subtracted-where-the-bit-is-set",
        "Q5_0: in decode steps 16 is subtracted where the fifth bit is set, and not where it is not",
        &[
            &["upper bit", "invert"],
            &["fifth bit", "invert"],
            &["high bit", "invert"],
            &["highest bit", "invert"],
            &["bit", "complement"],
            &["bit", "flipped"],
            &["signed", "bit"],
            &["two's complement"],
        ],
    ),
    bug(
        "fifth-bits-of-the-first-half-in-tiles",
        "Q5_1: in decode steps the second 16 weights of a block have the fifth bits of the first",
        &[
            &["upper bits", "shares its byte", "16..31"],
            &["upper bits", "16 before", "16..31"],
            &["fifth bit", "16..31"],
            &["high bits", "16..31"],
            &["highest bit", "16..31"],
            &["upper bits", "the weight 16 apart, in pairs, at inputs ≡ 16..31 mod 32"],
        ],
    ),
    bug(
        "minima-of-two-rows-subtracted",
        "Q4_K: in decode steps the minima of the row 8 apart, in pairs, are subtracted as well",
        &[
            &["minim", "row 8"],
            &["minim", "column 8"],
            &["minim", "8 apart"],
            &["offset", "8 apart"],
            &["minim", "two rows"],
        ],
    ),
    bug(
        "scales-of-row-and-group-crossed",
        "Q4_K: in decode steps odd groups of 32 weights have the scales of the group before in the \
         row 8 further on, in the first 8 of 16 rows; and the other way round",
        &[&["scale", "row 8"], &["scale", "column 8"], &["scale", "8 apart"], &["scale", "another row"]],
    ),
    bug(
        "fifth-bits-of-the-first-groups",
        "Q5_K: in decode steps groups of 32 weights have the fifth bits of the block's first two, by turns",
        &[
            &["upper bits", "first 64"],
            &["upper bits", "modulo 64"],
            &["upper bits", "mod 64"],
            &["fifth bit", "64"],
            &["high bits", "64"],
            &["highest bit", "64"],
        ],
    ),
    bug(
        "scales-of-row-and-half-crossed",
        "Q6_K: in decode steps the second 16 of 32 weights have the scale of the first in the row 8 further on, in the \
         first 8 of 16 rows; and the other way round",
        &[&["scale", "row 8"], &["scale", "column 8"], &["scale", "8 apart"], &["scale", "another row"]],
    ),
];
