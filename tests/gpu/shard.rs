//! A part of the tests, for several cards or short leases: `--shard 2/3` is the second of three parts. Several parts at once, each in a process of its own:
//! `--jobs 4`. And what had run when the program is cut.

use crate::device::Gpu;
use crate::Test;
use libtest_mimic::Arguments;
use rayon::prelude::*;
use rayon::ThreadPoolBuilder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The number of a part, from 0, the number of parts, and the first test, from 1.
#[derive(Clone)]
pub struct Shard {
    part: usize,
    parts: usize,
    from: usize,
    /// How many processes run the tests, and what each is called with beside its part.
    jobs: usize,
    others: Vec<String>,
    /// Whether this is one of several processes.
    pub beside: bool,
}

/// A test at its place of the list.
pub struct Listed {
    pub place: usize,
    pub name: String,
    pub test: Test,
    pub is_left_out: bool,
}

impl Shard {
    /// The arguments of this process, and the part that they ask for: `--shard 2/3`, `--from 651` to go on where a run was cut, `--jobs 4` for four
    /// processes at once, each of which is called with `--beside` and gets the places of its tests by its standard input.
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
        let (shard, from, jobs) = (take("--shard"), take("--from"), take("--jobs"));
        let jobs = jobs.map_or(1, |value| {
            understood("--jobs", &value, "a number of processes", value.parse().ok().filter(|jobs| *jobs > 0))
        });
        let at = arguments.iter().position(|argument| argument == "--beside");
        let beside = at.map(|at| arguments.remove(at)).is_some();
        let (part, parts) = shard.map_or((0, 1), |value| {
            understood("--shard", &value, "a part and the number of parts, such as 1/3", Self::parse(&value))
        });
        let from = from.map_or(1, |value| understood("--from", &value, "the number of a test", value.parse().ok()));
        let others = arguments[1..].to_vec();
        let arguments = Arguments::from_iter(arguments);
        let jobs = if arguments.list { 1 } else { jobs };
        (arguments, Self { part, parts, from, jobs, others, beside })
    }

    fn parse(text: &str) -> Option<(usize, usize)> {
        let (part, parts) = text.split_once('/')?;
        let (part, parts) = (part.parse::<usize>().ok()?, parts.parse::<usize>().ok()?);
        (1..=parts).contains(&part).then(|| (part - 1, parts))
    }

    /// Whether this part has the test at that place of the list. Neighbours take about as long, and go to different parts. A test that needs the card `alone`
    /// runs in the process that has started the others, when they have ended.
    pub fn has(&self, place: usize, alone: bool) -> bool {
        let in_this_process = if alone { !self.beside } else { self.beside || self.jobs == 1 };
        in_this_process && self.is_asked(place)
    }

    fn is_asked(&self, place: usize) -> bool {
        place % self.parts == self.part && place + 1 >= self.from
    }

    /// All tests in this process.
    pub fn in_one_process(self) -> Self {
        Self { jobs: 1, ..self }
    }

    /// Removes the file of times, to which each process adds.
    pub fn begin_times(&self) {
        if let Some(path) = std::env::var_os("TILEGEMM_TEST_TIMES").filter(|_| !self.beside) {
            let _ = std::fs::remove_file(path); // it may not be there
        }
    }

    /// Runs the first `count` tests, which need not the card alone, in several processes, prints their lines whole, and returns whether all passed. Most of a
    /// test's time is the host's. A process takes the next test when it has run one: all read the places of tests from one pipe.
    pub fn run_beside(&self, count: usize) -> bool {
        if self.jobs == 1 {
            return true;
        }
        let program = std::env::current_exe().expect("the path of this program");
        let (places, mut to) = std::io::pipe().expect("a pipe");
        let jobs = self.jobs;
        let start = |job: usize| {
            let mut command = Command::new(&program);
            command.args(&self.others).arg("--beside").stdout(Stdio::piped());
            command.args([format!("--shard={}/{}", self.part + 1, self.parts), format!("--from={}", self.from)]);
            command.stdin(places.try_clone().expect("the pipe"));
            // Operands and oracles are large and short-lived: glibc keeps their memory, and the kernel need not clear it anew.
            command.env("MALLOC_MMAP_MAX_", "0").env("MALLOC_TRIM_THRESHOLD_", "1000000000000");
            (job + 1, command.spawn().expect("this program starts once more"))
        };
        let children: Vec<_> = (0..self.jobs).map(start).collect();
        CHILDREN.lock().expect("no thread panicked").extend(children.iter().map(|(_, child)| child.id()));
        let asked = (0..count).filter(|place| self.is_asked(*place));
        let bytes: Vec<u8> = asked.flat_map(|place| (place as u32).to_ne_bytes()).collect();
        drop(places);
        let _ = to.write_all(&bytes); // where all processes have ended, the count of tests says so
        drop(to);
        let counts = [0; 3].map(AtomicUsize::new);
        let read = |(job, mut child): (usize, std::process::Child)| {
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            for line in lines.map_while(Result::ok).filter(|line| !line.is_empty()) {
                println!("[{job}/{jobs}] {line}");
                for (count, what) in counts.iter().zip(["passed", "failed", "ignored"]) {
                    count.fetch_add(counted_in(&line, what), Ordering::Relaxed);
                }
            }
            let passed = child.wait().expect("a process of this one's").success();
            CHILDREN.lock().expect("no thread panicked").retain(|id| *id != child.id());
            passed
        };
        let passed = std::thread::scope(|scope| {
            let readers: Vec<_> = children.into_iter().map(|child| scope.spawn(|| read(child))).collect();
            readers.into_iter().map(|reader| reader.join().is_ok_and(|passed| passed)).collect::<Vec<_>>()
        });
        let [done, failed, ignored] = counts.map(AtomicUsize::into_inner);
        println!("{jobs} processes: {done} passed, {failed} failed, {ignored} ignored");
        passed.into_iter().all(|passed| passed)
    }
}

