//! A program that uses candle-cublaslt as text-embeddings-inference does: a linear layer with its activation, and attention scores with a mask. The
//! program compares the results with candle's own and ends with an error where these differ.

use candle::{DType, Device, Result, Tensor};
use candle_cublaslt::{fused_batch_matmul, fused_matmul, Activation, CublasLt};

/// The largest difference, in parts of the largest element.
fn difference(result: &Tensor, expected: &Tensor) -> Result<f32> {
    let largest = |t: &Tensor| t.abs()?.flatten_all()?.max(0)?.to_dtype(DType::F32)?.to_scalar::<f32>();
    Ok(largest(&(result - expected)?)? / largest(expected)?)
}

fn main() -> Result<()> {
    let device = Device::cuda_if_available(0)?;
    let random = |shape: &[usize]| Tensor::randn(0f32, 1., shape, &device);
    let lt = CublasLt::new(&device)?;

    let (x, weight, bias) = (random(&[61, 384])?, random(&[1536, 384])?, random(&[1536])?);
    let y = fused_matmul(&weight, &x, None, None, None, Some(&bias), Some(Activation::Gelu), lt.clone())?;
    let linear = difference(&y, &x.matmul(&weight.t()?)?.broadcast_add(&bias)?.gelu()?)?;

    let (q, k, mask) = (random(&[24, 61, 32])?, random(&[24, 61, 32])?, random(&[24, 61, 61])?);
    let scores = fused_batch_matmul(&k, &q, Some(&mask), Some(0.25), Some(1.0), None, None, lt)?;
    let attention = difference(&scores, &((q.matmul(&k.t()?)? * 0.25)? + mask)?)?;

    println!("on {device:?}: largest differences {linear:.1e} and {attention:.1e}");
    if linear > 1e-4 || attention > 1e-4 {
        candle::bail!("the results are not candle's");
    }
    Ok(())
}

#[test]
fn the_results_are_candles() {
    main().unwrap_or_else(|error| panic!("{error}"));
}
