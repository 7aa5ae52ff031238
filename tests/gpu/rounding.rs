//! Results in 16 bits are rounded once, by whatever kernel: products whose epilogue the kernel does not fuse, the op, and its gradients, against
//! sums in f64.

use crate::cases::{self, Data, Variant};
use crate::device::{Choice, Element, Gpu};
use crate::oracle;
use crate::Test;
use candle::{DType, Device, Tensor, Var, D};
use candle_tilegemm::cublaslt::{self, fused_matmul, CublasLt};
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::kernel::Role;
use candle_tilegemm::problem::BiasAxis;
use candle_tilegemm::{Activation, Format, Gemm, Layout};
use half::{bf16, f16};

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> = Vec::new();
    tests.extend(of_type::<f16>());
    tests.extend(of_type::<bf16>());
    tests.push(("rounds_once_scores_beyond_f16".into(), Box::new(scores_beyond_f16)));
    tests
}

fn of_type<T: Element>() -> [(String, Test); 4] {
    let name = |what: &str| format!("rounds_once_{what}_{}", T::KERNEL_DTYPE);
    [
        (name("unfused"), Box::new(unfused::<T>)),
        (name("unfused_in_pieces"), Box::new(unfused_in_pieces::<T>)),
        (name("op"), Box::new(|gpu| op::<T>(gpu).map_err(|e| e.to_string()))),
        (name("gradients"), Box::new(|gpu| gradients::<T>(gpu).map_err(|e| e.to_string()))),
    ]
}

/// cuBLAS by name, the free choice, and the choice on copies.
fn choices(vendor: &str) -> [Choice<'_>; 4] {
    let copies = |policy: Policy| Choice::By(policy.with_copies());
    [Choice::Named(vendor), Choice::By(Policy::default()), copies(Policy::default()), copies(Policy::own())]
}

fn biased(activation: Activation) -> Variant {
    Variant { bias: Some(BiasAxis::N), activation, ..Variant::PLAIN }
}

/// The product of the sizes by each choice, which is within one rounding of sums in f64.
fn check<T: Element>(gpu: &Gpu, [m, n, k]: [usize; 3], layout: Layout, variant: Variant) -> Result<(), String> {
    let problem = cases::problem(m, n, k, layout, T::KERNEL_DTYPE, variant);
    let operands = cases::operands::<T, T>(&problem, variant.offset, Data::Normal, 17);
    let vendor = format!("cublas_{}_{layout}", T::KERNEL_DTYPE);
    for choice in choices(&vendor) {
        let (plan, _) = gpu.plan(choice, &problem)?;
        if matches!(choice, Choice::Named(_)) {
            let copies = plan.packing.map(|packing| packing.names());
            let kernel = (plan.kernel.role, plan.kernel.types.d);
            if (copies.as_deref(), kernel) != (Some("D"), (Role::Vendor, Format::F32)) {
                return Err(format!("{problem}: cuBLAS by name runs as {}", plan.name()));
            }
        }
        let got = gpu.run(choice, &problem, &operands)?;
        oracle::check_sums(&problem, &operands, &got)
            .map_err(|error| format!("{problem}, {variant:?}, by {}: {error}", plan.name()))?;
    }
    Ok(())
}

fn unfused<T: Element>(gpu: &Gpu) -> Result<(), String> {
    let full = Variant { alpha: 0.5, beta: -2.0, ..biased(Activation::GeluErf) };
    let variants = [
        biased(Activation::Relu),
        biased(Activation::Silu),
        Variant { beta: 1.0, ..Variant::PLAIN },
        Variant { beta: 0.5, offset: 1, padding: 3, ..biased(Activation::GeluTanh) },
        Variant { batch: [1, 3], ..full },
        Variant { bias: Some(BiasAxis::M), ..full },
        Variant { column_major_d: true, ..full },
    ];
    for variant in variants {
        // cuBLAS reads lines that start at multiples of 16 bytes only, by name.
        let offset = if variant.offset == 0 { [256, 520, 64] } else { [256, 512, 61] };
        for [m, n, k] in [[1024, 1025, 32], [130, 1, 72], [1, 264, 80], offset] {
            for layout in [Layout::NT, Layout::NN] {
                let is_aligned = variant.offset == 0 && k % 8 == 0 && (layout == Layout::NT || n % 8 == 0);
                if is_aligned && !variant.column_major_d {
                    check::<T>(gpu, [m, n, k], layout, variant)?;
                } else {
                    without_names::<T>(gpu, [m, n, k], layout, variant)?;
                }
            }
        }
    }
    Ok(())
}

