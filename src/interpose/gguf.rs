//! candle's kernels for products with the weights of GGUF files, defined here in place of candle's own: the symbols behind
//! `candle_core::quantized::QMatMul`.
//!
//! candle makes two calls for a product. The first one writes the activations in 8 bits to a scratch buffer, and the second one multiplies. Here the first
//! call notes where the activations are, by the address of the scratch buffer, and the second call reads the activations themselves: candle
//! makes both calls one after the other on one stream, under a lock of the scratch buffer, while the activations are alive.
//!
//! candle-kernels has the functions in objects of a static archive. All functions of an object are defined here, so that no object of
//! candle's with one of them comes into the program.

use super::count::GGUF;
use super::define::{check, define};
use super::failure::Progress;
use super::kernels::{candles, KernelCall};
use super::symbol;
use crate::dispatch::Counter;
use crate::kernel::KernelDesc;
use crate::launch::Pointers;
use crate::problem::{power_of_two_in, Format, Layout, Problem};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{LazyLock, Mutex};

check! {
    /// Whether candle's products with quantised weights arrive here. The check makes one call of a product without rows through candle's declaration: candle's own
    /// function does nothing then, and needs no GPU.
    ///
    /// ```
    /// if !candle_tilegemm::interpose::gguf_is_active() {
    ///     eprintln!("this program's quantised weights run on candle's kernels");
    /// }
    /// ```
    fn gguf_is_active() by candles::launch_mmvq_gguf_q4_k_f32_plain(null(), null(), null_mut(), 0, 0, 0, 0, 0, null_mut()),
    anchor "candle_tilegemm_gguf"
}

/// The activations that a scratch buffer stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Activations {
    at: *const c_void,
    format: Format,
    rows: i64,
    k: i64,
    /// Elements from a row to the next.
    stride: i64,
}

// SAFETY: an address of device memory, which no thread reads.
unsafe impl Send for Activations {}

/// Activations by the address of their scratch buffer. A scratch buffer belongs to one device, and addresses of devices differ.
static NOTED: LazyLock<Mutex<HashMap<usize, Activations>>> = LazyLock::new(Mutex::default);

/// A call that writes activations in 8 bits to a scratch buffer: it notes where the activations are, and writes nothing. They live until the product's kernel
/// has run.
struct Quantised {
    scratch: *mut c_void,
    /// `None` for what is no matrix: the product then fails.
    activations: Option<Activations>,
}

impl symbol::Call for Quantised {
    type Status = ();

    unsafe fn run(&self, _: &Cell<Progress>) {
        note(self.scratch, self.activations);
    }

    unsafe fn after_panic(&self, _: Progress) {}
}

fn note(scratch: *mut c_void, activations: Option<Activations>) {
    let mut noted = NOTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match activations {
        Some(activations) => noted.insert(scratch as usize, activations),
        None => noted.remove(&(scratch as usize)),
    };
}

/// The arguments of one product.
#[derive(Debug)]
struct Call {
    weights: *const c_void,
    format: Format,
    scratch: *const c_void,
    d: *mut c_void,
    /// The format of D, and of the activations.
    of_d: Format,
    sizes: [i64; 3],
    /// Elements from a row of W to the next, and from a row of D to the next.
    strides: [i64; 2],
    stream: *mut c_void,
}

impl Call {
    /// The product that the call asks for, and its activations.
    fn problem(&self) -> Result<(Problem, *const c_void), String> {
        let [m, n, k] = self.sizes;
        let product = || format!("a product of {m} x {n} x {k} with {}", self.format);
        let size = |count: i64| usize::try_from(count).map_err(|_| format!("{} is no product", product()));
        let noted = NOTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(&(self.scratch as usize));
        let x = noted.ok_or_else(|| {
            format!("{}: no call of candle's has written activations to its scratch buffer; call the function that quantises first", product())
        })?;
        if (x.rows, x.k, x.format) != (m, k, self.of_d) {
            return Err(format!(
                "{}: the scratch buffer has {} rows of {} numbers in {}",
                product(),
                x.rows,
                x.k,
                x.format
            ));
        }
        let problem = Problem::dense(size(m)?, size(n)?, size(k)?, 1, Layout::NT, self.of_d).with(|problem| {
            problem.b.format = self.format;
            problem.a.row_stride = x.stride;
            [problem.b.col_stride, problem.d.row_stride] = self.strides;
            problem.a.pointer_align = power_of_two_in(x.at as u64);
            problem.b.pointer_align = power_of_two_in(self.weights as u64);
            problem.d.pointer_align = power_of_two_in(self.d as u64);
        });
        Ok((problem, x.at))
    }
}

