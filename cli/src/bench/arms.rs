//! Arms, measured side by side: their names, and the launches of each arm for a row.

mod sets;

use super::gguf::{CandlesProduct, Dense};
use super::grouped::{CandlesKernel, Loop};
use super::learning;
use super::lt::{CublasLt, LtProblem, Reduction};
use super::operands::Operands;
use super::timing::{Captured, Timer};
use crate::Result;
use candle::Tensor;
use candle_tilegemm::dispatch::{Dispatcher, Planned, Policy};
use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::launch::{self, Pointers, VendorCall};
use candle_tilegemm::{workspace, Config, F32Mode, Format, Problem};
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use sets::{DEFAULT, EXPERTS, GGUF, GGUF_EXPERTS, NARROW, NARROW_EXPERTS, RANDOM};

/// Sets the mode of arms that are calls of candle, including stock.
pub fn set_mode(mode: F32Mode) {
    candle_tilegemm::set_f32_mode(mode);
    candle::cuda_backend::set_gemm_reduced_precision_f32(mode == F32Mode::Tf32);
}

/// One arm.
#[derive(Clone, Debug, PartialEq)]
pub enum Arm {
    /// The dispatcher's choice.
    Ours,
    /// The dispatcher's choice without measured tables.
    OursUntuned,
    /// The choice of a program that has learned this product ([`learning`](super::learning)).
    Learned,
    /// The dispatcher's choice in batch-invariant mode.
    Invariant,
    /// The dispatcher's choice with the vendor library off.
    Own,
    /// The fastest of our rows, found by timing the rows.
    OwnBest,
    /// `cublasGemmStridedBatchedEx` as candle calls it; for a product in groups and for quantised weights, candle's own kernels.
    Candle,
    /// A product of cuBLAS for each expert that has rows.
    CublasLoop,
    /// The dispatcher's choice for quantised or narrow weights that were written in bf16 before, and activations in bf16.
    Bf16,
    /// `Own` in this f32 mode, whatever the run's mode is.
    OwnIn(F32Mode),
    /// `Candle` in this f32 mode: TF32 for `Tf32`, else SGEMM.
    CandleIn(F32Mode),
    /// The fastest algorithm of cuBLASLt's heuristic, with partial sums in f32.
    CublasLt,
    /// The same, with partial sums in the type of the result permitted too.
    CublasLtAny,
    /// cuBLASLt's own first choice.
    CublasLtTop1,
    /// A kernel of the table, in this configuration or in its family's choice.
    Kernel(&'static KernelDesc, Option<Config>),
    /// Every kernel of ours that can run the row, and the vendor's call as we make it, each as an arm of its own.
    Every,
    /// Kernels and configurations of ours whose estimates are near the lowest, a few others, and the vendor's call as we make it, each as an
    /// arm of its own.
    Contenders,
    /// The same as `Ours`, entered a second time.
    Again,
    /// A kernel that skips its last K tile, to test that the check finds the error.
    Planted,
}

impl std::str::FromStr for Arm {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Ok(match name {
            "ours" => Arm::Ours,
            "ours-untuned" => Arm::OursUntuned,
            "ours-invariant" => Arm::Invariant,
            "learned" => Arm::Learned,
            "every" => Arm::Every,
            "contenders" => Arm::Contenders,
            "own" => Arm::Own,
            "own-best" => Arm::OwnBest,
            "candle" => Arm::Candle,
            "cublas-loop" => Arm::CublasLoop,
            "bf16" => Arm::Bf16,
            "cublaslt" => Arm::CublasLt,
            "cublaslt-any" => Arm::CublasLtAny,
            "cublaslt-top1" => Arm::CublasLtTop1,
            "own-accurate" => Arm::OwnIn(F32Mode::Accurate),
            "own-strict" => Arm::OwnIn(F32Mode::Strict),
            "own-tf32" => Arm::OwnIn(F32Mode::Tf32),
            "candle-strict" => Arm::CandleIn(F32Mode::Strict),
            "candle-tf32" => Arm::CandleIn(F32Mode::Tf32),
            name => {
                let (kernel, config) = name.split_once('@').map_or((name, None), |(name, config)| (name, Some(config)));
                let kernel = family::by_name(kernel).ok_or_else(|| {
                    format!(
                        "no arm or kernel is named '{kernel}'; expected {}, ours-untuned, ours-invariant, learned, cublas-loop, bf16, every, contenders, or a \
                         name from `tilegemm kernels`",
                        DEFAULT.join(", ")
                    )
                })?;
                Arm::Kernel(kernel, config.map(str::parse).transpose()?)
            }
        })
    }
}

