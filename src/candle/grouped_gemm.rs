//! Grouped products of tensors: each row of the input times the matrix of the row's group.

#[cfg(feature = "experts")]
use super::cuda::grouped;
#[cfg(feature = "experts")]
use super::cuda::quantized::{Narrow, NarrowX, Weights};
use super::lowering::format_of;
use super::numbers::put;
#[cfg(feature = "experts")]
use super::qweights::QWeights;
use super::tensors::Block;
#[cfg(feature = "experts")]
use crate::problem::Operand;
use crate::problem::{Activation, Bounds, Format, Gate, Groups, Problem, Rows};
use crate::stats;
use ::candle::{bail, DType, Device, Result, Tensor, D};

const BLOCK: Block = Block("a grouped product");

/// The product of groups of rows with a matrix each, such as the experts of a layer and the tokens that chose them.
///
/// On a GPU it needs the feature `experts`.
///
/// Rows of a group follow one another. The lists lie on the device of the operands, and are never read back: a captured graph stays right when
/// the lists change.
///
/// A row of no group gives a row of zeros. An expert of another GPU is no group here: its number is the number of groups or more, for instance the
/// `u32::MAX` that -1 becomes. A row whose pair does not exist is left out. A row of the result that no pair names is zeros on the CPU, and has no defined
/// content on a GPU.
///
/// ```
/// use candle::{Device, Tensor};
/// use candle_tilegemm::GroupedGemm;
///
/// let dev = &Device::Cpu;
/// let x = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], dev)?;
/// let weights = Tensor::new(&[[[1f32, 0.]], [[0., 1.]]], dev)?; // two groups, n = 1
/// let first_row = Tensor::new(&[0u32, 1, 3], dev)?; // row 0; rows 1 and 2
/// let y = GroupedGemm::by_first_row(&first_row).forward(&x, &weights)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.], [4.], [6.]]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct GroupedGemm {
    bounds: Bounds,
    list: Tensor,
    pairs: Option<(Tensor, usize)>,
    scales: Option<Tensor>,
    gate: Option<(Gate, Activation)>,
}

impl GroupedGemm {
    /// Groups by the first row of each group and the end of the last group: (groups + 1) ascending numbers in u32. Rows before the first group and
    /// behind the last group are of no group.
    pub fn by_first_row(first_row: &Tensor) -> Self {
        Self::new(Bounds::FirstRow, first_row)
    }

    /// Groups by the group of each row: ascending numbers in u32. Rows of no group come last, with any numbers from the number of groups on.
    pub fn by_group_of_row(groups: &Tensor) -> Self {
        Self::new(Bounds::GroupOfRow, groups)
    }

    fn new(bounds: Bounds, list: &Tensor) -> Self {
        Self { bounds, list: list.clone(), pairs: None, scales: None, gate: None }
    }

    /// Row i of the product reads row `pairs[i] / pairs_per_row` of the input, and writes row `pairs[i]` of the result. `pairs` has a number in
    /// u32 for each row of the result, each number once. With `top_k` pairs for each row, a pair is a token and one of the token's experts.
    pub fn pairs(mut self, pairs: &Tensor, pairs_per_row: usize) -> Self {
        self.pairs = Some((pairs.clone(), pairs_per_row));
        self
    }

    /// Multiplies each row of the result by a number: a tensor in f32.
    pub fn scales(mut self, scales: &Tensor) -> Self {
        self.scales = Some(scales.clone());
        self
    }

