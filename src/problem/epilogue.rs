//! The epilogue of a product: scale, bias, activation, residual.

use super::operand::Operand;

/// The function applied to `alpha * A @ B + bias`.
///
/// ```
/// use candle_tilegemm::Activation;
///
/// assert_eq!(Activation::Relu.apply(-2.0), 0.0);
/// assert_eq!(Activation::Silu.apply(0f32), 0.0);
/// assert_eq!(Activation::Silu.slope(0f64), 0.5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activation {
    /// No function.
    #[default]
    Identity,
    /// max(x, 0)
    Relu,
    /// x * Phi(x) with the error function; candle's `gelu_erf`.
    GeluErf,
    /// The tanh approximation of GELU; candle's `gelu`.
    GeluTanh,
    /// x * sigmoid(x)
    Silu,
}

impl Activation {
    /// Every activation, for tables and tests.
    pub const ALL: [Activation; 5] =
        [Activation::Identity, Activation::Relu, Activation::GeluErf, Activation::GeluTanh, Activation::Silu];

    /// The function itself. At infinities the function has its limits, even where the formula multiplies 0 by infinity:
    /// inf at inf, and 0 or -0 at -inf ([`Activation::Identity`]: -inf). The function of NaN is NaN.
    pub fn apply<T: Real>(self, x: T) -> T {
        let (zero, one) = (T::zero(), T::one());
        let finite_below = x.max(T::min_value());
        match self {
            Activation::Identity => x,
            Activation::Relu if x > zero || x.is_nan() => x,
            Activation::Relu => zero,
            // 1 + erf(x) and 1 + tanh(x) lose all digits far below 0, so erfc and exp are used.
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

    /// The derivative at `x`. At infinities the derivative has its limits, 0 and 1. The derivative of NaN is NaN. The
    /// derivative of [`Activation::Relu`] at 0 is 1.
    pub fn slope<T: Real>(self, x: T) -> T {
        let (zero, one, of) = (T::zero(), T::one(), T::from_f64);
        // Beyond 800 every slope is 0 or 1, and no infinity meets a 0. NaN stays NaN.
        let finite = num_traits::clamp(x, of(-800.0), of(800.0));
        match self {
            Activation::Identity => one,
            Activation::Relu if x.is_nan() => x,
            Activation::Relu if x >= zero => one,
            Activation::Relu => zero,
            Activation::GeluErf => {
                let density = of((0.5 / std::f64::consts::PI).sqrt()) * (of(-0.5) * finite * finite).exp();
                of(0.5) * (-finite * of(std::f64::consts::FRAC_1_SQRT_2)).erfc() + finite * density
            }
            Activation::GeluTanh => {
                let (factor, square) = (of(2.0 * (2.0 / std::f64::consts::PI).sqrt()), finite * finite);
                let y = factor * finite * (one + of(0.044715) * square);
                gate_slope(finite, y, factor * (one + of(3.0 * 0.044715) * square))
            }
            Activation::Silu => gate_slope(finite, finite, one),
        }
    }
}

/// The derivative of x sigmoid(y(x)), where y has the sign of x and the derivative `steepness`.
fn gate_slope<T: Real>(x: T, y: T, steepness: T) -> T {
    let power = (-y.abs()).exp();
    let sum = T::one() + power;
    let gate = if x < T::zero() { power } else { T::one() } / sum;
    gate + x * steepness * (power / (sum * sum))
}

/// The type that an epilogue is computed in: f32, and f64 for f64.
pub trait Real: num_traits::Float {
    /// The complementary error function.
    fn erfc(self) -> Self;
    /// Converts with rounding.
    fn from_f64(x: f64) -> Self;
    /// Converts exactly.
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

/// How the columns of a gated product (SwiGLU, GEGLU) make columns of D: `D[i, j] = activation(gate[i, j]) * up[i, j]`. N counts the columns of
/// gates and of the numbers that they multiply together; D has N / 2 columns. Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Gate {
    /// The gates are the first N / 2 columns.
    Halves,
    /// Column 2 j is gate j, column 2 j + 1 the number that the gate multiplies.
    Interleaved,
}

impl Gate {
    /// The columns of gate `j` and of the number that it multiplies, of `n` columns.
    #[cfg(feature = "candle")]
    pub(crate) const fn places(self, j: usize, n: usize) -> [usize; 2] {
        match self {
            Self::Halves => [j, n / 2 + j],
            Self::Interleaved => [2 * j, 2 * j + 1],
        }
    }
}

/// The dimension of the result that a bias runs along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BiasAxis {
    /// One value per row.
    M,
    /// One value per column, as in a Linear layer.
    N,
}

/// The part of an [`Epilogue`] that a kernel fuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fusion {
    /// alpha only.
    None,
    /// alpha, bias and activation.
    BiasAct,
    /// alpha, bias, activation and `beta * C`.
    Full,
}

