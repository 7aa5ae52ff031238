//! Errors on the GPU of this machine.

use super::{exact, interrupted, lines, of_arm, session};
use crate::bench::arms::Arm;
use crate::bench::gguf::numbers;
use crate::bench::measure::{progress, Session};
use crate::bench::operands::Operands;
use crate::errors::data::Kind;
use crate::errors::gguf::{ARMS, ROWS};
use crate::errors::record::{Errors, Record, Subject};
use crate::Result;
use candle::quantized::QTensor;
use candle::{Device, Tensor};
use candle_tilegemm::internal::blocks::ggml_type;
use candle_tilegemm::{Format, Layout, Problem};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// N and K of every product.
const COLUMNS: usize = 256;
const K: usize = 4096;

pub fn run() -> Result<Record> {
    let session = session(0.0)?;
    // candle's kernels are the other arm.
    let formats: Vec<Format> = Format::blocks().filter(|format| ggml_type(*format).is_some()).collect();
    let progress = progress(Kind::OF_BLOCKS.len());
    let mut all = Vec::new();
    for kind in Kind::OF_BLOCKS {
        if interrupted() {
            break;
        }
        progress.set_message(format!("errors: {kind}"));
        let weights = lines(kind, 1, K, COLUMNS, &Device::Cpu)?;
        let blocks: Vec<candle::Result<Vec<u8>>> =
            formats.par_iter().map(|format| quantized(&weights, *format)).collect();
        for (format, blocks) in formats.iter().zip(blocks) {
            all.extend(errors(&session, kind, *format, blocks?)?);
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    // The stable sort keeps the order of the data.
    all.sort_by_key(|errors| errors.b);
    Ok(Record::new(Subject::Gguf, session.machine()?, all, None))
}

/// The blocks of these weights, by candle.
fn quantized(weights: &Tensor, format: Format) -> candle::Result<Vec<u8>> {
    let name = ggml_type(format).ok_or_else(|| candle::Error::Msg(format!("candle has no {format}")))?;
    Ok(QTensor::quantize(weights, name)?.data()?.into_owned())
}

/// The errors of all arms on the same numbers, for each number of rows.
fn errors(session: &Session, kind: Kind, format: Format, blocks: Vec<u8>) -> Result<Vec<Errors>> {
    let device = Device::Cuda(session.timer.device().clone());
    let blocks = Tensor::from_vec(blocks, format.bytes(COLUMNS * K), &device)?;
    let of_rows = |rows: usize| -> Result<Errors> {
        let problem =
            Problem::dense(rows, COLUMNS, K, 1, Layout::NT, Format::F32).with(|problem| problem.b.format = format);
        let x = lines(kind, 0, K, rows, &device)?;
        let exact = exact(session, &x, &numbers(&problem, &blocks)?)?;
        let operands = Operands::of(&problem, &x, &blocks)?;
        let (mut arms, mut absent) = (BTreeMap::new(), BTreeMap::new());
        for name in ARMS {
            match of_arm(session, &problem, &operands, &name.parse::<Arm>()?, (kind, &exact))? {
                Ok(errors) => drop(arms.insert(name.to_string(), errors)),
                Err(reason) => drop(absent.insert(name.to_string(), reason)),
            }
        }
        let (layout, data) = (problem.layout(), kind.to_string());
        Ok(Errors { a: None, b: format, formats: None, layout, m: rows, n: COLUMNS, k: K, data, arms, absent })
    };
    ROWS.into_iter().map(of_rows).collect()
}
