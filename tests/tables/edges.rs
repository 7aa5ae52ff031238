//! Edges of what kernels take, by hand: Rust's limits and the checks of launch functions are made of the same lines of family.toml, and this
//! file knows neither. The numbers come from what the device code can address: 32-bit indices, grid dimensions, vectors, boxes of TMA.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::family::by_name;
use candle_tilegemm::kernel::KernelDesc;
use candle_tilegemm::problem::{BiasAxis, Epilogue, Gate, Groups, Operand, Scale};
use candle_tilegemm::{F32Mode, Format, Layout, Problem};
use Format::{BF16, F16, F32, F64};

/// A kernel, a problem that it takes, and the nearest one that it refuses.
struct Edge {
    kernel: &'static str,
    within: Problem,
    beyond: Problem,
}

/// More than INT_MAX / 2 by one.
const HALF: usize = 1 << 30;

fn edge(kernel: &'static str, within: Problem, beyond: Problem) -> Edge {
    Edge { kernel, within, beyond }
}

fn nt(format: Format, [m, n, k, batch]: [usize; 4]) -> Problem {
    Problem::dense(m, n, k, batch, Layout::NT, format)
}

fn nn(format: Format, [m, n, k, batch]: [usize; 4]) -> Problem {
    Problem::dense(m, n, k, batch, Layout::NN, format)
}

/// With rows of A, columns of B and rows of D so many elements apart.
fn apart(problem: Problem, [a, b, d]: [i64; 3]) -> Problem {
    problem.with(|p| (p.a.row_stride, p.b.col_stride, p.d.row_stride) = (a, b, d))
}

fn tf32(sizes: [usize; 4]) -> Problem {
    nt(F32, sizes).with(|p| p.f32_mode = F32Mode::Tf32)
}

/// Rows times the weights of a GGUF file, to results in `out`.
fn gguf([a, b, out]: [Format; 3], sizes: [usize; 4]) -> Problem {
    nt(a, sizes).with(|p| (p.b.format, p.d.format) = (b, out))
}

/// Rows of bf16 times narrow weights, with a factor for so many numbers of each row.
fn narrow(b: Format, sizes: [usize; 3], group: u32) -> Problem {
    Problem::narrow(sizes, BF16, b, Some(Scale::of_groups(F16, group, sizes[1])))
}

fn grouped(sizes: [usize; 3]) -> Problem {
    Problem::grouped(sizes, Groups::new(3), BF16)
}

fn gguf_grouped(sizes: [usize; 3]) -> Problem {
    grouped(sizes).with(|p| (p.a.format, p.b.format, p.d.format) = (F32, Format::Q4K, F32))
}

fn gated(problem: Problem) -> Problem {
    problem.with(|p| {
        p.epilogue.gate = Some(Gate::Halves);
        p.d.row_stride = p.n as i64 / 2;
    })
}

fn biased(problem: Problem) -> Problem {
    problem.with(|p| p.epilogue.bias = Some(BiasAxis::N))
}

/// Adds C, in the place of D or `off` elements behind in each row.
fn added(problem: Problem, off: i64) -> Problem {
    problem.with(|p| {
        p.epilogue = Epilogue::new(1.0, 1.0);
        p.epilogue.c = Some(p.d.with(|c| c.row_stride += off));
    })
}

fn misaligned(problem: Problem, operand: impl Fn(&mut Problem) -> &mut Operand, bytes: u32) -> Problem {
    problem.with(|p| operand(p).pointer_align = bytes)
}

/// Two batch dimensions that no single stride leads through.
fn two_batches(problem: Problem) -> Problem {
    problem.with(|p| {
        p.batch = [3, p.batch[1]];
        for (operand, gap) in [(&mut p.a, 8), (&mut p.b, 16), (&mut p.d, 24)] {
            operand.batch_stride[0] = operand.batch_stride[1] * p.batch[1] as i64 + gap;
        }
    })
}

