//! Layers of experts with given weights.

use super::{check_shape, FusedMoe, MoeCfg};
use crate::candle::nn::experts::{Blocks, Experts};
use crate::candle::nn::narrow::QuantExperts;
use crate::candle::qweights::{Listed, QWeights};
use ::candle::quantized::QTensor;
use ::candle::{bail, DType, Result, Tensor};
use candle_nn::VarBuilder;
use std::ops::Range;

impl FusedMoe {
    /// The layer with the names of weights of candle_transformers' `FusedMoe::new`: `gate`, `experts.<i>.gate_proj`, `up_proj` and `down_proj`.
    /// The weights are converted to `dtype`: f16, bf16 or f32.
    ///
    /// # Errors
    /// Missing weights, weights of another shape, and an activation that no gate has.
    pub fn new(cfg: &MoeCfg, vb: VarBuilder, dtype: DType) -> Result<Self> {
        Self::of_experts(cfg, 0..cfg.num_experts, vb, dtype)
    }

    /// The layer with a range of the experts, as a rank of a group has some of them ([`among`](Self::among)): of `experts.<i>` it reads these, and `gate` whole.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and a range that is not within the experts.
    pub fn of_experts(cfg: &MoeCfg, range: Range<usize>, vb: VarBuilder, dtype: DType) -> Result<Self> {
        let &MoeCfg { hidden_size: hidden, num_experts: count, moe_intermediate_size: inner, .. } = cfg;
        let experts = range.len();
        let weight = |vb: VarBuilder, shape: (usize, usize)| {
            vb.get_with_hints(shape, "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?.to_dtype(dtype)
        };
        let router = weight(vb.pp("gate"), (count, hidden))?;
        // Each weight is copied to its place at once: a layer's weights are in memory once, and those of one expert twice.
        let gate_up = Tensor::zeros((experts * 2 * inner, hidden), dtype, vb.device())?;
        let down = Tensor::zeros((experts * hidden, inner), dtype, vb.device())?;
        for (i, expert) in range.clone().enumerate() {
            let vb = vb.pp("experts").pp(expert);
            gate_up.slice_set(&weight(vb.pp("gate_proj"), (inner, hidden))?, 0, 2 * i * inner)?;
            gate_up.slice_set(&weight(vb.pp("up_proj"), (inner, hidden))?, 0, (2 * i + 1) * inner)?;
            down.slice_set(&weight(vb.pp("down_proj"), (hidden, inner))?, 0, i * hidden)?;
        }
        let gate_up = gate_up.reshape((experts, 2 * inner, hidden))?;
        let down = down.reshape((experts, hidden, inner))?;
        let of_range = MoeCfg { num_experts: experts, ..cfg.clone() };
        let own = router.narrow(0, range.start, experts)?;
        Self::from_weights(own, gate_up, down, &of_range)?.among(router, range.start)
    }

    /// The layer with these weights, in one type.
    ///
    /// - `router`: (experts, hidden)
    /// - `gate_up`: (experts, 2 * inner, hidden); the gates are the first `inner` rows
    /// - `down`: (experts, hidden, inner)
    ///
    /// # Errors
    /// Weights of other shapes than `cfg` has, and an activation that no gate has.
    pub fn from_weights(router: Tensor, gate_up: Tensor, down: Tensor, cfg: &MoeCfg) -> Result<Self> {
        let &MoeCfg { hidden_size: hidden, num_experts: experts, moe_intermediate_size: inner, .. } = cfg;
        for (what, dims, shape) in [
            ("router", router.dims(), &[experts, hidden][..]),
            ("gate_up", gate_up.dims(), &[experts, 2 * inner, hidden]),
            ("down", down.dims(), &[experts, hidden, inner]),
        ] {
            check_shape(what, dims, shape)?;
        }
        Self::of(router, Experts::Dense { gate_up, down }, cfg)
    }

    /// The layer with the experts of a GGUF file, as candle_transformers' `FusedMoeGGUF` has them, in the block formats of `QLinear`. Gates and ups of one format
    /// are one product. Tokens are in the router's type; between the products numbers are in f32. On the CPU candle multiplies, and rounds them to 8 bits.
    ///
    /// - `router`: (experts, hidden), where the layer is to be
    /// - `gate` and `up`: (experts, inner, hidden), and `down`: (experts, hidden, inner), on any device
    ///
    /// ```
    /// use candle::quantized::{GgmlDType, QTensor};
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
    ///
    /// let config = MoeCfg {
    ///     hidden_size: 64,
    ///     num_experts: 4,
    ///     num_experts_per_tok: 2,
    ///     moe_intermediate_size: 32,
    ///     norm_topk_prob: true,
    ///     act: candle_nn::Activation::Silu,
    ///     decoder_sparse_step: None,
    /// };
    /// let random = |shape: &[usize]| Tensor::randn(0f32, 1f32, shape, &Device::Cpu);
    /// let blocks = |shape: &[usize]| QTensor::quantize(&random(shape)?, GgmlDType::Q8_0);
    /// let (gate, up, down) = (blocks(&[4, 32, 64])?, blocks(&[4, 32, 64])?, blocks(&[4, 64, 32])?);
    /// let layer = FusedMoe::from_blocks(random(&[4, 64])?, [&gate, &up, &down], &config)?;
    /// assert_eq!(layer.forward(&random(&[1, 3, 64])?, true)?.dims(), [1, 3, 64]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Weights of other shapes than `cfg` has, an activation that no gate has, and a device without room.
    pub fn from_blocks(router: Tensor, [gate, up, down]: [&QTensor; 3], cfg: &MoeCfg) -> Result<Self> {
        let lists = [Listed::of_tensor(gate)?, Listed::of_tensor(up)?, Listed::of_tensor(down)?];
        Self::of_lists(router, lists, cfg)
    }

    /// [`from_blocks`](Self::from_blocks) with experts in any block format.
    ///
    /// # Errors
    /// As for [`from_blocks`](Self::from_blocks).
    pub fn from_qweights(router: Tensor, [gate, up, down]: [&QWeights; 3], cfg: &MoeCfg) -> Result<Self> {
        Self::of_lists(router, [Listed::of(gate)?, Listed::of(up)?, Listed::of(down)?], cfg)
    }

    fn of_lists(router: Tensor, lists: [Listed; 3], cfg: &MoeCfg) -> Result<Self> {
        let [gate, up, down] = lists.each_ref().map(|list| list.shape.dims());
        let &MoeCfg { hidden_size: hidden, num_experts: experts, moe_intermediate_size: inner, .. } = cfg;
        for (what, dims, shape) in [
            ("router", router.dims(), &[experts, hidden][..]),
            ("gate", gate, &[experts, inner, hidden]),
            ("up", up, &[experts, inner, hidden]),
            ("down", down, &[experts, hidden, inner]),
        ] {
            check_shape(what, dims, shape)?;
        }
        let blocks = Blocks::new(lists, [experts, hidden, inner], router.device())?;
        Self::of(router, Experts::Blocks(blocks), cfg)
    }

    /// The layer with experts in narrow weights, where the router is. The gate is the experts' own. Between the products numbers are in f32.
    ///
    /// # Errors
    /// Experts of other sizes than `cfg` has, and a device without room.
    pub fn from_narrow(router: Tensor, experts: &QuantExperts, cfg: &MoeCfg) -> Result<Self> {
        let &MoeCfg { hidden_size: hidden, num_experts: count, moe_intermediate_size: inner, .. } = cfg;
        check_shape("router", router.dims(), &[count, hidden])?;
        if experts.sizes() != [count, hidden, inner] {
            bail!(
                "FusedMoe: the experts have {:?}; expected {:?} experts, hidden and inner numbers",
                experts.sizes(),
                [count, hidden, inner]
            );
        }
        let experts = experts.to_device(router.device())?;
        Self::of(router, Experts::Narrow(experts), cfg)
    }
}
