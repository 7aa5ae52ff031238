//! The GPUs that a command can be about: one list for every subcommand.

use super::words::{self, Words};
use super::Result;
use candle_tilegemm::arch::DeviceInfo;

/// The names of cards, and `this`.
pub fn names() -> Words<String> {
    words::names(DeviceInfo::names().chain(["this"]))
}

/// The card of this name; `this` is the first GPU of this machine.
pub fn find(name: &str) -> Result<DeviceInfo> {
    match DeviceInfo::by_name(name) {
        Some(device) => Ok(device),
        None => this(),
    }
}

#[cfg(feature = "cuda")]
fn this() -> Result<DeviceInfo> {
    Ok(candle_tilegemm::launch::device_info(0)?)
}

#[cfg(not(feature = "cuda"))]
fn this() -> Result<DeviceInfo> {
    Err("this build cannot see GPUs; build it with the feature `cuda`, or name one: --device h100".into())
}
