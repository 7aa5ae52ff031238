//! The errors that a family's numbers leave, learned as trees.

use super::boost::{self, Sample, CONTINUED, WHOLE};
use super::errors::{self, percent};
use super::records::{Measurement, Record};
use candle_tilegemm::arch::{Arch, Chip, DeviceInfo};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::internal::fit::{factors, of_launch, of_problem, variant, Card, Refit, Tree, Trees, BOUNDED};
use candle_tilegemm::kernel::{Case, KernelDesc, Role};
use candle_tilegemm::{workspace, Layout};
use comfy_table::Table;

/// A family with fewer measurements gets no trees, nor does a kernel with fewer: f16 and bf16 are one kernel here.
const LEAST: usize = 200;
const LEAST_OF_KERNEL: usize = 20;
/// A kernel of ours that takes this share longer than the fastest counts half. The vendor's call always counts whole, for each choice is made
/// between ours and this one.
const HALF: f64 = 0.15;
/// The least that a measurement counts.
const LEAST_WEIGHT: f64 = 0.05;

/// A family's trees.
pub struct Learned {
    pub family: &'static str,
    /// The chip of the card that was measured.
    chip: Chip,
    /// The kernels that the trees hold for.
    pub kernels: Vec<&'static str>,
    /// The least and the largest of each of the facts [`BOUNDED`].
    pub ranges: [[f32; 2]; BOUNDED.len()],
    /// The trees, and how many of them are the default card's, which come first.
    pub trees: Vec<Tree>,
    pub continued: usize,
    /// Measurements, and the mean errors by logarithm without and with the trees.
    pub count: usize,
    pub errors: [f64; 2],
}

/// Kernels that differ in f16 and bf16 alone are of one kind.
fn kind(kernel: &KernelDesc) -> (Arch, u32, Layout, [u32; 2]) {
    let bits = [kernel.types.a, kernel.types.d].map(|format| format.bits() as u32);
    (kernel.arch, variant(kernel), kernel.layout, bits)
}

/// A measurement to learn from, of a card with this chip.
fn sample(measurement: &Measurement, refit: &Refit, chip: Chip) -> Option<Sample> {
    let Measurement { kernel, problem, device, us, weight, .. } = measurement;
    let case = Case { kernel, problem, device, workspace: workspace::DEFAULT_BYTES };
    let model = refit.model(kernel, Card::of(device));
    let config = measurement.config.unwrap_or_else(|| model.chosen(&case));
    let expected = model.uncorrected_us(&case, &config);
    let target = (us / expected).ln();
    // The measurement's own weight is the square of its speed over the fastest.
    let slower = weight.sqrt().recip() - 1.0;
    let weight = match kernel.role {
        Role::Vendor => 1.0,
        _ => (1.0 + (slower / HALF).powi(2)).recip() + LEAST_WEIGHT,
    };
    (device.chip() == chip && target.abs() < 2.0).then(|| {
        let facts = of_launch(of_problem(problem, device), &case, &config, expected);
        Sample { facts, target, weight }
    })
}

fn of_family<'a>(family: &str, records: &'a [Record]) -> Vec<&'a Measurement> {
    records.iter().flat_map(|record| &record.measurements).filter(|m| m.kernel.family == family).collect()
}

