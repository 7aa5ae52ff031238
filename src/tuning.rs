//! Measured tables: for products that were timed on a GPU model, the kernel that won, where that kernel beat the dispatcher's choice.
//!
//! `tilegemm tune` writes measured tables, and a program that learns adds to its own. A [`Dispatcher`](crate::dispatch::Dispatcher) asks, in this order,
//!
//! 1. the user's table that `TILEGEMM_TUNING` names,
//! 2. what programs have learned ([`learned`]),
//! 3. without `TILEGEMM_TUNING`, [`cache_file`] if that file exists,
//! 4. the table of `tuning/` that ships for exactly this GPU model (`tuning/<card>/table.json`),
//! 5. the cost model.
//!
//! `TILEGEMM_TUNING=off` leaves only the cost model. The dispatcher passes over an entry whose kernel is not in this build or does not
//! [support](crate::kernel::KernelDesc::supports) the problem.
//!
//! ```
//! use candle_tilegemm::arch::DeviceInfo;
//! use candle_tilegemm::dispatch::{Dispatcher, Policy, Reason};
//! use candle_tilegemm::kernel::KernelDesc;
//! use candle_tilegemm::internal::tuning::{Origin, Tuning};
//! use candle_tilegemm::{Format, Layout, Problem};
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
//! let plan = dispatcher.plan(&Problem::dense(48, 4096, 4096, 1, Layout::NT, Format::BF16), Policy::default())?;
//! assert_eq!((plan.kernel.name, plan.reason), ("cublas_bf16_nt", Reason::Tuned));
//! # Ok::<(), candle_tilegemm::Error>(())
//! ```
//!
//! # The format
//!
//! JSON, a line for each entry, sorted, so that a change is readable in a diff. The head is an [`Origin`], an entry a [`Key`]
//! with rows, kernel, code of the kernel and gain.
//!
//! - **Key.** The key is the canonical problem without its rows: see [`Key`]. `among` is `all` for the default
//!   [`Policy`](crate::dispatch::Policy), and `own` for the policy without the vendor library. An entry of either kind was measured
//!   against the choice of its own policy, and does not answer for the other.
//!   An f32 product in another mode than `accurate` is another product: its entry has `"f32": "strict"` or `"tf32"`.
//!   The key of a product of groups has `"groups"`, with the number of groups that are expected to have rows: an entry for one token of 128
//!   experts says nothing of 64 tokens.
//! - **Rows.** Both ends of `m` were measured, and so were all points of the suite between them, with the same winner. A step
//!   from one measured point to the next is at most [`MOST_STEP`]. An entry says nothing of rows outside its range: see [`Point`].
//! - **Gain.** The speed of the kernel over the speed of the dispatcher's choice without the table: the least of two measurements
//!   with fresh operands, over all measured points of the entry. The gain is more than [`LEAST_GAIN`].
//! - **Learned.** What a program has learned: samples and medians. Such an entry may have a gain of 1: the usual choice is the best.
//! - **Code.** The kernel's [`code`](crate::kernel::KernelDesc::code) at the time of the measurement.
//!
//! # Verification
//!
//! A table is refused, with a [`Refusal`] as the reason, unless schema, crate version and GPU model are the same. On a machine
//! with that GPU, the branch of the driver (580 of 580.159.04) and the CUDA version that compiled the kernels have to be the same
//! too. A fact that is unknown on this machine, or belongs to a GPU of another machine, is not compared.
//!
//! An entry is refused alone, with an [`EntryRefusal`], where its kernel no longer exists, or where the kernel's
//! [`code`](crate::kernel::KernelDesc::code) has changed since the measurement. The code is the kernel's row, the sources of the family that
//! the kernel is compiled from, the headers that these sources include, and the C ABI, all without comments. So a
//! change of one family leaves the entries of the others valid.
//!
//! The same holds for an entry of a user's table whose kernel cannot run such a product, in this build or in the entry's configuration.
//!
//! A program that runs products says once on stderr how many entries of a user's table are refused. `tilegemm doctor` shows the tables in use, the refused
//! tables and entries, with the reasons; [`crate::stats::tables`] counts them.

