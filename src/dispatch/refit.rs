//! Estimates with other fitted numbers than this build's: `tilegemm fit` tries and judges them.

use crate::arch::{Chip, DeviceInfo};
use crate::config::Config;
use crate::family::card::Card;
use crate::family::fitted::Parameter;
use crate::family::model::Model;
use crate::family::trees::{Tree, Trees, BOUNDED};
use crate::kernel::{Case, Family, KernelDesc};
use crate::problem::Problem;
use crate::workspace;
use std::collections::BTreeMap;
use std::fmt;

/// The fitted numbers of a family of this build for a device, in order; empty where the name is no family.
pub fn parameters(family: &str, device: &DeviceInfo) -> Vec<Parameter> {
    Card::of(device).fit(family).map_or_else(Vec::new, |(_, fit)| fit.parameters())
}

/// Families with other fitted numbers or other trees; the other families have this build's.
#[derive(Default)]
pub struct Refit {
    families: BTreeMap<&'static str, Box<dyn Family + Send>>,
    /// The trees of families, and the kernels that they hold for.
    trees: BTreeMap<&'static str, (Chip, OtherTrees)>,
}

/// Trees of a family, the kernels that they hold for, and the ranges of [`Trees`].
pub(crate) type OtherTrees = (Vec<&'static str>, [[f32; 2]; BOUNDED.len()], Vec<Tree>);

impl fmt::Debug for Refit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.families.keys().chain(self.trees.keys())).finish()
    }
}

impl Refit {
    /// Adds these values of a family, in the order of [`parameters`]. The family has no trees then: its trees correct the values of this build.
    ///
    /// # Panics
    /// Where the name is no family, or there is not one value for each parameter.
    pub fn with(mut self, family: &str, values: &[f64]) -> Self {
        let (family, fit) = Card::of(&DeviceInfo::h100()).fit(family).expect("a family of this build");
        self.families.insert(family, fit.refitted(values));
        self
    }

    /// Whether a family has other numbers.
    pub fn has(&self, family: &str) -> bool {
        self.families.contains_key(family)
    }

    /// Adds these trees of a family, which hold for cards with this chip.
    pub fn with_trees(mut self, family: &'static str, chip: Chip, trees: OtherTrees) -> Self {
        self.trees.insert(family, (chip, trees));
        self
    }

    /// The estimates of a kernel's family for a card.
    pub fn model(&self, kernel: &KernelDesc, card: &Card) -> Model<'_> {
        let of_build = card.model(kernel);
        let family = self.families.get(kernel.family).map(|family| &**family as &dyn Family);
        let trees = match self.trees.get(kernel.family) {
            Some((chip, (kernels, ranges, trees))) if kernels.contains(&kernel.name) => {
                Trees { chip: *chip, ranges: *ranges, trees }
            }
            Some(_) => Trees::NONE,
            None if family.is_some() => Trees::NONE,
            None => of_build.trees,
        };
        Model { family: family.unwrap_or(of_build.family), trees }
    }

    /// The configuration that the family's model chooses for the canonical `problem`.
    pub fn choice(&self, kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> Config {
        let case = Case { kernel, problem, device, workspace: workspace::DEFAULT_BYTES };
        self.model(kernel, Card::of(device)).family.choose(&case)
    }

    /// Expected time of `kernel` for the canonical `problem` by the family's model, without trees, in microseconds, with a workspace of
    /// the default size: in `config`, or in the configuration that the model chooses.
    pub fn estimate_us(
        &self,
        kernel: &KernelDesc,
        problem: &Problem,
        device: &DeviceInfo,
        config: Option<&Config>,
    ) -> f64 {
        let case = Case { kernel, problem, device, workspace: workspace::DEFAULT_BYTES };
        let model = self.model(kernel, Card::of(device));
        match config {
            Some(config) => model.uncorrected_us(&case, config),
            None => model.uncorrected_us(&case, &model.family.choose(&case)),
        }
    }
}
