//! Groups with a bad row of A, and groups whose rows have one activation far beyond the others (`../bad_rows.rs` has dense kernels).

use super::*;
use crate::bad_rows::{compare, magnitudes, spoil, Bad};

/// Few rows and many, groups of one row and empty ones.
const COUNTS: [&[usize]; 3] = [&[1, 0, 7, 2], &[64, 0, 17, 40, 1], &[300, 1, 9]];

/// Rows of D that read no bad row of A keep their bits, by a kernel in every configuration.
pub fn beside_a_bad_row<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(14);
    // Eight pairs for each row of A, a pair each with rows of no group beside, and a gate.
    let kinds = [KINDS[0], KINDS[5], KINDS[6]].into_iter().filter(|kind| kind.gate.is_none() || kernel.takes_gates());
    for (turn, kind) in kinds.enumerate() {
        for counts in COUNTS {
            let routing = routing(counts, Kind { strays: kind.strays.min(5), ..kind }, &mut rng);
            let problem = taken(gpu, kernel, &routing, kind, turn, [72, 520, 0]);
            let mut operands = operands::<T, Out>(&problem, Codes::Usual, &mut rng)?;
            let stride = problem.a.row_stride as usize;
            let pairs_per_row = match routing.groups.rows {
                Rows::Listed { pairs_per_row } => pairs_per_row,
                _ => 1,
            };
            // A row of A that a group reads.
            let in_groups: Vec<usize> =
                routing.places.iter().flatten().filter(|(group, _)| group.is_some()).map(|(_, pair)| *pair).collect();
            let row = in_groups[in_groups.len() / 2] / pairs_per_row;
            let mut spoilt = vec![false; operands.d.len().div_ceil(problem.d.row_stride as usize)];
            in_groups.iter().filter(|pair| *pair / pairs_per_row == row).for_each(|pair| spoilt[*pair] = true);
            let kept = operands.a.clone();
            for config in kernel.configurations(&problem.canonical().problem, &gpu.info) {
                let name = if config == Default::default() { kernel.name.into() } else { format!("{kernel}@{config}") };
                let (plan, queue) = gpu.plan(name.as_str(), &problem)?;
                let run = |operands: &super::Operands<T, Out>| {
                    let uploaded = Uploaded::new(gpu, &routing, operands)?;
                    uploaded.launch(&plan, queue)?;
                    uploaded.result()
                };
                let good = run(&operands)?;
                for &bad in Bad::of(kernel.types.a) {
                    spoil(&mut operands.a[row * stride..][..problem.k], bad);
                    let got = run(&operands)?;
                    operands.a.copy_from_slice(&kept);
                    compare(&good, &got, problem.d.row_stride as usize, |i| spoilt[i], bad)
                        .map_err(|e| format!("{name}, {problem}, {kind:?}, row {row} of A: {e}"))?;
                }
            }
        }
    }
    Ok(())
}

/// One activation of each row 10^2 to 10^7 times the others, by every kernel of a format for groups that has A in f32: the bound is that of one B (docs/gguf.md).
pub fn spikes(gpu: &Gpu, format: Format) -> Result<(), String> {
    let (n, k) = (48, 1024);
    let of_format = |kernel: &&KernelDesc| kernel.needs_groups() && kernel.types.b == format;
    for kernel in built().filter(of_format).filter(|kernel| [kernel.types.a, kernel.types.d] == [Format::F32; 2]) {
        let cases: [(&[usize], f32); 6] = [
            (&[1, 0, 1], 1e2),
            (&[1, 0, 2, 1], 3e6),
            (&[5, 0, 16, 1], 1e3),
            (&[17, 40, 3], 1e5),
            (&[64, 100, 0, 7], 1e7),
            (&[200, 1], 1e6),
        ];
        for (counts, spike) in cases {
            let mut rng = StdRng::seed_from_u64(15);
            let routing = routing(counts, KINDS[2], &mut rng);
            let problem = problem(&routing, kernel.types, KINDS[2], 0, [n, k, 0]);
            let mut operands = operands::<f32, f32>(&problem, Codes::Usual, &mut rng)?;
            for (i, row) in operands.a.chunks_exact_mut(k).enumerate() {
                row[(i * 389 + 7) % k] *= spike;
            }
            let sizes = magnitudes(format, &operands.b.bytes, counts.len() * n)?;
            for config in kernel.configurations(&problem.canonical().problem, &gpu.info) {
                let name = if config == Default::default() { kernel.name.into() } else { format!("{kernel}@{config}") };
                let (plan, queue) = gpu.plan(name.as_str(), &problem)?;
                let uploaded = Uploaded::new(gpu, &routing, &operands)?;
                uploaded.launch(&plan, queue)?;
                let got = uploaded.result()?;
                for &(group, row) in routing.places.iter().flatten() {
                    let group = group.ok_or("a row of no group")?;
                    for column in 0..n {
                        let (x, of_w) = (&operands.a[row * k..][..k], (group * n + column) * k);
                        let (mut sum, mut size) = (0.0, 0.0);
                        for (p, x) in x.iter().enumerate() {
                            sum += f64::from(*x) * operands.b.numbers[of_w + p];
                            size += f64::from(x.abs()) * sizes[of_w + p];
                        }
                        let (got, most) = (got[row * n + column], size / 128.0);
                        let error = (f64::from(got) - sum).abs();
                        if error.is_nan() || error > most {
                            return Err(format!(
                                "{name}, {problem}, spikes of {spike:e}, D[{row},{column}] of group {group}: {got}, expected {sum} within {most}"
                            ));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}