use crate::error::{Error, Result};
use crate::problem::Problem;
use entry::Row;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

mod entry;
mod example;
mod files;
mod groups;
mod key;
pub mod learned;
mod origin;
mod ranges;
mod refusal;
mod tables;

pub use entry::{Entry, Learned, LEAST_GAIN};
pub use files::{cache_file, learned_files};
pub use key::{Among, Key};
pub use origin::{Host, Origin};
pub use ranges::{Point, MOST_STEP};
pub use refusal::{EntryRefusal, Refusal, RefusedCounts, RefusedEntry};
pub use tables::{shipped, Tables};

include!(concat!(env!("OUT_DIR"), "/tuning.rs"));

/// The version of the format.
pub const SCHEMA: u32 = 2;

/// The file of a table.
#[derive(Serialize, Deserialize)]
struct File {
    schema: u32,
    #[serde(flatten)]
    origin: Origin,
    entries: Vec<Row>,
}

/// The version of a file, read before the rest, which another schema may have changed.
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
    /// A table without entries. Errors and explanations call the table `name`.
    pub fn new(name: impl Into<String>, origin: Origin) -> Self {
        Self { name: name.into(), origin, entries: Vec::new(), refused: Vec::new() }
    }

    /// Reads a table and verifies its format and build. [`Tuning::verify`] verifies its device.
    ///
    /// # Errors
    /// [`Error::Tuning`] with the [`Refusal`].
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        read(name, text).map_err(|refusal| Error::Tuning { name: name.into(), refusal: refusal.into() })
    }

    /// Reads a table from a file, as [`Tuning::parse`].
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

    /// Verifies that the table was measured on such a machine.
    ///
    /// # Errors
    /// [`Error::Tuning`] with the [`Refusal`].
    pub fn verify(&self, host: &Host) -> Result<()> {
        self.origin.fits(host).map_err(|refusal| Error::Tuning { name: self.name.clone(), refusal: refusal.into() })
    }

    /// The text of the table's file, without the refused entries.
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

    /// The table's name in errors and explanations.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the table was measured.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The table's entries, sorted.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The refused entries of the file, with their reasons, sorted. A refused entry answers nothing.
    pub fn refused(&self) -> &[RefusedEntry] {
        &self.refused
    }

    /// The number of refused entries of the file, by reason.
    pub fn refused_counts(&self) -> RefusedCounts {
        RefusedCounts::of(&self.refused)
    }

    /// The entry for the canonical `problem`.
    pub fn lookup(&self, problem: &Problem, among: Among) -> Option<&Entry> {
        let key = Key::of(problem, among)?;
        self.entries.iter().find(|entry| entry.key == key && (entry.m[0]..=entry.m[1]).contains(&problem.m))
    }

    /// Replaces all entries of `key` by entries of these measured points.
    pub fn replace(&mut self, key: Key, points: &[Point]) {
        self.entries.retain(|entry| entry.key != key);
        self.entries.extend(ranges::entries(key, points));
        self.entries.sort_by_key(|entry| (entry.key, entry.m));
    }

    /// Adds an entry in place of one for the same products.
    fn put(&mut self, entry: Entry) {
        let place = |other: &Entry| (other.key, other.m);
        match self.entries.binary_search_by_key(&place(&entry), place) {
            Ok(at) => self.entries[at] = entry,
            Err(at) => self.entries.insert(at, entry),
        }
    }

    /// The table under another origin and name, to continue its measurement; without the refused entries.
    pub fn renew(self, name: impl Into<String>, origin: Origin) -> Self {
        Self { name: name.into(), origin, refused: Vec::new(), ..self }
    }
}

/// The table's name and number of entries.
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
