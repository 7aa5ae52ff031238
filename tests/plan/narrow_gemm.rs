//! Which kernels of `sm90_narrow_gemm` take which factors, and where the dispatcher takes them.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Planned, Policy};
use candle_tilegemm::family::{by_name, KERNELS};
use candle_tilegemm::kernel::Rejection;
use candle_tilegemm::problem::{BiasAxis, Epilogue, Scale};
use candle_tilegemm::{Activation, Format, Problem};
use std::sync::Arc;
use Format::{BF16, F16, F32, F4E2M1, F8E4M3, F8E8M0, I8, U4, U8};

const FAMILY: &str = "sm90_narrow_gemm";

fn plan(problem: &Problem) -> Arc<Planned> {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h200()).without_tuning();
    dispatcher.plan(problem, Policy::own()).unwrap_or_else(|error| panic!("{problem}: {error}"))
}

fn narrow(sizes: [usize; 3], a: Format, b: Format, scale: Scale) -> Problem {
    Problem::narrow(sizes, a, b, Some(scale)).canonical().problem
}

/// Weights as checkpoints have them get a kernel of the family at 64 rows, with any epilogue that one B has, and without a copy.
#[test]
fn the_formats_of_checkpoints_have_kernels() {
    let (n, k) = (14336, 4096);
    for (b, scale, unit) in [
        (U4, Scale::of_groups(F16, 128, n).with_zeros(), 128),
        (U4, Scale::of_groups(BF16, 128, n), 128),
        (U4, Scale::of_groups(BF16, 64, n), 32),
        (U4, Scale::of_groups(F16, 32, n).with_zeros(), 32),
        (U4, Scale::of_rows(BF16), 128),
        (U8, Scale::of_groups(F16, 128, n), 128),
        (U8, Scale::of_rows(BF16), 128),
        (I8, Scale::of_rows(F32), 256),
        (F8E4M3, Scale::of_tensor(F32), 256),
        (F8E4M3, Scale::of_rows(BF16), 256),
        (F8E4M3, Scale::of_blocks(F32, [128, 128], k), 128),
        (F8E4M3, Scale::of_blocks(BF16, [128, 128], k), 128),
        (F4E2M1, Scale::of_groups(F8E8M0, 32, n), 32),
        (F4E2M1, Scale::of_groups(F8E4M3, 16, n), 16),
    ] {
        let bare = narrow([64, n, k], BF16, b, scale);
        let whole = bare.with(|p| {
            p.epilogue = Epilogue::new(0.5, 1.0);
            (p.epilogue.bias, p.epilogue.activation, p.epilogue.c) = (Some(BiasAxis::N), Activation::Silu, Some(p.d));
        });
        for problem in [bare, whole] {
            let plan = plan(&problem);
            assert_eq!((plan.kernel.family, plan.kernel.tile[2], plan.packing), (FAMILY, unit, None), "{problem}");
        }
    }
}

#[test]
fn other_factors_are_refused_with_what_is_wrong() {
    let of = |b: Format, scale: Scale| narrow([64, 256, 1024], BF16, b, scale);
    let groups = |format: Format, group: u32| Scale::of_groups(format, group, 256);
    for (unit, problem, what) in [
        (128, of(U4, groups(F16, 64)), "are of parts of K that are no multiples of 128"),
        (128, of(U4, groups(F8E8M0, 128)), "are not in f32, f16 or bf16"),
        (32, of(U4, groups(F16, 48)), "are of parts of K that are no multiples of 32"),
        (32, of(U4, groups(F32, 32)), "are not in f16 or bf16"),
        (256, of(F8E4M3, groups(F32, 512)), "are of parts of K; expected one for all of K"),
        (32, of(F4E2M1, groups(F16, 32)), "are not in f8e8m0"),
        (16, of(F4E2M1, groups(F8E4M3, 24)), "are of parts of K that are no multiples of 16"),
        (16, of(F4E2M1, groups(F8E8M0, 16)), "are not in f8e4m3"),
    ] {
        let name = format!("{FAMILY}_bf16_{}_nt_64x128x{unit}_1x1", problem.b.format);
        let kernel = by_name(&name).unwrap_or_else(|| panic!("{name} is no kernel"));
        let refusal = kernel.supports(&problem, &DeviceInfo::h200()).unwrap_err();
        assert_eq!(refusal, Rejection::Factors { operand: "B", what }, "{problem}");
    }
}

/// A part of K has whole stages of 256 or 128 numbers, twice as many in the narrow tiles, and the sums of the parts need room.
#[test]
fn parts_of_k_have_whole_stages_and_room_for_their_sums() {
    let device = DeviceInfo::h200();
    let problem = narrow([16, 512, 1536], BF16, U4, Scale::of_groups(F16, 128, 512));
    let splits = |name: &str, problem: &Problem| -> Vec<u32> {
        let configs = by_name(name).unwrap().configurations(problem, &device);
        configs.iter().map(|config| config.split).collect()
    };
    assert_eq!(splits("sm90_narrow_gemm_bf16_u4_nt_16x128x128_1x1", &problem), [1, 2, 3]);
    assert_eq!(splits("sm90_narrow_gemm_bf16_u4_nt_64x128x128_1x1", &problem), [1, 2, 3, 6]);
    let bytes = narrow([16, 512, 1536], BF16, F8E4M3, Scale::of_rows(F32));
    assert_eq!(splits("sm90_narrow_gemm_bf16_f8e4m3_nt_64x128x256_1x1", &bytes), [1, 2, 3, 4, 6, 12]);
    // More blocks than two waves have no parts.
    let wide = narrow([16, 128 * 132, 4096], BF16, U4, Scale::of_groups(F16, 128, 128 * 132));
    assert_eq!(splits("sm90_narrow_gemm_bf16_u4_nt_16x128x128_1x1", &wide), [1, 2]);
    let parts = plan(&narrow([16, 1024, 14336], BF16, U4, Scale::of_groups(F16, 128, 1024)));
    assert!(parts.config.split > 1 && parts.workspace.best == u64::from(parts.config.split) * 16 * 1024 * 4);
}

/// The copy of weights in 16 bits takes the same time whatever the rows are: many rows pay for it.
#[test]
fn a_long_prefill_runs_on_a_copy() {
    let (n, k) = (14336, 4096);
    let of = |m: usize| plan(&narrow([m, n, k], BF16, U4, Scale::of_groups(F16, 128, n)));
    for m in [32, 64, 128, 256, 512] {
        assert_eq!((of(m).kernel.family, of(m).packing), (FAMILY, None), "{m} rows");
    }
    let of_bytes = plan(&narrow([16384, n, k], BF16, U8, Scale::of_groups(F16, 128, n).with_zeros()));
    assert!(of_bytes.packing.is_some_and(|packing| packing.b && !packing.a), "{}", of_bytes.name());
}

/// Each row of the table is some problem's kernel.
#[test]
fn every_kernel_takes_a_problem() {
    for kernel in KERNELS.iter().filter(|kernel| kernel.family == FAMILY) {
        let scale = match (kernel.types.b, kernel.tile[2]) {
            (F4E2M1, 32) => Scale::of_groups(F8E8M0, 32, 512),
            (F4E2M1, _) => Scale::of_groups(F8E4M3, 16, 512),
            (_, 256) => Scale::of_rows(F32),
            (_, unit) => Scale::of_groups(F16, unit, 512),
        };
        let problem = narrow([kernel.tile[0] as usize, 512, 1024], kernel.types.a, kernel.types.b, scale);
        assert_eq!(kernel.supports(&problem, &DeviceInfo::h200()), Ok(()), "{kernel}");
    }
}
