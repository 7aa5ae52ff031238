//! The key of an entry: which products it answers for.

use super::groups::GroupKey;
use crate::kernel::Fusion;
use crate::problem::{F32Mode, Format, Layout, Problem, Types, MAX_ALIGN};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kernels among which the fastest was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Among {
    /// All kernels, the vendor library included.
    All,
    /// Our own kernels.
    Own,
}

impl Among {
    /// The kernels of a policy with or without the vendor library.
    pub fn with_vendor(vendor: bool) -> Self {
        if vendor {
            Among::All
        } else {
            Among::Own
        }
    }
}

fn is_usual(mode: &F32Mode) -> bool {
    *mode == F32Mode::default()
}

/// The question that an entry answers, without the rows: the properties of a canonical problem that decide which kernel is fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Key {
    /// The format of A, and of B where `b` is absent.
    pub dtype: Format,
    /// The format of B, where it is another than A's. The file omits it otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<Format>,
    /// The format of C, the bias and D. The file omits the format of A.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<Format>,
    /// How exact an f32 product has to be. The file omits the default mode.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub f32: F32Mode,
    /// The layout of A and B.
    pub layout: Layout,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Matrices in the batch.
    pub batch: usize,
    /// Whether every operand is aligned to 16 bytes. Most kernels cannot run where one operand is not.
    pub aligned: bool,
    /// The parts of the epilogue that a kernel has to fuse. Scale, kind of activation and axis of a bias make no difference to speed.
    pub epilogue: Fusion,
    /// The groups of rows. The file omits them for a product without groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<GroupKey>,
    /// The kernels among which the fastest was found.
    pub among: Among,
}

impl Key {
    /// The key of a canonical problem. `None` for problems that no table has: an empty problem, strides without a contiguous
    /// dimension, two batch dimensions, operands that a batch shares, factors, fast accumulation.
    pub fn of(problem: &Problem, among: Among) -> Option<Self> {
        let Problem { n, k, batch, f32_mode: f32, .. } = *problem;
        let Types { a: dtype, b, c, d, .. } = problem.types();
        let is_dense =
            batch[0] == 1 && (batch[1] == 1 || ![problem.a, problem.b].iter().any(|o| o.batch_stride[1] == 0));
        let has_factors = [problem.a, problem.b, problem.d].iter().any(|operand| operand.scale.is_some());
        let has_factors = has_factors || problem.fast_accumulation;
        let is_known = is_dense && c == d && problem.layout() != Layout::Any && !has_factors;
        (is_known && !problem.is_empty() && k > 0).then(|| Self {
            dtype,
            b: (b != dtype).then_some(b),
            out: (d != dtype).then_some(d),
            f32,
            layout: problem.layout(),
            n,
            k,
            batch: batch[1],
            aligned: problem.alignments().iter().all(|(_, align)| *align >= MAX_ALIGN),
            epilogue: problem.epilogue.fusion(),
            groups: GroupKey::of(problem),
            among,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { dtype, b, out, f32, layout, n, k, batch, aligned, epilogue, groups, among } = self;
        let types = Types { b: b.unwrap_or(*dtype), ..Types::new(*dtype, out.unwrap_or(*dtype)) };
        write!(f, "Mx{n}x{k} {layout} {types}")?;
        if !is_usual(f32) {
            write!(f, " {f32}")?;
        }
        if *batch != 1 {
            write!(f, " batch {batch}")?;
        }
        if let Some(groups) = groups {
            write!(f, " {groups}")?;
        }
        match epilogue {
            Fusion::None => {}
            Fusion::BiasAct => write!(f, " + bias or activation")?,
            Fusion::Full => write!(f, " + beta * C")?,
        }
        if !aligned {
            write!(f, ", not aligned")?;
        }
        match among {
            Among::All => Ok(()),
            Among::Own => write!(f, ", own kernels"),
        }
    }
}
