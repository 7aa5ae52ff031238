//! Names on the command line: in any case, with `-`, with `_` or with neither. `Q4_K`, `q4-k` and `q4k` are one format.

use candle_tilegemm::family::KERNELS;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use std::ffi::OsStr;

/// The letters and digits of a name, by which names are compared.
pub fn plain(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// Whether both are the same name.
pub fn is_same(x: &str, y: &str) -> bool {
    plain(x) == plain(y)
}

/// Parses one of these names; help, errors and completions list the names.
#[derive(Clone)]
pub struct Words<T>(Vec<(&'static str, T)>);

/// One of these names, each with its value.
pub fn words<T>(list: impl IntoIterator<Item = (&'static str, T)>) -> Words<T> {
    Words(list.into_iter().collect())
}

/// One of these names, as it is spelt here.
pub fn names(list: impl IntoIterator<Item = &'static str>) -> Words<String> {
    words(list.into_iter().map(|name| (name, name.to_string())))
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Words<T> {
    type Value = T;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<T, clap::Error> {
        let text = value.to_string_lossy();
        if let Some((_, known)) = self.0.iter().find(|(name, _)| is_same(name, &text)) {
            return Ok(known.clone());
        }
        // The parser of clap words the error.
        let known = PossibleValuesParser::new(self.0.iter().map(|(name, _)| *name));
        Err(known.parse_ref(command, arg, value).err().unwrap_or_else(|| clap::Error::new(ErrorKind::InvalidValue)))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(|(name, _)| PossibleValue::new(*name))))
    }
}

/// `NAME` or `NAME@CONFIGURATION` with the kernel's name as the table spells it; a name that is not in the table stays as it is.
pub fn kernel(text: &str) -> String {
    let (name, config) = text.split_once('@').map_or((text, None), |(name, config)| (name, Some(config)));
    let name = KERNELS.iter().find(|kernel| is_same(kernel.name, name)).map_or(name, |kernel| kernel.name);
    config.map_or(name.into(), |config| format!("{name}@{config}"))
}

#[cfg(test)]
mod tests {
    use super::{kernel, plain};
    use candle_tilegemm::arch::DeviceInfo;
    use candle_tilegemm::family::KERNELS;
    use candle_tilegemm::Format;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_names_of_a_kind_are_the_same() {
        let kinds: [Vec<&str>; 3] = [
            KERNELS.iter().map(|kernel| kernel.name).collect(),
            DeviceInfo::names().collect(),
            Format::ALL.iter().map(|format| format.name()).collect(),
        ];
        for names in kinds {
            assert_eq!(names.iter().map(|name| plain(name)).collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        }
    }

    #[test]
    fn a_kernel_is_named_as_in_the_table_and_its_configuration_stays() {
        assert_eq!(kernel("CUBLAS-bf16-NT"), "cublas_bf16_nt");
        assert_eq!(kernel("Cublas_BF16_NT@128x64_k2"), "cublas_bf16_nt@128x64_k2");
        assert_eq!(kernel("No_Such@x"), "No_Such@x");
    }
}
