//! What is planned: problems, rates, limits, estimates, choices and their explanations, over the real table, for cards that need not be here.

#[path = "../support/records.rs"]
mod records;

mod cards;
mod choices;
mod compute_capabilities;
mod estimates;
mod explain;
mod f32;
mod fitted;
mod force;
mod fp8;
mod gates;
mod groups;
mod in_place;
#[cfg(not(any(feature = "experts", feature = "gguf", feature = "narrow")))]
mod left_out;
mod limits;
mod names;
mod narrow;
mod narrow_gemm;
// The planner of a build with CUDA is the same, and CI runs the tests without CUDA, too.
#[cfg(not(feature = "cuda"))]
mod planning;
mod problem;
mod rates;
mod table;
mod types;
mod workspaces;