fn few_rows() -> Vec<Edge> {
    let gemv = "gemv_sm90_bf16_nt_8x2x512_1x1";
    let gevm = "gevm_sm90_bf16_nn_4x64x32_1x1";
    let outer = "outer_sm90_f32_any_16x128x1_1x1";
    let skinny = "sm90_few_rows_bf16_nt_128x64x128_1x1_s8";
    vec![
        edge(gemv, nt(BF16, [8, 64, 512, 1]), nt(BF16, [9, 64, 512, 1])),
        edge(gemv, nt(BF16, [1, HALF - 1, 8, 1]), nt(BF16, [1, HALF, 8, 1])),
        // The grid's y has 65,535 blocks.
        edge(gemv, nt(BF16, [1, 64, 64, 65_535]), nt(BF16, [1, 64, 64, 65_536])),
        // Vectors of 16 bytes.
        edge(gemv, nt(BF16, [4, 64, 1032, 1]), apart(nt(BF16, [4, 64, 1028, 1]), [1032, 1032, 64])),
        edge(gemv, nt(BF16, [4, 64, 512, 1]), misaligned(nt(BF16, [4, 64, 512, 1]), |p| &mut p.b, 8)),
        edge(gemv, nt(BF16, [4, 64, 512, 1]), apart(nt(BF16, [4, 64, 512, 1]), [516, 512, 64])),
        edge(gevm, nn(BF16, [4, 264, 512, 1]), nn(BF16, [5, 264, 512, 1])),
        edge(gevm, nn(BF16, [2, 264, 512, 1]), nn(BF16, [2, 260, 512, 1]).with(|p| p.b.row_stride = 264)),
        edge(outer, nt(F32, [64, 64, 1, 1]), nt(F32, [64, 64, 2, 1])),
        // 2^31 blocks of 16 x 64 are one too many for the grid's x.
        edge(outer, nn(F32, [1 << 23, 64 * 4095, 1, 1]), nn(F32, [1 << 23, 64 * 4096, 1, 1])),
        edge(outer, nn(F32, [16, 64, 1, 65_535]), nn(F32, [16, 64, 1, 65_536])),
        edge(skinny, nt(BF16, [128, 512, 1024, 1]), nt(BF16, [129, 512, 1024, 1])),
        edge(skinny, nt(BF16, [16, 64, 1024, 65_535]), nt(BF16, [16, 64, 1024, 65_536])),
        edge(skinny, nt(BF16, [16, 64, 1024, 2]), two_batches(nt(BF16, [16, 64, 1024, 2]))),
        // Rows are taken without TMA where they are at any multiple of 2 bytes; the activations are not.
        edge(
            "sm90_few_rows_bf16_nt_128x64x128_1x1_s8_align2",
            apart(nt(BF16, [16, 512, 1024, 1]), [1024, 1025, 512]),
            apart(nt(BF16, [16, 512, 1024, 1]), [-1024, 1025, 512]),
        ),
        edge(
            "sm90_wave_bf16_nt_128x224x64_2x1_s2",
            nt(BF16, [200, 512, 1024, 1]),
            misaligned(nt(BF16, [200, 512, 1024, 1]), |p| &mut p.a, 8),
        ),
    ]
}

/// Gates in the first half of the columns, of one matrix, without a bias; TMA reads A and B, and D lies anywhere.
fn gates() -> Vec<Edge> {
    let kernel = "sm90_gated_bf16_nt_128x128x64_2x1";
    let plain = gated(nt(BF16, [200, 512, 1024, 1]));
    vec![
        edge(kernel, plain, nt(BF16, [200, 512, 1024, 1])),
        edge(kernel, plain, plain.with(|p| p.epilogue.gate = Some(Gate::Interleaved))),
        edge(kernel, plain, biased(plain)),
        edge(kernel, plain, gated(nt(BF16, [200, 512, 1024, 2]))),
        edge(kernel, gated(nt(BF16, [200, 514, 1024, 1])), gated(nt(BF16, [200, 513, 1024, 1]))),
        edge(kernel, misaligned(plain, |p| &mut p.d, 2), misaligned(plain, |p| &mut p.a, 8)),
        edge(kernel, plain.with(|p| p.d.row_stride = 257), apart(plain, [1028, 1024, 256])),
        edge(kernel, gated(nt(BF16, [8, HALF - 2, 8, 1])), gated(nt(BF16, [8, HALF, 8, 1]))),
    ]
}

