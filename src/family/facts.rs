//! The facts of launches, as trees ask for them.

use super::trees::{Fact, Facts};
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::kernel::Case;
use crate::problem::{F32Mode, Problem};

/// Sets facts.
fn set<const N: usize>(facts: &mut Facts, values: [(Fact, f32); N]) {
    for (fact, value) in values {
        facts[fact as usize] = value;
    }
}

/// Tiles that D has.
fn tiles(problem: &Problem, rows: usize, columns: usize) -> f32 {
    (problem.m.div_ceil(rows) * problem.n.div_ceil(columns) * problem.batch_count()) as f32
}

/// Waves, rounded up, over waves.
fn waste(waves: f32) -> f32 {
    waves.ceil() / waves
}

/// The facts of a problem on a device; the facts of the launch are 0.
pub fn of_problem(problem: &Problem, device: &DeviceInfo) -> Facts {
    let (m, n, k) = (problem.m, problem.n, problem.k);
    let [log_m, log_n, log_k, log_batch] = [m, n, k, problem.batch_count()].map(|size| (size as f32).log2());
    let outputs = log_m + log_n + log_batch;
    let elements = (m as f32 * k as f32 + k as f32 * n as f32 + m as f32 * n as f32).log2() + log_batch;
    let waste_of = |rows, columns| waste(tiles(problem, rows, columns) / device.sm_count as f32);
    let divisor = |size: usize| size.trailing_zeros().min(9) as f32;
    let align = problem.alignments().iter().map(|(_, align)| *align).min().unwrap_or(16).min(16);
    let flag = |flag: bool| f32::from(u8::from(flag));
    let mut facts = [0.0; Fact::ALL.len()];
    let of_shape = [
        (Fact::M, log_m),
        (Fact::N, log_n),
        (Fact::K, log_k),
        (Fact::Batch, log_batch),
        (Fact::Outputs, outputs),
        (Fact::Flops, outputs + log_k),
        (Fact::Intensity, outputs + log_k - elements),
        (Fact::Waste128x128, waste_of(128, 128)),
        (Fact::Waste256x128, waste_of(256, 128)),
        (Fact::Waste128x256, waste_of(128, 256)),
        (Fact::MMod64, (m % 64) as f32),
        (Fact::DivisorN, divisor(n)),
        (Fact::DivisorK, divisor(k)),
        (Fact::Align, align.trailing_zeros() as f32),
        (Fact::TransposedA, flag(problem.a.col_stride != 1)),
        (Fact::TransposedB, flag(problem.b.row_stride != 1)),
        (Fact::Tf32, flag(problem.is_f32() && problem.f32_mode == F32Mode::Tf32)),
        (Fact::Bits, problem.a.format.bits() as f32),
    ];
    set(&mut facts, of_shape);
    facts
}

/// The facts of a kernel's launch in this configuration, which the family's model expects to take `us` microseconds, from the facts
/// of the problem.
pub fn of_launch(mut facts: Facts, case: &Case, config: &Config, us: f64) -> Facts {
    let Case { kernel, problem, device, .. } = *case;
    let or = |configured: u32, row: u32| if configured == 0 { row } else { configured };
    let [tile_m, tile_n] = [0, 1].map(|of| or(config.tile[of], kernel.tile[of]));
    let [cluster_m, cluster_n] = [0, 1].map(|of| or(config.cluster[of], kernel.cluster[of]).max(1));
    let split = config.split.max(1) as f32;
    // The vendor's tiles are unknown.
    let [rows, columns] = [tile_m, tile_n].map(|side| if side == 0 { 128 } else { side as usize });
    let blocks = tiles(problem, rows, columns) * split;
    let waves = blocks / device.sm_count as f32;
    let pad = |size: usize, tile: usize| (size.div_ceil(tile) * tile) as f32 / size as f32;
    let of_launch = [
        (Fact::Us, (us as f32).log2()),
        (Fact::TileM, tile_m as f32),
        (Fact::TileN, tile_n as f32),
        (Fact::TileK, kernel.tile[2] as f32),
        (Fact::ClusterM, cluster_m as f32),
        (Fact::ClusterN, cluster_n as f32),
        (Fact::Split, split),
        (Fact::Stages, or(config.stages, kernel.stages) as f32),
        (Fact::Warps, or(config.warps, kernel.warps) as f32),
        (Fact::SwapAb, f32::from(u8::from(config.swap_ab))),
        (Fact::Variant, kernel.room.variant as f32),
        (Fact::Blocks, blocks.log2()),
        (Fact::Waves, waves.min(24.0)),
        (Fact::LastWave, waves.fract()),
        (Fact::Waste, waste(waves)),
        (Fact::PadM, pad(problem.m, rows)),
        (Fact::PadN, pad(problem.n, columns)),
    ];
    set(&mut facts, of_launch);
    facts
}
