//! Products of which each multiplies, or adds, what the one before has written, over what that one has read: a kernel that
//! starts while the one before still runs must wait for it with both, and with the workspace.

use crate::cases::{self, Variant};
use crate::device::{Element, Gpu};
use crate::Test;
use candle::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_tilegemm::dispatch::Planned;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::launch::{self, Pointers, Queue};
use candle_tilegemm::{Format, Problem};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, OnceLock};

/// What a product does with what the one before has written.
#[derive(Debug, Clone, Copy)]
enum Through {
    A,
    B,
    C,
}

/// The extent that all products have in common, and those that follow each other: K of a product is N (in a chain through B, M)
/// of the one before.
struct Sizes(usize, &'static [usize]);

/// Shares of a wave, several waves, K in parts, short products between long ones; K = 1. A kernel skips the chains that it does not support.
const SIZES: &[Sizes] = &[
    Sizes(1, &[1024, 4096]),
    Sizes(4, &[520, 2048, 1024]),
    Sizes(7, &[1024, 4096]),
    Sizes(16, &[1024, 4096]),
    Sizes(65, &[2048, 1024]),
    Sizes(129, &[512, 4096, 1000]),
    Sizes(190, &[512, 8200]),
    Sizes(301, &[512, 8200]),
    Sizes(777, &[1024, 2048, 136]),
    Sizes(2504, &[512, 2048]),
    Sizes(4096, &[1]),
];

/// Whole cycles of two sizes, and of three.
const LINKS: usize = 24;
/// N of a chain through C.
const COLUMNS: usize = 512;
/// The most elements that an operand has.
const LARGEST: usize = 5 << 20;

pub fn tests() -> Vec<(String, Test)> {
    // f16 differs from bf16 in no more than its instructions' names.
    // The D of a link is the A of the next one.
    let takes_part = |kernel: &&KernelDesc| {
        let links = kernel.types.a == kernel.types.d && kernel.types.a != Format::F16;
        links && kernel.role == Role::Kernel
    };
    let tests = crate::with_one_b().filter(takes_part).map(|kernel: &'static KernelDesc| -> (String, Test) {
        let test: Test = Box::new(move |gpu| match kernel.types.a {
            Format::F16 => in_chains::<f16>(gpu, kernel),
            Format::BF16 => in_chains::<bf16>(gpu, kernel),
            Format::F32 => in_chains::<f32>(gpu, kernel),
            Format::F64 => in_chains::<f64>(gpu, kernel),
            other => panic!("no test for {other}"),
        });
        (format!("{kernel}_in_a_chain"), test)
    });
    tests.collect()
}

/// Random numbers of such a size that sums of some 1000 products with them are as large as what they multiply; none is near 0.
fn numbers() -> &'static [f32] {
    static NUMBERS: OnceLock<Vec<f32>> = OnceLock::new();
    NUMBERS.get_or_init(|| {
        let mut rng = StdRng::seed_from_u64(1);
        let mut draw = || (0.5 + 0.9 * rng.random::<f32>()) / if rng.random() { 32.0 } else { -32.0 };
        (0..LARGEST).map(|_| draw()).collect()
    })
}

/// The same bits as where the host waits for every product.
fn in_chains<T: Element>(gpu: &Gpu, kernel: &KernelDesc) -> Result<(), String> {
    if !kernel.arch.runs_on(gpu.info.capability) {
        return Err(format!("built for {}, which this device does not run", kernel.arch));
    }
    let values: Vec<T> = numbers().iter().map(|&x| T::from_f64(x.into())).collect();
    let weights = gpu.device.clone_htod(&values).map_err(|e| e.to_string())?;
    let mut buffers = [(); 2].map(|()| weights.clone());
    let mut chains = 0;
    for Sizes(extent, widths) in SIZES {
        for through in [Through::A, Through::B, Through::C] {
            let Some(chain) = Chain::new(gpu, kernel, through, *extent, widths)? else { continue };
            let name = format!("{} and others, through {through:?}", chain.links[0].0);
            let mut run = |waits| chain.run(gpu, &weights, &mut buffers, waits).map_err(|e| format!("{name}: {e}"));
            let bits = |values: &[T]| -> Vec<u64> { values.iter().map(|x| x.to_f64().to_bits()).collect() };
            let expected = run(true)?;
            if expected.iter().any(|x| !x.to_f64().is_finite()) || expected.iter().all(|x| x.to_f64() == 0.0) {
                return Err(format!("{name}: not finite, or nothing"));
            }
            for _ in 0..2 {
                let differ = bits(&run(false)?).iter().zip(bits(&expected)).filter(|(x, y)| *x != y).count();
                if differ > 0 {
                    return Err(format!("{name}: {differ} numbers differ from those of a chain that waits"));
                }
            }
            chains += 1;
        }
    }
    if chains == 0 {
        return Err("no chain to try".into());
    }
    Ok(())
}

