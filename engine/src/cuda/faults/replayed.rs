//! Bugs of the captured graph, which show only where it is replayed.

use super::super::decoder::Decoder;
use super::super::fast::Fused;
use super::super::kernels::{EmbedTokenParams, LinearResidualEarlyParams, LinearResidualParams, Params};
use super::super::launch::Call;
use super::super::schedule::calls_of;
use crate::model::Graph;

/// A bug of the captured graph.
#[derive(Debug)]
pub struct Replayed {
    /// What it is called.
    pub name: &'static str,
    /// What a right explanation says: all fragments of one of these sets.
    pub told: &'static [&'static [&'static str]],
    at: fn(&Decoder) -> usize,
    spoil: Spoil,
}

#[derive(Debug)]
enum Spoil {
    /// Of the first launch, which takes token and position: given that of the step before.
    First(fn(&mut EmbedTokenParams, &EmbedTokenParams)),
    /// The second product of the layer in the middle.
    Product(fn(LinearResidualParams) -> Params),
}

/// Every bug of the captured graph.
pub static REPLAYED: &[Replayed] = &[
    Replayed {
        name: "replay-keeps-the-token",
        told: &[&["the embedding of"], &["the step before"]],
        at: |decoder| decoder.embed,
        spoil: Spoil::First(|now, before| now.token = before.token),
    },
    Replayed {
        name: "replay-keeps-the-position",
        told: &[
            &["rotated as the position"],
            &["rotated as position"],
            &["the position is one less"],
            &["position-stuck"],
        ],
        at: |decoder| decoder.layers[0].rope[0],
        spoil: Spoil::First(|now, before| now.position = before.position),
    },
    Replayed {
        name: "replay-without-a-wait",
        told: &[&["is multiplied in the place of"]],
        at: |decoder| decoder.layers[decoder.layers.len() / 2].attn_out,
        spoil: Spoil::Product(|p| {
            let LinearResidualParams { x, w, a, y, product_tap, y_tap, n, m } = p;
            LinearResidualEarlyParams { x, w, a, y, product_tap, y_tap, n, m }.into()
        }),
    },
];

impl Replayed {
    /// The node, by index, that is wrong first; nothing for a model that the fast path does not run.
    pub fn first(&self, graph: &Graph) -> Option<usize> {
        Decoder::of(graph).map(|decoder| (self.at)(&decoder))
    }

    /// Spoils the launches of a step, of which the first alone may be given. `before` is that of the step before.
    pub(in crate::cuda) fn spoil(&self, calls: &mut [Call], before: Option<&Call>, decoder: &Decoder) {
        match self.spoil {
            Spoil::First(change) => {
                if let (Params::EmbedToken(now), Some(Params::EmbedToken(before))) =
                    (&mut calls[0].params, before.map(|call| &call.params))
                {
                    change(now, before);
                }
            }
            Spoil::Product(change) => {
                let mut products = calls.iter_mut().filter(|c| matches!(c.params, Params::LinearResidual(_)));
                // Two in a layer.
                if let Some(call) = products.nth(decoder.layers.len() / 2 * 2)
                    && let Params::LinearResidual(params) = call.params
                {
                    call.params = change(params);
                }
            }
        }
    }

    /// The launches of a step with it.
    pub(in crate::cuda) fn launches(&self, fused: &Fused<'_>) -> Vec<Call> {
        let mut calls: Vec<Call> = calls_of(fused.decode(0, 0)).collect();
        self.spoil(&mut calls, None, fused.decoder);
        calls
    }
}