    /// Makes a gated product, such as SwiGLU: the result has half as many columns as the weights have rows.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::{problem::Gate, Activation, GroupedGemm};
    ///
    /// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    /// let gates_and_ups = Tensor::ones((2, 2 * 5, 4), DType::F32, &Device::Cpu)?; // two experts; five gates, then five ups
    /// let experts = Tensor::new(&[0u32, 0, 1], &Device::Cpu)?; // of each row
    /// let product = GroupedGemm::by_group_of_row(&experts).gate(Gate::Halves, Activation::Relu);
    /// assert_eq!(product.forward(&x, &gates_and_ups)?.to_vec2::<f32>()?, [[16.0; 5]; 3]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    pub fn gate(mut self, gate: Gate, activation: Activation) -> Self {
        self.gate = Some((gate, activation));
        self
    }

    /// The product. No gradient passes.
    ///
    /// - `input`: (rows, k) in f16, bf16 or f32; without pairs, a row for each row of the result
    /// - `weights`: (groups, n, k), in the input's type
    /// - result: (rows, n), with a gate (rows, n / 2), in the input's type; sums are in f32
    ///
    /// # Errors
    /// Where shapes, types or devices do not fit, and where no kernel of this build runs the product.
    pub fn forward(&self, input: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let problem = self.problem(input, weights)?;
        match input.device() {
            Device::Cpu => self.on_cpu(&problem, input, |group, x| times(x, weights, group))?.to_dtype(input.dtype()),
            #[cfg(feature = "experts")]
            Device::Cuda(device) => {
                let [input, weights] = [readable(input)?, readable(weights)?];
                let list = self.list.contiguous()?;
                let pairs = self.pairs.as_ref().map(|(pairs, _)| pairs.contiguous()).transpose()?;
                let scales = self.scales.as_ref().map(Tensor::contiguous).transpose()?;
                let lists = grouped::Lists { bounds: &list, pairs: pairs.as_ref(), scales: scales.as_ref() };
                grouped::product(device, placed(problem, &input, &weights), [&input, &weights], &lists)
            }
            _ => bail!("a product with groups of rows runs on the CPU, and with CUDA: build with the feature experts"),
        }
    }

    /// [`forward`](Self::forward) into a tensor that exists, (rows, n) or (rows, n / 2), whose rows may be apart, with the same bits. On a GPU it allocates nothing
    /// and copies nothing, and is legal in a capture after [`prepare`](crate::prepare).
    ///
    /// # Errors
    /// As for [`forward`](Self::forward); a tensor that does not fit or shares memory with an input; tensors that track gradients; and on a GPU inputs and lists that
    /// [`forward`](Self::forward) would copy, and gates in f32 that no kernel of products applies.
    pub fn forward_into(&self, input: &Tensor, weights: &Tensor, out: &Tensor) -> Result<()> {
        self.write(input, weights, None, out)
    }

    /// [`forward_into`](Self::forward_into) with memory for gates that a kernel of its own applies: (rows, n).
    pub(super) fn write(&self, input: &Tensor, weights: &Tensor, both: Option<&Tensor>, out: &Tensor) -> Result<()> {
        let problem = self.problem(input, weights)?;
        let shape = [problem.m, problem.columns_of_d()];
        BLOCK.same("the result", out, input)?;
        if out.dims() != shape {
            bail!("a grouped product: the result is {:?}; expected {shape:?}", out.dims());
        }
        let lists = [Some(&self.list), self.pairs.as_ref().map(|(pairs, _)| pairs), self.scales.as_ref()];
        for (what, tensor) in [("the input", input), ("the weights", weights), ("the result", out)] {
            BLOCK.untracked(what, tensor)?;
        }
        BLOCK.apart("the input", input, out)?;
        BLOCK.apart("the weights", weights, out)?;
        let out = BLOCK.rows("the result", out, shape[1])?;
        match input.device() {
            _ if out.tensor.elem_count() == 0 => Ok(()),
            Device::Cpu => put(&self.on_cpu(&problem, input, |group, x| times(x, weights, group))?, out.tensor),
            #[cfg(feature = "experts")]
            Device::Cuda(device) => {
                if [input, weights].iter().any(|t| t.stride().last() != Some(&1))
                    || lists.iter().flatten().any(|list| !list.is_contiguous())
                {
                    bail!("a grouped product: rows of inputs, or lists, are not contiguous; call `.contiguous()?` on them before a product into a tensor");
                }
                let problem = placed(problem, input, weights).with(|problem| problem.d.row_stride = out.stride as i64);
                let lists = grouped::Lists { bounds: &self.list, pairs: lists[1], scales: lists[2] };
                grouped::product_into(device, problem, [input, weights], &lists, both, out.tensor)
            }
            _ => {
                let _ = (both, lists);
                BLOCK.elsewhere(input.device())
            }
        }
    }

    /// The product with weights in blocks, (groups, n, k), on a GPU, into rows in f32. Allocates nothing.
    #[cfg(feature = "experts")]
    pub(super) fn write_blocks(&self, input: &Tensor, weights: &QWeights, out: &Tensor) -> Result<()> {
        let Some(format) = weights.format() else {
            bail!("a grouped product: no kernel multiplies weights in {:?}", weights.stored());
        };
        self.write_of(input, None, weights.shape().dims3()?, Weights::Blocks(weights, format), out)
    }

    /// The same with narrow weights of `count` groups, which lie over one another. `narrow`: what an input of codes is.
    #[cfg(feature = "experts")]
    pub(super) fn write_narrow(
        &self,
        input: &Tensor,
        narrow: Option<NarrowX>,
        count: usize,
        weights: Narrow,
        out: &Tensor,
    ) -> Result<()> {
        let [n, k] = weights.sizes;
        self.write_of(input, narrow, (count, n, k), Weights::Narrow(weights), out)
    }

    #[cfg(feature = "experts")]
    fn write_of(
        &self,
        input: &Tensor,
        narrow: Option<NarrowX>,
        sizes: (usize, usize, usize),
        weights: Weights,
        out: &Tensor,
    ) -> Result<()> {
        let format = narrow.map_or_else(|| format_of(input.dtype()), |narrow| Ok(narrow.format))?;
        let of_out = format_of(out.dtype())?;
        let problem = placed_input(self.problem_in(input, format, sizes)?, input).with(|problem| {
            (problem.d.format, problem.d.row_stride) = (of_out, out.stride()[0] as i64);
            problem.a.scale = narrow.map(|narrow| narrow.scale);
        });
        let Device::Cuda(device) = input.device() else { return BLOCK.elsewhere(input.device()) };
        let lists = grouped::Lists {
            bounds: &self.list,
            pairs: self.pairs.as_ref().map(|(pairs, _)| pairs),
            scales: self.scales.as_ref(),
        };
        grouped::product_of(device, problem, (input, narrow.map(|narrow| narrow.factors)), weights, &lists, out)
    }

    /// The product with weights of `sizes`, (groups, n, k), on the CPU, in f32: `product` multiplies rows in f32 with a group's.
    pub(super) fn by_product(
        &self,
        input: &Tensor,
        sizes: (usize, usize, usize),
        product: impl FnMut(usize, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.on_cpu(&self.problem_of(input, sizes)?, input, product)
    }

    /// The problem, of dense operands.
    fn problem(&self, input: &Tensor, weights: &Tensor) -> Result<Problem> {
        if input.dtype() != weights.dtype() || !matches!(input.dtype(), DType::F16 | DType::BF16 | DType::F32) {
            let (x, w) = (input.dtype(), weights.dtype());
            bail!("a grouped product: the input is in {x:?} and the weights are in {w:?}; both have to be in f16, bf16 or f32");
        }
        let problem = self.problem_of(input, weights.dims3()?)?;
        if !weights.device().same_device(input.device()) {
            bail!("a grouped product: the weights are on another device than the input");
        }
        Ok(problem)
    }

    /// The problem of weights in the input's type.
    fn problem_of(&self, input: &Tensor, sizes: (usize, usize, usize)) -> Result<Problem> {
        self.problem_in(input, format_of(input.dtype())?, sizes)
    }

    fn problem_in(
        &self,
        input: &Tensor,
        format: Format,
        (count, n, weights_k): (usize, usize, usize),
    ) -> Result<Problem> {
        let (rows, k) = input.dims2()?;
        if k != weights_k {
            bail!("a grouped product: the input has rows of {k} numbers, the weights have rows of {weights_k}");
        }
        let pairs_per_row = self.pairs.as_ref().map_or(1, |(_, pairs_per_row)| *pairs_per_row);
        if pairs_per_row == 0 || count == 0 {
            bail!("a grouped product has at least one group, and at least one pair for each row");
        }
        if self.gate.is_some() && !n.is_multiple_of(2) {
            bail!("a gated product: the weights have {n} rows; expected an even number");
        }
        let m = rows * pairs_per_row;
        let bounds = match self.bounds {
            Bounds::FirstRow => ("first_row", count + 1),
            Bounds::GroupOfRow => ("experts_ids (the group of each row)", m),
        };
        for ((what, numbers), list, dtype) in [
            (bounds, Some(&self.list), DType::U32),
            (("sorted_token_ids (the pairs)", m), self.pairs.as_ref().map(|(pairs, _)| pairs), DType::U32),
            (("topk_weights (the scales)", m), self.scales.as_ref(), DType::F32),
        ] {
            let Some(list) = list else { continue };
            if list.elem_count() != numbers || list.dtype() != dtype {
                let (have, of) = (list.elem_count(), list.dtype());
                bail!("a grouped product: {what} has {have} numbers in {of:?}; expected {numbers} in {dtype:?}");
            }
            if !list.device().same_device(input.device()) {
                bail!("a grouped product: {what} is on another device than the input");
            }
        }
        let groups = Groups::routed(count, rows, pairs_per_row).with(|groups| {
            groups.bounds = self.bounds;
            groups.scaled = self.scales.is_some();
            if self.pairs.is_none() {
                groups.rows = Rows::InOrder;
            }
        });
        Ok(Problem::grouped([m, n, k], groups, format).with(|problem| {
            if let Some((gate, activation)) = self.gate {
                (problem.epilogue.gate, problem.epilogue.activation) = (Some(gate), activation);
                problem.d.row_stride = problem.columns_of_d() as i64;
            }
        }))
    }

    /// The group and the pair of each row that has both, ascending by group.
    fn rows(&self, m: usize, count: usize) -> Result<Vec<(u32, u32)>> {
        let list = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<u32>();
        let (m, count) = (m as u32, count as u32);
        let groups: Vec<u32> = match (self.bounds, list(&self.list)?) {
            (Bounds::FirstRow, first_row) => {
                let group = |row: u32| first_row.partition_point(|first| *first <= row).checked_sub(1);
                (0..m).map(|row| group(row).map_or(count, |group| group as u32)).collect()
            }
            (Bounds::GroupOfRow, groups) => groups,
        };
        let pairs = match &self.pairs {
            Some((pairs, _)) => list(pairs)?,
            None => (0..m).collect(),
        };
        let rows = groups.into_iter().zip(pairs).filter(|(group, pair)| *group < count && *pair < m);
        let mut rows: Vec<(u32, u32)> = rows.collect();
        rows.sort_by_key(|(group, _)| *group);
        Ok(rows)
    }

    /// A product for each group that has rows, in f32: of the group and its rows.
    fn on_cpu(
        &self,
        problem: &Problem,
        input: &Tensor,
        mut product: impl FnMut(usize, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        stats::count_cpu(problem);
        let device = input.device();
        let pairs_per_row = self.pairs.as_ref().map_or(1, |(_, pairs_per_row)| *pairs_per_row as u32);
        let scales = self.scales.as_ref().map(|scales| scales.flatten_all()?.to_vec1::<f32>()).transpose()?;
        let mut result = Tensor::zeros((problem.m, problem.columns_of_d()), DType::F32, device)?;
        let dense = input.contiguous()?;
        let count = problem.groups.map_or(1, |groups| groups.count);
        for of_group in self.rows(problem.m, count)?.chunk_by(|x, y| x.0 == y.0) {
            let pairs: Vec<u32> = of_group.iter().map(|row| row.1).collect();
            let from: Vec<u32> = pairs.iter().map(|pair| pair / pairs_per_row).collect();
            let x = dense.index_select(&Tensor::new(from, device)?, 0)?.to_dtype(DType::F32)?;
            let mut y = product(of_group[0].0 as usize, &x)?;
            if let Some((gate, activation)) = self.gate {
                y = gated(&y, gate, activation)?;
            }
            if let Some(scales) = &scales {
                let factors: Vec<f32> = pairs.iter().map(|pair| scales[*pair as usize]).collect();
                y = y.broadcast_mul(&Tensor::new(factors, device)?.unsqueeze(1)?)?;
            }
            result = result.index_add(&Tensor::new(pairs, device)?, &y, 0)?;
        }
        Ok(result)
    }
}

/// The product of rows in f32 with a matrix of dense weights.
fn times(x: &Tensor, weights: &Tensor, group: usize) -> Result<Tensor> {
    x.matmul(&weights.get(group)?.to_dtype(DType::F32)?.t()?)
}

/// `activation(gate) * up` of the columns of an f32 matrix on the CPU.
fn gated(y: &Tensor, gate: Gate, activation: Activation) -> Result<Tensor> {
    let (rows, n) = y.dims2()?;
    let (gates, ups) = match gate {
        Gate::Halves => (y.narrow(D::Minus1, 0, n / 2)?, y.narrow(D::Minus1, n / 2, n / 2)?),
        Gate::Interleaved => {
            let pairs = y.reshape((rows, n / 2, 2))?;
            (pairs.get_on_dim(2, 0)?, pairs.get_on_dim(2, 1)?)
        }
    };
    let gates = gates.flatten_all()?.to_vec1::<f32>()?.into_iter().map(|x| activation.apply(x)).collect::<Vec<f32>>();
    Tensor::from_vec(gates, (rows, n / 2), y.device())? * ups
}

/// The problem with the strides of its operands.
#[cfg(feature = "experts")]
fn placed(problem: Problem, input: &Tensor, weights: &Tensor) -> Problem {
    placed_input(problem, input).with(|problem| {
        place(&mut problem.b, weights);
        problem.b.batch_stride[1] = weights.stride()[0] as i64;
    })
}

#[cfg(feature = "experts")]
fn placed_input(problem: Problem, input: &Tensor) -> Problem {
    problem.with(|problem| place(&mut problem.a, input))
}

#[cfg(feature = "experts")]
fn place(operand: &mut Operand, tensor: &Tensor) {
    let [.., row, _] = tensor.stride() else { return };
    *(if operand.col_stride == 1 { &mut operand.row_stride } else { &mut operand.col_stride }) = *row as i64;
}

/// The tensor, copied where rows are not contiguous.
#[cfg(feature = "experts")]
fn readable(tensor: &Tensor) -> Result<Tensor> {
    match tensor.stride() {
        [.., 1] => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    }
}
