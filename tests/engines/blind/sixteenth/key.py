#!/usr/bin/env python3
"""The answer key of the sixteenth blind round: for each bug the first wrong stage and layer, the law, and the condition.

It was committed before qdiff judged any bug. `key.py` prints it with the changes of the kernels' text."""
import difflib, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

# name: (first wrong stage, law, condition)
KEY = {
    "c01-embed": (
        "embed",
        "Q5_K table: groups 4 to 7 of each block of 256 are unpacked with scale, minimum and fifth bits of group j - 4: "
        "w = d * scale[j % 4] * (nibble | fifth bit of group j % 4) - dmin * min[j % 4]; groups 0 to 3 are right",
        "columns 128 to 255 of each 256, all tokens; the embedding alone, not products"),
    "c02-norm": (
        "L00.attn_norm",
        "y = w x / sqrt(sum of x_i^2 over i < 256, divided by n, + eps): elements from 256 on are not in the sum, and n stays 320",
        "all norms of rows of more than 256 elements (attn_norm, ffn_norm, final_norm of all layers), prefill and decode"),
    "c03-fifth-bits": (
        "L00.q_proj (and k_proj, v_proj, all Q5_0 matrices)",
        "Q5_0: elements 16 to 31 of each block take the fifth bits of elements 0 to 15: q_i = nibble_i + 16 * bit(i mod 16)",
        "all Q5_0 matrices, prefill and decode; the table of embeddings is F16"),
    "c04-second-scale": (
        "L01.attn_out",
        "Q6_K: the second 16 elements of each 32 are multiplied by the scale of the first 16",
        "all Q6_K matrices, of which blk.1.attn_output is the only one; prefill and decode"),
    "c05-shuffle": (
        "L00.ffn_down",
        "lanes 16 to 31 of a warp are not added: y = sum of W[o, i] x[i] over the i with i mod 1024 < 512, thus over the first half of 1024",
        "products of more than 512 inputs, of which ffn_down (1024) is the only one; prefill and decode"),
    "c06-angles": (
        "L00.q_rope (and k_rope)",
        "sine and cosine of each angle are truncated towards zero to bfloat16 (16 upper bits) before the rotation",
        "all positions (at position 0 nothing changes), prefill and decode, q and k"),
    "c07-codes": (
        "L00.k_cache (and v_cache)",
        "q8_0 cache: codes are x * (127 / largest) truncated towards zero, not rounded to the nearest; the scale is right",
        "all rows, keys and values, prefill and decode"),
    "c08-activation": (
        "L00.ffn_act",
        "y = g / (1 + 2^-g) * u: exp2 in place of exp, that is g * sigmoid(g ln 2) * u",
        "all rows, prefill and decode"),
    "c09-tail": (
        "L00.attn_context",
        "the last (seen mod 4) keys are left out, seen = position + 1: c = sum of w[n] v[n] over n < 4 * floor(seen / 4); weights are right",
        "positions with (position + 1) mod 4 != 0; at positions 0 to 2 the context is 0; prefill and decode"),
    "c10-warps": (
        "L00.attn_weights",
        "each weight is divided by the sum over the keys of its own warp, that is of its 32 keys (n // 32 alike), and not of all keys: "
        "the weights of each 32 keys add up to 1",
        "rows that see more than 32 keys (positions from 32 on), prefill and decode"),
    "c11-expert": (
        "L00.expert_gate (and expert_up)",
        "all k slots of a token are multiplied with the matrix of its first chosen expert (slot 0)",
        "slots 1 and 2; gate and up, not down (whose lines have a row each); prefill and decode"),
    "c12-window": (
        "L00.conv_state, from the first decode step on",
        "rows of the window are not moved up: after a step of one token rows 0 and 1 stay what they were, and the last row alone is the new input",
        "steps of fewer tokens than rows of the window (3): decode; right after the prefill, and the convolution of step 1 still is right"),
    "f01-bias": (
        "L00.q_biased (and k_biased, v_biased) of decode steps",
        "elements of the upper half of each head (i >= D/2) get the bias of element i - D/2",
        "decode alone; q, k and v; columns with i mod 64 >= 32"),
    "f02-groups": (
        "L00.attn_scores of decode steps",
        "the score of head g * 4 + h (g of 2 cache heads, h of 4) is made with the query of head h * 2 + g: queries are read as [4, 2] and "
        "not as [2, 4]; keys are right",
        "decode alone; heads 0 and 7 are right"),
    "f03-parts": (
        "L00.attn_weights of the prefill",
        "the sum of the parts is not rescaled: w[n] = exp(s[n] - m) / sum over parts P of (sum over n in P of exp(s[n] - m_P)), "
        "m the largest score of the row, m_P that of its part; parts are the keys 0 to 31 and 32 to 63",
        "prefill alone; rows that see keys of both parts (positions from 32 on); the context is divided likewise"),
    "f04-small-products": (
        "L00.q_proj (k_proj, v_proj, and all products) of the prefill",
        "of the three bfloat16 parts of x only the first is multiplied: x is truncated towards zero to bfloat16 before the product",
        "passes of several tokens (also the second of them) alone; all products; decode is right"),
    "f05-lines": (
        "L00.expert_gate (and expert_up, expert_down) of the prefill",
        "line j, from 8 on, of those that chose an expert (in their order) is multiplied with the row of line j mod 8 of the same expert",
        "prefill alone; experts that more than 8 lines of the pass chose, their lines from the ninth on; gate, up and down"),
    "f06-base": (
        "L00.layer_out of decode steps",
        "row r is experts_out[r] + attn_residual[r - 60 * (r // 64)]: each of 4 blocks of 64 rows takes its base from 16 times too low a row "
        "(first set, and not first row, of the block)",
        "decode alone; rows from 64 on"),
    "f07-decay": (
        "L00.delta_state of decode steps",
        "the state of head h decays by the decay of head h mod 2: heads 2 and 3 take those of heads 0 and 1",
        "decode alone; heads 2 and 3 of 4 (2 key heads); beta, k, q and v are right"),
    "f08-last-ids": (
        "logits of decode steps",
        "the logit of id i of the last tile of 16, which is not whole, is that of id i - 9: ids 352 to 358 get those of 343 to 349",
        "decode alone; ids from 352 on, of 359"),
}


def main():
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(HERE), str(HERE.parent / "seventh")]
    import card
    from bugs import BUGS, MODELS
    for b in BUGS:
        stage, law, condition = KEY[b["name"]]
        print(f"== {b['name']}\nmodel      {MODELS[b['model']]}\nrun        {b['subject']}: {b['run']}\nstage      {stage}\nlaw        {law}\ncondition  {condition}")
        was = card.sources()
        for file, old, new in b["changes"]:
            now = was[file].replace(old, new)
            print("".join(difflib.unified_diff(was[file].splitlines(True), now.splitlines(True), file, file, n=1)), end="")
        print()


main()