impl KernelCall for Call {
    const WHAT: &'static str = "a product with quantised weights";
    const RAN: &'static Counter = &GGUF;

    fn product(&self) -> Result<(Problem, Pointers), String> {
        let (problem, x) = self.problem()?;
        Ok((problem, Pointers::new(x, self.weights, self.d)))
    }

    fn takes(kernel: &KernelDesc) -> bool {
        kernel.types.b.is_gguf_block()
    }

    fn output(&self) -> (*mut c_void, usize) {
        let [m, n, _] = self.sizes.map(|size| usize::try_from(size).unwrap_or(0));
        (self.d, m.saturating_mul(n).saturating_mul(self.of_d.bytes(1)))
    }

    fn stream(&self) -> *mut c_void {
        self.stream
    }
}

/// Defines the functions for products of few rows.
macro_rules! few_rows {
    ($($name:ident: $b:ident, $a:ident;)*) => {$(
        define! {
            candles: fn $name(
                vx: *const c_void,
                vy: *const c_void,
                dst: *mut c_void,
                ncols_x: i32,
                nrows_x: i32,
                _stride_col_y: i32,
                stride_col_dst: i32,
                b_size: i32,
                stream: *mut c_void,
            ) => Call {
                weights: vx,
                format: Format::$b,
                scratch: vy,
                d: dst,
                of_d: Format::$a,
                sizes: [b_size, nrows_x, ncols_x].map(i64::from),
                strides: [ncols_x, stride_col_dst].map(i64::from),
                stream,
            }
        }
    )*};
}

few_rows! {
    launch_mmvq_gguf_q4_0_bf16_plain: Q4_0, BF16;
    launch_mmvq_gguf_q4_1_bf16_plain: Q4_1, BF16;
    launch_mmvq_gguf_q5_0_bf16_plain: Q5_0, BF16;
    launch_mmvq_gguf_q5_1_bf16_plain: Q5_1, BF16;
    launch_mmvq_gguf_q8_0_bf16_plain: Q8_0, BF16;
    launch_mmvq_gguf_q2_k_bf16_plain: Q2K, BF16;
    launch_mmvq_gguf_q3_k_bf16_plain: Q3K, BF16;
    launch_mmvq_gguf_q4_k_bf16_plain: Q4K, BF16;
    launch_mmvq_gguf_q5_k_bf16_plain: Q5K, BF16;
    launch_mmvq_gguf_q6_k_bf16_plain: Q6K, BF16;
    launch_mmvq_gguf_q4_0_f16_plain: Q4_0, F16;
    launch_mmvq_gguf_q4_1_f16_plain: Q4_1, F16;
    launch_mmvq_gguf_q5_0_f16_plain: Q5_0, F16;
    launch_mmvq_gguf_q5_1_f16_plain: Q5_1, F16;
    launch_mmvq_gguf_q8_0_f16_plain: Q8_0, F16;
    launch_mmvq_gguf_q2_k_f16_plain: Q2K, F16;
    launch_mmvq_gguf_q3_k_f16_plain: Q3K, F16;
    launch_mmvq_gguf_q4_k_f16_plain: Q4K, F16;
    launch_mmvq_gguf_q5_k_f16_plain: Q5K, F16;
    launch_mmvq_gguf_q6_k_f16_plain: Q6K, F16;
    launch_mmvq_gguf_q4_0_f32_plain: Q4_0, F32;
    launch_mmvq_gguf_q4_1_f32_plain: Q4_1, F32;
    launch_mmvq_gguf_q5_0_f32_plain: Q5_0, F32;
    launch_mmvq_gguf_q5_1_f32_plain: Q5_1, F32;
    launch_mmvq_gguf_q8_0_f32_plain: Q8_0, F32;
    launch_mmvq_gguf_q2_k_f32_plain: Q2K, F32;
    launch_mmvq_gguf_q3_k_f32_plain: Q3K, F32;
    launch_mmvq_gguf_q4_k_f32_plain: Q4K, F32;
    launch_mmvq_gguf_q5_k_f32_plain: Q5K, F32;
    launch_mmvq_gguf_q6_k_f32_plain: Q6K, F32;
}

