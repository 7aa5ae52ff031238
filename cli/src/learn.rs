//! `tilegemm learn`: runs a program that learns, and says what it has learned.

use crate::trace::code;
use crate::{tell, Failure, Result};
use candle_tilegemm::internal::settings;
use candle_tilegemm::internal::tuning::{learned_files, Entry, Learned, Tuning};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use std::ffi::OsString;
use std::process::Command;

/// Run a program whose first calls of each product find out which kernel is the fastest there
///
/// The program runs with TILEGEMM_LEARN=on. Where the estimates of kernels are near to each other, the first calls of a product run these kernels in turns, each
/// call right, timed on the program's own stream; the fastest stays. What was learned is kept for this GPU model, driver branch and build, in
/// candle-tilegemm/GPU/learned.json in $XDG_CACHE_HOME or ~/.cache, and every later program begins with it.
#[derive(clap::Args)]
pub struct Args {
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub fn run(args: &Args) -> Result {
    let before = entries();
    let (program, arguments) = args.command.split_first().expect("clap requires one");
    let status = Command::new(program).args(arguments).env(settings::LEARN.name, "on").status();
    let status = status.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    let new: Vec<Entry> = entries().into_iter().filter(|entry| !before.contains(entry)).collect();
    match new.is_empty() {
        true => tell(
            "tilegemm: nothing was learned: all of the program's products are known, or none was called often enough. A program learns when it is built with \
             the feature `cuda` of candle-tilegemm, with candle's products interposed or through our op, and multiplies matrices on a GPU.",
        ),
        false => tell(format_args!("{}\ntilegemm: {} learned", as_table(&new), products(new.len()))),
    }
    match code(status) {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}

/// What programs have learned on this machine, of every GPU model.
fn entries() -> Vec<Entry> {
    let tables = learned_files().into_iter().filter_map(|path| Tuning::load(&path).ok());
    tables.flat_map(|table| table.entries().to_vec()).collect()
}

fn products(count: usize) -> String {
    format!("{count} {}", if count == 1 { "product" } else { "products" })
}

fn as_table(entries: &[Entry]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["product", "M", "kernel", "us", "against", "samples"]);
    for Entry { key, m: [m, _], kernel, config, learned, .. } in entries {
        let Some(Learned { samples, us, against_us }) = learned else { continue };
        let config = config.filter(|config| !config.is_default()).map_or(String::new(), |config| format!("@{config}"));
        let [us, against_us] = [us, against_us].map(|us| format!("{us:.1}"));
        table.add_row([
            key.to_string(),
            m.to_string(),
            format!("{kernel}{config}"),
            us,
            against_us,
            samples.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
