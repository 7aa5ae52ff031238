//! A few small products of each family, of every type: the products that compute-sanitizer looks at (`run.sh sanitize` of the bundle). A test for each
//! family of this build says by its name what was covered.

use crate::cases::{self, Data, Variant};
use crate::device::Gpu;
use crate::{built, fp8, gated, gguf, groups, narrow, oracle, plain, Test};
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::problem::BiasAxis;
use candle_tilegemm::{Activation, Format, Layout};
use half::bf16;
use std::collections::BTreeMap;

/// Kernels of a family, and small cases of each.
const KERNELS: usize = 12;
const CASES: usize = 4;

pub fn tests() -> Vec<(String, Test)> {
    let mut families: BTreeMap<&str, Vec<&'static KernelDesc>> = BTreeMap::new();
    // cuBLAS is not ours to look at.
    for kernel in built().filter(|kernel| kernel.role != Role::Vendor) {
        families.entry(kernel.family).or_default().push(kernel);
    }
    let test = |(family, kernels): (&str, Vec<&'static KernelDesc>)| -> (String, Test) {
        let test = move |gpu: &Gpu| some(&kernels).into_iter().try_for_each(|kernel| few(gpu, kernel));
        (format!("family_{family}"), Box::new(test))
    };
    let mut tests: Vec<(String, Test)> = families.into_iter().map(test).collect();
    tests.push(("family_elementwise".into(), Box::new(on_copies)));
    tests
}

/// Kernels of a family: of each type the first, and others, so that layouts and tiles differ.
fn some(kernels: &[&'static KernelDesc]) -> Vec<&'static KernelDesc> {
    let mut chosen: Vec<&'static KernelDesc> = Vec::new();
    let is_new = |chosen: &[&'static KernelDesc], kernel: &&'static KernelDesc| {
        !chosen.iter().any(|other| (other.types, other.math) == (kernel.types, kernel.math))
    };
    for kernel in kernels {
        if is_new(&chosen, kernel) {
            chosen.push(kernel);
        }
    }
    let step = (chosen.len() / KERNELS).max(1);
    let mut chosen: Vec<_> = chosen.into_iter().step_by(step).take(KERNELS).collect();
    let more = kernels.iter().rev().step_by(kernels.len().div_ceil(KERNELS)).take(KERNELS - chosen.len());
    chosen.extend(more.filter(|kernel| !chosen.iter().any(|other| other.name == kernel.name)).collect::<Vec<_>>());
    chosen
}

fn few(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    let run = match kernel {
        _ if kernel.needs_groups() => groups::few(gpu, kernel),
        _ if kernel.needs_gates() => gated::few(gpu, kernel),
        _ if kernel.types.has_narrow_b() => narrow::few(gpu, kernel),
        _ if fp8::is_of_bytes(kernel) => fp8::few(gpu, kernel),
        // Only groups of rows have results of another format beside blocks.
        _ if !plain(&kernel) && kernel.takes_groups() && kernel.types.d != kernel.types.a => groups::few(gpu, kernel),
        _ if !plain(&kernel) => gguf::few(gpu, kernel),
        _ if kernel.role == Role::LastResort => oracle::reference_few(gpu, kernel),
        _ => cases::kernel_against_reference(gpu, kernel, Some(CASES)),
    };
    run.map_err(|error| format!("{kernel}: {error}"))
}

/// Copies of operands in both directions, and the rest of an epilogue after a product.
fn on_copies(gpu: &Gpu) -> Result<(), String> {
    let full = Variant { bias: Some(BiasAxis::N), activation: Activation::GeluErf, beta: 0.5, ..Variant::PLAIN };
    for (layout, variant) in
        [(Layout::NT, full), (Layout::TN, Variant { offset: 1, ..full }), (Layout::NN, Variant::PLAIN)]
    {
        let problem = cases::problem(33, 71, 77, layout, Format::BF16, variant);
        let operands = cases::operands::<bf16, bf16>(&problem, variant.offset, Data::Normal, 17);
        oracle::compare(gpu, Policy::own().with_copies(), &problem, &operands, Data::Normal)
            .map_err(|error| format!("{problem}: {error}"))?;
    }
    Ok(())
}
