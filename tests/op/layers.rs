//! The layers, against those of candle_nn.

use crate::{activate, assert_close, randn};
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_tilegemm::{nn, Activation};

/// Inputs of width 8 of the ranks that candle_nn takes, dense and not.
fn inputs(dtype: DType) -> Result<Vec<Tensor>> {
    Ok(vec![
        randn(&[5, 8], dtype)?,
        randn(&[1, 8], dtype)?,
        randn(&[8, 5], dtype)?.t()?,
        randn(&[3, 5, 8], dtype)?,
        randn(&[5, 3, 8], dtype)?.transpose(0, 1)?,
        randn(&[3, 8, 5], dtype)?.t()?,
        randn(&[3, 6, 8], dtype)?.narrow(1, 1, 4)?,
        randn(&[2, 3, 5, 8], dtype)?,
        randn(&[2, 5, 3, 8], dtype)?.transpose(1, 2)?,
    ])
}

#[test]
fn a_layer_computes_what_candle_nns_does() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-14), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let (weight, bias) = (randn(&[6, 8], dtype)?, randn(&[6], dtype)?);
        for bias in [None, Some(bias)] {
            let theirs = candle_nn::Linear::new(weight.clone(), bias.clone());
            let layers = [nn::Linear::new(weight.clone(), bias.clone()), nn::Linear::from(theirs.clone())];
            for x in inputs(dtype)? {
                let what = format!("{dtype:?} {:?} bias {}", x.shape(), bias.is_some());
                // A dense copy: candle_nn refuses some of the others.
                let expected = theirs.forward(&x.contiguous()?)?;
                for ours in &layers {
                    assert_close(&ours.forward(&x)?, &expected, tolerance, &what)?;
                }
                let residual = randn(expected.dims(), dtype)?;
                let sum = (&expected + &residual)?;
                assert_close(&layers[0].forward_residual(&x, &residual)?, &sum, tolerance, &what)?;
                for activation in Activation::ALL {
                    let ours = layers[0].clone().with_activation(activation);
                    assert_close(&ours.forward(&x)?, &activate(activation, &expected)?, tolerance.max(1e-9), &what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_layer_keeps_weight_and_bias() -> Result<()> {
    let theirs = candle_nn::Linear::new(randn(&[6, 8], DType::F32)?, Some(randn(&[6], DType::F32)?));
    let ours = nn::Linear::from(theirs.clone());
    assert_eq!(ours.weight().id(), theirs.weight().id());
    assert_eq!(ours.bias().map(|bias| bias.id()), theirs.bias().map(|bias| bias.id()));
    Ok(())
}

#[test]
fn constructors_read_and_create_the_variables_that_candle_nns_do() -> Result<()> {
    let variables = |build: &dyn Fn(VarBuilder) -> Result<()>| -> Result<Vec<(String, Vec<usize>)>> {
        let map = VarMap::new();
        build(VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("layer"))?;
        let data = map.data().lock().unwrap();
        let mut variables: Vec<_> = data.iter().map(|(name, var)| (name.clone(), var.dims().to_vec())).collect();
        variables.sort();
        Ok(variables)
    };
    assert_eq!(
        variables(&|vb| nn::linear(8, 6, vb).map(drop))?,
        variables(&|vb| candle_nn::linear(8, 6, vb).map(drop))?
    );
    assert_eq!(
        variables(&|vb| nn::linear_no_bias(8, 6, vb).map(drop))?,
        variables(&|vb| candle_nn::linear_no_bias(8, 6, vb).map(drop))?
    );
    for bias in [false, true] {
        assert_eq!(
            variables(&|vb| nn::linear_b(8, 6, bias, vb).map(drop))?,
            variables(&|vb| candle_nn::linear_b(8, 6, bias, vb).map(drop))?
        );
    }
    Ok(())
}

#[test]
fn a_layer_loaded_from_the_same_weights_gives_the_same() -> Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let theirs = candle_nn::linear(8, 6, vb.clone())?;
    let ours = nn::linear(8, 6, vb)?;
    let x = randn(&[4, 8], DType::F32)?;
    assert_close(&ours.forward(&x)?, &theirs.forward(&x)?, 1e-6, "shared variables")
}
