//! An entry of a table: the winning kernel, and the check that the kernel's code is still the measured code.

use super::key::{Among, Key};
use super::refusal::{EntryRefusal, Refusal, RefusedEntry};
use crate::config::Config;
use crate::family;
use crate::kernel::{KernelDesc, Role};
use serde::{Deserialize, Serialize};

/// The gain that an entry has to exceed: two runs of the suite agree within this gain (docs/benchmarks.md).
pub const LEAST_GAIN: f64 = 1.03;

/// The winning kernel for a range of rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(into = "Row")]
pub struct Entry {
    /// The products of the entry.
    pub key: Key,
    /// First and last number of rows.
    pub m: [usize; 2],
    /// The fastest kernel in the range.
    pub kernel: &'static KernelDesc,
    /// The kernel's fastest configuration; `None` where the family chooses that configuration.
    pub config: Option<Config>,
    /// Speedup over the dispatcher's choice without the table.
    pub gain: f64,
    /// What a running program has measured; `None` for an entry of `tilegemm tune`.
    pub learned: Option<Learned>,
}

/// What a running program has measured of a product ([`crate::dispatch::set_learning`]).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// Samples of each kernel that stayed to the end.
    pub samples: u32,
    /// The entry's median, in microseconds.
    pub us: f64,
    /// The median of what the dispatcher would take otherwise; of the second best, where that is the entry's own.
    pub against_us: f64,
}

/// The form of an entry in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    #[serde(flatten)]
    key: Key,
    m: [usize; 2],
    kernel: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config: Option<Config>,
    /// [`KernelDesc::code`] of the measured kernel.
    code: String,
    gain: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    learned: Option<Learned>,
}

impl From<Entry> for Row {
    fn from(Entry { key, m, kernel, config, gain, learned }: Entry) -> Self {
        Self { key, m, kernel: kernel.name.into(), config, code: kernel.code.into(), gain, learned }
    }
}

/// The valid and the refused entries of a file; both sorted by key and rows.
pub(super) fn resolve(mut rows: Vec<Row>) -> Result<(Vec<Entry>, Vec<RefusedEntry>), Refusal> {
    rows.sort_by_key(|row| (row.key, row.m));
    rows.iter().try_for_each(Row::check)?;
    if let Some(pair) = rows.windows(2).find(|pair| pair[0].key == pair[1].key && pair[1].m[0] <= pair[0].m[1]) {
        let [first, last] = pair[0].m;
        return Err(pair[1].wrong(format!("its rows overlap those of the entry for M {first} to {last}")));
    }
    let (mut entries, mut refused) = (Vec::new(), Vec::new());
    for row in rows {
        match row.kernel() {
            Ok(kernel) => {
                let Row { key, m, config, gain, learned, .. } = row;
                entries.push(Entry { key, m, kernel, config, gain, learned });
            }
            Err(refusal) => refused.push(RefusedEntry { key: row.key, m: row.m, refusal }),
        }
    }
    Ok((entries, refused))
}

impl Row {
    /// Checks the entry's values, independent of changes of the kernel.
    fn check(&self) -> Result<(), Refusal> {
        let Row { key, m, kernel, gain, learned, .. } = self;
        if m[0] == 0 || m[0] > m[1] {
            return Err(self.wrong("expected 1 or more as its first M, and no less as its last".into()));
        }
        // A program that learns also keeps that the usual choice is the best.
        let least = if learned.is_some() { 1.0 } else { LEAST_GAIN };
        if !(*gain >= least && gain.is_finite()) {
            return Err(self.wrong(format!("its gain is {gain}; expected {least} or more")));
        }
        if let Some(Learned { us, against_us, .. }) = learned {
            if ![us, against_us].iter().all(|us| **us > 0.0 && us.is_finite()) {
                return Err(self.wrong(format!("its times are {us} and {against_us}; expected microseconds above 0")));
            }
        }
        let is_vendor = family::by_name(kernel).is_some_and(|kernel| kernel.role == Role::Vendor);
        if key.among == Among::Own && is_vendor {
            return Err(self.wrong(format!("{kernel} is none of our own kernels")));
        }
        Ok(())
    }

    /// The kernel of the entry, if its code is the measured code.
    fn kernel(&self) -> Result<&'static KernelDesc, EntryRefusal> {
        let name = self.kernel.clone();
        match family::by_name(&name) {
            None => Err(EntryRefusal::UnknownKernel { kernel: name }),
            Some(kernel) if kernel.code != self.code => {
                Err(EntryRefusal::OtherCode { kernel: name, have: self.code.clone(), need: kernel.code.into() })
            }
            Some(kernel) => Ok(kernel),
        }
    }

    fn wrong(&self, what: String) -> Refusal {
        let Row { key, m: [first, last], .. } = self;
        Refusal::Entry { entry: format!("M {first} to {last} of {key}"), what }
    }
}
