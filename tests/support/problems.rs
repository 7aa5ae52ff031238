//! Random problems: all that a caller may ask for, sensible or not, with extents to 2^40.

use candle_tilegemm::problem::{BiasAxis, MAX_ALIGN};
use candle_tilegemm::problem::{Bounds, Epilogue, Gate, Groups, Operand, Rows, Scale};
use candle_tilegemm::{Activation, F32Mode, Format, Layout, Problem};
use proptest::prelude::*;
use proptest::sample::select;

const LAYOUTS: [Layout; 4] = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];

/// From 0 to 2^40, around powers of two and multiples of eight; half of them small, as several large ones at once fit nowhere.
pub fn extent() -> BoxedStrategy<usize> {
    let near = (16..=40u32, -2..=2i64, prop_oneof![Just(1), Just(8)]);
    let large = near.prop_map(|(bits, off, step)| ((1i64 << bits) + off * step) as usize);
    let small = prop_oneof![Just(1usize), Just(8), Just(64), Just(256)];
    prop_oneof![4 => small, 3 => large, 2 => 0..300usize, 2 => 1..9000usize, 2 => (1..130usize).prop_map(|x| 64 * x)]
        .boxed()
}

/// What factors are made of.
#[derive(Debug, Clone, Copy)]
struct Factors {
    format: Format,
    shared: [u32; 2],
    kind: u32,
    strides: [i64; 3],
    zeros: bool,
    /// Below 60 narrow weights have factors, at 0 other weights have.
    rank: u32,
}

/// Sensible factors mostly, and any.
fn factors() -> impl Strategy<Value = Factors> {
    use Format::{BF16, F16, F32, F8E4M3, F8E8M0};
    let format = prop_oneof![12 => select(vec![F32, F16, BF16, F8E8M0, F8E4M3]), 1 => select(Format::ALL.to_vec())];
    let shared = prop_oneof![6 => select(vec![1u32, 16, 32, 64, 128, u32::MAX]), 2 => 1..300u32, 1 => any::<u32>()];
    let stride = prop_oneof![3 => 0..400i64, 1 => any::<i64>()];
    let parts =
        (format, prop::array::uniform2(shared), 0..5u32, prop::array::uniform3(stride), any::<bool>(), 0..90u32);
    parts.prop_map(|(format, shared, kind, strides, zeros, rank)| Factors {
        format,
        shared,
        kind,
        strides,
        zeros,
        rank,
    })
}

impl Factors {
    /// The factors of weights of `n` x `k`, if they have some.
    fn of(self, b: Format, [n, k]: [usize; 2]) -> Option<Scale> {
        let Self { format, shared: [rows, along_k], kind, strides: [row_stride, col_stride, between], .. } = self;
        let scale = match kind {
            0 => Scale::of_tensor(format),
            1 => Scale::of_rows(format),
            2 => Scale::of_groups(format, along_k, n),
            3 => Scale::of_blocks(format, [rows, along_k], k),
            _ => Scale::new(format, [along_k, rows], [row_stride, col_stride]),
        };
        // A few have zeros where there is nothing to count from.
        let zeros = self.zeros && (b.has_zero() || self.rank.is_multiple_of(8));
        let has_some = self.rank < if b.is_narrow() { 60 } else { 1 };
        has_some.then(|| scale.with(|scale| (scale.zeros, scale.batch_stride) = (zeros, [0, between])))
    }
}

/// Strides of packed codes that are whole blocks.
fn in_whole_blocks(operand: &mut Operand) {
    let block = operand.format.block().elements as i64;
    let whole = |stride: i64| stride.checked_add(block - 1).map_or(stride, |stride| stride.div_euclid(block) * block);
    let [outer, inner] = operand.batch_stride;
    let [column, outer, inner] = [operand.col_stride, outer, inner].map(whole);
    (operand.col_stride, operand.batch_stride) = (column, [outer, inner]);
}

