//! The regret of a dispatcher of this build on the measurements of a record.

use super::records::{Measurement, Record};
use crate::regret::{Judged, Regret};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::Config;
use std::fmt;

/// The regret on a record.
pub struct OnRecord {
    regret: Regret,
    /// Products whose choice was not measured.
    unmeasured: Vec<String>,
}

impl OnRecord {
    pub fn of(record: &Record, dispatcher: &Dispatcher) -> Self {
        let (mut judged, mut unmeasured) = (Vec::new(), Vec::new());
        for (index, product) in record.products.iter().enumerate() {
            let canonical = product.problem.canonical().problem;
            let of_product = |m: &&Measurement| m.product == index && m.problem == canonical;
            let times = || record.measurements.iter().filter(of_product);
            let all = times().map(|m| m.us).chain(product.on_copies.iter().map(|(.., us)| *us));
            let best = all.fold(f64::INFINITY, f64::min);
            let Ok(plan) = dispatcher.plan(&product.problem, Policy::default()) else { continue };
            let is_choice = |m: &&Measurement| {
                m.kernel.name == plan.kernel.name && m.config.is_none_or(|config| config == plan.config)
            };
            let name = plan.name();
            // Older records lack the stages that kernels chose by themselves.
            let without_stages = plan.config.with(|config| config.stages = 0);
            let may_be = |config: &Config| config.is_default() || [plan.config, without_stages].contains(config);
            let on_copies = product.on_copies.iter().find(|(of, config, _)| *of == name && may_be(config));
            let us = match plan.packing {
                Some(_) => on_copies.map(|(.., us)| *us),
                None => times().filter(is_choice).map(|m| m.us).reduce(f64::min),
            };
            match us {
                Some(us) => judged.push(Judged {
                    class: product.class.clone(),
                    id: product.id.clone(),
                    ratio: us / best,
                    over_stock: product.stock_us.map(|stock| us / stock),
                }),
                None if best.is_finite() => unmeasured.push(format!("{} ({name})", product.id)),
                None => {}
            }
        }
        Self { regret: Regret(judged), unmeasured }
    }
}

impl fmt::Display for OnRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.regret.fmt(f)?;
        match &self.unmeasured[..] {
            [] => Ok(()),
            products => write!(f, "\nthe choice was not measured: {}", products.join(", ")),
        }
    }
}
