//! Products of experts, with the names, signatures and shapes of `candle_nn::moe`.
//!
//! In candle such a layer needs `cuda` and 16-bit tensors. Here the layer runs on the CPU, too, and honours start offsets and strides of
//! all tensors, which candle's `moe_gemm` ignores. On a GPU it needs the feature `experts`.

mod load;

pub use super::super::routing::Routing;
use super::super::{Gemm, GroupedGemm};
use super::experts::Experts;
#[cfg(feature = "experts")]
use super::routed::Memory;
use crate::candle::numbers::put;
use crate::candle::tensors::Block;
use crate::problem::Activation;
use ::candle::{bail, DType, Device, Result, Tensor};

const BLOCK: Block = Block("FusedMoe");

/// The product of each token with the weights of the token's experts.
///
/// `sorted_token_ids` and `experts_ids` are lists of `tokens * topk` numbers in u32. Entry i stands for the pair
/// `p = sorted_token_ids[i]` of a token and one of its experts, `experts_ids[i]`. Entries are sorted by expert. Without `topk_weights`, row p of
/// the result is row `p / topk` of the input times the expert's weights. With `topk_weights`, of `tokens * topk` numbers in f32, row p of the
/// result is row p of the input times the expert's weights, times weight p.
///
/// - `input`: (tokens, k) without `topk_weights`, (tokens * topk, k) with `topk_weights`; f16, bf16 or f32
/// - `weights`: (experts, n, k), in the input's type
/// - result: (tokens * topk, n), in the input's type; sums are in f32
///
/// An expert that is not in `weights`, such as one of another GPU, has any number from `experts` on, for instance the `u32::MAX` that -1 becomes. Entries of
/// such experts come last, as the order by expert has it, and their rows of the result are zeros.
///
/// `is_prefill` changes nothing: the kernel is chosen by the numbers of tokens and experts. No gradient passes. `sorted_token_ids` has each pair once: a row of
/// the result that no entry names has no defined content on a GPU.
///
/// ```
/// use candle::{Device, Tensor};
/// use candle_tilegemm::nn::moe::moe_gemm;
///
/// let dev = &Device::Cpu;
/// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], dev)?;
/// let weights = Tensor::new(&[[[1f32, 0.]], [[0., 1.]], [[1., 1.]]], dev)?; // 3 experts, n = 1
/// // Token 0 chooses experts 2 and 0 (pairs 0 and 1), token 1 experts 1 and 2 (pairs 2 and 3).
/// let pairs = Tensor::new(&[1u32, 2, 0, 3], dev)?;
/// let experts = Tensor::new(&[0u32, 1, 2, 2], dev)?;
/// let y = moe_gemm(&x, &weights, &None, &pairs, &experts, 2, true)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[3.], [1.], [4.], [7.]]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Where shapes, types or devices do not fit, and where no kernel of this build runs the product.
pub fn moe_gemm(
    input: &Tensor,
    weights: &Tensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    is_prefill: bool,
) -> Result<Tensor> {
    let _ = is_prefill;
    let product = GroupedGemm::by_group_of_row(experts_ids);
    match topk_weights {
        Some(weights) => product.pairs(sorted_token_ids, 1).scales(weights),
        None => product.pairs(sorted_token_ids, topk),
    }
    .forward(input, weights)
}

/// What a layer of experts is made of, with the fields of candle_transformers' `MoeCfg`.
#[derive(Debug, Clone)]
pub struct MoeCfg {
    /// Numbers of a token.
    pub hidden_size: usize,
    /// Experts.
    pub num_experts: usize,
    /// Experts of a token.
    pub num_experts_per_tok: usize,
    /// Numbers between an expert's two products.
    pub moe_intermediate_size: usize,
    /// Whether the weights of a token's experts add up to 1. Otherwise weights are shares of the softmax over all experts.
    pub norm_topk_prob: bool,
    /// The function of the gates.
    pub act: candle_nn::Activation,
    /// Not used here: the model decides which of its layers have experts.
    pub decoder_sparse_step: Option<usize>,
}

