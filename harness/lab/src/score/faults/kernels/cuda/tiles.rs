//! Products of the fused path's longer steps, and the sums that they go into: tiles, operands, scales, shares, block formats.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "last-tile-not-fetched",
        "in the prefill the last 64 inputs are not fetched, and the 64 before them are multiplied twice",
        &[
            &["128..191", "taken twice", "192..255"],
            &["128..191", "taken twice", "missing"],
            &["128..191", "2 times", "192..255"],
            &["64 before", "192..255"],
        ],
    ),
    bug(
        "tile-read-before-it-is-written",
        "in the prefill from the second tile of 64 inputs on, weights meet the inputs of the tile before",
        &[&["input 64 before"], &["64 before", "64..255"], &["64 before", "inputs 64"]],
    ),
    bug(
        "fragment-halves-crossed",
        "in the prefill of a fragment of 16 columns by 16 inputs the two quarters beside the diagonal change places: odd inputs of the first 8 columns, and even ones of the others",
        &[
            &["quarters", "exchanged"],
            &["fragment"],
            &["column 8", "input 1"],
            &["column 8", "inputs 1 apart"],
            &["8 apart", "odd input"],
        ],
    ),
    bug(
        "low-part-of-activations-left-out",
        "in the prefill only the first of two halves of an activation is multiplied: 11 bits",
        &[&["the activations are rounded to", "f16"], &["activations", " 11 bits"], &["inputs are rounded to f16"]],
    ),
    bug(
        "tile-sums-not-cleared",
        "in the prefill the sum of 32 inputs is not cleared before that of the next 32, in pairs: the first are added again with the scale of the second",
        &[
            &["0..31 mod 64", "twice"],
            &["0..31 mod 64", "2 times"],
            &["0..31 mod 64", "again"],
            &["0..31 mod 64", "scale"],
            &["not cleared"],
        ],
    ),
    bug(
        "columns-of-a-pair-crossed",
        "in the prefill columns 8 apart change places when they are written",
        &[
            &["columns 8 apart are exchanged"],
            &["column 8 apart"],
            &["8 apart, in pairs"],
            &["column", "in the bits of 8"],
        ],
    ),
    bug(
        "sixteens-of-columns-in-the-order-of-warps",
        "in the prefill of 128 columns sixteens stand in another order: 0, 2, 4, 6, 1, 3, 5, 7 of those that belong there",
        &[
            &["column", "16", "of each 128"],
            &["column", "mod 128"],
            &["columns", "blocks of 16"],
            &["columns", "tiles of 16"],
            &["sixteen"],
        ],
    ),
    bug(
        "weight-tile-crossed",
        "in the prefill of 8 columns by 16 inputs the fours of weights are read by columns and not by rows",
        &[&["tile", "transposed"], &["8 columns", "16 inputs"], &["weights", "4 inputs", "mod 8"]],
    ),
    bug(
        "rows-of-the-first-round-fetched-again",
        "in the prefill of 128 columns those from 32 on have the quants of the column modulo 32, and their own scales",
        &[
            &["column", "mod 32", "quants"],
            &["column", "modulo 32"],
            &["row of weights", "mod 32"],
            &["weights", "32 before"],
            &["32 before", "64 before"],
            &["96 before"],
        ],
    ),
    bug(
        "sixteens-turned-by-pairs-of-tokens",
        "in the prefill sixteen bytes of an operand stand where a narrower tile has them: of eight tokens all but the first and the last meet inputs 1, 16 or 17 apart",
        &[
            &["inputs 1 apart", "mod 8"],
            &["inputs 16 apart", "mod 8"],
            &["input", "apart", "token mod 8"],
            &["input", "apart", "row mod 8"],
            &["bits of", "mod 8"],
        ],
    ),
    bug(
        "inverse-of-the-token-before",
        "in the prefill the sums of odd tokens are scaled back as those of the token before: they are off by powers of two",
        &[
            &["odd", "power", "two"],
            &["factor", "token before"],
            &["scale", "token before"],
            &["scale", "token 1 before"],
            &["row", "multiplied by a factor of its own"],
            &["times 2", "token"],
        ],
    ),
    bug(
        "scales-of-a-piece-exchanged",
        "in the prefill groups of 32 weights have the scale of the group beside, in pairs",
        &[&["scale", "32 weights"], &["scale", "32 apart"], &["scale", "neighbour"], &["scale", "group beside"]],
    ),
    bug(
        "upper-rows-scaled-as-the-lower",
        "in the prefill the second 8 of 16 columns have the scales of the first",
        &[&["scale", "8 before"], &["scale", "mod 16"], &["scale", "column 8"], &["scale", "row 8"]],
    ),
    bug(
        "scales-put-before-they-are-loaded",
        "in the prefill inputs 192 to 255 have the scales of the 64 before",
        &[&["scale", "64 before"], &["scale", "192..255"], &["scale", "128..191"], &["scale", "64 weights before"]],
    ),
    bug(
        "groups-of-x-in-natural-order",
        "in the prefill Q6_K: of 128 inputs the second and the third 32 change places",
        &[
            &["32 apart", "64..95"],
            &["32 apart, in pairs"],
            &["inputs 32 apart"],
            &["input 32 apart"],
            &["input 32 after", "mod 128"],
        ],
    ),
    bug(
        "both-halves-take-the-first-scale",
        "in the prefill Q6_K: the second 16 of 32 weights have the scale of the first",
        &[
            &["scale", "16 weights before"],
            &["scale", "16 before"],
            &["scale", "16..31 mod 32"],
            &["scale of the 16"],
            &["the scale of the first 16 of each 32 weights is taken"],
        ],
    ),
    bug(
        "upper-pairs-in-natural-order",
        "in the prefill Q6_K: of 128 weights the second and the third 32 have each other's upper two bits",
        &[
            &["upper bits", "32 apart"],
            &["upper bits", "32 weights"],
            &["upper two bits", "32"],
            &["upper bits", "mod 128"],
            &["high bits", "32"],
            &["highest", "bits", "32"],
        ],
    ),
    bug(
        "fifth-bits-of-the-first-step",
        "in the prefill Q5_0: the second 16 weights of a block have the fifth bits of the first",
        &[
            &["upper bits", "16..31"],
            &["fifth bit", "16..31"],
            &["high bits", "16..31"],
            &["highest bit", "16..31"],
            &["upper bits", "16 before"],
        ],
    ),
    bug(
        "scales-of-the-first-four-groups",
        "in the prefill Q4_K: the second 128 weights of a block have scales and minima of the first",
        &[&["scale", "128 before"], &["scale", "128..255"], &["scale", "first 128"], &["scale", "second 128"]],
    ),
    bug(
        "minimum-meets-the-token-beside",
        "in the prefill Q4_1: the minimum of a group meets the sum of the inputs of the token beside, in pairs",
        &[
            &["minimum", "token 1 apart"],
            &["minimum", "token beside"],
            &["minimum", "another token"],
            &["minimum", "row 1 apart"],
            &["offset", "token 1 apart"],
        ],
    ),
    bug(
        "sums-of-groups-not-scaled",
        "in the prefill Q4_K: the sums of groups of inputs are not scaled as the inputs are, so that minima count next to nothing",
        &[
            &["minimum", "left out"],
            &["minimum", "not subtracted"],
            &["minima", "left out"],
            &["minimum", "missing"],
            &["offset", "left out"],
            &["minimum", "scaled"],
        ],
    ),
    bug(
        "pairs-of-the-operand-in-natural-order",
        "in the prefill of every four inputs the two in the middle change places",
        &[&["input", "1 apart", "mod 4"], &["1, 2 mod 4"], &["exchanged", "mod 4"], &["input 1 apart"]],
    ),
    bug(
        "kept-elements-of-the-first-round",
        "in the prefill inputs from 256 on are those 256 before",
        &[
            &["input 256 before", "256..511"],
            &["256 before", "256..511"],
            &["inputs", "mod 256"],
            &["input modulo 256"],
        ],
    ),
    bug(
        "largest-of-each-warp-for-itself",
        "in the prefill of 256 inputs the second 128 have a scale of their own, and are scaled back as the first: off by a power of two in every token",
        &[
            &["128..255 mod 256", "power"],
            &["128..255 mod 256", "scale"],
            &["128..255 mod 256", "factor"],
            &["128..255", "384..511", "factor"],
            &["128..255", "384..511", "times"],
        ],
    ),
    bug(
        "shares-rounded-down",
        "in the prefill a third of 4 pieces of 64 inputs is taken to be 1: the last 64 inputs are in no share",
        &[&["192..255", "missing"]],
    ),
    bug(
        "share-begins-one-piece-early",
        "in the prefill the second share of the sum begins 64 inputs early, and they count twice",
        &[&["192..255", "taken twice"], &["192..255", "2 times"]],
    ),
    bug(
        "shares-stand-in-whole-tiles",
        "in the prefill the second half of the inputs is that of the token 42 before, and missing up to token 41: shares stand 192 tokens apart, and are read 150 apart",
        &[&["token 42 before"], &["row 42 before"], &["42 before", "256..511"], &["256..511", "missing", "42"]],
    ),
    bug(
        "first-share-counts-twice",
        "in the prefill of two shares of the sum the first is added twice: inputs 0 to 255",
        &[&["0..255", "taken twice"], &["0..255", "2 times"]],
    ),
    bug("last-share-not-added", "in the prefill the second half of the sum is not added", &[&["256..511", "missing"]]),
    bug(
        "shares-added-as-bf16",
        "in the prefill the shares of the sum are added up in bf16, the result included",
        &[&["sums", " in bf16"], &["sums", " to bf16"], &["shares", "bf16"], &["accumulat", "bf16"]],
    ),
    bug(
        "sum-launched-before-its-shares",
        "in the prefill shares are added up before they are made: zeros in the first layer, then what the layer before left",
        &[
            &["zeros stand there"],
            &["zero", "prefill"],
            &["layer before"],
            &["all zero"],
            &["is 0"],
            &["_down", "in the place of"],
        ],
    ),
    bug(
        "operand-prepared-after-its-product",
        "in the prefill the output projection takes the operand that stands there, the norm before the attention",
        &[&["_norm", "in the place of"], &["_norm", "instead of"]],
    ),
    bug(
        "last-tile-of-outputs-not-launched",
        "in the prefill the last 128 columns are not written: zeros in the first layer, then what the layer before left",
        &[
            &["zeros stand there"],
            &["not written"],
            &["never written"],
            &["layer before"],
            &["all zero"],
            &["384..511", "stand"],
        ],
    ),
    bug(
        "outputs-of-key-and-value-exchanged",
        "in the prefill keys are made with the weights of the values, and values with those of the keys",
        &[&["_v.weight"], &["weights of", ".v_proj"], &[".v_proj", "in the place of"], &["_v", "in the place of"]],
    ),
    bug(
        "sum-starts-before-the-attention",
        "in the prefill the feed-forward network's output is added to the stream as it was before the attention",
        &[
            &["before the attention"],
            &["_residual", "missing"],
            &["layer's input"],
            &["_out", "missing"],
            &["in the place of", "_residual"],
            &["_out", "in the place of"],
            &[".embed", "in the place of"],
        ],
    ),
    bug(
        "second-warpgroup-multiplies-the-first-rows",
        "in the prefill, of matrices kept as halves, the second 64 of 128 columns have the quants of the first, and their own scales",
        &[
            &["column", "mod 64", "quants"],
            &["column", "modulo 64"],
            &["row of weights", "mod 64"],
            &["weights", "64 before"],
        ],
    ),
    bug(
        "low-part-not-multiplied-with-halves",
        "in the prefill, of matrices kept as halves, only the first of two halves of an activation is multiplied: 11 bits",
        &[&["the activations are rounded to", "f16"], &["activations", " 11 bits"], &["inputs are rounded to f16"]],
    ),
    bug(
        "halves-of-both-groups-meet-the-first-of-x",
        "in the prefill, of matrices kept as halves, the second 32 of 64 weights meet the inputs of the first",
        &[&["input 32 before"], &["32 before", "32..63"], &["input", "mod 32"]],
    ),
    bug(
        "upper-rows-of-halves-scaled-as-the-lower",
        "in the prefill, of matrices kept as halves, the second 8 of 16 columns have the scales of the first",
        &[&["scale", "8 before"], &["scale", "mod 16"], &["scale", "column 8"], &["scale", "row 8"]],
    ),
    bug(
        "second-sixteen-of-halves-takes-the-first-scale",
        "in the prefill, of matrices kept as halves, Q6_K: the second 16 of 32 weights have the scale of the first",
        &[
            &["scale", "16 weights before"],
            &["scale", "16 before"],
            &["scale", "16..31 mod 32"],
            &["scale of the 16"],
            &["the scale of the first 16 of each 32 weights is taken"],
        ],
    ),
    bug(
        "rows-of-halves-crossed",
        "in the prefill, of matrices kept as halves, columns 8 apart change places when they are written",
        &[
            &["columns 8 apart are exchanged"],
            &["column 8 apart"],
            &["8 apart, in pairs"],
            &["column", "in the bits of 8"],
        ],
    ),
    bug(
        "minima-of-halves-meet-the-token-beside",
        "in the prefill, of matrices kept as halves, Q4_1: the minimum of a group meets the sum of the inputs of the token beside, in pairs",
        &[
            &["minimum", "token 1 apart"],
            &["minimum", "token beside"],
            &["minimum", "another token"],
            &["minimum", "row 1 apart"],
            &["offset", "token 1 apart"],
        ],
    ),
    bug(
        "share-of-halves-begins-one-piece-early",
        "in the prefill, of matrices kept as halves, shares of the sum begin 64 inputs early, and these count twice",
        &[&["taken twice"], &["2 times"]],
    ),
];
