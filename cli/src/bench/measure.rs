//! A run over a suite: the arms of each row, the order of the rows, and the record.

use super::args::{Args, Plant};
use super::arms::{set_mode, Arm, Resolver, Runner};
use super::card::Monitor;
use super::check::{tolerance, Reference};
use super::lt::CublasLt;
use super::measured::{Error, Measured, Run, STOP};
use super::operands::{free_bytes, Operands, Pool};
use super::report::{self, digits, Ceilings, Machine, Report, Row, Settings, SCHEMA};
use super::samples::Samples;
use super::timing::{Captured, Timer};
use super::{allocation, eager, ladder, learning, order};
use crate::lists::Routing;
use crate::Result;
use candle::{CudaDevice, Device};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::internal::suite::Shape;
use candle_tilegemm::{launch, F32Mode, Format, Layout, Problem};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Warm-up of each arm of a row, for up to this many arms.
pub const WARM_UP: Duration = Duration::from_millis(300);
const WARM_ARMS: u32 = 7;
/// Of `every`, arms beyond this multiple of the fastest arm's first time keep that one time.
const BRIEF: f64 = 1.3;
/// The largest distance of the 10th and 90th percentile, as a share of the median, without a flag.
const MOST_SPREAD: f64 = 0.05;
/// The largest share that the clock may lose during a row without a flag.
const MOST_CLOCK_LOSS: f64 = 0.03;

/// The card and the measuring instruments.
pub struct Session {
    /// The f32 mode of every arm.
    pub f32_mode: F32Mode,
    pub timer: Timer,
    pub dispatcher: Dispatcher,
    /// The same kernels without measured tables.
    untuned: Dispatcher,
    monitor: Monitor,
    lt: CublasLt,
    pool: Pool,
}

/// The method of measuring a product.
pub struct How {
    pub samples: usize,
    /// The time for which each arm runs before the samples, up to `WARM_ARMS` times.
    pub warm_up: Duration,
    /// Whether there is only one copy of the operands.
    pub hot: bool,
    /// Whether results are compared with the reference.
    pub check: bool,
    /// The factor on the data: 1, or 0 as a planted mistake.
    pub scale: f64,
    /// The routing of a product in groups.
    pub routing: Option<Routing>,
}

impl Session {
    /// Opens a session with the dispatcher that programs have on this machine.
    pub fn open(pause: f64, f32_mode: F32Mode) -> Result<Self> {
        Self::with(pause, f32_mode, |info| Ok(Dispatcher::new(info).with_user_tuning()?))
    }

    pub fn with(
        pause: f64,
        f32_mode: F32Mode,
        dispatcher: impl FnOnce(DeviceInfo) -> Result<Dispatcher>,
    ) -> Result<Self> {
        set_mode(f32_mode);
        let device = CudaDevice::new_with_stream(0)?;
        // SAFETY: one stream only; events of candle's allocator would end up in the captured graphs.
        unsafe { device.disable_event_tracking() };
        candle_tilegemm::prepare(&Device::Cuda(device.clone()))?;
        let info = launch::device_info(0)?;
        launch::verify_library()?;
        launch::verify_vendor()?;
        let monitor = Monitor::new(&device)?;
        let lt = CublasLt::new(&device)?;
        let untuned = Dispatcher::new(info.clone()).without_tuning();
        let (timer, dispatcher) = (Timer::new(device, pause), dispatcher(info)?);
        Ok(Self { f32_mode, timer, dispatcher, untuned, monitor, lt, pool: Pool::default() })
    }

    /// The product of a row, in the f32 mode of this run where the row has none.
    pub fn problem(&self, shape: &Shape) -> Problem {
        shape.problem_in(self.f32_mode)
    }

    pub fn machine(&self) -> Result<Machine> {
        let info = self.dispatcher.device();
        let driver = launch::driver_version()?;
        let kernels = env!("TILEGEMM_NVCC_VERSION");
        Ok(Machine {
            gpu: info.name.clone(),
            sms: info.sm_count,
            driver: self.monitor.driver()?,
            cuda: format!("{}.{} (driver), {kernels} (kernels)", driver / 1000, driver % 1000 / 10),
            cublas: CublasLt::version(),
            git: option_env!("TILEGEMM_GIT").unwrap_or("unknown").into(),
            date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            clocks_mhz: self.monitor.clocks()?,
            power_w: self.monitor.power_limit_w()?,
        })
    }

