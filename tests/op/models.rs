//! The models of tests/gpu/models.rs on the CPU: each runs, gives numbers that differ, and gives the same numbers again.

#[path = "../support/models.rs"]
mod of_candle;

use candle::{DType, Device, Result};
use of_candle::{weights, FAMILIES};

#[test]
fn every_family_runs() -> Result<()> {
    for family in &FAMILIES {
        let run = |rounded_to: DType| -> Result<Vec<Vec<f32>>> {
            let vb = weights(DType::F32, rounded_to, &Device::Cpu);
            let outputs = (family.run)(&vb).unwrap_or_else(|error| panic!("{}: {error}", family.name));
            outputs.iter().map(|output| output.flatten_all()?.to_vec1()).collect()
        };
        let (first, again, rounded) = (run(DType::F32)?, run(DType::F32)?, run(DType::BF16)?);
        assert_eq!(first, again, "{}", family.name);
        assert_ne!(first, rounded, "{}: the weights are not rounded", family.name);
        for output in &first {
            assert!(output.iter().all(|x| x.is_finite()), "{}: infinities", family.name);
            let mean = output.iter().sum::<f32>() / output.len() as f32;
            let deviation = (output.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / output.len() as f32).sqrt();
            assert!(deviation > 1e-4 * mean.abs() && deviation > 1e-6, "{}: {mean} +- {deviation}", family.name);
        }
    }
    Ok(())
}
