//! Rust says which problems and configurations a kernel takes, and the kernel's own launch function checks again: the two agree. No test
//! here needs a device.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::family::{by_name, KERNELS};
use candle_tilegemm::internal::launch::rehearse;
use candle_tilegemm::kernel::{KernelDesc, Math, Rejection, Role};
use candle_tilegemm::problem::{power_of_two_in, BiasAxis, Bounds, Epilogue, Gate, Groups, Operand, Rows, Scale};
use candle_tilegemm::{Activation, Config, F32Mode, Format, Layout, Problem};
use proptest::prelude::*;
use std::collections::HashSet;

/// What the families' files ask for.
mod family {
    #![allow(dead_code)] // tests/gpu uses the rest
    include!(concat!(env!("OUT_DIR"), "/cases.rs"));
}

/// The kernels that are linked in.
fn built() -> impl Iterator<Item = &'static KernelDesc> {
    KERNELS.iter().filter(|kernel| kernel.is_built() && kernel.role != Role::Vendor)
}

fn device(kernel: &KernelDesc) -> DeviceInfo {
    let card = match kernel.arch.capability {
        80 => "a100",
        89 => "rtx4090",
        90 => "h100",
        100 => "b200",
        120 => "rtx5090",
        other => panic!("name a card of compute capability {other}"),
    };
    DeviceInfo::by_name(card).unwrap()
}

pub fn numbers(config: &Config) -> [i32; 8] {
    let Config { tile, cluster, split, stages, warps, swap_ab, .. } = *config;
    [tile[0], tile[1], cluster[0], cluster[1], split, stages, warps, swap_ab.into()].map(|x| x as i32)
}

fn takes(kernel: &'static KernelDesc, problem: &Problem, config: [i32; 8]) -> bool {
    rehearse(kernel, problem, config, device(kernel).sm_count).unwrap().is_some()
}

/// A bare product of the kernel's types and layout, in the mode that admits the kernel; gated where it takes no other.
fn dense(kernel: &KernelDesc, [m, n, k, batch]: [usize; 4]) -> Problem {
    let layout = if kernel.layout == Layout::Any { Layout::NT } else { kernel.layout };
    let problem = Problem::dense(m, n, k, batch, layout, kernel.types.a);
    let f32_mode = if kernel.math == Math::Tf32 { F32Mode::Tf32 } else { F32Mode::Accurate };
    let problem = problem.with(|p| (p.b.format, p.d.format, p.f32_mode) = (kernel.types.b, kernel.types.d, f32_mode));
    let problem = problem.with(|p| p.fast_accumulation = kernel.math == Math::FastAccum);
    let grouped = |p: &mut Problem| (p.groups, p.batch) = (Some(Groups::new(3)), [1, 1]);
    let gated = |p: &mut Problem| (p.epilogue.gate, p.d.row_stride) = (Some(Gate::Halves), n as i64 / 2);
    let problem = if kernel.needs_groups() { problem.with(grouped) } else { problem };
    (if kernel.needs_gates() { problem.with(gated) } else { problem }).canonical().problem
}

fn extent(most: usize) -> impl Strategy<Value = usize> {
    prop_oneof![
        1..=80usize,
        (1..=most / 8).prop_map(|eighth| 8 * eighth),
        (1..=most / 64).prop_map(|x| 64 * x),
        1..=most
    ]
}

/// What is varied beside the sizes: for each of A, B and D the elements between lines and before the first element; gaps between
/// matrices; the parts of an epilogue.
#[derive(Debug, Clone, Copy)]
struct Shape {
    sizes: [usize; 4],
    layout: Layout,
    padding: [i64; 3],
    align: [u32; 3],
    outer: usize,
    broadcast: [bool; 3],
    bias: Option<BiasAxis>,
    activation: Activation,
    beta: f64,
    column_major_d: bool,
    groups: Option<Groups>,
    scale: usize,
}

/// Factors of narrow weights of `n` x `k`: of every kind, without a meaning, and none.
fn scales([n, k]: [usize; 2]) -> [Option<Scale>; 9] {
    [
        None,
        Some(Scale::of_tensor(Format::F32)),
        Some(Scale::of_rows(Format::BF16)),
        Some(Scale::of_groups(Format::F16, 128, n)),
        Some(Scale::of_groups(Format::F8E8M0, 32, n)),
        Some(Scale::of_groups(Format::F8E4M3, 7, n).with_zeros()),
        Some(Scale::of_blocks(Format::F32, [128, 128], k)),
        Some(Scale::of_groups(Format::F64, 128, n)),
        Some(Scale::of_groups(Format::F16, 0, n)),
    ]
}

