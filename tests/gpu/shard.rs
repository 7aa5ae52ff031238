//! A part of the tests, for several cards or short leases: `--shard 2/3` is the second of three parts. And what had run when the program is cut.

use libtest_mimic::Arguments;
use rayon::prelude::*;
use rayon::ThreadPoolBuilder;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The number of a part, from 0, the number of parts, and the first test, from 1.
#[derive(Clone, Copy)]
pub struct Shard {
    part: usize,
    parts: usize,
    from: usize,
}

impl Shard {
    /// The arguments of this process, and the part that they ask for: `--shard 2/3`, and `--from 651` to go on where a run was cut.
    pub fn from_args() -> (Arguments, Self) {
        let mut arguments: Vec<String> = std::env::args().collect();
        let mut take = |name: &str| -> Option<String> {
            let at = arguments.iter().position(|argument| argument.split('=').next() == Some(name))?;
            let option = arguments.remove(at);
            Some(match option.split_once('=') {
                Some((_, value)) => value.to_string(),
                None if at < arguments.len() => arguments.remove(at),
                None => String::new(),
            })
        };
        fn understood<T>(name: &str, value: &str, example: &str, parsed: Option<T>) -> T {
            parsed.unwrap_or_else(|| {
                eprintln!("{name} {value}: expected {example}");
                std::process::exit(2);
            })
        }
        let (shard, from) = (take("--shard"), take("--from"));
        let (part, parts) = shard.map_or((0, 1), |value| {
            understood("--shard", &value, "a part and the number of parts, such as 1/3", Self::parse(&value))
        });
        let from = from.map_or(1, |value| understood("--from", &value, "the number of a test", value.parse().ok()));
        (Arguments::from_iter(arguments), Self { part, parts, from })
    }

    fn parse(text: &str) -> Option<(usize, usize)> {
        let (part, parts) = text.split_once('/')?;
        let (part, parts) = (part.parse::<usize>().ok()?, parts.parse::<usize>().ok()?);
        (1..=parts).contains(&part).then(|| (part - 1, parts))
    }

    /// Whether this part has the test at that place of the list. Neighbours take about as long, and go to different parts.
    pub fn has(self, place: usize) -> bool {
        place % self.parts == self.part && place + 1 >= self.from
    }
}

static PLACE: AtomicUsize = AtomicUsize::new(0);
static TESTS: AtomicUsize = AtomicUsize::new(0);
static RAN: AtomicUsize = AtomicUsize::new(0);
static FAILED: AtomicUsize = AtomicUsize::new(0);
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// Says how many of the `tests` of this part ran when SIGTERM or SIGINT ends the process, as a time limit does.
pub fn count(tests: usize) {
    TESTS.store(tests, Ordering::Relaxed);
    let said = ctrlc::set_handler(|| {
        let [tests, ran, failed] = [&TESTS, &RAN, &FAILED].map(|count| count.load(Ordering::Relaxed));
        let next = PLACE.load(Ordering::Relaxed) + 1;
        println!(
            "\ncut: {ran} of the {tests} tests of this part had run, {failed} of them failed; --from {next} goes on"
        );
        print_times();
        std::process::exit(143);
    });
    said.expect("no other handler of signals");
}

/// The tests that took longest, in a table; the whole list in the file that TILEGEMM_TEST_TIMES names.
pub fn print_times() {
    let Ok(mut times) = TIMES.lock() else { return };
    times.sort_by(|a, b| b.cmp(a));
    let all: Duration = times.iter().map(|(time, _)| *time).sum();
    println!("{} tests in {:.0} s; the longest:", times.len(), all.as_secs_f64());
    let lines = || times.iter().map(|(time, name)| format!("{:8.2} s  {name}", time.as_secs_f64()));
    lines().take(20).for_each(|line| println!("{line}"));
    if let Some(path) = std::env::var_os("TILEGEMM_TEST_TIMES") {
        if let Err(error) = std::fs::write(&path, lines().collect::<Vec<_>>().join("\n")) {
            eprintln!("TILEGEMM_TEST_TIMES={}: {error}", path.display());
        }
    }
}

/// Runs a test, counts it and keeps its time; one that panics has failed.
pub fn counted<T>(place: usize, name: &str, test: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    struct Count<'a> {
        name: &'a str,
        began: Instant,
        failed: bool,
    }
    impl Drop for Count<'_> {
        fn drop(&mut self) {
            RAN.fetch_add(1, Ordering::Relaxed);
            FAILED.fetch_add(usize::from(self.failed), Ordering::Relaxed);
            if let Ok(mut times) = TIMES.lock() {
                times.push((self.began.elapsed(), self.name.to_string()));
            }
        }
    }
    PLACE.store(place, Ordering::Relaxed);
    let mut count = Count { name, began: Instant::now(), failed: true };
    let result = test();
    count.failed = result.is_err();
    if let Err(error) = &result {
        println!("{name}: {error}"); // now, as the process may be cut
    }
    result
}

/// Runs `one` for each item by all cores at once, on threads that end before the result is there: the workspaces of their streams are free then. The test's
/// own thread captures graphs, and a workspace that a graph has seen stays with its stream.
pub fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    one: impl Fn(&T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let mut threads = Vec::new();
    let pool = ThreadPoolBuilder::new().spawn_handler(|thread| {
        threads.push(std::thread::Builder::new().spawn(|| thread.run())?);
        Ok(())
    });
    let pool = pool.build().expect("a pool of threads");
    let result = pool.install(|| items.par_iter().map(&one).collect());
    drop(pool);
    threads.into_iter().for_each(|thread| thread.join().expect("a thread of the pool ends"));
    result
}
