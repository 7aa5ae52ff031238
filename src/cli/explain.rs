//! `tilegemm explain`: the kernel that a product gets, and the reasons against the other kernels. Needs no GPU.

use crate::arch::DeviceInfo;
use crate::cli::{Failure, Result};
use crate::dispatch::{Dispatcher, Explanation, Policy};
use crate::kernel::Fusion;
use crate::problem::{BiasAxis, Gate, Groups};
use crate::{cost, workspace, Activation, Format, Layout, Problem};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{json, Value};
use std::fmt;
use std::str::FromStr;

#[derive(clap::Args)]
pub struct Args {
    /// Rows of the result
    #[arg(value_parser = size())]
    m: u32,
    /// Columns of the result
    #[arg(value_parser = size())]
    n: u32,
    /// Length of the sums
    #[arg(value_parser = size())]
    k: u32,
    /// Matrices in the batch
    #[arg(long, default_value_t = 1, value_parser = size())]
    batch: u32,
    /// The product of a mixture of experts: M tokens, each with the matrices B of several of so many experts (nt only)
    #[arg(long, value_name = "EXPERTS", value_parser = size(), conflicts_with_all = ["batch", "broadcast"])]
    experts: Option<u32>,
    /// Experts of a token
    #[arg(long, default_value_t = 1, value_name = "EXPERTS", value_parser = size(), requires = "experts")]
    top_k: u32,
    /// Layout: nn is a[M,K] @ b[K,N]; nt is x[M,K] @ w[N,K]^T, the product of a Linear layer
    #[arg(long, default_value = "nt", value_parser = one_of::<Layout>(["nn", "nt", "tn", "tt"]))]
    layout: Layout,
    /// Element type of the operands, and of the result without --out
    #[arg(long, default_value = "bf16", value_parser = operands())]
    dtype: Format,
    /// Format of B, where B has another format: blocks of a GGUF file, along K (nt only)
    #[arg(long, value_name = "FORMAT", value_parser = blocks())]
    b: Option<Format>,
    /// Element type of the result; f32 for f16 and bf16 operands, bf16 or f32 for f8e4m3
    #[arg(long, value_parser = one_of::<Format>(["f16", "bf16", "f32", "f64"]))]
    out: Option<Format>,
    #[command(flatten)]
    f32: crate::cli::F32,
    /// The GPU of the plan; `this` is the first GPU of this machine
    #[arg(long, default_value = "h100", value_parser = devices())]
    device: String,
    /// One matrix B for the whole batch
    #[arg(long)]
    broadcast: bool,
    /// Add one value per column
    #[arg(long)]
    bias: bool,
    /// Apply a function to the biased product
    #[arg(long, default_value = "identity", value_parser = activations())]
    activation: Activation,
    /// Exclude the vendor library
    #[arg(long, conflicts_with = "force")]
    own: bool,
    /// A gated product, with the activation on the gates: D has N / 2 columns
    #[arg(long, value_parser = gates())]
    gate: Option<Gate>,
    /// Force this kernel
    #[arg(long, value_name = "KERNEL", value_parser = |name: &str| Policy::force(name))]
    force: Option<Policy>,
    /// Take kernels whose rows do not depend on the number of rows, as TILEGEMM_BATCH_INVARIANT=on does
    #[arg(long, conflicts_with = "force")]
    batch_invariant: bool,
    /// Consider the kernels of this build only, instead of the whole table
    #[arg(long)]
    built: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The names of cards, and `this`.
fn devices() -> PossibleValuesParser {
    PossibleValuesParser::new(DeviceInfo::names().chain(["this"]))
}

const ACTIVATIONS: [(&str, Activation); 5] = [
    ("identity", Activation::Identity),
    ("relu", Activation::Relu),
    ("gelu-erf", Activation::GeluErf),
    ("gelu-tanh", Activation::GeluTanh),
    ("silu", Activation::Silu),
];

fn activations() -> impl TypedValueParser<Value = Activation> {
    let named = |name: String| ACTIVATIONS.into_iter().find(|(known, _)| *known == name);
    PossibleValuesParser::new(ACTIVATIONS.map(|(name, _)| name))
        .map(move |name| named(name).map_or(Activation::Identity, |(_, activation)| activation))
}

fn gates() -> impl TypedValueParser<Value = Gate> {
    PossibleValuesParser::new(["halves", "interleaved"]).map(|name| {
        if name == "halves" {
            Gate::Halves
        } else {
            Gate::Interleaved
        }
    })
}

/// Parses one of these names; the error lists the names.
pub fn one_of<T>(names: [&'static str; 4]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

/// The formats of A and B that kernels take.
fn operands() -> impl TypedValueParser<Value = Format> {
    const FORMATS: [Format; 5] = [Format::F16, Format::BF16, Format::F32, Format::F64, Format::F8E4M3];
    PossibleValuesParser::new(FORMATS.map(Format::name))
        .try_map(|name| FORMATS.into_iter().find(|format| format.name() == name).ok_or("no format of a kernel"))
}

/// The block formats of B.
fn blocks() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::blocks().map(Format::name))
        .try_map(|name| Format::blocks().find(|format| format.name() == name).ok_or("no block format"))
}

/// A size that every kernel interface can express.
fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(i32::MAX))
}

