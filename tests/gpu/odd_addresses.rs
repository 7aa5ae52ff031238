//! Kernels that read a B whose lines start anywhere, against the reference kernel.

use crate::cases::{self, Data, Variant};
use crate::device::{by_types, Element, Gpu};
use crate::oracle;
use crate::Test;
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::problem::power_of_two_in;
use candle_tilegemm::{Config, Format, Layout, Problem};

pub fn tests() -> Vec<(String, Test)> {
    let kernels = crate::with_one_b().filter(|kernel| kernel.role == Role::Kernel && reads_odd_addresses(kernel));
    let test = |kernel: &'static KernelDesc| -> (String, Test) {
        let test = move |gpu: &Gpu| by_types!(kernel.types, every_address(gpu, kernel));
        (format!("odd_addresses_{}", kernel.name), Box::new(test))
    };
    kernels.map(test).collect()
}

/// Whether a kernel of one layout takes a B at an odd number of 16-bit elements where A is aligned.
fn reads_odd_addresses(kernel: &KernelDesc) -> bool {
    let is_half = matches!(kernel.types.a, Format::F16 | Format::BF16);
    if !is_half || !matches!(kernel.layout, Layout::NT | Layout::NN) {
        return false;
    }
    let problem = problem(kernel, [7, 77, 131], Variant::PLAIN, 1);
    kernel.supports(&problem.canonical().problem, &DeviceInfo::h100()).is_ok()
}

/// A product whose lines of A start at multiples of 16 bytes, while B starts at element `offset`.
fn problem(kernel: &KernelDesc, [m, n, k]: [usize; 3], variant: Variant, offset: usize) -> Problem {
    let size = kernel.types.a.bytes(1);
    let mut problem = cases::problem(m, n, k, kernel.layout, kernel.types, variant);
    problem.a.row_stride = k.next_multiple_of(16 / size) as i64;
    let matrix = problem.a.row_stride * m as i64;
    problem.a.batch_stride = problem.a.batch_stride.map(|stride| if stride == 0 { 0 } else { matrix });
    problem.b.pointer_align = power_of_two_in((offset * size) as u64);
    problem
}

/// Every address of B within 16 bytes, odd and even distances of its lines, lengths that end anywhere, batches, epilogues, every configuration.
fn every_address<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let dispatcher = Dispatcher::new(gpu.info.clone());
    let plain = Variant::PLAIN;
    let variants = [
        plain,
        Variant { batch: [1, 3], ..plain },
        Variant { batch: [1, 2], broadcast_b: true, ..plain },
        Variant::FULL,
    ];
    let mut compared = 0;
    for (index, [m, n, k]) in [
        [1, 1, 1],
        [7, 77, 131],
        [16, 515, 1027],
        [33, 200, 127],
        [64, 1001, 519],
        [128, 129, 2049],
        [5, 63, 4095],
        [100, 64, 129],
    ]
    .into_iter()
    .enumerate()
    {
        for variant in variants {
            for offset in 0..8 {
                let problem = problem(kernel, [m, n, k], variant, offset);
                if kernel.supports(&problem.canonical().problem, dispatcher.device()).is_err() {
                    continue;
                }
                for data in [Data::Normal, Data::NonFinite] {
                    let mut operands = cases::operands::<T, Out>(&problem, 0, data, (8 * index + offset) as u64);
                    operands.b.splice(0..0, vec![T::from_f64(f64::NAN); offset]);
                    operands.offsets[1] = offset;
                    let configurations = kernel.configurations(&problem.canonical().problem, dispatcher.device());
                    let every = if offset < 2 && data == Data::Normal { configurations.len() } else { 1 };
                    for config in configurations.iter().take(every) {
                        let name = if config == &Config::default() {
                            kernel.name.into()
                        } else {
                            format!("{kernel}@{config}")
                        };
                        oracle::compare(gpu, name.as_str(), &problem, &operands, data).map_err(|error| {
                            format!("{config}, {variant:?}, {problem}, B from {offset} on, {data:?}: {error}")
                        })?;
                        compared += 1;
                    }
                }
            }
        }
    }
    match compared {
        0..300 => Err(format!("only {compared} comparisons")),
        _ => Ok(()),
    }
}
