//! `tilegemm fit`: fits the numbers of the families to records, and judges the estimates on other records.

mod boost;
mod errors;
mod records;
mod regret;
mod search;
mod trees;
mod write;

use crate::{kernels, words, Failure, Result};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::internal::fit::{parameters, Parameter, Refit};
use comfy_table::Table;
use errors::{percent, table, Errors, Fitted};
use records::{Measurement, Record};
use regret::OnRecord;
use std::path::PathBuf;
use trees::Learned;

/// Fit the numbers of the cost model to records, and judge the estimates on others
///
/// A record is a file of `tilegemm bench --json`. Every arm with a kernel of the table is a measurement: a kernel, its configuration (the
/// family's choice where an older record names none), a product, a time. The numbers of each family (tuning/CARD/fit/FAMILY.toml) are moved
/// until the mean logarithmic error over the family's measurements is least; numbers that no measurement moves stay as they are, and so does a
/// family with fewer measurements than numbers to move. A measurement counts less where another kernel is faster, by the square of the ratio
/// of the times: such a kernel is not chosen. A number that moves has a price, so that few measurements move a number little. Trees are learned
/// from the errors that the numbers leave. A card without numbers of its own keeps the H100's trees, and gets some more of the errors that those
/// leave there.
///
/// The regret is the time of the kernel that this build would choose, with its measured tables, by its estimates alone, and by the fitted
/// estimates, over the least time that was measured of the product. A product whose choice was not measured counts apart. The arm `every` of
/// `tilegemm bench` measures each of our kernels.
///
/// Nothing is written without --write. The suite of this crate proves the estimates: records with its rows may be judged, and are refused
/// by --write.
#[derive(clap::Args)]
pub struct Args {
    /// Records to fit to; none: the estimates of this build are judged
    #[arg(value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// Records to judge on, instead of the records that are fitted to
    #[arg(long, value_name = "RECORD", num_args = 1..)]
    judge: Vec<PathBuf>,
    /// Only these families
    #[arg(long, value_name = "FAMILY", requires = "records", value_delimiter = ',', value_parser = words::names(kernels::families()))]
    only: Vec<String>,
    /// Keep the numbers, and learn the errors that they leave alone
    #[arg(long, requires = "records")]
    only_trees: bool,
    /// Write the numbers and the trees of the families that were fitted
    #[arg(long, requires = "records")]
    write: bool,
    /// Write every measurement of all records, with this build's estimate, to this file: CSV, times in microseconds
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// The folder with the cards' folders
    #[arg(long, value_name = "DIR", default_value = "tuning", requires = "write")]
    out: PathBuf,
}

impl Args {
    /// The families to fit.
    fn families(&self) -> impl Iterator<Item = &'static str> + '_ {
        let wanted = |family: &&str| self.only.is_empty() || self.only.iter().any(|only| only == family);
        kernels::families().into_iter().filter(wanted)
    }
}

pub fn run(args: &Args) -> Result {
    if args.records.is_empty() && args.judge.is_empty() {
        return Err(Failure::Usage("no record is named; `tilegemm bench --json FILE` writes one".into()));
    }
    let fit_on = args.records.iter().map(|path| Record::load(path)).collect::<Result<Vec<_>>>()?;
    let judge_on = args.judge.iter().map(|path| Record::load(path)).collect::<Result<Vec<_>>>()?;
    if let Some(record) = fit_on.iter().find(|record| args.write && record.is_of_the_suite()) {
        let name = &record.name;
        return Err(Failure::Usage(format!(
            "{name} has rows of benches/suite.toml, which proves the estimates; fit on records of other products"
        )));
    }
    let card = args.write.then(|| card_of(&fit_on)).transpose()?;
    let (refit, fitted) = if args.only_trees { (Refit::default(), Vec::new()) } else { fit(args, &fit_on)? };
    let learned: Vec<Learned> = args.families().filter_map(|family| Learned::of(family, &refit, &fit_on)).collect();
    if !learned.is_empty() {
        crate::print(trees::table(&learned, &refit, &judge_on))?;
    }
    if let Some(path) = &args.measurements {
        let text = records::csv(fit_on.iter().chain(&judge_on));
        std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    let judged = if judge_on.is_empty() { &fit_on } else { &judge_on };
    let shipped = Refit::default();
    if !judge_on.is_empty() && !fitted.is_empty() {
        crate::print("\njudged: errors of the fitted families on the other records")?;
        crate::print(errors_of(
            judged,
            &shipped,
            &refit,
            &fitted.iter().map(|fitted| fitted.family).collect::<Vec<_>>(),
        ))?;
    }
    for record in judged {
        crate::print(format_args!("\nregret on {}, {}", record.name, record.gpu))?;
        let dispatcher = || Dispatcher::hypothetical(record.device.clone());
        let mut choices = vec![("this build", dispatcher().with_refit(Refit::default()))];
        if dispatcher().tables().used().next().is_some() {
            choices.insert(0, ("this build with its measured tables", dispatcher()));
        }
        if !fitted.is_empty() || !learned.is_empty() {
            let families: Vec<_> = fitted.iter().map(|f| (f.family, &f.values[..])).collect();
            let refit = learned.iter().fold(refit_of(&families), |refit, learned| learned.add_to(refit));
            choices.push(("fitted", dispatcher().with_refit(refit)));
        }
        for (name, dispatcher) in choices {
            crate::print(format_args!("{name}:\n{}", OnRecord::of(record, &dispatcher)))?;
        }
    }
    if let Some(card) = card {
        let folder = write::Folder { cards: &args.out, card };
        for fitted in &fitted {
            let path = folder.write(fitted, &fit_on)?;
            crate::print(format_args!("written: {}", path.display()))?;
        }
        // Trees of other numbers do not hold.
        let is_learned = |fitted: &&Fitted| learned.iter().any(|learned| learned.family == fitted.family);
        for fitted in fitted.iter().filter(|fitted| !is_learned(fitted)) {
            if let Some(path) = folder.remove_trees(fitted.family)? {
                crate::print(format_args!("removed: {}, whose trees are those of other numbers", path.display()))?;
            }
        }
        for learned in &learned {
            let path = folder.write_trees(learned, &fit_on)?;
            crate::print(format_args!("written: {}", path.display()))?;
        }
    }
    Ok(())
}

/// The short name of the one card of the records, which its data are filed under.
fn card_of(records: &[Record]) -> Result<&'static str> {
    let gpu = records.first().map_or("", |record| &record.gpu);
    if let Some(other) = records.iter().find(|record| record.gpu != gpu) {
        let other = &other.gpu;
        return Err(Failure::Usage(format!("the records are of {gpu} and {other}; each card has numbers of its own")));
    }
    let is_card = |name: &&str| DeviceInfo::by_name(name).is_some_and(|device| device.name == gpu);
    DeviceInfo::names().find(is_card).ok_or_else(|| format!("no card has the name {gpu}").into())
}