fn gguf_and_groups() -> Vec<Edge> {
    let gemv = "gguf_gemv_sm90_f32_q4k_nt_16x16x4096_1x1_align4";
    let grouped_gemv = "gguf_grouped_gemv_sm90_f32_q4k_nt_8x16x4096_1x1_align4";
    let gemm = "sm90_gguf_gemm_f32_q4k_nt_32x128x256_1x1_align4";
    let grouped_gemm = "sm90_gguf_grouped_gemm_f32_q4k_nt_64x128x256_1x1_align4";
    let experts = "sm90_grouped_gemm_bf16_nt_32x128x64_1x1";
    let types = [F32, Format::Q4K, F32];
    let mut edges = vec![
        edge(gemv, gguf(types, [8, 256, 512, 1]), gguf(types, [8, 256, 512, 2])),
        edge(gemv, gguf(types, [8, 256, 512, 1]), misaligned(gguf(types, [8, 256, 512, 1]), |p| &mut p.b, 2)),
        // Half a block.
        edge(gemv, gguf(types, [8, 256, 512, 1]), apart(gguf(types, [8, 256, 384, 1]), [512, 512, 256])),
        edge(gemm, gguf(types, [32, 256, 512, 1]), gguf(types, [32, 256, 512, 2])),
        edge(gemm, gguf(types, [32, 256, 512, 1]), biased(gguf(types, [32, 256, 512, 1]))),
        edge(grouped_gemm, gguf_grouped([64, 256, 512]), gguf(types, [64, 256, 512, 1])),
        edge(grouped_gemm, gguf_grouped([64, 256, 512]), biased(gguf_grouped([64, 256, 512]))),
        edge(grouped_gemv, gguf_grouped([64, 256, 512]), gguf(types, [64, 256, 512, 1])),
        edge(grouped_gemv, biased(gguf_grouped([64, 256, 512])), gated(gguf_grouped([64, 256, 512]))),
    ];
    for kernel in [experts, "sm80_grouped_gemm_sm90_bf16_nt_128x128x32_1x1_w4"] {
        edges.extend([
            edge(kernel, grouped([64, 256, 512]), nt(BF16, [64, 256, 512, 1])),
            edge(kernel, grouped([64, 264, 512]), grouped([64, 260, 512]).with(|p| p.d.row_stride = 264)),
            edge(kernel, gated(grouped([64, 272, 512])), gated(grouped([64, 264, 512])).with(|p| p.d.row_stride = 136)),
            edge(kernel, grouped([64, 256, 512]), biased(grouped([64, 256, 512]))),
            edge(kernel, grouped([64, 256, 512]), misaligned(grouped([64, 256, 512]), |p| &mut p.d, 8)),
            edge(kernel, grouped([64, 256, 520]), apart(grouped([64, 256, 516]), [520, 520, 256])),
        ]);
    }
    edges
}

/// Codes of 4 bits in whole blocks of 32; factors of a known format for some numbers; zeros of what is counted from them.
fn narrow_weights() -> Vec<Edge> {
    let u4 = "reference_sm90_bf16_u4_any_16x16x1_1x1";
    let f4 = "reference_sm90_bf16_f4e2m1_any_16x16x1_1x1";
    let f8 = "reference_sm90_bf16_f8e4m3_any_16x16x1_1x1";
    let plain = narrow(Format::U4, [3, 8, 100], 48);
    let scaled = |problem: Problem, change: fn(&mut Scale)| problem.with(|p| p.b.scale.iter_mut().for_each(change));
    let fp8 = narrow(Format::F8E4M3, [3, 8, 100], 48);
    vec![
        edge(u4, plain, plain.with(|p| p.b.col_stride = 112)),
        edge(u4, plain, plain.with(|p| p.b.row_stride = 2)),
        edge(f4, narrow(Format::F4E2M1, [3, 8, 1], 1), narrow(Format::F4E2M1, [3, 8, 64], 0)),
        edge(u4, scaled(plain, |scale| scale.zeros = true), scaled(plain, |scale| scale.format = F64)),
        edge(f8, fp8, scaled(fp8, |scale| scale.zeros = true)),
        edge(
            f8,
            fp8.with(|p| (p.b.row_stride, p.b.col_stride) = (9, 1)),
            scaled(fp8, |scale| scale.format = Format::I8),
        ),
        edge(f8, fp8.with(|p| p.b.pointer_align = 1), fp8.with(|p| p.d.scale = Some(Scale::of_tensor(F32)))),
    ]
}

/// Rows of A times rows of W in 8 bits, with these factors, to bf16.
fn fp8(sizes: [usize; 3], of_a: Scale, of_w: Scale) -> Problem {
    let format = Format::F8E4M3;
    Problem::narrow(sizes, format, format, Some(of_w)).with(|p| (p.a.scale, p.d.format) = (Some(of_a), BF16))
}

