//! Structs of device addresses and counts, which kernels take as fields of their parameters.

/// An address on the device; 0 is none.
pub type Ptr = u64;

/// `struct Batch` of `batch.cuh`: the places of a step's rows on the device. All 0 for one sequence from a position on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Batch {
    /// The position of each row.
    pub positions: Ptr,
    /// The slot that each row is written to.
    pub slots: Ptr,
    /// The slots of each sequence's positions, one sequence after another.
    pub tables: Ptr,
    /// For each row the place in `tables` where its sequence begins.
    pub starts: Ptr,
}

impl Batch {
    /// Of so many rows, from an address on: positions, slots, starts, the rows that the fused attention takes one by one, and the
    /// tables of all sequences.
    pub fn at(start: Ptr, rows: usize) -> Self {
        let part = |i: usize| start + (4 * i * rows) as u64;
        Self { positions: part(0), slots: part(1), starts: part(2), tables: part(4) }
    }
}

/// `struct Stream` of `stream.cuh`: the residual stream, and where it is tapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stream {
    /// What the halves are added to.
    pub base: Ptr,
    /// Halves of a product; none for the base alone.
    pub halves: [Ptr; 2],
    /// Where the product is tapped.
    pub product_tap: Ptr,
    /// Where the sum is tapped.
    pub sum_tap: Ptr,
}

/// `struct Best` of `best.cuh`: who looks for the largest logit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Best {
    /// The largest number that encodes a logit and its id.
    pub largest: Ptr,
    /// Blocks that are done.
    pub arrived: Ptr,
    /// Where the id goes, in pinned host memory; none if it is not wanted.
    pub token: Ptr,
}

/// `struct Choice` of `experts.cuh`: from the router's logits to the chosen experts and their weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// For all experts.
    pub logits: Ptr,
    /// Where the kernel after it reads the chosen ones.
    pub chosen: Ptr,
    /// Likewise their weights.
    pub weights: Ptr,
    /// Where the stages are tapped.
    pub probs_tap: Ptr,
    /// Likewise.
    pub chosen_tap: Ptr,
    /// Likewise.
    pub weights_tap: Ptr,
    /// Likewise.
    pub shares_tap: Ptr,
    /// How many experts there are.
    pub experts: i32,
    /// How many of them are chosen.
    pub taken: i32,
    /// Whether the weights are divided by their sum.
    pub normalised: i32,
}

/// How a block goes through its rows: `struct Walk` of `rows.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walk {
    /// Tiles at a time.
    pub tiles: i32,
    /// Sets of so many tiles.
    pub sets: i32,
    /// Groups of a row at a time.
    pub chunk: i32,
    /// Chunks in shared memory at once.
    pub stages: i32,
    /// Bytes of a tile in a stage.
    pub stride: i32,
}

/// `struct Operand` of `operand.cuh`: where rows stand prepared for the tensor cores.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Operand {
    /// Their parts.
    pub parts: Ptr,
    /// What a token's sums are multiplied with.
    pub inverse: Ptr,
    /// Sums of groups.
    pub sums: Ptr,
}

/// `struct Shared` of `shares.cuh`: a product of which some tiles are in shares.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shared {
    /// The first; none where there is no product.
    pub at: Ptr,
    /// From where the others count.
    pub rest: Ptr,
    /// Elements from share to share.
    pub stride: u64,
    /// How many.
    pub shares: i32,
    /// The first token of a tile in shares.
    pub token0: i32,
    /// Of that token's tile the first element in shares.
    pub row0: i32,
}

/// The place of a matrix's halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wide {
    /// Images of its rows.
    pub images: Ptr,
    /// Its minima; none where the format has none.
    pub minima: Ptr,
}
