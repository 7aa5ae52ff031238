//! Counts of products by kernel.

#[cfg(feature = "cuda")]
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::launch;
use crate::problem::Problem;
use crate::tuning::RefusedCounts;
use std::collections::HashMap;
use std::sync::Mutex;

/// One distinct product and its kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[non_exhaustive]
pub struct GemmCount {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Matrices in the batch.
    pub batch: usize,
    /// `nt`, `nn`, `tn`, `tt`, or `any`.
    pub layout: &'static str,
    /// The format of A: `f16`, `bf16`, `f32` or `f64`.
    pub dtype: &'static str,
    /// The format of the result.
    pub out: &'static str,
    /// Name of the kernel; `candle_cpu` for tensors in host memory.
    pub kernel: &'static str,
    /// The number of runs.
    pub calls: u64,
}

impl GemmCount {
    fn new(problem: &Problem, kernel: &'static str, calls: u64) -> Self {
        let Problem { m, n, k, a, d, .. } = *problem;
        let layout = problem.canonical_strides().layout().name();
        Self {
            m,
            n,
            k,
            batch: problem.batch_count(),
            layout,
            dtype: a.format.name(),
            out: d.format.name(),
            kernel,
            calls,
        }
    }
}

/// The number of distinct products on the CPU that are counted separately.
const MOST_PRODUCTS: usize = 1 << 16;

/// Calls by product, and the sum of the calls of products beyond the first [`MOST_PRODUCTS`].
#[derive(Debug, Default)]
struct Counts {
    by_product: HashMap<Problem, u64>,
    others: u64,
}

impl Counts {
    #[cfg_attr(not(feature = "candle"), allow(dead_code))]
    fn count(&mut self, problem: &Problem) {
        let has_room = self.by_product.len() < MOST_PRODUCTS;
        match self.by_product.get_mut(problem) {
            Some(calls) => *calls += 1,
            None if has_room => drop(self.by_product.insert(*problem, 1)),
            None => self.others += 1,
        }
    }
}

static CPU: Mutex<Option<Counts>> = Mutex::new(None);

/// Counts one product on the CPU.
#[cfg(feature = "candle")]
pub(crate) fn count_cpu(problem: &Problem) {
    CPU.lock().unwrap().get_or_insert_default().count(problem);
}

/// A measured table of a device in use.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct TableUse {
    /// Ordinal of the device.
    pub device: usize,
    /// The table's name.
    pub table: String,
    /// The number of valid entries; 0 for a refused table.
    pub entries: usize,
    /// The numbers of refused entries in a table that is not refused.
    pub refused_entries: RefusedCounts,
    /// Why the table is refused, if the table is refused.
    pub refused: Option<String>,
}

/// The measured tables of the devices that products ran on so far: the tables in use, in order of precedence, and the
/// refused tables.
pub fn tables() -> Vec<TableUse> {
    #[cfg_attr(not(feature = "cuda"), expect(unused_mut))]
    let mut tables = Vec::new();
    #[cfg(feature = "cuda")]
    for (device, dispatcher) in launch::dispatchers() {
        let found = dispatcher.tables();
        tables.extend(found.used().map(|tuning| TableUse {
            device,
            table: tuning.name().into(),
            entries: tuning.entries().len(),
            refused_entries: RefusedCounts::of(&dispatcher.skipped(tuning)),
            refused: None,
        }));
        tables.extend(found.refused().iter().filter_map(|error| match error {
            Error::Tuning { name, refusal } => {
                let refused = Some(refusal.to_string());
                Some(TableUse { device, table: name.clone(), entries: 0, refused_entries: Default::default(), refused })
            }
            _ => None,
        }));
    }
    tables
}

/// Every product that ran in this process so far, through the op, the layers or the interposer; most frequent first.
///
/// [`others`] counts the products beyond the number that is kept.
///
/// ```
/// # #[cfg(feature = "candle")]
/// # fn main() -> candle::Result<()> {
/// use candle::{DType, Device, Tensor};
/// use candle_tilegemm::{stats, GemmExt};
///
/// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
/// x.gemm(&x.t()?)?;
/// let first = &stats::gemms()[0];
/// assert_eq!((first.m, first.n, first.k, first.calls, first.kernel), (3, 3, 4, 1, "candle_cpu"));
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "candle"))]
/// # fn main() {}
/// ```
pub fn gemms() -> Vec<GemmCount> {
    let mut counts: HashMap<GemmCount, u64> = HashMap::new();
    let mut add = |problem: &Problem, kernel, calls| {
        if calls > 0 {
            *counts.entry(GemmCount::new(problem, kernel, 0)).or_default() += calls;
        }
    };
    for (problem, calls) in CPU.lock().unwrap().iter().flat_map(|counts| &counts.by_product) {
        add(problem, "candle_cpu", *calls);
    }
    #[cfg(feature = "cuda")]
    for plan in launch::dispatchers().flat_map(|(_, dispatcher)| dispatcher.plans()) {
        add(&plan.asked, plan.kernel.name, plan.calls());
    }
    let mut gemms: Vec<_> = counts.into_iter().map(|(gemm, calls)| GemmCount { calls, ..gemm }).collect();
    gemms.sort_by(|x, y| y.calls.cmp(&x.calls).then_with(|| x.cmp(y)));
    gemms
}

#[cfg(feature = "cuda")]
fn on_gpus() -> u64 {
    launch::dispatchers().map(|(_, dispatcher)| dispatcher.forgotten_calls()).sum()
}

#[cfg(not(feature = "cuda"))]
fn on_gpus() -> u64 {
    0
}

/// Calls of products that have no entry in [`gemms`]. On the CPU, these are the products beyond the first 65,536
/// distinct ones. On a GPU, these are the products whose plan was dropped: of more than 32,768 distinct products, the
/// least recently used.
pub fn others() -> u64 {
    let cpu = CPU.lock().unwrap().as_ref().map_or(0, |counts| counts.others);
    cpu + on_gpus()
}

#[cfg(test)]
mod tests {
    use super::{Counts, MOST_PRODUCTS};
    use crate::problem::{Format, Layout, Problem};

    #[test]
    fn products_without_end_are_counted_in_bounded_memory() {
        let mut counts = Counts::default();
        for m in 0..MOST_PRODUCTS + 1000 {
            let problem = Problem::dense(m, 8, 8, 1, Layout::NN, Format::F32);
            (0..1 + m % 2).for_each(|_| counts.count(&problem));
        }
        assert_eq!((counts.by_product.len(), counts.others), (MOST_PRODUCTS, 1500));
        counts.count(&Problem::dense(1, 8, 8, 1, Layout::NN, Format::F32));
        assert_eq!(counts.by_product.values().sum::<u64>(), MOST_PRODUCTS as u64 * 3 / 2 + 1);
    }
}