    /// Measures the whole suite, or the part that the budget and Ctrl-C allow.
    pub fn run(&self, shapes: &[Shape], args: &Args) -> Result<Report> {
        let start = Instant::now();
        let mut left_out = BTreeMap::new();
        let machine = self.machine()?;
        let dtypes: Vec<Format> = shapes.iter().map(Shape::in_products).collect();
        let mut modes: Vec<F32Mode> = shapes.iter().filter_map(|shape| shape.f32).collect();
        modes.sort_unstable();
        modes.dedup();
        let ceilings = self.ceilings(&dtypes, &modes)?;
        let order = match args.budget {
            Some(_) => order::by_information(shapes),
            None => (0..shapes.len()).collect(),
        };
        let progress = progress(shapes.len());
        let mut rows: Vec<(usize, Row)> = Vec::new();
        let first_row = Instant::now();
        for (done, &index) in order.iter().enumerate() {
            let shape = &shapes[index];
            progress.set_message(shape.id.clone());
            let per_row = first_row.elapsed() / done.max(1) as u32;
            let routing = Routing::of_row(shape);
            if STOP.load(Ordering::Relaxed) {
                left_out.insert(shape.id.clone(), "interrupted".into());
            } else if args.budget.is_some_and(|budget| start.elapsed() + per_row > budget) {
                left_out.insert(shape.id.clone(), "no time left in the budget".into());
            } else if let Some(reason) = self.does_not_fit(&self.problem(shape), routing.as_ref(), args.hot)? {
                left_out.insert(shape.id.clone(), reason);
            } else {
                match self.row(shape, routing, args, &ceilings) {
                    Ok(row) => {
                        progress.suspend(|| super::table::print_row(&row))?;
                        rows.push((index, row));
                    }
                    Err(error) => drop(left_out.insert(shape.id.clone(), format!("failed: {error}"))),
                }
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        rows.sort_by_key(|(index, _)| *index);
        let settings = Settings {
            mode: if args.eager {
                "eager"
            } else if args.hot {
                "hot"
            } else {
                "cold"
            }
            .into(),
            samples: args.samples.into(),
            pause: self.timer.pause,
            warm_up: (args.warm_up != WARM_UP).then_some(args.warm_up.as_secs_f64()),
            seconds: start.elapsed().as_secs_f64(),
            f32: dtypes.contains(&Format::F32).then_some(self.f32_mode),
            seed: args.products.seed,
            shares: args.products.shares(),
            classes: args.products.class.clone(),
            tuning: self.dispatcher.tables().used().map(|table| table.name().into()).collect(),
        };
        let rows = rows.into_iter().map(|(_, row)| row).collect();
        Ok(Report { schema: SCHEMA, machine, settings, ceilings, rows, left_out })
    }

    /// The reason why a product cannot be measured, if there is one. Where the pool leaves too little memory, the pool is emptied.
    pub fn does_not_fit(&self, problem: &Problem, routing: Option<&Routing>, hot: bool) -> Result<Option<String>> {
        let free = || -> Result<f64> {
            self.timer.synchronize()?;
            Ok(free_bytes(self.timer.device())? as f64)
        };
        let need = allocation::bytes(&moved(problem, routing), self.dispatcher.device().l2_bytes as usize, hot) as f64;
        let mut free_now = free()?;
        if need > 0.95 * free_now {
            self.pool.clear();
            free_now = free()?;
        }
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        Ok((need > 0.95 * free_now).then(|| format!("needs {:.1} GiB, {:.1} are free", gib(need), gib(free_now))))
    }

    /// The bandwidth of a kernel that only reads, and the best arm at 8192^3 for each type, and for f32 in each of these modes.
    pub fn ceilings(&self, dtypes: &[Format], modes: &[F32Mode]) -> Result<Ceilings> {
        let hbm_gbps = ladder::hbm_gbps(&self.timer)?;
        let (mut tflops, mut f32_tflops) = (BTreeMap::new(), BTreeMap::new());
        for dtype in [Format::BF16, Format::F16, Format::F32, Format::F64] {
            if dtypes.contains(&dtype) {
                tflops.extend(self.ceiling(dtype, self.f32_mode)?.map(|ceiling| (dtype, ceiling)));
            }
        }
        for mode in modes.iter().copied().filter(|mode| *mode != self.f32_mode) {
            f32_tflops.extend(self.ceiling(Format::F32, mode)?.map(|ceiling| (mode, ceiling)));
        }
        Ok(Ceilings { hbm_gbps: digits(hbm_gbps), tflops, f32_tflops })
    }

    /// TFLOP/s of the best arm at 8192^3; `None` where the product does not fit or the run is to stop.
    fn ceiling(&self, dtype: Format, f32_mode: F32Mode) -> Result<Option<f64>> {
        let problem = Problem::dense(8192, 8192, 8192, 1, Layout::NT, dtype).with(|p| p.f32_mode = f32_mode);
        if STOP.load(Ordering::Relaxed) || self.does_not_fit(&problem, None, true)?.is_some() {
            return Ok(None);
        }
        let arms = [Arm::Candle, Arm::CublasLt, Arm::OwnBest];
        let how = How { samples: 11, warm_up: WARM_UP, hot: true, check: false, scale: 1.0, routing: None };
        let measured = self.measure(&problem, &arms, &how)?;
        let best = measured.runs.iter().map(|run| run.samples.median()).fold(f64::INFINITY, f64::min);
        Ok(Some(digits(problem.flops() / best / 1e6)))
    }

    fn row(&self, shape: &Shape, routing: Option<Routing>, args: &Args, ceilings: &Ceilings) -> Result<Row> {
        let problem = self.problem(shape);
        let how = How { routing, ..args.how() };
        let measured = if args.eager {
            eager::measure(&self.timer, &self.dispatcher, &problem, args)?
        } else {
            self.measure(&problem, &args.arms(), &how)?
        };
        let mut flags = measured.flags.clone();
        if args.hot {
            flags.push("hot".into());
        }
        let mut arms = BTreeMap::new();
        for (arm, index) in &measured.arms {
            let run = &measured.runs[*index];
            let Run { kernel, config, samples, us_in_kernels, us_in_program, error } = run;
            if (samples.at(0.9) - samples.at(0.1)) / samples.median() > MOST_SPREAD {
                flags.push(format!("spread {}", arm.name()));
            }
            flags.extend(run.flag(arm, problem.a.format).map(|flag| format!("{flag} {}", arm.name())));
            let [us, us_p10, us_p90] = [0.5, 0.1, 0.9].map(|share| digits(samples.at(share)));
            let err = error.map(|error| digits(error.error));
            let (kernel, config) = (kernel.clone(), *config);
            let [us_in_kernels, us_in_program] = [us_in_kernels, us_in_program].map(|us| us.map(digits));
            let arm_of = report::Arm { us, us_p10, us_p90, us_in_kernels, us_in_program, kernel, config, err };
            arms.insert(arm.name().into(), arm_of);
        }
        let Problem { m, n, k, .. } = problem;
        Ok(Row {
            id: shape.id.clone(),
            class: shape.class.clone(),
            m,
            n,
            k,
            batch: problem.batch_count(),
            layout: shape.layout,
            dtype: problem.a.format,
            b: shape.b,
            scale: shape.scale,
            zeros: shape.zeros,
            fast: shape.fast,
            out: shape.out,
            a_batch_stride: shape.a_batch_stride,
            b_batch_stride: shape.b_batch_stride,
            a_stride: shape.a_stride,
            b_stride: shape.b_stride,
            a_offset: shape.a_offset,
            b_offset: shape.b_offset,
            d_offset: shape.d_offset,
            f32: shape.f32,
            epilogue: shape.epilogue,
            groups: shape.groups,
            experts_hit: how.routing.as_ref().map(Routing::hit),
            largest_group: how.routing.as_ref().map(Routing::largest),
            roof_us: digits(ceilings.roof_us(&moved(&problem, how.routing.as_ref()))),
            arms,
            absent: measured.absent,
            lost_calls: measured.lost_calls.map(digits),
            flags,
            card: measured.card,
        })
    }

    /// The resolver of arms for a product of these operands.
    pub fn resolver<'a>(&'a self, problem: &'a Problem, operands: &'a Operands) -> Resolver<'a> {
        let Self { timer, dispatcher, untuned, lt, .. } = self;
        Resolver { timer, dispatcher, untuned, lt, problem, operands }
    }

