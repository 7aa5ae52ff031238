//! Configurations: a kernel computes the same product in each of its configurations. tests/tables/contract.rs holds that the kernel refuses all
//! other configurations.

use crate::cases::{self, Data, Variant};
use crate::device::{by_types, Element, Gpu};
use crate::shard::side_by_side;
use crate::{oracle, Test};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::{Config, Problem};
use std::collections::HashMap;

pub fn tests() -> Vec<(String, Test)> {
    let has_several = |kernel: &&KernelDesc| [Role::Kernel, Role::ByName].contains(&kernel.role);
    let test_of = |kernel: &'static KernelDesc| -> (String, Test) {
        let test: Test = Box::new(move |gpu| by_types!(kernel.types, every_configuration(gpu, kernel)));
        (format!("{kernel}_in_every_configuration"), test)
    };
    crate::with_one_b().filter(has_several).map(test_of).collect()
}

/// A dense product in the mode that the kernel is tried in.
fn dense(kernel: &KernelDesc, [m, n, k, batch]: [usize; 4], variant: Variant) -> Problem {
    let variant = Variant { batch: [1, batch], ..variant };
    let problem = cases::problem(m, n, k, kernel.layout, kernel.types, variant);
    problem.with(|p| p.f32_mode = cases::f32_mode(kernel))
}

/// Small products: few and many rows, one tile and several, short and long sums, several matrices.
fn problems(gpu: &Gpu, kernel: &KernelDesc) -> Vec<[usize; 4]> {
    let k = |k: usize| cases::sizes_near(gpu, kernel, [1, 264, k])[2];
    let ms = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 30, 40, 64, 77, 90, 128, 190, 257, 390];
    let mut problems: Vec<_> = ms.into_iter().flat_map(|m| [64, 264, 1032].map(|n| [m, n, k(520), 1])).collect();
    problems.extend(ms.into_iter().flat_map(|m| [[m, 136, k(64), 3], [m, 328, k(136), 1], [m, 264, k(2056), 1]]));
    problems.extend([1, 2, 4].into_iter().flat_map(|m| [[m, 1000, k(128), 1], [m, 264, k(32), 2]]));
    // K in parts, with tiles for a part of the multiprocessors.
    problems.extend([1, 4, 7, 16, 60, 128, 190, 257, 390].map(|m| [m, 520, k(8200), 1]));
    // More tiles than multiprocessors.
    problems.extend([1, 3, 4, 8, 16, 100, 300].map(|m| [m, 9000, k(264), 1]));
    problems
}

/// How many products each configuration is tried with.
const TRIES: usize = 2;

/// Every configuration against the reference kernel: some products, bare and with all that an epilogue can be.
fn every_configuration<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    if !kernel.arch.runs_on(gpu.info.capability) {
        return Err(format!("built for {}, which this device does not run", kernel.arch));
    }
    let mut tried: HashMap<Config, usize> = HashMap::new();
    let mut runs: Vec<([usize; 4], Vec<Config>)> = Vec::new();
    for sizes in problems(gpu, kernel) {
        let canonical = dense(kernel, sizes, Variant::PLAIN).canonical().problem;
        let mut configurations = kernel.configurations(&canonical, &gpu.info);
        configurations.retain(|config| {
            let tries = tried.entry(*config).or_default();
            *tries += 1;
            *tries <= TRIES
        });
        runs.push((sizes, configurations));
    }
    if tried.is_empty() {
        return Err("no product to try".into());
    }
    let runs: Vec<_> = runs.iter().enumerate().filter(|(_, (_, configurations))| !configurations.is_empty()).collect();
    let run = |&(seed, (sizes, configurations)): &(usize, &([usize; 4], Vec<Config>))| {
        for variant in [Variant::PLAIN, Variant { in_place: true, ..Variant::FULL }] {
            let problem = dense(kernel, *sizes, variant);
            // Not every kernel has every epilogue.
            let legal = kernel.configurations(&problem.canonical().problem, &gpu.info);
            let operands = cases::operands::<T, Out>(&problem, 0, Data::Normal, seed as u64);
            let expected = oracle::expected(gpu, &problem, &operands)?;
            for config in configurations.iter().filter(|config| legal.contains(config)) {
                let name = format!("{kernel}@{config}");
                oracle::compare_with(gpu, name.as_str(), &problem, &operands, Data::Normal, &expected)
                    .map_err(|e| format!("{config}: {problem}: {e}"))?;
            }
        }
        Ok(())
    };
    side_by_side(&runs, run).map(drop)
}
