//! Measured tables: for products that were timed on a GPU model, the kernel that won, where it beat the dispatcher's choice.
//!
//! `tilegemm tune` writes them; nothing is ever measured without being asked for. A [`Dispatcher`](crate::dispatch::Dispatcher)
//! asks, in this order,
//!
//! 1. the user's table: the file that `TILEGEMM_TUNING` names, else [`cache_file`] if it is there,
//! 2. the table of `tuning/` that ships for exactly this GPU model,
//! 3. the cost model.
//!
//! `TILEGEMM_TUNING=off` leaves the cost model alone. A kernel that a table names but that is not in this build, or does not
//! [support](crate::kernel::KernelDesc::supports) the problem, is passed over.
//!
//! ```
//! use candle_tilegemm::arch::DeviceInfo;
//! use candle_tilegemm::dispatch::{Dispatcher, Policy, Reason};
//! use candle_tilegemm::kernel::KernelDesc;
//! use candle_tilegemm::tuning::{Origin, Tuning};
//! use candle_tilegemm::{DType, Layout, Problem};
//!
//! let device = DeviceInfo::h100();
//! let Origin { crate_version, .. } = Origin::of_this_build(&device);
//! let code = candle_tilegemm::family::by_name("cublas_bf16_nt").map_or("", |kernel| kernel.code);
//! let text = format!(
//!     r#"{{
//!       "schema": 2, "crate_version": "{crate_version}",
//!       "gpu": "NVIDIA H100 80GB HBM3", "driver": "580.159.04", "cuda": "13.5", "cublas": "13.1.0",
//!       "git": "unknown", "date": "2026-11-21T10:00:00Z",
//!       "entries": [
//!         {{"dtype":"bf16","layout":"nt","n":4096,"k":4096,"batch":1,"aligned":true,"epilogue":"none","among":"all",
//!           "m":[33,64],"kernel":"cublas_bf16_nt","code":"{code}","gain":1.12}}
//!       ]
//!     }}"#
//! );
//! let dispatcher = Dispatcher::hypothetical(device).with_tuning(Tuning::parse("mine.json", &text)?)?;
//! let plan = dispatcher.plan(&Problem::dense(48, 4096, 4096, 1, Layout::NT, DType::BF16), Policy::default())?;
//! assert_eq!((plan.kernel.name, plan.reason), ("cublas_bf16_nt", Reason::Tuned));
//! # Ok::<(), candle_tilegemm::Error>(())
//! ```
//!
//! # The format
//!
//! JSON, a line for each entry, sorted, so that a change is readable in a diff. The head is an [`Origin`], an entry a [`Key`]
//! with rows, kernel, code of the kernel and gain.
//!
//! - **What is asked.** A key is the canonical problem without its rows: see [`Key`]. `among` is `all` for the default
//!   [`Policy`](crate::dispatch::Policy), and `own` for the one without the vendor library. The two are measured against what
//!   each of them would choose, and neither answers for the other.
//!   An f32 product in another mode than `accurate` is another product: its entry has `"f32": "strict"` or `"tf32"`.
//! - **Rows.** Both ends of `m` were measured, and so were all points of the suite between them, with the same winner. A step
//!   from one measured point to the next is at most [`MOST_STEP`], and nothing is said of rows outside: see [`Point`].
//! - **Gain.** How many times as fast the kernel was as what the dispatcher chose without the table: the least of two
//!   measurements with fresh operands, over all measured points of the entry, and more than [`LEAST_GAIN`].
//! - **Code.** The kernel's [`code`](crate::kernel::KernelDesc::code) when it was measured.
//!
//! # What is verified
//!
//! A table is refused, with the [`Refusal`] as its reason, unless schema, crate version and GPU model are the same. On a machine
//! with that GPU the branch of the driver (580 of 580.159.04) and the CUDA version that compiled the kernels have to be the same
//! too. What is unknown there, or for a GPU that is not here, is not compared.
//!
//! An entry of a table that is used is refused alone, with an [`EntryRefusal`], where there is no such kernel any more, or where
//! the kernel has another [`code`](crate::kernel::KernelDesc::code) than the one that was measured. The code is the kernel's row, the sources of its
//! family that it is compiled from, the headers of `csrc/common` that these include, and the C ABI, all without comments. So a
//! change of one family leaves the entries of the others valid.
//!
//! `tilegemm doctor` shows which tables are used, and which tables and how many entries are refused and why; so does
//! [`crate::stats::tables`].