pub fn run(args: &Args) -> Result {
    let device = device(&args.device)?;
    let problem = args.problem()?;
    if problem.bytes() > device.memory_bytes as f64 {
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let (need, have) = (gib(problem.bytes()), gib(device.memory_bytes as f64));
        return Err(Failure::Usage(format!("{problem} takes {need:.0} GiB, but {} has {have:.0}", device.name)));
    }
    let policy = args.force.unwrap_or(if args.own { Policy::own() } else { Policy::default() });
    let policy = policy.with_batch_invariance(args.batch_invariant).with_workspace(workspace::bytes()?);
    let dispatcher = if args.built { Dispatcher::new(device) } else { Dispatcher::hypothetical(device) };
    let dispatcher = dispatcher.with_user_tuning()?;
    for complaint in dispatcher.complaints() {
        eprintln!("warning: {complaint}");
    }
    let split = Split::of(&problem, &dispatcher, policy);
    let explanation = dispatcher.explain(&split.problem, policy);
    if args.json {
        crate::cli::print_json(&as_json(&explanation, &split))?;
    } else {
        crate::cli::print(explanation.to_string().trim_end())?;
        if split.passes > 0 {
            crate::cli::print(format_args!("\n{split}"))?;
        }
    }
    // The explanation's failure, as the error that a program gets.
    dispatcher.plan(&split.problem, policy)?;
    Ok(())
}

impl Args {
    fn problem(&self) -> Result<Problem> {
        let [m, n, k, batch] = [self.m, self.n, self.k, self.batch].map(|size| size as usize);
        let mut problem = Problem::dense(m, n, k, batch, self.layout, self.dtype);
        if self.broadcast {
            problem.b.batch_stride = [0, 0];
        }
        if let Some(experts) = self.experts {
            let [experts, top_k] = [experts, self.top_k].map(|count| count as usize);
            if top_k > experts || self.layout != Layout::NT {
                let why = "--experts: a token has at most as many experts as there are, and the layout is nt";
                return Err(Failure::Usage(why.into()));
            }
            problem = Problem::grouped([m * top_k, n, k], Groups::routed(experts, m, top_k), self.dtype);
        }
        if let Some(b) = self.b {
            if self.layout != Layout::NT {
                return Err(Failure::Usage("--b: blocks lie along K, so that the layout is nt".into()));
            }
            problem.b.format = b;
        }
        problem.d.format = self.out.unwrap_or(self.dtype);
        problem.epilogue.bias = self.bias.then_some(BiasAxis::N);
        problem.epilogue.activation = self.activation;
        problem.epilogue.gate = self.gate;
        problem.d.row_stride = problem.columns_of_d() as i64;
        problem.f32_mode = self.f32.mode()?;
        Ok(problem)
    }
}

fn device(name: &str) -> Result<DeviceInfo> {
    match DeviceInfo::by_name(name) {
        Some(device) => Ok(device),
        None => this_device(),
    }
}

#[cfg(feature = "cuda")]
fn this_device() -> Result<DeviceInfo> {
    Ok(crate::launch::device_info(0)?)
}

#[cfg(not(feature = "cuda"))]
fn this_device() -> Result<DeviceInfo> {
    Err("this build cannot see GPUs; build it with the feature `cuda`, or name one: --device h100".into())
}

/// A product and its epilogue as the op runs them: elementwise kernels apply the part of the epilogue that is not best
/// fused.
struct Split {
    /// The problem of the GEMM kernel.
    problem: Problem,
    /// The number of elementwise kernels after the GEMM kernel, and their time.
    passes: usize,
    passes_us: f64,
}

impl Split {
    fn of(problem: &Problem, dispatcher: &Dispatcher, policy: Policy) -> Self {
        let fusion = dispatcher.fuse(problem, policy).unwrap_or(Fusion::Full);
        let (epilogue, passes) = problem.epilogue.keep(fusion);
        let passes_us = cost::elementwise_us(problem, passes, dispatcher.device());
        Self { problem: (*problem).with(|p| p.epilogue = epilogue), passes, passes_us }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.passes_us;
        write!(f, "the rest of the epilogue is best done by an elementwise kernel afterwards: {us:.1} us more")
    }
}

fn as_json(explanation: &Explanation, split: &Split) -> Value {
    let candidates = explanation.candidates.iter().map(|candidate| match &candidate.verdict {
        Ok(us) => json!({ "kernel": candidate.kernel.name, "estimate_us": us }),
        Err(rejection) => json!({ "kernel": candidate.kernel.name, "rejection": rejection.to_string() }),
    });
    let tuned = explanation.tuned.iter().map(|tuned| {
        let rejection = tuned.rejection.as_ref().map(|rejection| rejection.to_string());
        json!({ "table": tuned.table, "entry": tuned.entry, "rejection": rejection })
    });
    let asked = &explanation.asked;
    json!({
        "device": explanation.device,
        "asked": asked.to_string(),
        "f32": asked.is_f32().then_some(asked.f32_mode),
        "canonical": explanation.canonical.problem.to_string(),
        "swapped": explanation.canonical.swapped,
        "roofline_us": explanation.roofline_us,
        "chosen": explanation.chosen.map(|kernel| kernel.name),
        "copies": explanation.packing.map(|(packing, us)| json!({ "operands": packing.names(), "estimate_us": us })),
        "sums": explanation.sums,
        "reason": explanation.reason,
        "tuned": tuned.collect::<Vec<_>>(),
        "elementwise_kernels": split.passes,
        "elementwise_us": split.passes_us,
        "candidates": candidates.collect::<Vec<_>>(),
    })
}
