//! Norms, the rotation, biases, sums of the residual stream, the activation, the embedding, the caches.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug("half-of-the-warps-summed", "the sum of squares takes 4 of 8 warps: columns 128 to 255 are missing from it"),
    bug("mean-in-half", "the mean of the squares is rounded to f16"),
    bug("last-weight-beyond-the-end", "the last column is multiplied with the weight of the one before"),
    bug("squares-of-two-rows", "in odd rows the squares of the row before are in the sum as well"),
    bug("blocks-beyond-127-store-bf16", "tokens from the 129th of a step on are stored in bf16"),
    bug(
        "weight-of-the-last-norm",
        "the norm before the feed-forward network has the weight of the last norm of the model",
    ),
    bug("angle-in-half", "the angle of the rotation is rounded to f16"),
    bug("planes-share-a-frequency-in-pairs", "every second plane turns with the frequency of the plane before"),
    bug(
        "block-has-one-position",
        "all tokens of a block of 256 planes are turned by the position of the first of four",
    ),
    bug("second-page-begins-one-late", "from position 128 on a token is turned by a position one too large"),
    bug("tokens-counted-with-twice-the-heads", "keys of a prompt are turned by half their position, rounded down"),
    bug("cosine-of-a-single-token-in-bf16", "when a single token is decoded, cosines are rounded to bf16"),
    bug("bias-index-wraps-at-128", "columns from 128 on have the bias of the column 128 before"),
    bug(
        "bias-index-in-pairs",
        "the bias is read at half the index: two columns have one, and odd rows the second half of it",
    ),
    bug(
        "fourth-of-a-vector-takes-the-third",
        "the fourth of every four columns is added to the residual stream of the third",
    ),
    bug("stream-through-bf16", "the residual stream is rounded to bf16 before it is added"),
    bug("sum-in-half", "the residual stream is stored in f16"),
    bug("sum-runs-twice-in-place", "the sum is made twice, in place: the product is added twice"),
    bug(
        "sum-starts-from-the-embedding",
        "the product is added to the embedding, and not to the residual stream after attention",
    ),
    bug("sigmoid-by-the-fast-tangent", "the sigmoid is made of the approximate hyperbolic tangent"),
    bug("up-of-the-tile-beside", "the gate is multiplied with up of the tile of 32 columns beside, in pairs"),
    bug("exponential-in-bf16", "the exponential of the activation is rounded to bf16"),
    bug("second-batch-of-ids-one-early", "tokens from the 129th of a step on have the embedding of the token before"),
    bug("ids-in-eight-bits", "ids from 256 on read the row of the id 256 less"),
    bug(
        "ring-of-128-slots",
        "slots are counted modulo 128: later rows overwrite the first ones, and their own stay empty",
    ),
    bug(
        "single-row-one-slot-early",
        "when a single token is decoded, its row overwrites the one before, and its own stays empty",
    ),
    bug("heads-in-turns", "a row is cached with the columns of its two heads in turns"),
    bug("last-rows-not-launched", "the grid is a block short: the last two rows of a prompt stay empty"),
];