/// A layer of experts: each token goes through `top_k` experts of its own, and the weighted results are added up.
///
/// An expert is `down @ (activation(gate @ x) * (up @ x))`. On a GPU the layer takes five or six kernels: the product with the router, the choice of experts and the
/// lists of tokens by expert (one kernel for few tokens, two for many), gates and ups with the gate in the epilogue, downs with the weights in the
/// epilogue, and the sum over a token's experts, in the order of its choice. Nothing is read back: the layer can be captured in a graph.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
///
/// let config = MoeCfg {
///     hidden_size: 16,
///     num_experts: 4,
///     num_experts_per_tok: 2,
///     moe_intermediate_size: 8,
///     norm_topk_prob: true,
///     act: candle_nn::Activation::Silu,
///     decoder_sparse_step: None,
/// };
/// let weights = VarMap::new();
/// let layer = FusedMoe::new(&config, VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), DType::F32)?;
/// let y = layer.forward(&Tensor::randn(0f32, 1f32, (1, 3, 16), &Device::Cpu)?, true)?;
/// assert_eq!(y.dims(), [1, 3, 16]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct FusedMoe {
    /// (candidates, hidden): of the experts of all ranks, where each has some.
    router: Tensor,
    /// (candidates) in f32
    router_bias: Option<Tensor>,
    experts: Experts,
    /// The candidate that is expert 0 here.
    first: usize,
    activation: Activation,
    top_k: usize,
    normalise: bool,
}

impl FusedMoe {
    /// The same layer with a bias of the router (gpt-oss), of as many numbers as there are experts, in any float type.
    ///
    /// # Errors
    /// A bias of another shape, and copies that fail.
    pub fn with_router_bias(self, bias: &Tensor) -> Result<Self> {
        check_shape("router's bias", bias.dims(), &self.router.dims()[..1])?;
        let bias = bias.to_device(self.router.device())?.to_dtype(DType::F32)?.contiguous()?;
        Ok(Self { router_bias: Some(bias), ..self })
    }

    /// The same layer as a part of one whose experts are spread over the ranks of a group: `router`, (experts of all ranks, hidden), chooses among all of them, and
    /// this layer has those from `first` on. The results of all ranks add up to the whole layer's
    /// ([`Group::all_reduce`](crate::nn::parallel::Group::all_reduce)): another rank's experts add nothing here, and weights are those of the whole choice.
    /// The router's bias comes afterwards, for all experts.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
    ///
    /// let of_rank = MoeCfg {
    ///     hidden_size: 16,
    ///     num_experts: 2, // of four
    ///     num_experts_per_tok: 3,
    ///     moe_intermediate_size: 8,
    ///     norm_topk_prob: true,
    ///     act: candle_nn::Activation::Silu,
    ///     decoder_sparse_step: None,
    /// };
    /// let random = |shape: &[usize]| Tensor::randn(0f32, 1f32, shape, &Device::Cpu);
    /// let (router, gate_up, down) = (random(&[4, 16])?, random(&[4, 16, 16])?, random(&[4, 16, 8])?);
    /// let part = |first: usize| {
    ///     let own = |weights: &Tensor| weights.narrow(0, first, 2);
    ///     FusedMoe::from_weights(own(&router)?, own(&gate_up)?, own(&down)?, &of_rank)?.among(router.clone(), first)
    /// };
    /// let x = random(&[1, 5, 16])?;
    /// let sum = (part(0)?.forward(&x, true)? + part(2)?.forward(&x, true)?)?;
    /// let whole = MoeCfg { num_experts: 4, ..of_rank.clone() };
    /// let whole = FusedMoe::from_weights(router.clone(), gate_up.clone(), down.clone(), &whole)?.forward(&x, true)?;
    /// assert!((sum - whole)?.abs()?.max_all()?.to_scalar::<f32>()? < 1e-3);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A router of another width, type or place than the layer's, one without the layer's experts, and a layer with a router's bias.
    pub fn among(self, router: Tensor, first: usize) -> Result<Self> {
        let [(candidates, hidden), (_, expected)] = [router.dims2()?, self.router.dims2()?];
        let [experts, ..] = self.experts.sizes()?;
        if hidden != expected || candidates < first + experts {
            bail!(
                "FusedMoe: the router of all experts is {:?}, and the layer has {experts} of them, from {first} on; expected {:?} and more",
                router.dims(),
                [first + experts, expected]
            );
        }
        if self.router_bias.is_some() {
            bail!("FusedMoe: the layer has a router's bias; expected `with_router_bias` after `among`, with the numbers of all {candidates} experts");
        }
        BLOCK.same("the router of all experts", &router, &self.router)?;
        Ok(Self { router, first, ..self })
    }

