//! The block formats of GGUF files by candle's names.

use crate::problem::Format;
use ::candle::quantized::GgmlDType;

/// Each format that candle has, with candle's name.
pub(crate) const NAMES: [(Format, GgmlDType); 10] = [
    (Format::Q4_0, GgmlDType::Q4_0),
    (Format::Q4_1, GgmlDType::Q4_1),
    (Format::Q5_0, GgmlDType::Q5_0),
    (Format::Q5_1, GgmlDType::Q5_1),
    (Format::Q8_0, GgmlDType::Q8_0),
    (Format::Q2K, GgmlDType::Q2K),
    (Format::Q3K, GgmlDType::Q3K),
    (Format::Q4K, GgmlDType::Q4K),
    (Format::Q5K, GgmlDType::Q5K),
    (Format::Q6K, GgmlDType::Q6K),
];

/// The format of candle's blocks.
pub(super) fn format_of(theirs: GgmlDType) -> Option<Format> {
    NAMES.into_iter().find(|(_, name)| *name == theirs).map(|(format, _)| format)
}

/// candle's name of a block format, if candle has it.
pub fn ggml_type(format: Format) -> Option<GgmlDType> {
    NAMES.into_iter().find(|(ours, _)| *ours == format).map(|(_, theirs)| theirs)
}

/// The formats of candle's kernels for experts (`moe_gemm_gguf`), by candle's numbers.
#[cfg(any(feature = "cuda", test))]
pub const OF_EXPERTS: [Format; 6] = [Format::Q8_0, Format::Q4K, Format::Q2K, Format::Q3K, Format::Q5K, Format::Q6K];

#[cfg(test)]
mod tests {
    use super::NAMES;
    use crate::problem::Format;
    use ::candle::quantized::GgmlDType;

    #[test]
    fn block_formats_are_candles() {
        let dense = [(Format::F16, GgmlDType::F16), (Format::BF16, GgmlDType::BF16), (Format::F32, GgmlDType::F32)];
        for (format, theirs) in dense.into_iter().chain(NAMES) {
            let block = format.block();
            assert_eq!((block.elements, block.bytes), (theirs.block_size(), theirs.type_size()), "{format}");
        }
    }
}
