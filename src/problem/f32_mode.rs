//! The arithmetic of f32 products: the mode that a caller asks for, and the arithmetic of a kernel.

use crate::error::Result;
use crate::settings;
use once_cell::sync::OnceCell;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// The precision of an f32 product. Products in other types have no mode.
///
/// The effective mode comes from the first of these that is set: the call ([`Gemm::f32_mode`](crate::Gemm::f32_mode),
/// [`Problem::f32_mode`](crate::Problem::f32_mode); for the op and the interposer also TF32 by candle's
/// `set_gemm_reduced_precision_f32`), the process ([`set_f32_mode`]), the environment
/// (`TILEGEMM_F32=accurate|strict|tf32`). The default is [`F32Mode::Accurate`].
///
/// ```
/// use candle_tilegemm::arch::DeviceInfo;
/// use candle_tilegemm::dispatch::{Dispatcher, Policy};
/// use candle_tilegemm::kernel::Math;
/// use candle_tilegemm::{Format, F32Mode, Layout, Problem};
///
/// let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
/// let dense = Problem::dense(4096, 4096, 4096, 1, Layout::NT, Format::F32);
/// let strict = dense.with(|problem| problem.f32_mode = F32Mode::Strict);
/// assert_eq!(dispatcher.plan(&strict, Policy::own())?.kernel.math, Math::Native); // fused multiply-adds
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum F32Mode {
    /// Any kernel whose error is at most the error of a cuBLAS SGEMM.
    #[default]
    Accurate,
    /// Fused multiply-adds in f32 only.
    Strict,
    /// Inputs may be rounded to TF32, as after candle's `set_gemm_reduced_precision_f32`.
    Tf32,
}

impl F32Mode {
    /// All modes.
    pub const ALL: [F32Mode; 3] = [F32Mode::Accurate, F32Mode::Strict, F32Mode::Tf32];

    /// The name used in the environment and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            F32Mode::Accurate => "accurate",
            F32Mode::Strict => "strict",
            F32Mode::Tf32 => "tf32",
        }
    }

    /// Whether a product in this mode may use this arithmetic.
    pub const fn admits(self, math: Math) -> bool {
        match (self, math) {
            (_, Math::Native | Math::FastAccum) | (F32Mode::Tf32, _) | (F32Mode::Accurate, Math::Bf16x6) => true,
            (F32Mode::Strict, Math::Tf32 | Math::Bf16x6) | (F32Mode::Accurate, Math::Tf32) => false,
        }
    }

    /// The mode that a cuBLAS call asks for by its compute type: a mode of the call, or (`Some(None)`) the mode of the
    /// process. `None` for a compute type that does not accumulate in f32.
    #[cfg(any(feature = "interpose", test))]
    pub(crate) fn of_compute_type(number: i32) -> Option<Option<F32Mode>> {
        match number {
            // The 16-bit compute types permit less precision than f32, and require no more than f32.
            compute_type::F32 | compute_type::F32_FAST_16F | compute_type::F32_FAST_16BF => Some(None),
            compute_type::F32_PEDANTIC => Some(Some(F32Mode::Strict)),
            compute_type::F32_FAST_TF32 => Some(Some(F32Mode::Tf32)),
            _ => None,
        }
    }

    /// The mode that a handle of cuBLAS asks for by its math mode (`cublasMath_t`, with flags above the lowest four bits), for calls whose
    /// compute type leaves the mode to the process. `None`: the mode of the process.
    #[cfg(any(feature = "interpose", test))]
    pub(crate) fn of_math_mode(number: i32) -> Option<F32Mode> {
        match number & 15 {
            2 => Some(F32Mode::Strict), // CUBLAS_PEDANTIC_MATH
            3 => Some(F32Mode::Tf32),   // CUBLAS_TF32_TENSOR_OP_MATH
            _ => None,
        }
    }
}

/// The values of `cublasComputeType_t` with an f32 or an f64 accumulator.
#[cfg(any(feature = "cuda", test))]
pub(crate) mod compute_type {
    #![cfg_attr(not(feature = "interpose"), allow(dead_code))]
    pub const F32: i32 = 68;
    pub const F32_PEDANTIC: i32 = 69;
    pub const F64: i32 = 70;
    pub const F64_PEDANTIC: i32 = 71;
    pub const F32_FAST_16F: i32 = 74;
    pub const F32_FAST_16BF: i32 = 75;
    pub const F32_FAST_TF32: i32 = 77;
}

impl fmt::Display for F32Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for F32Mode {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        let found = F32Mode::ALL.into_iter().find(|mode| mode.name() == s);
        found.ok_or_else(|| format!("unknown f32 mode '{s}'; expected accurate, strict or tf32"))
    }
}

