//! The dispatchers of this process, one for each device, and the policy that the environment asks for.

use super::device::{current_device, device_info, MOST_DEVICES};
use super::library::library;
use super::modules;
use crate::dispatch::Dispatcher;
#[cfg(any(feature = "candle", feature = "interpose"))]
use crate::dispatch::{batch_invariant, Policy};
use crate::error::{Error, Result};
use once_cell::sync::OnceCell;

static DISPATCHERS: [OnceCell<Dispatcher>; MOST_DEVICES] = [const { OnceCell::new() }; MOST_DEVICES];

/// The dispatcher of a device, made at the first call. A failure is not kept: the next call tries again.
///
/// # Errors
/// [`Error::NoDevice`] without a driver or a device of that ordinal, [`Error::Abi`] and [`Error::TableMismatch`] when the
/// linked kernels differ from the table, [`Error::Tuning`] when the measured table that `TILEGEMM_TUNING` names is
/// refused.
pub fn dispatcher(ordinal: usize) -> Result<&'static Dispatcher> {
    let cell = DISPATCHERS.get(ordinal).ok_or_else(|| Error::NoDevice(format!("there is no device {ordinal}")))?;
    cell.get_or_try_init(|| {
        library()?;
        let dispatcher = Dispatcher::new(device_info(ordinal)?).with_user_tuning()?;
        // Kernels for a device whose memory is full.
        if current_device()? == ordinal {
            modules::load_least(ordinal, dispatcher.device().capability)?;
        }
        Ok(dispatcher)
    })
}

/// The dispatchers that were made so far, with the ordinals of their devices.
pub(crate) fn dispatchers() -> impl Iterator<Item = (usize, &'static Dispatcher)> {
    DISPATCHERS.iter().enumerate().filter_map(|(ordinal, cell)| Some((ordinal, cell.get()?)))
}

/// The policy that the environment and the process ask for; the environment is read once.
#[cfg(any(feature = "candle", feature = "interpose"))]
pub(crate) fn policy() -> Result<Policy> {
    static POLICY: OnceCell<Policy> = OnceCell::new();
    let policy = POLICY.get_or_try_init(Policy::from_env)?;
    Ok(policy.with_batch_invariance(batch_invariant()?))
}