    fn of(router: Tensor, experts: Experts, cfg: &MoeCfg) -> Result<Self> {
        let activation = match cfg.act {
            candle_nn::Activation::Silu | candle_nn::Activation::Swish => Activation::Silu,
            candle_nn::Activation::Gelu => Activation::GeluErf,
            candle_nn::Activation::NewGelu | candle_nn::Activation::GeluPytorchTanh => Activation::GeluTanh,
            candle_nn::Activation::Relu => Activation::Relu,
            other => bail!("FusedMoe: no gate has the activation {other:?}; use nn::moe::moe_gemm and apply the gate to its result"),
        };
        let (top_k, normalise) = (cfg.num_experts_per_tok, cfg.norm_topk_prob);
        Ok(Self { router, router_bias: None, experts, first: 0, activation, top_k, normalise })
    }

    /// The layer's result for `xs`, (batch, tokens, hidden), of the same shape. `is_prefill` changes nothing.
    ///
    /// Scores of experts are in f32, where candle's layer rounds them to the type of `xs`: tokens with nearly equal scores may go to other
    /// experts. Any number of tokens is routed.
    ///
    /// # Errors
    /// As for [`GroupedGemm::forward`] and [`Routing::by_logits`].
    pub fn forward(&self, xs: &Tensor, is_prefill: bool) -> Result<Tensor> {
        let _ = is_prefill;
        let (_, _, hidden) = xs.dims3()?;
        let tokens = xs.reshape(((), hidden))?;
        self.results(&tokens, &self.route(&tokens)?, None)?.reshape(xs.shape())
    }

