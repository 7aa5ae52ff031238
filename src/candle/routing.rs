//! The experts of tokens: the choice by logits, and the lists for grouped products.

#[cfg(feature = "experts")]
use super::cuda::grouped::{self, Logits, Routed};
#[cfg(feature = "experts")]
use super::tensors::{unwritten, Block};
use super::GroupedGemm;
use ::candle::{bail, DType, Device, Result, Tensor};
use std::ops::Range;

/// The most experts that tokens can choose from.
const MOST_EXPERTS: usize = 1024;

/// The experts of each token, and the tokens of each expert: the lists of the products of a layer of experts. A pair is a token and one of its
/// experts; pair `p` is choice `p % top_k` of token `p / top_k`.
///
/// Pairs are sorted by expert, and pairs of an expert by token (a stable counting sort), so that results are equal from run to run.
///
/// ```
/// use candle::{Device, Tensor};
/// use candle_tilegemm::nn::moe::Routing;
///
/// let logits = Tensor::new(&[[0f32, 2., 1.], [3., 0., 2.]], &Device::Cpu)?;
/// let routing = Routing::by_logits(&logits, 2, true)?;
/// assert_eq!(routing.experts().to_vec2::<u32>()?, [[1, 2], [0, 2]]); // of each token, by falling logit
/// assert_eq!(routing.first_row().to_vec1::<u32>()?, [0, 1, 2, 4]); // of each expert
/// assert_eq!(routing.pairs().to_vec1::<u32>()?, [2, 0, 1, 3]); // by expert
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Routing {
    experts: Tensor,
    scales: Tensor,
    first_row: Tensor,
    pairs: Tensor,
}

impl Routing {
    /// Each token's `top_k` experts with the largest logits; equal logits by rising expert.
    ///
    /// - `logits`: (tokens, experts) in f16, bf16 or f32, of at most 1024 experts
    /// - `normalise`: the weights of a token's experts add up to 1; otherwise weights are shares of the softmax over all experts
    ///
    /// A NaN counts as the largest number, and makes the token's weights NaN.
    ///
    /// # Errors
    /// Logits of another shape or type, and more choices than experts.
    pub fn by_logits(logits: &Tensor, top_k: usize, normalise: bool) -> Result<Self> {
        let (_, experts) = logits.dims2()?;
        Self::by_logits_among(logits, 0..experts, top_k, normalise)
    }

    /// The same choice, with the same weights, for a layer that has a range of the experts, as a rank of a group has: expert `experts.start` is 0 here. Others do
    /// not exist here, as [`new`](Self::new) has it, and their pairs' weights do not count.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use candle_tilegemm::nn::moe::Routing;
    ///
    /// let logits = Tensor::new(&[[0f32, 2., 1.], [3., 0., 2.]], &Device::Cpu)?;
    /// let routing = Routing::by_logits_among(&logits, 1..3, 2, true)?;
    /// assert_eq!(routing.experts().to_vec2::<u32>()?, [[0, 1], [u32::MAX, 1]]);
    /// assert_eq!(routing.first_row().to_vec1::<u32>()?, [0, 1, 3]); // of two experts
    /// assert_eq!(routing.pairs().to_vec1::<u32>()?, [0, 1, 3, 2]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`by_logits`](Self::by_logits), and a range that is empty or not within the experts.
    pub fn by_logits_among(logits: &Tensor, experts: Range<usize>, top_k: usize, normalise: bool) -> Result<Self> {
        let (_, all) = logits.dims2()?;
        if top_k == 0 || top_k > all || all > MOST_EXPERTS {
            bail!("a token cannot choose {top_k} of {all} experts; expected 1 and more of at most {MOST_EXPERTS}");
        }
        if experts.is_empty() || experts.end > all {
            bail!("experts {experts:?} of {all} are here; expected one and more, within 0..{all}");
        }
        if !matches!(logits.dtype(), DType::F16 | DType::BF16 | DType::F32) {
            bail!("the logits of experts are in {:?}; expected f16, bf16 or f32", logits.dtype());
        }
        match logits.device() {
            Device::Cpu => Self::on_cpu(logits, experts, top_k, normalise),
            #[cfg(feature = "experts")]
            Device::Cuda(device) => {
                let (tokens, logits) = (logits.dim(0)?, logits.contiguous()?);
                let (routing, counts) = Self::unwritten([tokens, experts.len(), top_k], logits.device())?;
                let by = Logits { logits: &logits, first: experts.start, normalise };
                grouped::route_into(device, Some(by), experts.len(), &routing.to(&counts))?;
                Ok(routing)
            }
            _ => bail!("experts are chosen on the CPU, and with CUDA: build with the feature experts"),
        }
    }

