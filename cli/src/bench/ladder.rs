//! `tilegemm bench --ladder`: the worth of each idea of a GEMM, from a loop on the CPU to the vendor library.
//!
//! D = A @ B^T with f16 operands, f32 sums and f32 results. The rungs are in cli/ladder; the dispatcher chooses
//! none of them.

mod cpu;
mod row;
mod rungs;

use super::address::address;
use super::check::Reference;
use super::measured::STOP;
use super::operands::{free_bytes, Operands, Pool};
use super::report::Ceilings;
use super::timing::{Captured, Timer};
use crate::{Failure, Result};
use candle::{DType as CandleDType, Device, Tensor};
use candle_tilegemm::{launch, Format, Layout, Problem};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use row::{within_tolerance, Row};
use rungs::{ffi, launched, rungs, Addresses, Rung};
use serde::{Deserialize, Serialize};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Samples of a rung, and of a rung whose launch takes longer than `SLOW_US`.
const SAMPLES: usize = 15;
const SLOW_SAMPLES: usize = 3;
const SLOW_US: f64 = 20_000.0;
/// Warm-up of all rungs of a size together.
const WARM_UP: Duration = Duration::from_secs(1);
/// Bytes read by the memory measurement: 80 times the L2 cache of an H100.
const STREAM_BYTES: usize = 4 << 30;

/// All rungs at all sizes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    pub rows: Vec<Row>,
    /// Rungs that do not support a size, by name.
    pub left_out: Vec<String>,
}

/// Measures the ladder at sizes^3.
///
/// # Errors
/// A wrong rung, whose time has no meaning.
pub fn run(timer: &Timer, ceilings: &Ceilings, sizes: &[usize]) -> Result<Ladder> {
    let mut ladder = Ladder::default();
    for &size in sizes {
        if STOP.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        let matrices = Matrices::new(timer, size)?;
        let mut rows = Vec::new();
        let mut arms = Vec::new();
        let vendor = matrices.check(&Rung::Cublas)?.ok_or("cuBLAS refuses a square product")?;
        for rung in rungs() {
            match matrices.check(&rung)? {
                Some(checked) => {
                    arms.push((matrices.capture(&rung, matrices.outputs.len())?, matrices.capture(&rung, 1)?));
                    rows.push(rung.row(size, checked.err));
                }
                None => ladder.left_out.push(format!("{} at {size}^3", rung.name())),
            }
        }
        let (cold, hot): (Vec<_>, Vec<_>) = arms.into_iter().unzip();
        for ((row, cold), hot) in rows.iter_mut().zip(medians(timer, &cold)?).zip(medians(timer, &hot)?) {
            (row.cold_us, row.hot_us) = (Some(cold), hot);
        }
        let [a, b, ..] = matrices.inputs.inputs(0);
        let mut all = cpu::rows(a, b, &vendor.d, size)?;
        all.append(&mut rows);
        let roof_us = roof_us(size, ceilings)?;
        all.iter_mut().for_each(|row| row.roof_us = roof_us);
        ladder.rows.append(&mut all);
    }
    Ok(ladder)
}

/// Bandwidth of a kernel that only reads memory, in GB/s.
pub fn hbm_gbps(timer: &Timer) -> Result<f64> {
    let info = launch::device_info(timer.device().cuda_stream().context().ordinal())?;
    let bytes = STREAM_BYTES.min(free_bytes(timer.device())? / 2) / 1024 * 1024;
    let device = Device::Cuda(timer.device().clone());
    let data = Tensor::rand(0f32, 1f32, bytes / 4, &device)?;
    let sink = Tensor::zeros(1, CandleDType::F64, &device)?;
    let (from, to, stream) = (address(&data)? as *const c_void, address(&sink)? as *mut c_void, timer.queue().stream);
    let captured = timer.capture(1, |_| {
        // SAFETY: `data` has that many bytes, `sink` has 8, both are aligned to 256 and outlive the samples below.
        let status = unsafe { ffi::tg_stream_read(from, bytes, to, info.sm_count as c_int, stream) };
        launched("the stream read", status)?.then_some(()).ok_or_else(|| "the stream read refuses its buffer".into())
    })?;
    let samples = timer.interleave(&[&captured], WARM_UP / 4, SAMPLES)?;
    Ok(bytes as f64 / samples[0].median() / 1e3)
}

/// The least time for f16 operands and f32 results.
fn roof_us(size: usize, ceilings: &Ceilings) -> Result<f64> {
    let peak = ceilings.tflops.get(&Format::F16).ok_or("the ladder needs the f16 ceiling; measure it first")?;
    let size = size as f64;
    let (flops, bytes) = (2.0 * size.powi(3), (2.0 + 2.0 + 4.0) * size * size);
    Ok((flops / (peak * 1e6)).max(bytes / (ceilings.hbm_gbps * 1e3)))
}

/// Median times of one launch, all rungs in turns. Slow rungs have separate turns, and fewer.
fn medians(timer: &Timer, arms: &[Captured]) -> Result<Vec<f64>> {
    let mut us = arms.iter().map(|arm| arm.replay(timer)).collect::<Result<Vec<f64>>>()?;
    let (quick, slow): (Vec<usize>, Vec<usize>) = (0..arms.len()).partition(|&index| us[index] < SLOW_US);
    for (indices, warm_up, samples) in [(quick, WARM_UP, SAMPLES), (slow, Duration::ZERO, SLOW_SAMPLES)] {
        let these: Vec<&Captured> = indices.iter().map(|&index| &arms[index]).collect();
        for (index, samples) in indices.into_iter().zip(timer.interleave(&these, warm_up, samples)?) {
            us[index] = samples.median();
        }
    }
    Ok(us)
}

