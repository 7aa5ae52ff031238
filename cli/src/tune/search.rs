//! A run over a suite: the products, their order, and the output.

use super::args::Args;
use super::contest::{self, Outcome};
use super::output::Output;
use crate::bench::measure::{progress, Session};
use crate::bench::measured::STOP;
use crate::bench::run::stop_at_ctrl_c;
use crate::bench::{order, table};
use crate::lists::Routing;
use crate::{Failure, Result};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::internal::suite::Shape;
use candle_tilegemm::internal::tuning::{Among, Entry, Host, Key, Origin, Point, Tuning};
use candle_tilegemm::kernel::KernelDesc;
use candle_tilegemm::{internal::settings, launch, Config};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The findings so far.
#[derive(Default)]
struct Found {
    points: BTreeMap<Key, Vec<Point>>,
    wrong: Vec<String>,
    /// Rows that were not measured, with the reason.
    left_out: BTreeMap<String, String>,
}

pub fn run(args: &Args, shapes: &[Shape]) -> Result {
    if let Err(error) = launch::device_count() {
        return Err(Failure::NoDevice(format!("{error}; a table is measured on the GPU that it is for")));
    }
    let session = Session::with(args.pause, args.f32.mode()?, baseline)?;
    let host = Host::here(session.dispatcher.device());
    let output = Output::reserve(args, &host.gpu)?;
    let mut table = output.start(args, origin(&session)?, &host)?;
    stop_at_ctrl_c()?;
    let found = search(&session, args, shapes)?;

    for (key, points) in &found.points {
        table.replace(*key, points);
    }
    let measured = |entry: &&Entry| found.points.contains_key(&entry.key);
    crate::print(format_args!("\n{}", as_text(table.entries().iter().filter(measured))))?;
    for line in table::left_out(&found.left_out).iter().chain(&found.wrong) {
        crate::print(line)?;
    }
    if found.points.is_empty() {
        crate::print("nothing was measured, and nothing is written")?;
    } else {
        output.write(&table)?;
        say_where(args, &output, &table)?;
    }
    let failed = found.left_out.values().any(|reason| reason.starts_with("failed"));
    match STOP.load(Ordering::Relaxed) {
        _ if failed || !found.wrong.is_empty() => Err(Failure::Silent),
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}

/// The dispatcher without the new table: the shipped table, unless TILEGEMM_TUNING=off, and the cost model.
fn baseline(device: DeviceInfo) -> Result<Dispatcher> {
    let dispatcher = Dispatcher::new(device);
    let off = settings::tuning() == Some(settings::Tuning::Off);
    Ok(if off { dispatcher.without_tuning() } else { dispatcher })
}

fn origin(session: &Session) -> Result<Origin> {
    let machine = session.machine()?;
    let here = Origin::of_this_build(session.dispatcher.device());
    Ok(Origin { driver: machine.driver, cublas: machine.cublas, git: machine.git, date: machine.date, ..here })
}

/// Searches the whole suite, or the part that the budget and Ctrl-C allow.
fn search(session: &Session, args: &Args, shapes: &[Shape]) -> Result<Found> {
    let shapes = distinct(session, shapes);
    let order = match args.budget {
        Some(_) => order::by_information(&shapes),
        None => (0..shapes.len()).collect(),
    };
    let progress = progress(shapes.len());
    let mut found = Found::default();
    let start = Instant::now();
    for (done, shape) in order.into_iter().map(|index| &shapes[index]).enumerate() {
        progress.set_message(shape.id.clone());
        let (problem, routing) = (session.problem(shape), Routing::of_row(shape));
        let per_row = start.elapsed() / done.max(1) as u32;
        let reason = if STOP.load(Ordering::Relaxed) {
            Some("interrupted".into())
        } else if args.budget.is_some_and(|budget| start.elapsed() + per_row > budget) {
            Some("no time left in the budget".into())
        } else if key(session, shape, Among::All).is_none() {
            Some("a table cannot express it".into())
        } else {
            session.does_not_fit(&problem, routing.as_ref(), false)?
        };
        let outcome = match reason {
            Some(reason) => Err(reason),
            None => contest::hold(session, &problem, routing, args).map_err(|error| format!("failed: {error}")),
        };
        match outcome {
            Ok(outcome) => {
                progress.suspend(|| print_outcome(shape, &outcome))?;
                found.add(session, shape, outcome);
            }
            Err(reason) => drop(found.left_out.insert(shape.id.clone(), reason)),
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(found)
}

fn key(session: &Session, shape: &Shape, among: Among) -> Option<Key> {
    Key::of(&session.problem(shape).canonical().problem, among)
}

/// The first row of each group of rows that a table cannot tell apart.
fn distinct(session: &Session, shapes: &[Shape]) -> Vec<Shape> {
    let mut seen = BTreeSet::new();
    let is_new = |shape: &&Shape| match key(session, shape, Among::All) {
        Some(key) => seen.insert((key, shape.problem().canonical().problem.m)),
        None => true,
    };
    shapes.iter().filter(is_new).cloned().collect()
}

impl Found {
    fn add(&mut self, session: &Session, shape: &Shape, outcome: Outcome) {
        for (among, point) in outcome.points {
            if let Some(key) = key(session, shape, among) {
                self.points.entry(key).or_default().push(point);
            }
        }
        self.wrong
            .extend(outcome.wrong.iter().map(|kernel| format!("WRONG: {kernel} in {}: it is not entered", shape.id)));
    }
}

/// The line of a product, printed as soon as the product is measured.
fn print_outcome(shape: &Shape, outcome: &Outcome) -> Result {
    let words = |(among, point): &(Among, Point)| {
        let among = if *among == Among::All { "all" } else { "own" };
        match point.won() {
            Some((kernel, config, gain)) => format!("{among}: {} {gain:.3}x", named(kernel, config)),
            None => format!("{among}: as chosen"),
        }
    };
    let words: Vec<String> = outcome.points.iter().map(words).collect();
    crate::print(format_args!("{:<28} {}", shape.id, words.join("  ")))
}

/// `NAME`, or `NAME@CONFIGURATION`.
fn named(kernel: &KernelDesc, config: Option<Config>) -> String {
    config.map_or(kernel.name.into(), |config| format!("{kernel}@{config}"))
}

fn as_text<'a>(entries: impl Iterator<Item = &'a Entry>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["product", "M", "kernel", "gain"]);
    for Entry { key, m: [first, last], kernel, config, gain, .. } in entries {
        table.add_row([key.to_string(), format!("{first} - {last}"), named(kernel, *config), format!("{gain:.3}")]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn say_where(args: &Args, output: &Output, table: &Tuning) -> Result {
    let path = output.path().display();
    crate::print(format_args!("written: {table}"))?;
    match args.out {
        Some(_) => crate::print(format_args!("use it with TILEGEMM_TUNING={path}")),
        None => crate::print("it is asked from now on; TILEGEMM_TUNING=off switches it off"),
    }
}
