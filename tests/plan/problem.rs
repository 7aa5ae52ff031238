//! What is asked: canonical problems compute the same, batch dimensions collapse without losing an element, and
//! alignments hold for every address.

use candle_tilegemm::problem::{power_of_two_in, Batch, BiasAxis, Epilogue, Groups, Operand, MAX_ALIGN};
use candle_tilegemm::{Format, Layout, Problem};
use proptest::prelude::*;
use proptest::sample::select;

/// Sizes of the dimensions of a matrix batch: outer, inner, rows, columns.
type Dims = [usize; 4];

/// How a matrix batch lies in memory.
#[derive(Debug, Clone)]
struct Place {
    /// Dimensions from the one with the smallest stride up.
    order: Vec<usize>,
    /// Elements left out after each dimension, in that order.
    gaps: [i64; 4],
    /// Dimensions with stride 0.
    broadcast: [bool; 4],
    /// Strides of dimensions of size 1, which nothing may depend on.
    meaningless: [i64; 4],
}

impl Place {
    /// The operand, and how many elements it spans.
    fn operand(&self, dims: Dims) -> (Operand, usize) {
        let mut strides = self.meaningless;
        let mut next = 1;
        for (&dim, gap) in self.order.iter().zip(self.gaps) {
            if self.broadcast[dim] {
                strides[dim] = 0;
            } else if dims[dim] > 1 {
                strides[dim] = next;
                next = next * dims[dim] as i64 + gap;
            }
        }
        let [outer, inner, row_stride, col_stride] = strides;
        let operand = Operand::new(Format::F16, [row_stride, col_stride], [outer, inner]);
        (operand, next as usize)
    }
}

fn row_major() -> Vec<usize> {
    vec![3, 2, 1, 0]
}

/// Places of every kind; dense row-major and column-major ones are frequent, as those are what gets rewritten.
fn place(can_broadcast: bool) -> impl Strategy<Value = Place> {
    let order = prop_oneof![4 => Just(row_major()), 3 => Just(vec![2, 3, 1, 0]), 3 => Just(row_major()).prop_shuffle()];
    let gaps = prop_oneof![4 => Just([0; 4]), 1 => prop::array::uniform4(0..4i64)];
    let broadcast = prop_oneof![
        4 => Just([false; 4]),
        3 => Just([true, true, false, false]),
        2 => Just([true, false, false, false]),
        2 => Just([false, true, false, false]),
        2 => prop::array::uniform4(any::<bool>()),
    ];
    let meaningless = prop_oneof![Just([0; 4]), Just([1; 4]), prop::array::uniform4(0..30i64)];
    (order, gaps, broadcast, meaningless).prop_map(move |(order, gaps, broadcast, meaningless)| Place {
        order,
        gaps,
        broadcast: broadcast.map(|broadcast| broadcast && can_broadcast),
        meaningless,
    })
}

/// A problem with small sizes and the memory that its operands take.
#[derive(Debug, Clone)]
struct Case {
    problem: Problem,
    /// Elements of A, B, C and D.
    spans: [usize; 4],
}

fn case() -> impl Strategy<Value = Case> {
    let sizes = (1..=4usize, 1..=4usize, 0..=4usize, 1..=3usize, 1..=3usize);
    let places = (place(true), place(true), place(true), place(false));
    let epilogue = (-2..=2i32, -1..=2i32, select(vec![None, Some(BiasAxis::M), Some(BiasAxis::N)]));
    (sizes, places, epilogue, any::<bool>()).prop_map(|(sizes, places, (alpha, beta, bias), c_is_d)| {
        let (m, n, k, outer, inner) = sizes;
        let (a, a_span) = places.0.operand([outer, inner, m, k]);
        let (b, b_span) = places.1.operand([outer, inner, k, n]);
        let (d, d_span) = places.3.operand([outer, inner, m, n]);
        let (c, c_span) = if c_is_d { (d, d_span) } else { places.2.operand([outer, inner, m, n]) };
        let mut epilogue = Epilogue::new(f64::from(alpha), f64::from(beta));
        epilogue.bias = bias;
        epilogue.c = Some(c);
        let problem = Problem::dense(m, n, k, 1, Layout::NN, Format::F16).with(|p| {
            p.batch = [outer, inner];
            p.a = a;
            p.b = b;
            p.d = d;
            p.epilogue = epilogue;
        });
        Case { problem, spans: [a_span, b_span, c_span, d_span] }
    })
}

