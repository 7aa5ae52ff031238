//! Estimates with other fitted numbers than those of this build: what `tilegemm fit` tries and judges.

use super::fitted::Parameter;
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::family::KERNELS;
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

/// Families with other fitted numbers; the other families have those of this build.
#[derive(Default)]
pub struct Refit {
    families: BTreeMap<&'static str, Box<dyn Family + Send>>,
}

impl fmt::Debug for Refit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.families.keys()).finish()
    }
}

impl Refit {
    /// The same with these values of a family, in the order of [`parameters`].
    ///
    /// # Panics
    /// Where the name is no family, or there is not one value for each parameter.
    pub fn with(mut self, family: &str, values: &[f64]) -> Self {
        let kernel = KERNELS.iter().find(|kernel| kernel.family == family).expect("a family of this build");
        self.families.insert(kernel.family, kernel.family().refitted(values));
        self
    }

    pub(crate) fn family(&self, name: &str) -> Option<&dyn Family> {
        self.families.get(name).map(|family| &**family as &dyn Family)
    }

    /// The configuration that the family chooses for the canonical `problem`.
    pub fn choice(&self, kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> Config {
        let family = self.family(kernel.family).unwrap_or(kernel.family());
        family.choose(&Case { kernel, problem, device, workspace: workspace::DEFAULT_BYTES })
    }

    /// Expected time of `kernel` for the canonical `problem`, in microseconds, with a workspace of the default size: in `config`, or in
    /// the configuration that the family chooses.
    pub fn estimate_us(
        &self,
        kernel: &KernelDesc,
        problem: &Problem,
        device: &DeviceInfo,
        config: Option<&Config>,
    ) -> f64 {
        let family = self.family(kernel.family).unwrap_or(kernel.family());
        let case = Case { kernel, problem, device, workspace: workspace::DEFAULT_BYTES };
        match config {
            Some(config) => super::configured_us(family, &case, config),
            None => super::configure(family, &case).1,
        }
    }
}
