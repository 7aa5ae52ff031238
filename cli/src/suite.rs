//! `tilegemm suite`: products, and the dispatcher's choice for each. Needs no GPU.

use super::products::Products;
use crate::{device, Result};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::internal::suite::{self, Shape};
use candle_tilegemm::{internal::cost, workspace, F32Mode};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use serde::Serialize;

/// List the products of a suite or of a seed, with the dispatcher's choice, its estimate and the roofline
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    products: Products,
    #[command(flatten)]
    f32: crate::F32,
    /// The GPU of the plans; `this` is the first GPU of this machine
    #[arg(long, default_value = "h100", value_parser = device::names())]
    device: String,
    /// Exclude the vendor library
    #[arg(long)]
    own: bool,
    /// Print the products in the format of suites, without choices
    #[arg(long, conflicts_with_all = ["device", "own", "mode", "json"])]
    toml: bool,
    /// Print JSON: the card, and each product with its choice
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Listing<'a> {
    /// The driver's name of the card.
    device: &'a str,
    rows: Vec<Choice<'a>>,
}

/// A product and the dispatcher's choice.
#[derive(Serialize)]
struct Choice<'a> {
    /// The fields of the suite's row.
    #[serde(flatten)]
    shape: &'a Shape,
    /// The product in words.
    product: String,
    kernel: String,
    /// Absent where the kernel has nothing to choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<String>,
    estimate_us: f64,
    roofline_us: f64,
}

impl<'a> Choice<'a> {
    fn of(shape: &'a Shape, dispatcher: &Dispatcher, policy: Policy, mode: F32Mode) -> Result<Self> {
        let problem = shape.problem_in(mode);
        let plan = dispatcher.plan(&problem, policy)?;
        Ok(Self {
            shape,
            product: format!("{problem}{}", place(shape)),
            kernel: plan.name(),
            config: (!plan.config.is_default()).then(|| plan.config.to_string()),
            estimate_us: plan.estimate_us,
            roofline_us: cost::roofline_us(&plan.canonical.problem, dispatcher.device()),
        })
    }
}

pub fn run(args: &Args) -> Result {
    let shapes = args.products.shapes()?;
    if args.toml {
        return crate::print(suite::to_toml(&shapes).trim_end());
    }
    let dispatcher = Dispatcher::hypothetical(device::find(&args.device)?).with_user_tuning()?;
    let policy = if args.own { Policy::own() } else { Policy::default() }.with_workspace(workspace::bytes()?);
    let mode = args.f32.mode()?;
    let rows = shapes.iter().map(|shape| Choice::of(shape, &dispatcher, policy, mode)).collect::<Result<Vec<_>>>()?;
    if args.json {
        return crate::print_json(&Listing { device: &dispatcher.device().name, rows });
    }
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["id", "class", "product", "kernel", "estimate us", "over roofline"]);
    for column in table.column_iter_mut().skip(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for Choice { shape, product, kernel, config, estimate_us, roofline_us } in rows {
        let kernel = config.map_or(kernel.clone(), |config| format!("{kernel}@{config}"));
        let (us, over) = (format!("{estimate_us:.1}"), format!("{:.2}", estimate_us / roofline_us));
        table.add_row([shape.id.clone(), shape.class.clone(), product, kernel, us, over]);
    }
    crate::print(table)
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
