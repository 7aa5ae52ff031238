//! What the command `tilegemm` (`cli/`), the decoders (`models/`) and the tests of this package use beside the public items. They are crates of their own, so the
//! items cannot be private. Nobody else may use them: semantic versioning does not cover them.

/// The version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Estimates.
pub mod cost {
    pub use crate::cost::{elementwise_us, gate_us, roofline_us};
    pub use crate::family::data::estimate_us;
}

/// The fitted numbers of families, and the trees of their errors.
pub mod fit {
    pub use crate::dispatch::refit::{parameters, Refit};
    pub use crate::family::card::Card;
    pub use crate::family::facts::{of_launch, of_problem};
    pub use crate::family::fitted::Parameter;
    pub use crate::family::trees::{factors, Fact, Facts, Tree, Trees, BOUNDED, DEPTH, LEAF_UNIT};

    /// The place of a kernel among those of its family, arch, types and layout.
    pub fn variant(kernel: &crate::kernel::KernelDesc) -> u32 {
        kernel.room.variant
    }
}

/// What the kernels of layers on a GPU are limited to.
pub mod layer {
    pub use crate::layer::kinds::{HEAD_SIZES, MOST_DRAWN, MOST_HEADS};
}

/// Environment variables.
pub mod settings {
    pub use crate::settings::names;
    pub use crate::settings::{
        cache_folder, graphs, tuning, Setting, Tuning, ALL, FORCE, LEARN, MODE, TRACE, TUNING, WORKSPACE,
    };
}

/// The matrices, rows and columns of the first piece of a product, in a workspace of so many bytes.
pub fn piece(kernel: &crate::kernel::KernelDesc, problem: &crate::Problem, bytes: u64) -> Option<[usize; 3]> {
    let cut = crate::workspace::partition::Partition::new(kernel.footprint(problem), problem, bytes)?;
    Some([cut.matrices, cut.rows, cut.columns])
}

/// Launch functions.
#[cfg(feature = "cuda")]
pub mod launch {
    pub use crate::launch::rehearse;
}

/// The block formats of GGUF files by candle's names.
#[cfg(all(feature = "candle", any(feature = "cuda", test)))]
pub mod blocks {
    #[cfg(feature = "cuda")]
    pub use crate::candle::blocks::ggml_type;
    pub use crate::candle::blocks::OF_EXPERTS;
}

/// Suites.
pub mod suite {
    pub use crate::suite::{parse, to_toml, Distribution, Lines, Shape, ShapeEpilogue, ShapeGroups, Shared, Size};
    /// The suite that ships.
    pub const SHIPPED: &str = include_str!("../benches/suite.toml");
}

/// Files of traces.
pub mod trace {
    pub use crate::trace::{class_of, Recorded, Tracer, DEFAULT_FILE, LEFT_OUT};
}

/// Measured tables.
pub mod tuning {
    pub use crate::tuning::{
        cache_file, learned_files, shipped, Among, Entry, EntryRefusal, Host, Key, Learned, Origin, Point, Refusal,
        RefusedCounts, RefusedEntry, Tables, Tuning, LEAST_GAIN, MOST_STEP,
    };
}

/// The scripts and pins of `third_party`, which a program from `cargo install` has no other copy of: names and texts.
pub const TOOLCHAIN: [(&str, &str); 9] = [
    ("fetch.sh", include_str!("../third_party/fetch.sh")),
    ("stub_libcuda.sh", include_str!("../third_party/stub_libcuda.sh")),
    ("pins/clang-format.txt", include_str!("../third_party/pins/clang-format.txt")),
    ("pins/cuda-13.0.txt", include_str!("../third_party/pins/cuda-13.0.txt")),
    ("pins/cuda-13.5.txt", include_str!("../third_party/pins/cuda-13.5.txt")),
    ("pins/cutlass.txt", include_str!("../third_party/pins/cutlass.txt")),
    ("pins/libclang.txt", include_str!("../third_party/pins/libclang.txt")),
    ("pins/model.txt", include_str!("../third_party/pins/model.txt")),
    ("pins/nccl.txt", include_str!("../third_party/pins/nccl.txt")),
];
