//! The CUDA modules that hold the kernels. CUDA loads a module at the first launch of one of the module's kernels. A
//! capture in global mode on any thread of the process forbids loading.

use super::device::{check, MOST_DEVICES};
use super::library::library;
use crate::error::{Error, Result};
use crate::family::KERNELS;
use once_cell::sync::OnceCell;

/// Loads the modules of all kernels that are built for the current device, once. `ordinal` is the current device's
/// ordinal, `capability` its compute capability.
pub(super) fn load(ordinal: usize, capability: u16) -> Result<()> {
    static LOADED: [OnceCell<()>; MOST_DEVICES] = [const { OnceCell::new() }; MOST_DEVICES];
    let cell = LOADED.get(ordinal).ok_or_else(|| Error::NoDevice(format!("there is no device {ordinal}")))?;
    cell.get_or_try_init(|| {
        let kernels = KERNELS.iter().zip(library()?).filter(|(kernel, _)| kernel.arch.runs_on(capability));
        let mut functions: Vec<_> = kernels.filter_map(|(_, linked)| linked.as_ref()?.0.load).collect();
        functions.sort_by_key(|function| *function as usize);
        functions.dedup_by_key(|function| *function as usize);
        // SAFETY: functions of tilegemm.h without arguments.
        functions.into_iter().try_for_each(|function| check("cuFuncLoad", unsafe { function() }))
    })
    .copied()
}
