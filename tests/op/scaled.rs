//! Products of operands in fp8 with factors beside them.

#[path = "../support/scaled.rs"]
mod shared;

use candle::{DType, Device, Tensor};
use candle_tilegemm::GemmExt;

#[test]
fn every_kind_of_factors_goes_with_every_other() {
    shared::products(&Device::Cpu).unwrap();
}

#[test]
fn what_is_not_finite_stays_so_and_nothing_gives_zeros() {
    shared::special(&Device::Cpu).unwrap();
}

#[test]
fn what_does_not_fit_is_named() {
    let codes = |dims: (usize, usize)| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap().to_dtype(DType::F8E4M3);
    let of = |dims: &[usize], dtype| Tensor::ones(dims, dtype, &Device::Cpu).unwrap();
    let (x, w) = (codes((3, 256)).unwrap(), codes((200, 256)).unwrap());
    let one = of(&[1], DType::F32);
    let rank = x.reshape((1, 3, 256)).unwrap();
    for (error, expected) in [
        (of(&[3, 256], DType::BF16).matmul_scaled(&w, &one, &one, DType::F32), "x is in BF16; expected F8E4M3"),
        (rank.matmul_scaled(&w, &one, &one, DType::F32), "x is [1, 3, 256]; expected two dimensions"),
        (x.matmul_scaled(&codes((256, 200)).unwrap(), &one, &one, DType::F32), "x has rows of 256 numbers, and w of 200"),
        (x.matmul_scaled(&w, &of(&[1], DType::F64), &one, DType::F32), "x_scale is in F64; expected F32"),
        (
            x.matmul_scaled(&w, &of(&[3, 3], DType::F32), &one, DType::F32),
            "x_scale is [3, 3], and x is [3, 256]; expected one factor, [3] or [3, 1] for rows, or [3, 2] for blocks of 1 x 128",
        ),
        (
            x.matmul_scaled(&w, &one, &of(&[3, 2], DType::F32), DType::F32),
            "w_scale is [3, 2], and w is [200, 256]; expected one factor, [200] or [200, 1] for rows, or [2, 2] for blocks of 128 x 128",
        ),
        (x.matmul_scaled(&w, &one, &one, DType::F64), "no result in F64; expected one of [F16, BF16, F32]"),
        (
            x.matmul_scaled(&w, &candle::Var::from_tensor(&one).unwrap(), &one, DType::F32),
            "x_scale tracks gradients",
        ),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("matmul_scaled: ") && error.contains(expected), "{error}");
    }
}
