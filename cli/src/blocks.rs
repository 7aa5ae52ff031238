//! Random blocks of GGUF files, for `tilegemm bench` and for tests/gpu.

use candle_tilegemm::Format;
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, RngCore};

/// The places of a block's f16 factors, in bytes.
fn factors(format: Format) -> &'static [usize] {
    match format {
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::MXFP4 => &[],
        _ => &[0],
    }
}

/// Random bits with factors of 0.001 to 0.02, as a model has them.
pub fn random(format: Format, count: usize, rng: &mut StdRng) -> Vec<u8> {
    let bytes = format.block().bytes;
    let mut blocks = vec![0; count * bytes];
    rng.fill_bytes(&mut blocks);
    for block in blocks.chunks_mut(bytes) {
        for &at in factors(format) {
            let factor = f16::from_f32(rng.random_range(0.001..0.02));
            block[at..at + 2].copy_from_slice(&factor.to_le_bytes());
        }
        if format == Format::MXFP4 {
            block[0] = rng.random_range(127 - 9..127 - 5);
        }
    }
    blocks
}
