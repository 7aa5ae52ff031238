//! `tilegemm explain`: the kernel that a product gets, and the reasons against the other kernels. Needs no GPU.

use crate::words::{self, words, Words};
use crate::{device, tell, Failure, Result};
use candle_tilegemm::dispatch::{Dispatcher, Explanation, Policy};
use candle_tilegemm::kernel::Fusion;
use candle_tilegemm::problem::{BiasAxis, Epilogue, Gate, Groups};
use candle_tilegemm::{internal::cost, workspace, Activation, Format, Layout, Problem};
use serde_json::{json, Value};
use std::fmt;

#[derive(clap::Args)]
pub struct Args {
    /// Rows of the result
    #[arg(value_parser = extent, allow_negative_numbers = true)]
    m: u32,
    /// Columns of the result
    #[arg(value_parser = extent, allow_negative_numbers = true)]
    n: u32,
    /// Length of the sums
    #[arg(value_parser = extent, allow_negative_numbers = true)]
    k: u32,
    /// Matrices in the batch
    #[arg(long, default_value_t = 1, value_parser = extent, allow_negative_numbers = true)]
    batch: u32,
    /// The product of a mixture of experts: M tokens, each with the matrices B of several of so many experts (nt only)
    #[arg(long, value_name = "EXPERTS", value_parser = extent, allow_negative_numbers = true, conflicts_with_all = ["batch", "broadcast"])]
    experts: Option<u32>,
    /// Experts of a token
    #[arg(long, default_value_t = 1, value_name = "EXPERTS", value_parser = extent, allow_negative_numbers = true, requires = "experts")]
    top_k: u32,
    /// Layout: nn is a[M,K] @ b[K,N]; nt is x[M,K] @ w[N,K]^T, the product of a Linear layer
    #[arg(long, default_value = "nt", value_parser = layouts())]
    layout: Layout,
    /// Element type of the operands, and of the result without --out
    #[arg(long, default_value = "bf16", value_parser = formats(OPERANDS))]
    dtype: Format,
    /// Format of B, where B has another format: blocks of a GGUF file, along K, or narrow weights with factors (nt only)
    #[arg(long, value_name = "FORMAT", value_parser = formats(Format::blocks().chain(NARROW)))]
    b: Option<Format>,
    #[command(flatten)]
    factors: crate::narrow::Factors,
    /// Element type of the result; f32 for f16 and bf16 operands, f16, bf16 or f32 for f8e4m3 and i8
    #[arg(long, value_parser = formats([Format::F16, Format::BF16, Format::F32, Format::F64]))]
    out: Option<Format>,
    #[command(flatten)]
    f32: crate::F32,
    /// The GPU of the plan; `this` is the first GPU of this machine
    #[arg(long, default_value = "h100", value_parser = device::names())]
    device: String,
    /// One matrix B for the whole batch
    #[arg(long)]
    broadcast: bool,
    /// Add one value per column
    #[arg(long)]
    bias: bool,
    /// Apply a function to the biased product
    #[arg(long, default_value = "identity", value_parser = words(ACTIVATIONS))]
    activation: Activation,
    /// Add a matrix of the result's shape and type behind the function: the residual of a layer
    #[arg(long, conflicts_with_all = ["gate", "experts"])]
    residual: bool,
    /// Exclude the vendor library
    #[arg(long, conflicts_with = "force")]
    own: bool,
    /// A gated product, with the activation on the gates: D has N / 2 columns
    #[arg(long, value_parser = words([("halves", Gate::Halves), ("interleaved", Gate::Interleaved)]))]
    gate: Option<Gate>,
    /// fp8 whose sums may be the tensor cores' over all of K, with some 13 bits
    #[arg(long)]
    fast_accumulation: bool,
    /// Force this kernel
    #[arg(long, value_name = "KERNEL", value_parser = |name: &str| Policy::force(&words::kernel(name)))]
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

const ACTIVATIONS: [(&str, Activation); 5] = [
    ("identity", Activation::Identity),
    ("relu", Activation::Relu),
    ("gelu-erf", Activation::GeluErf),
    ("gelu-tanh", Activation::GeluTanh),
    ("silu", Activation::Silu),
];

/// The formats of A and B that kernels take.
pub const OPERANDS: [Format; 6] = [Format::F16, Format::BF16, Format::F32, Format::F64, Format::F8E4M3, Format::I8];

/// The formats of narrow weights.
const NARROW: [Format; 5] = [Format::F8E4M3, Format::U4, Format::F4E2M1, Format::I8, Format::U8];

/// One of these formats.
pub fn formats(formats: impl IntoIterator<Item = Format>) -> Words<Format> {
    words(formats.into_iter().map(|format| (format.name(), format)))
}

/// A layout of A and B.
pub fn layouts() -> Words<Layout> {
    words([Layout::NN, Layout::NT, Layout::TN, Layout::TT].map(|layout| (layout.name(), layout)))
}

/// A size that every kernel interface can express.
fn extent(text: &str) -> std::result::Result<u32, String> {
    let most = i32::MAX as u32;
    let size: i128 = text.parse().map_err(|_| format!("expected a whole number from 1 to {most}, such as 4096"))?;
    u32::try_from(size)
        .ok()
        .filter(|size| (1..=most).contains(size))
        .ok_or_else(|| format!("{size} is not in 1..={most}"))
}

pub fn run(args: &Args) -> Result {
    let device = device::find(&args.device)?;
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
        tell(format_args!("warning: {complaint}"));
    }
    let split = Split::of(&problem, &dispatcher, policy);
    let explanation = dispatcher.explain(&split.problem, policy);
    if args.json {
        crate::print_json(&as_json(&explanation, &split))?;
    } else {
        crate::print(explanation.to_string().trim_end())?;
        if split.passes > 0 {
            crate::print(format_args!("\n{split}"))?;
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
        if self.b.is_some() && self.layout != Layout::NT {
            return Err(Failure::Usage("--b: blocks and codes lie along K, so that the layout is nt".into()));
        }
        match self.b {
            Some(b) if b.is_narrow() => {
                problem = problem.with_weights(b, Some(self.factors.scale(b, self.dtype, [n, k])?));
                problem.a.scale = self.factors.of_activations(self.dtype, [m, k]);
            }
            b => {
                self.factors.refuse()?;
                problem.b.format = b.unwrap_or(problem.b.format);
            }
        }
        problem.d.format = self.out.unwrap_or(self.dtype);
        if self.residual {
            problem.epilogue = Epilogue::new(1.0, 1.0);
        }
        problem.epilogue.bias = self.bias.then_some(BiasAxis::N);
        problem.epilogue.activation = self.activation;
        problem.epilogue.gate = self.gate;
        problem.d.row_stride = problem.columns_of_d() as i64;
        problem.epilogue.c = self.residual.then_some(problem.d);
        problem.fast_accumulation = self.fast_accumulation;
        if self.fast_accumulation && !problem.is_fp8() {
            return Err(Failure::Usage("--fast-accumulation is about operands in f8e4m3, both of them".into()));
        }
        problem.f32_mode = self.f32.mode()?;
        if self.f32.mode.is_some() && self.dtype != Format::F32 {
            return Err(Failure::Usage(format!("--f32 is about operands in f32; these are in {}", self.dtype)));
        }
        Ok(problem)
    }
}

/// A product and its epilogue as the op runs them: elementwise kernels apply the part of the epilogue that is not best
/// fused.
struct Split {
    /// The problem of the GEMM kernel.
    problem: Problem,
    /// The number of elementwise kernels after the GEMM kernel, and their time.
    passes: usize,
    passes_us: f64,
    /// Whether a kernel of its own applies a gate.
    gates: bool,
}

impl Split {
    fn of(problem: &Problem, dispatcher: &Dispatcher, policy: Policy) -> Self {
        let fusion = dispatcher.fuse(problem, policy).unwrap_or(Fusion::Full);
        if problem.epilogue.gate.is_some() && fusion == Fusion::None {
            let passes_us = cost::gate_us(problem, dispatcher.device());
            return Self { problem: problem.ungated(), passes: 1, passes_us, gates: true };
        }
        let (epilogue, passes) = problem.epilogue.keep(fusion);
        let passes_us = cost::elementwise_us(problem, passes, dispatcher.device());
        Self { problem: (*problem).with(|p| p.epilogue = epilogue), passes, passes_us, gates: false }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.passes_us;
        if self.gates {
            return write!(f, "no kernel is faster with the gate in its epilogue: a kernel of its own applies it afterwards, {us:.1} us more");
        }
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
