//! Estimates with other fitted numbers than this build's: `tilegemm fit` tries and judges them.

use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::cost::Model;
use crate::family::KERNELS;
use crate::kernel::fitted::Parameter;
use crate::kernel::trees::{Tree, Trees, BOUNDED};
use crate::kernel::{Case, Family, KernelDesc};
use crate::problem::Problem;
use crate::workspace;
use std::collections::BTreeMap;
use std::fmt;

/// The fitted numbers of a family of this build, in order; empty where the name is no family.
pub fn parameters(family: &str) -> Vec<Parameter> {
    of_build(family).map_or_else(Vec::new, |family| family.parameters())
}

fn of_build(family: &str) -> Option<&'static dyn Family> {
    KERNELS.iter().find(|kernel| kernel.family == family).map(KernelDesc::family)
}

/// Families with other fitted numbers or other trees; the other families have this build's.
#[derive(Default)]
pub struct Refit {
    families: BTreeMap<&'static str, Box<dyn Family + Send>>,
    /// The trees of families, and the kernels that they hold for.
    trees: BTreeMap<&'static str, OtherTrees>,
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
        let kernel = KERNELS.iter().find(|kernel| kernel.family == family).expect("a family of this build");
        self.families.insert(kernel.family, kernel.family().refitted(values));
        self
    }

    /// Adds these trees of a family.
    pub fn with_trees(mut self, family: &'static str, trees: OtherTrees) -> Self {
        self.trees.insert(family, trees);
        self
    }

    /// The estimates of a kernel's family.
    pub fn model<'a>(&'a self, kernel: &'a KernelDesc) -> Model<'a> {
        let of_build = Model::of(kernel);
        let family = self.families.get(kernel.family).map(|family| &**family as &dyn Family);
        let trees = match self.trees.get(kernel.family) {
            Some((kernels, ranges, trees)) if kernels.contains(&kernel.name) => Trees { ranges: *ranges, trees },
            Some(_) => Trees::NONE,
            None if family.is_some() => Trees::NONE,
            None => of_build.trees,
        };
        Model { family: family.unwrap_or(of_build.family), trees }
    }

    /// The configuration that the family's model chooses for the canonical `problem`.
    pub fn choice(&self, kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> Config {
        let case = Case { kernel, problem, device, workspace: workspace::DEFAULT_BYTES };
        self.model(kernel).family.choose(&case)
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
        let model = self.model(kernel);
        match config {
            Some(config) => model.uncorrected_us(&case, config),
            None => model.uncorrected_us(&case, &model.family.choose(&case)),
        }
    }
}
