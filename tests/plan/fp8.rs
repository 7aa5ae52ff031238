//! Products of 8 bits by 8 bits: the kernels of Hopper, the factors that they take, and fast accumulation.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Math, Rejection, Role};
use candle_tilegemm::problem::Scale;
use candle_tilegemm::{Format, Layout, Problem};
use Format::{BF16, F16, F32, F8E4M3, I8};

const ALL: u32 = u32::MAX;
const SIZES: [usize; 3] = [64, 4096, 4096];

fn h200() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h200()).without_tuning()
}

/// A product in `format` with these factors and a result in bf16.
fn product(format: Format, sizes: [usize; 3], [of_a, of_w]: [Option<Scale>; 2]) -> Problem {
    Problem::narrow(sizes, format, format, of_w).with(|p| (p.a.scale, p.d.format) = (of_a, BF16))
}

fn tensors() -> [Option<Scale>; 2] {
    [Some(Scale::of_tensor(F32)); 2]
}

fn rows() -> [Option<Scale>; 2] {
    [Some(Scale::new(F32, [1, ALL], [1, 0])), Some(Scale::of_rows(F32))]
}

/// With factors of 1 x 128 of A by M, and of 128 x 128 of W.
fn blocks([m, _, k]: [usize; 3]) -> [Option<Scale>; 2] {
    [Some(Scale::new(F32, [1, 128], [1, m as i64])), Some(Scale::of_blocks(F32, [128, 128], k))]
}

/// The kernels of the two families for these types.
fn own(format: Format, d: Format) -> impl Iterator<Item = &'static KernelDesc> {
    let is_own = |kernel: &&KernelDesc| kernel.family.starts_with("sm90_fp8_") && !kernel.needs_groups();
    KERNELS.iter().filter(is_own).filter(move |kernel| (kernel.types.a, kernel.types.d) == (format, d))
}

#[test]
fn few_rows_and_many_have_kernels_of_their_own() {
    for (n, k) in [(14336, 4096), (4096, 14336), (7168, 16384), (6144, 4096), (576, 7168)] {
        for m in [1, 2, 8, 16, 33, 64, 65, 128, 256, 1000, 4096] {
            let family = if m <= 64 { "sm90_fp8_few_rows" } else { "sm90_fp8_gemm" };
            for factors in [[None; 2], tensors(), rows(), blocks([m, n, k])] {
                let plan = h200().plan(&product(F8E4M3, [m, n, k], factors), Policy::default()).unwrap();
                // Around 64 rows either family is the faster one.
                let is_of_family = (33..=128).contains(&m) || plan.kernel.family == family;
                assert!(is_of_family && plan.kernel.math == Math::Native, "{m} rows, {factors:?}: {}", plan.name());
                let [rows, columns] = plan.config.tile.map(|side| side as usize);
                assert!(rows >= m.min(128) && columns.is_multiple_of(8), "{m} rows: {}", plan.config);
            }
            for factors in [[None; 2], tensors(), rows()] {
                let plan = h200().plan(&product(I8, [m, n, k], factors), Policy::default()).unwrap();
                let is_of_family = (33..=128).contains(&m) || plan.kernel.family == family;
                assert!(is_of_family, "{m} rows of int8, {factors:?}: {}", plan.name());
            }
        }
    }
}

/// On an H200, in the shapes that the kernels were measured with, the estimates are within 12 % of the times.
#[test]
fn estimates_are_near_the_times() {
    for ([m, n, k], times) in [
        ([1, 14336, 4096], [15.4, 15.5, 15.4]),
        ([64, 4096, 14336], [17.0, 17.4, 17.8]),
        ([64, 7168, 16384], [31.2, 33.1, 32.1]),
        ([128, 14336, 4096], [18.5, 18.4, 18.6]),
        ([256, 4096, 14336], [26.6, 26.8, 28.0]),
        ([1024, 14336, 4096], [82.3, 89.3, 96.0]),
        ([4096, 7168, 16384], [604.0, 648.0, 682.0]),
    ] {
        let fast = product(F8E4M3, [m, n, k], tensors()).with(|p| p.fast_accumulation = true);
        let promoted = fast.with(|p| p.fast_accumulation = false);
        let of_blocks = product(F8E4M3, [m, n, k], blocks([m, n, k]));
        for (problem, us) in [fast, promoted, of_blocks].into_iter().zip(times) {
            let plan = h200().plan(&problem, Policy::default()).unwrap();
            let estimate = plan.estimate_us;
            assert!((estimate / us - 1.0).abs() < 0.12, "{problem}: {us} us, {} {estimate:.1}", plan.name());
        }
    }
}