impl Arm {
    pub fn name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Arm::Ours => "ours",
            Arm::OursUntuned => "ours-untuned",
            Arm::Invariant => "ours-invariant",
            Arm::Learned => "learned",
            Arm::Every => "every",
            Arm::Contenders => "contenders",
            Arm::Own => "own",
            Arm::OwnBest => "own-best",
            Arm::Candle => "candle",
            Arm::CublasLoop => "cublas-loop",
            Arm::Bf16 => "bf16",
            Arm::CublasLt => "cublaslt",
            Arm::CublasLtAny => "cublaslt-any",
            Arm::CublasLtTop1 => "cublaslt-top1",
            Arm::OwnIn(mode) => return Cow::Owned(format!("own-{mode}")),
            Arm::CandleIn(F32Mode::Tf32) => "candle-tf32",
            Arm::CandleIn(_) => "candle-strict",
            Arm::Kernel(kernel, None) => kernel.name,
            Arm::Kernel(kernel, Some(config)) => return Cow::Owned(format!("{kernel}@{config}")),
            Arm::Again => "again",
            Arm::Planted => "planted",
        })
    }

    /// Whether the arm stands for arms of other names.
    pub fn is_group(&self) -> bool {
        matches!(self, Arm::Every | Arm::Contenders)
    }

    /// Whether the arm may add partial sums of these operands in 16 bits, as stock candle lets cuBLAS do.
    pub fn may_add_in_16_bits(&self, dtype: Format) -> bool {
        dtype.bytes(1) == 2 && matches!(self, Arm::Candle | Arm::CandleIn(_) | Arm::CublasLtAny)
    }

    /// The arm's problem: the row, in the f32 mode of the arm if the arm has a mode.
    pub fn problem(&self, row: &Problem) -> Problem {
        match *self {
            Arm::OwnIn(f32_mode) | Arm::CandleIn(f32_mode) => (*row).with(|p| p.f32_mode = f32_mode),
            _ => *row,
        }
    }
}

/// A launchable computation of the row.
#[derive(Clone)]
pub enum Runner<'a> {
    Plan(Arc<Planned>),
    Vendor(VendorCall),
    Lt(Rc<LtProblem<'a>>, usize),
    Experts(Rc<CandlesKernel>),
    Loop(Rc<Loop>),
    Quantized(Rc<CandlesProduct>),
    Dense(Rc<Dense>),
}

