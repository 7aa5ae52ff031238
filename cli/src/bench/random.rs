//! Seeded random numbers for weights.

use candle::Shape;

/// The deviation of weights with which activations stay near 1: rows of length k give outputs of variance 1. Rows of embeddings are looked up and get the same
/// deviation. A filter of a convolution is a row of its three last dimensions.
pub fn deviation(shape: &Shape) -> f32 {
    let of_row = if shape.rank() == 4 { &shape.dims()[1..] } else { &shape.dims()[shape.rank().saturating_sub(1)..] };
    (1.0 / of_row.iter().product::<usize>() as f32).sqrt()
}

/// The seed of a name.
pub fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Words of 64 random bits, by splitmix64.
pub fn words(seed: u64) -> impl Iterator<Item = u64> {
    let states = std::iter::successors(Some(seed), |state| Some(state.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    states.map(|state| {
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// Numbers of mean 0 and variance 1.
pub fn uniform(seed: u64) -> impl Iterator<Item = f32> {
    words(seed).map(|word| {
        let unit = (word >> 40) as f32 / (1 << 24) as f32;
        3f32.sqrt() * (2.0 * unit - 1.0)
    })
}