    /// [`forward`](Self::forward) of tokens, (tokens, hidden), into a tensor of their shape and type. The bits are those of [`forward`](Self::forward).
    ///
    /// On a GPU it allocates nothing, and is legal in a capture after [`prepare`](crate::prepare).
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
    ///
    /// # let config = MoeCfg {
    /// #     hidden_size: 16,
    /// #     num_experts: 4,
    /// #     num_experts_per_tok: 2,
    /// #     moe_intermediate_size: 8,
    /// #     norm_topk_prob: true,
    /// #     act: candle_nn::Activation::Silu,
    /// #     decoder_sparse_step: None,
    /// # };
    /// let weights = VarMap::new();
    /// let layer = FusedMoe::new(&config, VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), DType::F32)?.detached();
    /// let workspace = layer.workspace(8)?; // one for all layers of these sizes
    /// let (x, y) = (Tensor::ones((3, 16), DType::F32, &Device::Cpu)?, Tensor::zeros((3, 16), DType::F32, &Device::Cpu)?);
    /// layer.forward_into(&x, &workspace, &y)?;
    /// layer.forward_residual_into(&x, &y, &workspace, &y)?; // adds the layer's result to y
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`GroupedGemm::forward_into`], and a workspace of another device, type or sizes, or for fewer tokens.
    pub fn forward_into(&self, tokens: &Tensor, workspace: &Workspace, out: &Tensor) -> Result<()> {
        self.write(tokens, None, workspace, out)
    }

    /// [`forward_residual`](Self::forward_residual) of tokens, (tokens, hidden), into a tensor that exists, which may be the residual itself.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_residual_into(
        &self,
        tokens: &Tensor,
        residual: &Tensor,
        workspace: &Workspace,
        out: &Tensor,
    ) -> Result<()> {
        self.write(tokens, Some(residual), workspace, out)
    }

    /// `forward(xs) + residual`, rounded once. The residual has the shape and the type of `xs`.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward), and a residual of another shape or type.
    pub fn forward_residual(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let (_, _, hidden) = xs.dims3()?;
        if residual.dims() != xs.dims() {
            bail!("FusedMoe: the residual has the shape {:?}; expected {:?}", residual.dims(), xs.dims());
        }
        BLOCK.same("the residual", residual, xs)?;
        let tokens = xs.reshape(((), hidden))?;
        let residual = residual.detach().reshape(((), hidden))?;
        self.results(&tokens, &self.route(&tokens)?, Some(&residual))?.reshape(xs.shape())
    }

    /// The layer with weights that track no gradients, as functions ending in `_into` take them.
    pub fn detached(&self) -> Self {
        let router_bias = self.router_bias.as_ref().map(Tensor::detach);
        Self { router: self.router.detach(), router_bias, experts: self.experts.detached(), ..self.clone() }
    }

    /// Memory between the layer's kernels for up to so many tokens.
    ///
    /// # Errors
    /// A device without room.
    pub fn workspace(&self, tokens: usize) -> Result<Workspace> {
        let (sizes, dtype) = (self.sizes()?, self.router.dtype());
        #[cfg(feature = "experts")]
        let [candidates, of_experts @ ..] = sizes;
        #[cfg(feature = "experts")]
        let memory = match self.router.device() {
            device @ Device::Cuda(_) => {
                let types = self.experts.types_between(dtype)?;
                Some(Memory::new(tokens, candidates, of_experts, types, device)?)
            }
            _ => None,
        };
        Ok(Workspace {
            tokens,
            sizes,
            dtype,
            device: self.router.device().clone(),
            #[cfg(feature = "experts")]
            memory,
        })
    }

    /// Candidates, experts, hidden, inner, experts of a token.
    fn sizes(&self) -> Result<[usize; 5]> {
        let [experts, hidden, inner] = self.experts.sizes()?;
        Ok([self.router.dim(0)?, experts, hidden, inner, self.top_k])
    }

    fn write(&self, tokens: &Tensor, residual: Option<&Tensor>, workspace: &Workspace, out: &Tensor) -> Result<()> {
        let [.., hidden, inner, _] = workspace.sizes;
        let (count, _) = tokens.dims2()?;
        if workspace.sizes != self.sizes()?
            || workspace.tokens < count
            || workspace.dtype != tokens.dtype()
            || !workspace.device.same_device(tokens.device())
        {
            bail!(
                "FusedMoe: the workspace is for {} tokens of {hidden} numbers, {inner} within, in {:?} on {:?}; make one by `workspace({count})` of this layer",
                workspace.tokens,
                workspace.dtype,
                workspace.device.location()
            );
        }
        for (what, tensor) in [("x", tokens), ("the router", &self.router)].into_iter().chain(self.experts.dense()) {
            BLOCK.untracked(what, tensor)?;
        }
        let x = BLOCK.rows("x", tokens, hidden)?;
        BLOCK.rows_like("the result", out, x)?;
        BLOCK.apart("x", tokens, out)?;
        if let Some(residual) = residual {
            BLOCK.rows_like("the residual", residual, x)?;
            BLOCK.apart_or_same("the residual", residual, out)?;
        }
        match tokens.device() {
            _ if count == 0 => Ok(()),
            Device::Cpu => put(&self.results(tokens, &self.route(tokens)?, residual)?, out),
            #[cfg(feature = "experts")]
            Device::Cuda(device) => match &workspace.memory {
                Some(memory) => {
                    let memory = memory.of_first(count)?;
                    self.router_gemm().forward_into(tokens, &self.router.t()?, &memory.logits)?;
                    memory.route(device, self.first, self.normalise)?;
                    self.experts.write(tokens, &memory.routing, self.activation, &memory.between)?;
                    memory.routing.sum_into(&memory.between.results, residual, out)
                }
                None => BLOCK.elsewhere(tokens.device()),
            },
            other => BLOCK.elsewhere(other),
        }
    }

    fn router_gemm(&self) -> Gemm {
        let gemm = Gemm::new().out_dtype(DType::F32);
        match &self.router_bias {
            Some(bias) => gemm.bias(bias),
            None => gemm,
        }
    }

    fn route(&self, tokens: &Tensor) -> Result<Routing> {
        let logits = self.router_gemm().forward(tokens, &self.router.t()?)?;
        let [experts, ..] = self.experts.sizes()?;
        Routing::by_logits_among(&logits, self.first..self.first + experts, self.top_k, self.normalise)
    }

    /// The result for tokens, (tokens, hidden), whose experts are chosen already. A pair whose expert does not exist ([`Routing::new`]) adds nothing, whatever
    /// its weight: a layer with a part of the experts gives its part of the sum.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg, Routing};
    ///
    /// let config = MoeCfg {
    ///     hidden_size: 16,
    ///     num_experts: 2, // of four: the others are on another GPU
    ///     num_experts_per_tok: 2,
    ///     moe_intermediate_size: 8,
    ///     norm_topk_prob: true,
    ///     act: candle_nn::Activation::Silu,
    ///     decoder_sparse_step: None,
    /// };
    /// let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    /// let layer = FusedMoe::from_weights(zeros(&[2, 16])?, zeros(&[2, 16, 16])?, zeros(&[2, 16, 8])?, &config)?;
    /// let experts = Tensor::new(&[[0u32, u32::MAX], [1, 0], [u32::MAX, u32::MAX]], &Device::Cpu)?;
    /// let weights = Tensor::new(&[[0.5f32, 0.5], [0.75, 0.25], [0.5, 0.5]], &Device::Cpu)?;
    /// let y = layer.forward_routed(&zeros(&[3, 16])?, &Routing::new(2, &experts, &weights)?)?;
    /// assert_eq!(y.dims(), [3, 16]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`GroupedGemm::forward`].
    pub fn forward_routed(&self, tokens: &Tensor, routing: &Routing) -> Result<Tensor> {
        self.results(tokens, routing, None)
    }

    fn results(&self, tokens: &Tensor, routing: &Routing, residual: Option<&Tensor>) -> Result<Tensor> {
        let results = self.experts.results(tokens, routing, self.activation)?;
        routing.sum_beside(&results, residual, tokens.dtype())
    }
}

fn check_shape(what: &str, dims: &[usize], expected: &[usize]) -> Result<()> {
    match dims == expected {
        true => Ok(()),
        false => bail!("FusedMoe: the weights {what} have the shape {dims:?}; expected {expected:?}"),
    }
}

/// Memory between the kernels of a [`FusedMoe`], for calls one after another on one stream: layers of the same sizes share one. On a GPU it has, for each token and
/// expert of a token, the expert's inner numbers and its result, and the logits and lists of the routing; on the CPU nothing.
#[derive(Debug, Clone)]
pub struct Workspace {
    tokens: usize,
    /// Candidates, experts, hidden, inner, experts of a token.
    sizes: [usize; 5],
    dtype: DType,
    device: Device,
    #[cfg(feature = "experts")]
    memory: Option<Memory>,
}
