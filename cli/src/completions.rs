//! `tilegemm completions`: the script by which a shell completes the command's words.

use crate::{words, Result};
use clap::Command;
use clap_complete::{generate, Shell};
use std::io::Write;

/// Print the script by which a shell completes subcommands, options and their values
///
/// bash: `source <(tilegemm completions bash)`. zsh: `tilegemm completions zsh > _tilegemm` in a folder of `$fpath`. fish: `tilegemm completions fish > ~/.config/fish/completions/tilegemm.fish`.
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_parser = words::words([("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)]))]
    shell: Shell,
}

/// Prints the script for `command`, the whole command.
pub fn run(args: &Args, mut command: Command) -> Result {
    let mut script = Vec::new();
    generate(args.shell, &mut command, "tilegemm", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
