//! A problem and its pointers as arguments of the C ABI.

use super::pointers::{GroupPointers, Pointers};
use crate::config::Config;
use crate::ffi;
use crate::kernel::Math;
use crate::problem::{
    Activation, BiasAxis, Bounds, Format, Gate, Groups, Layout, Operand, Problem, Rows, Scale, Types,
};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// The problem and its operands; the stream, the workspace and the kernel's configuration are left open.
pub(super) fn arguments(problem: &Problem, pointers: Pointers) -> ffi::tg_gemm_args {
    let Problem { m, n, k, batch, a, b, d, epilogue, .. } = *problem;
    let bias = match epilogue.bias {
        Some(BiasAxis::M) => vector(pointers.bias, 1, 0),
        Some(BiasAxis::N) => vector(pointers.bias, 0, 1),
        None => vector(null_mut(), 0, 0),
    };
    let bias = ffi::tg_matrix { batch_stride: [0, problem.groups.map_or(0, |_| n as i64)], ..bias };
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
        types: types(problem.types()),
        a_scale: scale(&pointers, 0, a.scale),
        b_scale: scale(&pointers, 1, b.scale),
        d_scale: scale(&pointers, 2, d.scale),
        groups: groups(pointers.groups, problem.groups, m),
        gate: match epilogue.gate {
            None if epilogue.gates_c && epilogue.reads_c() => ffi::tg_gate::TG_GATE_C,
            None => ffi::tg_gate::TG_UNGATED,
            Some(Gate::Halves) => ffi::tg_gate::TG_GATE_HALVES,
            Some(Gate::Interleaved) => ffi::tg_gate::TG_GATE_INTERLEAVED,
        },
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

pub(super) fn format(format: Format) -> ffi::tg_format {
    match format {
        Format::F16 => ffi::tg_format::TG_F16,
        Format::BF16 => ffi::tg_format::TG_BF16,
        Format::F32 => ffi::tg_format::TG_F32,
        Format::F64 => ffi::tg_format::TG_F64,
        Format::F8E4M3 => ffi::tg_format::TG_F8E4M3,
        Format::U4 => ffi::tg_format::TG_U4,
        Format::F4E2M1 => ffi::tg_format::TG_F4E2M1,
        Format::I8 => ffi::tg_format::TG_I8,
        Format::U8 => ffi::tg_format::TG_U8,
        Format::F8E8M0 => ffi::tg_format::TG_F8E8M0,
        Format::Q4_0 => ffi::tg_format::TG_Q4_0,
        Format::Q4_1 => ffi::tg_format::TG_Q4_1,
        Format::Q5_0 => ffi::tg_format::TG_Q5_0,
        Format::Q5_1 => ffi::tg_format::TG_Q5_1,
        Format::Q8_0 => ffi::tg_format::TG_Q8_0,
        Format::Q2K => ffi::tg_format::TG_Q2K,
        Format::Q3K => ffi::tg_format::TG_Q3K,
        Format::Q4K => ffi::tg_format::TG_Q4K,
        Format::Q5K => ffi::tg_format::TG_Q5K,
        Format::Q6K => ffi::tg_format::TG_Q6K,
        Format::MXFP4 => ffi::tg_format::TG_MXFP4,
        Format::IQ4_NL => ffi::tg_format::TG_IQ4_NL,
        Format::IQ4_XS => ffi::tg_format::TG_IQ4_XS,
    }
}

fn types(types: Types) -> ffi::tg_types {
    let Types { a, b, c, d, acc } = types;
    ffi::tg_types { a: format(a), b: format(b), c: format(c), d: format(d), acc: format(acc) }
}

/// The factors and zeros of an operand, by its place among those of [`Pointers::scales`].
fn scale(pointers: &Pointers, operand: usize, scale: Option<Scale>) -> ffi::tg_scale {
    let Scale { format: of, granularity: [rows, columns], row_stride, col_stride, batch_stride, zeros, .. } =
        scale.unwrap_or(Scale::of_tensor(Format::F32));
    ffi::tg_scale {
        ptr: scale.map_or(null(), |_| pointers.scales[operand]),
        zeros: if zeros { pointers.zeros[operand].cast() } else { null() },
        format: format(of),
        rows,
        columns,
        row_stride,
        col_stride,
        batch_stride,
    }
}

fn groups(pointers: GroupPointers, groups: Option<Groups>, m: usize) -> ffi::tg_groups {
    let none = ffi::tg_groups {
        first_row: null(),
        group_of_row: null(),
        pairs: null(),
        scales: null(),
        pairs_per_row: 1,
        count: 0,
        expected_rows: 0,
    };
    groups.map_or(none, |groups| {
        let (pairs, pairs_per_row) = match groups.rows {
            Rows::InOrder => (null(), 1),
            Rows::Listed { pairs_per_row } => (pointers.pairs, pairs_per_row.max(1)),
        };
        let (first_row, group_of_row) = match groups.bounds {
            Bounds::FirstRow => (pointers.bounds, null()),
            Bounds::GroupOfRow => (null(), pointers.bounds),
        };
        ffi::tg_groups {
            first_row: first_row.cast(),
            group_of_row: group_of_row.cast(),
            pairs: pairs.cast(),
            scales: if groups.scaled { pointers.scales.cast() } else { null() },
            pairs_per_row: pairs_per_row as i64,
            count: groups.count as i64,
            expected_rows: groups.expected_rows(m).ceil() as i64,
        }
    })
}

pub(super) fn math(math: Math) -> ffi::tg_math {
    match math {
        Math::Native => ffi::tg_math::TG_NATIVE,
        Math::Tf32 => ffi::tg_math::TG_TF32,
        Math::Bf16x6 => ffi::tg_math::TG_BF16X6,
        Math::FastAccum => ffi::tg_math::TG_FAST_ACCUM,
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

pub(super) fn activation(activation: Activation) -> ffi::tg_activation {
    match activation {
        Activation::Identity => ffi::tg_activation::TG_IDENTITY,
        Activation::Relu => ffi::tg_activation::TG_RELU,
        Activation::GeluErf => ffi::tg_activation::TG_GELU_ERF,
        Activation::GeluTanh => ffi::tg_activation::TG_GELU_TANH,
        Activation::Silu => ffi::tg_activation::TG_SILU,
    }
}
