//! The codes of narrow weights: the numbers they stand for, and how they lie in a row.

use std::fmt;

/// What the codes of narrow weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codes {
    /// 8-bit floating point, 4 bits of exponent and 3 of mantissa, without infinities; 0x7f and 0xff are NaN (OCP OFP8).
    F8E4M3,
    /// 8-bit two's complement.
    I8,
    /// 8 bits with a zero point; without one it is 128.
    U8,
    /// 4 bits with a zero point; without one it is 8.
    U4,
    /// 4-bit floating point, 2 bits of exponent and 1 of mantissa (OCP MX).
    E2M1,
}

/// Codes of 4 bits that 16 bytes of a row hold: the least number that a row is padded to.
const SPAN: usize = 32;
/// Rows start at multiples of this number of bytes.
const ALIGN: usize = 16;

/// The magnitudes of [`Codes::E2M1`]; bit 3 is the sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

impl Codes {
    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            Self::F8E4M3 | Self::I8 | Self::U8 => 8,
            Self::U4 | Self::E2M1 => 4,
        }
    }

    /// Bytes of a row of `k` codes, a multiple of 16. Codes of 4 bits are padded to a multiple of 32.
    pub const fn row_bytes(self, k: usize) -> usize {
        match self.bits() {
            4 => k.div_ceil(SPAN) * SPAN / 2,
            _ => k.div_ceil(ALIGN) * ALIGN,
        }
    }

    /// The zero point where none is stored.
    pub(super) const fn middle(self) -> u8 {
        match self {
            Self::U8 => 128,
            Self::U4 => 8,
            Self::F8E4M3 | Self::I8 | Self::E2M1 => 0,
        }
    }

    /// The number of a code, before zero point and scale.
    pub fn value(self, code: u8) -> f32 {
        match self {
            Self::F8E4M3 => e4m3(code),
            Self::I8 => f32::from(code.cast_signed()),
            Self::U8 | Self::U4 => f32::from(code),
            Self::E2M1 => e2m1(code),
        }
    }

    /// Packs codes, one a byte, into a row of [`row_bytes`](Self::row_bytes); `pad` fills the row up.
    pub(super) fn pack_row(self, codes: &[u8], pad: u8, row: &mut [u8]) {
        if self.bits() == 8 {
            let (whole, rest) = row.split_at_mut(codes.len());
            whole.copy_from_slice(codes);
            rest.fill(pad);
            return;
        }
        for (span, bytes) in row.chunks_exact_mut(SPAN / 2).enumerate() {
            let first = span * SPAN;
            let code = |at: usize| codes.get(first + at).copied().unwrap_or(pad) & 0xf;
            for (place, byte) in bytes.iter_mut().enumerate() {
                let [low, high] = places(place);
                *byte = code(low) | code(high) << 4;
            }
        }
    }

    /// The codes of a row, one a byte.
    pub(super) fn unpack_row(self, row: &[u8], codes: &mut [u8]) {
        if self.bits() == 8 {
            codes.copy_from_slice(&row[..codes.len()]);
            return;
        }
        for (codes, bytes) in codes.chunks_mut(SPAN).zip(row.chunks_exact(SPAN / 2)) {
            for (place, byte) in bytes.iter().enumerate() {
                let [low, high] = places(place);
                for (at, code) in [(low, byte & 0xf), (high, byte >> 4)] {
                    if let Some(to) = codes.get_mut(at) {
                        *to = code;
                    }
                }
            }
        }
    }
}

/// The numbers of K, relative to a span of 32, of the low and high nibble of a byte of 16.
///
/// Word t of four has the pairs of neighbours 2t + 8i and 2t + 8i + 1 in its nibbles i and i + 4, i = 0 to 3: `(word >> 4 i) & 0x000f000f` is a pair, and word t
/// has what lane t of a quad needs for two steps of 16 of `mma.m16n8k16`.
const fn places(byte: usize) -> [usize; 2] {
    let (word, half, pair) = (byte / 4, byte % 4 / 2, byte % 2);
    let low = 2 * word + 16 * pair + half;
    [low, low + 8]
}

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F8E4M3 => "f8e4m3",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::U4 => "u4",
            Self::E2M1 => "e2m1",
        })
    }
}