fn refit_of(families: &[(&'static str, &[f64])]) -> Refit {
    families.iter().fold(Refit::default(), |refit, (family, values)| refit.with(family, values))
}

/// Fits each family with enough measurements, and prints the changes.
fn fit(args: &Args, records: &[Record]) -> Result<(Refit, Vec<Fitted>)> {
    let mut fitted = Vec::new();
    let all: Vec<&Measurement> = records.iter().flat_map(|record| &record.measurements).collect();
    let mut table = table(["family", "numbers", "measurements", "before: mean", "worst", "after: mean", "worst"]);
    for family in args.families() {
        let own: Vec<&Measurement> = all.iter().copied().filter(|m| m.kernel.family == family).collect();
        if own.is_empty() {
            continue;
        }
        let parameters = parameters(family, &own[0].device);
        let before = Errors::of(&Refit::default(), &own);
        let moved = search::moved(family, &parameters, &own);
        let mut row =
            vec![family.to_string(), format!("{} of {}", moved.len(), parameters.len()), own.len().to_string()];
        row.extend([before.mean, before.worst].map(percent));
        if own.len() < moved.len() || moved.is_empty() {
            row.extend(["too few".into(), String::new()]);
        } else {
            let values = search::fit(family, &parameters, &moved, &own);
            let errors = Errors::of(&Refit::default().with(family, &values), &own);
            row.extend([errors.mean, errors.worst].map(percent));
            fitted.push(Fitted { family, parameters, values, errors });
        }
        table.add_row(row);
    }
    if !records.is_empty() {
        crate::print(&table)?;
    }
    for Fitted { family, parameters, values, .. } in &fitted {
        let changed = parameters.iter().zip(values).filter(|(parameter, value)| parameter.value != **value);
        for (parameter, value) in changed {
            let Parameter { name, index, unit, meaning, value: old, .. } = parameter;
            let place = index.map_or(String::new(), |index| format!("[{index}]"));
            crate::print(format_args!("{family}: {name}{place} {old} -> {value} {unit} ({meaning})"))?;
        }
    }
    let families: Vec<_> = fitted.iter().map(|f| (f.family, &f.values[..])).collect();
    Ok((refit_of(&families), fitted))
}

/// Errors of families before and after.
fn errors_of(records: &[Record], before: &Refit, after: &Refit, families: &[&str]) -> Table {
    let mut table = table(["family", "measurements", "before: mean", "worst", "after: mean", "worst", ""]);
    for family in families {
        let of_family = |m: &&Measurement| m.kernel.family == *family;
        let own: Vec<&Measurement> = records.iter().flat_map(|record| &record.measurements).filter(of_family).collect();
        let (before, after) = (Errors::of(before, &own), Errors::of(after, &own));
        let numbers = [before.mean, before.worst, after.mean, after.worst].map(percent);
        table.add_row([vec![family.to_string(), before.count.to_string()], numbers.to_vec()].concat());
    }
    table
}
