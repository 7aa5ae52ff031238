//! `--eager`: the whole call of a candle program: allocation of the result, dispatch, launch. The time is the
//! wall-clock time of many calls in a row over their number, so that the GPU's work hides the host's work where the GPU
//! has enough work.

use super::args::Args;
use super::arms::{set_mode, Arm};
use super::check::Reference;
use super::measured::{Error, Measured, Run};
use super::operands::{Operands, Pool};
use super::samples::Samples;
use super::timing::Timer;
use crate::Result;
use candle::Tensor;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::interpose::{self, Mode};
use candle_tilegemm::problem::Operand;
use candle_tilegemm::{Activation, Config, Gemm, Problem};
use std::time::{Duration, Instant};

/// The target length of a sample, in microseconds.
const SAMPLE_US: f64 = 2000.0;

/// Times the arms that are candle calls: stock, ours, and ours without the vendor library.
pub fn measure(timer: &Timer, dispatcher: &Dispatcher, problem: &Problem, args: &Args) -> Result<Measured> {
    if !interpose::is_active() {
        return Err(
            "candle's calls do not arrive at the interposer in this build, so there is nothing to compare".into()
        );
    }
    if problem.groups.is_some() {
        return Err(
            "--eager has no products in groups; without it, the flag `eager` marks arms that no graph can hold".into(),
        );
    }
    if problem.b.format.is_gguf_block() || problem.b.format.is_narrow() {
        return Err("--eager has no products with quantised weights; leave it out".into());
    }
    set_mode(problem.f32_mode);
    let l2_bytes = dispatcher.device().l2_bytes as usize;
    let operands = Operands::new(timer, &Pool::default(), problem, l2_bytes, args.hot, 1.0, None)?;
    let copies =
        (0..operands.copies()).map(|copy| Views::of(problem, operands.inputs(copy))).collect::<Result<Vec<_>>>()?;
    let reference = if args.no_check { None } else { Some(Reference::new(timer, dispatcher, problem, &operands)?) };
    let mut measured = Measured::default();
    let mut arms = Vec::new();
    for arm in args.arms() {
        let call: Call = match arm {
            Arm::Candle => Call { mode: Mode::Off, ours: false },
            Arm::Ours | Arm::Again => Call { mode: Mode::On, ours: true },
            Arm::Own if problem.epilogue.is_linear() => Call { mode: Mode::Force, ours: false },
            _ => {
                measured.absent.insert(arm.name().into(), "is no candle call".into());
                continue;
            }
        };
        // The first calls load modules and plan; only the second estimate is used.
        let estimate = call.repeat(timer, problem, &copies, copies.len());
        let estimate = estimate.and_then(|_| call.repeat(timer, problem, &copies, 2 * copies.len()));
        let calls = match estimate {
            Ok(us) => (SAMPLE_US / us).ceil().clamp(1.0, 2000.0) as usize,
            Err(error) => {
                measured.absent.insert(arm.name().into(), error.to_string());
                continue;
            }
        };
        arms.push((arm, call, calls, Samples::default()));
    }
    let start = Instant::now();
    let warm_up = args.warm_up * arms.len() as u32;
    let mut round = 0;
    while round < usize::from(args.samples) {
        let counts = start.elapsed() >= warm_up;
        for (_, call, calls, samples) in &mut arms {
            let us = call.repeat(timer, problem, &copies, *calls)?;
            std::thread::sleep(Duration::from_secs_f64(us * *calls as f64 * timer.pause / 1e6));
            if counts {
                samples.push(us);
            }
        }
        round += usize::from(counts);
    }
    for (index, (arm, call, _, samples)) in arms.into_iter().enumerate() {
        interpose::set_mode(call.mode);
        let d = call.run(problem, &copies[0])?.flatten_all()?;
        let error = |reference: &Reference| -> Result<Error> {
            Ok(Error { error: reference.error_of(&d)?, tolerance: reference.tolerance })
        };
        let error = reference.as_ref().map(error).transpose()?;
        measured.runs.push(Run {
            kernel: call.name().into(),
            config: Config::default(),
            samples,
            us_in_kernels: None,
            us_in_program: None,
            error,
        });
        measured.arms.push((arm, index));
    }
    interpose::set_mode(Mode::On);
    Ok(measured)
}

