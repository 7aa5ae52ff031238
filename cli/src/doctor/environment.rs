//! The environment variables: values that are not permitted or that no card can hold, and names that this library does not know.

use super::finding::{Finding, Status, FEATURES};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::internal::settings::names::{self, Unknown};
use candle_tilegemm::internal::settings::{self, Setting};
use candle_tilegemm::Error;

/// The variables that change the choice of kernels, and unknown ones; the measured tables have a section of their own.
pub fn findings() -> Vec<Finding> {
    let listed = settings::ALL.iter().filter(|setting| setting.name != settings::TUNING.name);
    let (set, unset): (Vec<&Setting>, Vec<_>) = listed.partition(|setting| setting.value().is_some());
    let mut findings: Vec<Finding> = set.into_iter().map(setting).collect();
    findings.extend(names::unknown().into_iter().map(unknown));
    if !unset.is_empty() {
        let names: Vec<_> = unset.into_iter().map(|setting| setting.name).collect();
        findings.push(Finding::ok("not set", names.join(", ")));
    }
    findings
}

fn unknown(Unknown { name, nearest }: Unknown) -> Finding {
    let value = std::env::var_os(&name).unwrap_or_default();
    let what = format!("{name}={}", value.to_string_lossy());
    let remedy = format!("is no variable of this library and changes nothing; the nearest is {nearest}");
    Finding::problem(Status::Warn, "unknown", what, remedy)
}

fn setting(setting: &Setting) -> Finding {
    let value = setting.value().unwrap_or_default();
    let value = value.to_string_lossy();
    let what = format!("{}={value}", setting.name);
    let finding = |status, remedy: String| Finding::problem(status, "set", &what, remedy);
    let wrong = match setting.check() {
        Err(Error::BadSetting { expected, .. }) => Some(expected),
        _ => None,
    };
    let lacks = |feature: &&str| FEATURES.iter().any(|(name, on)| name == feature && !on);
    match (wrong, setting.feature.filter(lacks)) {
        (Some(expected), _) if setting.name == settings::MODE.name => {
            finding(Status::Warn, format!("is read as on; set it to {expected}"))
        }
        (_, Some(feature)) => finding(Status::Warn, format!("does nothing without the feature `{feature}`")),
        (Some(expected), None) => finding(Status::Broken, format!("is not understood; expected {expected}")),
        (None, None) if setting.name == settings::FORCE.name => forced(&what, &value),
        (None, None) if setting.name == settings::WORKSPACE.name => workspace(&what, &value),
        (None, None) => Finding::ok("set", what),
    }
}

fn forced(what: &str, kernel: &str) -> Finding {
    let broken = |error: String| Finding::problem(Status::Broken, "set", what, error);
    match Policy::force(kernel).map(|policy| policy.forced()) {
        Err(error) => broken(error.to_string()),
        Ok(Some(kernel)) if !kernel.is_built() => broken("is not in this build; unset it, or build its arch".into()),
        Ok(_) => Finding::ok("set", what),
    }
}

/// A workspace has to fit beside a model.
fn workspace(what: &str, mib: &str) -> Finding {
    let bytes = mib.parse::<u64>().map_or(0, |mib| mib << 20);
    let (card, memory) = largest();
    if bytes < memory {
        return Finding::ok("set", what);
    }
    let default = settings::WORKSPACE.default;
    let remedy = format!("is MiB for each stream, and {card} has {} MiB in all; {default} unless given", memory >> 20);
    Finding::problem(Status::Broken, "set", what, remedy)
}

/// The card with the most memory: of this machine, else of those that are known.
fn largest() -> (String, u64) {
    let here = here();
    let cards = if here.is_empty() { DeviceInfo::names().filter_map(DeviceInfo::by_name).collect() } else { here };
    let most = cards.into_iter().max_by_key(|card| card.memory_bytes);
    most.map_or(("no card".into(), u64::MAX), |card| (card.name, card.memory_bytes))
}

#[cfg(feature = "cuda")]
fn here() -> Vec<DeviceInfo> {
    use candle_tilegemm::launch;
    (0..launch::device_count().unwrap_or(0)).filter_map(|ordinal| launch::device_info(ordinal).ok()).collect()
}

#[cfg(not(feature = "cuda"))]
fn here() -> Vec<DeviceInfo> {
    Vec::new()
}
