//! A program on candle 0.9.2, which this crate does not depend on. The products of its layers, of attention and of a backward pass reach this crate's
//! dispatcher, and come out as on the CPU. Without a device the program says so; TILEGEMM_REQUIRE_GPU=1 makes that an error.

use candle::{bail, DType, Device, Module, Result, Tensor, Var};
use candle_nn::Linear;
use candle_tilegemm::interpose::{is_active, stats};

/// The largest difference, in parts of the largest element.
fn difference(result: &Tensor, expected: &Tensor) -> Result<f32> {
    let here = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F32);
    let largest = |t: Tensor| t.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
    let (result, expected) = (here(result)?, here(expected)?);
    Ok(largest((result - &expected)?)? / largest(expected)?)
}

/// Layers, attention and gradients: every kind of product that candle hands to cuBLAS. The results of the CPU are in f32.
fn products(device: &Device, dtype: DType, numbers: &[Tensor; 3]) -> Result<Vec<Tensor>> {
    let [x, up, down] = numbers.each_ref().map(|t| t.to_device(device)?.to_dtype(dtype));
    let (x, up, down) = (x?, up?, down?);
    let hidden = Linear::new(up.clone(), None).forward(&x)?.relu()?;
    let y = Linear::new(down, None).forward(&hidden)?;
    let heads = y.reshape((61, 6, 64))?.transpose(0, 1)?.contiguous()?; // candle 0.9.2 asks for this on a GPU
    let scores = (heads.matmul(&heads.t()?)? * 0.125)?;
    let values = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&heads)?;
    let up = Var::from_tensor(&up)?;
    let loss = Linear::new(up.as_tensor().clone(), None).forward(&x)?.sqr()?.mean_all()?;
    let gradients = loss.backward()?;
    let gradient = gradients.get(&up).expect("the loss depends on the weights").clone();
    Ok(vec![y, scores, values, gradient])
}

fn main() -> Result<()> {
    if !is_active() {
        bail!("candle's calls do not arrive at the dispatcher");
    }
    let device = match Device::new_cuda(0) {
        Ok(device) => device,
        Err(error) if std::env::var_os("TILEGEMM_REQUIRE_GPU").is_some() => return Err(error),
        Err(error) => {
            let error = error.to_string();
            let error = error.lines().next().unwrap_or_default();
            println!("skipped: no CUDA device ({error}); candle's calls would arrive at the dispatcher");
            return Ok(());
        }
    };
    let random = |rows: usize, columns: usize| Tensor::randn(0f32, 1., (rows, columns), &Device::Cpu);
    let numbers = [random(61, 384)?, (random(1536, 384)? * 0.05)?, (random(384, 1536)? * 0.03)?];
    let expected = products(&Device::Cpu, DType::F32, &numbers)?;
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::BF16, 5e-2), (DType::F16, 1e-2)] {
        let before = stats();
        let results = products(&device, dtype, &numbers)?;
        device.synchronize()?;
        let ran = stats().since(&before);
        let (calls, ours) = (ran.calls(), ran.ours);
        println!("{dtype:?}: {ours} of {calls} products on our kernels");
        for (name, (result, expected)) in
            ["mlp", "scores", "values", "gradient"].iter().zip(results.iter().zip(&expected))
        {
            let difference = difference(result, expected)?;
            println!("  {name}: {difference:.1e}");
            if difference.is_nan() || difference > tolerance {
                bail!("{dtype:?} {name} differs from the CPU by {difference:e}");
            }
        }
        if calls < 6 || ours == 0 {
            bail!("{dtype:?}: candle's products did not reach the dispatcher");
        }
    }
    Ok(())
}
