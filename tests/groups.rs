//! Plans of products with groups of rows, and the layer on the CPU.

use candle::{DType, Device, Tensor};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{Rejection, Role};
use candle_tilegemm::nn::moe::moe_gemm;
use candle_tilegemm::problem::{BiasAxis, Epilogue, Groups};
use candle_tilegemm::{Format, Layout, Problem};

fn experts(tokens: usize, [n, k]: [usize; 2], [count, top_k]: [usize; 2], format: Format) -> Problem {
    Problem::dense(tokens * top_k, n, k, 1, Layout::NT, format).with(|problem| {
        problem.b.batch_stride = [0, (n * k) as i64];
        problem.groups = Some(Groups::routed(count, tokens, top_k));
    })
}

#[test]
fn experts_of_models_have_fast_kernels_on_hopper() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    let models = [([1536, 2048], [128, 8]), ([28672, 4096], [8, 2]), ([4096, 7168], [256, 8]), ([5760, 2880], [32, 4])];
    for (sizes, experts_of) in models {
        for format in [Format::BF16, Format::F16] {
            for tokens in [1, 3, 8, 64, 512, 2048, 8192] {
                let problem = experts(tokens, sizes, experts_of, format);
                let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
                assert_eq!(plan.kernel.role, Role::Kernel, "{problem}: {}", plan.kernel);
                let rows = problem.groups.unwrap().expected_rows(problem.m);
                assert!(f64::from(plan.config.tile[0]) >= rows.min(32.0), "{problem}: {}", plan.config);
                assert!(plan.without_workspace().is_none(), "no kernel for groups needs a workspace");
                let invariant = dispatcher.plan(&problem, Policy::default().with_batch_invariance(true)).unwrap();
                assert_eq!(invariant.kernel.role, Role::Kernel, "{problem}, batch-invariant: {}", invariant.kernel);
            }
        }
    }
}

/// cuBLAS has no such product, and the oracle takes what the fast kernels do not.
#[test]
fn every_device_and_every_type_has_a_kernel_for_groups() {
    for device in ["a100", "rtx4090", "h100", "b200", "rtx5090"] {
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::by_name(device).unwrap());
        for format in [Format::BF16, Format::F16, Format::F32, Format::F64] {
            for sizes in [[1536, 2048], [1535, 2047], [1, 1]] {
                let problem = experts(5, sizes, [16, 3], format);
                let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
                assert!(plan.kernel.takes_groups(), "{device}: {}", plan.kernel);
            }
        }
    }
}

#[test]
fn kernels_say_whether_they_take_groups() {
    let device = DeviceInfo::h100();
    let dense = Problem::dense(64, 1536, 2048, 1, Layout::NT, Format::BF16);
    let grouped = experts(64, [1536, 2048], [128, 1], Format::BF16);
    let biased = grouped.with(|problem| problem.epilogue.bias = Some(BiasAxis::N));
    let added = grouped.with(|problem| {
        problem.epilogue = Epilogue::new(1.0, 1.0);
        problem.epilogue.c = Some(problem.d);
    });
    let [mut needing, mut refusing] = [0, 0];
    for kernel in KERNELS.iter().filter(|kernel| kernel.types == dense.types() && kernel.arch.runs_on(90)) {
        let supports = |problem: &Problem| kernel.supports(&problem.canonical().problem, &device);
        match kernel.takes_groups() {
            false => assert_eq!(supports(&grouped), Err(Rejection::Groups), "{kernel}"),
            true => assert_eq!(supports(&grouped), Ok(()), "{kernel}"),
        }
        if kernel.needs_groups() {
            assert_eq!(supports(&dense), Err(Rejection::NoGroups), "{kernel}");
            assert_eq!(supports(&biased), Err(Rejection::Epilogue { what: "a bias" }), "{kernel}");
            needing += 1;
        }
        assert!(supports(&added).is_err(), "{kernel} adds to groups of rows");
        refusing += usize::from(!kernel.takes_groups());
    }
    assert!(needing >= 2 && refusing > 10, "{needing} kernels need groups, {refusing} refuse them");
}

