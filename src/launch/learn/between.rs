//! What a program launches between the calls of a product, and which product's kernels are timed.

use crate::dispatch::Planned;
use crate::launch::device::{current_device, MOST_DEVICES};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

thread_local! {
    /// The sum of a hash of each launch of the thread: a difference of two is of the launches between, in any order.
    static LAUNCHES: Cell<u64> = const { Cell::new(0) };
}

/// Takes note of a launch.
pub fn note(plan: &Planned) {
    let hash = (std::ptr::from_ref(plan) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    LAUNCHES.set(LAUNCHES.get().wrapping_add(hash ^ hash >> 32));
}

/// The sum so far.
pub fn launches() -> u64 {
    LAUNCHES.get()
}

/// Calls of products that wait, after which the one that has its turn loses it.
const MOST_WAITING: u32 = 256;

/// The contest whose samples are taken, by device: another one's kernels in turn would lie between its calls.
static ACTIVE: [AtomicUsize; MOST_DEVICES] = [const { AtomicUsize::new(0) }; MOST_DEVICES];
/// Calls that have waited for it.
static WAITING: [AtomicU32; MOST_DEVICES] = [const { AtomicU32::new(0) }; MOST_DEVICES];

/// Whether a contest, by its address, may take samples of several calls on the current device.
pub fn claim(contest: usize) -> bool {
    current_device().is_ok_and(|device| device < MOST_DEVICES && claim_on(device, contest))
}

fn claim_on(device: usize, contest: usize) -> bool {
    let is_mine = match ACTIVE[device].compare_exchange(0, contest, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(active) => active == contest || WAITING[device].fetch_add(1, Ordering::Relaxed) >= MOST_WAITING,
    };
    if is_mine {
        ACTIVE[device].store(contest, Ordering::Relaxed);
        WAITING[device].store(0, Ordering::Relaxed);
    }
    is_mine
}

/// Lets another contest take samples on the current device.
pub fn release(contest: usize) {
    if let Some(device) = current_device().ok().filter(|device| *device < MOST_DEVICES) {
        release_on(device, contest);
    }
}

fn release_on(device: usize, contest: usize) {
    let _ = ACTIVE[device].compare_exchange(contest, 0, Ordering::Relaxed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{claim_on, release_on, MOST_WAITING};

    #[test]
    fn one_contest_at_a_time_and_none_waits_for_ever() {
        assert!(claim_on(3, 1) && claim_on(3, 1) && !claim_on(3, 2));
        assert!(claim_on(4, 2), "another device");
        release_on(3, 2);
        assert!(!claim_on(3, 2), "it was not the second one's");
        release_on(3, 1);
        assert!(claim_on(3, 2));
        assert!((0..MOST_WAITING).all(|_| !claim_on(3, 1)));
        assert!(claim_on(3, 1) && !claim_on(3, 2));
    }
}