/// The formats of A, B and D: those that kernels have, and a few that none has.
fn formats() -> impl Strategy<Value = [Format; 3]> {
    use Format::{BF16, F16, F32, F64, F8E4M3};
    let blocks: Vec<Format> = Format::ALL.into_iter().filter(|format| format.is_gguf_block()).collect();
    let narrow: Vec<Format> = Format::ALL.into_iter().filter(|format| format.is_narrow()).collect();
    prop_oneof![
        8 => select(vec![F16, BF16, F32, F64]).prop_map(|format| [format; 3]),
        3 => select(vec![F16, BF16]).prop_map(|format| [format, format, F32]),
        1 => select(vec![F16, BF16, F32]).prop_map(|d| [F8E4M3, F8E4M3, d]),
        4 => (select(vec![F16, BF16, F32]), select(blocks)).prop_map(|(a, b)| [a, b, a]),
        4 => (select(vec![F16, BF16, F32]), select(narrow), any::<bool>()).prop_map(|(a, b, wide)| [a, b, if wide { F32 } else { a }]),
        1 => prop::array::uniform3(select(Format::ALL.to_vec())),
    ]
}

/// The place of an operand in memory.
#[derive(Debug, Clone, Copy)]
enum Lines {
    /// So many elements between the end of a line and the start of the next.
    Apart(i64),
    /// One line for all, as `broadcast_as` has it.
    Repeated,
    /// Strides of rows, columns, outer and inner matrices.
    Any([i64; 4]),
}

#[derive(Debug, Clone, Copy)]
struct Place {
    lines: Lines,
    align: u32,
    /// Whether an outer and an inner matrix are the same for the whole batch.
    broadcast: [bool; 2],
    /// Elements between the matrices of an outer matrix and those of the next.
    gap: i64,
}

fn place() -> BoxedStrategy<Place> {
    let stride = || prop_oneof![4 => 0..5i64, 2 => 0..9000i64, 1 => -9000..0i64, 1 => any::<i64>()];
    let lines = prop_oneof![
        12 => Just(Lines::Apart(0)),
        3 => select(vec![1i64, 2, 4, 8, 64]).prop_map(Lines::Apart),
        1 => (30..50u32).prop_map(|bits| Lines::Apart(1 << bits)),
        1 => Just(Lines::Repeated),
        1 => prop::array::uniform4(stride()).prop_map(Lines::Any),
    ];
    let align = prop_oneof![6 => Just(MAX_ALIGN), 2 => select(vec![1u32, 2, 4, 8])];
    let broadcast = prop::array::uniform2(prop_oneof![4 => Just(false), 1 => Just(true)]);
    let gap = prop_oneof![3 => Just(0i64), 1 => Just(16)];
    (lines, align, broadcast, gap)
        .prop_map(|(lines, align, broadcast, gap)| Place { lines, align, broadcast, gap })
        .boxed()
}

impl Place {
    /// Puts a matrix of `rows` x `columns` here, which is dense in one of its dimensions.
    fn put(self, operand: &mut Operand, [rows, columns]: [usize; 2], batch: [usize; 2]) {
        let is_rows = operand.col_stride == 1;
        let [length, lines] = if is_rows { [columns, rows] } else { [rows, columns] }.map(|extent| extent as i64);
        let line = match self.lines {
            Lines::Apart(gap) => length.saturating_add(gap),
            Lines::Repeated => 0,
            Lines::Any(_) => length,
        };
        *(if is_rows { &mut operand.row_stride } else { &mut operand.col_stride }) = line;
        let inner = line.saturating_mul(lines);
        let outer = inner.saturating_mul(batch[1] as i64).saturating_add(self.gap);
        operand.batch_stride = [outer, inner];
        if let Lines::Any([row, column, outer, inner]) = self.lines {
            (operand.row_stride, operand.col_stride, operand.batch_stride) = (row, column, [outer, inner]);
        }
        for (stride, _) in operand.batch_stride.iter_mut().zip(self.broadcast).filter(|(_, broadcast)| *broadcast) {
            *stride = 0;
        }
        operand.pointer_align = self.align;
    }
}

fn epilogue() -> impl Strategy<Value = Epilogue> {
    let alpha = prop_oneof![6 => Just(1.0), 1 => select(vec![0.0, -0.5, 1e300, f64::NAN, f64::INFINITY])];
    let beta = prop_oneof![6 => Just(0.0), 3 => select(vec![1.0, -2.0]), 1 => Just(f64::NAN)];
    let bias = prop_oneof![3 => Just(None), 1 => Just(Some(BiasAxis::M)), 1 => Just(Some(BiasAxis::N))];
    let activation = prop_oneof![2 => Just(Activation::Identity), 1 => select(Activation::ALL.to_vec())];
    let gate = prop_oneof![12 => Just(None), 1 => Just(Some(Gate::Halves)), 1 => Just(Some(Gate::Interleaved))];
    let gates_c = prop_oneof![4 => Just(false), 1 => Just(true)];
    (alpha, beta, bias, activation, gate, gates_c).prop_map(|(alpha, beta, bias, activation, gate, gates_c)| {
        let mut epilogue = Epilogue::new(alpha, beta);
        (epilogue.bias, epilogue.activation, epilogue.gate, epilogue.gates_c) = (bias, activation, gate, gates_c);
        epilogue
    })
}

