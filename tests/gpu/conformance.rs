//! candle's own tests, from the published sources of candle-core and candle-nn (CANDLE_TESTS, which the Makefile sets): on the GPU by stock, and with
//! every product on our kernels.

use crate::device::Gpu;
use crate::Test;
use candle::Device;
use candle_tilegemm::interpose::{self, Mode};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// A test of candle's, by its name.
type CandleTest = (&'static str, fn(&Device) -> Result<(), String>);

include!(concat!(env!("OUT_DIR"), "/candle_tests.rs"));

/// Files whose tests multiply matrices.
const MULTIPLY: [&str; 3] = ["matmul", "grad", "conv"];

/// A test for each file.
pub fn tests() -> Vec<(String, Test)> {
    let test = |&(file, tests): &(&'static str, &'static [CandleTest])| -> (String, Test) {
        (format!("candle_{file}_tests_on_our_kernels"), Box::new(move |gpu: &Gpu| all(file, tests, gpu)))
    };
    FILES.iter().map(test).collect()
}

/// Every test of a file: what stock passes has to pass with cuBLAS out of reach.
fn all(file: &str, tests: &[CandleTest], gpu: &Gpu) -> Result<(), String> {
    let device = Device::Cuda(gpu.device.clone());
    let run = |mode: Mode| -> Vec<Result<(), String>> {
        interpose::set_mode(mode);
        let outcomes = tests.iter().map(|(_, test)| outcome(test, &device)).collect();
        interpose::set_mode(Mode::On);
        outcomes
    };
    let stock = run(Mode::Off);
    let before = interpose::stats();
    let ours = run(Mode::Force);
    let counted = interpose::stats().since(&before);

    let mut faults = Vec::new();
    for ((name, _), (stock, ours)) in tests.iter().zip(stock.iter().zip(&ours)) {
        match (stock, ours) {
            (Ok(()), Err(error)) => faults.push(format!("{name}: {error}")),
            (Err(error), _) => println!("{name} fails in stock candle: {error}"),
            _ => {}
        }
    }
    let passed = stock.iter().filter(|outcome| outcome.is_ok()).count();
    println!("{file}: stock passes {passed} of {}; {} products on our kernels", tests.len(), counted.ours);
    if counted.refused > 0 || counted.forwarded.iter().any(|(_, count)| *count > 0) {
        faults.push(format!("a product did not run on our kernels: {counted:?}"));
    }
    if MULTIPLY.contains(&file) && counted.ours == 0 {
        faults.push("no product reached our kernels".into());
    }
    if 2 * passed < tests.len() {
        faults.push(format!("stock passes {passed} of {}: these tests prove little", tests.len()));
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(faults.join("\n")),
    }
}

/// The outcome of a test of candle's, which panics where a comparison fails.
fn outcome(test: &fn(&Device) -> Result<(), String>, device: &Device) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| test(device))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or("a panic".into()))
    })
}