/// The operands as tensors of a candle program.
struct Views {
    a: Tensor,
    b: Tensor,
    c: Tensor,
    bias: Tensor,
}

impl Views {
    fn of(problem: &Problem, [a, b, c, bias]: [&Tensor; 4]) -> Result<Self> {
        let Problem { m, n, k, .. } = *problem;
        let view = |flat: &Tensor, operand: &Operand, rows: usize, cols: usize| -> Result<Tensor> {
            let row_major = operand.col_stride == 1;
            let (lines, length) = if row_major { (rows, cols) } else { (cols, rows) };
            let stride = if row_major { operand.row_stride } else { operand.col_stride };
            let stride = length.max(if lines > 1 { stride as usize } else { 0 });
            let matrices = flat.elem_count() / (lines * stride);
            let stored = flat.narrow(0, 0, matrices * lines * stride)?.reshape((matrices, lines, stride))?;
            let stored = stored.narrow(2, 0, length)?;
            let view = if row_major { stored } else { stored.t()? };
            Ok(match problem.batch_count() {
                1 => view.squeeze(0)?,
                batch if matrices == 1 => view.broadcast_as((batch, rows, cols))?,
                _ => view,
            })
        };
        Ok(Self {
            a: view(a, &problem.a, m, k)?,
            b: view(b, &problem.b, k, n)?,
            c: match &problem.epilogue.c {
                Some(operand) => view(c, operand, m, n)?,
                None => c.clone(),
            },
            bias: bias.clone(),
        })
    }
}

/// One way to compute the product.
#[derive(Clone, Copy)]
struct Call {
    mode: Mode,
    /// Whether the call goes through our op, for rows with an epilogue.
    ours: bool,
}

impl Call {
    fn name(&self) -> &'static str {
        match (self.mode, self.ours) {
            (Mode::Off, _) => "candle matmul",
            (Mode::Force, _) => "candle matmul, our kernels only",
            _ => "candle matmul through the interposer",
        }
    }

    /// Microseconds of one call, from `calls` calls in a row.
    fn repeat(&self, timer: &Timer, problem: &Problem, copies: &[Views], calls: usize) -> Result<f64> {
        interpose::set_mode(self.mode);
        timer.synchronize()?;
        let start = Instant::now();
        for call in 0..calls {
            self.run(problem, &copies[call % copies.len()])?;
        }
        timer.synchronize()?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / calls as f64)
    }

    fn run(&self, problem: &Problem, views: &Views) -> Result<Tensor> {
        let epilogue = &problem.epilogue;
        if epilogue.is_linear() && epilogue.alpha() == 1.0 {
            return Ok(views.a.matmul(&views.b)?);
        }
        if self.ours {
            let mut gemm = Gemm::new().alpha(epilogue.alpha()).activation(epilogue.activation);
            if epilogue.bias.is_some() {
                gemm = gemm.bias(&views.bias);
            }
            if epilogue.reads_c() {
                gemm = gemm.residual(&views.c).beta(epilogue.beta());
            }
            return Ok(gemm.forward(&views.a, &views.b)?);
        }
        let mut d = views.a.matmul(&views.b)?;
        if epilogue.alpha() != 1.0 {
            d = (d * epilogue.alpha())?;
        }
        if epilogue.bias.is_some() {
            d = d.broadcast_add(&views.bias)?;
        }
        d = by_candle(epilogue.activation, d)?;
        if epilogue.reads_c() {
            d = (d + (&views.c * epilogue.beta())?)?;
        }
        Ok(d)
    }
}

/// The activation as a candle program has it.
fn by_candle(activation: Activation, x: Tensor) -> candle::Result<Tensor> {
    match activation {
        Activation::Identity => Ok(x),
        Activation::Relu => x.relu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::Silu => x.silu(),
        other => candle::bail!("no operation of candle computes {other:?}"),
    }
}
