//! The dispatchers of this process, one for each device, and the policy that the environment asks for.

use super::device::{current_device, device_info, MOST_DEVICES};
use super::library::library;
use super::modules;
use crate::dispatch::Dispatcher;
#[cfg(any(feature = "candle", feature = "interpose"))]
use crate::dispatch::{batch_invariant, Policy};
use crate::error::{Error, Result};
use crate::settings;
use crate::stderr::tell;
use once_cell::sync::OnceCell;
use std::collections::BTreeSet;
use std::sync::Mutex;

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
        new_complaints(&dispatcher).iter().for_each(|complaint| tell(complaint));
        Ok(dispatcher)
    })
}

/// The complaints that no dispatcher of this process has had before: devices of one model have the same tables.
fn new_complaints(dispatcher: &Dispatcher) -> Vec<String> {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    dispatcher.complaints().into_iter().filter(|complaint| told.insert(complaint.clone())).collect()
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

/// Whether a kernel may start while the kernel before still runs: `TILEGEMM_PDL=on|off`.
pub(super) fn overlap() -> Result<bool> {
    static OVERLAP: OnceCell<bool> = OnceCell::new();
    OVERLAP.get_or_try_init(settings::overlap).copied()
}

/// Whether kernels may overlap on the current device.
#[cfg(any(all(feature = "candle", feature = "experts"), feature = "interpose-mistralrs", feature = "layers"))]
pub(super) fn overlaps() -> Result<bool> {
    Ok(overlap()? && dispatcher(current_device()?)?.device().capability >= 90)
}

#[cfg(test)]
mod tests {
    use super::new_complaints;
    use crate::arch::DeviceInfo;
    use crate::dispatch::Dispatcher;
    use crate::tuning::{Origin, Tuning};

    #[test]
    fn a_process_complains_of_a_table_once() {
        let device = DeviceInfo::h100();
        let entry = r#"{"dtype":"bf16","layout":"nt","n":64,"k":64,"batch":1,"aligned":true,"epilogue":"none","among":"own",
            "m":[1,4],"kernel":"sm90_gone","code":"0123456789abcdef","gain":1.1}"#;
        let empty = Tuning::new("any", Origin::of_this_build(&device)).to_text();
        let text = empty.replace("\"entries\": []", &format!("\"entries\": [{entry}]"));
        let dispatcher = || {
            let table = Tuning::parse("once.json", &text).unwrap();
            Dispatcher::hypothetical(device.clone()).with_tuning(table).unwrap()
        };
        let counts = "1 entry is refused: 1 of kernels that are gone";
        assert_eq!(new_complaints(&dispatcher()), [format!("of once.json, {counts}; `tilegemm doctor` names them")]);
        assert!(new_complaints(&dispatcher()).is_empty(), "another device of the model");
    }
}