// --- Operands, check and capture ------------------------------------------------------------------------------------

/// The operands of one size, in as many copies as keep the operands out of the L2 cache, and the reference.
struct Matrices<'a> {
    timer: &'a Timer,
    size: usize,
    /// A and B; the f16 D of these operands is not used.
    inputs: Operands,
    /// D for each copy of A and B.
    outputs: Vec<Tensor>,
    reference: Reference,
}

/// A checked result.
struct Checked {
    d: Tensor,
    err: f64,
}

impl<'a> Matrices<'a> {
    fn new(timer: &'a Timer, size: usize) -> Result<Self> {
        let dispatcher = launch::dispatcher(timer.device().cuda_stream().context().ordinal())?;
        let problem = Problem::dense(size, size, size, 1, Layout::NT, Format::F16);
        let inputs =
            Operands::new(timer, &Pool::default(), &problem, dispatcher.device().l2_bytes as usize, false, 1.0, None)?;
        let reference = Reference::new(timer, dispatcher, &problem, &inputs)?;
        let device = Device::Cuda(timer.device().clone());
        let output = |_| Tensor::zeros(size * size, CandleDType::F32, &device);
        let outputs = (0..inputs.copies()).map(output).collect::<candle::Result<_>>()?;
        Ok(Self { timer, size, inputs, outputs, reference })
    }

    /// Addresses of a copy of A and B, with another D.
    fn addresses(&self, copy: usize, d: &Tensor) -> Result<Addresses> {
        let inputs = self.inputs.pointers(copy)?;
        Ok(Addresses { a: inputs.a, b: inputs.b, d: address(d)? as *mut c_void })
    }

    /// Runs a rung once and compares the result, in a D that was full of NaN before. `None`: the rung does not support
    /// this size.
    fn check(&self, rung: &Rung) -> Result<Option<Checked>> {
        let d = Tensor::full(f32::NAN, self.size * self.size, &Device::Cuda(self.timer.device().clone()))?;
        let addresses = self.addresses(0, &d)?;
        // SAFETY: the operands and `d` have that size and these types, and outlive the synchronisation.
        let runs = unsafe { rung.launch(self.timer, addresses, self.size)? };
        self.timer.synchronize()?;
        if !runs {
            return Ok(None);
        }
        let err = self.reference.error_of(&d)?;
        within_tolerance(&rung.name(), self.size, err)?;
        Ok(Some(Checked { d, err }))
    }

    /// Launches that cycle through `copies` copies of the operands.
    fn capture(&self, rung: &Rung, copies: usize) -> Result<Captured> {
        let addresses =
            (0..copies).map(|copy| self.addresses(copy, &self.outputs[copy])).collect::<Result<Vec<_>>>()?;
        self.timer.capture(copies, |index| {
            // SAFETY: the operands of every copy have that size and these types, and outlive the samples: both are dropped by
            // `run`, the samples first.
            let runs = unsafe { rung.launch(self.timer, addresses[index % copies], self.size)? };
            runs.then_some(()).ok_or_else(|| format!("{} ran once and now refuses", rung.name()).into())
        })
    }
}

// --- The table ------------------------------------------------------------------------------------------------------

/// A table for each size.
pub fn table(ladder: &Ladder) -> String {
    let mut sizes: Vec<usize> = ladder.rows.iter().map(|row| row.size).collect();
    sizes.dedup();
    let mut text = String::new();
    for size in sizes {
        let rows: Vec<&Row> = ladder.rows.iter().filter(|row| row.size == size).collect();
        text += &size_table(size, &rows);
    }
    for name in &ladder.left_out {
        text += &format!("left out: {name}: not written for that size\n");
    }
    text
}

fn size_table(size: usize, rows: &[&Row]) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "rung",
        "tile",
        "FLOP/B",
        "cold us",
        "TFLOP/s",
        "of roof",
        "hot us",
        "TFLOP/s",
        "of roof",
        "error",
        "what it adds",
    ]);
    for column in table.column_iter_mut().skip(2).take(8) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in rows {
        let time = |us: Option<f64>| match us {
            Some(us) => [digits(us), digits(row.tflops(us)), format!("{} %", digits(100.0 * row.roof_us / us))],
            None => ["-".into(), "-".into(), "-".into()],
        };
        let tile = row.tile.map_or("-".into(), |tile| tile.map(|extent| extent.to_string()).join("x"));
        let partial = row.cpu_rows.filter(|&rows| rows < size).map(|rows| format!(" ({rows} of {size} rows, scaled)"));
        let mut cells = vec![row.rung.clone(), tile, row.intensity().map_or("-".into(), digits)];
        cells.extend(time(row.cold_us));
        cells.extend(time(Some(row.hot_us)));
        cells.push(format!("{:.0e}", row.err));
        cells.push(row.why.clone() + &partial.unwrap_or_default());
        table.add_row(cells);
    }
    let roof_us = rows.first().map_or(f64::NAN, |row| row.roof_us);
    let compulsory = size as f64 / 4.0; // 2 size^3 FLOP for (2 + 2 + 4) size^2 bytes
    format!(
        "{size}^3, f16 to f32: {} FLOP per byte that must move; the roof is {} us. FLOP/B: per byte of operands that a tile \
         loads.\n\n{table}\n\n",
        digits(compulsory),
        digits(roof_us)
    )
}

/// Three significant digits, all of the digits before the point.
fn digits(x: f64) -> String {
    let places = if x > 0.0 { (2 - x.log10().floor() as i32).clamp(0, 9) as usize } else { 0 };
    format!("{x:.places$}")
}