/// Factors of all, of rows, and of 1 x 128 of A by 128 x 128 of W, all in f32; lines at multiples of 16 bytes; one matrix.
fn eight_bits() -> Vec<Edge> {
    let few = "sm90_fp8_few_rows_f8e4m3_bf16_nt_64x64x256_1x1_s8";
    let many = "sm90_fp8_gemm_f8e4m3_bf16_nt_128x256x128_1x1_s2";
    let fast = "sm90_fp8_gemm_f8e4m3_bf16_fast_accum_nt_128x256x128_1x1";
    let reference = "reference_sm90_f8e4m3_bf16_any_16x16x1_1x1";
    let [tensor, rows] = [Scale::of_tensor(F32), Scale::of_rows(F32)];
    let rows_of_a = Scale::new(F32, [1, u32::MAX], [1, 0]);
    let blocks = |n: u32, k: u32| Scale::of_blocks(F32, [n, k], 1024);
    let of_a = |k: u32| Scale::new(F32, [1, k], [1, 64]);
    let sizes = [64, 512, 1024];
    let mut edges = vec![
        edge(few, fp8(sizes, tensor, tensor), fp8([65, 512, 1024], tensor, tensor)),
        edge(few, fp8([1, HALF - 1, 16], tensor, tensor), fp8([1, HALF, 16], tensor, tensor)),
        edge(
            fast,
            fp8(sizes, tensor, rows).with(|p| p.fast_accumulation = true),
            fp8(sizes, of_a(128), blocks(128, 128)).with(|p| p.fast_accumulation = true),
        ),
        edge(many, fp8([1 << 22, 64 * 32_767, 16], tensor, tensor), fp8([1 << 22, 64 * 32_768, 16], tensor, tensor)),
        // A K that is no multiple of anything, in lines that are.
        edge(
            many,
            apart(fp8([64, 512, 17], tensor, rows), [32, 32, 512]),
            apart(fp8([64, 512, 17], tensor, rows), [24, 32, 512]),
        ),
        edge(reference, fp8(sizes, of_a(64), blocks(32, 96)), fp8(sizes, tensor.with_zeros(), tensor)),
    ];
    for kernel in [few, many] {
        let all = fp8(sizes, of_a(128), blocks(128, 128));
        edges.extend([
            edge(kernel, fp8(sizes, rows_of_a, rows), fp8(sizes, rows_of_a, blocks(64, 1024))),
            edge(kernel, all, fp8(sizes, of_a(64), blocks(128, 64))),
            edge(kernel, all, fp8(sizes, of_a(128), blocks(64, 128))),
            edge(kernel, all, fp8(sizes, of_a(128), rows)),
            edge(kernel, all, all.with(|p| p.a.scale = None)),
            edge(kernel, fp8(sizes, tensor, rows), fp8(sizes, Scale::of_tensor(BF16), rows)),
            edge(kernel, all, misaligned(all, |p| &mut p.b, 8)),
            edge(kernel, misaligned(biased(added(all, 1)), |p| &mut p.d, 2), apart(all, [1032, 1024, 512])),
            edge(kernel, all, two_batches(nt(Format::F8E4M3, [64, 512, 1024, 2]).with(|p| p.d.format = BF16))),
        ]);
    }
    edges
}

/// Few rows of narrow weights: tiles of 16 rows, TMA, and groups that are multiples of what a warp multiplies at a time.
fn few_rows_of_narrow_weights() -> Vec<Edge> {
    let u4 = "narrow_gemv_sm90_bf16_u4_nt_16x512x256_1x1";
    let f4 = "narrow_gemv_sm90_bf16_f4e2m1_nt_16x512x256_1x1";
    let i8 = "narrow_gemv_sm90_bf16_i8_nt_16x512x128_1x1";
    let plain = narrow(Format::U4, [3, 512, 1024], 128);
    let of_16 = |format: Format| {
        narrow(Format::F4E2M1, [3, 512, 1024], 16).with(|p| p.b.scale.iter_mut().for_each(|s| s.format = format))
    };
    let far = |stride: i64| plain.with(|p| p.b.scale.iter_mut().for_each(|scale| scale.row_stride = stride));
    vec![
        edge(u4, narrow(Format::U4, [16, 512, 1024], 128), narrow(Format::U4, [17, 512, 1024], 128)),
        edge(u4, narrow(Format::U4, [1, HALF - 1, 32], 32), narrow(Format::U4, [1, HALF, 32], 32)),
        edge(u4, narrow(Format::U4, [3, 512, 1000], 96), narrow(Format::U4, [3, 512, 1000], 48)),
        edge(u4, plain, misaligned(plain, |p| &mut p.b, 8)),
        edge(u4, misaligned(plain, |p| &mut p.a, 2), plain.with(|p| p.b.col_stride = 1 << 41)),
        // Bytes from a group to the next are counted in 32 bits.
        edge(u4, far((1 << 31) - 1), far(1 << 31)),
        edge(u4, plain, far(-512)),
        edge(f4, of_16(Format::F8E4M3), of_16(F16)),
        edge(i8, narrow(Format::I8, [3, 512, 1024], 32), narrow(Format::I8, [3, 512, 1024], 16)),
        edge(i8, narrow(Format::I8, [3, 512, 1024], 64), Problem::narrow([3, 512, 1024], F16, Format::I8, None)),
    ]
}

