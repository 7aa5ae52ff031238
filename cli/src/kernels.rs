//! `tilegemm kernels`: the table, with one line for each row or for each kernel.

use crate::{device, explain, words, Result};
use candle_tilegemm::arch::Arch;
use candle_tilegemm::family::{BUILT_ARCHS, FEATURES, KERNELS};
use candle_tilegemm::kernel::{Fusion, KernelDesc, Math};
use candle_tilegemm::Format;
use comfy_table::{ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle, Width};
use std::fmt::Display;

/// Columns of a table, on terminals and in files.
const WIDTH: u16 = 120;
/// Columns of each field but the last, with a column of padding on both sides, for a table of rows.
const ROW_WIDTHS: [u16; 9] = [13, 12, 10, 8, 13, 9, 7, 10, 7];
const HEADER_ONLY: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));

#[derive(clap::Args)]
pub struct Args {
    /// Only kernels that run on this architecture: sm90, sm80, ...
    #[arg(long, value_parser = capability)]
    arch: Option<u16>,
    /// Only kernels that run on this card: h100, a100, rtx4090, ...
    #[arg(long, conflicts_with = "arch", value_parser = device::names())]
    device: Option<String>,
    /// Only kernels for operands A of this element type
    #[arg(long, value_parser = explain::formats(explain::OPERANDS))]
    dtype: Option<Format>,
    /// Only kernels of this family; several families with commas
    #[arg(long, value_name = "FAMILY", value_delimiter = ',', value_parser = words::names(families()))]
    family: Vec<String>,
    /// One line for each kernel, with its name
    #[arg(long, conflicts_with = "json")]
    names: bool,
    /// Every field of every kernel, as JSON
    #[arg(long)]
    json: bool,
}

fn capability(arch: &str) -> std::result::Result<u16, String> {
    let arch = arch.to_lowercase();
    let digits = arch.trim_start_matches("sm").trim_start_matches('_').trim_end_matches('a');
    let capability = digits.parse().ok().filter(|capability| (50..1000).contains(capability));
    capability.ok_or_else(|| "expected a compute capability such as sm90".into())
}

/// The families of the table, in the table's order.
pub fn families() -> Vec<&'static str> {
    let mut names: Vec<_> = KERNELS.iter().map(|kernel| kernel.family).collect();
    names.dedup();
    names
}

pub fn run(args: &Args) -> Result {
    let of_card = args.device.as_deref().map(device::find).transpose()?.map(|device| device.capability);
    let chosen = |kernel: &&KernelDesc| {
        args.arch.or(of_card).is_none_or(|device| kernel.arch.runs_on(device))
            && args.dtype.is_none_or(|dtype| kernel.types.a == dtype)
            && (args.family.is_empty() || args.family.iter().any(|family| family == kernel.family))
    };
    let kernels: Vec<&KernelDesc> = KERNELS.iter().filter(chosen).collect();
    if args.json {
        return crate::print_json(&kernels.into_iter().map(Described::from).collect::<Vec<_>>());
    }
    let table = if args.names { name_table(&kernels) } else { row_table(&kernels)? };
    crate::print(table.trim_fmt())?;
    let built = kernels.iter().filter(|kernel| kernel.is_built()).count();
    crate::print(format_args!("\n{} kernels, {built} in this build ({})", kernels.len(), built_for()))?;
    left_out(&kernels).iter().try_for_each(crate::print)?;
    if !args.names {
        crate::print("`tilegemm kernels --names` lists them by name")?;
    }
    Ok(())
}

/// A kernel and whether the kernel is built, in JSON.
#[derive(serde::Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    kernel: &'a KernelDesc,
    built: bool,
}

impl<'a> From<&'a KernelDesc> for Described<'a> {
    fn from(kernel: &'a KernelDesc) -> Self {
        Self { kernel, built: kernel.is_built() }
    }
}

/// The architectures of this build in words.
pub fn built_for() -> String {
    match BUILT_ARCHS {
        [] => "CPU only; the feature `cuda` builds kernels".into(),
        archs => join(archs.iter().map(|&arch| Arch::device(arch)), " "),
    }
}

