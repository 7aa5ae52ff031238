//! What a program launches between the calls of a product, and which product's kernels are timed.

use crate::dispatch::Planned;
use crate::launch::device::{current_device, MOST_DEVICES};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

thread_local! {
    /// A hash of the thread's launches since [`begin`].
    static LAUNCHES: Cell<u64> = const { Cell::new(0) };
}

/// Takes note of a launch.
pub fn note(plan: &Planned) {
    let address = std::ptr::from_ref(plan) as u64;
    LAUNCHES.set((LAUNCHES.get().rotate_left(9) ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15));
}

/// Forgets the thread's launches.
pub fn begin() {
    LAUNCHES.set(0);
}

/// A hash of the thread's launches since [`begin`].
pub fn hash() -> u64 {
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
    let Some(device) = current_device().ok().filter(|device| *device < MOST_DEVICES) else { return false };
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

/// Lets another contest take samples.
pub fn release(contest: usize) {
    for active in &ACTIVE {
        let _ = active.compare_exchange(contest, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{claim, release, MOST_WAITING};

    #[test]
    fn one_contest_at_a_time_and_none_waits_for_ever() {
        if crate::launch::device::current_device().is_err() {
            return assert!(!claim(1), "no device, no samples");
        }
        assert!(claim(1) && claim(1) && !claim(2));
        release(2);
        assert!(!claim(2));
        release(1);
        assert!(claim(2));
        assert!((0..MOST_WAITING).all(|_| !claim(1)) && claim(1) && !claim(2));
        release(1);
    }
}
