//! Whether the calls of candle and mistralrs reach this crate in a program with the features `interpose-kernels` and `interpose-mistralrs`. `make test`
//! links this program by two linkers.

#[cfg(feature = "interpose-mistralrs")]
mod mistralrs;

#[cfg(feature = "interpose-kernels")]
use candle_tilegemm::interpose;

#[cfg(feature = "interpose-kernels")]
#[test]
fn candles_calls_arrive() {
    assert!(interpose::is_active(), "products of cuBLAS");
    assert!(interpose::experts_are_active(), "experts");
    assert!(interpose::gguf_is_active(), "quantised weights");
    assert!(interpose::gguf_experts_are_active(), "experts with quantised weights");
}
