//! What is done to a product on its way out.

use crate::kernel::Fusion;
use crate::operand::Operand;

/// The function applied to `alpha * A @ B + bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// No function.
    #[default]
    Identity,
    /// max(x, 0)
    Relu,
    /// x * Phi(x) with the error function; candle's `gelu_erf`.
    GeluErf,
    /// The tanh approximation of it; candle's `gelu`.
    GeluTanh,
    /// x * sigmoid(x)
    Silu,
}

impl Activation {
    /// Every activation, for tables and tests.
    pub const ALL: [Activation; 5] =
        [Activation::Identity, Activation::Relu, Activation::GeluErf, Activation::GeluTanh, Activation::Silu];

    /// The function itself. At -inf, where some would be 0 times infinity, it is the limit.
    pub fn apply<T: Real>(self, x: T) -> T {
        let (zero, one) = (T::zero(), T::one());
        let finite_below = x.max(T::min_value());
        match self {
            Activation::Identity => x,
            Activation::Relu if x > zero || x.is_nan() => x,
            Activation::Relu => zero,
            // Not 1 + erf(x) and 1 + tanh(x), which lose all digits far below 0.
            Activation::GeluErf => {
                T::from_f64(0.5) * finite_below * (-x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erfc()
            }
            Activation::GeluTanh => {
                let twice = T::from_f64(-2.0 * (2.0 / std::f64::consts::PI).sqrt());
                finite_below / (one + (twice * (x + T::from_f64(0.044715) * x * x * x)).exp())
            }
            Activation::Silu => finite_below / (one + (-x).exp()),
        }
    }
}

/// What an epilogue is computed in: f32, and f64 for f64.
pub trait Real: num_traits::Float {
    /// What the error function leaves to 1.
    fn erfc(self) -> Self;
    /// Rounded to this type.
    fn from_f64(x: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
}

macro_rules! impl_real {
    ($type:ty, $erfc:path) => {
        impl Real for $type {
            fn erfc(self) -> Self {
                $erfc(self)
            }

            fn from_f64(x: f64) -> Self {
                x as $type
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    };
}

impl_real!(f32, libm::erfcf);
impl_real!(f64, libm::erfc);

/// Which dimension of the result a bias runs along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BiasAxis {
    /// One value per row.
    M,
    /// One value per column; what a Linear layer has.
    N,
}

/// `D = activation(alpha * A @ B + bias) + beta * C`
///
/// Floats are kept by their bits, so that a problem can be a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epilogue {
    alpha_bits: u64,
    beta_bits: u64,
    /// Along which dimension a bias is added, if there is one.
    pub bias: Option<BiasAxis>,
    /// Applied before `beta * C` is added.
    pub activation: Activation,
    /// Where C lies; it is not read when beta is 0.
    pub c: Option<Operand>,
    /// Whether C is D itself, which the product is added to: what a call of cuBLAS with a beta asks for. [`Epilogue::c`] lies as D
    /// does then, and both have the same pointer.
    pub in_place: bool,
}

impl Default for Epilogue {
    fn default() -> Self {
        Self::new(1.0, 0.0)
    }
}

impl Epilogue {
    /// `alpha * A @ B`, and `beta` for a C that [`Epilogue::c`] describes.
    pub fn new(alpha: f64, beta: f64) -> Self {
        Self {
            alpha_bits: alpha.to_bits(),
            beta_bits: beta.to_bits(),
            bias: None,
            activation: Activation::Identity,
            c: None,
            in_place: false,
        }
    }

    /// Scale of the product.
    pub fn alpha(&self) -> f64 {
        f64::from_bits(self.alpha_bits)
    }

    /// Scale of C.
    pub fn beta(&self) -> f64 {
        f64::from_bits(self.beta_bits)
    }

    /// Whether C is read.
    pub fn reads_c(&self) -> bool {
        self.beta() != 0.0
    }

    /// Whether D is `alpha * A @ B` and nothing more.
    pub fn is_linear(&self) -> bool {
        !self.reads_c() && self.bias.is_none() && self.activation == Activation::Identity
    }

    /// What a kernel must fuse to do all of it.
    pub fn fusion(&self) -> Fusion {
        match self {
            _ if self.reads_c() => Fusion::Full,
            _ if self.is_linear() => Fusion::None,
            _ => Fusion::BiasAct,
        }
    }

    /// What a kernel with this fusion does of it, and how many elementwise kernels do the rest.
    pub fn keep(&self, fusion: Fusion) -> (Self, usize) {
        let rest_c = usize::from(self.reads_c());
        let rest_bias_act = usize::from(self.bias.is_some()) + usize::from(self.activation != Activation::Identity);
        match fusion {
            Fusion::Full => (*self, 0),
            Fusion::BiasAct => (Self { beta_bits: 0f64.to_bits(), c: None, in_place: false, ..*self }, rest_c),
            Fusion::None => (Self::new(self.alpha(), 0.0), rest_c + rest_bias_act),
        }
    }

    pub(crate) fn transposed(self) -> Self {
        let bias = self.bias.map(|axis| match axis {
            BiasAxis::M => BiasAxis::N,
            BiasAxis::N => BiasAxis::M,
        });
        Self { bias, c: self.c.map(Operand::transposed), ..self }
    }
}
