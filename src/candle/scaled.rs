//! Products of operands in fp8 with factors beside them.

#[cfg(feature = "cuda")]
use super::cuda::quantized::{product, Narrow, NarrowX, Operands, Product, Weights};
#[cfg(feature = "cuda")]
use super::tensors::unwritten;
use super::tensors::{Block, FLOATS};
#[cfg(feature = "cuda")]
use crate::problem::{Activation, Format, Scale};
use ::candle::{bail, DType, Device, Result, Tensor};

const OP: Block = Block("matmul_scaled");
/// Numbers of a row that share a factor of blocks, and rows of weights that share one with them.
const BLOCK: usize = 128;
/// Bytes that rows are a multiple of on a GPU.
#[cfg(feature = "cuda")]
const ROW: usize = 16;

/// The numbers of a matrix that share a factor.
#[derive(Debug, Clone, Copy)]
enum Shared {
    All,
    Row,
    /// So many rows by [`BLOCK`] numbers of each.
    Blocks(usize),
}

/// An operand, (rows, k), with its factors.
struct Scaled<'a> {
    codes: &'a Tensor,
    factors: &'a Tensor,
    shared: Shared,
    rows: usize,
    k: usize,
}

impl<'a> Scaled<'a> {
    /// `names`: of the matrix and of the factors. `block`: rows that share a factor of blocks.
    fn new(names: [&str; 2], codes: &'a Tensor, factors: &'a Tensor, block: usize) -> Result<Self> {
        let [name, of_factors] = names;
        let &[rows, k] = codes.dims() else {
            bail!("matmul_scaled: {name} is {:?}; expected two dimensions, rows of K numbers", codes.dims());
        };
        if codes.dtype() != DType::F8E4M3 {
            bail!("matmul_scaled: {name} is in {:?}; expected F8E4M3, with factors that fit beside it", codes.dtype());
        }
        if factors.dtype() != DType::F32 {
            bail!("matmul_scaled: {of_factors} is in {:?}; expected F32, convert it with `to_dtype`", factors.dtype());
        }
        let blocks = [rows.div_ceil(block), k.div_ceil(BLOCK)];
        let shared = match *factors.dims() {
            _ if factors.elem_count() == 1 => Shared::All,
            [count] | [count, 1] if count == rows => Shared::Row,
            [down, along] if [down, along] == blocks => Shared::Blocks(block),
            ref dims => bail!(
                "matmul_scaled: {of_factors} is {dims:?}, and {name} is [{rows}, {k}]; expected one factor, [{rows}] or [{rows}, 1] for \
                 rows, or {blocks:?} for blocks of {block} x {BLOCK}"
            ),
        };
        for (what, tensor) in [(name, codes), (of_factors, factors)] {
            OP.untracked(what, tensor)?;
        }
        Ok(Self { codes, factors, shared, rows, k })
    }

    /// The numbers in f32.
    fn numbers(&self) -> Result<Tensor> {
        let factors = match self.shared {
            Shared::All => self.factors.reshape((1, 1))?,
            Shared::Row => self.factors.reshape((self.rows, 1))?,
            Shared::Blocks(block) => {
                let of = |extent: usize, shared: usize| {
                    Tensor::from_iter((0..extent).map(|at| (at / shared) as u32), self.factors.device())
                };
                self.factors
                    .contiguous()?
                    .index_select(&of(self.rows, block)?, 0)?
                    .index_select(&of(self.k, BLOCK)?, 1)?
            }
        };
        self.codes.to_dtype(DType::F32)?.broadcast_mul(&factors)
    }
}