/// Factors of A and of B, of 8 bits both: of every kind that kernels take, of A by either stride, and of others.
fn pairs_of_scales([m, n, k]: [usize; 3]) -> [[Option<Scale>; 2]; 9] {
    const ALL: u32 = u32::MAX;
    let (of_k, rows) = (k.div_ceil(128) as i64, m as i64);
    let [tensor, row] = [Scale::of_tensor(Format::F32), Scale::of_rows(Format::F32)].map(Some);
    let row_of_a = Some(Scale::new(Format::F32, [1, ALL], [1, 0]));
    let along_m = Some(Scale::new(Format::F32, [1, 128], [1, rows]));
    let along_k = Some(Scale::new(Format::F32, [1, 128], [of_k, 1]));
    let blocks = Some(Scale::of_blocks(Format::F32, [128, 128], k));
    [
        [None, None],
        [tensor, tensor],
        [row_of_a, row],
        [along_m, blocks],
        [along_k, blocks],
        [tensor, row],
        [None, blocks],
        [along_m, Some(Scale::of_groups(Format::F32, 128, n))],
        [Some(Scale::of_tensor(Format::BF16)), row],
    ]
}

/// Often none; else few or many groups, with all that groups can have.
fn groups() -> impl Strategy<Value = Option<Groups>> {
    let count = prop_oneof![Just(1usize), 2..=8usize, 100..=1030usize];
    let listed =
        prop_oneof![Just(Rows::InOrder), (1..=9usize).prop_map(|pairs_per_row| Rows::Listed { pairs_per_row })];
    let bounds = prop_oneof![Just(Bounds::FirstRow), Just(Bounds::GroupOfRow)];
    let some = (count, bounds, listed, any::<bool>()).prop_map(|(count, bounds, listed, scaled)| {
        Some(Groups::new(count).with(|g| (g.bounds, g.rows, g.scaled) = (bounds, listed, scaled)))
    });
    prop_oneof![2 => Just(None), 1 => some]
}

fn shape() -> impl Strategy<Value = Shape> {
    let mostly = |rarely: BoxedStrategy<i64>| prop_oneof![3 => Just(0i64), 1 => rarely].boxed();
    let padding = || mostly(prop_oneof![Just(1i64), Just(2), Just(4), Just(8), Just(16), Just(64)].boxed());
    let align = || prop_oneof![4 => Just(16u32), 1 => Just(8), 1 => Just(4), 1 => Just(2)];
    let sizes = (extent(3000), extent(3000), extent(9000), prop_oneof![3 => Just(1usize), 1 => 2..=5usize]);
    let layouts = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
    let places = ([padding(), padding(), padding()], [align(), align(), align()]);
    let bias = prop_oneof![2 => Just(None), 1 => Just(Some(BiasAxis::N)), 1 => Just(Some(BiasAxis::M))];
    let epilogue = (bias, proptest::sample::select(&Activation::ALL[..]), prop_oneof![2 => Just(0.0), 1 => Just(1.0)]);
    let rest = (prop_oneof![4 => Just(1usize), 1 => Just(2)], any::<[bool; 3]>(), 0..8u32, groups(), 0..9usize);
    (sizes, proptest::sample::select(layouts.to_vec()), places, epilogue, rest).prop_map(
        |(
            (m, n, k, batch),
            layout,
            (padding, align),
            (bias, activation, beta),
            (outer, broadcast, column_major, groups, scale),
        )| {
            Shape {
                sizes: [m, n, k, batch],
                layout,
                padding,
                align,
                outer,
                broadcast: broadcast.map(|x| x && batch > 2),
                bias,
                activation,
                beta,
                column_major_d: column_major == 0,
                groups,
                scale,
            }
        },
    )
}

