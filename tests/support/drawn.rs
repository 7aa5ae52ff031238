//! Random blocks in the formats of GGUF files that candle does not have.

use candle_tilegemm::Format;

/// Random blocks of so many numbers, in a format that candle does not have; most numbers are below 0.2.
pub fn blocks(format: Format, count: usize, seed: u64) -> Vec<u8> {
    let (block, mut state) = (format.block(), seed);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut bytes: Vec<u8> = (0..count / block.elements * block.bytes).map(|_| next()).collect();
    for block in bytes.chunks_mut(block.bytes) {
        // Of an f16, 2^-14 or 2^-10 times a number from 1 to 2.
        let exponent = if format == Format::IQ4_XS { 1 } else { 5 };
        match format {
            Format::MXFP4 => block[0] = 127 - 7 + next() % 3,
            _ => block[1] = exponent << 2 | block[1] & 3,
        }
    }
    bytes
}