impl Learned {
    /// The trees of a family with the numbers of `refit`. A card without numbers of its own continues the default card's trees.
    pub fn of(family: &'static str, refit: &Refit, records: &[Record]) -> Option<Self> {
        let device = &records.first()?.device;
        let default = DeviceInfo::h100();
        if device.name != default.name && device.chip() == default.chip() && !refit.has(family) {
            if let Some(continued) = Self::continuing(family, refit, records, Card::of(&default)) {
                return Some(continued);
            }
        }
        let own = of_family(family, records);
        let chip = records.first()?.device.chip();
        let samples: Vec<Sample> = own.iter().filter_map(|measurement| sample(measurement, refit, chip)).collect();
        if samples.len() < LEAST {
            return None;
        }
        let trees = boost::trees(&samples, WHOLE);
        let count = |of: &KernelDesc| own.iter().filter(|m| kind(m.kernel) == kind(of)).count();
        let kernels = KERNELS.iter().filter(|kernel| kernel.family == family && count(kernel) >= LEAST_OF_KERNEL);
        let kernels = kernels.map(|kernel| kernel.name).collect();
        let range = |fact| {
            let values = samples.iter().map(|sample| sample.facts[fact as usize]);
            values.fold([f32::INFINITY, f32::NEG_INFINITY], |[least, most], value| [least.min(value), most.max(value)])
        };
        let (count, errors) = (samples.len(), errors(&samples, &trees));
        Some(Self { family, chip, kernels, ranges: BOUNDED.map(range), trees, continued: 0, count, errors })
    }

    /// The default card's trees of a family, and some of the errors that they leave on this card; `None` where the default card has none.
    fn continuing(family: &'static str, refit: &Refit, records: &[Record], default: &Card) -> Option<Self> {
        let trees_of = |kernel: &KernelDesc| Some(default.model(kernel).trees).filter(|trees| !trees.trees.is_empty());
        let of_family = of_family(family, records);
        let kernels = KERNELS.iter().filter(|kernel| kernel.family == family && trees_of(kernel).is_some());
        let kernels: Vec<&'static KernelDesc> = kernels.collect();
        let Trees { chip, ranges, trees: first } = trees_of(kernels.first()?)?;
        let own = of_family.into_iter().filter(|m| trees_of(m.kernel).is_some());
        let samples: Vec<Sample> = own.filter_map(|measurement| sample(measurement, refit, chip)).collect();
        if samples.len() < LEAST {
            return None;
        }
        let facts: Vec<_> = samples.iter().map(|sample| sample.facts).collect();
        let left = samples.iter().zip(factors(first, &facts));
        let left: Vec<Sample> = left.map(|(s, factor)| Sample { target: s.target - factor.ln(), ..*s }).collect();
        let trees = [first, &boost::trees(&left, CONTINUED)].concat();
        let (count, errors) = (samples.len(), errors(&samples, &trees));
        let kernels = kernels.into_iter().map(|kernel| kernel.name).collect();
        Some(Self { family, chip, kernels, ranges, trees, continued: first.len(), count, errors })
    }

    pub fn add_to(&self, refit: Refit) -> Refit {
        refit.with_trees(self.family, self.chip, (self.kernels.clone(), self.ranges, self.trees.clone()))
    }
}

/// The weighted means of errors without and with the trees.
fn errors(samples: &[Sample], trees: &[Tree]) -> [f64; 2] {
    let facts: Vec<_> = samples.iter().map(|sample| sample.facts).collect();
    let mut sums = [0.0; 2];
    for (Sample { target, weight, .. }, factor) in samples.iter().zip(factors(trees, &facts)) {
        sums[0] += weight * target.abs();
        sums[1] += weight * (target - factor.ln()).abs();
    }
    let weight: f64 = samples.iter().map(|sample| sample.weight).sum();
    sums.map(|sum| sum / weight)
}

/// The mean errors of each family's estimates, without trees and with trees: on the measurements that the trees were learned from, and on the
/// judged records.
pub fn table(learned: &[Learned], refit: &Refit, judged: &[Record]) -> Table {
    let header = ["trees of", "trees", "measurements", "without", "with", "judged: without", "with"];
    let mut table = errors::table(header);
    for Learned { family, chip, trees, count, errors: learned, .. } in learned {
        let others: Vec<Sample> = of_family(family, judged).iter().filter_map(|m| sample(m, refit, *chip)).collect();
        let judged = errors(&others, trees);
        let shares = learned.iter().chain(&judged).map(|error| percent(*error));
        table.add_row([family.to_string(), trees.len().to_string(), count.to_string()].into_iter().chain(shares));
    }
    table
}
