//! Products of one A side by side, each on a share of the multiprocessors.

use super::plan::Plan;

/// The most products that run side by side.
pub(crate) const MOST_BESIDE: usize = 3;
/// Columns of W that a block of such a kernel computes at a time, at most.
const UNIT: usize = 16;

/// The multiprocessors of each plan, where all of them may run side by side: blocks of all plans have the same number of columns, and all blocks run at
/// the same time.
pub(crate) fn shares(plans: &[&Plan]) -> Option<[u32; MOST_BESIDE]> {
    let first = plans.first()?;
    let may = |plan: &Plan| {
        let problem = &plan.canonical.problem;
        let has_own = plan.packing.is_none() && plan.workspace.best == 0 && !problem.is_empty();
        has_own && plan.kernel.room.family.runs_beside(plan.kernel, problem, &plan.config)
    };
    let sms = first.sm_count;
    if plans.len() < 2 || plans.len() > MOST_BESIDE.min(sms as usize) || !plans.iter().copied().all(may) {
        return None;
    }
    let units = |plan: &Plan| plan.canonical.problem.n.div_ceil(UNIT);
    let all: usize = plans.iter().copied().map(units).sum();
    (all.div_ceil(sms as usize)..=all).find_map(|of_block| {
        let mut shares = [0; MOST_BESIDE];
        shares.iter_mut().zip(plans).for_each(|(share, plan)| *share = units(plan).div_ceil(of_block) as u32);
        (shares.iter().sum::<u32>() <= sms).then_some(shares)
    })
}

#[cfg(test)]
mod tests {
    use super::shares;
    use crate::arch::DeviceInfo;
    use crate::dispatch::{Dispatcher, Policy};
    use crate::problem::{Format, Layout, Problem};

    fn of(device: DeviceInfo, m: usize, k: usize, products: &[(usize, Format)]) -> Option<[u32; 3]> {
        let dispatcher = Dispatcher::hypothetical(device);
        let plan = |(n, b): &(usize, Format)| {
            let problem = Problem::dense(m, *n, k, 1, Layout::NT, Format::F32).with(|problem| problem.b.format = *b);
            dispatcher.plan(&problem, Policy::own()).unwrap()
        };
        let plans: Vec<_> = products.iter().map(plan).collect();
        shares(&plans.iter().map(|plan| &***plan).collect::<Vec<_>>())
    }

    #[test]
    fn blocks_of_formats_side_by_side_have_as_many_columns() {
        let (q4, q6) = (Format::Q4K, Format::Q6K);
        let of_h200 = |m, k, products: &[(usize, Format)]| of(DeviceInfo::h200(), m, k, products);
        // q and k, and v, of llama 8B: 320 and 64 units, three for each block.
        assert_eq!(of_h200(1, 4096, &[(5120, q4), (1024, q6)]), Some([107, 22, 0]));
        assert_eq!(of_h200(8, 4096, &[(5120, q4), (1024, q6)]), Some([107, 22, 0]));
        assert_eq!(of_h200(1, 2048, &[(2048, q4), (512, q6), (512, q4)]), Some([64, 16, 16]));
        // Those of tests/gpu/into.rs.
        assert_eq!(of_h200(1, 1024, &[(896, q4), (128, q6)]), Some([56, 8, 0]));
        assert_eq!(of_h200(8, 1024, &[(640, q4), (256, q6), (128, Format::Q8_0)]), Some([40, 16, 8]));
        assert_eq!(of_h200(1, 4096, &[(5120, q4)]), None, "one product");
        assert_eq!(of_h200(1, 8192, &[(9216, q4), (1024, q6)]), None, "sums of parts of K lie in the workspace");
        assert_eq!(of_h200(512, 4096, &[(5120, q4), (1024, q6)]), None, "products of tiles");
        assert_eq!(of_h200(1, 4096, &[(5120, q4), (1024, Format::F32)]), None, "dense weights");
        assert_eq!(of(DeviceInfo::a100(), 1, 4096, &[(5120, q4), (1024, q6)]), None, "kernels that do not overlap");
    }
}
