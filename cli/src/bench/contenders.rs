//! The arms that a record compares: the baselines of `ours`, and the fastest arm of each row.

use super::report::{Report, Row};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::Role;

pub const OURS: &str = "ours";
pub const OWN_BEST: &str = "own-best";
pub const CANDLE: &str = "candle";
pub const CUBLASLT: &str = "cublaslt";
pub const CUBLAS_LOOP: &str = "cublas-loop";
pub const BF16: &str = "bf16";

/// The baselines of `ours`, the best known first.
const BASELINES: [&str; 4] = [CANDLE, CUBLASLT, CUBLAS_LOOP, BF16];
/// The arms of which one is the fastest of a row, `own-best` for our kernels. Of arms with one time, the first counts.
const CONTENDERS: [&str; 6] = [OWN_BEST, CANDLE, CUBLASLT, CUBLAS_LOOP, BF16, OURS];

/// Whether the vendor library ran.
pub fn is_vendor(kernel: &str) -> bool {
    let kernel = kernel.to_ascii_lowercase();
    KERNELS.iter().any(|row| row.role == Role::Vendor && kernel.starts_with(row.family))
}

/// The baselines that the record has.
pub fn baselines(report: &Report) -> Vec<&'static str> {
    BASELINES.into_iter().filter(|arm| report.rows.iter().any(|row| row.arms.contains_key(*arm))).collect()
}

/// The contest of a record's rows.
pub struct Contest {
    /// The arms of dense products, of products with quantised weights, of experts, and of both.
    of_kind: [Vec<&'static str>; 4],
}

/// The fastest arm of a row, and by how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Win {
    /// [`OWN_BEST`] where one of our kernels won, [`OURS`] where the dispatcher won with the vendor's.
    pub arm: &'static str,
    /// Time of the second over the first.
    pub lead: f64,
}

fn kind(row: &Row) -> usize {
    usize::from(row.b.is_some()) + 2 * usize::from(row.groups.is_some())
}

/// The time, where it can be compared.
fn us(row: &Row, arm: &str) -> Option<f64> {
    row.arms.get(arm).map(|arm| arm.us).filter(|us| us.is_finite() && *us > 0.0)
}

impl Contest {
    pub fn of(rows: &[&Row]) -> Self {
        let of_kind = [0, 1, 2, 3].map(|number| {
            let has = |arm: &&str| rows.iter().any(|row| kind(row) == number && us(row, arm).is_some());
            CONTENDERS.into_iter().filter(has).collect()
        });
        Self { of_kind }
    }

    /// The fastest arm of a row. `None` where the row lacks an arm that others of its kind have, or has none beside ours.
    pub fn win(&self, row: &Row) -> Option<Win> {
        let arms = &self.of_kind[kind(row)];
        // The dispatcher's choice is one of our kernels, in a configuration that `own-best` may have passed over, or the vendor's call.
        let by_vendor = row.arms.get(OURS).is_some_and(|ours| is_vendor(&ours.kernel));
        let name = |arm: &'static str| if arm == OURS && !by_vendor { OWN_BEST } else { arm };
        let times: Option<Vec<_>> = arms.iter().map(|arm| Some((name(arm), us(row, arm)?))).collect();
        let times = times?;
        let (arm, least) = times.iter().copied().min_by(|x, y| x.1.total_cmp(&y.1))?;
        let second = times.iter().filter(|(other, _)| *other != arm).map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
        let is_compared = times.iter().any(|(arm, _)| ![OURS, OWN_BEST].contains(arm));
        is_compared.then_some(Win { arm, lead: second / least })
    }

    /// The number of wins of each arm, and of those with a lead above `margin`, in the order of the contenders.
    pub fn wins(&self, rows: &[&Row], margin: f64) -> Vec<(&'static str, usize, usize)> {
        let wins: Vec<Win> = rows.iter().filter_map(|row| self.win(row)).collect();
        let count = |arm: &'static str| {
            let own = wins.iter().filter(|win| win.arm == arm);
            (arm, own.clone().count(), own.filter(|win| win.lead > margin).count())
        };
        CONTENDERS.into_iter().map(count).filter(|(_, all, _)| *all > 0).collect()
    }
}
