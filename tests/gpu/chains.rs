//! Products of which each multiplies what the one before has written, over what that one has read: a kernel that starts while
//! the one before still runs must wait for it with both.

use crate::cases::{self, Data, Variant};
use crate::device::{Gpu, Operands};
use crate::Test;
use candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_tilegemm::kernel::{Family, KernelDesc, KERNELS};
use candle_tilegemm::launch::{self, Pointers};
use candle_tilegemm::{DType, Layout, Problem};
use half::bf16;

/// Rows, and the other two extents: shares of a wave, several waves, K in parts.
const SIZES: [(usize, usize); 8] =
    [(1, 2048), (4, 4096), (65, 4096), (129, 1024), (257, 4096), (777, 4096), (190, 8200), (301, 8200)];
const LINKS: usize = 8;

pub fn tests() -> Vec<(String, Test)> {
    let overlaps = |kernel: &&KernelDesc| {
        let family = matches!(kernel.family, Family::Gemv | Family::Sm90Skinny | Family::Sm90Wave | Family::Sm90Gemm);
        family && kernel.is_built() && kernel.dtype == DType::BF16 && kernel.layout == Layout::NT
    };
    let tests = KERNELS.iter().filter(overlaps).map(|kernel: &'static KernelDesc| -> (String, Test) {
        (format!("{kernel}_in_a_chain"), Box::new(move |gpu| in_a_chain(gpu, kernel)))
    });
    tests.collect()
}

/// The same bits as where the host waits for every product.
fn in_a_chain(gpu: &Gpu, kernel: &KernelDesc) -> Result<(), String> {
    let mut chains = 0;
    for (m, n) in SIZES {
        let problem = cases::problem(m, n, n, Layout::NT, DType::BF16, Variant::PLAIN);
        if kernel.supports(&problem, &gpu.info).is_err() {
            continue;
        }
        let mut operands = cases::operands::<bf16>(&problem, 0, Data::Normal, n as u64);
        // As large at the end as at the start.
        let scale = 1.0 / (n as f64).sqrt();
        operands.b.iter_mut().for_each(|w| *w = bf16::from_f64(w.to_f64() * scale));
        let chain = |waits| chain(gpu, kernel.name, &problem, &operands, waits);
        let expected = chain(true)?;
        if expected.iter().any(|x| !x.is_finite()) {
            return Err(format!("{problem}: not finite"));
        }
        for _ in 0..3 {
            let differ = chain(false)?.iter().zip(&expected).filter(|(x, y)| x.to_bits() != y.to_bits()).count();
            if differ > 0 {
                return Err(format!("{problem}: {differ} numbers differ from those of a chain that waits"));
            }
        }
        chains += 1;
    }
    if chains == 0 {
        return Err("no chain to try".into());
    }
    Ok(())
}

/// What the last of `LINKS` products wrote; `waits`: the host waits for each of them.
fn chain(
    gpu: &Gpu,
    kernel: &str,
    problem: &Problem,
    operands: &Operands<bf16>,
    waits: bool,
) -> Result<Vec<bf16>, String> {
    let text = |e: candle::Error| e.to_string();
    let stream = gpu.device.cuda_stream();
    let (plan, queue) = gpu.plan(kernel, problem)?;
    let upload = |values: &[bf16]| gpu.device.clone_htod(values).map_err(text);
    let activations = &operands.a[..problem.m * problem.k];
    let (first, second, weights) = (upload(activations)?, upload(activations)?, upload(&operands.b)?);
    let at = |slice: &CudaSlice<bf16>| slice.device_ptr(&stream).0;
    let (ends, b, none) = ([at(&first), at(&second)], at(&weights), std::ptr::null_mut());
    for link in 0..LINKS {
        let [a, d] = [ends[link % 2], ends[(link + 1) % 2]];
        let pointers = Pointers { a: a as _, b: b as _, c: none as _, bias: none as _, d: d as _ };
        // SAFETY: the buffers hold what the problem spans, as many rows of A as of D, and live until the copy below.
        unsafe { launch::launch(&plan, pointers, queue).map_err(|e| e.to_string())? };
        if waits {
            stream.synchronize().map_err(|e| e.to_string())?;
        }
    }
    gpu.device.clone_dtoh(&[first, second][LINKS % 2]).map_err(text)
}
