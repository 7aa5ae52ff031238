//! The numbers of blocks that candle does not read, on the CPU: those of ggml's `dequantize_row_*`, with the same f32 operations.

use crate::problem::Format;
use half::f16;
use rayon::prelude::*;

/// The formats of this file.
pub(super) const FORMATS: [Format; 3] = [Format::MXFP4, Format::IQ4_NL, Format::IQ4_XS];

/// What the codes of `iq4_nl` and `iq4_xs` stand for.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the numbers of `mxfp4`.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Numbers that lie in 16 bytes: the low halves of the bytes first.
const RUN: usize = 32;

/// Fills `out` with the numbers of whole blocks in one of [`FORMATS`].
pub(super) fn numbers(format: Format, blocks: &[u8], out: &mut [f32]) {
    let block = format.block();
    out.par_chunks_mut(block.elements).zip(blocks.par_chunks(block.bytes)).for_each(|(out, block)| match format {
        Format::MXFP4 => run(&block[1..], &E2M1, half_power(block[0]), out),
        Format::IQ4_NL => run(&block[2..], &IQ4, half_of(block), out),
        _ => {
            let high = u16::from_le_bytes([block[2], block[3]]);
            for (i, out) in out.chunks_mut(RUN).enumerate() {
                let low = block[4 + i / 2] >> (4 * (i % 2)) & 15;
                let scale = i32::from(low) + (i32::from(high >> (2 * i) & 3) << 4) - 32;
                run(&block[8 + 16 * i..], &IQ4, half_of(block) * scale as f32, out);
            }
        }
    });
}

fn run(pairs: &[u8], table: &[i8; 16], scale: f32, out: &mut [f32]) {
    let (first, second) = out.split_at_mut(RUN / 2);
    for ((pair, first), second) in pairs.iter().zip(first).zip(second) {
        *first = scale * f32::from(table[usize::from(pair & 15)]);
        *second = scale * f32::from(table[usize::from(pair >> 4)]);
    }
}

fn half_of(block: &[u8]) -> f32 {
    f16::from_le_bytes([block[0], block[1]]).to_f32()
}

/// Half the power of two of a block of `mxfp4`: 2^(code - 128), and NaN of 255.
fn half_power(code: u8) -> f32 {
    match code {
        0 | 1 => f32::from_bits(0x0020_0000 << code),
        255 => f32::NAN,
        _ => f32::from_bits((u32::from(code) - 1) << 23),
    }
}
