//! What q and k go through before attention.

use crate::layer::RopeStyle;
use ::candle::{bail, Device, Result, Tensor};
use std::f64::consts::PI;

/// What q and k of a token go through: a norm of each head, if there is one, and a rotation by the token's position, if there is one.
///
/// The rotation turns pairs of a head's numbers. Pair i turns by position * inv_freq\[i\] radians: in double precision to the last, so that long contexts lose
/// nothing.
///
/// ```
/// use candle::Device;
/// use candle_tilegemm::nn::attention::{Rope, RopeScaling, RopeStyle};
///
/// let rope = Rope::new(RopeStyle::Halves, 4, 10_000.0, &Device::Cpu)?;
/// assert_eq!(rope.inv_freq().unwrap().to_vec1::<f32>()?, [1.0, 0.01]);
///
/// let llama3 = RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 8192 };
/// let rope = Rope::scaled(RopeStyle::Halves, 128, 500_000.0, llama3, &Device::Cpu)?;
/// let inv_freq = rope.inv_freq().unwrap().to_vec1::<f32>()?;
/// assert!(inv_freq[0] == 1.0 && inv_freq[63] < 1e-6 / 2.0); // the fastest stays, the slowest is eight times slower
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Rope {
    turn: Option<(RopeStyle, Tensor)>,
    norms: Option<([Tensor; 2], f64)>,
}

/// How a model slows its rotations down for contexts longer than it was made for.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// All frequencies over a factor (`linear`).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3's: low frequencies over a factor, high ones as they are, and a way between (`llama3`).
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths above `original_positions` over this are slowed down whole.
        low_freq_factor: f64,
        /// Wavelengths below `original_positions` over this are not.
        high_freq_factor: f64,
        /// The context that the model was made for.
        original_positions: usize,
    },
    /// Low frequencies over a factor, high ones as they are, and a straight way between by the number of the pair (`yarn`). Scores count
    /// [`attention_factor`](Self::attention_factor) squared times as much.
    Yarn {
        /// The factor.
        factor: f64,
        /// Pairs that turn more often than this in the original context are not slowed down; 32 unless a model says otherwise.
        beta_fast: f64,
        /// Pairs that turn less often are slowed down whole; 1 unless a model says otherwise.
        beta_slow: f64,
        /// The context that the model was made for.
        original_positions: usize,
        /// Whether the way between begins and ends at whole numbers of pairs, which gpt-oss does not.
        truncate: bool,
        /// What multiplies q and k; [`yarn_factor`](Self::yarn_factor) unless a model says otherwise.
        attention_factor: f64,
    },
}

impl RopeScaling {
    /// What multiplies q and k, and so the scores twice: 1 but for YaRN. [`append`](super::append) leaves it out: give the scores their scale by
    /// [`Settings::with_rope`](super::Settings::with_rope).
    pub fn attention_factor(&self) -> f64 {
        match self {
            Self::Yarn { attention_factor, .. } => *attention_factor,
            _ => 1.0,
        }
    }

    /// YaRN's attention factor for a factor of positions, where a model states none: 0.1 ln(factor) + 1, and 1 for factors up to 1.
    pub fn yarn_factor(factor: f64) -> f64 {
        0.1 * factor.max(1.0).ln() + 1.0
    }

    /// The frequency of pair i of a head.
    fn frequency(self, i: usize, head: usize, base: f64) -> f64 {
        let inv_freq = base.powf(-2.0 * i as f64 / head as f64);
        match self {
            Self::Linear { factor } => inv_freq / factor,
            Self::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_positions } => {
                let turns = original_positions as f64 * inv_freq / (2.0 * PI);
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
            }
            Self::Yarn { factor, beta_fast, beta_slow, original_positions, truncate, .. } => {
                // The number of the pair that turns so often in the original context.
                let pair = |turns: f64| {
                    head as f64 * (original_positions as f64 / (turns * 2.0 * PI)).ln() / (2.0 * base.ln())
                };
                let (low, high) = (pair(beta_fast), pair(beta_slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(head as f64 - 1.0));
                let way = if low == high { 0.001 } else { high - low };
                let slow = ((i as f64 - low) / way).clamp(0.0, 1.0);
                slow * inv_freq / factor + (1.0 - slow) * inv_freq
            }
        }
    }
}

impl Rope {
    /// No norm and no rotation.
    pub fn none() -> Self {
        Self::default()
    }

    /// Rotations by base^(-2 i / head).
    ///
    /// # Errors
    /// An odd `head`, and a device that takes no tensor.
    pub fn new(style: RopeStyle, head: usize, base: f64, device: &Device) -> Result<Self> {
        Self::scaled(style, head, base, RopeScaling::Linear { factor: 1.0 }, device)
    }

    /// The same, scaled.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn scaled(style: RopeStyle, head: usize, base: f64, scaling: RopeScaling, device: &Device) -> Result<Self> {
        if head == 0 || !head.is_multiple_of(2) {
            bail!("Rope: heads of {head} numbers have no pairs; expected an even number");
        }
        let frequency = |i: usize| scaling.frequency(i, head, base) as f32;
        let inv_freq: Vec<f32> = (0..head / 2).map(frequency).collect();
        Ok(Self::with_inv_freq(style, Tensor::new(inv_freq, device)?))
    }

    /// Rotations by these angles of a position, (head / 2) in f32.
    pub fn with_inv_freq(style: RopeStyle, inv_freq: Tensor) -> Self {
        Self { turn: Some((style, inv_freq)), norms: None }
    }

    /// The same with an RMS norm of each head of q and of k before, with weights (head) in the type of q and k (qwen3).
    pub fn with_norms(mut self, q: Tensor, k: Tensor, eps: f64) -> Self {
        self.norms = Some(([q, k], eps));
        self
    }

    /// The angles of a position, in radians.
    pub fn inv_freq(&self) -> Option<&Tensor> {
        self.turn.as_ref().map(|(_, inv_freq)| inv_freq)
    }

    /// The pairs, if there is a rotation.
    pub fn style(&self) -> Option<RopeStyle> {
        self.turn.as_ref().map(|(style, _)| *style)
    }

    /// The weights of the norms of q and k, and their epsilon.
    pub fn norms(&self) -> Option<(&[Tensor; 2], f64)> {
        self.norms.as_ref().map(|(weights, eps)| (weights, *eps))
    }
}