/// Every index of a batch of matrices: outer, inner, row, column.
fn indices([outer, inner, rows, cols]: Dims) -> impl Iterator<Item = [usize; 4]> {
    (0..outer * inner * rows * cols)
        .map(move |i| [i / cols / rows / inner, i / cols / rows % inner, i / cols % rows, i % cols])
}

fn address(operand: &Operand, [outer, inner, row, col]: [usize; 4]) -> usize {
    let strides = [operand.batch_stride[0], operand.batch_stride[1], operand.row_stride, operand.col_stride];
    [outer, inner, row, col].into_iter().zip(strides).map(|(i, stride)| i * stride as usize).sum()
}

const UNTOUCHED: i64 = i64::MIN;

/// The memory of D after `problem` has run, over memory that holds other numbers everywhere.
fn run(problem: &Problem, [a, b, c, bias]: [&[i64]; 4], d_span: usize) -> Vec<i64> {
    let Problem { m, n, k, batch: [outer, inner], epilogue, .. } = *problem;
    let mut d = vec![UNTOUCHED; d_span];
    for [o, i, row, col] in indices([outer, inner, m, n]) {
        let product = |l| a[address(&problem.a, [o, i, row, l])] * b[address(&problem.b, [o, i, l, col])];
        let sum: i64 = (0..k).map(product).sum();
        let bias = epilogue.bias.map_or(0, |axis| bias[if axis == BiasAxis::M { row } else { col }]);
        let added = match epilogue.c {
            Some(place) if epilogue.reads_c() => epilogue.beta() as i64 * c[address(&place, [o, i, row, col])],
            _ => 0,
        };
        let element = &mut d[address(&problem.d, [o, i, row, col])];
        assert_eq!(*element, UNTOUCHED, "D is written twice at {:?}", [o, i, row, col]);
        *element = epilogue.alpha() as i64 * sum + bias + added;
    }
    d
}

/// Numbers that make sums of different products differ.
fn numbers(seed: i64, count: usize) -> Vec<i64> {
    (0..count as i64).map(|i| (i + seed) * (i + 7 * seed) * 7919 % 1009).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_canonical_problem_computes_the_same(Case { problem, spans } in case()) {
        let [a, b, c] = [(1, spans[0]), (2, spans[1]), (3, spans[2])].map(|(seed, span)| numbers(seed, span));
        let bias = numbers(4, 4);
        let canonical = problem.canonical();
        let (first, second) = if canonical.swapped { (&b, &a) } else { (&a, &b) };
        let expected = run(&problem, [&a, &b, &c, &bias], spans[3]);
        let computed = run(&canonical.problem, [first, second, &c, &bias], spans[3]);
        prop_assert_eq!(expected, computed, "{:#?}", canonical);
    }

    #[test]
    fn a_canonical_problem_stays_as_it_is(Case { problem, .. } in case()) {
        let canonical = problem.canonical();
        let again = canonical.problem.canonical();
        prop_assert!(!again.swapped);
        prop_assert_eq!(canonical.problem, again.problem);
        let flops = if problem.epilogue.alpha() == 0.0 { 0.0 } else { problem.flops() };
        prop_assert_eq!(canonical.problem.flops(), flops);
    }

    #[test]
    fn a_canonical_problem_keeps_a_layout_that_kernels_read(Case { problem, .. } in case()) {
        if problem.canonical_strides().layout() != Layout::Any {
            prop_assert_ne!(problem.canonical().problem.layout(), Layout::Any);
        }
    }

    /// D counts as row-major wherever that is possible, as no kernel but the reference writes anything else.
    #[test]
    fn a_canonical_d_is_row_major_if_one_dimension_is_contiguous(Case { problem, .. } in case()) {
        let d = problem.canonical_strides().d;
        if d.col_stride == 1 || d.row_stride == 1 {
            prop_assert_eq!(problem.canonical().problem.d.col_stride, 1);
        }
    }

    /// Every row (or column, where those are contiguous) starts at a multiple of what `alignments` says.
    #[test]
    fn alignments_hold_for_every_row(Case { problem, .. } in case(), align in select(vec![2u32, 4, 8, 16])) {
        let mut problem = problem.canonical().problem;
        for operand in [&mut problem.a, &mut problem.b, &mut problem.d] {
            operand.pointer_align = align;
        }
        let Problem { m, n, k, batch: [outer, inner], a, b, d, .. } = problem;
        for (operand, rows, cols) in [(a, m, k), (b, k, n), (d, m, n)] {
            let claimed = operand.align();
            prop_assert!(claimed <= align);
            let lines = if operand.col_stride == 1 { [outer, inner, rows, 1] } else { [outer, inner, 1, cols] };
            for index in indices(lines).filter(|_| operand.col_stride == 1 || operand.row_stride == 1) {
                let bytes = operand.format.bytes(address(&operand, index));
                prop_assert_eq!(bytes % claimed as usize, 0, "{:?} claims {}", operand, claimed);
            }
        }
    }

    /// The collapsed batch visits the same pairs of matrices in the same order.
    #[test]
    fn a_collapsed_batch_visits_the_same_matrices(
        dims in prop::collection::vec(1..=3usize, 0..=4),
        dense in prop::array::uniform2(any::<bool>()),
        random in prop::collection::vec(prop::array::uniform2(0..5usize), 4),
    ) {
        let strides = [0, 1].map(|operand| -> Vec<usize> {
            let behind = |dim: usize| dims[dim + 1..].iter().product::<usize>() * 6;
            (0..dims.len()).map(|dim| if dense[operand] { behind(dim) } else { random[dim][operand] }).collect()
        });
        let visits = |dims: &[usize], strides: [&[i64]; 2]| -> Vec<[i64; 2]> {
            let count = dims.iter().product::<usize>();
            (0..count).map(|index| strides.map(|strides| offset(dims, strides, index))).collect()
        };
        let signed = [0, 1].map(|o| strides[o].iter().map(|&stride| stride as i64).collect::<Vec<_>>());
        if let Some(batch) = Batch::collapse(&dims, [&strides[0], &strides[1]]) {
            let collapsed = visits(&batch.sizes, [&batch.strides[0], &batch.strides[1]]);
            prop_assert_eq!(visits(&dims, [&signed[0], &signed[1]]), collapsed);
        } else {
            let real = dims.iter().filter(|&&size| size > 1).count();
            prop_assert!(real > 2 && !(dense[0] && dense[1]), "{:?} {:?} is at most two dimensions", dims, strides);
        }
    }
}

