//! `tilegemm trace`: runs a program and records its products as a benchmark suite.

use crate::{tell, Failure, Result};
use candle_tilegemm::{internal::settings, internal::suite, internal::trace};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

#[derive(clap::Args)]
pub struct Args {
    /// The file for the rows
    #[arg(long, value_name = "FILE", default_value = trace::DEFAULT_FILE)]
    out: PathBuf,
    /// Replace FILE if FILE exists
    #[arg(long)]
    force: bool,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub fn run(args: &Args) -> Result {
    reserve(&args.out, args.force)?;
    // The program may change its working folder.
    let out = std::path::absolute(&args.out)?;
    let (program, arguments) = args.command.split_first().expect("clap requires one");
    let mut command = Command::new(program);
    command.args(arguments).env(settings::MODE.name, "trace").env(settings::TRACE.name, &out);
    let status = command.status().map_err(|error| {
        remove_if_empty(&args.out);
        format!("cannot run {}: {error}", program.display())
    })?;
    let said = report(&args.out);
    match code(status) {
        0 => said,
        code => {
            // The program's own failure is the most important result for the caller.
            if let Err(failure) = said {
                tell(format_args!("error: {failure}"));
            }
            Err(Failure::Exit(code))
        }
    }
}

/// Makes the file in advance, so that a failure to write shows before the program has run for an hour.
fn reserve(out: &Path, force: bool) -> Result {
    let made = if force { File::create(out) } else { File::create_new(out) };
    made.map(drop).map_err(|error| {
        let out = out.display();
        match error.kind() {
            ErrorKind::AlreadyExists => Failure::Usage(format!(
                "{out} is there already; name another file with --out, or add --force to replace it"
            )),
            _ => Failure::Error(format!("cannot write {out}: {error}; name another file with --out").into()),
        }
    })
}

/// Reports the rows that the program left in the file.
fn report(out: &Path) -> Result {
    let text = fs::read_to_string(out).map_err(|error| format!("cannot read {}: {error}", out.display()))?;
    let left_out = text.lines().filter(|line| line.starts_with(trace::LEFT_OUT)).count();
    if text.is_empty() {
        remove_if_empty(out);
        tell(
            "tilegemm: no product was recorded, and no file was written. A program is traced when it has\n    \
             use candle_tilegemm as _;\n\
             is built with the features `cuda` and `interpose` of candle-tilegemm, and multiplies matrices on a GPU.",
        );
        return Ok(());
    }
    let rows = if text.contains("[[shape]]") { suite::parse(&out.display().to_string(), &text)?.len() } else { 0 };
    let rows = format!("{rows} {}", if rows == 1 { "row" } else { "rows" });
    let comments = if left_out > 0 { format!(", {left_out} left out (see its comments)") } else { String::new() };
    let out = out.display();
    tell(format_args!("tilegemm: {rows} in {out}{comments}; measure them with: tilegemm bench --suite {out}"));
    Ok(())
}

fn remove_if_empty(out: &Path) {
    if fs::metadata(out).is_ok_and(|file| file.len() == 0) {
        // The remaining file is empty.
        let _ = fs::remove_file(out);
    }
}

/// The exit code by the convention of shells: 128 plus the signal, where a signal ended the program.
pub fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return 128 + signal as u8;
    }
    status.code().map_or(1, |code| code as u8)
}
