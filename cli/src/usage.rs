//! Command lines that make no sense: what is wrong, the usage of the subcommand, and an example that works.

use super::terminal::tell;
use clap::error::ErrorKind;
use clap::{Command, Error};
use std::process::ExitCode;

/// Prints clap's answer, which is the help where the command line asks for help. An error of a subcommand also shows the usage and an example of
/// the subcommand.
pub fn answer(error: &Error, of: Option<&mut Command>) -> ExitCode {
    // stdout or stderr may be closed.
    let _ = error.print();
    if let Some(command) = of.filter(|_| error.use_stderr()) {
        let has_usage = error.render().to_string().contains("Usage: ");
        let usage = (!has_usage).then(|| command.render_usage().to_string());
        let example = example(command).map(|line| format!("Example: {line}"));
        let lines: Vec<String> = usage.into_iter().chain(example).collect();
        tell(format_args!("\n{}", lines.join("\n")));
    }
    ExitCode::from(error.exit_code() as u8)
}

/// An invalid command line that clap takes.
pub fn refuse(kind: ErrorKind, message: &str, command: &mut Command) -> ExitCode {
    answer(&command.error(kind, message), Some(command))
}

/// The first line of the examples in the help.
fn example(command: &Command) -> Option<String> {
    let help = command.get_after_help()?.to_string();
    help.lines().map(str::trim).find(|line| line.starts_with("tilegemm ")).map(String::from)
}

/// The subcommand that the words of a command line name first.
pub fn subcommand(command: &mut Command, mut words: impl Iterator<Item = String>) -> Option<&mut Command> {
    let name = words.find(|word| command.find_subcommand(word).is_some())?;
    command.find_subcommand_mut(&name)
}

#[cfg(test)]
mod tests {
    use super::example;
    use crate::{check_options, Cli};
    use clap::CommandFactory;

    #[test]
    fn every_subcommand_has_examples_that_it_takes() {
        let mut command = Cli::command();
        command.build();
        for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
            let name = subcommand.get_name();
            let help = subcommand.get_after_help().unwrap_or_else(|| panic!("{name} has no examples")).to_string();
            let lines: Vec<&str> = help.lines().skip(1).map(str::trim).collect();
            assert_eq!(example(subcommand).as_deref(), lines.first().copied());
            for line in lines {
                let matches = Cli::command().try_get_matches_from(line.split(' '));
                let matches = matches.unwrap_or_else(|error| panic!("{line}: {error}"));
                assert_eq!(
                    (matches.subcommand_name(), check_options(&matches, subcommand)),
                    (Some(name), Ok(())),
                    "{line}"
                );
            }
        }
    }
}