/// Groups of rows times narrow weights: A and B at multiples of 16 bytes, whole pieces of A, groups of 32 numbers and more, results in f32 anywhere.
fn groups_of_narrow_weights() -> Vec<Edge> {
    let few = "narrow_grouped_gemm_sm90_f32_f8e4m3_nt_8x16x128_1x1";
    let many = "narrow_grouped_gemm_sm90_bf16_u4_f32_nt_32x128x128_1x1";
    let mx = "narrow_grouped_gemm_sm90_f16_f4e2m1_f32_nt_8x16x128_1x1";
    let of = |a: Format, b: Format, sizes: [usize; 3], scale: Scale| {
        let problem = Problem::grouped(sizes, Groups::new(3), a).with_weights(b, Some(scale));
        problem.with(|p| p.d.format = F32)
    };
    let groups = |format: Format, group: u32| Scale::of_groups(format, group, 72);
    let u4 = |group: u32| of(BF16, Format::U4, [64, 72, 1024], groups(F16, group));
    let fp8 = |k: usize| of(F32, Format::F8E4M3, [64, 72, k], Scale::of_blocks(F32, [128, 128], k));
    let f4 = |format: Format, group: u32| of(F16, Format::F4E2M1, [64, 72, 1024], groups(format, group));
    let far = |stride: i64| u4(128).with(|p| p.b.scale.iter_mut().for_each(|scale| scale.row_stride = stride));
    let zeros = u4(128).with(|p| p.b.scale = p.b.scale.map(Scale::with_zeros));
    let dense = Problem::narrow([64, 72, 1024], BF16, Format::U4, Some(groups(F16, 128))).with(|p| p.d.format = F32);
    vec![
        edge(many, u4(32), u4(48)),
        edge(many, zeros, dense),
        edge(many, biased(u4(96)), gated(u4(128))),
        edge(many, misaligned(u4(128), |p| &mut p.d, 4), misaligned(u4(128), |p| &mut p.a, 8)),
        edge(many, u4(128).with(|p| p.d.row_stride = 75), misaligned(u4(128), |p| &mut p.b, 8)),
        edge(few, fp8(1036).with(|p| p.b.col_stride = 1040), fp8(1034).with(|p| p.b.col_stride = 1040)),
        // Shared memory has room for eight rows of A.
        edge(few, fp8(10496), fp8(10500)),
        edge(mx, f4(Format::F8E8M0, 32), f4(Format::F8E4M3, 16)),
        edge(mx, f4(F16, 64), f4(F16, 64).with(|p| p.groups = Some(Groups::new(2001)))),
        edge(many, far((1 << 31) - 1), far(1 << 31)),
    ]
}

