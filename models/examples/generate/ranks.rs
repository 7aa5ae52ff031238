//! The ranks of a model, as threads of this process.

use anyhow::{bail, Result};
use candle::Device;
use candle_tilegemm::nn::parallel::Group;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// From one look at the ranks to the next.
const LOOK: Duration = Duration::from_millis(20);
/// What the other ranks have to end in once one has failed.
const GRACE: Duration = Duration::from_secs(2);

/// A rank at work.
pub struct Rank {
    pub group: Group,
    pub device: Device,
    pulse: Pulse,
}

impl Rank {
    /// The rank of a model that is whole.
    pub fn alone(device: Device) -> Self {
        Self { group: Group::one(), device, pulse: Pulse::default() }
    }

    /// Says what the rank does next.
    pub fn begin(&self, what: impl Into<Cow<'static, str>>) {
        self.pulse.begin(what);
    }
}

/// How far a rank has come. Clones are of the same rank.
#[derive(Clone, Default)]
pub struct Pulse(Arc<Mutex<Beat>>);

#[derive(Clone, Default)]
struct Beat {
    /// The steps that the rank has begun.
    count: u64,
    /// The one that it is in.
    what: Cow<'static, str>,
}

impl Pulse {
    /// Says what the rank does next.
    pub fn begin(&self, what: impl Into<Cow<'static, str>>) {
        let mut beat = self.last();
        *beat = Beat { count: beat.count + 1, what: what.into() };
    }

    fn last(&self) -> MutexGuard<'_, Beat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a thread makes its rank.
pub type Join = Box<dyn FnOnce(&Pulse) -> candle::Result<(Group, Device)> + Send>;

/// Ranks on the CPU.
pub fn threads(count: usize, timeout: Duration) -> Result<Vec<Join>> {
    // The look at the ranks comes first, and says what the rank did.
    let groups = Group::threads(count, 2 * timeout)?;
    Ok(groups.into_iter().map(|group| Box::new(move |_: &Pulse| Ok((group, Device::Cpu))) as Join).collect())
}

/// Ranks on as many GPUs, from the first on.
#[cfg(feature = "nccl")]
pub fn cards(count: usize) -> Result<Vec<Join>> {
    let there = candle_tilegemm::launch::device_count()?;
    if there < count {
        bail!("--cards {count}: there are {there} GPUs");
    }
    if std::env::var_os("NCCL_SOCKET_IFNAME").is_none() {
        std::env::set_var("NCCL_SOCKET_IFNAME", "lo"); // all ranks are threads of this process
    }
    let id = candle_tilegemm::nn::parallel::Id::new()?;
    let join = |rank: usize| -> Join {
        Box::new(move |pulse| {
            pulse.begin("opening its GPU");
            let device = Device::new_cuda(rank)?;
            pulse.begin("joining the group");
            Ok((Group::cards(&device, rank, count, id)?, device))
        })
    };
    Ok((0..count).map(join).collect())
}

#[cfg(not(feature = "nccl"))]
pub fn cards(count: usize) -> Result<Vec<Join>> {
    bail!("--cards {count}: this build has no NCCL; build with the feature nccl, or take --device cpu")
}

/// Runs the work of all ranks, and returns once all are done. The first rank that fails, or has begun nothing new for `timeout`, ends the call with its error: the
/// caller ends the process, and with it what other ranks wait for.
pub fn run(
    ranks: Vec<Join>,
    timeout: Duration,
    work: impl Fn(&Rank) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let (work, failure) = (Arc::new(work), Arc::new(Mutex::new(None)));
    let mut running: Vec<_> = ranks
        .into_iter()
        .enumerate()
        .map(|(rank, join)| {
            let pulse = Pulse::default();
            pulse.begin("starting");
            let (work, failure, of_rank) = (work.clone(), failure.clone(), pulse.clone());
            let thread = spawn(move || {
                let fail = |error: anyhow::Error| {
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert((rank, format!("{error:#}")));
                };
                match join(&of_rank) {
                    Ok((group, device)) => {
                        let mut end = End { group: group.clone(), is_good: false };
                        match work(&Rank { group, device, pulse: of_rank }) {
                            Ok(()) => end.is_good = true,
                            // Before the rank ends: the others fail by that.
                            Err(error) => fail(error),
                        }
                    }
                    Err(error) => fail(error.into()),
                }
            });
            Running { rank, thread, pulse, seen: (Beat::default(), Instant::now()) }
        })
        .collect();
    let mut failed: Option<Instant> = None;
    loop {
        sleep(LOOK);
        let (ended, goes_on): (Vec<_>, Vec<_>) = running.into_iter().partition(|running| running.thread.is_finished());
        running = goes_on;
        for Running { rank, thread, .. } in ended {
            if thread.join().is_err() {
                bail!("rank {rank} panicked");
            }
        }
        let of_rank = failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((rank, error)) = of_rank {
            if running.is_empty() || failed.get_or_insert_with(Instant::now).elapsed() > GRACE {
                bail!("rank {rank}: {error}");
            }
            continue;
        }
        if running.is_empty() {
            return Ok(());
        }
        running.iter_mut().for_each(Running::look);
        // Others wait for those that have come least far.
        let least = running.iter().map(|running| running.seen.0.count).min();
        let last: Vec<&Running> = running.iter().filter(|running| Some(running.seen.0.count) == least).collect();
        if last.iter().all(|running| running.seen.1.elapsed() > timeout) {
            let ranks: Vec<String> =
                last.iter().map(|running| format!("rank {} ({})", running.rank, running.seen.0.what)).collect();
            bail!("{}: no progress for {timeout:?}; --timeout waits longer", ranks.join(", "));
        }
    }
}

/// The end of a rank: one that failed or panicked does not wait for the others.
struct End {
    group: Group,
    is_good: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.is_good {
            self.group.abort();
        }
    }
}

struct Running {
    rank: usize,
    thread: std::thread::JoinHandle<()>,
    pulse: Pulse,
    /// The last beat, and when it came.
    seen: (Beat, Instant),
}

impl Running {
    fn look(&mut self) {
        let beat = self.pulse.last();
        if beat.count != self.seen.0.count {
            self.seen = (beat.clone(), Instant::now());
        }
    }
}
