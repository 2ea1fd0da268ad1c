//! Hyper-connections, as llama.cpp's `build_hc_mix` and `build_hc_combine` have them: what a layer's parts read of several residual
//! streams, and how they write to them.

use super::blocks::linear;
use super::builder::Builder;
use super::graph::Role;
use super::{Config, ConfigError, Metadata};
use crate::ops::{Curve, Defined, Function, GatedMean, Op, StreamNorm, StreamSum};

/// The streams of a model.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    /// How many there are.
    pub(super) count: usize,
    /// Width of the gate's product between its two matrices.
    rank: usize,
    /// Width of a stream.
    width: usize,
    eps: f64,
}

/// Where streams are read: the stages' names, the role of what is read, the tensors' names before `_norm.weight`, and how
/// llama.cpp announces the result.
pub(super) struct Reader {
    pub(super) stages: [&'static str; 5],
    pub(super) role: Role,
    pub(super) tensors: &'static str,
    pub(super) emitted: (&'static str, &'static str),
}

/// Where streams are written: the stages' names, what the weights of the streams are, the role, and how llama.cpp announces the
/// result.
pub(super) struct Writer {
    pub(super) stages: [&'static str; 3],
    pub(super) weights: &'static str,
    pub(super) role: Role,
    pub(super) tensor: &'static str,
    pub(super) emitted: &'static str,
}

impl Streams {
    /// Reads their sizes.
    ///
    /// # Errors
    /// A missing key, or a value that no such model can have.
    pub(super) fn read(arch: &str, source: &dyn Metadata, c: &Config) -> Result<Self, ConfigError> {
        let integer = |suffix: &str| Config::integer(arch, suffix, source);
        let (count, rank) = (integer("hyper_connection.count")?, integer("hyper_connection.low_rank")?);
        if count < 2 {
            let key = format!("{arch}.hyper_connection.count");
            return Err(super::config::invalid(&key, count, "expected 2 or more"));
        }
        Ok(Self { count, rank, width: c.n_embd, eps: c.rms_eps })
    }

    /// Width of all streams.
    pub(super) fn all(&self) -> usize {
        self.count * self.width
    }

    /// The norm of each stream, with weights of all of them, which a file may hold as one vector.
    pub(super) fn norm(
        &self, b: &mut Builder, source: &dyn Metadata, (name, about): (&'static str, &'static str), x: usize,
        (layer, tensor): (Option<usize>, &str),
    ) -> usize {
        let full = layer.map_or_else(|| tensor.to_owned(), |layer| format!("blk.{layer}.{tensor}"));
        let flat = source.extent(&full).is_some_and(|extent| extent.len() == 1);
        let extent = if flat { vec![self.all()] } else { vec![self.width, self.count] };
        let op = Defined::op(StreamNorm { eps: self.eps, streams: self.count, about });
        b.stage(name, Role::Streams, op, &[x], &[self.all()]).weight(tensor, &extent).add("", "MUL")
    }

    /// What a part of the model reads of the streams `x`: the row, and the normed streams.
    pub(super) fn mixed(
        &self, b: &mut Builder, source: &dyn Metadata, layer: Option<usize>, of: &Reader, x: usize,
    ) -> (usize, usize) {
        let [norm, down, act, gate, mixed] = of.stages;
        let tensor = |suffix: &str| format!("{}_{suffix}.weight", of.tensors);
        let about = "each residual stream, normed and times the norm's weight";
        let normed = self.norm(b, source, (norm, about), x, (layer, &tensor("norm")));
        let (all, rank) = (self.all(), self.rank);
        let low = linear(b, (down, Role::Streams), normed, &tensor("down"), [all, rank], "");
        let about = "the low-rank product of the gates, divided by the number of streams, through SiLU";
        let silu = Defined::op(Curve { of: Function::SiluOfShare(self.count), about });
        let low = b.stage(act, Role::Streams, silu, &[low], &[rank]).add("", "");
        let gate = linear(b, (gate, Role::Streams), low, &tensor("up"), [rank, all], "");
        let mean = Defined::op(GatedMean { streams: self.count });
        let (name, op) = of.emitted;
        (b.stage(mixed, of.role, mean, &[normed, gate], &[self.width]).add(name, op), normed)
    }

    /// The streams `x` after a part of the model gave `out`; `normed` is what it had read.
    pub(super) fn written(&self, b: &mut Builder, of: &Writer, [x, out, normed]: [usize; 3]) -> usize {
        let [inject, weights, sum] = of.stages;
        let inject = linear(b, (inject, Role::Streams), normed, of.tensor, [self.all(), self.count], "");
        let twice = Curve { of: Function::TwiceSigmoidOfShare(self.count), about: of.weights };
        let weights = b.stage(weights, Role::Streams, Defined::op(twice), &[inject], &[self.count]).add("", "");
        let op: Op = Defined::op(StreamSum { streams: self.count });
        b.stage(sum, of.role, op, &[x, out, weights], &[self.all()]).add(of.emitted, "DSV4_HC_POST")
    }
}