    /// Given experts and weights of tokens, (tokens, top_k) each, in u32 and f32, of `count` experts. Any number from `count` on is no expert here, such as
    /// the `u32::MAX` that -1 becomes: the expert may be on another GPU. Such a pair's rows of products are zeros, and its weight does not count.
    ///
    /// # Errors
    /// Lists of other shapes or types, and more than 1024 experts.
    pub fn new(count: usize, experts: &Tensor, weights: &Tensor) -> Result<Self> {
        let (tokens, top_k) = experts.dims2()?;
        if weights.dims2()? != (tokens, top_k) || (experts.dtype(), weights.dtype()) != (DType::U32, DType::F32) {
            bail!(
                "the experts of tokens are {:?} in {:?} and their weights {:?} in {:?}; expected one shape, u32 and f32",
                experts.shape(),
                experts.dtype(),
                weights.shape(),
                weights.dtype()
            );
        }
        if top_k == 0 || count == 0 || count > MOST_EXPERTS {
            bail!(
                "a token cannot have {top_k} of {count} experts; expected 1 and more, and 1 to {MOST_EXPERTS} experts"
            );
        }
        let (experts, scales) = (experts.contiguous()?, weights.contiguous()?);
        match experts.device() {
            Device::Cpu => {
                let [first_row, pairs] = lists(count, &experts)?;
                Ok(Self { experts, scales, first_row, pairs })
            }
            #[cfg(feature = "experts")]
            Device::Cuda(device) => {
                let (empty, counts) = Self::unwritten([tokens, count, top_k], experts.device())?;
                let routing = Self { experts: experts.clone(), scales, ..empty };
                grouped::route_into(device, None, count, &routing.to(&counts))?;
                Ok(routing)
            }
            _ => bail!("experts are listed on the CPU, and with CUDA: build with the feature experts"),
        }
    }

    /// Lists that a routing of so many tokens, experts, and experts of a token writes, and the numbers between its kernels.
    #[cfg(feature = "experts")]
    pub(super) fn unwritten([tokens, experts, top_k]: [usize; 3], device: &Device) -> Result<(Self, Tensor)> {
        let list = |shape: &[usize], dtype| unwritten(shape, dtype, device);
        let routing = Self {
            experts: list(&[tokens, top_k], DType::U32)?,
            scales: list(&[tokens, top_k], DType::F32)?,
            first_row: list(&[experts + 1], DType::U32)?,
            pairs: list(&[tokens * top_k], DType::U32)?,
        };
        Ok((routing, list(&[grouped::counts(tokens, experts)], DType::U32)?))
    }

    /// The lists of the first tokens.
    #[cfg(feature = "experts")]
    pub(super) fn of_first(&self, tokens: usize) -> Result<Self> {
        Ok(Self {
            experts: self.experts.narrow(0, 0, tokens)?,
            scales: self.scales.narrow(0, 0, tokens)?,
            first_row: self.first_row.clone(),
            pairs: self.pairs.narrow(0, 0, tokens * self.top_k())?,
        })
    }

    #[cfg(feature = "experts")]
    pub(super) fn to<'a>(&'a self, counts: &'a Tensor) -> Routed<'a> {
        let Self { experts, scales, first_row, pairs } = self;
        Routed { experts, scales, first_row, pairs, counts }
    }

    /// The experts of each token, (tokens, top_k) in u32.
    pub fn experts(&self) -> &Tensor {
        &self.experts
    }

    /// The weights of each token's experts, (tokens, top_k) in f32.
    pub fn weights(&self) -> &Tensor {
        &self.scales
    }

    /// The first row of each expert, and the number of rows of all experts: (experts + 1) in u32.
    pub fn first_row(&self) -> &Tensor {
        &self.first_row
    }

    /// The pairs by expert, (tokens * top_k) in u32. Pairs whose expert does not exist come last, from the last number of
    /// [`first_row`](Self::first_row) on.
    pub fn pairs(&self) -> &Tensor {
        &self.pairs
    }

    /// The product of each token with the weights of its experts: row `p` of the result is of pair `p`, zeros where the pair's expert does not exist.
    pub fn by_tokens(&self) -> GroupedGemm {
        GroupedGemm::by_first_row(&self.first_row).pairs(&self.pairs, self.top_k())
    }

    /// The product of each pair's row with the weights of its expert, times the weight of the pair; zeros where the expert does not exist, whatever the
    /// pair's row and weight are.
    pub fn by_pairs(&self) -> GroupedGemm {
        GroupedGemm::by_first_row(&self.first_row).pairs(&self.pairs, 1).scales(&self.scales)
    }

