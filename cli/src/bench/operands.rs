//! The tensors that all arms of a row share: N(0, 1) data and random blocks, in as many copies as keep the operands out of the L2 cache.

use super::address::address;
use super::allocation::{copies, elements, offsets};
use super::narrow::{self, Bytes, Coded};
use super::routed::Lists;
use super::timing::Timer;
use crate::lists::Routing;
use crate::{blocks, Result};
use candle::cuda_backend::cudarc::driver::result;
use candle::{CudaDevice, DType, Device, Tensor};
use candle_tilegemm::launch::Pointers;
use candle_tilegemm::problem::Scale;
use candle_tilegemm::{Format, Problem};
use rand::rngs::StdRng;
use rand::SeedableRng;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;

/// Device memory that the operands of one product after the other are slices of: to allocate operands and to draw their data anew takes a sixth of a
/// survey's time.
#[derive(Default)]
pub struct Pool {
    /// N(0, 1) data by type.
    normal: RefCell<HashMap<DType, Tensor>>,
    /// Random blocks, codes, factors and zeros.
    bytes: RefCell<HashMap<Bytes, Tensor>>,
    /// Memory for results by type.
    results: RefCell<HashMap<DType, Tensor>>,
}

impl Pool {
    /// Values that are drawn at once.
    const BLOCK: usize = 1 << 26;

    /// Blocks that are drawn at once: a prime, so that they come again at another place of a row.
    const BLOCKS: usize = 65_537;

    /// The elements or blocks that a slice of `count` of them takes: slices begin at multiples of 256 bytes.
    fn slice(count: usize) -> usize {
        count.next_multiple_of(256)
    }

    /// Gives the memory back.
    pub fn clear(&self) {
        self.normal.borrow_mut().clear();
        self.bytes.borrow_mut().clear();
        self.results.borrow_mut().clear();
    }

    /// At least `count` elements that are all 0 at first.
    fn results(&self, count: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        Self::at_least(&self.results, count, dtype, || Ok(Tensor::zeros(count, dtype, device)?))
    }

    /// At least `count` elements of N(0, 1) data.
    fn normal(&self, count: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        Self::at_least(&self.normal, count, dtype, || {
            let data = Tensor::zeros(count, dtype, device)?;
            for first in (0..count).step_by(Self::BLOCK) {
                let values = Tensor::randn(0f32, 1f32, Self::BLOCK.min(count - first), device)?;
                data.slice_set(&values.to_dtype(dtype)?, 0, first)?;
            }
            Ok(data)
        })
    }

    /// At least `count` random lines of bytes. The drawn lines come again and again.
    fn bytes(&self, count: usize, of: Bytes, device: &Device) -> Result<Tensor> {
        Self::at_least(&self.bytes, count, of, || {
            let drawn = match of {
                Bytes::Weights(format) if format.is_gguf_block() => {
                    blocks::random(format, Self::BLOCKS, &mut StdRng::seed_from_u64(1))
                }
                of => of.draw(Self::BLOCKS),
            };
            let drawn = Tensor::from_vec(drawn, (Self::BLOCKS, of.line()), device)?;
            let data = Tensor::zeros((count, of.line()), DType::U8, device)?;
            for first in (0..count).step_by(Self::BLOCKS) {
                data.slice_set(&drawn.narrow(0, 0, Self::BLOCKS.min(count - first))?, 0, first)?;
            }
            Ok(data)
        })
    }

    /// The tensor of `key` if it has `count` lines, else a new one.
    fn at_least<K: Eq + Hash>(
        tensors: &RefCell<HashMap<K, Tensor>>,
        count: usize,
        key: K,
        new: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut tensors = tensors.borrow_mut();
        match tensors.get(&key) {
            Some(tensor) if tensor.dim(0)? >= count => Ok(tensor.clone()),
            _ => {
                tensors.remove(&key); // before the new memory is allocated
                let tensor = new()?;
                tensors.insert(key, tensor.clone());
                Ok(tensor)
            }
        }
    }
}

/// A tensor. Products take one slice after the other.
struct Slices {
    tensor: Tensor,
    next: usize,
}

impl Slices {
    /// The next `count` elements or blocks.
    fn take(&mut self, count: usize) -> Result<Tensor> {
        let slice = self.tensor.narrow(0, self.next, count)?;
        self.next += Pool::slice(count);
        Ok(slice)
    }
}

/// Operands of one product.
pub struct Operands {
    problem: Problem,
    copies: Vec<Copy>,
    /// The lists of a product in groups.
    lists: Option<Lists>,
}

