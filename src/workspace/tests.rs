use super::streams::{Memory, Numbers, Stream, Streams, Supply, Workspace};
use super::{WorkspaceError, DEFAULT_BYTES, MOST_STREAMS};
use crate::settings;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Barrier;

const MIB: u64 = 1 << 20;

#[test]
fn the_default_is_the_one_that_the_settings_list() {
    assert_eq!(settings::WORKSPACE.default.parse::<u64>().unwrap() * MIB, DEFAULT_BYTES);
}

/// `Streams` with an allocator that counts, or fails.
struct Allocations {
    streams: Streams,
    supply: Counted,
}

struct Counted {
    made: usize,
    works: bool,
    /// Addresses that were taken over.
    taken: Vec<usize>,
}

impl Supply for Counted {
    fn allocate(&mut self) -> Result<Memory, String> {
        if !self.works {
            return Err("cudaErrorMemoryAllocation".into());
        }
        self.made += 1;
        Ok(Memory { address: self.made, event: 1000 + self.made })
    }

    fn take_over(&mut self, memory: Memory) -> Result<(), String> {
        assert_eq!(memory.event, 1000 + memory.address);
        self.taken.push(memory.address);
        Ok(())
    }
}

impl Allocations {
    fn of(&mut self, stream: Stream, capturing: bool) -> Result<usize, WorkspaceError> {
        self.ask(stream, 64 * MIB, false, capturing, true)
    }

    fn ask(
        &mut self,
        stream: Stream,
        bytes: u64,
        again: bool,
        capturing: bool,
        works: bool,
    ) -> Result<usize, WorkspaceError> {
        self.supply.works = works;
        let workspace = self.streams.workspace(stream, bytes, again, capturing, &mut self.supply)?;
        assert_eq!(workspace.bytes, 64 * MIB);
        Ok(workspace.memory.address)
    }

    /// The workspaces of the first `count` streams of device 0.
    fn first(&mut self, count: u64) -> Vec<&'static Workspace> {
        let mut of = |number| self.streams.workspace((0, number), 64 * MIB, false, false, &mut self.supply).unwrap();
        (0..count).map(&mut of).collect()
    }
}

fn none() -> Allocations {
    Allocations { streams: Streams::default(), supply: Counted { made: 0, works: true, taken: Vec::new() } }
}

#[test]
fn each_stream_of_each_device_has_one_and_keeps_it() {
    let mut all = none();
    assert_eq!((all.of((0, 7), false), all.of((0, 8), false), all.of((1, 7), false)), (Ok(1), Ok(2), Ok(3)));
    for capturing in [false, true] {
        assert_eq!((all.of((0, 7), capturing), all.of((1, 7), capturing)), (Ok(1), Ok(3)));
    }
    assert_eq!(all.supply.made, 3);
}

#[test]
fn a_stream_that_is_being_captured_gets_none_until_it_is_not() {
    let mut all = none();
    assert_eq!(all.of((0, 7), true), Err(WorkspaceError::Capturing));
    assert_eq!(all.of((0, 7), false), Ok(1));
}

#[test]
fn the_number_of_a_stream_is_known_while_it_is_captured() {
    let numbers = Numbers::default();
    assert_eq!(numbers.set(0, 1000, 7), None);
    numbers.set(0, 2, 8); // the per-thread default stream: another one on each thread
    let others = std::thread::scope(|scope| scope.spawn(|| [numbers.get(0, 1000), numbers.get(0, 2)]).join().unwrap());
    assert_eq!((numbers.get(0, 2), others), (Some(8), [Some(7), None]));
    assert_eq!((numbers.get(1, 1000), numbers.get(0, 1001)), (None, None));
    assert_eq!((numbers.set(0, 1000, 9), numbers.set(0, 1000, 9)), (Some(7), None), "7 is gone");
    assert_eq!(numbers.get(0, 1000), Some(9), "its handle is another stream's now");
    // CUDA's own handles mean another stream in each context.
    assert_eq!([0, 1, 2].map(|handle| (numbers.set(0, handle, 3), numbers.set(0, handle, 4)).1), [None; 3]);
    numbers.forget_per_thread(0);
    assert_eq!(numbers.get(0, 2), None);
}

