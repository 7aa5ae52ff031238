//! Errors on the GPU of this machine.

use super::{exact, interrupted, lines, of_arm, session};
use crate::bench::arms::Arm;
use crate::bench::measure::{progress, Session};
use crate::bench::operands::Operands;
use crate::errors::data::Kind;
use crate::errors::narrow::{BYTES, ROWS, WEIGHTS};
use crate::errors::operands::{formats, problem, Operand, Recipe, RECIPES};
use crate::errors::record::{Errors, Record, Subject};
use crate::Result;
use candle::{DType, Device, Tensor};
use candle_tilegemm::Format;
use std::collections::BTreeMap;

/// N of every product; K of those with wide activations and of 8 bits by 8 bits.
const COLUMNS: usize = 256;
const K: usize = 4096;
const K_OF_BYTES: usize = 16384;

pub fn run() -> Result<Record> {
    let session = session(0.0)?;
    let progress = progress(RECIPES.len() * Kind::OF_BLOCKS.len());
    let mut all = Vec::new();
    for recipe in RECIPES {
        for kind in Kind::OF_BLOCKS {
            if interrupted() {
                break;
            }
            progress.set_message(format!("errors: {:?}, {kind}", recipe.weights));
            all.extend(errors(&session, kind, recipe)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(Record::new(Subject::Narrow, session.machine()?, all, None))
}

/// The errors of all arms on the same numbers, for each number of rows.
fn errors(session: &Session, kind: Kind, recipe: Recipe) -> Result<Vec<Errors>> {
    let device = Device::Cuda(session.timer.device().clone());
    let (k, names) = if recipe.activations.is_some() { (K_OF_BYTES, BYTES) } else { (K, WEIGHTS) };
    let b = Operand::new(&lines(kind, 1, k, COLUMNS, &Device::Cpu)?, recipe.weights)?;
    let b = if recipe.activations.is_some() { b.with_factors_in_f32() } else { b };
    let b_tensors = b.tensors(&device)?;
    let columns = b.numbers(&b_tensors)?;
    let of_rows = |rows: usize| -> Result<Errors> {
        let x = lines(kind, 0, k, rows, &Device::Cpu)?;
        let a = recipe.activations.map(|rounding| Operand::new(&x, rounding)).transpose()?;
        let a = a.map(Operand::with_factors_in_f32);
        let (numbers, stored, factors) = match &a {
            None => {
                let x = x.to_dtype(DType::BF16)?.to_device(&device)?;
                (x.to_dtype(DType::F64)?, x, Tensor::zeros(1, DType::U8, &device)?)
            }
            Some(a) => {
                let tensors = a.tensors(&device)?;
                let numbers = a.numbers(&tensors)?;
                let [codes, factors, _] = tensors;
                (numbers, codes, factors)
            }
        };
        let problem = problem(a.as_ref(), &b, rows);
        let exact = exact(session, &numbers, &columns)?;
        let [codes, factors_of_b, zeros] = b_tensors.clone();
        let operands = Operands::of_codes(&problem, &stored, &codes, [factors, factors_of_b, zeros])?;
        let (mut arms, mut absent) = (BTreeMap::new(), BTreeMap::new());
        for name in names {
            match of_arm(session, &problem, &operands, &name.parse::<Arm>()?, (kind, &exact))? {
                Ok(errors) => drop(arms.insert(name.to_string(), errors)),
                Err(reason) => drop(absent.insert(name.to_string(), reason)),
            }
        }
        let (layout, data) = (problem.layout(), kind.to_string());
        let (a, formats) = (Some(a.map_or(Format::BF16, |a| a.format)), Some(formats(&problem)));
        Ok(Errors { a, b: b.format, formats, layout, m: rows, n: COLUMNS, k, data, arms, absent })
    };
    ROWS.into_iter().map(of_rows).collect()
}