struct Copy {
    /// Codes are bytes.
    a: Tensor,
    /// Blocks and codes are bytes.
    b: Tensor,
    /// The factors of A and of B, and the zeros of B, in bytes; empty unless the problem has them.
    beside: [Tensor; 3],
    /// Empty unless the epilogue reads C.
    c: Tensor,
    bias: Tensor,
    d: Tensor,
}

impl Operands {
    /// Operands with data from the pool, and the lists of the routing. `scale` is 1; 0 plants a mistake.
    ///
    /// # Errors
    /// Data that is not N(0, 1), such as zeros.
    pub fn new(
        timer: &Timer,
        pool: &Pool,
        problem: &Problem,
        l2_bytes: usize,
        hot: bool,
        scale: f64,
        routing: Option<&Routing>,
    ) -> Result<Self> {
        let copies = copies(&routing.map_or(*problem, |routing| routing.of(problem)), l2_bytes, hot);
        let [a, b, d, c, bias] = elements(problem).map(|count| count.max(1));
        let [a_offset, b_offset, d_offset, c_offset] = offsets(problem);
        let device = Device::Cuda(timer.device().clone());
        let out = candle_dtype(problem.d.format);
        let of_bytes = [problem.a.format, problem.b.format].map(|format| format.is_gguf_block() || format.is_narrow());
        let as_numbers = |side: usize, count: usize| if of_bytes[side] { 0 } else { count };
        let inputs = [as_numbers(0, a_offset + a), as_numbers(1, b_offset + b), c_offset + c, bias];
        let inputs = inputs.map(Pool::slice).iter().sum::<usize>();
        let of_numbers = if of_bytes[0] { out } else { candle_dtype(problem.a.format) };
        let tensor = pool.normal(copies * inputs, of_numbers, &device)?;
        let mut inputs = Slices { tensor, next: 0 };
        let mut normal = |count: usize, offset: usize| -> Result<Tensor> {
            let values = inputs.take(offset + count)?;
            let values = if scale == 1.0 { values } else { (values * scale)? };
            Ok(values.narrow(0, offset, count)?)
        };
        // Lines of bytes of each copy, from a list of its own.
        let lines = |of: Bytes, count: usize| -> Result<Vec<Tensor>> {
            let tensor = pool.bytes(copies * Pool::slice(count), of, &device)?;
            let mut slices = Slices { tensor, next: 0 };
            (0..copies).map(|_| slices.take(count)).collect()
        };
        let of_weights = |side: usize, format: Format, count: usize| -> Result<Vec<Tensor>> {
            if !of_bytes[side] {
                return Ok(vec![]);
            }
            let count = count / format.block().elements;
            // A and B of one format are parts of one list.
            let twice = side == 1 && of_bytes[0] && format == problem.a.format;
            let before = if twice { copies * Pool::slice(a) } else { 0 };
            let tensor = pool.bytes(before + copies * Pool::slice(count), Bytes::Weights(format), &device)?;
            let mut slices = Slices { tensor, next: before };
            (0..copies).map(|_| slices.take(count)).collect()
        };
        let coded = [of_weights(0, problem.a.format, a)?, of_weights(1, problem.b.format, b)?];
        let beside_of = |scale: Option<Scale>, extents: [usize; 2], matrices: usize| -> Result<[Vec<Tensor>; 2]> {
            let Some(scale) = scale else { return Ok([vec![], vec![]]) };
            // Those of matrices lie one behind the other.
            let count = (matrices - 1) * scale.batch_stride[1] as usize + narrow::count(&scale, extents);
            let zeros = if scale.zeros { lines(Bytes::Zeros(problem.b.format), count)? } else { vec![] };
            Ok([lines(Bytes::Factors(scale.format), count)?, zeros])
        };
        let Problem { m, n, k, .. } = *problem;
        let matrices = problem.groups.map_or(1, |groups| groups.count);
        let ([of_a, _], [of_b, zeros]) =
            (beside_of(problem.a.scale, [m, k], 1)?, beside_of(problem.b.scale, [k, n], matrices)?);
        let nothing = Tensor::zeros(1, DType::U8, &device)?;
        let of_copy = |list: &[Tensor], copy: usize| list.get(copy).unwrap_or(&nothing).clone();
        let mut results = Slices { tensor: pool.results(copies * Pool::slice(d_offset + d), out, &device)?, next: 0 };
        let copy = |copy: usize| -> Result<Copy> {
            let d = results.take(d_offset + d)?.narrow(0, d_offset, d)?;
            let a = if of_bytes[0] { coded[0][copy].clone() } else { normal(a, a_offset)? };
            let b = if of_bytes[1] { coded[1][copy].clone() } else { normal(b, b_offset)? };
            let beside = [&of_a, &of_b, &zeros].map(|list| of_copy(list, copy));
            // C and the bias are rounded as A and B are.
            let c = normal(c_offset + c, 0)?.to_dtype(out)?.narrow(0, c_offset, c)?;
            Ok(Copy { a, b, beside, c, bias: normal(bias, 0)?.to_dtype(out)?, d })
        };
        let lists = routing.map(|routing| Lists::new(routing, &device)).transpose()?;
        let operands = Self { problem: *problem, copies: (0..copies).map(copy).collect::<Result<_>>()?, lists };
        for copy in [operands.copies.first(), operands.copies.last()].into_iter().flatten() {
            for (name, tensor, of_bytes) in [("A", &copy.a, of_bytes[0]), ("B", &copy.b, of_bytes[1])] {
                if !of_bytes {
                    is_normal(name, tensor)?;
                }
            }
        }
        Ok(operands)
    }

