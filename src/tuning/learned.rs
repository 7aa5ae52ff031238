//! What running programs have learned of a GPU model: a measured table of its own, which programs add to and share.
//!
//! A program with `TILEGEMM_LEARN=on` times kernels in the first calls of a product, and the table keeps what was found, for this program and the next ones. The
//! file is `learned.json` beside the user's tables (`learned_file` of src/tuning/files.rs).

use super::{Entry, Host, Learned, Origin, Tuning};
use crate::arch::DeviceInfo;
use crate::problem::Problem;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::RwLock;

/// The table of a dispatcher, which grows while the program runs.
#[derive(Debug)]
pub struct LearnedTable {
    path: Option<PathBuf>,
    host: Host,
    table: RwLock<Tuning>,
    is_written: AtomicBool,
}

impl LearnedTable {
    /// The table of this file, empty where there is none for such a machine: a new driver or other kernels begin anew.
    pub(crate) fn read(path: Option<PathBuf>, device: &DeviceInfo, host: Host) -> Self {
        let name = path.as_ref().map_or("learned".into(), |path| path.display().to_string());
        let empty = || Tuning::new(name, Origin::of_this_build(device));
        let table = path.as_deref().and_then(|path| load(path, &host)).unwrap_or_else(empty);
        Self { path, host, table: RwLock::new(table), is_written: AtomicBool::new(true) }
    }

