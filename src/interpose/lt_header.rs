//! Numbers of cublasLt.h, by the header's names without `CUBLASLT_`. `scripts/check_preload.sh` compares them with the header.

use std::ffi::c_int;

pub const POINTER_MODE_HOST: c_int = 0;
pub const ORDER_COL: c_int = 0;
pub const ORDER_ROW: c_int = 1;
pub const BATCH_MODE_STRIDED: c_int = 0;

pub const EPILOGUE_DEFAULT: c_int = 1;
pub const EPILOGUE_RELU: c_int = 2;
pub const EPILOGUE_BIAS: c_int = 4;
pub const EPILOGUE_RELU_BIAS: c_int = 6;
pub const EPILOGUE_GELU: c_int = 32;
pub const EPILOGUE_GELU_BIAS: c_int = 36;

pub const MATRIX_LAYOUT_TYPE: c_int = 0;
pub const MATRIX_LAYOUT_ORDER: c_int = 1;
pub const MATRIX_LAYOUT_ROWS: c_int = 2;
pub const MATRIX_LAYOUT_COLS: c_int = 3;
pub const MATRIX_LAYOUT_LD: c_int = 4;
pub const MATRIX_LAYOUT_BATCH_COUNT: c_int = 5;
pub const MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: c_int = 6;
pub const MATRIX_LAYOUT_BATCH_MODE: c_int = 8;

pub const MATMUL_DESC_COMPUTE_TYPE: c_int = 0;
pub const MATMUL_DESC_SCALE_TYPE: c_int = 1;
pub const MATMUL_DESC_POINTER_MODE: c_int = 2;
pub const MATMUL_DESC_TRANSA: c_int = 3;
pub const MATMUL_DESC_TRANSB: c_int = 4;
pub const MATMUL_DESC_TRANSC: c_int = 5;
pub const MATMUL_DESC_FILL_MODE: c_int = 6;
pub const MATMUL_DESC_EPILOGUE: c_int = 7;
pub const MATMUL_DESC_BIAS_POINTER: c_int = 8;
pub const MATMUL_DESC_BIAS_BATCH_STRIDE: c_int = 10;
pub const MATMUL_DESC_SM_COUNT_TARGET: c_int = 15;
pub const MATMUL_DESC_A_SCALE_POINTER: c_int = 17;
pub const MATMUL_DESC_B_SCALE_POINTER: c_int = 18;
pub const MATMUL_DESC_C_SCALE_POINTER: c_int = 19;
pub const MATMUL_DESC_D_SCALE_POINTER: c_int = 20;
pub const MATMUL_DESC_AMAX_D_POINTER: c_int = 21;
pub const MATMUL_DESC_FAST_ACCUM: c_int = 25;
pub const MATMUL_DESC_BIAS_DATA_TYPE: c_int = 26;
pub const MATMUL_DESC_ATOMIC_SYNC_NUM_CHUNKS_D_ROWS: c_int = 27; // version 12
pub const MATMUL_DESC_ATOMIC_SYNC_NUM_CHUNKS_D_COLS: c_int = 28; // version 12
pub const MATMUL_DESC_A_SCALE_MODE: c_int = 31;
pub const MATMUL_DESC_B_SCALE_MODE: c_int = 32;
pub const MATMUL_DESC_EMULATION_DESCRIPTOR: c_int = 38;

pub const MATMUL_MATRIX_SCALE_SCALAR_32F: c_int = 0;
pub const MATMUL_MATRIX_SCALE_OUTER_VEC_32F: c_int = 3;
pub const MATMUL_MATRIX_SCALE_VEC128_32F: c_int = 4;
#[allow(non_upper_case_globals)] // as in the header
pub const MATMUL_MATRIX_SCALE_BLK128x128_32F: c_int = 5;
