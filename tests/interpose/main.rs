//! Whether candle's calls reach this crate in a program with the feature `interpose-kernels`. `make test` links this program by two linkers.

#![cfg(feature = "interpose-kernels")]

use candle_tilegemm::interpose;

#[test]
fn candles_calls_arrive() {
    assert!(interpose::is_active(), "products of cuBLAS");
    assert!(interpose::experts_are_active(), "experts");
    assert!(interpose::gguf_is_active(), "quantised weights");
    assert!(interpose::gguf_experts_are_active(), "experts with quantised weights");
}