    /// The file, if the user has a folder for caches.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The entries so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.with(|table| table.entries().to_vec())
    }

    /// The table's name, and its entry for the canonical `problem`.
    pub(crate) fn lookup(&self, problem: &Problem, among: super::Among) -> Option<(String, Entry)> {
        self.with(|table| Some((table.name().into(), *table.lookup(problem, among)?)))
    }

    /// Adds an entry in place of one for the same products.
    pub(crate) fn add(&self, entry: Entry) {
        self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner()).put(entry);
        self.is_written.store(false, Ordering::Release);
    }

    fn with<T>(&self, then: impl FnOnce(&Tuning) -> T) -> T {
        then(&self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Writes what the file does not have yet. What other processes have written meanwhile stays. Returns whether there was something to write.
    ///
    /// # Errors
    /// Those of the file system; the entries are kept, and the next call tries again.
    pub fn save(&self) -> io::Result<bool> {
        let Some(path) = self.path.as_deref() else { return Ok(false) };
        if self.is_written.swap(true, Ordering::AcqRel) {
            return Ok(false);
        }
        let ours = self.with(Tuning::clone);
        match merge_into(path, &ours, &self.host) {
            Ok(()) => Ok(true),
            Err(error) => {
                self.is_written.store(false, Ordering::Release);
                Err(error)
            }
        }
    }
}

fn load(path: &Path, host: &Host) -> Option<Tuning> {
    let table = Tuning::load(path).ok()?;
    table.verify(host).ok()?;
    Some(table)
}

/// Adds the entries of `ours` to the file, under a lock. The file is replaced whole, so a reader, or a process that dies meanwhile, leaves the old or the new one.
fn merge_into(path: &Path, ours: &Tuning, host: &Host) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let lock = File::create(path.with_extension("lock"))?;
    lock.lock()?;
    let merged = match load(path, host) {
        Some(theirs) => merged(theirs, ours),
        None => ours.clone(),
    };
    let unfinished = path.with_extension(format!("{}.new", std::process::id()));
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(merged.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

/// Of two entries for the same products, that with more samples.
fn merged(mut theirs: Tuning, ours: &Tuning) -> Tuning {
    let samples = |entry: &Entry| entry.learned.map_or(0, |Learned { samples, .. }| samples);
    let known: BTreeMap<_, _> = theirs.entries().iter().map(|entry| ((entry.key, entry.m), samples(entry))).collect();
    let is_better = |entry: &&Entry| known.get(&(entry.key, entry.m)).is_none_or(|theirs| samples(entry) >= *theirs);
    ours.entries().iter().filter(is_better).for_each(|entry| theirs.put(*entry));
    theirs
}

#[cfg(test)]
mod tests {
    use super::LearnedTable;
    use crate::arch::DeviceInfo;
    use crate::family;
    use crate::problem::{Format, Layout, Problem};
    use crate::tuning::{Among, Entry, Host, Key, Learned};
    use std::fs;
    use std::path::PathBuf;

    /// A folder of a test's own, gone afterwards.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("tilegemm-learned-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn table(&self) -> LearnedTable {
            let device = DeviceInfo::h100();
            LearnedTable::read(Some(self.0.join("gpu/learned.json")), &device, Host::hypothetical(&device))
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.join("gpu")).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn product(m: usize, n: usize) -> Problem {
        Problem::dense(m, n, 4096, 1, Layout::NT, Format::BF16)
    }

    fn entry(m: usize, n: usize, samples: u32) -> Entry {
        let key = Key::of(&product(m, n), Among::All).unwrap();
        let kernel = family::by_name("cublas_bf16_nt").unwrap();
        let learned = Some(Learned { samples, us: 10.0, against_us: 11.0 });
        Entry { key, m: [m, m], kernel, config: None, gain: 1.1, learned }
    }

    #[test]
    fn what_one_process_learned_the_next_one_knows() {
        let folder = Folder::new("next");
        let table = folder.table();
        assert!(!table.save().unwrap(), "nothing to write, and no file");
        table.add(entry(7, 4096, 5));
        assert!(table.save().unwrap());
        assert!(!table.save().unwrap(), "written");
        let again = folder.table();
        assert_eq!(again.entries(), [entry(7, 4096, 5)]);
        let (name, found) = again.lookup(&product(7, 4096), Among::All).unwrap();
        assert!(name.ends_with("learned.json") && found == entry(7, 4096, 5), "{name}");
        assert!(again.lookup(&product(8, 4096), Among::All).is_none(), "learned of 7 rows alone");
        assert_eq!(folder.names(), ["learned.json", "learned.lock"]);
    }

    #[test]
    fn processes_that_learn_at_once_lose_nothing() {
        let folder = Folder::new("both");
        std::thread::scope(|scope| {
            for first in 0..8 {
                let table = folder.table();
                scope.spawn(move || {
                    for n in 1..=20 {
                        table.add(entry(3, 8 * (20 * first + n), 5));
                        assert!(table.save().unwrap());
                    }
                });
            }
        });
        assert_eq!(folder.table().entries().len(), 160);
        assert_eq!(folder.names(), ["learned.json", "learned.lock"]);
    }

    #[test]
    fn of_two_entries_that_with_more_samples_stays() {
        let folder = Folder::new("more");
        let [many, few] = [9, 5].map(|samples| {
            let table = folder.table();
            table.add(entry(7, 4096, samples));
            table
        });
        many.save().unwrap();
        few.save().unwrap();
        assert_eq!(folder.table().entries(), [entry(7, 4096, 9)]);
    }

    #[test]
    fn a_file_that_is_none_is_replaced_and_an_unfinished_one_is_no_obstacle() {
        let folder = Folder::new("broken");
        fs::create_dir_all(folder.0.join("gpu")).unwrap();
        let path = folder.0.join("gpu/learned.json");
        let whole = {
            let table = folder.table();
            table.add(entry(7, 4096, 5));
            table.save().unwrap();
            fs::read_to_string(&path).unwrap()
        };
        // A process that died while it wrote leaves a part of a file beside the whole one.
        fs::write(folder.0.join("gpu/learned.1.new"), &whole[..whole.len() / 2]).unwrap();
        assert_eq!(folder.table().entries().len(), 1);
        for text in [&whole[..whole.len() / 2], "", "{}", &whole.replace("NVIDIA H100", "NVIDIA H200")] {
            fs::write(&path, text).unwrap();
            let table = folder.table();
            assert!(table.entries().is_empty(), "{text}");
            table.add(entry(7, 4096, 5));
            table.save().unwrap();
            assert_eq!(folder.table().entries().len(), 1, "{text}");
        }
    }

    #[test]
    fn a_full_disk_is_an_error_and_loses_neither_the_file_nor_the_entries() {
        let folder = Folder::new("full");
        let table = folder.table();
        table.add(entry(7, 4096, 5));
        table.save().unwrap();
        table.add(entry(8, 4096, 5));
        // Writes to /dev/full fail as those to a full disk do.
        let unfinished = folder.0.join("gpu").join(format!("learned.{}.new", std::process::id()));
        std::os::unix::fs::symlink("/dev/full", &unfinished).unwrap();
        let error = table.save().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
        assert!(!unfinished.exists(), "the unfinished file is gone");
        assert_eq!(folder.table().entries().len(), 1, "the old file");
        assert!(table.save().unwrap(), "there is room again");
        assert_eq!(folder.table().entries().len(), 2);
    }
}
