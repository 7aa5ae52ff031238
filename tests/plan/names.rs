//! What is named and read back: configurations, formats, types; and how many bytes blocks take.

use candle_tilegemm::arch::Arch;
use candle_tilegemm::kernel::Math;
use candle_tilegemm::problem::Types;
use candle_tilegemm::{Config, F32Mode, Format};

#[test]
fn a_configuration_is_read_as_it_is_written() {
    let all: Config = "128x64_c2x1_k2_s5_w8_swap".parse().unwrap();
    assert_eq!(
        (all.tile, all.cluster, all.split, all.stages, all.warps, all.swap_ab),
        ([128, 64], [2, 1], 2, 5, 8, true)
    );
    for text in ["128x64_c2x1_k2_s5_w8_swap", "1x4_k33", ""] {
        assert_eq!(text.parse::<Config>().unwrap().to_string(), text);
    }
    assert_eq!("".parse(), Ok(Config::default()));
    for bad in ["128", "128x", "x64", "k0", "k2_64x64", "64x64_k2_k2", "fast", "64x64_", "é"] {
        assert!(bad.parse::<Config>().unwrap_err().contains("is no configuration"), "{bad}");
    }
}

#[test]
fn a_device_without_kernels_is_told_the_feature() {
    let says = |device, built: &[u16]| Arch::remedy(device, built);
    assert_eq!(
        says(86, &[90]),
        "this build has kernels for sm90, and the device is an sm86; build with the feature sm80"
    );
    for (device, feature) in [(80, 80), (87, 80), (89, 89), (90, 90), (100, 100), (103, 100), (120, 120), (121, 120)] {
        assert!(says(device, &[]).ends_with(&format!("build with the feature sm{feature}")), "{device}");
    }
    assert!(
        says(110, &[80, 90]).starts_with("this build has kernels for sm80, sm90, and the device is an sm110, which")
    );
    assert!(says(75, &[]).contains("no feature builds for"));
}

#[test]
fn bytes_and_offsets_count_whole_blocks() {
    assert_eq!([0, 1, 32, 33].map(|elements| Format::U4.bytes(elements)), [0, 16, 16, 32]);
    assert_eq!([1, 32, 33].map(|elements| Format::Q4_0.bytes(elements)), [18, 18, 36]);
    assert_eq!((Format::Q4_0.bits(), Format::BF16.bits(), Format::Q6K.bits()), (4.5, 16.0, 6.5625));
    assert_eq!([Format::MXFP4, Format::IQ4_NL, Format::IQ4_XS].map(Format::bits), [4.25, 4.5, 4.25]);
    assert_eq!((Format::Q4K.offset(-512), Format::F64.offset(3), Format::F4E2M1.offset(96)), (-288, 24, 48));
}

#[test]
fn names_are_read_back_and_types_name_what_differs() {
    for format in [Format::F16, Format::BF16, Format::F32, Format::F64] {
        assert_eq!(format.name().parse(), Ok(format));
    }
    for format in Format::ALL {
        assert_eq!(serde_json::to_string(&format).unwrap(), format!("\"{format}\""));
    }
    let wide = Types::new(Format::BF16, Format::F32);
    let texts = [Types::of(Format::F16), wide, wide.with_b(Format::Q4K), wide.with_b(Format::U4)];
    assert_eq!(texts.map(|t| t.to_string()), ["f16", "bf16 -> f32", "bf16 x q4k -> f32", "bf16 x u4 -> f32"]);
    assert_eq!(Types::of(Format::F64).acc, Format::F64);
}

#[test]
fn modes_admit_what_is_as_exact_as_they_ask() {
    use F32Mode::{Accurate, Strict};
    let admitted = |mode: F32Mode| [Math::Native, Math::Bf16x6, Math::Tf32].map(|math| mode.admits(math));
    assert_eq!(admitted(Strict), [true, false, false]);
    assert_eq!(admitted(Accurate), [true, true, false]);
    assert_eq!(admitted(F32Mode::Tf32), [true, true, true]);
}
