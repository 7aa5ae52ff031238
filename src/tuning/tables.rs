//! The tables for a device: the shipped table and the user's table.

use super::files::{cache_file, learned_file};
use super::learned::LearnedTable;
use super::{Among, Entry, Host, Refusal, Tuning, SHIPPED};
use crate::arch::DeviceInfo;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::settings;
use once_cell::sync::Lazy;
use std::path::Path;
use std::sync::Arc;

/// The measured tables of a dispatcher: the tables in use, and the refused tables.
#[derive(Debug, Default)]
pub struct Tables {
    used: Vec<Arc<Tuning>>,
    /// The user's tables, which come first in `used`.
    users: usize,
    refused: Vec<Error>,
    /// The user's tables, which come last in `refused`.
    users_refused: usize,
    /// What programs have learned, and how many of the tables in use come before it.
    learned: Option<(usize, LearnedTable)>,
}

/// The tables of this crate's folder `tuning`, each verified against this build.
pub fn shipped() -> impl Iterator<Item = std::result::Result<Arc<Tuning>, (&'static str, Refusal)>> {
    type Parsed = std::result::Result<Arc<Tuning>, (&'static str, Refusal)>;
    static PARSED: Lazy<Vec<Parsed>> = Lazy::new(|| {
        let parse = |&(name, text): &(&'static str, &str)| super::read(name, text).map(Arc::new).map_err(|e| (name, e));
        SHIPPED.iter().map(parse).collect()
    });
    PARSED.iter().cloned()
}

impl Tables {
    /// The shipped table for this GPU model.
    pub(crate) fn shipped(host: &Host) -> Self {
        let mut tables = Self::default();
        for table in shipped() {
            match table {
                Ok(tuning) if tuning.origin().gpu == host.gpu => match tuning.verify(host) {
                    Ok(()) => tables.insert(tables.used.len(), tuning),
                    Err(error) => tables.refuse(error),
                },
                Ok(_) => {}
                Err((name, refusal)) => tables.refuse(Error::Tuning { name: name.into(), refusal: refusal.into() }),
            }
        }
        tables
    }

    /// Adds what programs have learned and the user's table, or removes every table, as `TILEGEMM_TUNING` says.
    ///
    /// # Errors
    /// [`Error::Tuning`] where the file named by the variable is refused. A refused table in the cache is left out,
    /// with a warning.
    pub(crate) fn with_users(self, device: &DeviceInfo, host: &Host) -> Result<Self> {
        let (tables, before) = match settings::tuning() {
            Some(settings::Tuning::Off) => return Ok(Self::default()),
            Some(settings::Tuning::File(path)) => (self.before(Tuning::load(&path)?, host)?, 1),
            None => (self.with_cached(host), 0),
        };
        let learned = LearnedTable::read(learned_file(&host.gpu), device, host.clone());
        Ok(tables.with_learned(before, learned))
    }

    /// With what programs have learned behind the first `before` tables.
    pub(crate) fn with_learned(self, before: usize, learned: LearnedTable) -> Self {
        Self { learned: Some((before, learned)), ..self }
    }

    /// What programs have learned; `None` where no table is asked.
    pub fn learned(&self) -> Option<&LearnedTable> {
        self.learned.as_ref().map(|(_, learned)| learned)
    }

    fn with_cached(mut self, host: &Host) -> Self {
        let Some(path) = cache_file(&host.gpu).filter(|path| path.exists()) else { return self };
        match load_for(&path, host) {
            Ok(tuning) => self.insert_users(tuning),
            Err(error) => {
                self.users_refused += 1;
                self.refuse(error);
            }
        }
        self
    }

    /// Adds a table in front of the other tables.
    ///
    /// # Errors
    /// [`Error::Tuning`] where the table is not for this host.
    pub(crate) fn before(mut self, tuning: Tuning, host: &Host) -> Result<Self> {
        tuning.verify(host)?;
        self.insert_users(tuning);
        Ok(self)
    }

    fn insert_users(&mut self, tuning: Tuning) {
        self.users += 1;
        if let Some((before, _)) = &mut self.learned {
            *before += 1;
        }
        self.insert(0, Arc::new(tuning));
    }

    fn insert(&mut self, at: usize, tuning: Arc<Tuning>) {
        let refused = tuning.refused_counts();
        if !refused.is_none() {
            tracing::warn!(target: "tilegemm::tuning", table = tuning.name(), %refused, "entries of a measured table are not used");
        }
        self.used.insert(at, tuning);
    }

    fn refuse(&mut self, error: Error) {
        tracing::warn!(target: "tilegemm::tuning", %error, "a measured table is not used");
        self.refused.push(error);
    }

    /// The tables in use, in order of precedence.
    pub fn used(&self) -> impl Iterator<Item = &Tuning> {
        self.used.iter().map(Arc::as_ref)
    }

    /// The refused tables, with the reasons.
    pub fn refused(&self) -> &[Error] {
        &self.refused
    }

    /// The user's tables in use.
    pub(crate) fn users(&self) -> impl Iterator<Item = &Tuning> {
        self.used().take(self.users)
    }

    /// The user's refused tables.
    pub(crate) fn users_refused(&self) -> &[Error] {
        &self.refused[self.refused.len() - self.users_refused..]
    }

    /// Whether `table` is one of these that ship.
    pub(crate) fn ships(&self, table: &Tuning) -> bool {
        self.used().skip(self.users).any(|shipped| std::ptr::eq(shipped, table))
    }

    /// The entries of each table for the canonical `problem`, with the tables' names.
    pub(crate) fn lookup(&self, problem: &Problem, among: Among) -> Vec<(String, Entry)> {
        let of_table = |tuning: &Arc<Tuning>| Some((tuning.name().into(), *tuning.lookup(problem, among)?));
        let (before, learned) = self.learned.as_ref().map_or((0, None), |(before, learned)| (*before, Some(learned)));
        let (first, rest) = self.used.split_at(before.min(self.used.len()));
        let learned = learned.and_then(|learned| learned.lookup(problem, among));
        first.iter().filter_map(of_table).chain(learned).chain(rest.iter().filter_map(of_table)).collect()
    }
}

fn load_for(path: &Path, host: &Host) -> Result<Tuning> {
    let tuning = Tuning::load(path)?;
    tuning.verify(host)?;
    Ok(tuning)
}
