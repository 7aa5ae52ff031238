pub mod arch;
pub mod cost;
pub mod dispatch;
mod display;
pub mod error;
pub mod kernel;
pub mod problem;
