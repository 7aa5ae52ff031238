//! Alignments that rows of the table have.

/// The size of an element of A.
pub(super) fn dtype_bytes(dtype: &str) -> u32 {
    match dtype {
        "f64" => 8,
        "f32" => 4,
        "f8e4m3" | "i8" => 1,
        _ => 2,
    }
}

/// The alignment of a row's kernel for this format of B: blocks of an odd number of bytes lie at any byte.
pub(super) fn align_of(row: u32, b: &str) -> u32 {
    if b == "mxfp4" {
        row.min(1)
    } else {
        row
    }
}
