//! The memory of a row's operands: elements, offsets and copies. Plain numbers, so that machines without a GPU check them.

use candle_tilegemm::problem::{Operand, MAX_ALIGN};
use candle_tilegemm::{Format, Problem};

/// The size of all copies together, in L2 caches. With three, loads with evict-first priority displace each other,
/// leave part of the earlier data in the cache, and so seem faster than memory.
const COLD: usize = 8;
/// The most copies: enough for products of a few ten kilobytes.
const MOST_COPIES: usize = 4096;

/// The number of elements of each operand: A, B, D, C, bias. A padded operand has its last padding, too.
pub fn elements(problem: &Problem) -> [usize; 5] {
    let Problem { m, n, k, .. } = *problem;
    let span = |operand: &Operand, rows: usize, cols: usize| {
        let last = |size: usize, stride: i64| (size as i64 - 1) * stride;
        let matrix = last(rows, operand.row_stride) + last(cols, operand.col_stride);
        let batch =
            problem.batch.iter().zip(operand.batch_stride).map(|(&size, stride)| last(size, stride)).sum::<i64>();
        let padding = match [operand.row_stride, operand.col_stride] {
            [line, 1] => line - cols as i64,
            [1, line] => line - rows as i64,
            _ => 0,
        };
        (matrix + batch + 1 + padding.max(0)) as usize
    };
    let c = problem.epilogue.c.map_or(0, |c| span(&c, m, n));
    let bias = if problem.epilogue.bias.is_some() { n } else { 0 };
    let rows_of_a = problem.groups.map_or(m, |groups| groups.rows_of_a(m));
    let further = problem.groups.map_or(0, |groups| (groups.count - 1) * problem.b.batch_stride[1] as usize);
    [span(&problem.a, rows_of_a, k), span(&problem.b, k, n) + further, span(&problem.d, m, n), c, bias]
}

/// Elements before an operand in its allocation, so that its address has the problem's alignment and no larger one.
fn offset(operand: &Operand) -> usize {
    match operand.pointer_align {
        align if align < MAX_ALIGN => align as usize / operand.format.bytes(1),
        _ => 0,
    }
}

/// Elements before A, B, D and C in their allocations.
pub fn offsets(problem: &Problem) -> [usize; 4] {
    let c = problem.epilogue.c.unwrap_or(problem.d);
    [problem.a, problem.b, problem.d, c].map(|operand| offset(&operand))
}

/// Bytes of A, B, D, C and the bias.
fn operand_bytes(problem: &Problem) -> [usize; 5] {
    let [a, b, d] = [problem.a, problem.b, problem.d].map(|operand| operand.format);
    let c = problem.epilogue.c.map_or(d, |c| c.format);
    let [of_a, of_b, of_d, of_c, of_bias] = elements(problem);
    [a.bytes(of_a), b.bytes(of_b), d.bytes(of_d), c.bytes(of_c), d.bytes(of_bias)]
}

/// Bytes that a product reads and writes: of the matrices of groups only those of groups with rows.
fn moved(problem: &Problem) -> usize {
    let [a, b, d, c, bias] = operand_bytes(problem);
    let b = problem.groups.map_or(b, |groups| b / groups.count * groups.with_rows(problem.m));
    a + b + d + c + bias
}

/// The number of copies: one for hot operands; for cold ones at least two. Matrices of groups without rows do not make other data cold.
pub fn copies(problem: &Problem, l2_bytes: usize, hot: bool) -> usize {
    if hot {
        return 1;
    }
    (COLD * l2_bytes).div_ceil(moved(problem)).clamp(2, MOST_COPIES)
}