    /// Resolves the arms, checks their results and times them in turns, on new operands.
    pub fn measure(&self, problem: &Problem, arms: &[Arm], how: &How) -> Result<Measured> {
        let l2_bytes = self.dispatcher.device().l2_bytes as usize;
        let routing = how.routing.as_ref();
        let operands = Operands::new(&self.timer, &self.pool, problem, l2_bytes, how.hot, how.scale, routing)?;
        let problems: Vec<Problem> = arms.iter().map(|arm| arm.problem(problem)).collect();
        let mut measured = Measured::default();
        if arms.contains(&Arm::Learned) {
            let learned = learning::learn(&self.timer, problem, &operands)?;
            measured.lost_calls = Some(learned.lost_calls);
            measured.flags.extend(learned.is_cut.then(|| "unsettled learned".into()));
        }
        let mut runners: Vec<(Runner, Captured, &Problem)> = Vec::new();
        for (arm, problem) in arms.iter().zip(&problems).filter(|(arm, _)| !arm.is_group()) {
            let resolved = self.resolver(problem, &operands).resolve(arm).and_then(|runner| {
                // Arms with the same launches share one time, except `Again`, which is a second measurement on purpose.
                let same = runners.iter().position(|(other, ..)| runner.is_same(other) && *arm != Arm::Again);
                match same {
                    Some(index) => Ok(index),
                    None => {
                        let captured = runner.capture(&self.timer, &operands)?;
                        runners.push((runner, captured, problem));
                        Ok(runners.len() - 1)
                    }
                }
            });
            match resolved {
                Ok(index) => measured.arms.push((arm.clone(), index)),
                Err(error) => drop(measured.absent.insert(arm.name().into(), error.to_string())),
            }
        }
        // First times of arms that get no others.
        let mut brief: Vec<f64> = Vec::new();
        if let Some(group) = arms.iter().find(|arm| arm.is_group()) {
            let resolver = self.resolver(problem, &operands);
            let glances = if *group == Arm::Every { resolver.every()? } else { resolver.contenders()? };
            let best = glances.first().map_or(f64::INFINITY, |(us, ..)| *us);
            for (us, runner, captured) in glances {
                let Some(arm) = runner.arm() else { continue };
                let same = runners.iter().position(|(other, ..)| runner.is_same(other));
                measured.arms.push((arm, same.unwrap_or(runners.len())));
                if same.is_none() {
                    brief.extend((us > BRIEF * best).then_some(us));
                    runners.push((runner, captured, problem));
                }
            }
        }
        if runners.is_empty() {
            return Err(format!("no arm runs it: {:?}", measured.absent).into());
        }
        let is_eager = |index: &usize| runners[*index].1.is_eager();
        let eager = measured.arms.iter().filter(|(_, index)| is_eager(index)).map(|(arm, _)| arm.name());
        measured.flags.extend(eager.map(|name| format!("eager {name}")).collect::<Vec<_>>());
        let errors = match how.check {
            true => self.check(problem, &operands, &runners)?,
            false => vec![None; runners.len()],
        };
        // Glances come sorted, so that the brief ones are the last.
        let in_turns = runners.len() - brief.len();
        let captured: Vec<&Captured> = runners[..in_turns].iter().map(|(_, captured, _)| captured).collect();
        let warm_up = how.warm_up * WARM_ARMS.min(captured.len() as u32);
        let _ = self.timer.interleave(&captured, warm_up, 0)?;
        let before = self.card_at_work(captured[0])?;
        let mut times = self.timer.interleave(&captured, Duration::ZERO, how.samples)?;
        times.extend(brief.into_iter().map(Samples::once));
        let mut in_program: Vec<Option<f64>> = vec![None; runners.len()];
        if arms.contains(&Arm::Learned) {
            in_program = self.in_programs(problem, &operands, &runners[..in_turns])?;
            in_program.resize(runners.len(), None);
        }
        let after = self.card_at_work(captured[0])?;
        if f64::from(after.sm_mhz) < f64::from(before.sm_mhz) * (1.0 - MOST_CLOCK_LOSS) {
            measured.flags.push("clocks".into());
        }
        measured.card = vec![before, after];
        for (index, ((runner, captured, _), samples)) in runners.iter().zip(times).enumerate() {
            let us_in_kernels = captured.is_eager().then(|| captured.time_in_kernels(&self.timer)).transpose();
            let us_in_kernels = us_in_kernels.unwrap_or_else(|error| {
                measured.flags.push(format!("no time of kernels: {error}"));
                None
            });
            let (us_in_program, error) = (in_program[index], errors[index]);
            let (kernel, config) = (runner.kernel(), runner.config());
            measured.runs.push(Run { kernel, config, samples, us_in_kernels, us_in_program, error });
        }
        Ok(measured)
    }