/// The same by WGMMA: B by TMA, any K, and a kernel's K is the least number that shares a factor.
fn groups_of_narrow_weights_in_prefill() -> Vec<Edge> {
    let sums = "sm90_narrow_grouped_gemm_bf16_u4_f32_nt_128x128x128_1x1";
    let rows = "sm90_narrow_grouped_gemm_f32_f8e4m3_nt_192x128x256_1x1";
    let mx = "sm90_narrow_grouped_gemm_bf16_f4e2m1_nt_32x128x32_1x1";
    let of = |a: Format, b: Format, [m, k, count]: [usize; 3], scale: Scale| {
        let problem = Problem::grouped([m, 72, k], Groups::new(count), a).with_weights(b, Some(scale));
        problem.with(|p| p.d.format = F32)
    };
    let u4 = |group: u32| of(BF16, Format::U4, [64, 1024, 3], Scale::of_groups(F16, group, 72));
    let fp8 = |m: usize, count: usize| of(F32, Format::F8E4M3, [m, 1040, count], Scale::of_rows(F32));
    let f4 = |format: Format, group: u32| {
        let scale = Scale::of_groups(format, group, 72);
        of(BF16, Format::F4E2M1, [64, 1024, 3], scale).with(|p| p.d.format = BF16)
    };
    let zeros = u4(128).with(|p| p.b.scale = p.b.scale.map(Scale::with_zeros));
    let dense = Problem::narrow([64, 72, 1024], BF16, Format::U4, Some(Scale::of_groups(F16, 128, 72)));
    let blocks = of(F32, Format::F8E4M3, [64, 1040, 3], Scale::of_blocks(F32, [128, 128], 1040));
    vec![
        edge(sums, u4(256), u4(64)),
        edge(sums, zeros, dense.with(|p| p.d.format = F32)),
        edge(sums, biased(u4(128)), gated(u4(128))),
        edge(sums, misaligned(u4(128), |p| &mut p.d, 4), misaligned(u4(128), |p| &mut p.a, 8)),
        edge(sums, u4(128).with(|p| p.d.row_stride = 75), misaligned(u4(128), |p| &mut p.b, 8)),
        edge(sums, u4(128).with(|p| p.k = 1003), u4(128).with(|p| p.a.row_stride = 1028)),
        edge(rows, fp8(64, 4096), fp8(64, 4097)),
        edge(rows, fp8(480, 481), fp8(481, 481)),
        edge(rows, fp8(64, 3), blocks),
        edge(mx, f4(Format::F8E8M0, 64), f4(F16, 64)),
        edge(mx, f4(Format::F8E8M0, 32), f4(Format::F8E4M3, 16)),
    ]
}

/// TMA reads A and B in lines at multiples of 16 bytes; a kernel's K is the least number that shares a factor.
fn narrow_tiles() -> Vec<Edge> {
    let u4 = "sm90_narrow_gemm_bf16_u4_nt_16x128x128_1x1";
    let u4_32 = "sm90_narrow_gemm_bf16_u4_nt_64x128x32_1x1";
    let f8 = "sm90_narrow_gemm_bf16_f8e4m3_nt_128x128x256_1x1";
    let mx = "sm90_narrow_gemm_bf16_f4e2m1_nt_64x128x32_1x1";
    let nv = "sm90_narrow_gemm_bf16_f4e2m1_nt_64x128x16_1x1";
    let plain = narrow(Format::U4, [20, 72, 1000], 128);
    let scaled = |problem: Problem, scale: Scale| problem.with(|p| p.b.scale = Some(scale));
    let groups = |format: Format, group: u32| Scale::of_groups(format, group, 72);
    let (fp8, fp4) = (narrow(Format::F8E4M3, [20, 72, 1000], 1000), narrow(Format::F4E2M1, [20, 72, 1000], 32));
    vec![
        edge(u4, plain, scaled(plain, groups(F16, 64))),
        edge(u4, scaled(plain, groups(F32, 256).with_zeros()), scaled(plain, groups(Format::F8E8M0, 128))),
        edge(u4, scaled(plain, Scale::of_rows(BF16)), scaled(plain, groups(F16, 192))),
        edge(u4, misaligned(plain, |p| &mut p.d, 2), misaligned(plain, |p| &mut p.a, 8)),
        edge(u4, plain.with(|p| p.d.row_stride = 73), plain.with(|p| p.a.row_stride = 1004)),
        edge(u4, biased(plain), misaligned(plain, |p| &mut p.b, 8)),
        edge(u4, added(plain, 1), plain.with(|p| p.epilogue.gate = Some(Gate::Halves))),
        edge(u4, narrow(Format::U4, [16, HALF - 1, 32], 128), narrow(Format::U4, [16, HALF, 32], 128)),
        edge(u4_32, scaled(plain, groups(BF16, 96)), scaled(plain, groups(BF16, 48))),
        edge(u4_32, scaled(plain, groups(F16, 64)), scaled(plain, groups(F32, 64))),
        edge(f8, fp8, narrow(Format::F8E4M3, [20, 72, 1000], 512)),
        edge(f8, scaled(fp8, Scale::of_blocks(Format::F8E8M0, [5, 1000], 1000)), fp8.with(|p| p.b.col_stride = 1004)),
        edge(mx, scaled(fp4, groups(Format::F8E8M0, 32)), fp4),
        edge(nv, scaled(fp4, groups(Format::F8E4M3, 16)), scaled(fp4, groups(Format::F8E4M3, 8))),
    ]
}