    /// One copy with these numbers: A and B in the problem's layout, B as bytes where B has blocks, for a product without an epilogue.
    pub fn of(problem: &Problem, a: &Tensor, b: &Tensor) -> Result<Self> {
        let nothing = Tensor::zeros(1, DType::U8, a.device())?;
        Self::of_codes(problem, a, b, [(); 3].map(|()| nothing.clone()))
    }

    /// The same of codes, with the factors of A and of B and the zeros of B beside them, all in bytes.
    pub fn of_codes(problem: &Problem, a: &Tensor, b: &Tensor, beside: [Tensor; 3]) -> Result<Self> {
        let out = candle_dtype(problem.d.format);
        let zeros = |count: usize| Tensor::zeros(count.max(1), out, a.device());
        let [a_count, b_count, d, c, bias] = elements(problem);
        let (a, b) = (a.flatten_all()?, b.flatten_all()?);
        let of_bytes = problem.b.format.is_gguf_block() || problem.b.format.is_narrow();
        let b_count = if of_bytes { problem.b.format.bytes(b_count) } else { b_count };
        if [a.elem_count(), b.elem_count()] != [a_count, b_count] {
            return Err(format!("{problem} takes {a_count} and {b_count} numbers or bytes, not those").into());
        }
        let copy = Copy { a, b, beside, c: zeros(c)?, bias: zeros(bias)?, d: zeros(d)? };
        Ok(Self { problem: *problem, copies: vec![copy], lists: None })
    }

    /// The lists of a product in groups.
    ///
    /// # Errors
    /// There are none.
    pub fn lists(&self) -> Result<&Lists> {
        Ok(self.lists.as_ref().ok_or("the product has no groups")?)
    }

    pub fn copies(&self) -> usize {
        self.copies.len()
    }

    /// A, B and D of copy 0, as flat tensors; C and the bias where the problem has them.
    pub fn first(&self) -> [&Tensor; 5] {
        let Copy { a, b, c, bias, d, .. } = &self.copies[0];
        [a, b, d, c, bias]
    }

    /// A and B of a copy, as flat tensors.
    pub fn inputs(&self, copy: usize) -> [&Tensor; 4] {
        let Copy { a, b, c, bias, .. } = &self.copies[copy % self.copies.len()];
        [a, b, c, bias]
    }

    /// A and B of copy 0 in f64, (rows of A, k) and (n, k), where they have codes; of a product in groups without B, which [`matrix`](Self::matrix) has.
    ///
    /// # Errors
    /// Memory that is full.
    pub fn numbers(&self) -> Result<[Option<Tensor>; 2]> {
        let Problem { m, k, a, b, groups, .. } = self.problem;
        let Copy { a: codes, beside: [factors, _, zeros], .. } = &self.copies[0];
        let stride = a.row_stride.unsigned_abs() as usize;
        let coded = Coded { format: a.format, stride, scale: a.scale, codes, factors, zeros };
        let rows = groups.map_or(m, |groups| groups.rows_of_a(m));
        let of_a = a.format.is_narrow().then(|| coded.numbers([rows, k], false)).transpose()?;
        let has_one = b.format.is_narrow() && groups.is_none();
        Ok([of_a, has_one.then(|| self.matrix(0)).transpose()?])
    }

