//! A problem and its pointers as arguments of the C ABI.

use super::pointers::Pointers;
use crate::config::Config;
use crate::ffi;
use crate::kernel::Math;
use crate::problem::{Activation, BiasAxis, Format, Layout, Operand, Problem};
use std::ffi::c_void;
use std::ptr::null_mut;

/// The problem and its operands; the stream, the workspace and the kernel's configuration are left open.
pub(super) fn arguments(problem: &Problem, pointers: Pointers) -> ffi::tg_gemm_args {
    let Problem { m, n, k, batch, a, b, d, epilogue, .. } = *problem;
    let bias = match epilogue.bias {
        Some(BiasAxis::M) => vector(pointers.bias, 1, 0),
        Some(BiasAxis::N) => vector(pointers.bias, 0, 1),
        None => vector(null_mut(), 0, 0),
    };
    ffi::tg_gemm_args {
        m: m as i64,
        n: n as i64,
        k: k as i64,
        batch: batch.map(|size| size as i64),
        a: matrix(pointers.a, &a),
        b: matrix(pointers.b, &b),
        c: epilogue.c.map_or(vector(null_mut(), 0, 0), |c| matrix(pointers.c, &c)),
        d: matrix(pointers.d, &d),
        bias,
        alpha: epilogue.alpha(),
        beta: epilogue.beta(),
        activation: activation(epilogue.activation),
        config: config(Config::default()),
        sm_count: 0,
        overlap: 0,
        stream: null_mut(),
        workspace: null_mut(),
        workspace_bytes: 0,
    }
}

pub(super) fn config(config: Config) -> ffi::tg_config {
    let Config { tile: [tile_m, tile_n], cluster: [cluster_m, cluster_n], split, stages, warps, swap_ab } = config;
    let [tile_m, tile_n, cluster_m, cluster_n, split, stages, warps] =
        [tile_m, tile_n, cluster_m, cluster_n, split, stages, warps].map(|x| x as i32);
    ffi::tg_config { tile_m, tile_n, cluster_m, cluster_n, split, stages, warps, swap_ab: swap_ab.into() }
}

fn matrix(pointer: *const c_void, operand: &Operand) -> ffi::tg_matrix {
    ffi::tg_matrix {
        ptr: pointer.cast_mut(),
        row_stride: operand.row_stride,
        col_stride: operand.col_stride,
        batch_stride: operand.batch_stride,
    }
}

fn vector(pointer: *const c_void, row_stride: i64, col_stride: i64) -> ffi::tg_matrix {
    ffi::tg_matrix { ptr: pointer.cast_mut(), row_stride, col_stride, batch_stride: [0, 0] }
}

pub(super) fn dtype(dtype: Format) -> ffi::tg_dtype {
    match dtype {
        Format::F16 => ffi::tg_dtype::TG_F16,
        Format::BF16 => ffi::tg_dtype::TG_BF16,
        Format::F32 => ffi::tg_dtype::TG_F32,
        Format::F64 => ffi::tg_dtype::TG_F64,
    }
}

pub(super) fn math(math: Math) -> ffi::tg_math {
    match math {
        Math::Native => ffi::tg_math::TG_NATIVE,
        Math::Tf32 => ffi::tg_math::TG_TF32,
        Math::Bf16x6 => ffi::tg_math::TG_BF16X6,
    }
}

pub(super) fn layout(layout: Layout) -> ffi::tg_layout {
    match layout {
        Layout::NN => ffi::tg_layout::TG_NN,
        Layout::NT => ffi::tg_layout::TG_NT,
        Layout::TN => ffi::tg_layout::TG_TN,
        Layout::TT => ffi::tg_layout::TG_TT,
        Layout::Any => ffi::tg_layout::TG_ANY,
    }
}

fn activation(activation: Activation) -> ffi::tg_activation {
    match activation {
        Activation::Identity => ffi::tg_activation::TG_IDENTITY,
        Activation::Relu => ffi::tg_activation::TG_RELU,
        Activation::GeluErf => ffi::tg_activation::TG_GELU_ERF,
        Activation::GeluTanh => ffi::tg_activation::TG_GELU_TANH,
        Activation::Silu => ffi::tg_activation::TG_SILU,
    }
}