/// The arithmetic of a kernel: the field `math` of family.toml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Math {
    /// Arithmetic in the type of the operands; for f32 that means fused multiply-adds.
    #[default]
    Native,
    /// f32 operands rounded to TF32, on tensor cores.
    Tf32,
    /// f32 operands as three bf16 parts each, with six products of the parts on tensor cores: no more error than fused
    /// multiply-adds.
    Bf16x6,
    /// fp8 whose sums are the tensor cores' over all of K, with some 13 bits; otherwise these sums go to f32 every 128 of K.
    FastAccum,
}

impl fmt::Display for Math {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Math::Native => "native",
            Math::Tf32 => "tf32",
            Math::Bf16x6 => "bf16x6",
            Math::FastAccum => "fast_accum",
        })
    }
}

/// 0: not set; else the mode plus one.
static PROCESS: AtomicU8 = AtomicU8::new(0);

/// Sets the mode of this process for f32 products that do not set a mode themselves.
///
/// The mode holds for the op, the layers and the interposer from the next product on. Products captured in a CUDA graph
/// do not change.
///
/// ```
/// use candle_tilegemm::{f32_mode, set_f32_mode, F32Mode};
///
/// set_f32_mode(F32Mode::Strict);
/// assert_eq!(f32_mode()?, F32Mode::Strict);
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
pub fn set_f32_mode(mode: F32Mode) {
    PROCESS.store(mode as u8 + 1, Ordering::Relaxed);
}

/// The mode of this process: the mode set by [`set_f32_mode`], else by the environment variable `TILEGEMM_F32`, else
/// [`F32Mode::Accurate`].
///
/// # Errors
/// [`Error::BadSetting`](crate::Error::BadSetting) when the environment variable decides and holds no mode.
pub fn f32_mode() -> Result<F32Mode> {
    match PROCESS.load(Ordering::Relaxed) {
        0 => from_env(),
        set => Ok(F32Mode::ALL[usize::from(set) - 1]),
    }
}

/// The environment variable is read once, because every product asks for the mode.
fn from_env() -> Result<F32Mode> {
    static MODE: OnceCell<F32Mode> = OnceCell::new();
    MODE.get_or_try_init(|| Ok(settings::f32_mode()?.unwrap_or_default())).copied()
}

#[cfg(test)]
mod tests {
    use super::{compute_type, f32_mode, set_f32_mode, F32Mode};
    use crate::settings;

    #[test]
    fn a_setting_is_a_mode_or_an_error_that_says_what_it_may_be() {
        for mode in F32Mode::ALL {
            assert_eq!(settings::F32.parse::<F32Mode>(mode.name().into()).unwrap(), mode);
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        assert_eq!(settings::F32.holds, F32Mode::ALL.map(F32Mode::name).join("|"));
        assert_eq!(settings::F32.default, F32Mode::default().name());
        for bad in ["TF32", "fast", "on", " strict"] {
            let text = settings::F32.parse::<F32Mode>(bad.into()).unwrap_err().to_string();
            assert_eq!(text, format!("TILEGEMM_F32={bad} is not understood; expected accurate, strict or tf32"));
        }
    }

    #[test]
    fn the_process_comes_before_the_environment() {
        for mode in F32Mode::ALL {
            set_f32_mode(mode);
            assert_eq!(f32_mode().unwrap(), mode);
        }
    }

    #[test]
    fn a_compute_type_is_a_mode_or_leaves_it_to_the_process() {
        // The numbers of cublas_api.h. candle passes 77 with its flag for reduced precision, else 68.
        let cases = [
            (68, Some(None)),
            (74, Some(None)),
            (75, Some(None)),
            (69, Some(Some(F32Mode::Strict))),
            (77, Some(Some(F32Mode::Tf32))),
            (64, None), // f16
            (70, None), // f64
            (72, None), // i32
        ];
        for (number, asked) in cases {
            assert_eq!(F32Mode::of_compute_type(number), asked, "{number}");
        }
        assert_eq!((compute_type::F32, compute_type::F32_FAST_TF32), (68, 77));
    }

    #[test]
    fn a_math_mode_is_a_mode_whatever_its_flags_are() {
        let modes = [0, 1, 2, 3, 4, 16, 16 | 2, 16 | 3].map(F32Mode::of_math_mode);
        let [strict, tf32] = [Some(F32Mode::Strict), Some(F32Mode::Tf32)];
        assert_eq!(modes, [None, None, strict, tf32, None, None, strict, tf32]);
    }
}
