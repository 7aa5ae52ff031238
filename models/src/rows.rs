//! How many rows a step has.

use candle::Device;

/// The most rows of a step that a graph is captured for.
pub(crate) const MOST_CAPTURED: usize = 64;

/// The rows of a step of so many sequences; those behind the sequences are padding.
///
/// On a GPU few numbers of rows share their graphs: 1 to 8, 16, 32 and 64. More sequences, and those on the CPU, have no padding.
pub(crate) fn padded(sequences: usize, device: &Device) -> usize {
    match sequences {
        9..=MOST_CAPTURED if device.is_cuda() => sequences.next_power_of_two(),
        _ => sequences,
    }
}
