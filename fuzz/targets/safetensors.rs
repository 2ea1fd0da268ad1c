#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| qdiff_tests::fuzz::safetensors(bytes));
