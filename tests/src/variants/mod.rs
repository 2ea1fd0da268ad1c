//! Engines that are right: the graph evaluated in f32 as other programs do, with other orders of summation, other forms
//! of the same functions, stages fused or not.
//!
//! It shares no arithmetic with the engine or the checks: what f32 may do is written down once more, in plain loops.

mod engine;

pub use engine::Engine;

/// In which order products are summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// From the first to the last.
    Forward,
    /// From the last to the first.
    Reverse,
    /// Halves of halves.
    Pairwise,
    /// Every so many together, then these sums one after the other.
    Lanes(usize),
    /// Runs of so many, each added to the sum so far.
    Blocks(usize),
    /// In f64, rounded at the end.
    Wide,
}

/// Orders in use, each with a name.
pub const ORDERS: [(&str, Order); 10] = [
    ("forward", Order::Forward),
    ("reverse", Order::Reverse),
    ("pairwise", Order::Pairwise),
    ("2 lanes", Order::Lanes(2)),
    ("8 lanes", Order::Lanes(8)),
    ("32 lanes", Order::Lanes(32)),
    ("blocks of 4", Order::Blocks(4)),
    ("blocks of 16", Order::Blocks(16)),
    ("blocks of 64", Order::Blocks(64)),
    ("f64 sums", Order::Wide),
];

/// How the softmax of the attention is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights {
    /// exp of the distance to the maximum, divided by the sum.
    Quotient,
    /// The same times the reciprocal of the sum.
    Reciprocal,
    /// `2^((s − max)·scale·log₂e)`, the two factors as one.
    Exp2,
    /// exp of the distance to the logarithm of the sum.
    LogSum,
    /// The sum rescaled whenever the maximum changes, keys in blocks of so many; queries scaled beforehand, scores in
    /// units of log 2. Where `fused`, the context is rescaled with it and the weights exist nowhere.
    Online {
        /// Keys in a block.
        block: usize,
        /// Whether weights are never stored.
        fused: bool,
    },
}

/// How `g·σ(g)·u` is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `g / (1 + exp(−g)) · u`.
    Quotient,
    /// `g · (1 / (1 + exp(−g))) · u`.
    Sigmoid,
    /// With `2^(−g·log₂e)`.
    Exp2,
    /// `σ = ½ + ½·tanh(g/2)`.
    Tanh,
}

/// How a row is normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// `w · (x / √m)`.
    Divided,
    /// `x · (1/√m) · w`.
    Reciprocal,
    /// `(w · x) · (1/√m)`.
    WeightFirst,
}

/// How the angles of the rotary embedding are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Angles {
    /// `p · base^(−2i/D)` by `powf`.
    Power,
    /// `p · exp(−2i/D · ln base)`.
    Exponential,
    /// p, multiplied again and again by `base^(−2/D)`.
    Repeated,
    /// Sines and cosines from f64.
    Table,
}

/// An engine's habits.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// What it is called.
    pub name: &'static str,
    /// Whether products are not rounded before they are added.
    pub fma: bool,
    /// Its softmax.
    pub weights: Weights,
    /// Its activation.
    pub gate: Gate,
    /// Its norm.
    pub norm: Norm,
    /// Its rotation.
    pub angles: Angles,
    /// Whether accumulators begin with the bias or the residual stream, so that the product alone exists nowhere.
    pub accumulated: bool,
}

/// Six kinds of engine.
pub const STYLES: [Style; 6] = [
    Style {
        name: "textbook",
        fma: false,
        weights: Weights::Quotient,
        gate: Gate::Quotient,
        norm: Norm::Divided,
        angles: Angles::Power,
        accumulated: false,
    },
    Style {
        name: "vector library",
        fma: true,
        weights: Weights::Reciprocal,
        gate: Gate::Sigmoid,
        norm: Norm::Reciprocal,
        angles: Angles::Exponential,
        accumulated: false,
    },
    Style {
        name: "compiler",
        fma: true,
        weights: Weights::LogSum,
        gate: Gate::Tanh,
        norm: Norm::WeightFirst,
        angles: Angles::Table,
        accumulated: true,
    },
    Style {
        name: "GPU kernels",
        fma: true,
        weights: Weights::Exp2,
        gate: Gate::Exp2,
        norm: Norm::Reciprocal,
        angles: Angles::Repeated,
        accumulated: true,
    },
    Style {
        name: "online softmax",
        fma: false,
        weights: Weights::Online { block: 1, fused: false },
        gate: Gate::Quotient,
        norm: Norm::Reciprocal,
        angles: Angles::Table,
        accumulated: false,
    },
    Style {
        name: "flash attention",
        fma: true,
        weights: Weights::Online { block: 4, fused: true },
        gate: Gate::Exp2,
        norm: Norm::Divided,
        angles: Angles::Power,
        accumulated: true,
    },
];

/// An order of summation and the habits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Name of the order.
    pub order_name: &'static str,
    /// The order.
    pub order: Order,
    /// The habits.
    pub style: Style,
}

/// Each style in each order.
pub fn variants() -> Vec<Variant> {
    let of = |style: &Style| ORDERS.map(|(order_name, order)| Variant { order_name, order, style: *style });
    STYLES.iter().flat_map(of).collect()
}
