//! What the blocks of a layer can be told, on a GPU and on the CPU.

use crate::problem::{Activation, Real};

/// The numbers of a head that attention on a GPU has kernels for.
pub const HEAD_SIZES: [usize; 4] = [64, 96, 128, 256];
/// The most heads of q for one of K and V there.
pub const MOST_HEADS: usize = 16;
/// The most tokens of a vocabulary that is drawn from there.
pub const MOST_DRAWN: usize = 1 << 18;

/// Which numbers of a head a rope turns together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Numbers i and i + head / 2: GPT-NeoX, and the llama and qwen of Hugging Face.
    Halves,
    /// Numbers 2 i and 2 i + 1: GPT-J, and the llama of GGUF files.
    Interleaved,
}

/// The function of a gate: the result is function(gate) * up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GateFunction {
    /// x sigmoid(x).
    SwiGlu,
    /// x Phi(x), by tanh.
    GeGluTanh,
    /// x Phi(x), by erf.
    GeGluErf,
    /// max(x, 0)^2.
    Relu2,
}

impl GateFunction {
    /// The activation that is this function; `None` for a function that no activation is.
    pub const fn activation(self) -> Option<Activation> {
        match self {
            Self::SwiGlu => Some(Activation::Silu),
            Self::GeGluTanh => Some(Activation::GeluTanh),
            Self::GeGluErf => Some(Activation::GeluErf),
            Self::Relu2 => None,
        }
    }

    /// The function itself, at infinities as [`Activation::apply`].
    pub fn apply<T: Real>(self, x: T) -> T {
        self.activation().map_or_else(|| Activation::Relu.apply(x).powi(2), |activation| activation.apply(x))
    }
}

/// How the next token of a sequence is drawn.
///
/// The order is: repetition penalty, temperature, top-k, top-p, min-p, and a draw among the tokens that stay. Tokens as probable as the last one that
/// stays, stay, too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it. 0 and below: the token with the largest logit, and `top_k`, `top_p` and `min_p` have no effect.
    pub temperature: f32,
    /// The smallest set of the most probable tokens with at least this share of what `top_k` leaves. 1 and above: all.
    pub top_p: f32,
    /// Tokens with at least this share of the most probable token's probability. 0 and below: all.
    pub min_p: f32,
    /// Logits of tokens of the history are divided by it where they are positive, and multiplied otherwise. 1: no penalty.
    pub repetition_penalty: f32,
    /// The most probable tokens. 0 and below: all.
    pub top_k: i32,
    /// The newest tokens of the history that the penalty looks at. 0 and below: all.
    pub last_n: i32,
    /// The sequence's number in the key of random numbers. Sequences with one seed and different numbers draw independently.
    pub sequence: u32,
    /// The seed of random numbers.
    pub seed: u64,
}

impl Sampling {
    /// The token with the largest logit.
    pub const fn greedy() -> Self {
        Self::new(0.0, 0)
    }

    /// A draw from the softmax of logits / `temperature`.
    pub const fn new(temperature: f32, seed: u64) -> Self {
        let (top_p, min_p, repetition_penalty) = (1.0, 0.0, 1.0);
        Self { temperature, top_p, min_p, repetition_penalty, top_k: 0, last_n: 0, sequence: 0, seed }
    }

    /// The same with some fields changed.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The settings as `tg_sampling` of `csrc/layer/layer.h` lays them out.
    pub fn to_words(&self) -> [u32; 10] {
        let floats = [self.temperature, self.top_p, self.min_p, self.repetition_penalty].map(f32::to_bits);
        let [t, p, m, r] = floats;
        let (low, high) = (self.seed as u32, (self.seed >> 32) as u32);
        [t, p, m, r, self.top_k as u32, self.last_n as u32, self.sequence, 0, low, high]
    }

    /// The settings of these words.
    pub fn from_words(words: [u32; 10]) -> Self {
        let [temperature, top_p, min_p, repetition_penalty] = [0, 1, 2, 3].map(|i| f32::from_bits(words[i]));
        let (top_k, last_n, sequence) = (words[4] as i32, words[5] as i32, words[6]);
        let seed = u64::from(words[8]) | u64::from(words[9]) << 32;
        Self { temperature, top_p, min_p, repetition_penalty, top_k, last_n, sequence, seed }
    }
}
