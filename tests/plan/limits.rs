//! How large a problem may be: nothing overflows, and no kernel is offered what its 32-bit indices do not reach.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::internal::cost;
use candle_tilegemm::kernel::{KernelDesc, Rejection, Role};
use candle_tilegemm::problem::{Epilogue, Operand};
use candle_tilegemm::{F32Mode, Format, Layout, Problem};
use proptest::prelude::*;

const LAYOUTS: [Layout; 4] = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
const DTYPES: [Format; 4] = [Format::F16, Format::BF16, Format::F32, Format::F64];

/// The device that a kernel is built for.
fn device(kernel: &KernelDesc) -> DeviceInfo {
    let mut device = DeviceInfo::h100();
    device.capability = kernel.arch.capability.max(80);
    device
}

fn supports(kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
    kernel.supports(&problem.canonical().problem, &device(kernel))
}

/// From 0 to 2^40, around powers of two and multiples of eight; half of them small, as several large ones at once fit nowhere.
fn extent() -> impl Strategy<Value = usize> {
    let near = (16..=40u32, -2..=2i64, prop_oneof![Just(1), Just(8)]);
    let large = near.prop_map(|(bits, off, step)| ((1i64 << bits) + off * step) as usize);
    let small = prop_oneof![Just(1), Just(8), Just(64), Just(256)];
    prop_oneof![5 => small, 4 => large, 1 => 0..300usize]
}

fn problem() -> impl Strategy<Value = Problem> {
    let extents = (extent(), extent(), extent(), extent(), 0..=3usize);
    let kinds = (0..4usize, 0..4usize, any::<bool>(), any::<bool>(), 0..=50u32);
    (extents, kinds).prop_map(|((m, n, k, batch, outer), (layout, dtype, tf32, adds_c, gap))| {
        let mut problem = Problem::dense(m, n, k, batch, LAYOUTS[layout], DTYPES[dtype]);
        problem.batch[0] = outer.max(1);
        if tf32 {
            problem.f32_mode = F32Mode::Tf32;
        }
        let pad = |o: &mut Operand| {
            let line = if o.col_stride == 1 { &mut o.row_stride } else { &mut o.col_stride };
            *line += if gap > 30 { 1i64 << gap } else { 0 };
        };
        [&mut problem.a, &mut problem.b, &mut problem.d].into_iter().for_each(pad);
        if adds_c {
            problem.epilogue = Epilogue::new(1.0, 1.0);
            problem.epilogue.c = Some(problem.d);
        }
        problem
    })
}

