//! How much faster than cuBLAS's estimate an estimate of ours has to be.
//!
//! Estimates have errors. A margin keeps products with cuBLAS where an error would make them slower than stock, and depends on how well the
//! records of benches/record cover such products.

use crate::arch::DeviceInfo;
use crate::cost::pipeline::has_whole_lines;
use crate::problem::{F32Mode, Layout, Problem};

/// A range of products, with the share of cuBLAS's estimate below which an own kernel's estimate has to be.
struct Margin {
    share: f64,
    holds: fn(&Facts) -> bool,
}

/// The first entry that holds counts; the last one always does. "The seeds" are the random products that the estimates are fitted to, random-3 to
/// random-6 of benches/record/h100; "the suite" is benches/suite.toml, which is in the records of both cards.
const MARGINS: [Margin; 6] = [
    // The suite.
    Margin { share: 1.0, holds: |of| of.k == 1 && of.is_f32 },
    // The seeds have 920 such products. cuBLAS is more than 2 % faster than our fastest kernel in 2 of them, and 3 % at most: an estimate in its
    // favour is an error.
    Margin { share: 1.3, holds: |of| of.is_random && of.is_linear && of.is_aligned && of.never_slower },
    // The seeds. Estimates of two equally fast kernels differ by some 4 %: with this share most of these products stay with cuBLAS, and few are
    // slower than stock.
    Margin { share: 0.97, holds: |of| of.is_random && of.m <= 16_384 },
    // The suite: linear layers, on every card and in f64, too.
    Margin { share: 0.97, holds: |of| of.is_linear && of.is_aligned && of.m <= 16_384 },
    // The suite: attention.
    Margin { share: 0.97, holds: |of| of.is_attention && of.is_aligned },
    // No record shows how good the estimates are.
    Margin { share: 0.9, holds: |_| true },
];

/// Elements of B whose three bf16 parts fit into the default workspace.
const ONE_PIECE: usize = (crate::workspace::DEFAULT_BYTES / 6) as usize;

/// What the ranges are made of.
struct Facts {
    m: usize,
    k: usize,
    is_f32: bool,
    /// Lines of the operands start at multiples of 16 bytes.
    is_aligned: bool,
    /// The range of the random products, on Hopper cards with 132 multiprocessors: 16 bits and f32, all layouts, any alignment, several matrices,
    /// or one with more than 4096 elements of D and K up to 53,248.
    is_random: bool,
    /// One matrix. In 16 bits N and K from 128 to 160,000; in f32 and f64 from 192 on, as long as the parts of B fit into the workspace.
    is_linear: bool,
    /// Several matrices with N and K from 64 to 4096.
    is_attention: bool,
    /// nt with up to 192 rows of 16 bits in lines of whole 64 bytes, or in accurate f32. The seeds have few other lines, for which TMA takes longer.
    never_slower: bool,
}

impl Facts {
    fn of(problem: &Problem, device: &DeviceInfo) -> Self {
        let Problem { m, n, k, .. } = *problem;
        let one = problem.batch_count() == 1;
        let is_half = problem.a.format.bytes(1) == 2;
        let is_f32 = problem.is_f32();
        let in_linear = match is_half {
            true => n.min(k) >= 128 && n.max(k) <= 160_000,
            false => n.min(k) >= 192 && n.saturating_mul(k) <= ONE_PIECE,
        };
        let is_accurate = is_f32 && problem.f32_mode == F32Mode::Accurate;
        Self {
            m,
            k,
            is_f32,
            is_aligned: problem.alignments().iter().all(|(_, align)| *align >= 16),
            is_random: device.capability == 90
                && device.sm_count == 132
                && (is_half || is_f32)
                && (!one || problem.outputs() > 4096.0 && k <= 53_248),
            is_linear: one && in_linear,
            is_attention: !one && n.min(k) >= 64 && n.max(k) <= 4096,
            never_slower: problem.layout() == Layout::NT
                && (is_half && m <= 192 && has_whole_lines(problem) || is_accurate),
        }
    }
}

/// The share of cuBLAS's estimate below which an own kernel's estimate has to be.
pub(super) fn share(problem: &Problem, device: &DeviceInfo) -> f64 {
    let facts = Facts::of(problem, device);
    MARGINS.iter().find(|margin| (margin.holds)(&facts)).expect("the last one holds").share
}
