//! What is assumed of a GPU by its name: each name for itself, and what is not known by its compute capability.

use candle_tilegemm::arch::{ArchModel, DeviceInfo, Source};

/// GB/s, and TFLOP/s of f16, f32 and f64.
fn rates(name: &str, capability: u16, sm_count: u32) -> [f64; 4] {
    let model = ArchModel::of(name, capability, sm_count);
    [model.memory_gbps, model.half_tflops, model.f32_tflops, model.f64_tflops]
}

#[test]
fn measured_rates_are_as_measured() {
    assert_eq!(rates("NVIDIA H100 80GB HBM3", 90, 132), [3120.0, 800.0, 52.0, 64.0]);
    assert_eq!(rates("NVIDIA H200", 90, 132), [4300.0, 790.0, 52.0, 64.0]);
    assert_eq!(DeviceInfo::h100().model, ArchModel::of("NVIDIA H100 80GB HBM3", 90, 132));
    assert_eq!(DeviceInfo::h200().model, ArchModel::of("NVIDIA H200", 90, 132));
}

#[test]
fn known_names_have_the_rates_of_their_data_sheets() {
    // Memory and f16 with f32 accumulation.
    let cases = [
        ("NVIDIA A100-SXM4-40GB", 80, 108, 1555.0, 312.0),
        ("NVIDIA A100-SXM4-80GB", 80, 108, 2039.0, 312.0),
        ("NVIDIA A100-PCIE-40GB", 80, 108, 1555.0, 312.0),
        ("NVIDIA A100 80GB PCIe", 80, 108, 1935.0, 312.0),
        ("NVIDIA A10", 86, 72, 600.0, 125.0),
        ("NVIDIA L4", 89, 58, 300.0, 121.0),
        ("NVIDIA L40S", 89, 142, 864.0, 362.0),
        ("NVIDIA GeForce RTX 3090", 86, 82, 936.0, 71.0),
        ("NVIDIA GeForce RTX 4090", 89, 128, 1008.0, 165.2),
        ("NVIDIA GeForce RTX 5090", 120, 170, 1792.0, 209.5),
        ("NVIDIA H100 PCIe", 90, 114, 2000.0, 756.0),
        ("NVIDIA H100 NVL", 90, 132, 3938.0, 835.0),
        ("NVIDIA H200 NVL", 90, 132, 4800.0, 835.0),
        ("NVIDIA GH200 120GB", 90, 132, 4000.0, 990.0),
        ("NVIDIA GH200 480GB", 90, 132, 4000.0, 990.0),
        ("NVIDIA GH200 144G HBM3e", 90, 132, 4900.0, 990.0),
        ("NVIDIA H20", 90, 78, 4000.0, 148.0),
        ("NVIDIA B200", 100, 148, 8000.0, 2250.0),
        ("NVIDIA B300", 103, 148, 8000.0, 2250.0),
        ("NVIDIA B300 SXM6 AC", 103, 148, 8000.0, 2250.0),
    ];
    for (name, capability, sm_count, hbm, half) in cases {
        let [got_hbm, got_half, f32_, f64_] = rates(name, capability, sm_count);
        assert!((got_hbm - 0.8 * hbm).abs() < 1e-9 && (got_half - 0.8 * half).abs() < 1e-9, "{name}");
        // A digit too many would show beside the rate of as many multiprocessors.
        let [_, _, f32_by_sm, _] = rates("", capability, sm_count);
        assert!((0.4..2.6).contains(&(f32_ / f32_by_sm)), "{name}: {f32_} TFLOP/s of f32");
        assert!(f64_ > 0.0, "{name}");
    }
}

#[test]
fn a_name_that_only_contains_a_known_one_is_not_that_card() {
    for (name, known) in [
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H200 of another kind", "NVIDIA H200"),
        ("NVIDIA A100X", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA L40", "NVIDIA L40S"),
    ] {
        assert_ne!(rates(name, 90, 60), rates(known, 90, 60), "{name}");
        assert_eq!(rates(name, 90, 60), rates("", 90, 60), "{name}");
    }
}

#[test]
fn unknown_cards_have_the_rates_of_their_architecture() {
    let hbm = |capability| rates("", capability, 100)[0];
    let half = |capability| rates("", capability, 100)[1];
    assert!(hbm(100) > 2.0 * hbm(90) && hbm(103) == hbm(100), "HBM3e of Blackwell's data centre cards");
    assert!(hbm(120) < hbm(80) && hbm(121) < hbm(120) && hbm(110) < hbm(120), "GDDR and LPDDR");
    assert!(half(100) == 2.0 * half(90) && half(90) == 2.0 * half(80), "tensor cores of data centre cards");
    assert!(half(120) == half(89) && 16.0 * half(120) == half(100), "tensor cores of GeForce cards");
}

#[test]
fn a_model_says_where_its_rates_come_from() {
    let model = ArchModel::of;
    assert_eq!(model("NVIDIA H100 80GB HBM3", 90, 132).source, Source::Measured);
    assert_eq!(model("NVIDIA A100-SXM4-80GB", 80, 108).source, Source::DataSheet);
    assert_eq!(model("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 90, 60).source, Source::Architecture);
}

/// The highest clocks of the products, which the data sheets' rates of f32 imply.
#[test]
fn clocks_follow_from_the_rate_of_f32() {
    for (name, capability, sm_count, ghz) in [
        ("NVIDIA A100-SXM4-80GB", 80, 108, 1.41),
        ("NVIDIA H100 PCIe", 90, 114, 1.755),
        ("NVIDIA L40S", 89, 142, 2.52),
        ("NVIDIA GeForce RTX 4090", 89, 128, 2.52),
        ("NVIDIA GeForce RTX 5090", 120, 170, 2.407),
        ("NVIDIA H100 80GB HBM3", 90, 132, 1.98),
    ] {
        let model = ArchModel::of(name, capability, sm_count);
        assert!((model.clock_ghz / ghz - 1.0).abs() < 0.01, "{name}: {} GHz", model.clock_ghz);
    }
}

/// What has no data sheet's number scales from the H100's by clock and memory, and what a multiprocessor loads fits the card.
#[test]
fn numbers_of_unmeasured_cards_scale() {
    let h100 = DeviceInfo::h100().model;
    assert_eq!((h100.latency_us, h100.cluster_reach), (1.22, [120.0 / 132.0, 112.0 / 132.0]));
    assert!((h100.pull_gbps() - 50.0).abs() < 1e-9 && h100.shared_bytes == 228 * 1024);
    assert_eq!([1, 2, 4, 8].map(|blocks| h100.reached(132, blocks)), [132, 132, 120, 112]);
    let h200 = DeviceInfo::h200().model;
    assert!((h200.latency_us / h100.latency_us - 3120.0 / 4300.0).abs() < 1e-9, "loads queue for less time");
    for (name, capability, sm_count) in
        [("NVIDIA A100-SXM4-80GB", 80, 108), ("NVIDIA L4", 89, 58), ("NVIDIA B200", 100, 148), ("", 120, 84)]
    {
        let model = ArchModel::of(name, capability, sm_count);
        let share = model.memory_gbps / f64::from(sm_count);
        assert!(model.pull_gbps() > share && model.pull_gbps() < 2.2 * share, "{name}: {} GB/s", model.pull_gbps());
        assert!(model.latency_us >= 0.6 && model.tf32_tflops == 0.5 * model.half_tflops, "{name}");
    }
}
