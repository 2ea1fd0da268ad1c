//! Files of candle-transformers, unchanged except for the taps.

#[path = "../../vendor/candle-transformers/src/models/quantized_qwen2.rs"]
pub mod quantized_qwen2;
#[path = "../../vendor/candle-transformers/src/models/quantized_qwen3.rs"]
pub mod quantized_qwen3;
#[path = "../../vendor/candle-transformers/src/models/with_tracing.rs"]
pub mod with_tracing;