impl Runner<'_> {
    /// The kernel's name, for the record.
    pub fn kernel(&self) -> String {
        match self {
            Runner::Plan(plan) => plan.name(),
            Runner::Vendor(_) => "cublasGemmStridedBatchedEx".into(),
            Runner::Lt(problem, index) => problem.name(*index),
            Runner::Experts(kernel) => kernel.name().into(),
            Runner::Loop(_) => "cublasGemmStridedBatchedEx for each expert".into(),
            Runner::Quantized(product) => product.kernel().into(),
            Runner::Dense(product) => product.kernel(),
        }
    }

    /// The plan, where the dispatcher planned the launch.
    fn plan(&self) -> Option<Arc<Planned>> {
        match self {
            Runner::Plan(plan) => Some(plan.clone()),
            _ => None,
        }
    }

    /// The kernel that waits for the GPU within its call.
    fn waits(&self) -> Option<&Rc<CandlesKernel>> {
        match self {
            Runner::Experts(kernel) if kernel.is_prefill => Some(kernel),
            _ => None,
        }
    }

    /// The arm of a planned kernel by name and configuration.
    pub fn arm(&self) -> Option<Arm> {
        let Runner::Plan(plan) = self else { return None };
        if plan.packing.is_some() {
            return None;
        }
        Some(Arm::Kernel(plan.kernel, Some(plan.config).filter(|config| !config.is_default())))
    }

    /// The kernel's configuration; all zeros where the kernel has none.
    pub fn config(&self) -> Config {
        match self {
            Runner::Plan(plan) => plan.config,
            _ => Config::default(),
        }
    }

    /// Whether both runners launch the same kernel with the same arguments, so that both share one time.
    pub fn is_same(&self, other: &Runner) -> bool {
        let vendor = |runner: &Runner| match runner {
            Runner::Plan(plan) if plan.kernel.role == Role::Vendor && plan.packing.is_none() => {
                VendorCall::of(&plan.canonical.problem).ok()
            }
            Runner::Vendor(call) => Some(*call),
            _ => None,
        };
        match (self, other) {
            (Runner::Lt(x, i), Runner::Lt(y, j)) => x.algorithms[*i].algo == y.algorithms[*j].algo,
            (Runner::Plan(x), Runner::Plan(y)) => {
                std::ptr::eq(x.kernel, y.kernel)
                    && (x.config, x.packing, x.canonical) == (y.config, y.packing, y.canonical)
            }
            _ => vendor(self).is_some() && vendor(self) == vendor(other),
        }
    }

    /// # Safety
    /// As for [`launch::launch`]; `pointers` are those of this copy of the operands.
    pub unsafe fn launch(&self, timer: &Timer, copy: usize, pointers: Pointers) -> Result {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            match self {
                Runner::Plan(plan) => launch::launch(plan, pointers, timer.queue())?,
                Runner::Vendor(call) => call.run(pointers, timer.queue().cublas)?,
                Runner::Lt(problem, index) => problem.launch(*index, pointers)?,
                Runner::Experts(kernel) => kernel.launch(copy, pointers, timer.queue().stream)?,
                Runner::Loop(products) => products.launch(copy, pointers, timer)?,
                Runner::Quantized(product) => product.launch(pointers, timer.queue())?,
                Runner::Dense(product) => product.launch(copy, pointers, timer.queue())?,
            }
        }
        Ok(())
    }

    /// Computes the product of the first copy of the operands, and waits for the result.
    pub fn run(&self, timer: &Timer, operands: &Operands) -> Result {
        // SAFETY: the operands are the problem's, and outlive the launch.
        unsafe { self.launch(timer, 0, operands.pointers(0)?)? };
        timer.synchronize()
    }

    /// D of the first copy of the operands after a launch, as a flat tensor. The loop leaves rows in the order of the list, without factors.
    pub fn result(&self, operands: &Operands) -> Result<Tensor> {
        let d = operands.first()[2];
        match self {
            Runner::Loop(_) => operands.lists()?.in_order_of_pairs(d),
            _ => Ok(d.clone()),
        }
    }

    /// The runner's launches over all copies of the operands, as a graph where a graph can hold them.
    pub fn capture(&self, timer: &Timer, operands: &Operands) -> Result<Captured> {
        if let Some(kernel) = self.waits() {
            let pointers = (0..operands.copies()).map(|copy| operands.pointers(copy)).collect::<Result<Vec<_>>>()?;
            let (kernel, stream) = (kernel.clone(), timer.queue().stream);
            // SAFETY: the operands are the problem's, and outlive the calls.
            let call = move |copy| unsafe { kernel.launch(copy, pointers[copy % pointers.len()], stream) };
            return timer.calls(operands.copies(), call);
        }
        timer.capture(operands.copies(), |copy| {
            // SAFETY: the operands are the problem's, and outlive the graph.
            unsafe { self.launch(timer, copy, operands.pointers(copy)?) }
        })
    }
}

