//! Fitted numbers: the part of a family's estimate that [`ArchModel`](crate::arch::ArchModel) does not give.
//!
//! `fitted!` declares a family as its fitted numbers. The values lie in `tuning/<card>/fit/<family>.toml`, which build.rs turns into constants
//! and `tilegemm fit` writes.

use crate::kernel::Family;

/// A fitted number of a family.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Parameter {
    /// The name in the family's data file.
    pub name: &'static str,
    /// The place in the name's list, where the name has several numbers.
    pub index: Option<usize>,
    /// The unit; empty for a factor.
    pub unit: &'static str,
    /// The meaning.
    pub meaning: &'static str,
    /// The least and the largest value that a fit may take.
    pub range: [f64; 2],
    /// The value.
    pub value: f64,
}

/// A family's fitted numbers.
pub(crate) trait Fitted: Sync {
    /// The numbers, in order.
    fn parameters(&self) -> Vec<Parameter>;

    /// The family with other values, in the order of `parameters`.
    fn refitted(&self, values: &[f64]) -> Box<dyn Family + Send>;
}

/// One number, or a list of numbers.
pub(crate) trait Numbers: Sized {
    fn numbers(&self) -> Vec<f64>;
    /// Takes the numbers from the front of `values`.
    fn take(values: &mut &[f64]) -> Self;
}

impl Numbers for f64 {
    fn numbers(&self) -> Vec<f64> {
        vec![*self]
    }

    fn take(values: &mut &[f64]) -> Self {
        let (first, rest) = values.split_first().expect("a value for each parameter");
        *values = rest;
        *first
    }
}

impl<T: Numbers, const N: usize> Numbers for [T; N] {
    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(T::numbers).collect()
    }

    fn take(values: &mut &[f64]) -> Self {
        std::array::from_fn(|_| T::take(values))
    }
}

/// The parameters of one field of a family.
pub(crate) fn parameters_of(
    name: &'static str,
    unit: &'static str,
    meaning: &'static str,
    range: [f64; 2],
    numbers: &impl Numbers,
) -> Vec<Parameter> {
    let values = numbers.numbers();
    let is_list = values.len() > 1;
    let parameter = |(i, value)| Parameter { name, index: is_list.then_some(i), unit, meaning, range, value };
    values.into_iter().enumerate().map(parameter).collect()
}

/// Declares a family as its fitted numbers: for each the meaning, the name, one number or a list, the unit and the range.
macro_rules! fitted {
    (
        $(#[$about:meta])*
        $family:ident {
            $($(#[doc = $meaning:literal])+ $name:ident: $numbers:ty = $unit:literal, $least:literal to $most:literal;)*
        }
    ) => {
        $(#[$about])*
        pub(crate) struct $family {
            $($(#[doc = $meaning])+ pub $name: $numbers,)*
        }

        impl $crate::family::fitted::Fitted for $family {
            fn parameters(&self) -> Vec<$crate::family::fitted::Parameter> {
                [$($crate::family::fitted::parameters_of(
                    stringify!($name), $unit, concat!($($meaning),+).trim_ascii(), [$least, $most], &self.$name,
                )),*].concat()
            }

            fn refitted(&self, mut values: &[f64]) -> Box<dyn $crate::kernel::Family + Send> {
                let values = &mut values;
                let family = Self { $($name: $crate::family::fitted::Numbers::take(values)),* };
                assert!(values.is_empty(), "a value for each parameter");
                Box::new(family)
            }
        }
    };
}
pub(crate) use fitted;
