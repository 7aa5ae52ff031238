//! Codes of any number of bits in words of 32.

/// Codes that lie one after another from the lowest bit on, in words with a stride.
#[derive(Clone, Copy)]
pub(super) struct Stream<'a> {
    pub words: &'a [u32],
    pub first: usize,
    pub stride: usize,
    pub bits: usize,
}

impl Stream<'_> {
    /// The code with this number. It may begin in one word and end in the next.
    pub fn code(&self, number: usize) -> u8 {
        let (word, shift) = (number * self.bits / 32, number * self.bits % 32);
        let at = self.first + word * self.stride;
        let mut code = self.words[at] >> shift;
        if shift + self.bits > 32 {
            code |= self.words[at + self.stride] << (32 - shift);
        }
        (code & ((1 << self.bits) - 1)) as u8
    }
}

/// The fewest codes that fill words.
pub(super) fn codes_of_whole_words(bits: usize) -> usize {
    if 32usize.is_multiple_of(bits) {
        32 / bits
    } else {
        32
    }
}

/// The words that so many codes take.
pub(super) fn words(codes: usize, bits: usize) -> usize {
    (codes * bits).div_ceil(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_three_bits_straddle_words() {
        let codes: Vec<u32> = (0..64).map(|i| (i * 5 + i / 8) % 8).collect();
        let mut words = [0u32; 6];
        for (i, code) in codes.iter().enumerate() {
            for bit in 0..3 {
                let at = 3 * i + bit;
                words[at / 32] |= (code >> bit & 1) << (at % 32);
            }
        }
        // Two streams in turns.
        let beside: Vec<u32> = words.iter().flat_map(|word| [*word, !word]).collect();
        for (first, flip) in [(0, 0), (1, 7)] {
            let stream = Stream { words: &beside, first, stride: 2, bits: 3 };
            assert!(codes.iter().enumerate().all(|(i, code)| u32::from(stream.code(i)) == code ^ flip));
        }
        assert_eq!([(32, 3), (33, 3), (33, 4), (3, 8)].map(|(codes, bits)| super::words(codes, bits)), [3, 4, 5, 1]);
    }
}
