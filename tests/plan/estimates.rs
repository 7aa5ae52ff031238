//! Estimates beside what was recorded on an H100.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Planned, Policy};
use candle_tilegemm::family;
use candle_tilegemm::internal::cost;
use candle_tilegemm::kernel::Role;
use candle_tilegemm::{Format, Layout, Problem};
use std::sync::Arc;

fn plan(problem: &Problem, policy: Policy) -> Arc<Planned> {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning();
    dispatcher.plan(problem, policy).unwrap_or_else(|error| panic!("{problem}: {error}"))
}

/// Times of `sm90_few_rows` and of cuBLAS on an H100, 2026-11-22, in products of models that the suite does not have.
#[test]
fn estimates_of_few_rows_hold_beyond_the_suite() {
    let recorded = [
        (8, 1024, 4096, 4.5, 7.5),
        (64, 1024, 4096, 6.2, 8.3),
        (32, 1024, 3072, 4.3, 7.2),
        (16, 512, 3584, 3.0, 7.0),
        (16, 1536, 8960, 10.8, 14.1),
        (8, 3072, 8192, 19.4, 21.9),
        (8, 8960, 1536, 13.2, 12.6),
        (16, 9728, 2560, 18.8, 20.0),
        (16, 11_008, 4096, 31.3, 35.0),
        (16, 13_824, 5120, 48.0, 52.7),
        (32, 14_336, 4096, 41.4, 44.0),
    ];
    for (m, n, k, swap_ab, cublas) in recorded {
        let problem = Problem::dense(m, n, k, 1, Layout::NT, Format::BF16);
        for (name, us) in [("sm90_few_rows_bf16_nt_128x64x128_1x1_s8", swap_ab), ("cublas_bf16_nt", cublas)] {
            let estimate = plan(&problem, Policy::force(name).unwrap()).estimate_us;
            assert!((estimate / us - 1.0f64).abs() < 0.17, "{problem}: {name} {estimate} us, recorded {us} us");
        }
        assert_ne!(plan(&problem, Policy::default()).kernel.role, Role::Vendor, "{problem}");
    }
}

/// Times on an H100, 2026-11-22; of 128 rows and 64, and cuBLAS's.
#[test]
fn estimates_of_f64_are_near_what_was_recorded() {
    let recorded = [
        (1024, 1024, 1024, 1, [76.9, 41.7, 40.7]),
        (2048, 2048, 2048, 1, [295.0, 287.7, 284.2]),
        (3000, 3000, 3000, 1, [1039.6, 923.0, 890.1]),
        (4096, 4096, 4096, 1, [2233.3, 2201.2, 2176.3]),
        (1024, 1024, 256, 16, [179.4, 165.1, 162.0]),
        (1536, 1536, 1536, 1, [222.8, 167.1, 134.8]),
        (5000, 1000, 2000, 1, [426.1, 347.8, 340.9]),
    ];
    for (m, n, k, batch, times) in recorded {
        let problem = Problem::dense(m, n, k, batch, Layout::NT, Format::F64);
        let names = ["sm90_dgemm_f64_nt_128x128x16_1x1", "sm90_dgemm_f64_nt_64x128x16_1x1", "cublas_f64_nt"];
        for ((name, us), most) in names.into_iter().zip(times).zip([0.03, 0.03, 0.12]) {
            let estimate = plan(&problem, Policy::force(name).unwrap()).estimate_us;
            assert!((estimate / us - 1.0f64).abs() < most, "{problem}: {name} {estimate} us, recorded {us} us");
        }
        assert_eq!(plan(&problem, Policy::own()).kernel.name, names[1]);
        assert_eq!(plan(&problem, Policy::default()).kernel.name, names[2]);
    }
    let drafts = [
        ("nn_128", 2048, 292.8),
        ("tn_128", 2048, 284.6),
        ("tt_128", 2048, 292.1),
        ("nn_128", 4096, 2324.7),
        ("nn_64", 1024, 40.6),
    ];
    for (row, size, us) in drafts {
        let kernel = family::by_name(&format!("sm90_dgemm_f64_{row}x128x16_1x1")).unwrap();
        let problem = Problem::dense(size, size, size, 1, kernel.layout, Format::F64);
        let estimate = plan(&problem, Policy::force(kernel.name).unwrap()).estimate_us;
        assert!((estimate / us - 1.0f64).abs() < 0.06, "{problem}: {kernel} {estimate} us, recorded {us} us");
    }
    // K = 1 is a matter of memory: 43 us for what is written.
    let outer = Problem::dense(4096, 4096, 1, 1, Layout::NN, Format::F64).canonical().problem;
    let cublas = family::by_name(&format!("cublas_f64_{}", outer.layout())).unwrap();
    let estimate = cost::estimate_us(cublas, &outer, &DeviceInfo::h100());
    assert!((43.0..60.0).contains(&estimate), "{outer}: {estimate} us");
}

/// The record of few outputs that `split_k`'s and cuBLAS's estimates are fitted to. tests/gpu/speed.rs judges them on other products.
#[test]
fn estimates_of_few_outputs_are_near_the_record() {
    let record = crate::records::text("h100/few-outputs-2026-11-23.csv");
    let rows =
        record.lines().filter(|line| !line.starts_with('#')).skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let (mut own, mut vendor) = (Vec::new(), Vec::new());
    for row in rows {
        let [dtype, layout] = [row[0], row[1]];
        let number = |i: usize| row[i].parse::<f64>().unwrap();
        let [m, n, k] = [2, 3, 4].map(|i| number(i) as usize);
        let (dtype, layout): (Format, Layout) = (dtype.parse().unwrap(), layout.parse().unwrap());
        let problem = Problem::dense(m, n, k, 1, layout, dtype);
        let estimate = |name: &str| plan(&problem, Policy::force(name).unwrap()).estimate_us;
        own.push(estimate(&format!("split_k_sm90_{dtype}_any_64x64x16_1x1")) / number(9));
        if k >= 256 {
            let canonical = problem.canonical().problem.layout();
            vendor.push(estimate(&format!("cublas_{dtype}_{canonical}")) / number(5));
        }
    }
    assert!(own.len() > 1400, "only {} rows", own.len());
    for (what, mut ratios, most) in [("split_k", own, 1.7), ("cuBLAS", vendor, 2.2)] {
        ratios.sort_by(f64::total_cmp);
        let at = |share: f64| ratios[(ratios.len() as f64 * share) as usize];
        assert!((0.85..1.15).contains(&at(0.5)), "{what}: median {}", at(0.5));
        assert!(at(0.05) > 1.0 / most && at(0.95) < most, "{what}: {} to {}", at(0.05), at(0.95));
    }
}
