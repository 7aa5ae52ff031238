//! `tilegemm`: the kernels, the kernel that a product gets and the reasons, and the state of this machine.

mod bench;
#[cfg(feature = "bench")]
mod blocks;
mod doctor;
mod errors;
mod explain;
mod f32_tables;
mod fit;
mod gguf_tables;
mod kernels;
mod layout;
mod products;
mod regret;
mod suite;
mod toolchain;
mod trace;
mod tune;

use crate::F32Mode;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, Subcommand};
use std::fmt;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "tilegemm", version, about, long_about = None, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The exactness of f32 products.
#[derive(clap::Args)]
struct F32 {
    /// Exactness of f32 products: no more error than cuBLAS SGEMM, fused multiply-adds only, or TF32 [default: TILEGEMM_F32, else accurate]
    #[arg(long = "f32", value_name = "MODE", value_parser = modes())]
    mode: Option<F32Mode>,
}

fn modes() -> impl TypedValueParser<Value = F32Mode> {
    PossibleValuesParser::new(F32Mode::ALL.map(F32Mode::name)).try_map(|name| name.parse())
}

impl F32 {
    /// The mode of this process: the requested mode, else the environment's.
    fn mode(&self) -> Result<F32Mode> {
        Ok(self.mode.map_or_else(crate::f32_mode, Ok)?)
    }
}

#[derive(Subcommand)]
enum Command {
    /// List the kernels of the table
    Kernels(kernels::Args),
    /// Show the tiles, threads and shared memory of a kernel, as CuTe evaluates them
    Layout(layout::Args),
    /// Show the kernel that a product gets, and the reasons against the other kernels
    Explain(explain::Args),
    Suite(suite::Args),
    /// Time the dispatcher's choices against the vendor library and the roofline
    Bench(Box<bench::Args>),
    /// Run a program and write its products to a file that `bench` reads
    Trace(trace::Args),
    Tune(tune::Args),
    F32(f32_tables::Args),
    Gguf(gguf_tables::Args),
    Fit(fit::Args),
    Toolchain(toolchain::Args),
    /// Check this machine's requirements for building and running kernels
    Doctor,
}

/// Why a command failed.
enum Failure {
    /// The command line is invalid: exit code 2, as for errors of clap.
    Usage(String),
    /// The command line was valid and the command failed: exit code 1.
    Error(Box<dyn std::error::Error>),
    /// Like `Error`, with all messages already printed.
    Silent,
    /// The command needs a GPU that this machine lacks, or a build for a GPU: exit code 2.
    NoDevice(String),
    /// Ctrl-C ended the command: exit code 130.
    #[cfg(feature = "bench")]
    Interrupted,
    /// The traced program ended with this exit code.
    Exit(u8),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) | Failure::NoDevice(message) => f.write_str(message),
            Failure::Error(error) => error.fmt(f),
            Failure::Silent => f.write_str("failed, as said before"),
            #[cfg(feature = "bench")]
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Exit(code) => write!(f, "the program ended with exit code {code}"),
        }
    }
}

type Result<T = ()> = std::result::Result<T, Failure>;

impl<E: Into<Box<dyn std::error::Error>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Error(error.into())
    }
}

/// The command `tilegemm`, with the arguments of this process.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Kernels(args) => kernels::run(&args),
        Command::Layout(args) => layout::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Suite(args) => suite::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::F32(args) => f32_tables::run(&args),
        Command::Gguf(args) => gguf_tables::run(&args),
        Command::Fit(args) => fit::run(&args),
        Command::Toolchain(args) => toolchain::run(&args),
        Command::Doctor => doctor::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Silent) => ExitCode::FAILURE,
        #[cfg(feature = "bench")]
        Err(Failure::Interrupted) => ExitCode::from(130),
        Err(Failure::Exit(code)) => ExitCode::from(code),
        Err(Failure::NoDevice(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
        // The reader closed the pipe, like `head`.
        Err(Failure::Error(error)) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(Failure::Error(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        Err(Failure::Usage(message)) => Cli::command().error(clap::error::ErrorKind::ValueValidation, message).exit(),
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// All that `bench` and `f32` print and draw of a record of theirs, for tests with records that nobody has measured.
#[doc(hidden)]
pub fn draw_record(text: &str) -> std::result::Result<String, String> {
    let json: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let drawn = if json.get("bench").is_some() { f32_tables::draw(json) } else { bench::draw(json) };
    drawn.map_err(|failure| failure.to_string())
}

/// Prints to stdout, with an error instead of a panic where stdout is closed.
fn print(text: impl fmt::Display) -> Result {
    use std::io::Write;
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

fn print_json(value: &impl serde::Serialize) -> Result {
    print(serde_json::to_string_pretty(value)?)
}
