//! Turns the cards' data into constants: of each folder `tuning/<card>` the fitted numbers of families (`fit/<family>.toml`), and the errors of their
//! estimates (`trees/<family>.toml`).

use super::table::{camel_case, families, Kernel};
use super::{fitted, trees};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The card whose data count where a card has none of its own.
const DEFAULT: &str = "h100";

/// The data of a card.
struct Card {
    name: String,
    /// Families' numbers, as fields of their types.
    fits: BTreeMap<String, String>,
    trees: BTreeMap<String, trees::File>,
}

/// The name of a constant.
fn constant(card: &str, family: &str) -> String {
    format!("{card}_{family}").to_uppercase().replace('-', "_")
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// A folder's files by family, each read by `read`; none where there is no such folder.
fn by_family<T>(
    folder: &Path,
    families: &[&str],
    read: fn(&Path) -> Result<T, String>,
) -> Result<BTreeMap<String, T>, String> {
    let paths = if folder.exists() { list(folder)? } else { Vec::new() };
    let file = |path: PathBuf| {
        let family = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match families.contains(&family.as_str()) {
            true => Ok((family, read(&path)?)),
            false => Err(format!("{}: there is no family of this name", path.display())),
        }
    };
    paths.into_iter().map(file).collect()
}

/// The cards that have numbers or trees of their own, the default first.
fn read(kernels: &[Kernel], tuning: &Path) -> Result<Vec<Card>, String> {
    let families = families(kernels);
    let card = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let fits = by_family(&path.join("fit"), &families, fitted::fields)?;
        Ok(Card { name, fits, trees: by_family(&path.join("trees"), &families, trees::read)? })
    };
    let folders = list(tuning)?.into_iter().filter(|path| path.is_dir());
    let mut cards = folders.map(card).collect::<Result<Vec<_>, String>>()?;
    cards.retain(|card| card.name == DEFAULT || !card.fits.is_empty() || !card.trees.is_empty());
    cards.sort_by_key(|card| card.name != DEFAULT);
    let default = cards.first().filter(|card| card.name == DEFAULT);
    let default = default.ok_or_else(|| format!("{} has no folder {DEFAULT}", tuning.display()))?;
    match families.iter().find(|family| !default.fits.contains_key(**family)) {
        Some(family) => {
            Err(format!("{} is missing", tuning.join(DEFAULT).join(format!("fit/{family}.toml")).display()))
        }
        None => Ok(cards),
    }
}

impl Card {
    /// The card's numbers and trees. The compiler checks the card's name, and that the names of a file are those of its family.
    fn constants(&self, default: &Card) -> Result<String, String> {
        let fit = |(family, fields): (&String, &String)| {
            let (name, kind) = (constant(&self.name, family), camel_case(family));
            format!("pub(super) static {name}: super::{family}::{kind} = super::{family}::{kind} {{ {fields} }};\n")
        };
        let trees = |(family, file): (&String, &trees::File)| {
            let first = default.trees.get(family).filter(|_| file.continues);
            if file.continues && (first.is_none() || self.name == DEFAULT || self.fits.contains_key(family)) {
                return Err(format!("{}/trees/{family}.toml continues trees that are none of its numbers", self.name));
            }
            Ok(file.rust(&constant(&self.name, family), &self.name, first))
        };
        self.fits.iter().map(fit).map(Ok).chain(self.trees.iter().map(trees)).collect()
    }

    /// A family's numbers: the card's own, else those of the default.
    fn fit(&self, family: &str) -> String {
        constant(if self.fits.contains_key(family) { &self.name } else { DEFAULT }, family)
    }

    /// A kernel's trees: the card's own, else those of the default where its numbers count, too.
    fn trees(&self, kernel: &Kernel, default: &Card) -> String {
        let family = &kernel.family;
        let is_own = self.fits.contains_key(family) || self.trees.contains_key(family);
        let card = if is_own { self } else { default };
        match card.trees.get(family).filter(|trees| trees.has(&kernel.name)) {
            Some(_) => format!("{}_TREES", constant(&card.name, family)),
            None => "Trees::NONE".into(),
        }
    }

    /// The card's entry in the list of cards.
    fn entry(&self, kernels: &[Kernel], default: &Card) -> String {
        let fit = |family: &str| format!("        ({family:?}, &{}),\n", self.fit(family));
        let model = |kernel: &Kernel| {
            let (family, trees) = (self.fit(&kernel.family), self.trees(kernel, default));
            format!("        Model {{ family: &{family}, trees: {trees} }},\n")
        };
        format!(
            "    Card {{ card: Known::named({:?}), fits: &[\n{}    ], models: &[\n{}    ] }},\n",
            self.name,
            families(kernels).into_iter().map(fit).collect::<String>(),
            kernels.iter().map(model).collect::<String>()
        )
    }
}

/// The constants that `src/family/data.rs` includes, and the list of cards.
pub fn rust(kernels: &[Kernel], tuning: &Path) -> Result<String, String> {
    let cards = read(kernels, tuning)?;
    let constants = cards.iter().map(|card| card.constants(&cards[0])).collect::<Result<String, _>>()?;
    let entries: String = cards.iter().map(|card| card.entry(kernels, &cards[0])).collect();
    Ok(format!("{constants}static CARDS: &[Card] = &[\n{entries}];\n"))
}

/// What the variants of a kernel share.
fn kind(kernel: &Kernel) -> [&String; 6] {
    [&kernel.family, &kernel.arch, &kernel.dtype, &kernel.b, &kernel.out, &kernel.layout]
}

/// A kernel's link to its family (`Room` in kernel.rs).
pub fn room(kernel: &Kernel, kernels: &[Kernel]) -> String {
    let mut alike = kernels.iter().filter(|other| kind(other) == kind(kernel));
    let variant = alike.position(|other| other.name == kernel.name).unwrap_or_default();
    format!("Room {{ family: &data::{}, variant: {variant} }}", constant(DEFAULT, &kernel.family))
}