    /// Microseconds of each runner in a program that calls nothing else.
    fn in_programs(
        &self,
        problem: &Problem,
        operands: &Operands,
        runners: &[(Runner, Captured, &Problem)],
    ) -> Result<Vec<Option<f64>>> {
        let launches: Vec<Box<dyn Fn(usize) -> Result + '_>> = runners
            .iter()
            .map(|(runner, ..)| -> Box<dyn Fn(usize) -> Result + '_> {
                Box::new(|call| {
                    let copy = call % operands.copies();
                    // SAFETY: the operands are the problem's, and outlive the launch.
                    unsafe { runner.launch(&self.timer, copy, operands.pointers(copy)?) }
                })
            })
            .collect();
        Ok(learning::programs(&self.timer, problem, &launches)?.into_iter().map(Some).collect())
    }

    /// The error of each runner's graph, and the error that rounding explains.
    fn check(
        &self,
        problem: &Problem,
        operands: &Operands,
        runners: &[(Runner, Captured, &Problem)],
    ) -> Result<Vec<Option<Error>>> {
        let reference = Reference::new(&self.timer, &self.dispatcher, problem, operands)?;
        let judge = |(runner, captured, problem): &(Runner, Captured, &Problem)| {
            operands.poison(&self.timer)?;
            captured.replay(&self.timer)?;
            Ok(Some(Error { error: reference.error_of(&runner.result(operands)?)?, tolerance: tolerance(problem) }))
        };
        runners.iter().map(judge).collect()
    }

    /// NVML's readings while a graph runs.
    fn card_at_work(&self, arm: &Captured) -> Result<report::Card> {
        arm.launch_for(&self.timer, Duration::from_millis(5))?;
        let card = self.monitor.now()?;
        self.timer.synchronize()?;
        Ok(card)
    }
}

