//! The search for the least mean error: one number at a time, in steps that shrink.
//!
//! The mean of absolute errors is robust against single wrong measurements. Estimates have edges (waves, the larger of two times), so
//! that no gradient is used.

use super::errors::Errors;
use super::records::Measurement;
use candle_tilegemm::internal::fit::{Parameter, Refit};

/// Rounds over all numbers, at most.
const ROUNDS: usize = 60;
/// The first step, and the last, as a share of a number or of its range.
const FIRST: f64 = 0.2;
const LAST: f64 = 0.002;
/// A step counts where it makes the mean error this much smaller: numbers that explain nothing stay as they are.
const LEAST_GAIN: f64 = 1e-6;

/// A number that moves by this share of itself, or of its range, costs as much as an error of [`PRIOR`] in one measurement.
///
/// Numbers that few measurements depend on so stay near their present values.
const SCALES: [f64; 2] = [0.3, 0.03];
const PRIOR: f64 = 0.1;

/// The distances from the present values, in these scales.
fn moves(parameters: &[Parameter], values: &[f64]) -> f64 {
    let of = |(parameter, value): (&Parameter, &f64)| {
        let [least, most] = parameter.range;
        let scale = (SCALES[0] * parameter.value.abs()).max(SCALES[1] * (most - least));
        ((value - parameter.value) / scale).abs()
    };
    parameters.iter().zip(values).map(of).sum()
}

fn error(family: &str, parameters: &[Parameter], values: &[f64], measurements: &[&Measurement]) -> f64 {
    let refit = Refit::default().with(family, values);
    let errors: f64 = measurements.iter().map(|m| m.weight * m.error(&refit)).sum();
    let weight: f64 = measurements.iter().map(|m| m.weight).sum();
    (errors + PRIOR * moves(parameters, values)) / weight
}

/// A step of a number.
fn step(parameter: &Parameter, value: f64, share: f64) -> f64 {
    let [least, most] = parameter.range;
    share * value.abs().max(0.02 * (most - least))
}

fn with(values: &[f64], index: usize, value: f64, parameter: &Parameter) -> Vec<f64> {
    let mut values = values.to_vec();
    let [least, most] = parameter.range;
    values[index] = digits(value).clamp(least, most);
    values
}

/// Four digits: more than a measurement has.
fn digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// The places of the numbers that any measurement depends on.
pub fn moved(family: &str, parameters: &[Parameter], measurements: &[&Measurement]) -> Vec<usize> {
    let values: Vec<f64> = parameters.iter().map(|parameter| parameter.value).collect();
    let unmoved = Errors::of(&Refit::default().with(family, &values), measurements).mean;
    let moves = |index: &usize| {
        let parameter = &parameters[*index];
        [-1.0, 1.0].into_iter().any(|sign| {
            let value = values[*index] + sign * step(parameter, values[*index], FIRST);
            Errors::of(&Refit::default().with(family, &with(&values, *index, value, parameter)), measurements).mean
                != unmoved
        })
    };
    (0..parameters.len()).filter(moves).collect()
}

/// The values with the least mean error that the search finds from the present ones.
pub fn fit(family: &str, parameters: &[Parameter], moved: &[usize], measurements: &[&Measurement]) -> Vec<f64> {
    let mut values: Vec<f64> = parameters.iter().map(|parameter| parameter.value).collect();
    let mut least = error(family, parameters, &values, measurements);
    let mut shares = vec![FIRST; parameters.len()];
    for _ in 0..ROUNDS {
        for &index in moved {
            let parameter = &parameters[index];
            let by = step(parameter, values[index], shares[index]);
            let tries = [values[index] - by, values[index] + by].map(|value| with(&values, index, value, parameter));
            let errors = tries.map(|tried| (error(family, parameters, &tried, measurements), tried));
            let best = errors.into_iter().min_by(|x, y| x.0.total_cmp(&y.0));
            match best.filter(|(error, _)| *error < least - LEAST_GAIN) {
                Some((error, tried)) => {
                    (least, values) = (error, tried);
                    shares[index] = (1.3 * shares[index]).min(FIRST);
                }
                None => shares[index] *= 0.5,
            }
        }
        if moved.iter().all(|index| shares[*index] < LAST) {
            break;
        }
    }
    values
}
