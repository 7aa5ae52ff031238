//! Items that the tests and benches of this package use beside the public items. These tests and benches are crates of their own,
//! so the items cannot be private. Semantic versioning does not cover them.

/// Estimates.
pub mod cost {
    pub use crate::cost::{elementwise_us, estimate_us, roofline_us};
    pub use crate::dispatch::refit::{parameters, Refit};
    pub use crate::kernel::fitted::Parameter;
}

/// Environment variables.
pub mod settings {
    #[cfg(any(feature = "cli", feature = "interpose"))]
    pub use crate::settings::names::OTHERS;
    pub use crate::settings::{Setting, ALL};
}

/// Launch functions.
#[cfg(feature = "cuda")]
pub mod launch {
    pub use crate::launch::can_implement;
}

/// The block formats of GGUF files by candle's names.
#[cfg(all(feature = "candle", feature = "cuda"))]
pub mod blocks {
    pub use crate::candle::blocks::ggml_type;
}

/// Suites.
#[cfg(any(feature = "cli", feature = "interpose"))]
pub mod suite {
    #[cfg(feature = "cli")]
    pub use crate::suite::{experts, gguf, random, Routing};
    pub use crate::suite::{parse, to_toml, Distribution, Shape, ShapeEpilogue, ShapeGroups, Size};
}

/// Files of traces.
#[cfg(any(feature = "cli", feature = "interpose"))]
pub mod trace {
    pub use crate::trace::{class_of, Recorded, Tracer, LEFT_OUT};
}

/// Measured tables.
pub mod tuning {
    pub use crate::tuning::{
        cache_file, shipped, Among, Entry, EntryRefusal, Host, Key, Origin, Point, Refusal, RefusedCounts,
        RefusedEntry, Tables, Tuning, LEAST_GAIN, MOST_STEP,
    };
}