fn name_table(kernels: &[&KernelDesc]) -> Table {
    // Names tell the tile and the cluster.
    let mut table = new_table(&["name", "arch", "dtype", "layout", "align", "fuses", "built"]);
    for kernel in kernels {
        table.add_row([
            kernel.name.into(),
            kernel.arch.to_string(),
            kernel.types.a.to_string(),
            kernel.layout.to_string(),
            kernel.align.to_string(),
            fuses(kernel).into(),
            built(&[kernel]),
        ]);
    }
    table
}

fn row_table(kernels: &[&KernelDesc]) -> Result<Table> {
    let header = ["family", "arch", "dtype", "layout", "tile", "cluster", "align", "fuses", "built", "made for"];
    let mut table = new_table(&header);
    for row in kernels.chunk_by(|x, y| same_row(x, y)) {
        let kernel = row[0];
        table.add_row([
            format!("{}\n{}", kernel.family, kernel.schedule.trim_start_matches("none")),
            distinct(row, |kernel| kernel.arch),
            dtypes(row),
            distinct(row, |kernel| kernel.layout),
            tile(kernel),
            join(kernel.cluster, "x"),
            distinct(row, |kernel| kernel.align),
            fuses(kernel).into(),
            built(row),
            kernel.why.into(),
        ]);
    }
    *table.style_mut() = HEADER_ONLY.row_separator(LineStyle::none().fill(' '));
    for (column, width) in table.column_iter_mut().zip(ROW_WIDTHS) {
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
    }
    Ok(table)
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(HEADER_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(WIDTH).set_header(header);
    table
}

/// Whether two neighbours were expanded from one row of the table.
fn same_row(x: &KernelDesc, y: &KernelDesc) -> bool {
    let row =
        |kernel: &KernelDesc| (kernel.family, kernel.math, kernel.tile, kernel.cluster, kernel.schedule, kernel.why);
    row(x) == row(y)
}

/// Element types, the formats of B and the type of the multiplication where these differ.
fn dtypes(row: &[&KernelDesc]) -> String {
    let names = distinct(row, |kernel| kernel.types.a);
    match row[0].math {
        Math::Native if row[0].types.b != row[0].types.a => {
            format!("{names}\nx {}", distinct(row, |kernel| kernel.types.b))
        }
        Math::Native => names,
        math => format!("{names}\n{math}"),
    }
}

fn tile(kernel: &KernelDesc) -> String {
    match kernel.tile {
        [0, 0, 0] => "-".into(),
        tile => join(tile, "x"),
    }
}

fn fuses(kernel: &KernelDesc) -> &'static str {
    match kernel.fusion {
        Fusion::None => "alpha",
        Fusion::BiasAct => "bias+act",
        _ => "all",
    }
}

/// A line for each feature that is off and has some of these kernels. A build without CUDA has none of the others either.
pub fn left_out(kernels: &[&KernelDesc]) -> Vec<String> {
    let is_off = |(feature, is_on): &(&'static str, bool)| (cfg!(feature = "cuda") && !is_on).then_some(*feature);
    let line = |feature| match kernels.iter().filter(|kernel| kernel.features.contains(&feature)).count() {
        0 => None,
        count => Some(format!("{count} are not built: build with the feature {feature}")),
    };
    FEATURES.iter().filter_map(is_off).filter_map(line).collect()
}

/// The archs of the row's kernels that are built.
fn built(kernels: &[&KernelDesc]) -> String {
    let built: Vec<&KernelDesc> = kernels.iter().copied().filter(|kernel| kernel.is_built()).collect();
    match built.len() {
        0 => "no".into(),
        count if count == kernels.len() => "yes".into(),
        _ => distinct(&built, |kernel| kernel.arch),
    }
}

fn distinct<T: PartialEq + Display>(kernels: &[&KernelDesc], field: impl Fn(&KernelDesc) -> T) -> String {
    let mut values: Vec<T> = Vec::new();
    for value in kernels.iter().map(|kernel| field(kernel)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    join(values, " ")
}

fn join<T: Display>(values: impl IntoIterator<Item = T>, separator: &str) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(separator)
}