/// The number of an e4m3 code (OCP OFP8, `e4m3fn`).
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 0xf), u32::from(code & 7));
    let magnitude = match (exponent, mantissa) {
        (0xf, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// The number of an e2m1 code.
pub(super) fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// 2^(code - 127); NaN for 255 (OCP MX).
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The e4m3 code nearest to x, ties to even. Numbers beyond 448 become 448, infinities and NaN become NaN.
pub(super) fn to_e4m3(x: f32) -> u8 {
    let (sign, magnitude) = (if x.is_sign_negative() { 0x80 } else { 0 }, x.abs());
    if !magnitude.is_finite() {
        return sign | 0x7f;
    }
    // The distance between codes near x: 2^-9 below 2^-6, then 2^-3 of the power of two.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let step = f32::from_bits(((exponent - 3 + 127) as u32) << 23);
    // Both the quotient and, up to 16, its rounding are exact.
    let steps = (magnitude / step).round_ties_even() as i32;
    // 8 to 15 steps are the codes of an exponent, 16 the first of the next; below 2^-6 the steps are the codes.
    let code = (exponent + 6) * 8 + steps;
    sign | code.min(0x7e) as u8
}

/// The e2m1 code nearest to x, ties to the even code. Numbers beyond 6 become 6; NaN has no code.
pub(super) fn to_e2m1(x: f32) -> u8 {
    /// Between neighbours; of a number on a limit, the even one.
    const LIMITS: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = x.abs();
    let above = |(code, limit): (usize, &f32)| magnitude > *limit || (magnitude == *limit && code % 2 == 1);
    let code = LIMITS.iter().enumerate().filter(|limit| above(*limit)).count();
    code as u8 | if x.is_sign_negative() { 8 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use float8::F8E4M3;

    #[test]
    fn codes_of_eight_bits_are_those_of_float8() {
        for code in 0..=255u8 {
            let (ours, theirs) = (e4m3(code), F8E4M3::from_bits(code).to_f32());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{code:#x}: {ours}, {theirs}");
            assert_eq!(ours.is_nan(), code & 0x7f == 0x7f);
            if !ours.is_nan() {
                assert_eq!(to_e4m3(ours), code);
                assert_eq!(ours.is_sign_negative(), code & 0x80 != 0);
            }
        }
    }

    #[test]
    fn numbers_between_codes_go_to_the_nearer_and_ties_to_the_even() {
        for code in 0..0x7eu8 {
            let (low, high) = (e4m3(code), e4m3(code + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(to_e4m3(middle), if code % 2 == 0 { code } else { code + 1 }, "{middle}");
            assert_eq!(to_e4m3(-middle.next_down()), 0x80 | code);
            assert_eq!(to_e4m3(middle.next_up()), code + 1);
        }
        for (x, code) in [(448.0, 0x7e), (464.0, 0x7e), (1e30, 0x7e), (f32::INFINITY, 0x7f), (-f32::NAN, 0xff)] {
            assert_eq!(to_e4m3(x), code, "{x}");
        }
        for code in 0..7u8 {
            let middle = (e2m1(code) + e2m1(code + 1)) / 2.0;
            assert_eq!(to_e2m1(middle), if code % 2 == 0 { code } else { code + 1 }, "{middle}");
            assert_eq!(to_e2m1(-middle.next_down()), 8 | code);
            assert_eq!(to_e2m1(middle.next_up()), code + 1);
        }
        assert_eq!((to_e2m1(1e9), to_e2m1(f32::NEG_INFINITY)), (7, 15));
    }

    #[test]
    fn exponents_end_at_subnormals_and_nan() {
        assert_eq!(e8m0(0), 2f32.powi(-127));
        assert_eq!((e8m0(1), e8m0(127), e8m0(254)), (2f32.powi(-126), 1.0, 2f32.powi(127)));
        assert!(e8m0(255).is_nan());
    }

    /// Nibble i of word t, as the kernels' table of places says it.
    #[test]
    fn a_word_has_pairs_of_neighbours() {
        let places = [0usize, 8, 16, 24, 1, 9, 17, 25];
        let codes: Vec<u8> = (0..64).map(|k| (k * 7 + k / 16) as u8 & 0xf).collect();
        let mut row = [0; 32];
        Codes::U4.pack_row(&codes, 8, &mut row);
        for (word, bytes) in row.chunks(4).enumerate() {
            let bits = u32::from_le_bytes(bytes.try_into().unwrap());
            for (nibble, place) in places.into_iter().enumerate() {
                let k = word / 4 * 32 + 2 * (word % 4) + place;
                assert_eq!((bits >> (4 * nibble) & 0xf) as u8, codes[k], "word {word}, nibble {nibble}");
            }
        }
    }

    #[test]
    fn rows_are_padded_and_read_back() {
        for codes in [Codes::F8E4M3, Codes::I8, Codes::U8, Codes::U4, Codes::E2M1] {
            for k in [1usize, 15, 16, 31, 32, 33, 100] {
                let bytes = codes.row_bytes(k);
                assert!(bytes.is_multiple_of(16) && 2 * bytes * 4 >= k * codes.bits());
                let mask = if codes.bits() == 4 { 0xf } else { 0xff };
                let numbers: Vec<u8> = (0..k).map(|i| (i * 37 + 5) as u8 & mask).collect();
                let (mut row, mut back) = (vec![0; bytes], vec![0; bytes * 8 / codes.bits()]);
                codes.pack_row(&numbers, 9, &mut row);
                codes.unpack_row(&row, &mut back);
                assert_eq!(back[..k], numbers, "{codes}, {k}");
                assert!(back[k..].iter().all(|pad| *pad == 9));
            }
        }
    }
}