impl Args {
    /// The method of measuring a row.
    fn how(&self) -> How {
        let scale = if self.plant == Some(Plant::Zeros) { 0.0 } else { 1.0 };
        let (samples, warm_up, check) = (self.samples.into(), self.warm_up, !self.no_check);
        How { samples, warm_up, hot: self.hot, check, scale, routing: None }
    }
}

/// The problem with the number of experts that have rows in the routing, for memory and the roofline.
fn moved(problem: &Problem, routing: Option<&Routing>) -> Problem {
    routing.map_or(*problem, |routing| routing.of(problem))
}

impl Ceilings {
    /// The least time by the measured ceilings.
    fn roof_us(&self, problem: &Problem) -> f64 {
        let memory = problem.bytes() / (self.hbm_gbps * 1e3);
        let of_mode = self.f32_tflops.get(&problem.f32_mode).filter(|_| problem.is_f32());
        let tflops = of_mode.or(self.tflops.get(&problem.a.format.in_products_with(problem.b.format)));
        let arithmetic = tflops.map_or(0.0, |tflops| problem.flops() / (tflops * 1e6));
        memory.max(arithmetic)
    }
}

/// A progress bar on stderr.
pub fn progress(rows: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed} elapsed, {eta} to go  {msg}");
    let progress = ProgressBar::with_draw_target(Some(rows as u64), ProgressDrawTarget::stderr());
    progress.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
