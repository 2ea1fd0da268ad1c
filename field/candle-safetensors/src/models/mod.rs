//! Files of candle-transformers, unchanged except for the taps.

#[path = "../../vendor/candle-transformers/src/models/qwen2.rs"]
pub mod qwen2;
#[path = "../../vendor/candle-transformers/src/models/qwen3.rs"]
pub mod qwen3;
#[path = "../../vendor/candle-transformers/src/models/qwen3_moe.rs"]
pub mod qwen3_moe;
#[path = "../../vendor/candle-transformers/src/models/with_tracing.rs"]
pub mod with_tracing;
