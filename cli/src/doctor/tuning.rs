//! The measured tables in use, and the refused tables with the reasons.

use super::finding::{Finding, Status};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::internal::tuning::{cache_file, learned_files, shipped, RefusedCounts, RefusedEntry, Tuning};
use candle_tilegemm::{internal::settings, Error};
use std::fmt::Display;

const SUBJECT: &str = "tables";
/// The refused entries of a table that are named.
const MOST_NAMED: usize = 8;

pub fn findings() -> Vec<Finding> {
    let mut findings = on_devices();
    findings.extend(of_learned());
    let name = settings::TUNING.name;
    findings.push(match settings::tuning() {
        Some(settings::Tuning::Off) => Finding::ok("set", format!("{name}=off: none is asked")),
        Some(settings::Tuning::File(path)) => Finding::ok("set", format!("{name}={}", path.display())),
        None => Finding::ok("not set", name),
    });
    findings
}

/// What programs have learned on this machine. Another driver or build begins anew, so a refused file is no fault.
fn of_learned() -> impl Iterator<Item = Finding> {
    learned_files().into_iter().map(|path| match Tuning::load(&path) {
        Ok(table) => Finding::ok("learned", format!("{table} for {}", table.origin().gpu)),
        Err(error) => Finding::ok("learned", format!("{error}; the next program that learns replaces it")),
    })
}

/// For each device, the tables of its dispatcher.
#[cfg(feature = "cuda")]
fn on_devices() -> Vec<Finding> {
    use candle_tilegemm::launch;
    let devices = (0..launch::device_count().unwrap_or(0)).filter_map(|ordinal| launch::device_info(ordinal).ok());
    let findings: Vec<Finding> = devices.flat_map(|device| of(Dispatcher::new(device))).collect();
    if findings.is_empty() {
        without_device()
    } else {
        findings
    }
}

#[cfg(not(feature = "cuda"))]
fn on_devices() -> Vec<Finding> {
    without_device()
}

/// The findings on the tables alone.
fn without_device() -> Vec<Finding> {
    let shipped = shipped().flat_map(|table| match table {
        Ok(tuning) => of_table(&tuning, tuning.refused(), format!("{tuning} ships for {}", tuning.origin().gpu)),
        Err((name, refusal)) => vec![refused(name, &refusal, Status::Warn)],
    });
    let mut findings: Vec<Finding> = shipped.collect();
    if let Some(settings::Tuning::File(path)) = settings::tuning() {
        findings.extend(match Tuning::load(&path) {
            Ok(tuning) => {
                let gpu = &tuning.origin().gpu;
                // Of a card that is known, each entry is judged as if every kernel were built.
                let card = DeviceInfo::names().filter_map(DeviceInfo::by_name).find(|card| card.name == *gpu);
                let skipped = card.map(|card| Dispatcher::hypothetical(card).skipped(&tuning));
                let skipped = skipped.unwrap_or_else(|| tuning.refused().to_vec());
                of_table(&tuning, &skipped, format!("{tuning} is for {gpu}"))
            }
            Err(error) => vec![of_error(&error, Status::Broken)],
        });
    }
    if findings.is_empty() {
        findings.push(Finding::ok(SUBJECT, "none ships with this version"));
    }
    findings
}

#[cfg_attr(not(feature = "cuda"), expect(dead_code))]
fn of(dispatcher: Dispatcher) -> Vec<Finding> {
    let gpu = dispatcher.device().name.clone();
    let dispatcher = match dispatcher.with_user_tuning() {
        Ok(dispatcher) => dispatcher,
        Err(error) => return vec![of_error(&error, Status::Broken)],
    };
    let tables = dispatcher.tables();
    let used =
        tables.used().flat_map(|tuning| of_table(tuning, &dispatcher.skipped(tuning), format!("{tuning} is asked")));
    let refused = tables.refused().iter().map(|error| of_error(error, Status::Warn));
    let mut findings: Vec<Finding> = used.chain(refused).collect();
    if findings.is_empty() {
        let place = cache_file(&gpu).map_or(settings::TUNING.name.into(), |path| path.display().to_string());
        findings.push(Finding::ok(SUBJECT, format!("none for {gpu}: the cost model decides; looked for {place}")));
    }
    findings
}

/// A table in use, and its refused entries.
fn of_table(tuning: &Tuning, skipped: &[RefusedEntry], what: String) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(SUBJECT, what)];
    let counts = RefusedCounts::of(skipped);
    if !counts.is_none() {
        let indent = format!("\n{:24}", "");
        let named = skipped.iter().take(MOST_NAMED).map(|entry| format!("{indent}{entry}")).collect::<String>();
        let more = skipped.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!("{indent}and {more} more") } else { String::new() };
        let what = format!("of {}, {counts}{named}{more}", tuning.name());
        let remedy = "measure the products again with `tilegemm tune --merge`";
        findings.push(Finding::problem(Status::Warn, SUBJECT, what, remedy));
    }
    findings
}

fn of_error(error: &Error, status: Status) -> Finding {
    match error {
        Error::Tuning { name, refusal } => refused(name, refusal, status),
        error => Finding::problem(status, SUBJECT, "cannot be read", error.to_string()),
    }
}

/// The text of a refusal has the remedy after its semicolon.
fn refused(name: &str, refusal: &dyn Display, status: Status) -> Finding {
    let text = refusal.to_string();
    let (what, remedy) = text.rsplit_once("; ").unwrap_or((&text, "measure it again with `tilegemm tune`"));
    Finding::problem(status, SUBJECT, format!("{name} {what}"), remedy)
}
