//! What the command does, and the options that change something then. Every other option is refused: an option that is passed over in silence looks like one
//! that was followed.

use clap::parser::ValueSource;
use clap::ArgMatches;

/// The tasks beside measurements of products, each with the option that asks for the task, its effect in words, and the other options that count.
const TASKS: [(&str, &str, &[&str]); 5] = [
    ("compare", "compares two records", &["only", "arms"]),
    ("from", "reads a record", &["only", "arms", "json", "compact", "html"]),
    ("model", "runs a model", &["mode", "json", "prompt", "batch", "decode", "runs", "weights"]),
    (
        "decoder",
        "runs a decoder",
        &["arms", "budget", "json", "prefill", "context", "sequences", "cards", "cache", "decode", "runs"],
    ),
    ("ladder", "has products and arms of its own", &["pause", "json"]),
];

/// Options of measurements of products.
const MEASURE: [&str; 19] = [
    "suite", "random", "seed", "class", "only", "arms", "mode", "samples", "pause", "warm_up", "hot", "eager", "aa",
    "budget", "json", "compact", "html", "no_check", "plant",
];

/// Models without steps of decoding.
const ENCODERS: [&str; 3] = ["minilm", "bert-base", "tiny-bert"];

/// Checks that every option of the command line counts. `command` is the command `bench`.
///
/// # Errors
/// The first option that would change nothing, with the option that rules it out, or that it needs.
pub fn check(matches: &ArgMatches, command: &clap::Command) -> Result<(), String> {
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let shown = |id: &str| {
        let long = command.get_arguments().find(|arg| arg.get_id() == id).and_then(clap::Arg::get_long);
        format!("'--{}'", long.unwrap_or(id))
    };
    let given: Vec<&str> = command.get_arguments().map(|arg| arg.get_id().as_str()).filter(|id| is_given(id)).collect();
    let task = TASKS.iter().find(|(asks, ..)| is_given(asks));
    let counts = |id: &&str| match task {
        Some((asks, _, counts)) => id == asks || counts.contains(id),
        None => MEASURE.contains(id),
    };
    let Some(idle) = given.into_iter().find(|id| !counts(id)) else { return encoder(matches, is_given("decode")) };
    let idle_shown = shown(idle);
    match task {
        Some((asks, effect, _)) => Err(format!("{idle_shown} cannot be used with {}, which {effect}", shown(asks))),
        None => {
            let needs = TASKS.iter().find(|(.., counts)| counts.contains(&idle)).map_or("model", |(asks, ..)| asks);
            Err(format!("{idle_shown} needs {}", shown(needs)))
        }
    }
}

fn encoder(matches: &ArgMatches, decodes: bool) -> Result<(), String> {
    let model = matches.get_one::<String>("model").filter(|model| ENCODERS.contains(&model.as_str()));
    match model {
        Some(model) if decodes => {
            Err(format!("'--decode' cannot be used with '--model {model}': an encoder decodes nothing"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{check, MEASURE, TASKS};
    use crate::bench::Args;
    use std::collections::BTreeSet;

    /// The command `bench` with its options.
    fn command() -> clap::Command {
        <Args as clap::Args>::augment_args(clap::Command::new("bench"))
    }

    /// A value that the option takes, after the option's name.
    fn example(arg: &clap::Arg) -> Vec<String> {
        let id = arg.get_id().as_str();
        let name = format!("--{}", arg.get_long().expect("every option of bench has a long name"));
        let value: &[&str] = match id {
            "compare" => &["a.json", "b.json"],
            "class" => &["gguf"],
            "mode" => &["tf32"],
            "warm_up" | "budget" => &["5s"],
            "model" | "decoder" => &["tiny"],
            "cache" => &["fp8"],
            "plant" => &["zeros"],
            _ if !arg.get_action().takes_values() => &[],
            _ => &["7"],
        };
        [name].into_iter().chain(value.iter().map(|text| text.to_string())).collect()
    }

    /// Whether this command line is refused, where clap takes it.
    fn refusal(words: &[String]) -> Option<String> {
        let line = ["bench".to_string()].into_iter().chain(words.iter().cloned());
        let matches = command().try_get_matches_from(line).ok()?;
        check(&matches, &command()).err()
    }

    #[test]
    fn every_option_counts_in_some_task_and_is_refused_in_the_others() {
        let all: BTreeSet<String> = command().get_arguments().map(|arg| arg.get_id().to_string()).collect();
        let listed = TASKS.iter().flat_map(|(asks, _, counts)| counts.iter().chain([asks])).chain(&MEASURE);
        assert_eq!(all, listed.map(|id| id.to_string()).collect());
        let needed = |id: &str| -> Vec<String> {
            let needs: &[&str] = match id {
                "random" => &["--seed", "1"],
                "seed" => &["--random", "7"],
                "compact" => &["--json", "7"],
                _ => &[],
            };
            needs.iter().map(|text| text.to_string()).collect()
        };
        for (asks, _, counts) in TASKS {
            let task = example(command().get_arguments().find(|arg| arg.get_id() == asks).unwrap());
            for arg in command().get_arguments().filter(|arg| arg.get_id() != asks) {
                let id = arg.get_id().as_str();
                if TASKS.iter().any(|(other, ..)| *other == id) {
                    continue; // the first of the tasks says that the other is in its way
                }
                let refused = refusal(&[task.clone(), example(arg), needed(id)].concat());
                assert_eq!(refused.is_none(), counts.contains(&id), "{task:?} with --{id}: {refused:?}");
            }
        }
        for arg in command().get_arguments() {
            let id = arg.get_id().as_str();
            let asks = TASKS.iter().any(|(asks, ..)| *asks == id);
            let refused = refusal(&[example(arg), needed(id)].concat());
            assert_eq!(refused.is_none(), asks || MEASURE.contains(&id), "--{id}: {refused:?}");
        }
    }
}
