//! What launches of a layer's kernels share.

use super::arguments;
use super::device::{check, current_device};
use super::dispatchers::{dispatcher, overlaps};
use super::modules::{self, Beside};
use crate::error::{Error, Result};
use crate::ffi;
use crate::problem::Format;
use std::ffi::c_void;

/// How kernels of a layer are launched on a stream of the current device; loads them at the first call.
pub(crate) fn on(stream: *mut c_void) -> Result<ffi::tg_launch> {
    modules::beside(Beside::Layers)?;
    let multiprocessors = dispatcher(current_device()?)?.device().sm_count as i32;
    Ok(ffi::tg_launch { stream, overlap: overlaps()?.into(), multiprocessors })
}

pub(crate) fn format(format: Format) -> ffi::tg_format {
    arguments::format(format)
}

/// The answer of a launch function.
pub(crate) fn answer(block: &'static str, status: ffi::tg_status) -> Result<()> {
    match status {
        ffi::tg_status::TG_UNSUPPORTED => {
            let what = "the kernel refused arguments that were checked, or this build has no kernel for the device; build with its arch, or report this";
            Err(Error::Layer { block, what: what.into() })
        }
        status => check(block, status),
    }
}
