//! Environment variables.

use crate::error::{Error, Result};
use std::ffi::OsString;

/// The value of a variable; `None` where it is not set, or empty.
///
/// # Errors
/// [`Error::BadSetting`] when it is not UTF-8.
pub(crate) fn var(name: &'static str) -> Result<Option<String>> {
    std::env::var_os(name).map_or(Ok(None), |value| text(name, value))
}

/// A switch: `on`, `off`, or what it is unless it is set.
///
/// # Errors
/// [`Error::BadSetting`] when it holds something else.
pub(crate) fn switch(name: &'static str, unless_set: bool) -> Result<bool> {
    match var(name)?.as_deref() {
        None => Ok(unless_set),
        Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(value) => Err(Error::BadSetting { name, value: value.into(), expected: "on or off" }),
    }
}

fn text(name: &'static str, value: OsString) -> Result<Option<String>> {
    match value.into_string() {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(value) => {
            let value = value.to_string_lossy().into_owned();
            Err(Error::BadSetting { name, value, expected: "text in UTF-8" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{switch, text, var};
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_value_that_is_not_utf8_is_an_error_and_not_unset() {
        let error = text("TILEGEMM_F32", std::ffi::OsString::from_vec(b"str\xffct".to_vec())).unwrap_err();
        assert_eq!(error.to_string(), "TILEGEMM_F32=str\u{fffd}ct is not understood; expected text in UTF-8");
        assert_eq!(text("TILEGEMM_F32", "strict".into()).unwrap().as_deref(), Some("strict"));
        assert_eq!(text("TILEGEMM_F32", "".into()).unwrap(), None, "empty is unset");
    }

    #[test]
    fn a_switch_that_is_not_set_is_what_it_is_then() {
        const NAME: &str = "TILEGEMM_NEVER_SET";
        assert_eq!(var(NAME).unwrap(), None);
        assert_eq!([true, false].map(|unless_set| switch(NAME, unless_set).unwrap()), [true, false]);
    }
}