/// The canonical problem of these types.
fn problem(shape: &Shape, [a, b, out]: [Format; 3], f32_mode: F32Mode) -> Problem {
    let [m, n, k, batch] = shape.sizes;
    let mut problem = Problem::dense(m, n, k, batch, shape.layout, a);
    problem.f32_mode = f32_mode;
    (problem.b.format, problem.d.format) = (b, out);
    if shape.column_major_d {
        problem.d = Operand::col_major(out, m, [0, 0]);
    }
    problem.batch = [shape.outer, batch];
    let count = shape.outer * batch;
    let place = |at: usize, operand: &mut Operand, [rows, columns]: [usize; 2], broadcast: bool| {
        let by_rows = operand.col_stride == 1;
        let (length, lines) = if by_rows { (columns, rows) } else { (rows, columns) };
        let packed = if operand.format.is_narrow() { operand.format.block().elements as i64 } else { 1 };
        let line = ((length as i64 + shape.padding[at]) as u64).next_multiple_of(packed as u64) as i64;
        *(if by_rows { &mut operand.row_stride } else { &mut operand.col_stride }) = line;
        let inner = line * lines as i64;
        let outer = (inner + if shape.outer > 1 { 16 } else { 0 }) * batch as i64;
        operand.batch_stride = if broadcast || count == 1 { [0, 0] } else { [outer, inner] };
        let block = operand.format.block().bytes as u64;
        let least = if operand.format.is_gguf_block() { power_of_two_in(block).min(2) } else { block as u32 };
        operand.pointer_align = shape.align[at].max(least);
    };
    place(0, &mut problem.a, [m, k], shape.broadcast[0]);
    place(1, &mut problem.b, [k, n], shape.broadcast[1]);
    place(2, &mut problem.d, [m, n], false);
    problem.b.scale = scales([n, k])[shape.scale].filter(|_| problem.types().has_narrow_b());
    if matches!(a, Format::F8E4M3 | Format::I8) {
        [problem.a.scale, problem.b.scale] = pairs_of_scales([m, n, k])[shape.scale];
        problem.fast_accumulation = shape.sizes[0].is_multiple_of(2);
    }
    let mut epilogue = Epilogue::new(if shape.beta == 0.0 { 1.0 } else { 0.5 }, shape.beta);
    (epilogue.bias, epilogue.activation) = (shape.bias, shape.activation);
    epilogue.c = (shape.beta != 0.0).then_some(problem.d);
    if let Some(c) = epilogue.c.as_mut().filter(|_| shape.broadcast[2]) {
        c.batch_stride = [0, 0];
    }
    problem.epilogue = epilogue;
    problem.groups = shape.groups;
    problem.canonical().problem
}

/// The formats of A, B and D.
const TYPES: [[Format; 3]; 19] = [
    [Format::F16, Format::F16, Format::F16],
    [Format::BF16, Format::BF16, Format::BF16],
    [Format::F32, Format::F32, Format::F32],
    [Format::F64, Format::F64, Format::F64],
    [Format::F16, Format::F16, Format::F32],
    [Format::BF16, Format::BF16, Format::F32],
    [Format::F8E4M3, Format::F8E4M3, Format::BF16],
    [Format::F8E4M3, Format::F8E4M3, Format::F32],
    [Format::F8E4M3, Format::F8E4M3, Format::F16],
    [Format::I8, Format::I8, Format::BF16],
    [Format::I8, Format::I8, Format::F16],
    [Format::F32, Format::Q8_0, Format::F32],
    [Format::F16, Format::Q4_0, Format::F16],
    [Format::BF16, Format::Q4K, Format::BF16],
    [Format::F32, Format::MXFP4, Format::F32],
    [Format::BF16, Format::U4, Format::BF16],
    [Format::F16, Format::F8E4M3, Format::F32],
    [Format::F32, Format::F4E2M1, Format::F32],
    [Format::F16, Format::U8, Format::F16],
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn kernels_take_what_their_descriptors_support(shape in shape()) {
        for types in TYPES {
            for f32_mode in [F32Mode::Accurate, F32Mode::Tf32] {
                let problem = problem(&shape, types, f32_mode);
                for kernel in built() {
                    for config in kernel.configurations(&problem, &device(kernel)) {
                        prop_assert!(takes(kernel, &problem, numbers(&config)), "{kernel}@{config} refuses {problem}");
                    }
                }
            }
        }
    }
}

/// Every kernel takes one of these.
const SIZES: [[usize; 4]; 8] = [
    [1, 64, 64, 1],
    [4, 264, 520, 1],
    [4, 264, 1024, 1],
    [16, 512, 1024, 1],
    [128, 512, 1024, 1],
    [512, 1024, 1024, 2],
    [512, 1024, 16384, 1],
    [64, 64, 1, 1],
];

