//! What is done element by element: the rest of an epilogue after the product, and slopes of activations; and what is not read.

use crate::cases::{self, Data, Variant};
use crate::device::{Element, Gpu, Operands};
use crate::oracle::{agree, for_each};
use crate::Test;
use candle::cuda_backend::cudarc::cublas::sys;
use candle::{Device, Tensor, Var};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::kernel::Fusion;
use candle_tilegemm::launch::{self, Pointers, Queue};
use candle_tilegemm::problem::BiasAxis;
use candle_tilegemm::{interpose, Activation, Format, Gemm, Layout, Problem};
use half::{bf16, f16};

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> = Vec::new();
    tests.extend(of_type::<f16>(f16::from_bits));
    tests.extend(of_type::<bf16>(bf16::from_bits));
    tests.extend(of_type::<f32>(|bits| bf16::from_bits(bits).to_f32()));
    tests.extend(of_type::<f64>(|bits| bf16::from_bits(bits).to_f64()));
    tests.push(("interposer_alpha_of_0_reads_nothing".into(), Box::new(interposer_alpha_of_0)));
    tests
}

fn of_type<T: Element>(from_bits: fn(u16) -> T) -> [(String, Test); 6] {
    let name = |what: &str| format!("{what}_{}", T::KERNEL_DTYPE);
    [
        (name("epilogue_rest"), Box::new(rest_of_every_epilogue::<T>)),
        (name("epilogue_activations"), Box::new(move |gpu| activations_of_every_number(gpu, from_bits))),
        (name("op_slopes"), Box::new(move |gpu| slopes_of_every_number(gpu, from_bits))),
        (name("op_activations_fused_and_not"), Box::new(activations_fused_and_not::<T>)),
        (name("alpha_of_0_reads_nothing"), Box::new(alpha_of_0::<T>)),
        (name("beta_of_0_reads_nothing"), Box::new(beta_of_0::<T>)),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs `launch` over the operands on the GPU and gives D.
fn on_gpu<T: Element>(
    gpu: &Gpu,
    operands: &Operands<T>,
    launch: impl FnOnce(Pointers, Queue) -> candle_tilegemm::Result<()>,
) -> Result<Vec<T>, String> {
    let queue = gpu.queue()?;
    gpu.with_operands(false, operands, |pointers, _| launch(pointers, queue).map_err(text))
}

fn finish<T: Element>(gpu: &Gpu, problem: &Problem, fusion: Fusion, operands: &Operands<T>) -> Result<Vec<T>, String> {
    // SAFETY: the buffers hold what the problem spans, and live until D has been read back.
    on_gpu(gpu, operands, |pointers, queue| unsafe { launch::finish(problem, fusion, pointers, queue.stream) })
}

/// Half a unit of what is stored and a tenth, and half of f16's smallest number; a few units of f32.
fn tolerance<T: Element>(expected: f64) -> f64 {
    let (relative, least) = match T::KERNEL_DTYPE {
        Format::F16 | Format::BF16 => (1.1 * T::UNIT_ROUNDOFF, 4e-8),
        Format::F32 => (1e-6, 3e-8),
        Format::F64 => (1e-14, 1e-15),
        other => panic!("no test for {other}"),
    };
    relative * expected.abs() + least
}

/// Every variant of layout, bias, activation and residual, of which pieces of 16 bytes can be read and not.
fn rest_of_every_epilogue<T: Element>(gpu: &Gpu) -> Result<(), String> {
    for (m, n) in [(1, 8), (5, 64), (3, 7), (33, 520), (70, 1)] {
        for variant in Variant::all(T::KERNEL_DTYPE) {
            for fusion in [Fusion::None, Fusion::BiasAct, Fusion::Full] {
                let problem = cases::problem(m, n, 8, Layout::NN, T::KERNEL_DTYPE, variant);
                check_rest::<T>(gpu, &problem, fusion, variant.offset)
                    .map_err(|e| format!("{problem} {variant:?} {fusion:?}: {e}"))?;
            }
        }
    }
    Ok(())
}

fn check_rest<T: Element>(gpu: &Gpu, problem: &Problem, fusion: Fusion, offset: usize) -> Result<(), String> {
    let Problem { m, n, batch, d, .. } = *problem;
    let mut operands = cases::operands::<T, T>(problem, offset, Data::Normal, 21);
    let mut places = Vec::new();
    for_each(&d, m, n, batch, |index| places.push(offset + index));
    // The product: other numbers than those of the operands.
    places.iter().enumerate().for_each(|(i, &at)| operands.d[at] = T::from_f64((i as f64 * 0.37).sin() * 3.0));
    let mut c_places = Vec::new();
    problem.epilogue.c.iter().for_each(|c| for_each(c, m, n, batch, |index| c_places.push(offset + index)));
    let got = finish(gpu, problem, fusion, &operands)?;
    let rest = problem.epilogue.rest(fusion).unwrap_or_default();
    for (element, &at) in places.iter().enumerate() {
        let (i, j) = (element / n % m, element % n);
        let product = operands.d[at].to_f64();
        let bias = rest.bias.map_or(0.0, |axis| operands.bias[if axis == BiasAxis::M { i } else { j }].to_f64());
        let c = if rest.reads_c() { rest.beta() * operands.c[c_places[element]].to_f64() } else { 0.0 };
        let inner = rest.activation.apply(product + bias);
        let (got, expected) = (got[at].to_f64(), inner + c);
        // What the accumulator rounds is a part of terms that may cancel.
        let allowed = tolerance::<T>(expected) + tolerance::<f32>(inner.abs() + c.abs() + bias.abs());
        let allowed =
            if T::KERNEL_DTYPE == Format::F64 { tolerance::<T>(inner.abs() + c.abs() + 8.0) } else { allowed };
        if !agree(got, expected, allowed) {
            return Err(format!("element {element} of D is {got}, expected {expected} within {allowed:.2e}"));
        }
    }
    let mut is_outside = vec![true; got.len()];
    places.iter().for_each(|&at| is_outside[at] = false);
    match got.iter().zip(is_outside).position(|(x, is_outside)| is_outside && !x.to_f64().is_nan()) {
        Some(index) => Err(format!("wrote {} outside of D, at element {index}", got[index])),
        None => Ok(()),
    }
}

/// As `activations.rs` has it for kernels that fuse them.
fn activations_of_every_number<T: Element>(gpu: &Gpu, from_bits: fn(u16) -> T) -> Result<(), String> {
    let numbers: Vec<T> = (0..=u16::MAX).map(from_bits).collect();
    for activation in Activation::ALL.into_iter().skip(1) {
        let mut problem = Problem::dense(1, numbers.len(), 1, 1, Layout::NN, T::KERNEL_DTYPE);
        problem.epilogue.activation = activation;
        let none = || vec![T::from_f64(f64::NAN)];
        let operands = Operands { a: none(), b: none(), c: none(), bias: none(), d: numbers.clone(), offsets: [0; 4] };
        let got = finish(gpu, &problem, Fusion::None, &operands)?;
        compare(activation, &numbers, &got, |x| activation.apply(x), 0.0)?;
    }
    Ok(())
}

fn slopes_of_every_number<T: Element>(gpu: &Gpu, from_bits: fn(u16) -> T) -> Result<(), String> {
    let numbers: Vec<T> = (0..=u16::MAX).map(from_bits).collect();
    let device = Device::Cuda(gpu.device.clone());
    let slopes = |activation: Activation| -> candle::Result<Vec<T>> {
        let x = Var::from_tensor(&Tensor::from_slice(&numbers, (numbers.len(), 1), &device)?)?;
        let one = Tensor::ones((1, 1), T::DTYPE, &device)?;
        let gradients = Gemm::new().activation(activation).forward(&x, &one)?.sum_all()?.backward()?;
        gradients.get(&x).unwrap().flatten_all()?.to_vec1::<T>()
    };
    for activation in Activation::ALL {
        // Where a slope passes through 0, two terms of 0.2 cancel.
        let cancelled = if T::KERNEL_DTYPE == Format::F64 { 0.0 } else { 2e-7 };
        compare(activation, &numbers, &slopes(activation).map_err(text)?, |x| activation.slope(x), cancelled)?;
    }
    Ok(())
}

fn compare<T: Element>(what: Activation, x: &[T], got: &[T], of: impl Fn(f64) -> f64, more: f64) -> Result<(), String> {
    for (x, got) in x.iter().zip(got) {
        let (expected, got) = (of(x.to_f64()), got.to_f64());
        let allowed = tolerance::<T>(expected) + more;
        if !agree(got, expected, allowed) {
            return Err(format!("{what:?} of {x} is {got}, expected {expected} within {allowed:.2e}"));
        }
    }
    Ok(())
}

/// The op over products of few and many sizes, so that kernels which fuse and which do not are chosen.
fn activations_fused_and_not<T: Element>(gpu: &Gpu) -> Result<(), String> {
    const POINTS: [f64; 8] = [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, 0.0, -0.0, f64::NAN, f64::INFINITY, 0.0];
    let class = |x: f64| if x.is_nan() { 2.0 } else { x.clamp(-1.0, 1.0) };
    let device = Device::Cuda(gpu.device.clone());
    let result = |activation: Activation, [m, n, k]: [usize; 3]| -> candle::Result<Vec<f64>> {
        let bias: Vec<f64> = POINTS.into_iter().cycle().take(n).collect();
        let bias = Tensor::new(bias, &Device::Cpu)?.to_dtype(T::DTYPE)?.to_device(&device)?;
        let zeros = |dims: (usize, usize)| Tensor::zeros(dims, T::DTYPE, &device);
        let result = Gemm::new().activation(activation).bias(&bias).forward(&zeros((m, k))?, &zeros((k, n))?)?;
        result.to_device(&Device::Cpu)?.to_dtype(candle::DType::F64)?.flatten_all()?.to_vec1()
    };
    for activation in Activation::ALL {
        for size in [[1, 8, 8], [5, 7, 3], [64, 64, 64], [317, 1031, 1025], [512, 1024, 64], [2048, 2048, 520]] {
            let got = result(activation, size).map_err(text)?;
            for (got, x) in got.into_iter().zip((0..size[1]).map(|j| POINTS[j % 8]).cycle()) {
                let expected = activation.apply(x);
                if class(got) != class(expected) {
                    return Err(format!("{activation:?} of {x} is {got}, expected {expected}, in {size:?}"));
                }
            }
        }
    }
    Ok(())
}

/// By every policy the epilogue of 0, from operands of NaN.
fn alpha_of_0<T: Element>(gpu: &Gpu) -> Result<(), String> {
    let dispatcher = Dispatcher::new(gpu.info.clone());
    for (m, n, k) in [(1, 64, 64), (33, 40, 72), (5, 7, 3), (256, 512, 128)] {
        for activation in Activation::ALL {
            let variant = Variant { alpha: 0.0, activation, bias: Some(BiasAxis::N), beta: 0.5, ..Variant::PLAIN };
            for (variant, layout) in [(variant, Layout::NT), (Variant { alpha: 0.0, ..Variant::PLAIN }, Layout::TN)] {
                let problem = cases::problem(m, n, k, layout, T::KERNEL_DTYPE, variant);
                let mut operands = cases::operands::<T, T>(&problem, 0, Data::Normal, 5);
                operands.a.fill(T::from_f64(f64::NAN));
                operands.b.fill(T::from_f64(f64::NAN));
                for policy in [Policy::default(), Policy::own(), Policy::default().with_workspace(0)] {
                    let fusion = dispatcher.fuse(&problem, policy).map_err(text)?;
                    let (epilogue, _) = problem.epilogue.keep(fusion);
                    let plan = dispatcher.plan(&problem.with(|p| p.epilogue = epilogue), policy).map_err(text)?;
                    // SAFETY: the buffers hold what the problem spans, and live until D has been read back.
                    let got = on_gpu(gpu, &operands, |pointers, queue| unsafe {
                        launch::launch(&plan, pointers, queue)?;
                        launch::finish(&problem, fusion, pointers, queue.stream)
                    })?;
                    for (index, got) in got[..m * n].iter().enumerate() {
                        let bias = problem.epilogue.bias.map_or(0.0, |_| operands.bias[index % n].to_f64());
                        let c = problem.epilogue.c.map_or(0.0, |_| 0.5 * operands.c[index].to_f64());
                        let expected = problem.epilogue.activation.apply(bias) + c;
                        if !agree(got.to_f64(), expected, tolerance::<T>(expected.abs() + c.abs())) {
                            return Err(format!("{problem} {policy:?}: element {index} is {got}, expected {expected}"));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// A residual of NaN beside a bias and not, contiguous and not, with a gradient and without.
fn beta_of_0<T: Element>(gpu: &Gpu) -> Result<(), String> {
    let device = Device::Cuda(gpu.device.clone());
    let values = |t: &Tensor| t.to_dtype(candle::DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let run = || -> candle::Result<()> {
        for (m, n, k) in [(5, 7, 3), (64, 128, 64), (300, 520, 256)] {
            let random = |dims: &[usize]| Tensor::randn(0f32, 1f32, dims, &device)?.to_dtype(T::DTYPE);
            let (lhs, rhs, bias) = (random(&[m, k])?, random(&[k, n])?, random(&[n])?);
            for (has_bias, transposed) in [(false, false), (true, false), (false, true), (true, true)] {
                let nan = Tensor::full(f64::NAN, if transposed { (n, m) } else { (m, n) }, &device)?;
                let residual = Var::from_tensor(&nan.to_dtype(T::DTYPE)?)?;
                let gemm = Gemm::new().activation(Activation::GeluErf);
                let gemm = if has_bias { gemm.bias(&bias) } else { gemm };
                let expected = values(&gemm.forward(&lhs, &rhs)?)?;
                for (tracked, view) in [(true, residual.as_tensor().clone()), (false, residual.as_detached_tensor())] {
                    let view = if transposed { view.t()? } else { view };
                    let result = gemm.clone().residual(&view).beta(0.0).forward(&lhs, &rhs)?;
                    if values(&result)? != expected {
                        candle::bail!(
                            "{m} x {n} x {k}, bias {has_bias}, transposed {transposed}: the residual is read"
                        );
                    }
                    let gradients = result.sum_all()?.backward()?;
                    let gradient = gradients.get(&residual).map(values).transpose()?;
                    if tracked && gradient != Some(vec![0.0; m * n]) {
                        candle::bail!("the gradient of a residual that is not read is not 0");
                    }
                }
            }
        }
        Ok(())
    };
    run().map_err(text)
}

/// A call with alpha = 0 as other programs than candle make it: C = beta * C from operands of NaN.
fn interposer_alpha_of_0(gpu: &Gpu) -> Result<(), String> {
    use sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType_t};
    const SIZE: usize = 64;
    for beta in [0f32, 2.0] {
        let nan = vec![f32::NAN; SIZE * SIZE];
        let c: Vec<f32> = (0..SIZE * SIZE).map(|i| if beta == 0.0 { f32::NAN } else { i as f32 }).collect();
        let operands =
            Operands { a: nan.clone(), b: nan, c: c.clone(), bias: vec![0.0], d: c.clone(), offsets: [0; 4] };
        let before = interpose::stats();
        let got = on_gpu(gpu, &operands, |pointers, queue| {
            let (op, size, float) = (cublasOperation_t::CUBLAS_OP_N, SIZE as i32, cudaDataType_t::CUDA_R_32F);
            let compute_type = cublasComputeType_t::CUBLAS_COMPUTE_32F;
            let algorithm = cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
            let alpha = 0f32;
            // SAFETY: three matrices of this size, and scalars that live until the call returns.
            let status = unsafe {
                sys::cublasGemmStridedBatchedEx(
                    queue.cublas.cast(),
                    op,
                    op,
                    size,
                    size,
                    size,
                    (&raw const alpha).cast(),
                    pointers.a,
                    float,
                    size,
                    0,
                    pointers.b,
                    float,
                    size,
                    0,
                    (&raw const beta).cast(),
                    pointers.d,
                    float,
                    size,
                    0,
                    1,
                    compute_type,
                    algorithm,
                )
            };
            assert_eq!(status, sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
            Ok(())
        })?;
        let counted = interpose::stats().since(&before);
        if counted.ours != 1 {
            return Err(format!("the call was not taken: {counted:?}"));
        }
        let expected = |i: usize| if beta == 0.0 { 0.0 } else { beta * c[i] };
        if let Some(i) = (0..SIZE * SIZE).find(|&i| got[i] != expected(i)) {
            return Err(format!("beta {beta}: element {i} of C is {}, expected {}", got[i], expected(i)));
        }
    }
    Ok(())
}
