//! Checks of arguments, and the errors of those that do not fit.

use super::kinds::HEAD_SIZES;
use crate::error::{Error, Result};
use crate::ffi;
use crate::launch::layers;
use crate::problem::Format;
use std::ffi::c_void;

/// Rows of numbers on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The first number.
    pub at: *mut c_void,
    /// Numbers from a row to the next.
    pub stride: i64,
}

impl Rows {
    /// No rows.
    pub const NONE: Self = Self { at: std::ptr::null_mut(), stride: 0 };

    /// Rows `stride` numbers apart.
    pub const fn new(at: *mut c_void, stride: i64) -> Self {
        Self { at, stride }
    }
}

/// What a block's arguments have to be.
pub(super) struct Check(pub &'static str);

impl Check {
    pub fn refuse<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::Layer { block: self.0, what: what.into() })
    }

    pub fn that(&self, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
        if holds {
            Ok(())
        } else {
            self.refuse(what())
        }
    }

    /// A count in the kernels' type.
    pub fn count(&self, what: &str, count: usize) -> Result<i32> {
        i32::try_from(count).or_else(|_| self.refuse(format!("{count} {what}; expected less than 2^31")))
    }

    pub fn head(&self, head: usize) -> Result<i32> {
        self.that(HEAD_SIZES.contains(&head), || {
            format!("heads of {head} numbers; the kernels have 64, 96, 128 and 256: pad heads with zeros, or use candle's ops")
        })?;
        Ok(head as i32)
    }

    pub fn format(&self, what: &str, format: Format, among: &[Format]) -> Result<ffi::tg_format> {
        self.that(among.contains(&format), || {
            let names: Vec<String> = among.iter().map(Format::to_string).collect();
            format!("{what} in {format}; expected {}", names.join(" or "))
        })?;
        Ok(layers::format(format))
    }

    /// Rows at multiples of `bytes` bytes, of numbers of `size` bytes.
    pub fn aligned(&self, what: &str, rows: Rows, size: i64, bytes: i64) -> Result<()> {
        let whole = rows.at as usize as i64 % bytes == 0 && rows.stride * size % bytes == 0;
        self.that(whole, || {
            format!("the rows of {what} start at no multiples of {bytes} bytes; make the tensor contiguous")
        })
    }
}
