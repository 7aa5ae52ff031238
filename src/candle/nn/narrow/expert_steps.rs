//! What is between the products of experts on a GPU and no kernel of this crate does, by kernels of candle: biases of experts, and clamped gates.

use crate::candle::routing::Routing;
use crate::problem::Gate;
use ::candle::{Result, Tensor, D};

/// Adds the bias of each pair's expert, (experts, n) in f32, to results of pairs, (pairs, n), which are dense; where they are `scaled`, times the weight of the pair.
/// A pair whose expert does not exist gets none.
pub(super) fn add_bias(results: &Tensor, bias: &Tensor, routing: &Routing, scaled: bool) -> Result<()> {
    let (count, _) = bias.dims2()?;
    let experts = routing.experts().flatten_all()?;
    let exists = experts.lt(count as u32)?;
    let rows = bias.index_select(&exists.where_cond(&experts, &experts.zeros_like()?)?, 0)?;
    let rows = match scaled {
        true => rows.broadcast_mul(&routing.weights().flatten_all()?.unsqueeze(1)?)?,
        false => rows,
    };
    let exists = exists.unsqueeze(1)?.broadcast_as(rows.shape())?.contiguous()?;
    let rows = exists.where_cond(&rows, &rows.zeros_like()?)?;
    results.slice_set(&(results + rows)?, 0, 0)
}

/// The clamped gates of rows in f32, (rows, 2 n), as [`ExpertGate::Clamped`](super::ExpertGate::Clamped) has them, into dense rows. NaN stays NaN.
pub(super) fn clamped(both: &Tensor, places: Gate, [alpha, limit]: [f32; 2], out: &Tensor) -> Result<()> {
    let (rows, n) = both.dims2()?;
    let part = |at: usize| match places {
        Gate::Halves => both.narrow(D::Minus1, at * n / 2, n / 2)?.contiguous(),
        Gate::Interleaved => both.reshape((rows, n / 2, 2))?.get_on_dim(2, at)?.contiguous(),
    };
    let most = Tensor::full(limit, (rows, n / 2), both.device())?;
    // Comparisons with NaN are false.
    let at_most = |x: Tensor| x.gt(&most)?.where_cond(&most, &x);
    let gate = at_most(part(0)?)?;
    let up = at_most(at_most(part(1)?)?.neg()?)?.neg()?;
    let steep = (&gate / gate.affine(-f64::from(alpha), 0.0)?.exp()?.affine(1.0, 1.0)?)?;
    let steep = gate.eq(f32::NEG_INFINITY)?.where_cond(&gate.zeros_like()?, &steep)?;
    out.slice_set(&(up.affine(1.0, 1.0)? * steep)?, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::super::ExpertGate;
    use super::*;
    use ::candle::{DType, Device};

    const INF: f32 = f32::INFINITY;

    #[test]
    fn gates_are_those_of_the_cpu() {
        let numbers = [-INF, -100.0, -7.5, -1.0, 0.0, 0.5, 6.9, 7.0, 7.1, 90.0, INF, f32::NAN];
        let pairs: Vec<[f32; 2]> = numbers.iter().flat_map(|x| numbers.map(|y| [*x, y])).collect();
        let both = Tensor::from_slice(pairs.as_flattened(), (pairs.len(), 2), &Device::Cpu).unwrap();
        for places in [Gate::Halves, Gate::Interleaved] {
            let out = Tensor::zeros((pairs.len(), 1), DType::F32, &Device::Cpu).unwrap();
            clamped(&both, places, [1.702, 7.0], &out).unwrap();
            let gate = ExpertGate::Clamped { alpha: 1.702, limit: 7.0 };
            for ([x, y], got) in pairs.iter().zip(out.flatten_all().unwrap().to_vec1::<f32>().unwrap()) {
                let expected = gate.apply(*x, *y);
                let is_same = (got - expected).abs() <= 1e-6 * expected.abs() || (got.is_nan() && expected.is_nan());
                assert!(is_same || got == expected, "{x} and {y}: {got}, expected {expected}");
            }
        }
    }

    #[test]
    fn a_bias_is_of_the_expert_of_a_pair() {
        let tensor =
            |values: &[[f32; 2]]| Tensor::from_slice(values.as_flattened(), (values.len(), 2), &Device::Cpu).unwrap();
        let experts = Tensor::new(&[[1u32, u32::MAX], [0, 2]], &Device::Cpu).unwrap();
        let routing = Routing::new(2, &experts, &tensor(&[[0.5, f32::NAN], [2.0, f32::NAN]])).unwrap();
        let bias = tensor(&[[1.0, 2.0], [10.0, 20.0]]);
        for (scaled, expected) in [
            (false, [[11.0f32, 21.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]),
            (true, [[6.0, 11.0], [0.0, 0.0], [4.0, 6.0], [0.0, 0.0]]),
        ] {
            let results = tensor(&[[1.0, 1.0], [0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]);
            add_bias(&results, &bias, &routing, scaled).unwrap();
            assert_eq!(results.to_vec2::<f32>().unwrap(), expected);
        }
    }
}