fn f32_and_f64() -> Vec<Edge> {
    let simt = "simt_gemm_sm90_f32_nt_128x128x8_1x1";
    let parts = "sm90_bf16x6_f32_nt_128x64x32_1x1";
    let direct = "sm90_bf16x6_direct_f32_nt_64x64x32_1x1";
    let by_tf32 = "sm90_tf32_f32_nt_128x64x32_2x1";
    let (sgemm, dgemm) = ("sm90_sgemm_f32_nt_128x128x32_1x1", "sm90_dgemm_f64_nt_64x128x16_1x1");
    vec![
        edge(simt, apart(nt(F32, [128, 128, 64, 1]), [68, 64, 129]), apart(nt(F32, [128, 128, 64, 1]), [66, 64, 129])),
        edge(simt, nt(F32, [8, 8, 64, 1]), misaligned(nt(F32, [8, 8, 64, 1]), |p| &mut p.a, 8)),
        edge("split_k_sm90_f32_any_64x64x16_1x1", nt(F32, [8, 8, 1, 1]), nt(F32, [8, 8, 0, 1])),
        // The sums of the lowest parts are left out: a short K would show it.
        edge(parts, nt(F32, [256, 256, 64, 1]), nt(F32, [256, 256, 63, 1]).with(|p| p.a.row_stride = 64)),
        edge(direct, nt(F32, [256, 256, 64, 1]), apart(nt(F32, [256, 256, 63, 1]), [64, 64, 256])),
        edge(direct, nt(F32, [256, 256, 128, 1]), misaligned(nt(F32, [256, 256, 128, 1]), |p| &mut p.b, 8)),
        edge("sm80_gemm_sm90_f32_bf16x6_nt_64x64x32_1x1_w4_align4", nt(F32, [64, 64, 64, 1]), nt(F32, [64, 64, 63, 1])),
        edge(
            "sm80_gemm_sm90_f32_bf16x6_nt_128x64x32_1x1_w4",
            nt(F32, [256, 256, 256, 1]),
            apart(nt(F32, [256, 256, 255, 1]), [256, 256, 256]),
        ),
        edge("sm80_gemm_sm90_f32_tf32_nt_64x64x32_1x1_w4_align4", tf32([64, 64, 32, 1]), tf32([64, 64, 31, 1])),
        edge(by_tf32, tf32([256, 256, 32, 1]), apart(tf32([256, 256, 31, 1]), [32, 32, 256])),
        // A store by TMA writes whole multiples of 16 bytes.
        edge(by_tf32, tf32([256, 260, 64, 1]), tf32([256, 258, 64, 1]).with(|p| p.d.row_stride = 260)),
        edge(sgemm, nt(F32, [256, 256, HALF / 2 - 4, 1]), nt(F32, [256, 256, HALF / 2, 1])),
        edge(dgemm, nt(F64, [256, 256, 256, 1]), misaligned(nt(F64, [256, 256, 256, 1]), |p| &mut p.a, 8)),
        edge(dgemm, nt(F64, [8, HALF / 2 - 1, 16, 1]), nt(F64, [8, HALF / 2, 16, 1])),
    ]
}

