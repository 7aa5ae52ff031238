//! The observer of launches.

use crate::dispatch::Planned;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::RwLock;

/// A launch that is about to be made.
#[cfg_attr(not(any(feature = "interpose", test)), expect(dead_code))]
pub(crate) struct Launch<'a> {
    /// The plan of the product.
    pub plan: &'a Planned,
    /// The plan that runs: the same one, or [`Planned::without_workspace`].
    pub ready: &'a Planned,
}

/// Observes a launch, on the thread that makes the launch.
pub(crate) type Observer = fn(&Launch);

struct Slot {
    observer: RwLock<Option<Observer>>,
    is_filled: AtomicBool,
}

static SLOT: Slot = Slot::new();

impl Slot {
    const fn new() -> Self {
        Self { observer: RwLock::new(None), is_filled: AtomicBool::new(false) }
    }

    #[cfg_attr(not(any(feature = "interpose", test)), expect(dead_code))]
    fn set(&self, observer: Option<Observer>) {
        let mut current = self.observer.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *current = observer;
        self.is_filled.store(observer.is_some(), Ordering::Relaxed);
    }

    fn report(&self, launch: &Launch) {
        if self.is_filled.load(Ordering::Relaxed) {
            self.tell(launch);
        }
    }

    #[cold]
    fn tell(&self, launch: &Launch) {
        let observer = *self.observer.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(observer) = observer {
            observer(launch);
        }
    }
}

/// Installs this observer, or none, for all later launches of the process, in place of the observer before.
#[cfg(feature = "interpose")]
pub(crate) fn observe(observer: Option<Observer>) {
    SLOT.set(observer);
}

/// Reports the launch to the observer, if there is one.
pub(super) fn report(plan: &Planned, ready: &Planned) {
    SLOT.report(&Launch { plan, ready });
}

#[cfg(test)]
mod tests {
    use super::{Launch, Slot};
    use crate::arch::DeviceInfo;
    use crate::dispatch::{Dispatcher, Policy};
    use crate::problem::{Format, Layout, Problem};
    use std::cell::RefCell;

    thread_local! {
        static TOLD: RefCell<Vec<Problem>> = const { RefCell::new(Vec::new()) };
    }

    fn keep(launch: &Launch) {
        assert!(std::ptr::eq(launch.plan, launch.ready));
        TOLD.with_borrow_mut(|told| told.push(launch.plan.asked));
    }

    #[test]
    fn an_observer_is_told_of_each_launch_until_there_is_none() {
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
        let problem = Problem::dense(8, 64, 64, 1, Layout::NT, Format::BF16);
        let plan = dispatcher.plan(&problem, Policy::own()).unwrap();
        let (slot, launch) = (Slot::new(), Launch { plan: &plan, ready: &plan });
        slot.report(&launch);
        slot.set(Some(keep));
        slot.report(&launch);
        slot.report(&launch);
        slot.set(None);
        slot.report(&launch);
        assert_eq!(TOLD.take(), [problem; 2]);
    }
}
