//! `--compare A.json B.json`: rows that got faster or slower from one record to the next.

use super::report::{Report, Row};
use candle_tilegemm::F32Mode;
use comfy_table::{presets::ASCII_MARKDOWN, Table};

/// A change below this share is noise, whatever the percentiles say: two runs of the same binary differ by this share.
const NOISE: f64 = 0.03;
/// The number of rows needed to separate the card's drift from changes of single rows.
const ENOUGH_ROWS: usize = 5;

/// Two records side by side.
pub struct Comparison {
    /// The median slowdown of stock candle on the second card, which is removed from every change.
    pub drift: f64,
    /// Rows of both records, and the change of each arm's time.
    changes: Vec<Change>,
    only_in_one: Vec<String>,
    /// The f32 modes of the records, where the modes differ.
    f32: Option<[F32Mode; 2]>,
}

struct Change {
    id: String,
    arm: String,
    kernels: [String; 2],
    us: [f64; 2],
    /// Time of the second over the first, without the drift.
    ratio: f64,
    beyond_noise: bool,
}

impl Comparison {
    /// Compares these arms of both records.
    pub fn new(first: &Report, second: &Report, arms: &[String]) -> Self {
        let twin = |row: &Row| second.sound().find(|other| other.is_of_the_product(row));
        let pairs: Vec<(&Row, &Row)> = first.sound().filter_map(|row| Some((row, twin(row)?))).collect();
        let mut drifts: Vec<f64> =
            pairs.iter().filter_map(|(x, y)| Some(y.arms.get("candle")?.us / x.arms.get("candle")?.us)).collect();
        drifts.sort_by(f64::total_cmp);
        let drift = if drifts.len() >= ENOUGH_ROWS { drifts[drifts.len() / 2] } else { 1.0 };
        let change = |(x, y): (&Row, &Row), arm: &String| {
            let (x_arm, y_arm) = (x.arms.get(arm)?, y.arms.get(arm)?);
            let ratio = y_arm.us / x_arm.us / drift;
            let apart = y_arm.us_p10 / drift > x_arm.us_p90 || y_arm.us_p90 / drift < x_arm.us_p10;
            Some(Change {
                id: x.id.clone(),
                arm: arm.clone(),
                kernels: [x_arm.kernel.clone(), y_arm.kernel.clone()],
                us: [x_arm.us, y_arm.us],
                ratio,
                beyond_noise: apart && (ratio - 1.0).abs() > NOISE,
            })
        };
        let of_pair = |pair: &(&Row, &Row)| arms.iter().filter_map(|arm| change(*pair, arm)).collect::<Vec<_>>();
        let mut changes: Vec<Change> = pairs.iter().flat_map(of_pair).collect();
        changes.sort_by(|x, y| y.ratio.total_cmp(&x.ratio));
        let lacks = |report: &Report, row: &Row| !report.rows.iter().any(|other| other.is_of_the_product(row));
        let only = |of: &Report, not: &Report| -> Vec<String> {
            of.rows.iter().filter(|row| lacks(not, row)).map(|row| row.id.clone()).collect()
        };
        let mut only_in_one = only(first, second);
        only_in_one.extend(only(second, first));
        only_in_one.dedup();
        let f32 = first.settings.f32.zip(second.settings.f32).filter(|(x, y)| x != y).map(|(x, y)| [x, y]);
        Self { drift, changes, only_in_one, f32 }
    }

    /// Whether the records have no time in common.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Times that got slower beyond noise.
    pub fn regressions(&self) -> usize {
        self.changes.iter().filter(|change| change.beyond_noise && change.ratio > 1.0).count()
    }

    /// Rows whose times agree within 3 %.
    fn agreeing(&self) -> usize {
        self.changes.iter().filter(|change| (change.ratio - 1.0).abs() <= NOISE).count()
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let moved: Vec<&Change> = self.changes.iter().filter(|change| change.beyond_noise).collect();
        if !moved.is_empty() {
            let mut table = Table::new();
            let header = ["row", "arm", "first us", "second us", "time changed by", "kernel"];
            table.load_style(ASCII_MARKDOWN).set_header(header);
            for change in &moved {
                let [from, to] = &change.kernels;
                let kernel = if from == to { to.clone() } else { format!("{from} -> {to}") };
                let [first, second] = change.us.map(|us| format!("{us:.1}"));
                let percent = format!("{:+.1} %", 100.0 * (change.ratio - 1.0));
                table.add_row([change.id.clone(), change.arm.clone(), first, second, percent, kernel]);
            }
            writeln!(f, "{table}")?;
        }
        let regressions = self.regressions();
        writeln!(f, "{regressions} slower, {} faster, of {} rows", moved.len() - regressions, self.changes.len())?;
        let share = 100.0 * self.agreeing() as f64 / self.changes.len().max(1) as f64;
        writeln!(f, "{} rows ({share:.0} %) agree within {:.0} %", self.agreeing(), 100.0 * NOISE)?;
        if self.drift != 1.0 {
            let percent = 100.0 * (self.drift - 1.0);
            writeln!(f, "the second card's drift ({percent:+.1} %, from the arm candle) is taken out")?;
        }
        if let Some([first, second]) = self.f32 {
            writeln!(f, "f32 products are {first} in the first and {second} in the second")?;
        }
        if !self.only_in_one.is_empty() {
            writeln!(f, "only in one record: {}", self.only_in_one.join(", "))?;
        }
        Ok(())
    }
}
