//! Norms, the rotation, biases, sums of the residual stream, the activation, the embedding, the caches.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "half-of-the-warps-summed",
        "the sum of squares takes 4 of 8 warps: columns 128 to 255 are missing from it",
        &[&["128..255", "squares"], &["last 128 elements", "missing", "squares"], &["second half", "squares"]],
    ),
    bug(
        "mean-in-half",
        "the mean of the squares is rounded to f16",
        &[
            &["mean", "f16"],
            &["squares", "f16"],
            &["every row is multiplied by a factor of its own: what it is divided by is wrong"],
            &["each wrong row is multiplied by a factor of its own: what it is divided by is wrong"],
        ],
    ),
    bug(
        "last-weight-beyond-the-end",
        "the last column is multiplied with the weight of the one before",
        &[
            &["weight", "column 255"],
            &["weight is read 1 element"],
            &["factor", "column 255"],
            &["multiplied by a constant", "column 255"],
            &["by=", "column 255"],
        ],
    ),
    bug(
        "squares-of-two-rows",
        "in odd rows the squares of the row before are in the sum as well",
        &[
            &["squares", "token 1 before", "odd"],
            &["squares", "row before", "odd"],
            &["each wrong row is multiplied by a factor of its own: what it is divided by is wrong"],
        ],
    ),
    bug(
        "blocks-beyond-127-store-bf16",
        "tokens from the 129th of a step on are stored in bf16",
        &[&["output is rounded to bf16", "128"]],
    ),
    bug(
        "weight-of-the-last-norm",
        "the norm before the feed-forward network has the weight of the last norm of the model",
        &[
            &["output_norm"],
            &["another tensor of the same extent"],
            &["every column is multiplied by a factor of its own, the same in all rows: its weight is wrong"],
        ],
    ),
    bug("angle-in-half", "the angle of the rotation is rounded to f16", &[&["angle", "f16"]]),
    bug(
        "planes-share-a-frequency-in-pairs",
        "every second plane turns with the frequency of the plane before",
        &[
            &["positions are multiplied by 1.5"],
            &["frequency of the plane"],
            &["frequenc", "plane before"],
            &["frequenc", "1 before"],
        ],
    ),
    bug(
        "block-has-one-position",
        "all tokens of a block of 256 planes are turned by the position of the first of four",
        &[
            &["rotated as", "mod 4"],
            &["rotated as", "first of"],
            &["rotated as", "tiles of 4"],
            &["rotated as", "multiple of 4"],
        ],
    ),
    bug(
        "second-page-begins-one-late",
        "from position 128 on a token is turned by a position one too large",
        &[
            &["rotated as the position 1 after", "128"],
            &["rotated as", "1 more", "128"],
            &["off-by-one", "by=1", "128"],
            &["position", "1 further", "128"],
            &["rotated as", "one more", "128"],
        ],
    ),
    bug(
        "tokens-counted-with-twice-the-heads",
        "keys of a prompt are turned by half their position, rounded down",
        &[
            &["positions are multiplied by 0.5", "rounded down"],
            &["rotated as", "half", "rounded down"],
            &["half the position", "rounded down"],
            &["half its position", "rounded down"],
            &["positions are divided by 2, without remainder, in the prefill only"],
        ],
    ),
    bug(
        "cosine-of-a-single-token-in-bf16",
        "when a single token is decoded, cosines are rounded to bf16",
        &[&["cosine", "bf16"], &["sine", "bf16"]],
    ),
    bug(
        "bias-index-wraps-at-128",
        "columns from 128 on have the bias of the column 128 before",
        &[
            &["bias", "128 before"],
            &["bias", "head 2 before"],
            &["the bias is wrong, from head 2 on"],
            &["the bias is wrong, from column 128 on"],
            &["bias is read", "128"],
            &["the bias of the column modulo 128 is added"],
        ],
    ),
    bug(
        "bias-index-in-pairs",
        "the bias is read at half the index: two columns have one, and odd rows the second half of it",
        &[&["bias is wrong"], &["bias", "half"], &["bias", "pairs"]],
    ),
    bug(
        "fourth-of-a-vector-takes-the-third",
        "the fourth of every four columns is added to the residual stream of the third",
        &[&["column 1 before", "mod 4 = 3"]],
    ),
    bug(
        "stream-through-bf16",
        "the residual stream is rounded to bf16 before it is added",
        &[
            &["_residual", "rounded to bf16"],
            &["stream", "rounded to bf16"],
            &["operand", "rounded to bf16"],
            &["input", "rounded to bf16"],
            &["what it is added to is rounded to bf16"],
        ],
    ),
    bug("sum-in-half", "the residual stream is stored in f16", &[&["output is rounded to f16"]]),
    bug(
        "sum-runs-twice-in-place",
        "the sum is made twice, in place: the product is added twice",
        &[&["is added twice"], &["taken twice"]],
    ),
    bug(
        "sum-starts-from-the-embedding",
        "the product is added to the embedding, and not to the residual stream after attention",
        &[
            &["embed is added in the place of"],
            &["embed is", "instead of"],
            &["embed is", "in the place of"],
            &["tn_out is subtracted"],
        ],
    ),
    bug(
        "sigmoid-by-the-fast-tangent",
        "the sigmoid is made of the approximate hyperbolic tangent",
        &[&["tanh", "bits"], &["tanh", "rounded"], &["tanh", "approximat"], &["sigmoid", "approximat"]],
    ),
    bug(
        "up-of-the-tile-beside",
        "the gate is multiplied with up of the tile of 32 columns beside, in pairs",
        &[&["up", "column 32 apart"], &["up", "32 apart"]],
    ),
    bug(
        "exponential-in-bf16",
        "the exponential of the activation is rounded to bf16",
        &[&["exponential", "bf16"], &["exp", "rounded to bf16"]],
    ),
    bug(
        "second-batch-of-ids-one-early",
        "tokens from the 129th of a step on have the embedding of the token before",
        &[&["token 1 before", "128"], &["token before", "128"]],
    ),
    bug(
        "ids-in-eight-bits",
        "ids from 256 on read the row of the id 256 less",
        &[&["256 less"], &["id 256 before"], &["256", "token id"], &["modulo 256"], &["ids", "mod 256"]],
    ),
    bug(
        "ring-of-128-slots",
        "slots are counted modulo 128: later rows overwrite the first ones, and their own stay empty",
        &[&["modulo 128"], &["ring", "128"], &["128 slots"], &["slot", "128 before"]],
    ),
    bug(
        "single-row-one-slot-early",
        "when a single token is decoded, its row overwrites the one before, and its own stays empty",
        &[
            &["slot too early"],
            &["one slot"],
            &["slot before"],
            &["token 1 after"],
            &["row 1 after"],
            &["zeros stand there", "from position 150"],
            &["zeros stand there", "decode steps"],
            &["zeros stand there", "last row"],
        ],
    ),
    bug(
        "heads-in-turns",
        "a row is cached with the columns of its two heads in turns",
        &[&["interleav"], &["in turns"], &["transposed"], &["heads", "alternat"], &["every second column"]],
    ),
    bug(
        "last-rows-not-launched",
        "the grid is a block short: the last two rows of a prompt stay empty",
        &[
            &["zeros stand there", "148"],
            &["zeros stand there", "last 2"],
            &["zeros stand there", "last row"],
            &["not written"],
        ],
    ),
];
