//! `tilegemm`: the kernels, the kernel that a product gets and the reasons, and the state of this machine.

#![warn(unsafe_op_in_unsafe_fn)]

mod bench;
#[cfg(feature = "bench")]
mod blocks;
mod completions;
mod device;
mod doctor;
mod errors;
mod explain;
mod f32;
mod failure;
mod fit;
mod kernels;
mod layout;
mod learn;
#[doc(hidden)]
pub mod lists;
mod narrow;
mod products;
mod regret;
mod suite;
mod terminal;
mod toolchain;
mod trace;
mod tune;
mod usage;
mod words;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use f32::F32;
use failure::{Failure, Result};
use std::process::ExitCode;
use terminal::{print, print_json, tell};

/// The examples below the help of a subcommand; an error shows the first.
macro_rules! examples {
    ($($line:literal),+) => { concat!("Examples:", $("\n  tilegemm ", $line),+) };
}

#[derive(Parser)]
#[command(name = "tilegemm", version, about, long_about = None, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the kernels of the table
    #[command(after_help = examples!["kernels --device h100 --dtype bf16", "kernels --family gemv --names"])]
    Kernels(kernels::Args),
    /// Show the tiles, threads and shared memory of a kernel, as CuTe evaluates them
    #[command(after_help = examples!["layout --list"])]
    Layout(layout::Args),
    /// Show the kernel that a product gets, and the reasons against the other kernels
    #[command(after_help = examples!["explain 2048 28672 4096 --device h100", "explain 1 14336 4096 --dtype f32 --b q4k", "explain 16 14336 4096 --b u4 --group 128", "explain 512 768 768 --dtype f32 --bias --activation gelu-erf"])]
    Explain(explain::Args),
    #[command(after_help = examples!["suite --device a100 --only decode", "suite --random 100 --seed 1 --toml"])]
    Suite(suite::Args),
    /// Time the dispatcher's choices against the vendor library and the roofline
    #[command(after_help = examples!["bench --only decode --json record.json", "bench --from record.json --html page.html", "bench --compare before.json after.json", "bench --decoder llama3-8b --budget 4m --json decoder.json"])]
    Bench(Box<bench::Args>),
    /// Run a program and write its products to a file that `bench` reads
    #[command(after_help = examples!["trace --out model.toml -- target/release/model --prompt hello"])]
    Trace(trace::Args),
    #[command(after_help = examples!["learn -- target/release/model --prompt hello"])]
    Learn(learn::Args),
    #[command(after_help = examples!["tune --suite model.toml --budget 10m"])]
    Tune(tune::Args),
    #[command(after_help = examples!["errors f32 --from record.json", "errors gguf --json record.json", "errors narrow --json record.json"])]
    Errors(errors::Args),
    #[command(after_help = examples!["fit random-1.json random-2.json --judge random-3.json"])]
    Fit(fit::Args),
    #[command(after_help = examples!["toolchain", "toolchain cuda-13.0 cuda-13.5 cutlass"])]
    Toolchain(toolchain::Args),
    /// Check this machine's requirements for building and running kernels
    #[command(after_help = examples!["doctor", "doctor --json"])]
    Doctor(doctor::Args),
    #[command(after_help = examples!["completions bash"])]
    Completions(completions::Args),
}

/// The command `tilegemm`, with the arguments of this process.
pub fn main() -> ExitCode {
    let mut command = Cli::command();
    command.build();
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
            return usage::answer(&error, usage::subcommand(&mut command, words));
        }
    };
    let name = matches.subcommand_name().unwrap_or_default();
    let subcommand = command.find_subcommand_mut(name).expect("clap requires a subcommand");
    if let Err(message) = check_options(&matches, subcommand) {
        return usage::refuse(ErrorKind::ArgumentConflict, &message, subcommand);
    }
    // Events of the crate and of candle on stderr, those that RUST_LOG asks for.
    #[cfg(feature = "bench")]
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Silent) => ExitCode::FAILURE,
        #[cfg(feature = "bench")]
        Err(Failure::Interrupted) => ExitCode::from(130),
        Err(Failure::Exit(code)) => ExitCode::from(code),
        Err(Failure::NoDevice(message)) => {
            tell(format_args!("error: {message}"));
            ExitCode::from(2)
        }
        // The reader closed the pipe, like `head`.
        Err(Failure::Error(error)) if terminal::is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(Failure::Error(error)) => {
            tell(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
        Err(Failure::Usage(message)) => usage::refuse(ErrorKind::ValueValidation, &message, subcommand),
    }
}

/// Refuses options that clap takes and the subcommand would pass over.
fn check_options(matches: &ArgMatches, command: &clap::Command) -> std::result::Result<(), String> {
    match matches.subcommand() {
        Some(("bench", matches)) => bench::options::check(matches, command),
        _ => Ok(()),
    }
}

fn run(command: &Command) -> Result {
    match command {
        Command::Kernels(args) => kernels::run(args),
        Command::Layout(args) => layout::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Suite(args) => suite::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Learn(args) => learn::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Errors(args) => errors::run(args),
        Command::Fit(args) => fit::run(args),
        Command::Toolchain(args) => toolchain::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => completions::run(args, Cli::command()),
    }
}

/// All that `bench` and `errors` print and draw of a record of theirs, for tests with records that nobody has measured.
#[doc(hidden)]
pub fn draw_record(text: &str) -> std::result::Result<String, String> {
    let json: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let drawn = if json.get("of").is_some() { errors::draw(json) } else { bench::draw(json) };
    drawn.map_err(|failure| failure.to_string())
}