/// `(x * x_scale) @ (w * w_scale)^T` in `out`.
pub(super) fn product_of(x: [&Tensor; 2], w: [&Tensor; 2], out: DType) -> Result<Tensor> {
    let x = Scaled::new(["x", "x_scale"], x[0], x[1], 1)?;
    let w = Scaled::new(["w", "w_scale"], w[0], w[1], BLOCK)?;
    let device = x.codes.device();
    for (name, tensor) in [("x_scale", x.factors), ("w", w.codes), ("w_scale", w.factors)] {
        if !tensor.device().same_device(device) {
            let (have, need) = (tensor.device().location(), device.location());
            bail!("matmul_scaled: {name} is on {have:?}, and x on {need:?}; move it with `to_device`");
        }
    }
    if x.k != w.k {
        bail!("matmul_scaled: x has rows of {} numbers, and w of {}; expected as many, w as (N, K)", x.k, w.k);
    }
    if !FLOATS.contains(&out) {
        bail!("matmul_scaled: no result in {out:?}; expected one of {FLOATS:?}");
    }
    if x.rows == 0 || w.rows == 0 || x.k == 0 {
        return Tensor::zeros((x.rows, w.rows), out, device);
    }
    match device {
        Device::Cpu => x.numbers()?.matmul(&w.numbers()?.t()?)?.to_dtype(out),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => launch(&x, &w, out),
        _ => bail!("matmul_scaled runs on the CPU, and with CUDA, not on {:?}; move the operands", device.location()),
    }
}

#[cfg(feature = "cuda")]
impl Scaled<'_> {
    /// The factors as a list, and where those of the operand A lie in it.
    fn of_a(&self) -> Result<(Tensor, Scale)> {
        Ok(match self.shared {
            Shared::All => (self.factors.clone(), Scale::of_tensor(Format::F32)),
            Shared::Row => (self.factors.contiguous()?, Scale::new(Format::F32, [1, u32::MAX], [1, 0])),
            // Kernels read those of all rows and a block together.
            Shared::Blocks(_) => {
                let scale = Scale::new(Format::F32, [1, BLOCK as u32], [1, self.rows as i64]);
                (self.factors.t()?.contiguous()?, scale)
            }
        })
    }

    /// The same of the operand B, whose columns are the rows.
    fn of_b(&self) -> Result<(Tensor, Scale)> {
        let scale = match self.shared {
            Shared::All => Scale::of_tensor(Format::F32),
            Shared::Row => Scale::of_rows(Format::F32),
            Shared::Blocks(_) => Scale::of_blocks(Format::F32, [BLOCK as u32; 2], self.k),
        };
        Ok((self.factors.contiguous()?, scale))
    }
}

#[cfg(feature = "cuda")]
fn launch(x: &Scaled, w: &Scaled, dtype: DType) -> Result<Tensor> {
    let Device::Cuda(device) = x.codes.device() else { bail!("matmul_scaled: x is not on a GPU") };
    let [n, k] = [w.rows, w.k];
    if !k.is_multiple_of(ROW) {
        bail!("matmul_scaled: rows have {k} numbers; expected a multiple of {ROW} on a GPU, pad x and w with zeros");
    }
    // Rows of x may be apart.
    let codes = OP.rows("x", x.codes, k).map(|rows| rows.tensor.clone()).or_else(|_| x.codes.contiguous())?;
    let of_w = w.codes.contiguous()?;
    let ((of_x, x_scale), (factors, w_scale)) = (x.of_a()?, w.of_b()?);
    let out = unwritten(&[x.rows, n], dtype, x.codes.device())?;
    let weight = Narrow {
        sizes: [n, k],
        format: Format::F8E4M3,
        scale: w_scale,
        alpha: 1.0,
        codes: &of_w,
        factors: &factors,
        zeros: None,
    };
    let of = Operands {
        x: OP.rows("x", &codes, k)?,
        narrow_x: Some(NarrowX { format: Format::F8E4M3, scale: x_scale, factors: &of_x }),
        weight: Weights::Narrow(weight),
        bias: None,
        c: None,
        gates_c: false,
        in_place: false,
        out: OP.rows("the result", &out, n)?,
    };
    product(device, &Product { of, activation: Activation::Identity })?;
    Ok(out)
}