/// Device memory that a row needs, in bytes: the copies, and f64 copies of one copy for the check.
#[cfg_attr(not(feature = "bench"), allow(dead_code))]
pub fn bytes(problem: &Problem, l2_bytes: usize, hot: bool) -> usize {
    let copies = copies(problem, l2_bytes, hot);
    let of_copies = copies * operand_bytes(problem).iter().sum::<usize>();
    if let Some(groups) = problem.groups {
        let [a, b, d, ..] = elements(problem);
        // A in the order of the product for the loop of cuBLAS products, or in bf16 for candle's kernel. The check holds one matrix B and its rows of A in f64,
        // and D in f64 up to four times.
        let rows = problem.m * problem.k;
        // A and B in bf16, of the arm that multiplies by weights that are no longer narrow, and B once more while it is made.
        let in_bf16 = problem.with(|p| (p.a.format, p.b.format) = (Format::BF16, Format::BF16));
        let of_dense = 2 * (self::copies(&in_bf16, l2_bytes, hot).min(copies) + 1) * (a + b);
        let of_dense = if problem.b.format.is_narrow() { of_dense } else { 0 };
        return of_copies
            + problem.a.format.bytes(copies * rows)
            + 12 * (a + rows + b / groups.count)
            + 40 * d
            + of_dense;
    }
    // Operands in bf16, of the arm that multiplies by weights that are no longer quantised.
    let has_bf16 = problem.b.format.is_gguf_block() || problem.b.format.is_narrow();
    let in_bf16 = if has_bf16 { 2 * copies * (problem.m + problem.n) * problem.k } else { 0 };
    // The check holds the f64 operands, the f64 result twice more, and an f32 intermediate of the conversion.
    let each = elements(problem).iter().sum::<usize>();
    of_copies + in_bf16 + each * (8 + 4) + 16 * elements(problem)[2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lists::{experts, narrow, random};
    use candle_tilegemm::internal::suite;
    use candle_tilegemm::problem::{power_of_two_in, Epilogue};

    fn row(fields: &str) -> Problem {
        let text = format!("[[shape]]\nid = \"x\"\nclass = \"c\"\ndtype = \"bf16\"\n{fields}\n");
        suite::parse("made up", &text).unwrap_or_else(|e| panic!("{e}"))[0].problem()
    }

    #[test]
    fn padding_and_offsets_count() {
        let dense = row("m = 3\nn = 5\nk = 7\nlayout = \"nt\"");
        assert_eq!((elements(&dense), offsets(&dense)), ([21, 35, 15, 0, 0], [0; 4]));
        // Rows of A are 9 apart, columns of B 8; two matrices; 2, 4 and 8 bytes before A, B and D.
        let place = "batch = 2\na_stride = 9\nb_stride = 8\na_offset = 1\nb_offset = 2\nd_offset = 4";
        let padded = row(&format!("m = 3\nn = 5\nk = 7\nlayout = \"nt\"\n{place}"));
        assert_eq!((elements(&padded), offsets(&padded)), ([54, 80, 30, 0, 0], [1, 2, 4, 4]));
        // Lines of A and B are columns and rows.
        let gradient = row("m = 3\nn = 5\nk = 7\nlayout = \"tn\"\na_stride = 4\nb_stride = 6");
        assert_eq!(elements(&gradient), [28, 42, 15, 0, 0]);
        let with_c = padded.with(|p| {
            p.epilogue = Epilogue::new(1.0, 0.5);
            p.epilogue.c = Some(p.d);
        });
        assert_eq!((elements(&with_c)[3], offsets(&with_c)[3]), (30, 4));
        assert_eq!((copies(&padded, 50 << 20, true), copies(&padded, 50 << 20, false)), (1, 4096));
    }

    #[test]
    fn experts_without_rows_take_memory_but_are_no_cold_data() {
        let fields = "m = 8\nn = 1536\nk = 2048\nlayout = \"nt\"\ngroups = { experts = 128, top_k = 8 }";
        let problem = row(fields);
        let matrix = 1536 * 2048;
        assert_eq!(elements(&problem), [2048, 128 * matrix, 8 * 1536, 0, 0]);
        // 8 of 128 experts have rows: 50 MB of 805.
        assert_eq!(moved(&problem), 2 * (2048 + 8 * matrix + 8 * 1536));
        assert_eq!(copies(&problem, 50 << 20, false), 9);
        assert!((7_200_000_000..7_400_000_000).contains(&bytes(&problem, 50 << 20, false)));
        // Each pair has a row of A.
        let scaled = row(&fields.replace("top_k = 8", "top_k = 8, scaled = true"));
        assert_eq!(elements(&scaled)[0], 8 * 2048);
        let narrow = [narrow::fp8_experts(), narrow::w4a16_experts(), narrow::mxfp4_experts()].concat();
        for shape in experts::products().into_iter().chain(experts::gguf_products()).chain(narrow) {
            let routing = crate::lists::Routing::of_row(&shape).expect("a product of experts has a routing");
            let need = bytes(&routing.of(&shape.problem()), 50 << 20, false);
            assert!(need < 72 << 30, "{} takes {need}", shape.id);
        }
    }

    /// An allocation begins at a multiple of 256 bytes: the offset gives the operand the alignment that the row asks for, and its last line
    /// lies inside.
    #[test]
    fn random_rows_have_their_alignment() {
        let mut odd = 0;
        for shape in (1..=3).flat_map(|seed| random::products(seed, 200, &[])) {
            let problem = shape.problem();
            let operands = [problem.a, problem.b, problem.d];
            for (operand, elements_before) in operands.into_iter().zip(offsets(&problem)) {
                let address = 256 + operand.format.bytes(elements_before) as u64;
                assert_eq!(power_of_two_in(address), operand.pointer_align, "{}", shape.id);
                odd += usize::from(elements_before > 0);
            }
            let last = (problem.m as i64 - 1) * problem.a.row_stride + (problem.k as i64 - 1) * problem.a.col_stride;
            let last = last + (problem.batch_count() as i64 - 1) * problem.a.batch_stride[1];
            assert!((last as usize) < elements(&problem)[0], "{}", shape.id);
            assert!(bytes(&problem, 50 << 20, false) < 40 << 30, "{} takes {problem}", shape.id);
        }
        assert!(odd > 10, "{odd} operands at odd addresses");
    }
}
