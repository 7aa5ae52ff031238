//! A family's data files.

use super::errors::Fitted;
use super::records::Record;
use super::trees::Learned;
use crate::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folder of a card's data.
pub struct Folder<'a> {
    /// The folder with the cards' folders.
    pub cards: &'a Path,
    /// The card's short name.
    pub card: &'static str,
}

/// The card whose numbers count where a card has none of its own.
const DEFAULT: &str = "h100";

impl Folder<'_> {
    fn fit(&self, card: &str, family: &str) -> PathBuf {
        self.cards.join(card).join("fit").join(format!("{family}.toml"))
    }

    fn trees(&self, family: &str) -> PathBuf {
        self.cards.join(self.card).join("trees").join(format!("{family}.toml"))
    }

    /// Writes the family's numbers with their provenance over the file of this build, or the first file of the card.
    pub fn write(&self, fitted: &Fitted, records: &[Record]) -> Result<PathBuf> {
        let path = self.fit(self.card, fitted.family);
        let has_own = path.exists();
        let old = if has_own { path.clone() } else { self.fit(DEFAULT, fitted.family) };
        let name = old.display();
        let text = std::fs::read_to_string(&old)
            .map_err(|e| format!("cannot read {name}: {e}; name the folder with --out"))?;
        let mut file: toml::Table = text.parse().map_err(|e| format!("{name}: {e}"))?;
        let values =
            file.get_mut("values").and_then(toml::Value::as_table_mut).ok_or_else(|| format!("{name}: no values"))?;
        for (parameter, value) in fitted.parameters.iter().zip(&fitted.values) {
            let place = values.get_mut(parameter.name).ok_or_else(|| format!("{name}: no {}", parameter.name))?;
            set(place, parameter.index.unwrap_or(0), *value);
        }
        let values = values.clone();
        let note = file.get("provenance").and_then(|provenance| provenance.get("note")).and_then(toml::Value::as_str);
        let note = match note.filter(|_| has_own) {
            Some(note) => format!("{NOTE}{}", note.trim_start_matches(NOTE)),
            None => format!("{NOTE}those of {DEFAULT}"),
        };
        let text = format!(
            "{}\n[provenance]\n{}mean_error = {:.4}\nworst_error = {:.4}\nnote = {}\n\n[values]\n{}",
            text.lines().take_while(|line| line.starts_with('#')).fold(String::new(), |text, line| text + line + "\n"),
            provenance(records, fitted.errors.count),
            fitted.errors.mean.exp_m1(),
            fitted.errors.worst.exp_m1(),
            toml::Value::from(note),
            values.iter().map(|(name, value)| format!("{name} = {value}\n")).collect::<String>(),
        );
        save(path, &text)
    }

    /// Removes the family's trees, where the card has some.
    pub fn remove_trees(&self, family: &str) -> Result<Option<PathBuf>> {
        let path = self.trees(family);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(Some(path)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("cannot remove {}: {e}", path.display()).into()),
        }
    }

    /// Writes the family's trees with their provenance.
    pub fn write_trees(&self, learned: &Learned, records: &[Record]) -> Result<PathBuf> {
        let [without, with] = learned.errors.map(f64::exp_m1);
        let trees = learned.trees[learned.continued..].iter().map(|tree| {
            let splits: Vec<String> =
                tree.splits.iter().map(|(fact, bound)| format!("[\"{fact:?}\", {bound:?}]")).collect();
            format!("  [[{}], {:?}],\n", splits.join(", "), tree.leaves)
        });
        let text = format!(
            "# The errors of the estimates of `{}`, which src/family/trees.rs describes. `tilegemm fit --write` writes this file.\n\n\
             {}kernels = [\n{}]\nranges = {:?}\ntrees = [\n{}]\n\n[provenance]\n{}mean_error_without = {without:.4}\nmean_error_with = {with:.4}\n",
            learned.family,
            if learned.continued > 0 { "continues = true\n" } else { "" },
            learned.kernels.iter().map(|kernel| format!("  \"{kernel}\",\n")).collect::<String>(),
            learned.ranges,
            trees.collect::<String>(),
            provenance(records, learned.count),
        );
        save(self.trees(learned.family), &text)
    }
}

/// Writes a file, and its folder where that is new.
fn save(path: PathBuf, text: &str) -> Result<PathBuf> {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    made.and_then(|()| std::fs::write(&path, text)).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    Ok(path)
}

/// The lines that say where fitted data come from.
fn provenance(records: &[Record], measurements: usize) -> String {
    let names = |of: &dyn Fn(&Record) -> &str| records.iter().map(|r| of(r).to_string()).collect::<BTreeSet<_>>();
    let list = |names: BTreeSet<String>| toml::Value::from(names.into_iter().collect::<Vec<_>>()).to_string();
    let seeds: Vec<String> = records.iter().filter_map(|record| record.seed).map(|seed| seed.to_string()).collect();
    let file_name =
        |record: &'_ Record| Path::new(&record.name).file_name().map(|name| name.to_string_lossy().into_owned());
    let files: BTreeSet<String> = records.iter().filter_map(file_name).collect();
    format!(
        "gpu = {}\ndate = {}\nrecords = {}\nseeds = [{}]\nmeasurements = {measurements}\n",
        toml::Value::from(names(&|record| &record.gpu).into_iter().collect::<Vec<_>>().join(", ")),
        toml::Value::from(names(&|record| &record.date).into_iter().next_back().unwrap_or_default()),
        list(files),
        seeds.join(", "),
    )
}

/// The beginning of the note of a fitted file.
const NOTE: &str = "by `tilegemm fit`; numbers that no record moves are from before: ";

/// Sets the number at this place of a number or of nested lists.
fn set(value: &mut toml::Value, index: usize, number: f64) {
    fn places<'a>(value: &'a mut toml::Value, into: &mut Vec<&'a mut toml::Value>) {
        match value {
            toml::Value::Array(values) => values.iter_mut().for_each(|value| places(value, into)),
            value => into.push(value),
        }
    }
    let mut all = Vec::new();
    places(value, &mut all);
    if let Some(place) = all.into_iter().nth(index) {
        *place = number.into();
    }
}
