//! The entries of measured tables that no product gets.

use super::dispatcher::Dispatcher;
use super::policy::Policy;
use crate::problem::Problem;
use crate::tuning::{Among, Entry, EntryRefusal, RefusedCounts, RefusedEntry, Tuning};

impl Dispatcher {
    /// The entries of a table that no product gets here: those that are refused, and in a user's table those whose kernel cannot run a product of the entry on this
    /// device, in this build, or in the entry's configuration.
    #[doc(hidden)]
    pub fn skipped(&self, table: &Tuning) -> Vec<RefusedEntry> {
        let mut skipped = table.refused().to_vec();
        // A build without a feature passes over the feature's entries of the tables that ship.
        if !self.tables.ships(table) {
            let unfit = |entry: &Entry| {
                let refusal = self.unfit(entry)?;
                Some(RefusedEntry { key: entry.key, m: entry.m, refusal })
            };
            skipped.extend(table.entries().iter().filter_map(unfit));
        }
        skipped
    }

    /// Why no example of the entry runs, if none does.
    fn unfit(&self, entry: &Entry) -> Option<EntryRefusal> {
        let policy = if entry.key.among == Among::All { Policy::default() } else { Policy::own() };
        let runs = |problem: &Problem| {
            self.judge(entry.kernel, problem, policy).verdict?;
            entry.config.map_or(Ok(()), |config| self.check(entry.kernel, problem, policy, config))
        };
        let mut why = None;
        for problem in entry.examples() {
            let rejection = runs(&problem).err()?;
            why.get_or_insert(rejection);
        }
        Some(EntryRefusal::Unfit { kernel: entry.kernel.name.into(), why: why?.to_string() })
    }

    /// A line for each table of the user of which entries are skipped, or that is refused.
    #[doc(hidden)]
    pub fn complaints(&self) -> Vec<String> {
        let entries = self.tables.users().filter_map(|table| {
            let counts = RefusedCounts::of(&self.skipped(table));
            (!counts.is_none()).then(|| format!("of {}, {counts}; `tilegemm doctor` names them", table.name()))
        });
        let refused = self.tables.users_refused().iter().map(|error| format!("not used: {error}"));
        entries.chain(refused).collect()
    }
}
