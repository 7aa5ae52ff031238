//! Turns `src/family/<family>.trees.toml` into constants: the errors of a family's estimates, which `tilegemm fit` learns.

use super::fitted;
use super::table::{families, Kernel};
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
    /// The least and the largest of the facts that decide which problems the trees hold for (`BOUNDED` of src/kernel/trees.rs).
    ranges: Vec<[f64; 2]>,
    trees: Vec<Tree>,
}

/// What the variants of a kernel share.
fn kind(kernel: &Kernel) -> [&String; 6] {
    [&kernel.family, &kernel.arch, &kernel.dtype, &kernel.b, &kernel.out, &kernel.layout]
}

/// The splits, as facts and bounds, and the leaves.
type Tree = (Vec<(String, f64)>, Vec<i16>);

/// The trees of all families that have some.
pub struct Trees(BTreeMap<String, File>);

impl Trees {
    pub fn read(kernels: &[Kernel], folder: &Path) -> Result<Self, String> {
        let paths = families(kernels).into_iter().map(|family| (family, folder.join(format!("{family}.trees.toml"))));
        let files = paths.filter(|(_, path)| path.exists());
        files.map(|(family, path)| Ok((family.to_string(), fitted::read(&path)?))).collect::<Result<_, _>>().map(Self)
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
        let mut alike = kernels.iter().filter(|other| kind(other) == kind(kernel));
        let variant = alike.position(|other| other.name == kernel.name).unwrap_or_default();
        let has_trees = self.0.get(&kernel.family).is_some_and(|file| file.kernels.contains(&kernel.name));
        let trees = if has_trees { format!("fitted::{family}_TREES") } else { "Trees::NONE".into() };
        format!("Room {{ family: &fitted::{family}, trees: {trees}, variant: {variant} }}")
    }
}