/// Every kernel is tried by the property above, or has too narrow limits for random problems and is tried here.
#[test]
fn each_kernel_takes_a_product_of_its_own() {
    for kernel in built() {
        let mut tried = HashSet::new();
        for size in SIZES {
            let problem = dense(kernel, size);
            for config in kernel.configurations(&problem, &device(kernel)) {
                assert!(takes(kernel, &problem, numbers(&config)), "{kernel}@{config} refuses {problem}");
                tried.insert(config);
            }
        }
        assert!(!tried.is_empty(), "{kernel} has no product to try");
    }
}

/// What Rust says of a block's shared memory is what launch functions ask for, in every row: exactly, or, of kernels that fit on every card,
/// no more than the least that a card for the kernel's code has.
#[test]
fn blocks_have_the_shared_memory_that_plans_count_on() {
    for kernel in built() {
        let mut asked = Vec::new();
        for problem in SIZES.map(|size| dense(kernel, size)) {
            let configurations = kernel.configurations(&problem, &device(kernel));
            asked.extend(configurations.iter().filter_map(|config| {
                let device = device(kernel);
                let bytes = rehearse(kernel, &problem, numbers(config), device.sm_count).unwrap();
                bytes.map(|bytes| (bytes, needs(kernel, &problem), problem))
            }));
        }
        let (bytes, needs, problem) = *asked.iter().max_by_key(|(bytes, ..)| *bytes).expect("a product");
        match needs {
            Some(needs) => assert_eq!(bytes, needs, "{kernel}, {problem}"),
            None => {
                let least = least_shared_bytes(kernel);
                assert!(bytes <= least, "{kernel}, {problem}: {bytes} bytes, a card has {least}");
            }
        }
    }
}

/// A block's shared memory by Rust's figure; `None` where every card has enough.
fn needs(kernel: &KernelDesc, problem: &Problem) -> Option<u32> {
    let mut none = device(kernel);
    none.model.shared_bytes = 1024; // which CUDA takes of each block
    match kernel.supports(problem, &none) {
        Ok(()) => None,
        Err(Rejection::SharedMemory { need, .. }) => Some(need),
        Err(other) => panic!("{kernel}, {problem}: {other}"),
    }
}

/// The most shared memory of a block, on the card with the least that runs the kernel's code (CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability").
fn least_shared_bytes(kernel: &KernelDesc) -> u32 {
    let cards = [(80, 163), (86, 99), (87, 163), (89, 99), (90, 227), (100, 227), (103, 227), (120, 99), (121, 99)];
    let runs = cards.iter().filter(|(capability, _)| kernel.arch.runs_on(*capability));
    runs.map(|(_, kib)| kib * 1024).min().unwrap_or_else(|| panic!("{kernel} runs on no card"))
}

