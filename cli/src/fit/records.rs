//! Measurements of a record: kernels, products and times.

use crate::bench::report;
use crate::{products, Result};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family;
use candle_tilegemm::internal::fit::Refit;
use candle_tilegemm::internal::suite::{Shape, Size};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::{Config, F32Mode, Problem};
use std::path::Path;

/// The part of a record that a fit needs.
pub struct Record {
    pub name: String,
    pub gpu: String,
    pub date: String,
    pub seed: Option<u64>,
    pub device: DeviceInfo,
    pub products: Vec<Product>,
    pub measurements: Vec<Measurement>,
}

/// A product of a record.
pub struct Product {
    pub id: String,
    pub class: String,
    pub problem: Problem,
    /// The time of stock candle.
    pub stock_us: Option<f64>,
    /// Times of plans on copies of operands, by the plan's name and configuration.
    pub on_copies: Vec<(String, Config, f64)>,
}

/// The time of a kernel.
pub struct Measurement {
    /// The place of the product among the products of its record.
    pub product: usize,
    pub kernel: &'static KernelDesc,
    /// `None`: the family's choice.
    pub config: Option<Config>,
    /// Canonical.
    pub problem: Problem,
    pub device: DeviceInfo,
    pub us: f64,
    /// The weight of the measurement: less where other kernels are faster, since such a kernel is not chosen.
    pub weight: f64,
}

impl Measurement {
    /// The distance of the estimate from the time, by logarithm.
    pub fn error(&self, refit: &Refit) -> f64 {
        let estimate = refit.estimate_us(self.kernel, &self.problem, &self.device, self.config.as_ref());
        // A configuration that the family does not have is as bad as an estimate can be.
        (estimate / self.us).ln().abs().min(10.0)
    }
}

/// Every measurement of these records with its estimate, as CSV: times in microseconds.
pub fn csv<'a>(records: impl Iterator<Item = &'a Record>) -> String {
    let mut text = "record,product,class,m,n,k,batch,layout,dtype,f32_mode,align,kernel,config,us,estimate_us,\
                    family_choice,choice,copies\n"
        .to_string();
    let refit = Refit::default();
    for record in records {
        let dispatcher = Dispatcher::hypothetical(record.device.clone()).with_refit(Refit::default());
        let plans: Vec<_> =
            record.products.iter().map(|product| dispatcher.plan(&product.problem, Policy::default()).ok()).collect();
        for measurement in &record.measurements {
            let Measurement { kernel, config, problem, device, us, .. } = measurement;
            let Problem { m, n, k, f32_mode, .. } = problem;
            let Product { id, class, .. } = &record.products[measurement.product];
            let plan = plans[measurement.product].as_ref().filter(|plan| plan.canonical.problem.f32_mode == *f32_mode);
            let copies = plan.and_then(|plan| plan.packing).map_or(String::new(), |packing| packing.names());
            let choice = refit.choice(kernel, problem, device);
            let is_choice = config.is_none_or(|config| config == choice);
            let is_taken = plan.is_some_and(|plan| {
                plan.kernel.name == kernel.name && config.is_none_or(|config| config == plan.config)
            });
            let estimate = refit.estimate_us(kernel, problem, device, config.as_ref());
            let config = config.map_or(String::new(), |config| config.to_string());
            let align = problem.alignments().iter().map(|(_, align)| *align).min().unwrap_or_default();
            let (batch, layout, dtype) = (problem.batch_count(), problem.layout(), problem.a.format);
            let record = record.seed.map_or(record.name.clone(), |seed| seed.to_string());
            text += &format!(
                "{record},{id},{class},{m},{n},{k},{batch},{layout},{dtype},{f32_mode},{align},{kernel},{config},{us},\
                 {estimate:.4},{is_choice},{is_taken},{copies}\n"
            );
        }
    }
    text
}