/// Runs those of the tests whose places come by standard input, and that the arguments ask for, in a process beside others.
pub fn run_as_told(arguments: &Arguments, tests: Vec<Listed>, gpu: &Result<Gpu, String>) -> ExitCode {
    let mut places = File::from(std::io::stdin().as_fd().try_clone_to_owned().expect("standard input"));
    let mut next = || {
        let mut place = [0; 4]; // a pipe gives four bytes of one process to one process
        places.read_exact(&mut place).ok().map(|()| u32::from_ne_bytes(place) as usize)
    };
    let is_meant = |name: &str, word: &String| if arguments.exact { name == word } else { name.contains(word) };
    let [mut passed, mut failed, mut ignored] = [0; 3];
    while let Some(place) = next() {
        let Some(Listed { name, test, is_left_out, .. }) = tests.iter().find(|test| test.place == place) else {
            continue;
        };
        let is_asked = arguments.filter.as_ref().is_none_or(|word| is_meant(name, word));
        if !is_asked || arguments.skip.iter().any(|word| is_meant(name, word)) {
            continue;
        }
        let (count, verdict) = if *is_left_out {
            (&mut ignored, "ignored")
        } else {
            let run = || counted(place, name, || gpu.as_ref().map_err(Clone::clone).and_then(test));
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => (&mut passed, "ok"),
                _ => (&mut failed, "FAILED"),
            }
        };
        *count += 1;
        println!("test {name} ... {verdict}");
    }
    print_times();
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored");
    ExitCode::from(if failed == 0 { 0 } else { 101 })
}

/// The number before this word in a line `test result: ... 12 passed; ...`.
fn counted_in(line: &str, what: &str) -> usize {
    let result = line.strip_prefix("test result: ").unwrap_or_default();
    let before = result.split(['.', ';']).find_map(|part| part.trim().strip_suffix(what));
    before.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}

/// The processes that run beside this one.
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

static PLACE: AtomicUsize = AtomicUsize::new(0);
static TESTS: AtomicUsize = AtomicUsize::new(0);
static RAN: AtomicUsize = AtomicUsize::new(0);
static FAILED: AtomicUsize = AtomicUsize::new(0);
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// Says how many of the `tests` of this part ran when SIGTERM or SIGINT ends the process, as a time limit does.
pub fn count(tests: usize) {
    TESTS.store(tests, Ordering::Relaxed);
    let said = ctrlc::set_handler(|| {
        let children = CHILDREN.lock().map(|children| children.clone()).unwrap_or_default();
        if !children.is_empty() {
            let _ = Command::new("kill").args(children.iter().map(u32::to_string)).status();
            std::thread::sleep(Duration::from_secs(2)); // they say what had run
            println!("\ncut: the least --from of the processes above goes on");
            std::process::exit(143);
        }
        let [tests, ran, failed] = [&TESTS, &RAN, &FAILED].map(|count| count.load(Ordering::Relaxed));
        let next = PLACE.load(Ordering::Relaxed) + 1;
        println!("\ncut: {ran} of {tests} tests had run here, {failed} of them failed; --from {next} goes on");
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
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let text = lines().map(|line| line + "\n").collect::<String>();
        if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
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