/// `D = activation(alpha * A @ B + bias) + beta * C`, or with gates: of C ([`Epilogue::gates_c`]), or of columns of the product ([`Gate`]).
///
/// Floats are kept as bits, so that a problem can be a hash key.
///
/// ```
/// use candle_tilegemm::problem::{BiasAxis, Epilogue};
/// use candle_tilegemm::{Activation, Format, Layout, Problem};
///
/// let problem = Problem::dense(16, 4096, 4096, 1, Layout::NT, Format::BF16).with(|problem| {
///     problem.epilogue = Epilogue::new(0.5, 1.0);
///     problem.epilogue.bias = Some(BiasAxis::N);
///     problem.epilogue.activation = Activation::Silu;
///     problem.epilogue.c = Some(problem.d); // a residual with the strides of D
/// });
/// assert_eq!(problem.to_string(), "16x4096x4096 nt bf16 alpha 0.5 + bias Silu + 1 C");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epilogue {
    alpha_bits: u64,
    beta_bits: u64,
    /// The dimension of the bias, if there is a bias.
    pub bias: Option<BiasAxis>,
    /// The function applied before `beta * C` is added.
    pub activation: Activation,
    /// Whether the activation makes gates. A gated product has a beta of 0.
    pub gate: Option<Gate>,
    /// The layout of C; C is not read when beta is 0.
    pub c: Option<Operand>,
    /// Whether the activation makes gates of C: `D = activation(alpha * A @ B + bias) * (beta * C)`. SwiGLU of two products, of which C is the
    /// first. Without a C that is read, nothing is gated.
    pub gates_c: bool,
    /// Whether C is D itself and the product is added to D, as in a cuBLAS call with a beta, or makes gates of D. [`Epilogue::c`] then
    /// has the layout of D, and C and D have the same pointer.
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
            gate: None,
            c: None,
            gates_c: false,
            in_place: false,
        }
    }

    /// Scale of the product. Where alpha is 0, A and B are not read, and the product counts as 0.
    pub fn alpha(&self) -> f64 {
        f64::from_bits(self.alpha_bits)
    }

    pub(crate) fn with_alpha(self, alpha: f64) -> Self {
        Self { alpha_bits: alpha.to_bits(), ..self }
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
        !self.reads_c() && self.bias.is_none() && self.activation == Activation::Identity && self.gate.is_none()
    }

    /// Columns of D for `n` columns of B.
    pub fn columns_of_d(&self, n: usize) -> usize {
        if self.gate.is_some() {
            n / 2
        } else {
            n
        }
    }

    /// The fusion that a kernel needs for the whole epilogue.
    pub fn fusion(&self) -> Fusion {
        match self {
            _ if self.reads_c() => Fusion::Full,
            _ if self.is_linear() => Fusion::None,
            _ => Fusion::BiasAct,
        }
    }

    /// The part of the epilogue that a kernel with this fusion applies, and the number of elementwise kernels for the
    /// rest: one or none.
    #[doc(hidden)]
    pub fn keep(&self, fusion: Fusion) -> (Self, usize) {
        let kept = match fusion {
            _ if self.gate.is_some() => *self, // no elementwise kernel applies a gate
            Fusion::Full => *self,
            Fusion::BiasAct => Self { beta_bits: 0f64.to_bits(), c: None, gates_c: false, in_place: false, ..*self },
            Fusion::None => Self::new(self.alpha(), 0.0),
        };
        (kept, usize::from(self.rest(fusion).is_some()))
    }

    /// The part of the epilogue that [`Epilogue::keep`] leaves for an elementwise kernel, if any:
    /// `activation(D + bias) + beta * C`, or the gated C.
    #[doc(hidden)]
    pub fn rest(&self, fusion: Fusion) -> Option<Self> {
        let rest = match fusion {
            _ if self.gate.is_some() => return None,
            Fusion::Full => return None,
            Fusion::BiasAct => Self { c: self.c, gates_c: self.gates_c, ..Self::new(1.0, self.beta()) },
            Fusion::None => self.with_alpha(1.0),
        };
        (!rest.is_linear()).then_some(rest)
    }

    pub(crate) fn transposed(self) -> Self {
        let bias = self.bias.map(|axis| match axis {
            BiasAxis::M => BiasAxis::N,
            BiasAxis::N => BiasAxis::M,
        });
        Self { bias, c: self.c.map(Operand::transposed), ..self }
    }
}