/// Defines the functions that quantise few rows.
macro_rules! quantize_few_rows {
    ($($name:ident: $a:ident;)*) => {$(
        define! {
            candles: fn $name(
                x: *const c_void,
                vy: *mut c_void,
                kx: i32,
                _kx_padded: i32,
                num_rows: i32,
                _stream: *mut c_void,
            ) => {
                let [rows, k] = [num_rows, kx].map(i64::from);
                let activations = Activations { at: x, format: Format::$a, rows, k, stride: k };
                Quantised { scratch: vy, activations: Some(activations) }
            }
        }
    )*};
}

quantize_few_rows! {
    launch_mmvq_gguf_quantize_q8_1_bf16: BF16;
    launch_mmvq_gguf_quantize_q8_1_f16: F16;
    launch_mmvq_gguf_quantize_q8_1_f32: F32;
}

/// Defines the functions for products of many rows.
macro_rules! rows {
    ($($name:ident: $b:ident;)*) => {$(
        define! {
            candles: fn $name(
                _tmp_fixup: *mut c_void,
                x: *const c_void,
                y: *const c_void,
                dst: *mut c_void,
                ncols_x: i64,
                nrows_x: i64,
                ncols_y: i64,
                stride_row_x: i64,
                stride_col_dst: i64,
                _cc: i32,
                _nsm: i32,
                _smpbo: i64,
                _warp_size: i32,
                stream: *mut c_void,
            ) => Call {
                weights: x,
                format: Format::$b,
                scratch: y,
                d: dst,
                of_d: Format::F32,
                sizes: [ncols_y, nrows_x, ncols_x],
                strides: [stride_row_x.saturating_mul(Format::$b.block().elements as i64), stride_col_dst],
                stream,
            }
        }
    )*};
}

rows! {
    launch_mmq_gguf_q4_0: Q4_0;
    launch_mmq_gguf_q4_1: Q4_1;
    launch_mmq_gguf_q5_0: Q5_0;
    launch_mmq_gguf_q5_1: Q5_1;
    launch_mmq_gguf_q8_0: Q8_0;
    launch_mmq_gguf_q2_k: Q2K;
    launch_mmq_gguf_q3_k: Q3K;
    launch_mmq_gguf_q4_k: Q4K;
    launch_mmq_gguf_q5_k: Q5K;
    launch_mmq_gguf_q6_k: Q6K;
}

/// Defines the functions that quantise many rows. A list of rows, or several matrices, which candle never passes, are noted as no activations: the product then
/// fails.
macro_rules! quantize_rows {
    ($($name:ident)*) => {$(
        define! {
            candles: fn $name(
                x: *const c_void,
                ids: *const i32,
                vy: *mut c_void,
                _type_x: i32,
                ne00: i64,
                s01: i64,
                _s02: i64,
                _s03: i64,
                _ne0: i64,
                ne1: i64,
                ne2: i64,
                ne3: i64,
                _stream: *mut c_void,
            ) => {
                let activations = Activations { at: x, format: Format::F32, rows: ne1, k: ne00, stride: s01 };
                let is_matrix = ids.is_null() && ne2 == 1 && ne3 == 1;
                Quantised { scratch: vy, activations: is_matrix.then_some(activations) }
            }
        }
    )*};
}

quantize_rows! { launch_mmq_quantize_q8_1_D4 launch_mmq_quantize_q8_1_DS4 launch_mmq_quantize_q8_1_D2S6 }

#[cfg(test)]
mod tests {
    use super::super::vendor::own;
    use super::*;
    use crate::arch::DeviceInfo;
    use crate::dispatch::{Dispatcher, Policy};
    use crate::kernel::Role;

    const NONE: *mut c_void = null_mut();

    fn call(scratch: usize, [m, n, k]: [i64; 3], format: Format) -> Call {
        let at = scratch as *const c_void;
        let strides = [k, n];
        Call {
            weights: 0x2004 as _,
            format,
            scratch: at,
            d: 0x3004 as _,
            of_d: Format::F32,
            sizes: [m, n, k],
            strides,
            stream: NONE,
        }
    }

