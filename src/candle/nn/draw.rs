//! The draw of a token on the CPU, by the rules of `tg_sample` in `csrc/layer/layer.h`.

use crate::layer::Sampling;
use std::collections::HashSet;

/// What a token is drawn by.
pub(super) struct Row<'a> {
    pub logits: &'a [f32],
    /// Tokens by position.
    pub history: &'a [u32],
    pub position: i32,
}

/// The token; `None` where no number is above -inf.
pub(super) fn draw(row: &Row, set: &Sampling) -> Option<u32> {
    let logits = penalised(row, set);
    let (mut first, mut largest) = (None, f32::NEG_INFINITY);
    for (token, &x) in logits.iter().enumerate() {
        if x > largest {
            (first, largest) = (Some(token as u32), x);
        }
    }
    if set.temperature.is_nan() || set.temperature <= 0.0 || largest == f32::INFINITY || first.is_none() {
        return first;
    }
    let scale = std::f32::consts::LOG2_E / set.temperature;
    let weight = |x: &f32| match *x - largest {
        0.0 => 1.0,
        below => (below * scale).exp2(),
    };
    let weights: Vec<f32> = logits.iter().map(weight).collect();
    let least = threshold(&weights, set);
    let mut best: Option<(f32, u32)> = None;
    for (token, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight >= least) {
        let words = philox([token as u32 / 4, row.position as u32, set.sequence, 0], set.seed);
        let uniform = (words[token % 4] as f32 + 0.5) * 2f32.powi(-32);
        let score = weight / -(-uniform.min(0.999_999_94)).ln_1p();
        if best.is_none_or(|(most, _)| score > most) {
            best = Some((score, token as u32));
        }
    }
    best.map(|(_, token)| token)
}

/// Logits after the penalty, with -inf for NaN.
fn penalised(row: &Row, set: &Sampling) -> Vec<f32> {
    let penalty = set.repetition_penalty;
    let mut seen = HashSet::<u32>::new();
    if penalty != 1.0 && penalty > 0.0 {
        let end = usize::try_from(i64::from(row.position) + 1).unwrap_or(0).min(row.history.len());
        let first = if set.last_n > 0 { end.saturating_sub(set.last_n as usize) } else { 0 };
        seen.extend(&row.history[first..end]);
    }
    let of = |(token, &x): (usize, &f32)| {
        let x = match seen.contains(&(token as u32)) {
            true if x > 0.0 => x / penalty,
            true => x * penalty,
            false => x,
        };
        if x.is_nan() {
            f32::NEG_INFINITY
        } else {
            x
        }
    };
    row.logits.iter().enumerate().map(of).collect()
}

/// The least weight that stays. Weights are shares of the largest, which is 1.
fn threshold(weights: &[f32], set: &Sampling) -> f32 {
    let mut sorted: Vec<f32> = weights.iter().copied().filter(|weight| *weight > 0.0).collect();
    sorted.sort_unstable_by(|x, y| y.total_cmp(x));
    if set.top_k > 0 && (set.top_k as usize) < sorted.len() {
        let least = sorted[set.top_k as usize - 1];
        sorted.retain(|weight| *weight >= least);
    }
    if set.top_p < 1.0 {
        let need = f64::from(set.top_p.max(0.0)) * sorted.iter().map(|weight| f64::from(*weight)).sum::<f64>();
        let mut sum = 0.0;
        let enough = sorted.iter().position(|weight| {
            sum += f64::from(*weight);
            sum >= need
        });
        if let Some(least) = enough.map(|last| sorted[last]) {
            sorted.retain(|weight| *weight >= least);
        }
    }
    sorted.last().copied().unwrap_or(1.0).max(set.min_p.min(1.0))
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
fn philox(mut counter: [u32; 4], key: u64) -> [u32; 4] {
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let [x, y] =
            [(0xD251_1F53u32, counter[0]), (0xCD9E_8D57, counter[2])].map(|(a, b)| u64::from(a) * u64::from(b));
        counter = [(y >> 32) as u32 ^ counter[1] ^ key[0], y as u32, (x >> 32) as u32 ^ counter[3] ^ key[1], x as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The vectors of Random123's kat_vectors.
    #[test]
    fn random_numbers_are_philox() {
        assert_eq!(philox([0; 4], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox(counter, 0x299f_31d0_a409_3822), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
