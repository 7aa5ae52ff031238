//! `tilegemm suite`: products, and the dispatcher's choice for each. Needs no GPU.

use super::products::Products;
use crate::arch::DeviceInfo;
use crate::cli::Result;
use crate::dispatch::{Dispatcher, Policy};
use crate::suite::{self, Shape};
use crate::{cost, workspace};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};

/// List the products of a suite or of a seed, with the dispatcher's choice, its estimate and the roofline
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    products: Products,
    #[command(flatten)]
    f32: crate::cli::F32,
    /// The GPU of the plans
    #[arg(long, default_value = "h100", value_parser = ["h100", "h200", "a100"])]
    device: String,
    /// Exclude the vendor library
    #[arg(long)]
    own: bool,
    /// Print the products in the format of suites, without choices
    #[arg(long)]
    toml: bool,
}

pub fn run(args: &Args) -> Result {
    let shapes = args.products.shapes()?;
    if args.toml {
        return crate::cli::print(suite::to_toml(&shapes).trim_end());
    }
    let device = DeviceInfo::by_name(&args.device).ok_or("the device is not known")?;
    let dispatcher = Dispatcher::hypothetical(device).with_user_tuning()?;
    let policy = if args.own { Policy::own() } else { Policy::default() }.with_workspace(workspace::bytes()?);
    let mode = args.f32.mode()?;
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["id", "class", "product", "kernel", "estimate us", "over roofline"]);
    for column in table.column_iter_mut().skip(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for shape in &shapes {
        let problem = shape.problem_in(mode);
        let plan = dispatcher.plan(&problem, policy)?;
        let roofline = cost::roofline_us(&plan.canonical.problem, dispatcher.device());
        let config = if plan.config.is_default() { String::new() } else { format!("@{}", plan.config) };
        let kernel = format!("{}{config}", plan.name());
        let (us, over) = (format!("{:.1}", plan.estimate_us), format!("{:.2}", plan.estimate_us / roofline));
        table.add_row([shape.id.clone(), shape.class.clone(), format!("{problem}{}", place(shape)), kernel, us, over]);
    }
    crate::cli::print(table)
}

/// The strides and offsets of a row, which a problem does not print.
fn place(shape: &Shape) -> String {
    let fields = [
        ("lda", shape.a_stride),
        ("ldb", shape.b_stride),
        ("a+", shape.a_offset),
        ("b+", shape.b_offset),
        ("d+", shape.d_offset),
    ];
    let given = fields.into_iter().filter_map(|(name, value)| Some(format!(" {name}{}", value?)));
    given.collect()
}
