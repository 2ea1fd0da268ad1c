//! Bugs of the captured graph, which show only where it is replayed.

use super::super::calls::calls_of;
use super::super::decoder::Decoder;
use super::super::fast::Fused;
use super::super::kernels::{EmbedTokenParams, Params};
use super::super::launch::Call;
use super::bug;
use crate::model::Graph;

/// A bug of the captured graph.
#[derive(Debug)]
pub struct Replayed {
    /// What it is called.
    pub name: &'static str,
    at: fn(&Decoder) -> Option<usize>,
    spoil: Spoil,
}

#[derive(Debug)]
enum Spoil {
    /// The first launch, which takes token and position, gets those of the step before.
    First(fn(&mut EmbedTokenParams, &EmbedTokenParams)),
    /// The kernel of the middle layer with the bug of this name.
    Middle,
}

/// Every bug of the captured graph.
pub static REPLAYED: &[Replayed] = &[
    Replayed {
        name: "replay-keeps-the-token",
        at: |decoder| Some(decoder.embed),
        spoil: Spoil::First(|now, before| now.token = before.token),
    },
    Replayed {
        name: "replay-keeps-the-position",
        at: |decoder| Some(decoder.layers.first()?.rope[0]),
        spoil: Spoil::First(|now, before| now.position = before.position),
    },
    Replayed {
        name: "replay-without-a-wait",
        at: |decoder| Some(decoder.layers.get(decoder.layers.len() / 2)?.scores),
        spoil: Spoil::Middle,
    },
];

impl Replayed {
    /// The node, by index, that is wrong first; nothing for a model that the fast path does not run.
    pub fn first(&self, graph: &Graph) -> Option<usize> {
        Decoder::of(graph).and_then(|decoder| (self.at)(&decoder))
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
            Spoil::Middle => {
                let of = bug(self.name);
                let has = |call: &&mut Call| of.is_some_and(|bug| bug.files.contains(&call.params.file()));
                // One in a layer.
                if let Some(call) = calls.iter_mut().filter(has).nth(decoder.layers.len() / 2) {
                    call.bug = of;
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