    #[test]
    fn calls_arrive() {
        assert!(gguf_is_active());
    }

    #[test]
    fn a_product_reads_the_activations_that_were_quantised() {
        // SAFETY: nothing is read or written.
        unsafe {
            candles::launch_mmq_quantize_q8_1_DS4(
                0x1010 as _,
                null(),
                0x90 as _,
                0,
                512,
                640,
                0,
                0,
                512,
                33,
                1,
                1,
                NONE,
            )
        };
        let (problem, x) = call(0x90, [33, 64, 512], Format::Q4K).problem().unwrap();
        assert_eq!((problem.m, problem.n, problem.k, x as usize), (33, 64, 512, 0x1010));
        assert_eq!(
            (problem.layout(), problem.a.format, problem.b.format, problem.d.format),
            (Layout::NT, Format::F32, Format::Q4K, Format::F32)
        );
        assert_eq!([problem.a.row_stride, problem.b.col_stride, problem.d.row_stride], [640, 512, 64]);
        assert_eq!([problem.a, problem.b, problem.d].map(|operand| operand.pointer_align), [16, 4, 4]);
        let again = call(0x90, [33, 64, 512], Format::Q4K).problem().unwrap_err();
        assert!(again.contains("33 x 64 x 512 with q4k") && again.contains("quantises first"), "{again}");
    }

    #[test]
    fn other_activations_than_the_products_are_refused() {
        for (rows, k) in [(2, 512), (3, 256)] {
            // SAFETY: nothing is read or written.
            unsafe { candles::launch_mmvq_gguf_quantize_q8_1_f32(0x1000 as _, 0xa0 as _, k, 512, rows, NONE) };
            let said = call(0xa0, [3, 64, 512], Format::Q6K).problem().unwrap_err();
            assert!(said.contains(&format!("has {rows} rows of {k} numbers in f32")), "{said}");
        }
        // SAFETY: nothing is read or written.
        unsafe { candles::launch_mmvq_gguf_quantize_q8_1_bf16(0x1000 as _, 0xa0 as _, 512, 512, 3, NONE) };
        assert!(call(0xa0, [3, 64, 512], Format::Q6K).problem().unwrap_err().contains("in bf16"));
        // A list of rows, and several matrices.
        for (ids, matrices) in [(0x10 as *const i32, 1), (null(), 2)] {
            // SAFETY: nothing is read or written.
            unsafe {
                candles::launch_mmq_quantize_q8_1_D4(
                    0x1000 as _,
                    ids,
                    0xa0 as _,
                    0,
                    512,
                    512,
                    0,
                    0,
                    512,
                    9,
                    matrices,
                    1,
                    NONE,
                )
            };
            assert!(call(0xa0, [9, 64, 512], Format::Q6K).problem().is_err());
        }
    }

    /// Any sizes and formats, with batch invariance and without a workspace, too.
    #[test]
    fn each_product_has_a_plan_of_our_own_kernels() {
        let blocks = Format::ALL.into_iter().filter(|format| format.is_gguf_block());
        for format in blocks {
            for (m, n, k) in
                [(1, 1, 256), (8, 4096, 14336), (9, 33, 512), (300, 4096, 4096), (17, 151_936, 2560), (0, 8, 256)]
            {
                for of_d in [Format::F32, Format::BF16, Format::F16] {
                    note(0xb0 as _, Some(Activations { at: 0x1000 as _, format: of_d, rows: m, k, stride: k }));
                    let (problem, _) = Call { of_d, ..call(0xb0, [m, n, k], format) }.problem().unwrap();
                    for device in [DeviceInfo::h100(), DeviceInfo::a100()] {
                        let dispatcher = Dispatcher::hypothetical(device);
                        for asked in
                            [Policy::default(), Policy::default().with_batch_invariance(true).with_workspace(0)]
                        {
                            let plan = dispatcher
                                .plan(&problem, own(asked))
                                .unwrap_or_else(|error| panic!("{problem}: {error}"));
                            assert!(plan.kernel.role != Role::Vendor, "{problem}: {}", plan.kernel);
                        }
                    }
                }
            }
        }
    }
}
