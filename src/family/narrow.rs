//! What families by WGMMA with narrow weights from registers share (`csrc/narrow`).

use crate::kernel::KernelDesc;
use crate::problem::Format;

/// Numbers of K that WGMMA gets at a time.
pub(super) const BATCH: usize = 64;
/// K of a kernel's tile, where a row of W has one factor.
pub(super) const OF_ROWS: u32 = 256;
/// The same, where factors multiply codes.
pub(super) const FOLDED: u32 = 32;
const ALL: u32 = u32::MAX;

/// What is wrong with factors in this format for `shared` numbers of K.
pub(super) fn fault(kernel: &KernelDesc, format: Format, shared: u32) -> Option<&'static str> {
    let unit = kernel.tile[2];
    let in_units = shared == ALL || shared.is_multiple_of(unit);
    let is_known = match (kernel.types.b, unit) {
        (_, OF_ROWS) => true,
        (Format::F4E2M1, FOLDED) => format == Format::F8E8M0,
        (Format::F4E2M1, _) => format == Format::F8E4M3,
        (_, FOLDED) => matches!(format, Format::F16 | Format::BF16),
        _ => matches!(format, Format::F32 | Format::F16 | Format::BF16),
    };
    match unit {
        OF_ROWS if shared != ALL => Some("are of parts of K; expected one for all of K"),
        128 if !in_units => Some("are of parts of K that are no multiples of 128"),
        FOLDED if !in_units => Some("are of parts of K that are no multiples of 32"),
        _ if !in_units => Some("are of parts of K that are no multiples of 16"),
        _ if is_known => None,
        FOLDED if kernel.types.b == Format::F4E2M1 => Some("are not in f8e8m0"),
        FOLDED => Some("are not in f16 or bf16"),
        16 => Some("are not in f8e4m3"),
        _ => Some("are not in f32, f16 or bf16"),
    }
}
