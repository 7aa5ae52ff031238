//! Reads `tuning/<card>/trees/<family>.toml`: the errors of a family's estimates, which `tilegemm fit` learns.

use super::fitted;
use std::collections::BTreeSet;
use std::path::Path;

/// A data file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The origin of the trees, for readers.
    #[serde(rename = "provenance")]
    _provenance: toml::Table,
    /// Whether the default card's trees come first, whose errors on this card these are of.
    #[serde(default)]
    pub continues: bool,
    /// The kernels with enough measurements.
    kernels: BTreeSet<String>,
    /// The least and the largest of the facts that decide which problems the trees hold for (`BOUNDED` of src/family/trees.rs).
    ranges: Vec<[f64; 2]>,
    trees: Vec<Tree>,
}

/// The splits, as facts and bounds, and the leaves.
type Tree = (Vec<(String, f64)>, Vec<i16>);

pub fn read(path: &Path) -> Result<File, String> {
    fitted::read(path)
}

impl File {
    /// Whether the trees hold for the kernel.
    pub fn has(&self, kernel: &str) -> bool {
        self.kernels.contains(kernel)
    }

    /// The constants `<name>_LIST` and `<name>_TREES`, behind the trees of `first`. The compiler checks the facts and the numbers of splits and leaves.
    pub fn rust(&self, name: &str, card: &str, first: Option<&File>) -> String {
        let tree = |(splits, leaves): &Tree| {
            let split = |(fact, bound): &(String, f64)| format!("(Fact::{fact}, {:?}), ", *bound as f32);
            format!("Tree {{ splits: [{}], leaves: {leaves:?} }},\n", splits.iter().map(split).collect::<String>())
        };
        let all: Vec<&Tree> = first.iter().flat_map(|first| &first.trees).chain(&self.trees).collect();
        let trees: String = all.iter().copied().map(tree).collect();
        let (count, ranges) = (all.len(), &self.ranges);
        format!(
            "static {name}_LIST: [Tree; {count}] = [\n{trees}];\n\
             const {name}_TREES: Trees = \
             Trees {{ chip: Known::named({card:?}).chip, ranges: {ranges:?}, trees: &{name}_LIST }};\n"
        )
    }
}