/// A candidate's first time in microseconds, and its launches.
pub type Glance<'a> = (f64, Runner<'a>, Captured);

/// The number of kernels that `own-best` and `every` also try in configurations other than the family's choice.
const SWEPT: usize = 2;

/// `contenders`: the most plans near the lowest estimate, the bound of their estimates over the lowest, the most further plans, and the bound of those.
const NEAR: usize = 12;
const NEAR_RATIO: f64 = 1.5;
const FAR: usize = 3;
const FAR_RATIO: f64 = 3.0;

/// Resolves arms to their launches for one row.
pub struct Resolver<'a> {
    pub timer: &'a Timer,
    pub dispatcher: &'a Dispatcher,
    /// The same dispatcher without measured tables.
    pub untuned: &'a Dispatcher,
    pub lt: &'a CublasLt,
    /// The arm's problem ([`Arm::problem`]).
    pub problem: &'a Problem,
    pub operands: &'a Operands,
}

impl<'a> Resolver<'a> {
    /// The launches of `arm`, or the reason why the row has no such arm.
    pub fn resolve(&self, arm: &Arm) -> Result<Runner<'a>> {
        let plan = |policy| Ok(Runner::Plan(self.plan(self.problem, policy)?));
        let (in_groups, of_blocks) = (self.problem.groups.is_some(), self.problem.b.format.is_gguf_block());
        let is_narrow = self.problem.b.format.is_narrow();
        match arm {
            Arm::Ours | Arm::Again => plan(Policy::default()),
            Arm::OursUntuned => {
                let policy = Policy::default().with_workspace(workspace::bytes()?);
                Ok(Runner::Plan(self.untuned.plan(self.problem, policy)?))
            }
            Arm::Every | Arm::Contenders => Err("stands for arms of other names".into()),
            Arm::Learned => Ok(Runner::Plan(learning::plan(self.problem)?)),
            Arm::Invariant => plan(Policy::default().with_batch_invariance(true)),
            Arm::Own | Arm::OwnIn(_) => plan(Policy::own()),
            Arm::Kernel(..) => plan(Policy::force(&arm.name())?),
            Arm::OwnBest => self.own_best(),
            Arm::Candle if in_groups => Ok(Runner::Experts(Rc::new(CandlesKernel::new(self.problem, self.operands)?))),
            Arm::CandleIn(_) | Arm::CublasLt | Arm::CublasLtAny | Arm::CublasLtTop1 if in_groups => {
                Err("cuBLAS and cuBLASLt have no product in groups of rows".into())
            }
            Arm::Candle if of_blocks => {
                Ok(Runner::Quantized(Rc::new(CandlesProduct::new(self.problem, self.timer.device())?)))
            }
            Arm::CandleIn(_) | Arm::CublasLt | Arm::CublasLtAny | Arm::CublasLtTop1 if of_blocks => {
                Err("cuBLAS and cuBLASLt have no product with quantised weights".into())
            }
            Arm::Candle | Arm::CandleIn(_) if is_narrow => Err("candle has no product with narrow weights".into()),
            Arm::CublasLt | Arm::CublasLtAny | Arm::CublasLtTop1
                if is_narrow && self.problem.a.format != Format::F8E4M3 =>
            {
                Err("of narrow operands cuBLASLt has products of fp8 by fp8".into())
            }
            Arm::Bf16 if of_blocks && in_groups => Err("experts with weights in blocks have no arm in bf16".into()),
            Arm::Bf16 if of_blocks || is_narrow => self.dense(),
            Arm::Bf16 => Err("B has neither blocks nor codes".into()),
            Arm::CublasLoop => Ok(Runner::Loop(Rc::new(Loop::new(self.problem, self.operands)?))),
            Arm::Candle | Arm::CandleIn(_) if !self.problem.epilogue.is_linear() => {
                Err("candle's further kernels cannot be captured in a graph; --eager times them".into())
            }
            Arm::Candle | Arm::CandleIn(_) if self.problem.d.format != self.problem.a.format => {
                Err("candle has no matmul with a result in another type".into())
            }
            Arm::Candle | Arm::CandleIn(_) => Ok(Runner::Vendor(VendorCall::by_candle(self.problem)?)),
            Arm::CublasLt => self.lt_best(Reduction::F32),
            Arm::CublasLtAny => self.lt_best(Reduction::Any),
            Arm::CublasLtTop1 => {
                let problem = self.lt.problem(self.problem, self.operands, Reduction::F32)?;
                Ok(Runner::Lt(Rc::new(problem), 0))
            }
            Arm::Planted => self.planted(),
        }
    }

    /// Plans with the workspace of the session's stream, so that the plan runs as planned.
    fn plan(&self, problem: &Problem, policy: Policy) -> Result<Arc<Planned>> {
        Ok(self.dispatcher.plan(problem, policy.with_workspace(workspace::bytes()?))?)
    }

    /// The product on weights in bf16.
    fn dense(&self) -> Result<Runner<'a>> {
        let plan = self.plan(&Dense::problem(self.problem), Policy::default())?;
        let l2_bytes = self.dispatcher.device().l2_bytes as usize;
        Ok(Runner::Dense(Rc::new(Dense::new(self.problem, self.operands, l2_bytes, plan)?)))
    }

    fn own_best(&self) -> Result<Runner<'a>> {
        match self.own_glances()? {
            glances if glances.is_empty() => Err("no kernel of ours but the reference supports it".into()),
            glances => self.fastest_of(glances),
        }
    }

    /// Every kernel of ours, the fastest of them in further configurations, and the vendor's call: the fastest first.
    pub fn every(&self) -> Result<Vec<Glance<'a>>> {
        self.with_vendors(self.own_glances()?)
    }

    /// The kernels and configurations of ours with the lowest estimates, some with higher ones, and the vendor's call: the fastest first.
    pub fn contenders(&self) -> Result<Vec<Glance<'a>>> {
        let mut plans: Vec<Arc<Planned>> = Vec::new();
        for runner in self.forced(Role::Kernel) {
            plans.extend(self.configurations(&runner));
            plans.extend(runner.plan());
        }
        plans.sort_by(|x, y| x.estimate_us.total_cmp(&y.estimate_us));
        let least = plans.first().map_or(f64::INFINITY, |plan| plan.estimate_us);
        let near = plans.iter().take(NEAR).filter(|plan| plan.estimate_us < NEAR_RATIO * least).count();
        let far = plans.split_off(near);
        let last = far.partition_point(|plan| plan.estimate_us < FAR_RATIO * least);
        // Some at even distances, another first one for each product.
        let step = last.div_ceil(FAR).max(1);
        let first =
            self.problem.m.wrapping_mul(31).wrapping_add(self.problem.n).wrapping_add(self.problem.k / 8) % step;
        plans.extend(far[..last].iter().skip(first).step_by(step).cloned());
        self.with_vendors(self.glance(plans.into_iter().map(Runner::Plan).collect())?)
    }

    /// The same with the vendor's call: the fastest first.
    fn with_vendors(&self, mut glances: Vec<Glance<'a>>) -> Result<Vec<Glance<'a>>> {
        glances.extend(self.glance(self.forced(Role::Vendor))?);
        glances.sort_by(|x, y| x.0.total_cmp(&y.0));
        Ok(glances)
    }

    /// The kernels of this role that can run the row, each in its family's choice.
    fn forced(&self, role: Role) -> Vec<Runner<'a>> {
        let plan = |kernel: &KernelDesc| self.plan(self.problem, Policy::force(kernel.name).ok()?).ok();
        KERNELS.iter().filter(|kernel| kernel.role == role).filter_map(plan).map(Runner::Plan).collect()
    }

    fn own_glances(&self) -> Result<Vec<Glance<'a>>> {
        let mut glances = self.glance(self.forced(Role::Kernel))?;
        let others = glances.iter().take(SWEPT).flat_map(|(_, runner, _)| self.other_configurations(runner));
        let others = others.collect();
        glances.extend(self.glance(others)?);
        Ok(glances)
    }

    /// A kernel in the most promising configurations other than its family's choice.
    fn other_configurations(&self, runner: &Runner) -> Vec<Runner<'a>> {
        const MOST: usize = 8;
        let mut plans = self.configurations(runner);
        plans.sort_by(|x, y| x.estimate_us.total_cmp(&y.estimate_us));
        plans.truncate(MOST);
        plans.into_iter().map(Runner::Plan).collect()
    }

    /// A kernel in its configurations other than its family's choice.
    fn configurations(&self, runner: &Runner) -> Vec<Arc<Planned>> {
        let Some(chosen) = runner.plan() else { return Vec::new() };
        let legal = chosen.kernel.configurations(&chosen.canonical.problem, self.dispatcher.device());
        let legal = legal.into_iter().filter(|config| *config != chosen.config);
        let plan = |config| self.plan(self.problem, Policy::force(&format!("{}@{config}", chosen.kernel)).ok()?).ok();
        legal.filter_map(plan).collect()
    }

    fn lt_best(&self, reduction: Reduction) -> Result<Runner<'a>> {
        let problem = Rc::new(self.lt.problem(self.problem, self.operands, reduction)?);
        let candidates = (0..problem.algorithms.len()).map(|index| Runner::Lt(problem.clone(), index)).collect();
        self.fastest_of(self.glance(candidates)?)
    }

    /// A time of each candidate that runs, in microseconds, the fastest first.
    fn glance(&self, candidates: Vec<Runner<'a>>) -> Result<Vec<Glance<'a>>> {
        let mut glances = Vec::new();
        let mut best = f64::INFINITY;
        for runner in candidates {
            // An algorithm that the heuristic offers may still refuse to run.
            let Ok(captured) = runner.capture(self.timer, self.operands) else { continue };
            let mut us = captured.replay(self.timer)?;
            if us < 1.3 * best {
                us = us.min(self.timer.sample(&captured)?);
            }
            best = best.min(us);
            glances.push((us, runner, captured));
        }
        glances.sort_by(|x: &Glance, y| x.0.total_cmp(&y.0));
        Ok(glances)
    }

    /// The fastest, by longer measurements of the best few in turns.
    fn fastest_of(&self, mut glances: Vec<Glance<'a>>) -> Result<Runner<'a>> {
        const FINALISTS: usize = 4;
        const ROUNDS: usize = 9;
        glances.sort_by(|x, y| x.0.total_cmp(&y.0));
        let best = glances.first().map_or(f64::INFINITY, |(us, ..)| *us);
        glances.truncate(FINALISTS);
        glances.retain(|(us, ..)| *us < 1.2 * best);
        let finalists: Vec<&Captured> = glances.iter().map(|(_, _, captured)| captured).collect();
        let rounds = if finalists.len() > 1 { ROUNDS } else { 0 };
        let samples = self.timer.interleave(&finalists, Duration::ZERO, rounds)?;
        let medians = samples.iter().map(|samples| samples.median());
        let best = medians.zip(glances).min_by(|x, y| x.0.total_cmp(&y.0));
        Ok(best.ok_or("none of the candidates runs")?.1 .1)
    }

    /// The dispatcher's own choice for the sum without its last K tile.
    fn planted(&self) -> Result<Runner<'a>> {
        let whole = self.plan(self.problem, Policy::own())?;
        let tile = whole.kernel.tile[2].max(1) as usize;
        if self.problem.k <= tile {
            return Err("K is a single tile".into());
        }
        let short = (*self.problem).with(|p| p.k = self.problem.k - tile);
        Ok(Runner::Plan(self.plan(&short, Policy::force(whole.kernel.name)?)?))
    }
}
