//! Random blocks of GGUF files, for `tilegemm bench` and for tests/gpu.

use ::candle::quantized::GgmlDType;
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, RngCore};

/// The places of a block's f16 factors, in bytes.
fn factors(format: GgmlDType) -> &'static [usize] {
    match format {
        GgmlDType::Q4_1 | GgmlDType::Q5_1 | GgmlDType::Q4K | GgmlDType::Q5K => &[0, 2],
        GgmlDType::Q2K => &[80, 82],
        GgmlDType::Q3K => &[108],
        GgmlDType::Q6K => &[208],
        _ => &[0],
    }
}

/// Random bits with factors of 0.001 to 0.02, as a model has them.
pub fn random(format: GgmlDType, count: usize, rng: &mut StdRng) -> Vec<u8> {
    let mut blocks = vec![0; count * format.type_size()];
    rng.fill_bytes(&mut blocks);
    for block in blocks.chunks_mut(format.type_size()) {
        for &at in factors(format) {
            let factor = f16::from_f32(rng.random_range(0.001..0.02));
            block[at..at + 2].copy_from_slice(&factor.to_le_bytes());
        }
    }
    blocks
}
