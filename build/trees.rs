//! Turns `src/family/<family>.trees.toml` into constants: the errors of a family's estimates, which `tilegemm fit` learns.

use super::table::Kernel;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A data file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The origin of the trees, for readers.
    #[serde(rename = "provenance")]
    _provenance: toml::Table,
    /// The kernels with enough measurements.
    kernels: BTreeSet<String>,
    /// The least and the largest of the facts that decide which problems the trees hold for (`BOUNDED` of src/cost/trees.rs).
    ranges: Vec<[f64; 2]>,
    trees: Vec<Tree>,
}

/// The splits, as facts and bounds, and the leaves.
type Tree = (Vec<(String, f64)>, Vec<i16>);

/// The trees of all families that have some.
pub struct Trees(BTreeMap<String, File>);

impl Trees {
    pub fn read(kernels: &[Kernel], folder: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        for family in kernels.iter().map(|kernel| &kernel.family) {
            let path = folder.join(format!("{family}.trees.toml"));
            if files.contains_key(family) || !path.exists() {
                continue;
            }
            let wrong = |message: String| format!("{}: {message}", path.display());
            let text = std::fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
            files.insert(family.clone(), toml::from_str(&text).map_err(|e| wrong(e.to_string()))?);
        }
        Ok(Self(files))
    }

    /// A constant for each family that has trees. The compiler checks the facts and the numbers of splits and leaves.
    pub fn rust(&self) -> String {
        let tree = |(splits, leaves): &Tree| {
            let split = |(fact, bound): &(String, f64)| format!("(Fact::{fact}, {:?}), ", *bound as f32);
            format!("Tree {{ splits: [{}], leaves: {leaves:?} }},\n", splits.iter().map(split).collect::<String>())
        };
        let family = |(name, file): (&String, &File)| {
            let trees: String = file.trees.iter().map(tree).collect();
            let (name, count, ranges) = (name.to_uppercase(), file.trees.len(), &file.ranges);
            format!(
                "static {name}_LIST: [Tree; {count}] = [\n{trees}];\n\
                 pub(super) const {name}_TREES: Trees = Trees {{ ranges: {ranges:?}, trees: &{name}_LIST }};\n"
            )
        };
        self.0.iter().map(family).collect()
    }

    /// A kernel's link to its family (`Room` in kernel.rs).
    pub fn room(&self, kernel: &Kernel, kernels: &[Kernel]) -> String {
        let family = kernel.family.to_uppercase();
        let is_like = |other: &&Kernel| {
            let facts = |kernel: &Kernel| {
                [&kernel.family, &kernel.arch, &kernel.dtype, &kernel.out, &kernel.layout].map(String::clone)
            };
            facts(other) == facts(kernel)
        };
        let variant = kernels.iter().filter(is_like).position(|other| other.name == kernel.name).unwrap_or_default();
        let has_trees = self.0.get(&kernel.family).is_some_and(|file| file.kernels.contains(&kernel.name));
        let trees = if has_trees { format!("fitted::{family}_TREES") } else { "Trees::NONE".into() };
        format!("Room {{ family: &fitted::{family}, trees: {trees}, variant: {variant} }}")
    }
}