fn half_precision() -> Vec<Edge> {
    let cutlass = "sm90_gemm_bf16_nt_128x256x64_2x1_cooperative";
    let tile = "tile_gemm_sm90_bf16_nt_256x256x64_2x1_w8";
    let mma = "sm80_gemm_sm90_bf16_nt_64x64x64_1x1_w4";
    let tcgen05 = "sm100_gemm_bf16_nt_128x128x64_1x1";
    let plain = nt(BF16, [256, 512, 256, 1]);
    let thin = |n: usize| nt(BF16, [256, n, 256, 1]).with(|p| p.d.row_stride = 520);
    let mut edges = vec![
        // CUTLASS's scheduler steps over as many clusters as there are, past the last one.
        edge(cutlass, nt(BF16, [8, 8, 8, 8_388_607]), nt(BF16, [8, 8, 8, 8_388_608])),
        // CUTLASS rounds extents up to tiles in an int.
        edge(cutlass, nt(BF16, [8, (1 << 31) - 1032, 8, 1]), nt(BF16, [8, (1 << 31) - 1024, 8, 1])),
        edge(cutlass, nt(BF16, [256, 512, 256, 2]), two_batches(nt(BF16, [256, 512, 256, 2]))),
        edge(cutlass, added(plain, 0), added(plain, 4)),
        edge(cutlass, plain, misaligned(plain, |p| &mut p.d, 8)),
        edge(cutlass, added(plain, 0), added(plain, 1 << 39)),
        edge(tile, added(plain, 8), added(plain, 4)),
        edge(tile, nt(BF16, [HALF - 1, 8, 8, 1]), nt(BF16, [HALF, 8, 8, 1])),
        edge(tile, nt(BF16, [256, 512, 264, 1]), apart(nt(BF16, [256, 512, 260, 1]), [264, 264, 512])),
        edge(mma, apart(plain, [264, 256, 513]), apart(plain, [260, 256, 513])),
        edge(mma, nt(BF16, [HALF - 1, 8, 64, 1]), nt(BF16, [HALF, 8, 64, 1])),
        edge("reference_sm90_f16_any_16x16x1_1x1", gated(nt(F16, [16, 16, 8, 1])), gated(nt(F16, [16, 15, 8, 1]))),
        edge(tcgen05, apart(plain, [264, 256, 513]), apart(plain, [260, 256, 513])),
        edge(tcgen05, nt(BF16, [8, HALF - 1, 8, 1]), nt(BF16, [8, HALF, 8, 1])),
    ];
    // The most bytes from line to line in a tensor map, and no line before the first.
    for kernel in [cutlass, tile, tcgen05] {
        let far = |stride: i64| plain.with(|p| p.a.row_stride = stride);
        edges.extend([edge(kernel, far((1 << 39) - 8), far(1 << 39)), edge(kernel, plain, far(-256))]);
    }
    edges.extend([cutlass, tile].map(|kernel| edge(kernel, thin(512), thin(508))));
    edges
}

fn edges() -> impl Iterator<Item = (&'static KernelDesc, DeviceInfo, Problem, Problem)> {
    let all = [
        few_rows(),
        gates(),
        gguf_and_groups(),
        narrow_weights(),
        few_rows_of_narrow_weights(),
        groups_of_narrow_weights(),
        groups_of_narrow_weights_in_prefill(),
        narrow_tiles(),
        eight_bits(),
        f32_and_f64(),
        half_precision(),
    ]
    .into_iter()
    .flatten();
    all.map(|Edge { kernel, within, beyond }| {
        let kernel = by_name(kernel).unwrap_or_else(|| panic!("{kernel} is no kernel"));
        let device =
            if kernel.arch.capability == 100 { DeviceInfo::by_name("b200").unwrap() } else { DeviceInfo::h100() };
        (kernel, device, within.canonical().problem, beyond.canonical().problem)
    })
}

#[test]
fn limits_are_where_the_device_code_has_its_edges() {
    for (kernel, device, within, beyond) in edges() {
        if let Err(rejection) = kernel.supports(&within, &device) {
            panic!("{kernel} refuses {within}: {rejection}");
        }
        assert!(kernel.supports(&beyond, &device).is_err(), "{kernel} takes {beyond}");
    }
}

/// A cluster of two blocks needs two multiprocessors.
#[test]
fn clusters_need_their_multiprocessors() {
    let kernel = by_name("sm90_gemm_bf16_nt_128x256x64_2x1_cooperative").unwrap();
    let problem = nt(BF16, [256, 512, 256, 1]).canonical().problem;
    for (sm_count, takes) in [(1, false), (2, true)] {
        let mut device = DeviceInfo::h100();
        device.sm_count = sm_count;
        assert_eq!(kernel.supports(&problem, &device).is_ok(), takes, "{sm_count} multiprocessors");
    }
}

/// Launch functions, in the configuration of the problem within, for every kernel here that is in the build.
#[cfg(feature = "cuda")]
#[test]
fn launch_functions_have_the_same_edges() {
    use candle_tilegemm::internal::launch::rehearse;
    for (kernel, device, within, beyond) in edges().filter(|(kernel, ..)| kernel.is_built()) {
        let configurations = kernel.configurations(&within, &device);
        let config = crate::contract::numbers(configurations.first().unwrap_or_else(|| panic!("{kernel}: {within}")));
        let takes = |problem| rehearse(kernel, problem, config, device.sm_count).unwrap().is_some();
        assert!(takes(&within), "{kernel} refuses {within}");
        assert!(!takes(&beyond), "{kernel} takes {beyond}");
    }
}
