//! Weights as AutoAWQ stores them, version gemm.

use super::codes::Codes;
use super::scales::Scales;
use super::scheme::Awq;
use super::tensors::Module;
use super::weight::QuantWeight;
use ::candle::{bail, Result};

/// Codes of a word.
pub(super) const CODES: usize = 8;
/// The nibble of a word that has the code of column n, by n % 8.
const NIBBLES: [usize; CODES] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Reads `qweight`, (K, N / 8), `qzeros`, (groups, N / 8), both packed along N, and `scales`, (groups, N).
pub(super) fn read(of: &Module, [n, k]: [usize; 2], scheme: &Awq) -> Result<QuantWeight> {
    if !n.is_multiple_of(CODES) {
        bail!("{}: AWQ packs {CODES} rows into a word; expected a multiple, not {n} rows", of.path());
    }
    let group = scheme.group.unwrap_or(k).max(1);
    let (groups, width) = (k.div_ceil(group), n / CODES);
    of.uncut("columns", [k, group], groups, || Ok(of.floats("scales")?.dims.first().copied()))?;
    let packed = of.shaped(&[k, width]).words("qweight")?.values;
    let scales = of.shaped(&[groups, n]).floats("scales")?.values;
    let code = |words: &[u32], n: usize| (words[n / CODES] >> (4 * NIBBLES[n % CODES]) & 0xf) as u8;
    let zeros = match of.has("qzeros") {
        true => {
            let stored = of.shaped(&[groups, width]).words("qzeros")?.values;
            (0..groups * n).map(|at| code(&stored[at / n * width..], at % n)).collect()
        }
        false if !scheme.zeros => vec![Codes::U4.middle(); groups * n],
        false => bail!("{}.qzeros: no such tensor, and the weights have zero points (zero_point: true)", of.path()),
    };
    let has_zeros = zeros.iter().any(|zero| *zero != Codes::U4.middle());
    let scales = Scales::narrowest(&scales, [1, group], [1, n]);
    Ok(QuantWeight::pack(Codes::U4, [n, k], scales, has_zeros.then_some(zeros), |first, rows| {
        for (at, words) in packed.chunks_exact(width).enumerate() {
            rows.chunks_exact_mut(k).enumerate().for_each(|(row, codes)| codes[at] = code(words, first + row));
        }
    }))
}
