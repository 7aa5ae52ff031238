//! Errors on the GPU of this machine.

pub mod f32;
pub mod gguf;
pub mod narrow;

use super::data::Kind;
use super::operands::half_unit;
use super::record::ErrorsOf;
use crate::bench::arms::Arm;
use crate::bench::check::product_in_f64;
use crate::bench::measure::Session;
use crate::bench::measured::STOP;
use crate::bench::operands::Operands;
use crate::bench::report::digits;
use crate::bench::run::stop_at_ctrl_c;
use crate::{Failure, Result};
use candle::{DType, Device, Tensor};
use candle_tilegemm::{launch, F32Mode, Format, Layout, Problem};
use rayon::prelude::*;
use std::sync::atomic::Ordering;

/// Opens a session that ends with Ctrl-C.
pub fn session(pause: f64) -> Result<Session> {
    if let Err(error) = launch::device_count() {
        return Err(Failure::NoDevice(format!("{error}; a record of another machine can be read with --from")));
    }
    stop_at_ctrl_c()?;
    Session::open(pause, F32Mode::Accurate)
}

/// Whether Ctrl-C ended the measurement, so that products are missing.
pub fn interrupted() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// `count` rows of A (side 0) or columns of B (side 1), as a matrix with K numbers in a line.
pub fn lines(kind: Kind, side: u64, k: usize, count: usize, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..count).into_par_iter().flat_map_iter(|index| kind.vector(side, k, index)).collect();
    Ok(Tensor::from_vec(values, (count, k), device)?)
}

/// Rows times columns, and |rows| times |columns|, in f64, of numbers in f32 or f64.
pub fn exact(session: &Session, rows: &Tensor, columns: &Tensor) -> Result<Vec<(f64, f64)>> {
    let ((m, k), n) = (rows.dims2()?, columns.dim(0)?);
    let format = if rows.dtype() == DType::F64 { Format::F64 } else { Format::F32 };
    let problem = Problem::dense(m, n, k, 1, Layout::NT, format);
    let product = |rows: &Tensor, columns: &Tensor| -> Result<Vec<f64>> {
        let operands = Operands::of(&problem, rows, columns)?;
        Ok(product_in_f64(&session.timer, &session.dispatcher, &problem, &operands)?.to_vec1()?)
    };
    let (sums, sizes) = (product(rows, columns)?, product(&rows.abs()?, &columns.abs()?)?);
    Ok(sums.into_iter().zip(sizes).collect())
}

/// The errors of an arm, or the reason why the arm does not run the product.
pub fn of_arm(
    session: &Session,
    problem: &Problem,
    operands: &Operands,
    arm: &Arm,
    (kind, exact): (Kind, &[(f64, f64)]),
) -> Result<std::result::Result<ErrorsOf, String>> {
    let runner = match session.resolver(problem, operands).resolve(arm) {
        Ok(runner) => runner,
        Err(error) => return Ok(Err(error.to_string())),
    };
    operands.poison(&session.timer)?;
    runner.run(&session.timer, operands)?;
    let d = operands.first()[2].to_dtype(DType::F32)?.to_vec1::<f32>()?;
    let exact = exact.iter().copied();
    // The bound of 8 bits by 8 bits is beyond the rounding of the result.
    let errors = match problem.a.format.is_narrow() {
        true => kind.errors_beyond(&d, exact, |exact| half_unit(problem.d.format, exact)),
        false => kind.errors(&d, exact),
    };
    let [max, rms] = errors.map(digits);
    Ok(Ok(ErrorsOf { max, rms, kernel: runner.kernel() }))
}