/// Often none; else few or many groups, with all that groups can have.
pub fn groups() -> impl Strategy<Value = Option<Groups>> {
    let count = prop_oneof![Just(1usize), 2..=8usize, 100..=1030usize, extent()];
    let listed = prop_oneof![Just(1usize), 2..=9usize, extent()];
    let rows = prop_oneof![Just(Rows::InOrder), listed.prop_map(|pairs_per_row| Rows::Listed { pairs_per_row })];
    let bounds = select(vec![Bounds::FirstRow, Bounds::GroupOfRow]);
    let some = (count, bounds, rows, any::<[bool; 2]>()).prop_map(|(count, bounds, rows, [scaled, half])| {
        Some(Groups::new(count).with(|groups| {
            (groups.bounds, groups.rows, groups.scaled) = (bounds, rows, scaled);
            groups.filled = if half { count / 2 } else { count };
        }))
    });
    prop_oneof![5 => Just(None), 1 => some]
}

/// Where C is, in a product that reads C.
#[derive(Debug, Clone, Copy)]
enum PlaceOfC {
    /// Where D is, or in a matrix of D's layout.
    LikeD {
        in_place: bool,
    },
    Elsewhere(Place),
    /// The caller forgot to say.
    Unknown,
}

pub fn problem() -> impl Strategy<Value = Problem> {
    let batch = prop_oneof![5 => Just(1usize), 2 => 0..=5usize, 1 => extent()];
    let outer = prop_oneof![5 => Just(1usize), 2 => 0..=3usize, 1 => extent()];
    let extents = (extent(), extent(), extent(), outer, batch);
    let place_of_c = prop_oneof![
        4 => any::<bool>().prop_map(|in_place| PlaceOfC::LikeD { in_place }),
        2 => place().prop_map(PlaceOfC::Elsewhere),
        1 => Just(PlaceOfC::Unknown),
    ];
    let kinds = (select(LAYOUTS.to_vec()), formats(), select(F32Mode::ALL.to_vec()), 0..10u32, factors());
    let parts = (epilogue(), groups(), [place(), place(), place()], place_of_c);
    (extents, kinds, parts).prop_map(|((m, n, k, outer, inner), (layout, formats, f32_mode, rare, factors), parts)| {
        let (epilogue, groups, places, place_of_c) = parts;
        let [a, b, d] = formats;
        // Most problems with blocks have whole blocks, and most groups have rows in one matrix.
        let is_sound = rare > 0;
        let k = if is_sound && b.is_gguf_block() { k.next_multiple_of(b.block().elements) } else { k };
        let is_nt = is_sound && (b.block().elements > 1 || groups.is_some());
        let layout = if is_nt { Layout::NT } else { layout };
        let batch = if is_sound && groups.is_some() { [1, 1] } else { [outer, inner] };
        let mut problem = Problem::dense(m, n, k, inner, layout, a);
        (problem.b.format, problem.d.format, problem.b.scale) = (b, d, factors.of(b, [n, k]));
        (problem.batch, problem.f32_mode, problem.groups, problem.epilogue) = (batch, f32_mode, groups, epilogue);
        if rare == 1 {
            problem.d = Operand::col_major(d, m, [0, 0]);
        }
        places[0].put(&mut problem.a, [m, k], batch);
        places[1].put(&mut problem.b, [k, n], groups.map_or(batch, |groups| [1, groups.count]));
        if is_sound && b.is_narrow() && problem.b.row_stride == 1 {
            in_whole_blocks(&mut problem.b);
        }
        let columns_of_d = problem.columns_of_d();
        places[2].put(&mut problem.d, [m, columns_of_d], batch);
        if problem.epilogue.reads_c() {
            let mut c = problem.d;
            match place_of_c {
                PlaceOfC::LikeD { in_place } => problem.epilogue.in_place = in_place,
                PlaceOfC::Elsewhere(place) => place.put(&mut c, [m, n], batch),
                PlaceOfC::Unknown => {}
            }
            problem.epilogue.c = (!matches!(place_of_c, PlaceOfC::Unknown)).then_some(c);
        }
        problem
    })
}