fn without_names<T: Element>(gpu: &Gpu, [m, n, k]: [usize; 3], layout: Layout, variant: Variant) -> Result<(), String> {
    let problem = cases::problem(m, n, k, layout, T::KERNEL_DTYPE, variant);
    let operands = cases::operands::<T, T>(&problem, variant.offset, Data::Normal, 19);
    choices("").into_iter().skip(1).try_for_each(|choice| {
        let got = gpu.run(choice, &problem, &operands)?;
        oracle::check_sums(&problem, &operands, &got).map_err(|e| format!("{problem}, {variant:?}, {choice:?}: {e}"))
    })
}

/// A shallow K and a D whose sums in f32 take more memory than the workspace has.
fn unfused_in_pieces<T: Element>(gpu: &Gpu) -> Result<(), String> {
    check::<T>(gpu, [16_384, 2051, 32], Layout::NT, biased(Activation::Relu))
}

fn scores_beyond_f16(gpu: &Gpu) -> Result<(), String> {
    let run = || -> candle::Result<Vec<f64>> {
        let device = Device::Cuda(gpu.device.clone());
        let filled = |x: f64, dims: &[usize]| Tensor::full(x, dims, &device)?.to_dtype(DType::F16);
        let (q, k) = (filled(64.0, &[2, 9, 80])?, filled(64.0, &[2, 9, 80])?);
        values(&Gemm::new().alpha(1.0 / 80f64.sqrt()).forward(&q, &k.t()?)?)
    };
    let (got, expected) = (run().map_err(|e| e.to_string())?, 327_680.0 / 80f64.sqrt());
    match got.iter().find(|x| (*x - expected).abs() > 16.0) {
        Some(x) => Err(format!("a score is {x}, expected {expected}")),
        None => Ok(()),
    }
}

fn values(t: &Tensor) -> candle::Result<Vec<f64>> {
    exact(t)?.flatten_all()?.to_vec1()
}

fn exact(t: &Tensor) -> candle::Result<Tensor> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.contiguous()
}

fn randn<T: Element>(dims: &[usize], device: &Device) -> candle::Result<Tensor> {
    Tensor::randn(0f64, 1f64, dims, &Device::Cpu)?.to_dtype(T::DTYPE)?.to_device(device)
}

fn activate(activation: Activation, x: &Tensor) -> candle::Result<Tensor> {
    let numbers: Vec<f64> = values(x)?.iter().map(|x| activation.apply(*x)).collect();
    Tensor::from_vec(numbers, x.shape(), &Device::Cpu)
}

/// Whether each number is the expected one, rounded once; `sums` is the size of what was added up, in f32.
fn once<T: Element>(actual: &Tensor, expected: &Tensor, sums: f64, what: &str) -> candle::Result<()> {
    let bound = expected.abs()?.affine(1.001 * T::UNIT_ROUNDOFF, 1e-6 * sums + 2f64.powi(-25))?;
    let excess = ((exact(actual)? - expected)?.abs()? - bound)?.flatten_all()?.max(D::Minus1)?.to_scalar::<f64>()?;
    if excess > 0.0 || excess.is_nan() {
        candle::bail!("{what}: {excess:e} beyond one rounding");
    }
    Ok(())
}

