//! The table `[tests]` of a family.toml: the cases of tests/gpu for the family's kernels, beside the sizes for every kernel.

use serde::Deserialize;

/// The `[tests]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cases {
    /// M, N and K. A kernel skips a size that it does not support.
    sizes: Vec<[u32; 3]>,
    refused: Vec<Refused>,
}

/// A configuration that a kernel has, for other problems than this one: the launch function must refuse the configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    kernel: String,
    /// M, N, K and the number of matrices.
    size: [u32; 4],
    config: String,
}

impl Cases {
    /// The cases as expressions of Rust: an element of `SIZES`, and elements of `REFUSED`.
    pub fn rust(&self, family: &str) -> [String; 2] {
        let refused = self
            .refused
            .iter()
            .map(|Refused { kernel, size, config }| format!("({kernel:?}, {size:?}, {config:?}),\n"));
        [format!("({family:?}, &{:?}),\n", self.sizes), refused.collect()]
    }
}