/// Rows of D that are far apart are taken where the descriptor supports them, and refused by the family that says so.
#[test]
fn rows_of_d_far_apart_are_taken_where_they_are_supported() {
    let (mut tried, mut refused) = (0, 0);
    for kernel in built() {
        let plain = dense(kernel, [128, 512, 1024, 1]);
        for stride in [(1 << 30) - 1, 1 << 30, 1 << 34] {
            let far = plain.with(|p| p.d.row_stride = stride);
            if kernel.supports(&far, &device(kernel)).is_ok() {
                for config in kernel.configurations(&far, &device(kernel)) {
                    assert!(takes(kernel, &far, numbers(&config)), "{kernel}@{config} refuses {far}");
                    tried += 1;
                }
            } else if kernel.family == "sm90_gguf_grouped_gemm" {
                for config in kernel.configurations(&plain, &device(kernel)) {
                    assert!(!takes(kernel, &far, numbers(&config)), "{kernel}@{config} takes {far}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(tried > 0, built().count() > 0);
    assert_eq!(refused > 0, built().any(|kernel| kernel.family == "sm90_gguf_grouped_gemm"));
}

/// With any number of a configuration out of place.
#[test]
fn other_configurations_are_refused() {
    let mut refused = 0;
    for kernel in built() {
        for sizes in [[4, 264, 520, 1], [1, 64, 64, 2], [7, 136, 1032, 1], [5, 136, 1024, 1], [100, 520, 8200, 1]] {
            let problem = dense(kernel, sizes);
            for config in kernel.configurations(&problem, &device(kernel)) {
                let right = numbers(&config);
                for at in (0..7).filter(|&at| right[at] != 0) {
                    // Some kernels take any number of parts of K for which there is a workspace.
                    let is_split = at == 4;
                    for value in
                        [0, -1, 1000, i32::MAX, i32::MIN].into_iter().filter(|&value| !(is_split && value == 1000))
                    {
                        let mut wrong = right;
                        wrong[at] = value;
                        assert!(!takes(kernel, &problem, wrong), "{kernel} takes {problem} with {wrong:?}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused >= 1000 || built().count() < 20, "only {refused} configurations to refuse");
}

/// The families' own cases, such as an instance for fewer rows or a shorter K than the problem has, or more parts than K has stages.
#[test]
fn configurations_of_other_problems_are_refused() {
    for (name, sizes, config) in family::REFUSED {
        let kernel = by_name(name).unwrap_or_else(|| panic!("{name} is no kernel"));
        if kernel.is_built() {
            let problem = dense(kernel, *sizes);
            let config: Config = config.parse().unwrap();
            assert!(!takes(kernel, &problem, numbers(&config)), "{kernel} takes {problem} with {config}");
        }
    }
}

/// A kernel reads its operands as its own formats say: other formats, factors, groups and gates are refused.
#[test]
fn other_types_are_refused() {
    let mut tried = 0;
    for kernel in built() {
        for sizes in [[4, 264, 520, 1], [4, 264, 1024, 1], [128, 512, 1024, 1], [64, 64, 1, 1]] {
            let problem = dense(kernel, sizes);
            let Some(config) = kernel.configurations(&problem, &device(kernel)).first().map(numbers) else { continue };
            let of = |change: &dyn Fn(&mut Problem)| problem.with(|p| change(p));
            let others = |format: Format| {
                [Format::F16, Format::BF16, Format::F32, Format::F64, Format::Q4_0, Format::Q6K, Format::U4, Format::I8]
                    .into_iter()
                    .filter(move |&x| x != format)
            };
            let mut wrong: Vec<Problem> = Vec::new();
            wrong.extend(others(problem.a.format).map(|format| of(&|p| p.a.format = format)));
            wrong.extend(others(problem.b.format).map(|format| of(&|p| p.b.format = format)));
            wrong.extend(others(problem.d.format).map(|format| of(&|p| p.d.format = format)));
            let scale = Scale::of_tensor(Format::F32);
            let takes_scales = matches!(kernel.types.a, Format::F8E4M3 | Format::I8) && kernel.family != "sm100_gemm";
            wrong.push(of(&|p| p.d.scale = Some(scale)));
            wrong.extend(Some(of(&|p| p.a.scale = Some(scale))).filter(|_| !takes_scales));
            if kernel.types.has_narrow_b() {
                // Of no known format, for nothing, and zeros of codes that have none.
                let f64 = scale.with(|scale| scale.format = Format::F64);
                let nothing = scale.with(|scale| scale.granularity[0] = 0);
                wrong.extend([f64, nothing].map(|scale| of(&|p| p.b.scale = Some(scale))));
                let zeros = of(&|p| p.b.scale = Some(scale.with_zeros()));
                wrong.extend(Some(zeros).filter(|_| !kernel.types.b.has_zero()));
            } else if takes_scales {
                let f64 = scale.with(|scale| scale.format = Format::F64);
                let nothing = scale.with(|scale| scale.granularity[0] = 0);
                for scale in [f64, nothing, scale.with_zeros()] {
                    wrong.extend([of(&|p| p.a.scale = Some(scale)), of(&|p| p.b.scale = Some(scale))]);
                }
            } else {
                wrong.push(of(&|p| p.b.scale = Some(scale)));
            }
            if kernel.needs_groups() {
                wrong.push(of(&|p| p.groups = None));
            } else if !kernel.takes_groups() {
                wrong.push(of(&|p| p.groups = Some(Groups::new(2))));
            }
            if kernel.needs_gates() {
                wrong.extend([None, Some(Gate::Interleaved)].map(|gate| of(&|p| p.epilogue.gate = gate)));
            }
            for wrong in wrong {
                assert!(!takes(kernel, &wrong, config), "{kernel} takes {wrong}");
                tried += 1;
            }
        }
    }
    assert!(tried > 0);
}
