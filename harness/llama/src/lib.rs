//! What qdiff asks of llama.cpp. The crate `qdiff-llama-cpp` answers, and is the one crate of the harness that calls llama.cpp. A
//! program without it has no llama.cpp, and says so where one is needed. So no crate but `qdiff` waits for llama.cpp to compile.

use qdiff_capture::{arithmetic, capture, room};

pub mod llama;