#[test]
fn fast_accumulation_is_taken_where_it_is_asked_for() {
    let promoted = product(F8E4M3, [4096, 4096, 14336], rows());
    let fast = promoted.with(|p| p.fast_accumulation = true);
    assert_eq!(fast.to_string(), "4096x4096x14336 nt f8e4m3 row x f8e4m3 row -> bf16 fast accumulation");
    assert_eq!(promoted.to_string(), "4096x4096x14336 nt f8e4m3 row x f8e4m3 row -> bf16");
    let plan = |problem: &Problem| h200().plan(problem, Policy::default()).unwrap();
    assert_eq!(plan(&fast).kernel.math, Math::FastAccum);
    assert!(h200().explain(&fast, Policy::default()).to_string().starts_with(&fast.to_string()));
    let refusal = "has the tensor cores' sums over all of K, the problem asks for no fast accumulation";
    assert!(h200().explain(&promoted, Policy::default()).to_string().contains(refusal));
    // The fast kernel never serves a problem that does not ask.
    for kernel in KERNELS.iter().filter(|kernel| kernel.math == Math::FastAccum) {
        assert_eq!(kernel.types.a, F8E4M3, "{kernel}");
        for m in [1, 64, 4096] {
            let problem = product(F8E4M3, [m, 4096, 4096], tensors()).canonical().problem;
            assert_eq!(kernel.supports(&problem, &DeviceInfo::h200()), Err(Rejection::FastAccumulation), "{kernel}");
        }
    }
    // Sums in f32 serve one that does: few rows, other results, factors of blocks.
    let asks = |problem: Problem| problem.with(|p| p.fast_accumulation = true);
    for problem in [
        asks(product(F8E4M3, [1, 4096, 4096], rows())),
        asks(product(F8E4M3, [4096, 4096, 4096], blocks([4096, 4096, 4096]))),
        asks(product(F8E4M3, SIZES, rows())).with(|p| p.d.format = F32),
    ] {
        let plan = plan(&problem);
        assert!(plan.kernel.family.starts_with("sm90_fp8_") && plan.kernel.math == Math::Native, "{problem}");
    }
    // It means nothing elsewhere.
    for format in [I8, BF16] {
        let problem = asks(Problem::dense(64, 64, 64, 1, Layout::NT, format));
        assert!(!problem.canonical().problem.fast_accumulation && !problem.to_string().contains("fast"), "{problem}");
    }
    assert!(fast.canonical().problem.fast_accumulation && fast.canonical().problem != promoted.canonical().problem);
}

#[test]
fn factors_that_the_kernels_lack_are_refused_and_the_reference_takes_them() {
    let [m, n, k] = SIZES;
    let [along_m, of_w] = blocks(SIZES);
    let tensor = Some(Scale::of_tensor(F32));
    let groups = Some(Scale::of_groups(F32, 128, n));
    for (factors, words) in [
        ([Some(Scale::of_tensor(BF16)), tensor], "the scales of A are not in f32"),
        ([tensor, Some(Scale::of_rows(F16))], "the scales of B are not in f32"),
        (
            [Some(Scale::new(F32, [1, 64], [1, m as i64])), of_w],
            "the scales of A are of other numbers than all, a row, or",
        ),
        (
            [Some(Scale::new(F32, [32, ALL], [1, 0])), tensor],
            "the scales of A are of other numbers than all, a row, or",
        ),
        (
            [along_m, Some(Scale::of_blocks(F32, [64, 128], k))],
            "the scales of B are of other numbers than all, a row of",
        ),
        ([along_m, groups], "the scales of B are of other numbers than all, a row of"),
        ([None, of_w], "the scales of A are absent; expected some beside blocks of B"),
        ([along_m, None], "the scales of B are absent; expected some beside blocks of A"),
    ] {
        let problem = product(F8E4M3, SIZES, factors).canonical().problem;
        for kernel in own(F8E4M3, BF16).filter(|kernel| kernel.math == Math::Native) {
            let refusal = kernel.supports(&problem, &DeviceInfo::h200()).unwrap_err().to_string();
            assert!(refusal.starts_with(words), "{kernel}: {refusal}");
        }
        let plan = h200().plan(&problem, Policy::default()).unwrap();
        assert_eq!(plan.kernel.role, Role::LastResort, "{problem}: {}", plan.name());
    }
    // Where K, N or M is one block, blocks are rows or all.
    for sizes in [[64, 4096, 128], [64, 128, 4096], [1, 4096, 4096], [1, 96, 112]] {
        let problem = product(F8E4M3, sizes, blocks(sizes)).canonical().problem;
        let able = own(F8E4M3, BF16).filter(|kernel| kernel.supports(&problem, &DeviceInfo::h200()).is_ok());
        assert_eq!(able.count(), 2, "{problem}");
    }
    // int8 has no blocks.
    let whole = product(I8, SIZES, blocks(SIZES)).canonical().problem;
    for kernel in own(I8, BF16) {
        let refusal = kernel.supports(&whole, &DeviceInfo::h200()).unwrap_err().to_string();
        assert_eq!(refusal, "the scales of B are of blocks; expected one, or one for each row of W", "{kernel}");
    }
}

/// Every format of results has kernels, and every operand that kernels cannot read has the reference.
#[test]
fn every_product_of_8_bits_has_a_kernel() {
    for (format, d) in [(F8E4M3, BF16), (F8E4M3, F16), (F8E4M3, F32), (I8, BF16), (I8, F16)] {
        assert!(own(format, d).count() >= 2, "{format} -> {d}");
        for m in [1, 17, 64, 100, 3000] {
            let problem = product(format, [m, 4096, 4096], rows()).with(|p| p.d.format = d);
            let plan = h200().plan(&problem, Policy::own()).unwrap();
            assert!(plan.kernel.family.starts_with("sm90_fp8_"), "{problem}: {}", plan.name());
        }
    }
    let odd = product(F8E4M3, [64, 4096, 100], rows()).with(|p| p.a.row_stride = 100);
    let batch = Problem::dense(64, 64, 64, 3, Layout::NT, F8E4M3).with(|p| p.d.format = BF16);
    let other = Problem::dense(64, 64, 64, 1, Layout::NN, F8E4M3).with(|p| p.d.format = BF16);
    let whole = product(I8, SIZES, tensors()).with(|p| p.d.format = F32);
    for problem in [odd, batch, other, whole] {
        let plan = h200().plan(&problem, Policy::default()).unwrap();
        assert_eq!(plan.kernel.role, Role::LastResort, "{problem}: {}", plan.name());
    }
}
