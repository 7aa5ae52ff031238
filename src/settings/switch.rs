//! Switches that a program sets, or the environment.

use crate::error::Result;
use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicU8, Ordering};

/// A switch of the process: as the program has set it, else as the environment says, which is read once.
pub(crate) struct Switch {
    /// 0: not set; else the switch plus one.
    set: AtomicU8,
    of_env: OnceCell<bool>,
    read: fn() -> Result<bool>,
}

impl Switch {
    pub const fn new(read: fn() -> Result<bool>) -> Self {
        Self { set: AtomicU8::new(0), of_env: OnceCell::new(), read }
    }

    pub fn set(&self, on: bool) {
        self.set.store(u8::from(on) + 1, Ordering::Relaxed);
    }

    /// # Errors
    /// [`Error::BadSetting`](crate::Error::BadSetting) when the environment variable decides and its value is neither on nor off.
    pub fn is_on(&self) -> Result<bool> {
        match self.set.load(Ordering::Relaxed) {
            0 => self.of_env.get_or_try_init(self.read).copied(),
            set => Ok(set > 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Switch;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_the_program_sets_counts_before_the_environment_which_is_read_once() {
        static READ: AtomicU32 = AtomicU32::new(0);
        static SWITCH: Switch = Switch::new(|| {
            READ.fetch_add(1, Ordering::Relaxed);
            Ok(true)
        });
        assert!(SWITCH.is_on().unwrap() && SWITCH.is_on().unwrap());
        assert_eq!(READ.load(Ordering::Relaxed), 1);
        SWITCH.set(false);
        assert!(!SWITCH.is_on().unwrap());
        SWITCH.set(true);
        assert!(SWITCH.is_on().unwrap());
    }
}