/// A list of 1100 groups has no room in shared memory beside two stages.
#[test]
fn groups_are_limited_by_shared_memory() {
    let problem = experts(4096, [1536, 2048], [10_000, 8], Format::BF16);
    let mut refused = 0;
    for kernel in KERNELS.iter().filter(|kernel| kernel.needs_groups() && kernel.types == problem.types()) {
        if let Err(Rejection::TooMany { what, most, .. }) =
            kernel.supports(&problem.canonical().problem, &DeviceInfo::h100())
        {
            assert_eq!(what, "groups");
            assert!(most >= 1024, "{kernel} takes {most} groups, and 1024 are promised");
            refused += 1;
        }
    }
    assert!(refused > 0);
}

fn randn(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(0f32, 1f32, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn the_layer_is_a_product_of_each_pair_on_the_cpu() {
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::BF16, 0.05), (DType::F16, 0.01)] {
        let (tokens, top_k, count, n, k) = (5, 2, 4, 6, 8);
        let (x, weights) = (randn(&[tokens, k], dtype), randn(&[count, n, k], dtype));
        // Pairs of expert e: those p with (3 p) % 4 = e.
        let mut list: Vec<(u32, u32)> = (0..(tokens * top_k) as u32).map(|p| (3 * p % 4, p)).collect();
        list.sort();
        let column = |of: fn(&(u32, u32)) -> u32| Tensor::from_iter(list.iter().map(of), &Device::Cpu).unwrap();
        let (groups, pairs) = (column(|row| row.0), column(|row| row.1));
        let y = moe_gemm(&x, &weights, &None, &pairs, &groups, top_k, true).unwrap();
        assert_eq!((y.dims(), y.dtype()), (&[tokens * top_k, n][..], dtype));
        let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
        let factors: Vec<f32> = (0..tokens * top_k).map(|p| 0.25 * (p + 1) as f32).collect();
        let scales = Tensor::new(factors.as_slice(), &Device::Cpu).unwrap();
        let narrow = randn(&[tokens * top_k, 2 * k], dtype).narrow(1, k, k).unwrap(); // neither dense nor at the start
        let z = moe_gemm(&narrow, &weights, &Some(scales), &pairs, &groups, top_k, false).unwrap();
        for p in 0..tokens * top_k {
            let w = wide(&weights.get(3 * p % 4).unwrap()).t().unwrap();
            let close = |got: &Tensor, row: Tensor, factor: f64| {
                let expected = (wide(&row).unsqueeze(0).unwrap().matmul(&w).unwrap() * factor).unwrap();
                let difference = (wide(&got.narrow(0, p, 1).unwrap()) - expected).unwrap().abs().unwrap();
                let worst = difference.max_all().unwrap().to_scalar::<f32>().unwrap();
                assert!(worst <= tolerance * factor.max(1.0) as f32 * 4.0, "{dtype:?}, pair {p}: {worst}");
            };
            close(&y, x.get(p / top_k).unwrap(), 1.0);
            close(&z, narrow.get(p).unwrap(), 0.25 * (p + 1) as f64);
        }
    }
}

#[test]
fn the_layer_says_what_does_not_fit() {
    let (x, weights) = (randn(&[3, 8], DType::F32), randn(&[4, 6, 8], DType::F32));
    let list = |count: usize| Tensor::zeros(count, DType::U32, &Device::Cpu).unwrap();
    let error = |x: &Tensor, weights: &Tensor, scales: &Option<Tensor>, pairs: &Tensor, groups: &Tensor| {
        moe_gemm(x, weights, scales, pairs, groups, 2, true).unwrap_err().to_string()
    };
    let cases = [
        (error(&randn(&[3, 7], DType::F32), &weights, &None, &list(6), &list(6)), "rows of 7 numbers"),
        (error(&x, &randn(&[4, 6, 8], DType::F64), &None, &list(6), &list(6)), "f16, bf16 or f32"),
        (error(&x, &weights, &None, &list(5), &list(6)), "sorted_token_ids has 5 numbers in U32; expected 6"),
        (error(&x, &weights, &None, &list(6), &list(7)), "experts_ids has 7"),
        (
            error(&x, &weights, &Some(list(3)), &list(3), &list(3)),
            "topk_weights has 3 numbers in U32; expected 3 in F32",
        ),
    ];
    for (error, words) in cases {
        assert!(error.contains(words), "{error}");
    }
}
