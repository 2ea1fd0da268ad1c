//! End to end: through the binary, and through the public API against llama.cpp and ggml. One program, so that llama.cpp
//! is linked once and no core idles between the files.

mod alone;
mod batch;
mod beside_the_stages;
mod captures;
mod casebook;
mod documents;
mod errors;
mod exporters;
mod false_causes;
mod generate;
mod gguf_vs_ggml;
mod goldens;
mod hostile_captures;
mod house;
mod html;
mod interrupts;
mod kernels;
mod locate;
mod manual;
mod positions;
mod project;
mod quant_vs_ggml;
mod real_model;
mod reports;
mod sampler_vs_llama;
mod scope;
mod score;
mod screens;
mod segments;
mod synthetic;
mod tokenizer_vs_llama;
