//! Grouped products of tensors: rows of the input times the matrix of each row's group.

#[cfg(feature = "cuda")]
use super::cuda;
use super::lowering::format_of;
#[cfg(feature = "cuda")]
use crate::problem::Operand;
use crate::problem::{Format, Groups, Problem};
use crate::stats;
use ::candle::{bail, DType, Device, Result, Tensor};

/// The lists of a grouped product ([`Groups`]).
pub(super) struct Experts<'a> {
    /// The pair of each row of the product.
    pub pairs: &'a Tensor,
    /// The group of each row of the product, ascending.
    pub groups: &'a Tensor,
    /// The factor of each row of the result.
    pub scales: Option<&'a Tensor>,
    /// Rows of the result for a row of the input.
    pub pairs_per_row: usize,
}

impl Experts<'_> {
    /// Row p of the result is row `p / pairs_per_row` of `input`, (rows, k), times the matrix of the group of p in `weights`, (groups, n, k).
    pub fn forward(&self, input: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let (rows, k) = input.dims2()?;
        let (count, n, weights_k) = weights.dims3()?;
        if k != weights_k {
            bail!("moe_gemm: the input has rows of {k} numbers, the weights have rows of {weights_k}");
        }
        if input.dtype() != weights.dtype() || !matches!(input.dtype(), DType::F16 | DType::BF16 | DType::F32) {
            let (x, w) = (input.dtype(), weights.dtype());
            bail!("moe_gemm: the input is in {x:?} and the weights are in {w:?}; both have to be in f16, bf16 or f32");
        }
        let m = rows * self.pairs_per_row;
        if self.pairs_per_row == 0 || count == 0 {
            bail!("moe_gemm: there have to be experts, and at least one for each token");
        }
        for (what, list, dtype) in [
            ("sorted_token_ids", Some(self.pairs), DType::U32),
            ("experts_ids", Some(self.groups), DType::U32),
            ("topk_weights", self.scales, DType::F32),
        ] {
            let Some(list) = list else { continue };
            if list.elem_count() != m || list.dtype() != dtype {
                let (have, of) = (list.elem_count(), list.dtype());
                bail!("moe_gemm: {what} has {have} numbers in {of:?}; expected {m} in {dtype:?}");
            }
        }
        let devices = [input, weights, self.pairs, self.groups].into_iter().chain(self.scales).map(Tensor::device);
        if !devices.into_iter().all(|device| device.same_device(input.device())) {
            bail!("moe_gemm: the tensors are on different devices");
        }
        let problem = self.problem(m, n, k, count, format_of(input.dtype())?);
        match input.device() {
            Device::Cpu => self.on_cpu(&problem, input, weights),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let [input, weights] = [readable(input)?, readable(weights)?];
                let [pairs, groups] = [self.pairs.contiguous()?, self.groups.contiguous()?];
                let scales = self.scales.map(Tensor::contiguous).transpose()?;
                let place = |o: &mut Operand, t: &Tensor| {
                    let [.., row, _] = t.stride() else { return };
                    *(if o.col_stride == 1 { &mut o.row_stride } else { &mut o.col_stride }) = *row as i64;
                };
                let mut problem = problem;
                place(&mut problem.a, &input);
                place(&mut problem.b, &weights);
                problem.b.batch_stride[1] = weights.stride()[0] as i64;
                cuda::grouped(device, problem, [&input, &weights], [&pairs, &groups], scales.as_ref())
            }
            _ => bail!("moe_gemm: there are kernels for the CPU and for CUDA"),
        }
    }

    fn problem(&self, m: usize, n: usize, k: usize, count: usize, format: Format) -> Problem {
        let groups = Groups::routed(count, m / self.pairs_per_row, self.pairs_per_row).with(|groups| {
            groups.scaled = self.scales.is_some();
        });
        Problem::grouped([m, n, k], groups, format)
    }

    /// candle's product for each expert that has rows, in f32.
    fn on_cpu(&self, problem: &Problem, input: &Tensor, weights: &Tensor) -> Result<Tensor> {
        stats::count_cpu(problem);
        let list = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<u32>();
        let (pairs, groups) = (list(self.pairs)?, list(self.groups)?);
        let scales = self.scales.map(|scales| scales.flatten_all()?.to_vec1::<f32>()).transpose()?;
        let (m, count) = (problem.m as u32, weights.dim(0)? as u32);
        let (dense, mut result) =
            (input.contiguous()?, Tensor::zeros((problem.m, problem.n), DType::F32, input.device())?);
        let mut rows: Vec<(u32, u32)> =
            groups.into_iter().zip(pairs).filter(|row| row.0 < count && row.1 < m).collect();
        rows.sort_by_key(|row| row.0);
        for of_group in rows.chunk_by(|x, y| x.0 == y.0) {
            let pairs: Vec<u32> = of_group.iter().map(|row| row.1).collect();
            let from: Vec<u32> = pairs.iter().map(|pair| pair / self.pairs_per_row as u32).collect();
            let device = input.device();
            let x = dense.index_select(&Tensor::new(from, device)?, 0)?.to_dtype(DType::F32)?;
            let w = weights.get(of_group[0].0 as usize)?.to_dtype(DType::F32)?;
            let mut y = x.matmul(&w.t()?)?;
            if let Some(scales) = &scales {
                let factors: Vec<f32> = pairs.iter().map(|pair| scales[*pair as usize]).collect();
                y = y.broadcast_mul(&Tensor::new(factors, device)?.unsqueeze(1)?)?;
            }
            result = result.index_add(&Tensor::new(pairs, device)?, &y, 0)?;
        }
        result.to_dtype(input.dtype())
    }
}

/// The tensor, copied where rows are not contiguous.
#[cfg(feature = "cuda")]
fn readable(tensor: &Tensor) -> Result<Tensor> {
    match tensor.stride() {
        [.., 1] => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    }
}