use crate::error::{Error, Result};
use crate::kernel::Fusion;
use crate::problem::{DType, F32Mode, Layout, Problem, MAX_ALIGN};
use entry::Row;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

mod entry;
mod origin;
mod ranges;
mod refusal;
mod tables;

pub use entry::Entry;
pub use origin::{Host, Origin};
pub use ranges::{Point, MOST_STEP};
pub use refusal::{EntryRefusal, Refusal, RefusedCounts, RefusedEntry};
pub use tables::{cache_file, shipped, Tables};

include!(concat!(env!("OUT_DIR"), "/tuning.rs"));

/// The version of the format.
pub const SCHEMA: u32 = 2;
/// An entry is worth its place where it gains more than this, for two runs of the suite agree within it (docs/benchmarks.md).
pub const LEAST_GAIN: f64 = 1.03;

/// From which kernels the fastest was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Among {
    /// All, the vendor library included.
    All,
    /// Our own.
    Own,
}

impl Among {
    /// Those of a policy that has the vendor library, or has not.
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

/// What an entry answers, but for the rows: a canonical problem by all that decides which kernel is fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Inputs and output.
    pub dtype: DType,
    /// How exact an f32 product has to be; in the file where it is not the usual mode.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub f32: F32Mode,
    /// Of A and B.
    pub layout: Layout,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Matrices in the batch.
    pub batch: usize,
    /// Whether every operand is aligned to 16 bytes; where one is not, most kernels cannot run.
    pub aligned: bool,
    /// What a kernel has to fuse. Scale, kind of activation and axis of a bias make no difference to speed.
    pub epilogue: Fusion,
    /// From which kernels.
    pub among: Among,
}

