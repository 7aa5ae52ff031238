//! The linked kernels, compared with the table.

use super::arguments::{format, layout, math};
use crate::error::{Error, Result};
use crate::family::KERNELS;
use crate::ffi;
use crate::kernel::KernelDesc;
use once_cell::sync::OnceCell;
use std::ffi::CStr;

/// A descriptor of the linked library.
#[derive(Clone, Copy)]
pub(super) struct Linked(pub &'static ffi::tg_kernel);

// SAFETY: a descriptor is constant data; its name is a string literal and its function may be called from any thread.
unsafe impl Send for Linked {}
// SAFETY: as above.
unsafe impl Sync for Linked {}

/// The linked kernels by their position in [`KERNELS`]; checked once against the table.
pub(super) fn library() -> Result<&'static Vec<Option<Linked>>> {
    static LIBRARY: OnceCell<Vec<Option<Linked>>> = OnceCell::new();
    LIBRARY.get_or_try_init(|| {
        // SAFETY: no arguments.
        let have = unsafe { ffi::tg_abi_version() };
        let need = ffi::TG_ABI_VERSION as i32;
        if have != need {
            return Err(Error::Abi { have, need });
        }
        let mut table = vec![None; KERNELS.len()];
        for kernel in linked_kernels() {
            // SAFETY: names are string literals of the library.
            let name = unsafe { CStr::from_ptr(kernel.name) }.to_string_lossy();
            let index = KERNELS.iter().position(|desc| desc.name == name);
            let index = index.ok_or_else(|| Error::TableMismatch {
                kernel: name.into_owned(),
                what: "the table has no such row".into(),
            })?;
            check_against_table(kernel, &KERNELS[index])?;
            table[index] = Some(Linked(kernel));
        }
        Ok(table)
    })
}

/// Checks every linked kernel against its row of the table, as the first launch does.
///
/// ```
/// println!("{} kernels are linked", candle_tilegemm::launch::verify_library()?);
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
///
/// # Errors
/// [`Error::Abi`] or [`Error::TableMismatch`].
pub fn verify_library() -> Result<usize> {
    Ok(library()?.iter().flatten().count())
}

fn linked_kernels() -> impl Iterator<Item = &'static ffi::tg_kernel> {
    let mut count = 0;
    // SAFETY: `count` is a valid place to write to.
    let first = unsafe { ffi::tg_kernels(&mut count) };
    // SAFETY: the library gives `count` pointers to static descriptors.
    let kernels = unsafe { std::slice::from_raw_parts(first, count) };
    // SAFETY: as above; none is null.
    kernels.iter().map(|&kernel| unsafe { &*kernel })
}

pub(super) fn linked(kernel: &'static KernelDesc) -> Result<Linked> {
    library()?[kernel.index].ok_or_else(|| mismatch(kernel, "it is not linked in".into()))
}

pub(super) fn mismatch(kernel: &KernelDesc, what: String) -> Error {
    Error::TableMismatch { kernel: kernel.name.into(), what }
}

fn check_against_table(linked: &ffi::tg_kernel, row: &KernelDesc) -> Result<()> {
    let fields = [
        ("format of A", linked.types.a.0 as i64, format(row.types.a).0 as i64),
        ("format of B", linked.types.b.0 as i64, format(row.types.b).0 as i64),
        ("format of C", linked.types.c.0 as i64, format(row.types.c).0 as i64),
        ("format of D", linked.types.d.0 as i64, format(row.types.d).0 as i64),
        ("type of the sums", linked.types.acc.0 as i64, format(row.types.acc).0 as i64),
        ("math", linked.math.0 as i64, math(row.math).0 as i64),
        ("layout", linked.layout.0 as i64, layout(row.layout).0 as i64),
        ("tile M", linked.tile[0].into(), row.tile[0].into()),
        ("tile N", linked.tile[1].into(), row.tile[1].into()),
        ("tile K", linked.tile[2].into(), row.tile[2].into()),
        ("cluster M", linked.cluster[0].into(), row.cluster[0].into()),
        ("cluster N", linked.cluster[1].into(), row.cluster[1].into()),
        ("align", linked.align.into(), row.align.into()),
    ];
    match fields.into_iter().find(|(_, linked, row)| linked != row) {
        Some((field, linked, table)) => Err(mismatch(row, format!("{field} is {linked}, the table says {table}"))),
        None => Ok(()),
    }
}