#[test]
fn memory_that_ran_out_is_asked_for_again_only_where_that_is_wanted() {
    let mut all = none();
    let failed = Err(WorkspaceError::Failed("cudaErrorMemoryAllocation".into()));
    assert_eq!(all.ask((0, 7), 64 * MIB, false, false, false), failed);
    assert_eq!(all.of((0, 7), false), failed, "tried for each product");
    assert_eq!(all.ask((0, 7), 64 * MIB, true, false, true), Ok(1));
    assert_eq!(all.of((0, 7), true), Ok(1));
}

#[test]
fn streams_without_end_share_one_more() {
    let mut all = none();
    for stream in 0..MOST_STREAMS {
        assert_eq!(all.of((0, stream as u64), false), Ok(stream + 1));
    }
    assert_eq!(all.of((0, 100), true), Err(WorkspaceError::Capturing));
    for stream in 100..200 {
        assert_eq!(all.of((0, stream), false), Ok(MOST_STREAMS + 1));
    }
    assert_eq!((all.of((0, 3), false), all.of((1, 100), false)), (Ok(4), Ok(MOST_STREAMS + 2)));
    assert_eq!(none().ask((0, 200), 0, false, false, true), Err(WorkspaceError::Off));
}

#[test]
fn streams_beyond_the_most_share_a_workspace() {
    let first = none().first(10);
    let shared: Vec<bool> = first.iter().map(|workspace| workspace.is_shared()).collect();
    assert_eq!(shared, [[false; 8].as_slice(), &[true; 2]].concat());
    assert!(std::ptr::eq(first[8], first[9]));
}

#[test]
fn streams_that_come_and_go_hand_their_workspace_on() {
    let mut all = none();
    all.first(7);
    for stream in 100..1000 {
        assert_eq!(all.of((0, stream), false), Ok(8), "stream {stream}");
        all.streams.retire((0, stream));
    }
    assert_eq!((all.supply.made, all.supply.taken.len()), (8, 899), "each waits for the last work of the one before");
    assert_eq!(
        all.of((0, 2000), true),
        Err(WorkspaceError::Capturing),
        "a capture cannot wait for what is outside of it"
    );
    assert_eq!(all.of((1, 2000), false), Ok(9), "another device's");
    assert_eq!((all.of((0, 2000), false), all.of((0, 2000), true)), (Ok(8), Ok(8)));
    all.streams.retire((0, 5000)); // never seen
    assert_eq!(all.of((0, 2001), false), Ok(10), "all eight are in use");
}

#[test]
fn what_a_graph_has_or_nothing_waits_for_is_not_handed_on() {
    let mut all = none();
    let first = all.first(8);
    first[0].set_captured();
    first[1].set_recorded(false);
    (0..3).for_each(|stream| all.streams.retire((0, stream)));
    assert_eq!(all.of((0, 100), false), Ok(3));
    assert_eq!(all.of((0, 101), false), Ok(9), "shared");
    assert_eq!(all.supply.taken, [3]);
    // No other stream has the number of this stream, so that a second question finds the same workspace.
    assert_eq!((all.of((0, 0), true), all.of((0, 1), false)), (Ok(1), Ok(2)));
}

#[test]
fn uses_are_recorded_from_half_of_the_most_on() {
    let mut all = none();
    all.first(MOST_STREAMS as u64 / 2 - 1);
    assert!(!all.streams.is_tight());
    all.first(MOST_STREAMS as u64 / 2);
    assert!(all.streams.is_tight());
}

#[test]
fn a_stream_that_is_gone_leaves_no_failure_behind() {
    let mut all = none();
    assert!(all.ask((0, 7), 64 * MIB, false, false, false).is_err());
    all.streams.retire((0, 7));
    assert_eq!(all.of((0, 7), false), Ok(1), "the failure was forgotten");
}

#[test]
fn threads_that_share_a_stream_launch_one_product_after_the_other() {
    let streams = Streams::default();
    let (inside, start) = (AtomicUsize::new(0), Barrier::new(4));
    let launch = || {
        start.wait();
        for _ in 0..1000 {
            let mut supply = none().supply;
            let workspace = streams.workspace((0, 7), MIB, false, false, &mut supply).unwrap();
            let _launching = workspace.launching();
            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two at a time");
            inside.fetch_sub(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(launch))));
}