impl Key {
    /// The key of a canonical problem. `None` for what no table speaks of: nothing to compute, strides without a contiguous
    /// dimension, two batch dimensions, operands that a batch shares.
    pub fn of(problem: &Problem, among: Among) -> Option<Self> {
        let Problem { n, k, batch, dtype, f32_mode: f32, .. } = *problem;
        let is_dense =
            batch[0] == 1 && (batch[1] == 1 || ![problem.a, problem.b].iter().any(|o| o.batch_stride[1] == 0));
        let is_known = is_dense && problem.layout() != Layout::Any;
        (is_known && !problem.is_empty() && k > 0).then(|| Self {
            dtype,
            f32,
            layout: problem.layout(),
            n,
            k,
            batch: batch[1],
            aligned: problem.alignments().iter().all(|(_, align)| *align >= MAX_ALIGN),
            epilogue: problem.epilogue.fusion(),
            among,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { dtype, f32, layout, n, k, batch, aligned, epilogue, among } = self;
        write!(f, "Mx{n}x{k} {layout} {dtype}")?;
        if !is_usual(f32) {
            write!(f, " {f32}")?;
        }
        if *batch != 1 {
            write!(f, " batch {batch}")?;
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

/// A file.
#[derive(Serialize, Deserialize)]
struct File {
    schema: u32,
    #[serde(flatten)]
    origin: Origin,
    entries: Vec<Row>,
}

/// Read before the rest, which another schema may have changed.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// A measured table.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    name: String,
    origin: Origin,
    /// Sorted by key and rows.
    entries: Vec<Entry>,
    refused: Vec<RefusedEntry>,
}

impl Tuning {
    /// A table without entries. `name` is what errors and explanations call it.
    pub fn new(name: impl Into<String>, origin: Origin) -> Self {
        Self { name: name.into(), origin, entries: Vec::new(), refused: Vec::new() }
    }

    /// Reads a table and verifies what needs no device; [`Tuning::verify`] does the rest.
    ///
    /// # Errors
    /// [`Error::Tuning`] with the [`Refusal`].
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        read(name, text).map_err(|refusal| Error::Tuning { name: name.into(), refusal: refusal.into() })
    }

    /// As [`Tuning::parse`], from a file.
    ///
    /// # Errors
    /// As for [`Tuning::parse`].
    pub fn load(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&name, &text),
            Err(error) => Err(Error::Tuning { name, refusal: Refusal::Unreadable(error.to_string()).into() }),
        }
    }

    /// Whether it was measured on such a machine.
    ///
    /// # Errors
    /// [`Error::Tuning`] with the [`Refusal`].
    pub fn verify(&self, host: &Host) -> Result<()> {
        self.origin.fits(host).map_err(|refusal| Error::Tuning { name: self.name.clone(), refusal: refusal.into() })
    }

    /// The text of its file, without the entries that were refused.
    pub fn to_text(&self) -> String {
        const WRITTEN: &str = "a table is made of strings and numbers";
        let frame = File { schema: SCHEMA, origin: self.origin.clone(), entries: Vec::new() };
        let frame = serde_json::to_string_pretty(&frame).expect(WRITTEN) + "\n";
        let lines: Vec<String> =
            self.entries.iter().map(|entry| serde_json::to_string(entry).expect(WRITTEN)).collect();
        match &lines[..] {
            [] => frame,
            lines => {
                frame.replacen("\"entries\": []", &format!("\"entries\": [\n    {}\n  ]", lines.join(",\n    ")), 1)
            }
        }
    }

    /// What errors and explanations call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it was made.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// All that it holds, sorted.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entries of its file that are refused, and why; sorted. They answer nothing.
    pub fn refused(&self) -> &[RefusedEntry] {
        &self.refused
    }

    /// How many entries of its file are refused, by reason.
    pub fn refused_counts(&self) -> RefusedCounts {
        RefusedCounts::of(&self.refused)
    }

    /// What it has for the canonical `problem`.
    pub fn lookup(&self, problem: &Problem, among: Among) -> Option<&Entry> {
        let key = Key::of(problem, among)?;
        self.entries.iter().find(|entry| entry.key == key && (entry.m[0]..=entry.m[1]).contains(&problem.m))
    }

    /// Replaces all that it has for `key` by what was measured at these points.
    pub fn replace(&mut self, key: Key, points: &[Point]) {
        self.entries.retain(|entry| entry.key != key);
        self.entries.extend(ranges::entries(key, points));
        self.entries.sort_by_key(|entry| (entry.key, entry.m));
    }

    /// The same table under another origin and name, for one that is measured on; without the entries that were refused.
    pub fn renew(self, name: impl Into<String>, origin: Origin) -> Self {
        Self { name: name.into(), origin, refused: Vec::new(), ..self }
    }
}

/// Its name and size.
impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.entries.len();
        write!(f, "{} ({count} {})", self.name, if count == 1 { "entry" } else { "entries" })
    }
}

fn read(name: &str, text: &str) -> std::result::Result<Tuning, Refusal> {
    let format = |error: serde_json::Error| Refusal::Format(error.to_string());
    let Version { schema } = serde_json::from_str(text).map_err(format)?;
    if schema != SCHEMA {
        return Err(Refusal::Schema { have: schema, need: SCHEMA });
    }
    let File { origin, entries, .. } = serde_json::from_str(text).map_err(format)?;
    origin.fits_build()?;
    let (entries, refused) = entry::resolve(entries)?;
    Ok(Tuning { name: name.into(), origin, entries, refused })
}