/// What the kernels written for 32-bit indices rely on.
fn fits_32_bits(kernel: &KernelDesc, problem: &Problem) -> Result<(), String> {
    const INT: u128 = i32::MAX as u128;
    let [m, n, k] = [problem.m, problem.n, problem.k].map(|x| x as u128);
    let batch = problem.batch[0] as u128 * problem.batch[1] as u128;
    let [tile_m, tile_n, _] = kernel.tile.map(|side| u128::from(side.max(1)));
    let tiles = m.div_ceil(tile_m) * n.div_ceil(tile_n);
    let checks: &[_] = match kernel.family {
        _ if kernel.role != Role::Kernel => return Ok(()),
        "simt_gemm" => &[("K", k, INT), ("tiles", tiles, INT)],
        "split_k" => &[("tiles", tiles * batch, INT)],
        "gemv" | "gevm" | "outer" | "sm90_few_rows" | "sm90_wave" => {
            &[("M", m, INT / 2), ("N", n, INT / 2), ("K", k, INT / 2), ("matrices", batch, 65_535)]
        }
        "tile_gemm" | "sm90_tf32" => {
            &[("M", m, INT / 2), ("N", n, INT / 2), ("K", k, INT / 2), ("tiles", tiles * batch, INT / 2)]
        }
        _ => &[("M", m, INT), ("N", n, INT), ("K", k, INT), ("tiles", tiles * batch, INT)],
    };
    match checks.iter().find(|(_, have, most)| have > most) {
        Some((what, have, most)) => Err(format!("{kernel} takes {problem}: {what} is {have}, at most {most} fit")),
        None => Ok(()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn extents_to_2_to_the_40_overflow_nothing(problem in problem()) {
        let canonical = problem.canonical().problem;
        prop_assert_eq!(problem.is_empty(), canonical.is_empty());
        prop_assert!(problem.flops() >= 0.0 && problem.bytes() >= 0.0 && problem.outputs() >= 0.0);
        for kernel in KERNELS {
            let _ = kernel.workspace(&canonical);
            if kernel.supports(&canonical, &device(kernel)).is_ok() {
                fits_32_bits(kernel, &canonical).map_err(TestCaseError::fail)?;
                let us = cost::estimate_us(kernel, &canonical, &device(kernel));
                prop_assert!(us >= 0.0 && us.is_finite(), "{kernel}, {problem}: {us} us");
            }
        }
    }
}

/// These fit in 80 GB. Kernels for few rows were chosen for them and refused to run.
#[test]
fn products_beyond_32_bits_get_a_kernel_that_takes_them() {
    const OVER: usize = i32::MAX as usize / 2 + 1;
    let over = OVER.next_multiple_of(8);
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning();
    let cases = [
        (1, over, 8, Format::BF16, "columns of B"),
        (1, 1, over, Format::F32, "columns of A"),
        (16, 8, over, Format::BF16, "columns of A"),
        (2, over, 8, Format::BF16, "columns of B"),
    ];
    for (m, n, k, dtype, what) in cases {
        let problem = Problem::dense(m, n, k, 1, Layout::NT, dtype);
        let expected = Rejection::TooMany { what, have: over, most: OVER - 1 };
        let mut refused = 0;
        for kernel in KERNELS.iter().filter(|kernel| kernel.types == problem.types() && kernel.layout == Layout::NT) {
            match supports(kernel, &problem) {
                Ok(()) => fits_32_bits(kernel, &problem).unwrap(),
                Err(rejection) => refused += usize::from(rejection == expected),
            }
        }
        assert!(refused > 2, "{problem}: {refused} kernels refuse");
        for policy in [Policy::default(), Policy::own()] {
            let plan = dispatcher.plan(&problem, policy).unwrap();
            fits_32_bits(plan.kernel, &plan.canonical.problem).unwrap();
            // cuBLAS faults on some of these.
            assert_ne!(plan.kernel.role, Role::Vendor, "{problem}");
        }
    }
}

#[test]
fn refusals_have_the_numbers() {
    let named = |name: &str| {
        let kernel = KERNELS.iter().find(|kernel| kernel.name.starts_with(name));
        kernel.unwrap_or_else(|| panic!("no kernel {name}"))
    };
    let dense = |m, n, k, batch, layout, dtype| Problem::dense(m, n, k, batch, layout, dtype);
    let bf16 = dense(512, 1024, 1024, 2, Layout::NT, Format::BF16);
    let far = bf16.with(|p| p.a = bf16.a.with(|o| o.row_stride = 1 << 39));
    let backwards = bf16.with(|p| p.b = bf16.b.with(|o| o.batch_stride = [0, -(1 << 20)]));
    let mut same_rows = bf16;
    same_rows.epilogue = Epilogue::new(1.0, 1.0);
    same_rows.epilogue.c = Some(bf16.d.with(|o| o.row_stride = 0));
    let tile = "tile_gemm_sm90_bf16_nt_256x256x64_2x1_w8";
    let tma = "A has a stride of 549755813888 elements, at least 0 and at most 549755813887 needed";
    let cutlass = "sm90_gemm_bf16_nt_128x256x64_2x1_cooperative";
    let cases = [
        (tile, far, tma),
        (cutlass, far, tma),
        (tile, backwards, "B has a stride of -1048576 elements, at least 0 and at most 549755813887 needed"),
        (tile, same_rows, "rows of C overlap (a stride is smaller than the row)"),
        (
            cutlass,
            dense(8, 8, 8, 10_000_000, Layout::NT, Format::BF16),
            "takes at most 8388607 tiles, the problem has 10000000",
        ),
        (
            cutlass,
            dense(8, 1 << 31, 8, 1, Layout::NT, Format::BF16),
            "takes at most 2147482623 columns of B, the problem has 2147483648",
        ),
        (
            tile,
            dense(1 << 30, 8, 8, 1, Layout::NT, Format::BF16),
            "takes at most 1073741823 rows, the problem has 1073741824",
        ),
        (
            "outer_sm90_f32_any_16x128x1_1x1",
            dense(1 << 29, 1 << 29, 1, 1, Layout::NN, Format::F32),
            "takes at most 2147483647 tiles, the problem has 281474976710656",
        ),
        (
            "reference_sm80_f32",
            dense(1 << 30, 1 << 30, 1 << 40, 1, Layout::NN, Format::F32),
            "takes at most 281474976710656 elements of D, the problem has 1152921504606846976",
        ),
    ];
    for (name, problem, text) in cases {
        assert_eq!(supports(named(name), &problem).unwrap_err().to_string(), text, "{name}: {problem}");
    }
    let mut small = DeviceInfo::h100();
    small.sm_count = 1;
    let rejection = named(cutlass).supports(&bf16.canonical().problem, &small).unwrap_err();
    assert_eq!(rejection.to_string(), "needs 2 multiprocessors, the device has 1");
}
