//! What builds have of the table: kernels by their features, and the profile for development.

use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::KernelDesc;
use candle_tilegemm::Format;
use candle_tilegemm_build::table;
use std::collections::HashSet;
use std::path::Path;

/// The dispatcher asks for these features by the problem.
#[test]
fn kernels_for_quantised_weights_and_groups_of_rows_have_their_features() {
    for kernel in KERNELS {
        let needs = [
            ("gguf", kernel.types.b.is_gguf_block()),
            ("narrow", kernel.types.has_narrow_b() || is_of_bytes(kernel)),
            ("experts", kernel.needs_groups()),
        ];
        for (feature, is_needed) in needs {
            assert_eq!(kernel.features.contains(&feature), is_needed, "{}: {feature}", kernel.name);
        }
    }
}

/// Whether a kernel multiplies whole numbers, or fp8 as Hopper does or with a result in f16. Other cards have fp8 without the feature.
fn is_of_bytes(kernel: &KernelDesc) -> bool {
    let is_fp8 = kernel.types.a == Format::F8E4M3;
    kernel.types.a == Format::I8 || is_fp8 && (kernel.family.starts_with("sm90_") || kernel.types.d == Format::F16)
}

#[test]
fn the_fast_profile_has_something_for_every_problem() {
    let rows = table::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/csrc"))).unwrap();
    let families = |arch: &str, fast: bool| -> HashSet<(String, String)> {
        let is_chosen = |row: &&table::Kernel| row.role != table::Role::ByName && (row.fast || !fast);
        let rows = rows.iter().filter(|row| row.arch.trim_end_matches(['a', 'f']) == arch).filter(is_chosen);
        rows.map(|row| (row.family.clone(), row.dtype.clone())).collect()
    };
    for arch in ["sm80", "sm89", "sm90", "sm100", "sm120"] {
        assert_eq!(families(arch, true), families(arch, false), "{arch}");
    }
    let of_hopper = || rows.iter().filter(|row| row.capability() == 90 && row.role != table::Role::ByName);
    let on_hopper = |fast: bool, half: bool| {
        let rows = of_hopper().filter(|row| row.out == row.dtype && row.b == row.dtype && (row.fast || !fast));
        rows.filter(|row| ["bf16", "f16"].contains(&row.dtype.as_str()) == half).count()
    };
    let (half, single) = (on_hopper(false, true), on_hopper(false, false));
    assert!(half <= 82 && single <= 58, "{half} kernels of bf16 and f16, {single} of f32 and f64");
    assert!(on_hopper(true, true) + on_hopper(true, false) <= 58);
    let is_narrow = |row: &&table::Kernel| ["f8e4m3", "u4", "f4e2m1", "i8", "u8"].contains(&row.b.as_str());
    let (narrow, blocks): (Vec<_>, Vec<_>) = of_hopper().filter(|row| row.b != row.dtype).partition(is_narrow);
    assert!(narrow.len() <= 25 + 15 + 60 + 50 + 61, "{} kernels of narrow weights", narrow.len());
    let blocks = blocks.len();
    assert!(
        blocks <= 386 + 87,
        "{blocks} kernels of blocks: ten rows of ten formats and three types, four for groups of rows, and three formats in fewer tiles"
    );
    // fp8 and int8 have no results of their own.
    let is_of_bytes = |row: &&table::Kernel| ["f8e4m3", "i8"].contains(&row.dtype.as_str());
    let (bytes, wider): (Vec<_>, Vec<_>) =
        of_hopper().filter(|row| row.out != row.dtype && row.b == row.dtype).partition(is_of_bytes);
    assert!(bytes.len() <= 24 && wider.len() <= 16, "{} of 8 bits, {} with a wider result", bytes.len(), wider.len());
}