/// Distance of the element at a row-major position.
fn offset(dims: &[usize], strides: &[i64], mut index: usize) -> i64 {
    let mut sum = 0;
    for (size, stride) in dims.iter().zip(strides).rev() {
        sum += (index % size) as i64 * stride;
        index /= size;
    }
    sum
}

#[test]
fn batches_collapse_to_two_dimensions_or_not_at_all() {
    // Dimensions, strides of two operands, and outer and inner size.
    type Row<'a> = (&'a [usize], [&'a [usize]; 2], Option<[usize; 2]>);
    let cases: [Row; 8] = [
        (&[], [&[], &[]], Some([1, 1])),
        (&[5], [&[20], &[30]], Some([1, 5])),
        (&[2, 3], [&[60, 20], &[90, 30]], Some([1, 6])),
        (&[2, 1, 3], [&[60, 7, 20], &[90, 0, 30]], Some([1, 6])),
        (&[2, 3], [&[60, 20], &[30, 0]], Some([2, 3])), // one B for every three A: grouped-query attention
        (&[2, 3], [&[20, 40], &[90, 30]], Some([2, 3])), // heads and batch exchanged
        (&[2, 3, 4], [&[240, 80, 20], &[0, 0, 0]], Some([1, 24])),
        (&[2, 3, 4], [&[240, 80, 20], &[3, 0, 1]], None),
    ];
    for (dims, strides, expected) in cases {
        let sizes = Batch::collapse(dims, strides).map(|batch| batch.sizes);
        assert_eq!(sizes, expected, "{dims:?} {strides:?}");
    }
}

#[test]
fn alignment_is_that_of_pointer_and_strides() {
    let dense = Operand::row_major(Format::F16, 64, [0, 64 * 8]);
    let cases = [
        ("dense", dense, Format::F16, 16),
        ("a pointer off by one", dense.with(|o| o.pointer_align = 2), Format::F16, 2),
        ("an odd row", dense.with(|o| o.row_stride = 65), Format::F16, 2),
        ("a row of f32", dense.with(|o| o.row_stride = 66), Format::F32, 8),
        ("a row of f64", dense.with(|o| o.row_stride = 65), Format::F64, 8),
        ("an odd batch", dense.with(|o| o.batch_stride = [0, 4]), Format::BF16, 8),
        ("a broadcast batch", dense.with(|o| o.batch_stride = [0, 0]), Format::BF16, 16),
        ("columns", Operand::col_major(Format::F16, 12, [0, 0]), Format::F16, 8),
    ];
    for (what, operand, format, expected) in cases {
        let operand = operand.with(|o| o.format = format);
        assert_eq!(operand.align(), expected, "{what}");
        assert_eq!(operand.transposed().align(), expected, "{what}, transposed");
    }
    assert_eq!([0, 1, 6, 24, 32, 4096].map(power_of_two_in), [MAX_ALIGN, 1, 2, 8, 16, 16]);
}

/// Dense matrices of a batch of two dimensions, as the op has them, where one matrix B (A) serves the whole outer dimension.
fn with_one(of_b: bool, [outer, inner]: [usize; 2], [m, n, k]: [usize; 3], layout: Layout) -> Problem {
    Problem::dense(m, n, k, 2, layout, Format::BF16).with(|p| {
        p.batch = [outer, inner];
        for (operand, is_one) in [(&mut p.a, !of_b), (&mut p.b, of_b), (&mut p.d, false)] {
            let matrix = operand.batch_stride[1];
            operand.batch_stride[0] = if is_one { 0 } else { matrix * inner as i64 };
        }
    })
}

/// (512, 256, 1, 100) @ (256, 100, 100): the rows of a head are a product, whose rows of A and D are the matrices of all heads apart.
#[test]
fn an_outer_dimension_over_one_b_is_rows() {
    for layout in [Layout::NN, Layout::NT] {
        let mut asked = with_one(true, [512, 256], [1, 100, 100], layout);
        asked.epilogue = Epilogue::new(1.0, 1.0);
        asked.epilogue.bias = Some(BiasAxis::N);
        asked.epilogue.c = Some(asked.d);
        let canonical = asked.canonical();
        let Problem { m, n, k, batch, a, b, d, epilogue, .. } = canonical.problem;
        assert_eq!((m, n, k, batch, canonical.swapped), (512, 100, 100, [1, 256], false));
        let places = [a, b, d, epilogue.c.unwrap()].map(|o| (o.row_stride, o.col_stride, o.batch_stride));
        let rows = (25_600, 1, [0, 100]);
        let [row, col] = if layout == Layout::NN { [100, 1] } else { [1, 100] };
        assert_eq!(places, [rows, (row, col, [0, 10_000]), rows, rows]);
        assert_eq!(epilogue.bias, Some(BiasAxis::N));
        // One residual for the whole dimension has no rows, and a bias along M is not the same for all rows.
        let broadcast_c = asked.with(|p| p.epilogue.c = Some(p.d.with(|c| c.batch_stride[0] = 0)));
        assert_eq!(broadcast_c.canonical().problem.batch, [512, 256]);
        let bias_along_m = asked.with(|p| p.epilogue.bias = Some(BiasAxis::M));
        assert_eq!(bias_along_m.canonical().problem.batch, [512, 256]);
        // Several rows of each matrix do not lie evenly behind one another.
        assert_eq!(with_one(true, [512, 256], [2, 100, 100], layout).canonical().problem.batch, [512, 256]);
    }
}

/// The mirror case: one A for many columns, which are the rows of a transposed product.
#[test]
fn an_outer_dimension_over_one_a_is_columns() {
    let canonical = with_one(false, [512, 256], [100, 1, 64], Layout::NT).canonical();
    let Problem { m, n, k, batch, a, b, d, .. } = canonical.problem;
    assert_eq!((m, n, k, batch, canonical.swapped), (512, 100, 64, [1, 256], true));
    let places = [a, b, d].map(|o| (o.row_stride, o.col_stride, o.batch_stride));
    assert_eq!(places, [(16_384, 1, [0, 64]), (1, 64, [0, 6400]), (25_600, 1, [0, 100])]);
    // One value for all columns of a matrix is one for each column of D: there is no such bias.
    let biased = with_one(false, [512, 256], [100, 1, 64], Layout::NT).with(|p| p.epilogue.bias = Some(BiasAxis::N));
    assert_eq!(biased.canonical().problem.batch, [512, 256]);
    // One row by many matrices B with contiguous columns, which continue from one matrix to the next.
    let rows = Problem::dense(1, 40, 64, 9, Layout::NT, Format::BF16).with(|p| p.a.batch_stride = [0; 2]);
    assert_eq!(rows.canonical().problem, Problem::dense(1, 360, 64, 1, Layout::NT, Format::BF16));
    let apart = rows.with(|p| p.b.batch_stride[1] += 64);
    assert_eq!(apart.canonical().problem.batch, [1, 9]);
}

/// A single column is a single row of the transposed product, which kernels are made for.
#[test]
fn one_column_is_one_row() {
    for (layout, transposed) in
        [(Layout::NN, Layout::NT), (Layout::NT, Layout::NT), (Layout::TN, Layout::NN), (Layout::TT, Layout::NN)]
    {
        let mut asked = Problem::dense(4096, 1, 512, 1, layout, Format::F16);
        asked.epilogue.bias = Some(BiasAxis::N);
        let mut expected = Problem::dense(1, 4096, 512, 1, transposed, Format::F16);
        expected.epilogue.bias = Some(BiasAxis::M);
        let canonical = asked.canonical();
        assert_eq!((canonical.problem, canonical.swapped), (expected, true), "{layout}");
    }
    // Kernels read blocks in B alone, and a column of D with gaps is no row.
    let blocks = Problem::dense(64, 1, 512, 1, Layout::NT, Format::F32).with(|p| p.b.format = Format::Q8_0);
    let apart = Problem::dense(64, 1, 512, 1, Layout::NT, Format::F32).with(|p| p.d.row_stride = 3);
    assert!(!blocks.canonical().swapped && !apart.canonical().swapped);
}

/// As in BLAS: neither operand is read, so nothing of them is left to choose a kernel by.
#[test]
fn an_alpha_of_0_is_a_product_over_nothing() {
    let of = |k, layout, alpha| {
        let mut problem = Problem::dense(6, 4, k, 3, layout, Format::BF16);
        problem.epilogue = Epilogue::new(alpha, 0.5);
        problem.epilogue.bias = Some(BiasAxis::N);
        problem.epilogue.c = Some(problem.d);
        problem.a.pointer_align = 1;
        problem.canonical().problem
    };
    let expected = of(8, Layout::NN, 0.0);
    assert_eq!((expected.k, expected.epilogue.alpha(), expected.epilogue.beta()), (0, 1.0, 0.5));
    assert_eq!((expected.epilogue.bias, expected.epilogue.c.is_some()), (Some(BiasAxis::N), true));
    for layout in [Layout::NN, Layout::NT, Layout::TN, Layout::TT] {
        for (k, alpha) in [(8, 0.0), (512, -0.0), (0, 0.0)] {
            assert_eq!(of(k, layout, alpha), expected, "{layout} K {k} alpha {alpha}");
        }
        assert_eq!(of(8, layout, 1e-300).k, 8);
    }
}

/// The matrices B of groups keep their distance, and the rows of groups stay rows.
#[test]
fn groups_keep_their_matrices_apart() {
    let product = Problem::dense(64, 32, 16, 1, Layout::NT, Format::BF16);
    let grouped = product.with(|p| {
        p.groups = Some(Groups::new(8));
        p.b.batch_stride = [0, 32 * 16];
    });
    assert_eq!(grouped.canonical().problem, grouped);
    assert_eq!(grouped.bytes(), 2.0 * (64.0 * 16.0 + 8.0 * 16.0 * 32.0 + 64.0 * 32.0));
    let transposed = grouped.with(|p| p.d = Operand::col_major(Format::BF16, 64, [0, 0]));
    assert!(!transposed.canonical().swapped);
    assert_eq!(grouped.to_string(), "64x32x16 nt bf16 in 8 groups, 8 with rows");
}

#[test]
fn groups_have_the_rows_and_bytes_of_their_routing() {
    let of = |tokens: usize| {
        let groups = Groups::routed(128, tokens, 8);
        Problem::dense(tokens * 8, 1536, 2048, 1, Layout::NT, Format::BF16).with(|problem| {
            problem.b.batch_stride = [0, 1536 * 2048];
            problem.groups = Some(groups);
        })
    };
    // One token hits eight experts, 8192 tokens all.
    let hit = |problem: &Problem| problem.groups.unwrap().with_rows(problem.m);
    assert_eq!([1, 8192].map(|tokens| hit(&of(tokens))), [8, 128]);
    assert_eq!(hit(&of(8)), 52, "128 experts (1 - (15 / 16)^8) is 51.6");
    assert_eq!(of(8192).groups.unwrap().expected_rows(65536), 512.0);
    let matrix = 1536.0 * 2048.0 * 2.0;
    assert_eq!(of(1).bytes(), 8.0 * matrix + 2048.0 * 2.0 + 8.0 * 1536.0 * 2.0);
    let many = of(8192);
    assert_eq!(many.bytes(), 128.0 * matrix + 8192.0 * 2048.0 * 2.0 + 65536.0 * 1536.0 * 2.0);
    assert_eq!(many.flops(), 2.0 * 65536.0 * 1536.0 * 2048.0);
    assert_eq!(many.to_string(), "65536x1536x2048 nt bf16 in 128 groups, 128 with rows");
    // Groups stay rows: nothing is transposed or folded.
    let canonical = many.canonical();
    assert_eq!((canonical.swapped, canonical.problem.m, canonical.problem.groups), (false, 65536, many.groups));
}
