//! A step as launches: the one list from which they are run, timed, and their kernels compiled.

use super::calls::{Calls, Launch, Span, calls_of};
use super::fast::Fused;
#[cfg(any(test, feature = "faults"))]
use super::faults::Planted;
use super::known::is_cache;
use super::launch::Call;
use super::layouts::Batch;
use super::options::Gemm;
use super::several::Several;
use crate::model::row_len;

/// Makes the launches of steps.
pub struct Schedule<'a> {
    /// The launches of single nodes.
    pub calls: Calls<'a>,
    /// The fused ones, for the fast path.
    pub fused: Option<Fused<'a>>,
    /// Faults in the launches.
    #[cfg(any(test, feature = "faults"))]
    pub planted: Option<&'a Planted>,
}

impl Schedule<'_> {
    /// A step of `token`, or a longer one.
    pub fn step(&self, tokens: &[u32], first: usize) -> Vec<Launch> {
        match (&self.fused, tokens) {
            (Some(fused), [token]) if !self.calls.is_of_several() => {
                #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
                let mut all = fused.decode(*token, first);
                #[cfg(any(test, feature = "faults"))]
                if let Some(planted) = self.planted {
                    planted.spoil_fused(&self.calls, &mut all);
                }
                all
            }
            _ => self.longer(Span { tokens: tokens.len(), first }),
        }
    }

    /// In how many parts a step of so many tokens is made: while one is put together, the card runs those before it.
    pub fn parts(&self, tokens: usize) -> usize {
        // A fault may change the launch before its own.
        #[cfg(any(test, feature = "faults"))]
        if self.planted.is_some() {
            return 1;
        }
        self.prefill().filter(|_| tokens > 1 || self.calls.is_of_several()).map_or(1, |fused| fused.prefill_parts())
    }

    /// A part of a step, of as many as [`Self::parts`] says.
    pub fn part(&self, (part, parts): (usize, usize), tokens: &[u32], first: usize) -> Vec<Launch> {
        match &self.fused {
            Some(fused) if parts > 1 => fused.prefill_part(part, Span { tokens: tokens.len(), first }),
            _ => self.step(tokens, first),
        }
    }

    /// What has kernels of its own for steps of many tokens: not where products are made by cuBLAS, or the card has too
    /// little shared memory for them.
    fn prefill(&self) -> Option<Fused<'_>> {
        self.fused().filter(|fused| self.calls.options.gemm == Gemm::Own && fused.prefill_fits())
    }

    /// The fast path, with what runs elsewhere than on Hopper where a bug is planted in it.
    fn fused(&self) -> Option<Fused<'_>> {
        let fused = self.fused;
        #[cfg(any(test, feature = "faults"))]
        let fused = fused.map(|fused| Fused { narrow: self.planted.is_some_and(Planted::narrow), ..fused });
        fused
    }

    /// A step of many tokens: a node at a time where it has no kernels of its own.
    pub fn longer(&self, span: Span) -> Vec<Launch> {
        match self.prefill() {
            Some(fused) => {
                #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
                let mut all = fused.prefill(span);
                #[cfg(any(test, feature = "faults"))]
                if let Some(planted) = self.planted {
                    planted.spoil_fused(&self.calls, &mut all);
                }
                all
            }
            _ => self.walk(span),
        }
    }

    /// A node at a time; of the fast path, attention at once.
    fn walk(&self, span: Span) -> Vec<Launch> {
        let mut all = Vec::new();
        for index in 0..self.calls.graph.nodes.len() {
            let attention = self.fused().and_then(|f| Some((f, f.decoder.attention_of(index)?)));
            match attention {
                Some((fused, layer)) if layer.context == index => {
                    #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
                    let mut launch = Launch {
                        jobs: fused.attention_rows(layer, span),
                        nodes: vec![layer.scores, layer.weights, layer.context],
                        span,
                        keeps: false,
                    };
                    #[cfg(any(test, feature = "faults"))]
                    if let Some(planted) = self.planted {
                        planted.spoil_fused(&self.calls, std::slice::from_mut(&mut launch));
                    }
                    all.push(launch);
                }
                Some(_) => {}
                None => all.push(self.node(index, span)),
            }
        }
        all
    }

    fn node(&self, index: usize, span: Span) -> Launch {
        let calls = &self.calls;
        let node = &calls.graph.nodes[index];
        let launch = |jobs, span| Launch { jobs, nodes: vec![index], span, keeps: false };
        if calls.options.last_logits && index + 1 == calls.graph.nodes.len() {
            let (x, w) = (calls.input(node, 0), calls.memory.weight(node));
            let last = x + (4 * w.n * (span.tokens - 1)) as u64;
            let only = Span { tokens: 1, first: span.first + span.tokens - 1 };
            return launch(calls.linear(w, last, calls.memory.outputs[index].at, 1), only);
        }
        #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
        let mut launch = launch(calls.of(index, span), span);
        #[cfg(any(test, feature = "faults"))]
        if let Some(planted) = self.planted {
            planted.spoil(calls, index, &mut launch);
        }
        launch
    }

    /// Every launch of a kernel that a step may need, for any tokens: of a step of one token by this path, and
    /// of one that walks the graph.
    pub fn kernels(&self) -> Vec<Call> {
        let one = Span { tokens: 1, first: 0 };
        let nodes = self.calls.graph.nodes.iter().enumerate();
        let caches = nodes.filter(|(_, node)| is_cache(node));
        let read = caches.filter_map(|(i, node)| self.calls.read_cache(i, row_len(node)));
        // Some are others where something is tapped.
        let tapped = Self { fused: self.fused.map(|fused| Fused { wants: &|_| true, ..fused }), ..*self };
        let mut longer: Vec<Call> = calls_of(self.longer(one)).chain(calls_of(tapped.longer(one))).collect();
        if self.calls.options.more_sequences > 0 {
            // And where rows are of several sequences.
            let rows = Several::any();
            for which in [self, &tapped] {
                let batch = Batch::at(self.calls.memory.rows, one.tokens);
                let calls = Calls { batch, several: &rows, ..self.calls };
                let fused = which.fused.map(|fused| Fused { calls, ..fused });
                let schedule = Schedule {
                    calls,
                    fused,
                    #[cfg(any(test, feature = "faults"))]
                    planted: which.planted,
                };
                longer.extend(calls_of(schedule.longer(one)));
            }
        }
        // In a long context another kernel computes attention.
        let last = self.calls.options.context.saturating_sub(1);
        let steps = [(self, 0), (self, last), (&tapped, 0), (&tapped, last)];
        let steps = steps.into_iter().flat_map(|(schedule, first)| calls_of(schedule.step(&[0], first)));
        steps.chain(longer).chain(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::decoder::Decoder;
    use crate::cuda::fast::decoder_of;
    use crate::cuda::options::{Options, Path};
    use crate::cuda::testing::{graphs, mixed, with_calls};
    use crate::dtype::DType;
    use std::collections::HashSet;

    #[test]
    fn every_step_makes_each_stage_once_of_kernels_that_are_known_before() {
        for graph in graphs().iter().chain([&mixed()]) {
            for (path, kv) in [(Path::Tapped, DType::F32), (Path::Fast, DType::F16)] {
                let options =
                    Options { step: 300, context: 9000, path, kv: kv.into(), taps: true, ..Options::default() };
                with_calls(graph, &options, |calls| {
                    let decoder = decoder_of(graph).expect("a decoder");
                    let fused = Fused { calls, decoder: &decoder, next_token: 0, wants: &|_| false, narrow: false };
                    let schedule = Schedule { calls, fused: (path == Path::Fast).then_some(fused), planted: None };
                    let known: HashSet<_> = schedule.kernels().iter().map(Call::kernel).collect();
                    for (tokens, first) in [(1, 100), (2, 100), (63, 100), (300, 100), (1, 8000)] {
                        let launches = schedule.step(&vec![0; tokens], first);
                        let mut nodes: Vec<usize> = launches.iter().flat_map(|l| l.nodes.clone()).collect();
                        nodes.sort_unstable();
                        assert_eq!(nodes, (0..graph.nodes.len()).collect::<Vec<_>>(), "{path:?}, {tokens} tokens");
                        let mut calls = calls_of(launches);
                        assert!(calls.all(|call| known.contains(&call.kernel())), "{path:?}, {tokens} tokens");
                    }
                    // Some of the stages are tapped.
                    for of in 1..4 {
                        let wants = |i: usize| i.is_multiple_of(of);
                        let fused = schedule.fused.map(|fused| Fused { wants: &wants, ..fused });
                        let some = Schedule { fused, ..schedule };
                        let mut calls = [100, 8000].into_iter().flat_map(|first| calls_of(some.step(&[0], first)));
                        assert!(calls.all(|call| known.contains(&call.kernel())), "{path:?}, taps of every {of}.");
                    }
                });
            }
        }
    }

    fn fast<'a>(calls: Calls<'a>, decoder: &'a Decoder, wants: &'a dyn Fn(usize) -> bool) -> Schedule<'a> {
        let fused = Fused { calls, decoder, next_token: 0, wants, narrow: false };
        Schedule { calls, fused: Some(fused), planted: None }
    }

    #[test]
    fn a_pass_of_several_sequences_makes_each_stage_once_of_kernels_that_are_known_before() {
        for graph in &graphs() {
            let options = Options {
                step: 300,
                context: 900,
                path: Path::Fast,
                taps: true,
                more_sequences: 3,
                ..Options::default()
            };
            with_calls(graph, &options, |calls| {
                let decoder = decoder_of(graph).expect("a decoder");
                let none: &dyn Fn(usize) -> bool = &|_| false;
                let known: HashSet<_> = fast(calls, &decoder, none).kernels().iter().map(Call::kernel).collect();
                let Several { alone, together } = Several::any();
                let both = Several { alone: vec![0, 1, 2], together: together.clone() };
                for several in [Several { alone, together: Vec::new() }, Several { alone: Vec::new(), together }, both]
                {
                    let calls = Calls { batch: Batch::at(calls.memory.rows, 3), several: &several, ..calls };
                    for wants in [none, &|_| true, &|i| i.is_multiple_of(2)] {
                        for tokens in [1, 2, 300] {
                            let schedule = fast(calls, &decoder, wants);
                            let parts = schedule.parts(tokens);
                            let part = |part| schedule.part((part, parts), &vec![0; tokens], 100);
                            let launches: Vec<Launch> = (0..parts).flat_map(part).collect();
                            let mut nodes: Vec<usize> = launches.iter().flat_map(|l| l.nodes.clone()).collect();
                            nodes.sort_unstable();
                            assert_eq!(nodes, (0..graph.nodes.len()).collect::<Vec<_>>(), "{tokens} tokens");
                            let mut calls = calls_of(launches);
                            assert!(calls.all(|call| known.contains(&call.kernel())), "{tokens} tokens");
                        }
                    }
                }
            });
        }
    }
}