impl Record {
    /// Reads a record of `tilegemm bench` or `tilegemm errors f32`.
    pub fn load(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {name}: {e}"))?;
        let mut json: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| format!("{name} is not JSON: {e}"))?;
        if json.get("bench").is_some() {
            json = json["bench"].take();
        }
        let report = report::Report::from_json(json).map_err(|e| format!("{name}: {e}"))?;
        Self::of(name, &report)
    }

    fn of(name: String, report: &report::Report) -> Result<Self> {
        let gpu = report.machine.gpu.clone();
        let device = DeviceInfo::names().filter_map(DeviceInfo::by_name).find(|device| device.name == gpu);
        let device = device.ok_or_else(|| format!("{name}: no estimates are made for {gpu}"))?;
        let suite = products::of_the_suite()?;
        let (mut products, mut measurements) = (Vec::new(), Vec::new());
        for row in report.sound() {
            let Some(shape) = shape(row, &suite) else { continue };
            let problem = |f32_mode| shape.problem().with(|problem| problem.f32_mode = f32_mode);
            let mode = shape.f32.or(report.settings.f32).unwrap_or(F32Mode::Strict);
            // Stock with sums in 16 bits is another computation than the vendor's row.
            let exact = |arm: &&String| !row.flags.iter().any(|flag| flag.strip_prefix("inexact ") == Some(arm));
            for (arm, measured) in row.arms.iter().filter(|(arm, _)| exact(arm)) {
                let mode = arm.rsplit_once('-').and_then(|(_, mode)| mode.parse().ok()).unwrap_or(mode);
                let asked = problem(mode);
                let canonical = asked.canonical().problem;
                let Some(kernel) = kernel(&measured.kernel, &asked, &canonical) else { continue };
                // A kernel of an older table may refuse the product now.
                if kernel.supports(&canonical, &device).is_err() {
                    continue;
                }
                let config = completed(measured.config, kernel, &canonical, &device);
                let is_same = |m: &&mut Measurement| {
                    m.product == products.len()
                        && m.kernel.name == kernel.name
                        && m.config == config
                        && m.problem == canonical
                };
                match measurements.iter_mut().find(is_same) {
                    Some(known) => known.us = known.us.min(measured.us),
                    None => measurements.push(Measurement {
                        product: products.len(),
                        kernel,
                        config,
                        problem: canonical,
                        device: device.clone(),
                        us: measured.us,
                        weight: 1.0,
                    }),
                }
            }
            let of_product = measurements.iter_mut().filter(|m: &&mut Measurement| m.product == products.len());
            weigh(of_product.collect());
            let on_copies = row.arms.values().filter(|arm| arm.kernel.contains("+copies_"));
            let on_copies = on_copies.map(|arm| (arm.kernel.clone(), arm.config, arm.us)).collect();
            let stock_us = row.arms.get("candle").map(|stock| stock.us);
            let (id, class) = (row.id.clone(), row.class.clone());
            products.push(Product { id, class, problem: problem(mode), stock_us, on_copies });
        }
        let (date, seed) = (report.machine.date.clone(), report.settings.seed);
        Ok(Self { name, gpu, date, seed, device, products, measurements })
    }

    /// Whether a product is a row of this crate's suite.
    pub fn is_of_the_suite(&self) -> bool {
        let suite = products::of_the_suite().unwrap_or_default();
        self.products.iter().any(|product| suite.iter().any(|shape| shape.id == product.id))
    }
}

/// Weights the measurements of a product by the least of their times in the same f32 mode over their own, squared.
fn weigh(mut measurements: Vec<&mut Measurement>) {
    let times: Vec<_> = measurements.iter().map(|m| (m.problem.f32_mode, m.us)).collect();
    for measurement in &mut measurements {
        let same = times.iter().filter(|(mode, _)| *mode == measurement.problem.f32_mode);
        let best = same.map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
        measurement.weight = (best / measurement.us).powi(2);
    }
}

/// The product of a row. An older row has no strides and no epilogue: the row of the suite with its id has them.
fn shape(row: &report::Row, suite: &[Shape]) -> Option<Shape> {
    let size = |size: usize| Size::try_from(size).ok();
    let (m, n, k, batch) = (size(row.m)?, size(row.n)?, size(row.k)?, size(row.batch)?);
    let of_suite = suite.iter().find(|shape| shape.id == row.id);
    let of_suite = of_suite.filter(|shape| [shape.m, shape.n, shape.k, shape.batch] == [m, n, k, batch]);
    let own = Shape {
        id: row.id.clone(),
        class: row.class.clone(),
        a_batch_stride: row.a_batch_stride,
        b_batch_stride: row.b_batch_stride,
        a_stride: row.a_stride,
        b_stride: row.b_stride,
        a_offset: row.a_offset,
        b_offset: row.b_offset,
        d_offset: row.d_offset,
        f32: row.f32,
        epilogue: row.epilogue,
        groups: row.groups,
        b: row.b,
        scale: row.scale,
        zeros: row.zeros,
        fast: row.fast,
        out: row.out,
        ..Shape::dense([m, n, k], batch, row.layout, row.dtype)
    };
    Some(of_suite.cloned().unwrap_or(own))
}

/// The kernel of an arm. Stock's call is the vendor row where our canonical form is the same call.
fn kernel(name: &str, asked: &Problem, canonical: &Problem) -> Option<&'static KernelDesc> {
    if name != "cublasGemmStridedBatchedEx" {
        return family::by_name(name);
    }
    let is_same = [asked.m, asked.n, asked.batch_count()] == [canonical.m, canonical.n, canonical.batch_count()];
    let is_vendors = |kernel: &&KernelDesc| {
        kernel.role == Role::Vendor && kernel.types == canonical.types() && kernel.layout == canonical.layout()
    };
    family::KERNELS.iter().find(is_vendors).filter(|_| is_same && canonical.epilogue.is_linear())
}

/// The configuration of a record; `None` where there is nothing to choose. Older records lack the stages that kernels chose by themselves.
fn completed(measured: Config, kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> Option<Config> {
    if measured.stages == 0 {
        let legal = kernel.configurations(problem, device);
        let is_measured = |legal: &Config| legal.with(|config| config.stages = 0) == measured;
        if let Some(legal) = legal.into_iter().find(is_measured) {
            return Some(legal).filter(|config| !config.is_default());
        }
    }
    Some(measured).filter(|config| !config.is_default())
}