    /// The sum over each token's experts, (tokens, n), of the results of pairs, (tokens * top_k, n): in f32, in the order of the token's choice.
    ///
    /// # Errors
    /// Results of another shape, and types other than f16, bf16 and f32.
    pub fn sum(&self, results: &Tensor) -> Result<Tensor> {
        self.sum_beside(results, None, results.dtype())
    }

    /// [`sum`](Self::sum), and the residual behind it, rounded once, to the type of results or of results in f32 to `dtype`.
    pub(super) fn sum_beside(&self, results: &Tensor, residual: Option<&Tensor>, dtype: DType) -> Result<Tensor> {
        let (rows, n) = results.dims2()?;
        if rows != self.pairs.elem_count() || !matches!(results.dtype(), DType::F16 | DType::BF16 | DType::F32) {
            let expected = self.pairs.elem_count();
            bail!(
                "results of {rows} pairs in {:?} to add up; expected {expected}, in f16, bf16 or f32",
                results.dtype()
            );
        }
        let tokens = rows / self.top_k();
        match results.device() {
            #[cfg(feature = "experts")]
            Device::Cuda(_) => {
                let out = unwritten(&[tokens, n], dtype, results.device())?;
                self.sum_into(&results.contiguous()?, residual, &out)?;
                Ok(out)
            }
            _ => {
                let sum = results.to_dtype(DType::F32)?.reshape((tokens, self.top_k(), n))?.sum(1)?;
                let sum = match residual {
                    Some(residual) => (sum + residual.to_dtype(DType::F32)?)?,
                    None => sum,
                };
                sum.to_dtype(dtype)
            }
        }
    }

    /// The sum of contiguous results on a GPU into (tokens, n), whose rows may be apart, as those of the residual may. Allocates nothing.
    #[cfg(feature = "experts")]
    pub(super) fn sum_into(&self, results: &Tensor, residual: Option<&Tensor>, out: &Tensor) -> Result<()> {
        const BLOCK: Block = Block("a sum over experts");
        let Device::Cuda(device) = results.device() else { return BLOCK.elsewhere(results.device()) };
        let (_, n) = results.dims2()?;
        let out = BLOCK.rows("the result", out, n)?;
        let residual = residual.map(|residual| BLOCK.rows_like("the residual", residual, out)).transpose()?;
        grouped::sum_rows_into(device, results, self.top_k(), residual, out)
    }

    fn top_k(&self) -> usize {
        self.experts.dims()[1]
    }

    fn on_cpu(logits: &Tensor, own: Range<usize>, top_k: usize, normalise: bool) -> Result<Self> {
        let (tokens, count) = logits.dims2()?;
        let device = logits.device();
        let rows = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let (mut experts, mut scales) = (Vec::with_capacity(tokens * top_k), Vec::with_capacity(tokens * top_k));
        for row in rows {
            let above = |x: f32| if x.is_nan() { f32::INFINITY } else { x };
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&i, &j| row[j].is_nan().cmp(&row[i].is_nan()).then(above(row[j]).total_cmp(&above(row[i]))));
            order.truncate(top_k);
            let largest = row[order[0]];
            let share = |i: &usize| (row[*i] - largest).exp();
            let sum: f32 = if normalise { order.iter().map(share).sum() } else { (0..count).map(|i| share(&i)).sum() };
            scales.extend(order.iter().map(|i| share(i) / sum));
            experts.extend(order.iter().map(|i| (*i as u32).wrapping_sub(own.start as u32)));
        }
        let experts = Tensor::from_vec(experts, (tokens, top_k), device)?;
        let scales = Tensor::from_vec(scales, (tokens, top_k), device)?;
        let [first_row, pairs] = lists(own.len(), &experts)?;
        Ok(Self { experts, scales, first_row, pairs })
    }
}

/// The first row of each expert and the pairs, on the CPU. Pairs of experts that do not exist come last.
fn lists(count: usize, experts: &Tensor) -> Result<[Tensor; 2]> {
    let experts_of_pairs = experts.flatten_all()?.to_vec1::<u32>()?;
    let mut pairs: Vec<u32> = (0..experts_of_pairs.len() as u32).collect();
    pairs.sort_by_key(|pair| experts_of_pairs[*pair as usize].min(count as u32));
    let rows =
        |expert: usize| pairs.partition_point(|pair| (experts_of_pairs[*pair as usize] as usize) < expert) as u32;
    let first_row: Vec<u32> = (0..=count).map(rows).collect();
    let (all, device) = (pairs.len(), experts.device());
    Ok([Tensor::from_vec(first_row, count + 1, device)?, Tensor::from_vec(pairs, all, device)?])
}