/// Products that go round, and what the first operand of each is.
struct Chain {
    through: Through,
    links: Vec<(Problem, Arc<Planned>, Queue)>,
}

impl Chain {
    /// None: the kernel does not take one of the products.
    fn new(
        gpu: &Gpu,
        kernel: &KernelDesc,
        through: Through,
        extent: usize,
        widths: &[usize],
    ) -> Result<Option<Self>, String> {
        let mut links = Vec::new();
        for (i, &k) in widths.iter().enumerate() {
            let next = widths[(i + 1) % widths.len()];
            let (m, n) = match through {
                Through::A => (extent, next),
                Through::B => (next, extent),
                Through::C => (extent, COLUMNS),
            };
            // A single product keeps its size, too.
            let alpha = if k == 1 { 32.0 } else { 1.0 };
            let beta = if matches!(through, Through::C) { 1.0 } else { 0.0 };
            let variant = Variant { alpha, beta, ..Variant::PLAIN };
            let f32_mode = cases::f32_mode(kernel);
            let problem = cases::problem(m, n, k, kernel.layout, kernel.types, variant).with(|p| p.f32_mode = f32_mode);
            if kernel.supports(&problem.canonical().problem, &gpu.info).is_err() {
                return Ok(None);
            }
            let (plan, queue) = gpu.plan(kernel.name, &problem)?;
            links.push((problem, plan, queue));
        }
        Ok(Some(Self { through, links }))
    }

    /// What the last of `LINKS` products wrote; `waits`: the host waits for each of them. Elements of a product that are columns
    /// of the next one's A, or of its B, are taken as they lie.
    fn run<T: Element>(
        &self,
        gpu: &Gpu,
        weights: &CudaSlice<T>,
        buffers: &mut [CudaSlice<T>; 2],
        waits: bool,
    ) -> Result<Vec<T>, String> {
        let stream = gpu.device.cuda_stream();
        // Several times, so that the products queue up behind: they are shorter than the host takes to launch them.
        for _ in 0..6 {
            for buffer in buffers.iter_mut() {
                stream.memcpy_dtod(weights, buffer).map_err(|e| e.to_string())?;
            }
        }
        let at = |slice: &CudaSlice<T>| slice.device_ptr(&stream).0;
        let (ends, fixed, none) = (buffers.each_ref().map(at), at(weights) as *const _, std::ptr::null());
        for link in 0..LINKS {
            let (_, plan, queue) = &self.links[link % self.links.len()];
            let (before, d) = (ends[link % 2] as *const _, ends[(link + 1) % 2] as *mut _);
            let (a, b, c) = match self.through {
                Through::A => (before, fixed, none),
                Through::B => (fixed, before, none),
                Through::C => (fixed, fixed, before),
            };
            let pointers = Pointers::new(a, b, d).with_c(c);
            // SAFETY: the buffers hold LARGEST elements, as many as any operand spans, and live until the copy below.
            unsafe { launch::launch(plan, pointers, *queue).map_err(|e| e.to_string())? };
            if waits {
                stream.synchronize().map_err(|e| e.to_string())?;
            }
        }
        let Problem { m, n, .. } = self.links[(LINKS - 1) % self.links.len()].0;
        gpu.device.clone_dtoh(&buffers[LINKS % 2].slice(..m * n)).map_err(|e| e.to_string())
    }
}
