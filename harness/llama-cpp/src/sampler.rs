//! llama.cpp's own samplers.

use llama_cpp_sys_2 as sys;
use qdiff_engine::sampler::Step;
use qdiff_llama::llama::Samples;

/// A chain of llama.cpp's samplers.
pub(crate) struct Chain {
    chain: *mut sys::llama_sampler,
    tokens: usize,
    /// Whether the chain takes the largest logit, and draws nothing.
    greedy: bool,
    last_of_equals: bool,
}

impl Chain {
    pub(crate) fn new(chain: &[Step], tokens: usize) -> Self {
        let greedy = chain.last() == Some(&Step::Greedy);
        // SAFETY: the chain owns the samplers added to it, and is freed in drop.
        let chain = unsafe {
            let params = sys::llama_sampler_chain_default_params();
            let all = sys::llama_sampler_chain_init(params);
            for step in chain {
                let sampler = match *step {
                    Step::Penalties { last, repeat, frequency, presence } => {
                        sys::llama_sampler_init_penalties(clamp(tokens), clamp(last), repeat, frequency, presence)
                    }
                    Step::TopK(k) => sys::llama_sampler_init_top_k(clamp(k)),
                    Step::TopP(p) => sys::llama_sampler_init_top_p(p, 0),
                    Step::MinP(p) => sys::llama_sampler_init_min_p(p, 0),
                    Step::Temperature(t) => sys::llama_sampler_init_temp(t),
                    Step::Greedy => sys::llama_sampler_init_greedy(),
                    Step::Draw(seed) => sys::llama_sampler_init_dist(seed),
                };
                sys::llama_sampler_chain_add(all, sampler);
            }
            all
        };
        Self { chain, tokens, greedy, last_of_equals: false }
    }
}

impl Samples for Chain {
    fn last_of_equals(&mut self) {
        self.last_of_equals = self.greedy;
    }

    fn accept(&mut self, token: u32) {
        // SAFETY: the chain lives.
        unsafe { sys::llama_sampler_accept(self.chain, token as i32) };
    }

    fn sample(&mut self, logits: &[f32]) -> u32 {
        let mut list: Vec<sys::llama_token_data> =
            (0..).zip(&logits[..self.tokens]).map(|(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 }).collect();
        if self.last_of_equals {
            list.reverse();
        }
        let mut array =
            sys::llama_token_data_array { data: list.as_mut_ptr(), size: list.len(), selected: -1, sorted: false };
        // SAFETY: the array points into `list`, which outlives the call; samplers shrink it, and never move it.
        unsafe { sys::llama_sampler_apply(self.chain, &mut array) };
        let chosen = usize::try_from(array.selected).expect("the chain chooses a token");
        let token = list[chosen].id as u32;
        self.accept(token);
        token
    }
}

/// llama.cpp counts in 32 bits.
fn clamp(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: made by us, freed once, with the samplers in it.
        unsafe { sys::llama_sampler_free(self.chain) };
    }
}