    /// The matrix B of a group of copy 0 in f64, (n, k), where B has codes.
    ///
    /// # Errors
    /// Memory that is full.
    pub fn matrix(&self, group: usize) -> Result<Tensor> {
        let Problem { n, k, b, .. } = self.problem;
        let Copy { b: codes, beside: [_, factors, zeros], .. } = &self.copies[0];
        let of_group = |list: &Tensor, first: usize, count: usize| -> Result<Tensor> {
            // What is behind the last matrix is missing.
            Ok(list.narrow(0, first, count.min(list.dim(0)? - first))?)
        };
        let (lines, stride) = (b.format.block().elements, b.batch_stride[1] as usize);
        let count = if stride == 0 { codes.dim(0)? } else { stride / lines };
        let codes = &of_group(codes, group * stride / lines, count)?;
        let of_factors = |list: &Tensor| match b.scale {
            Some(scale) => {
                let count = narrow::count(&scale, [k, n]);
                of_group(list, group * scale.batch_stride[1] as usize, count)
            }
            None => Ok(list.clone()),
        };
        let factors = &of_factors(factors)?;
        let zeros = &if b.scale.is_some_and(|scale| scale.zeros) { of_factors(zeros)? } else { zeros.clone() };
        let stride = b.col_stride.unsigned_abs() as usize;
        Coded { format: b.format, stride, scale: b.scale, codes, factors, zeros }.numbers([n, k], true)
    }

    /// The pointers of a copy.
    pub fn pointers(&self, copy: usize) -> Result<Pointers> {
        let Copy { a, b, c, bias, d, beside: [of_a, of_b, zeros] } = &self.copies[copy % self.copies.len()];
        let has_bias = self.problem.epilogue.bias.is_some();
        let mut pointers = Pointers::new(address(a)? as _, address(b)? as _, address(d)? as _);
        if self.problem.epilogue.reads_c() {
            pointers.c = address(c)? as _;
        }
        if has_bias {
            pointers.bias = address(bias)? as _;
        }
        if self.problem.a.scale.is_some() {
            pointers = pointers.with_scale_of_a(address(of_a)? as _);
        }
        if let Some(scale) = self.problem.b.scale {
            let zeros = if scale.zeros { address(zeros)? } else { 0 };
            pointers = pointers.with_scale_of_b(address(of_b)? as _, zeros as _);
        }
        if let Some(lists) = &self.lists {
            pointers = pointers.with_groups(lists.pointers()?);
        }
        Ok(pointers)
    }

    /// Fills D of copy 0 with NaN: in every type, all bits set are a NaN.
    pub fn poison(&self, timer: &Timer) -> Result {
        let d = &self.copies[0].d;
        let bytes = d.elem_count() * d.dtype().size_in_bytes();
        // SAFETY: D has this length, and lives until the stream has passed.
        unsafe { result::memset_d8_async(address(d)?, 0xff, bytes, timer.device().cuda_stream().cu_stream())? };
        Ok(())
    }
}

/// Refuses zeros and constants, which run up to a fifth faster than random data.
fn is_normal(name: &str, values: &Tensor) -> Result {
    let count = values.elem_count() as f64;
    if count < 64.0 {
        return Ok(()); // nothing that could be told from chance
    }
    // A part is enough to tell.
    let values = values.narrow(0, 0, values.elem_count().min(1 << 20))?.to_dtype(candle::DType::F64)?;
    let mean = values.mean_all()?.to_scalar::<f64>()?;
    let variance = values.sqr()?.mean_all()?.to_scalar::<f64>()? - mean * mean;
    let slack = 6.0 / count.sqrt() + 0.01;
    if mean.abs() < slack && (variance - 1.0).abs() < 2.0 * slack {
        return Ok(());
    }
    Err(format!(
        "{name} is not N(0, 1) data (mean {mean:.3}, variance {variance:.3}); times on such data are refused, for zeros and \
         constants draw less power and run faster than real data"
    )
    .into())
}

pub fn candle_dtype(dtype: Format) -> candle::DType {
    match dtype {
        Format::F16 => candle::DType::F16,
        Format::BF16 => candle::DType::BF16,
        Format::F32 => candle::DType::F32,
        Format::F64 => candle::DType::F64,
        other => unreachable!("a suite has no {other}"),
    }
}

/// Free device memory in bytes.
pub fn free_bytes(device: &CudaDevice) -> Result<usize> {
    Ok(device.cuda_stream().context().mem_get_info()?.0)
}