/// Bias, activation and a residual with a gradient; and candle-cublaslt's activation, which comes after the residual.
fn op<T: Element>(gpu: &Gpu) -> candle::Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    let lt = CublasLt::new(&device)?;
    for [m, n, k] in [[40, 33, 80], [1024, 1025, 32], [512, 1024, 64]] {
        let (x, w, bias) = (randn::<T>(&[m, k], &device)?, randn::<T>(&[k, n], &device)?, randn::<T>(&[n], &device)?);
        let residual = Var::from_tensor(&randn::<T>(&[m, n], &device)?)?;
        let product = exact(&x)?.matmul(&exact(&w)?)?;
        for activation in Activation::ALL {
            let what = format!("{m} x {n} x {k}, {activation:?}");
            let gemm = Gemm::new().alpha(0.3).bias(&bias).activation(activation).beta(-2.5);
            let sums = (&product * 0.3)?.broadcast_add(&exact(&bias)?)?;
            let expected = (activate(activation, &sums)? + (exact(&residual)? * -2.5)?)?;
            let detached = gemm.clone().residual(&residual.as_detached_tensor()).forward(&x, &w)?;
            once::<T>(&detached, &expected, 40.0, &what)?;
            let tracked = gemm.residual(&residual).forward(&x, &w)?;
            if values(&tracked)? != values(&detached)? {
                candle::bail!("{what}: a gradient of the residual changes the result");
            }
            let gradients = tracked.sum_all()?.backward()?;
            let gradient = gradients.get(&residual).map(values).transpose()?;
            if gradient != Some(vec![-2.5; m * n]) {
                candle::bail!("{what}: the gradient of the residual is {gradient:?}");
            }
        }
        let act = Some(cublaslt::Activation::Gelu);
        let (a, out) = (w.t()?, residual.as_tensor());
        let result = fused_matmul(&a, &x, Some(out), Some(0.5), Some(-1.5), Some(&bias), act, lt.clone())?;
        let sums = ((&product * 0.5)? - (exact(out)? * 1.5)?)?.broadcast_add(&exact(&bias)?)?;
        once::<T>(&result, &activate(Activation::GeluTanh, &sums)?, 40.0, "cublaslt")?;
        let infinite = Tensor::full(f64::INFINITY, (m, n), &device)?.to_dtype(T::DTYPE)?;
        let result = fused_matmul(&a, &x, Some(&infinite), None, Some(-1.0), None, act, lt.clone())?;
        if values(&result)? != vec![0.0; m * n] {
            candle::bail!("cublaslt: the activation of -inf is not 0");
        }
    }
    Ok(())
}

/// Sums over the rows and the matrices of a batch, and slopes of what is before the activation.
fn gradients<T: Element>(gpu: &Gpu) -> candle::Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    let ones = Tensor::ones((10, 300, 4), T::DTYPE, &device)?;
    let var = |dims: &[usize]| Var::from_tensor(&randn::<T>(dims, &device)?);
    let (w, bias) = (var(&[4, 3])?, var(&[3])?);
    let gradients = Gemm::new().bias(&bias).forward(&ones, &w)?.sum_all()?.backward()?;
    for (what, var) in [("bias", &bias), ("weight", &w)] {
        let Some(gradient) = gradients.get(var) else { candle::bail!("no gradient of the {what}") };
        let expected = Tensor::full(3000f64, var.shape(), &Device::Cpu)?;
        once::<T>(gradient, &expected, 0.0, &format!("the gradient of the {what}"))?;
    }
    // Operands that a batch shares: all of it, and its inner dimension.
    for (lhs, rhs) in [(&[2, 4][..], &[300, 4, 3][..]), (&[5, 400, 2, 4], &[5, 1, 4, 3])] {
        let [lhs, rhs] =
            [lhs, rhs].map(|dims| Tensor::ones(dims, T::DTYPE, &device).and_then(|ones| Var::from_tensor(&ones)));
        let (lhs, rhs) = (lhs?, rhs?);
        let gradients = Gemm::new().forward(&lhs, &rhs)?.sum_all()?.backward()?;
        let (shared, terms) = if lhs.rank() == 2 { (&lhs, 300 * 3) } else { (&rhs, 400 * 2) };
        let Some(gradient) = gradients.get(shared) else { candle::bail!("no gradient of a shared operand") };
        let expected = Tensor::full(f64::from(terms), shared.shape(), &Device::Cpu)?;
        once::<T>(gradient, &expected, 0.0, &format!("the gradient of a shared {:?}", shared.dims()))?;
    }
    let (x, w, bias) = (randn::<T>(&[1, 64], &device)?, randn::<T>(&[64, 200], &device)?, var(&[200])?);
    let weights = randn::<T>(&[1, 200], &device)?;
    let sums = (exact(&x)?.matmul(&exact(&w)?)? * 0.2)?.broadcast_add(&exact(&bias)?)?;
    for activation in Activation::ALL {
        let result = Gemm::new().alpha(0.2).bias(&bias).activation(activation).forward(&x, &w)?;
        let gradients = (result * &weights)?.sum_all()?.backward()?;
        let Some(gradient) = gradients.get(&bias) else { candle::bail!("no gradient of the bias") };
        let slopes: Vec<f64> = values(&sums)?.iter().map(|x| activation.slope(*x)).collect();
        let expected = (Tensor::new(slopes, &Device::Cpu)? * exact(&weights)?.flatten_all()?)?;
        once::<T>(gradient, &expected, 20.0, &format!("the slope of {activation:?}"))?;
    }
    Ok(())
}
