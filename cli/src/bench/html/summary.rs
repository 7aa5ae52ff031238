//! The top of the page: the machine, the method, and the headline numbers.

use super::text::{count, duration, escape, number, percent, times, NOTHING};
use super::view::{geomean_speedup, over_roof, rows_with, worst, View, CANDLE, OURS};
use crate::bench::report::geomean;

pub fn machine(view: &View) -> String {
    let (machine, settings) = (&view.report.machine, &view.report.settings);
    let positive = |value: f64, unit: &str| {
        if value > 0.0 {
            format!("{} {unit}", number(value))
        } else {
            "unknown".into()
        }
    };
    let clocks = &machine.clocks_mhz;
    let ceilings = &view.report.ceilings;
    let mut facts = vec![
        ("GPU", format!("{}, {}", machine.gpu, count(machine.sms as usize, "SM"))),
        ("driver", machine.driver.clone()),
        ("CUDA", machine.cuda.clone()),
        ("cuBLAS", machine.cublas.clone()),
        ("commit", machine.git.clone()),
        ("date", machine.date.clone()),
        ("highest clocks", format!("SM {}, memory {} MHz", clocks.sm, clocks.memory)),
        ("power limit", positive(machine.power_w, "W")),
        ("timing", mode(&settings.mode).into()),
        (
            "samples",
            format!("{} of each arm, pause {}\u{d7}, {}", settings.samples, settings.pause, duration(settings.seconds)),
        ),
        ("f32", settings.f32.map_or("as cuBLAS by default".into(), |mode| mode.to_string())),
        ("memory ceiling", positive(ceilings.hbm_gbps, "GB/s")),
    ];
    let tflops: Vec<_> = ceilings.tflops.iter().filter(|(_, tflops)| **tflops > 0.0).collect();
    let tflops: Vec<_> = tflops.iter().map(|(dtype, tflops)| format!("{dtype} {}", number(**tflops))).collect();
    let tflops = if tflops.is_empty() { "unknown".into() } else { format!("{} TFLOP/s", tflops.join(", ")) };
    facts.push(("arithmetic ceilings", tflops));
    facts.iter().map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(value))).collect()
}

fn mode(mode: &str) -> &str {
    match mode {
        "cold" => "cold weights, graph replay",
        "hot" => "same operands again and again, graph replay",
        "eager" => "launch by launch, as candle runs",
        other => other,
    }
}

pub fn cards(view: &View) -> String {
    let stock = (!view.baselines.contains(&CANDLE)).then_some(CANDLE);
    let mut cards: Vec<String> =
        stock.into_iter().chain(view.baselines.clone()).map(|arm| against(view, arm)).collect();
    let over = geomean(view.sound.iter().filter_map(|row| over_roof(row, OURS)));
    let rows = view.sound.iter().filter(|row| over_roof(row, OURS).is_some()).count();
    let title = "time of ours over the roofline";
    cards.push(card("geomean-roof", &times(over), title, &mean_of(rows, "less is better, 1 is the limit")));
    cards.push(worst_card(view));
    cards.concat() + &winners(view)
}

fn against(view: &View, baseline: &str) -> String {
    let rows = rows_with(&view.sound, OURS, baseline);
    let title = format!("speed-up of ours over {}", baseline_name(view, baseline));
    let mean = times(geomean_speedup(&view.sound, OURS, baseline));
    card(&format!("geomean-{baseline}"), &mean, &title, &mean_of(rows, "more is better"))
}

/// The name of a baseline in a sentence.
fn baseline_name(view: &View, baseline: &str) -> String {
    if baseline == CANDLE {
        format!("stock {}", view.name(CANDLE))
    } else {
        view.name(baseline).into()
    }
}

fn mean_of(rows: usize, sense: &str) -> String {
    if rows == 0 {
        "not in this record".into()
    } else {
        format!("geometric mean of {}; {sense}", count(rows, "row"))
    }
}

fn worst_card(view: &View) -> String {
    let baseline = view.baselines.first().copied().unwrap_or(CANDLE);
    let worst = worst(&view.sound, OURS, baseline);
    let below = worst.map_or(String::new(), |(row, _)| format!("<code>{}</code>", escape(&row.id)));
    let title = format!("least speed-up over {}", baseline_name(view, baseline));
    card("worst-row", &times(worst.map(|(_, ratio)| ratio)), &title, &below)
}

/// `below` is HTML.
fn card(id: &str, value: &str, title: &str, below: &str) -> String {
    let class = if value == NOTHING { "card nothing" } else { "card" };
    format!("<div class=\"{class}\"><b id=\"{id}\">{value}</b><span>{title}</span><small>{below}</small></div>\n")
}

/// Wins by arm, and the number of wins beyond noise.
fn winners(view: &View) -> String {
    let wins = view.wins();
    let rows: usize = wins.iter().map(|(_, rows, _)| rows).sum();
    if rows == 0 {
        return String::new();
    }
    let share = |part: usize| percent(part as f64 / rows as f64);
    // `ours` is the fastest alone where the dispatcher makes copies for the vendor's call.
    let name =
        |arm: &'static str| if arm == OURS { "ours, with the vendor's kernel on copies" } else { view.name(arm) };
    let parts = wins.iter().map(|(arm, rows, _)| {
        format!("<i class=\"{arm}\" style=\"flex-grow:{rows}\" title=\"{}: {}\"></i>", name(arm), share(*rows))
    });
    let legend = wins.iter().map(|(arm, rows, clear)| {
        let (all, clear, name) = (share(*rows), share(*clear), name(arm));
        format!("<li class=\"{arm}\"><b>{all}</b> {name}, {rows} <small>({clear} by more than 2 %)</small></li>")
    });
    let own = view.own_share().map_or(String::new(), |share| {
        format!(
            "<small>The dispatcher ran a kernel of this crate in {} of the rows, the vendor's in the others.</small>",
            percent(share)
        )
    });
    format!(
        "<div class=\"card wide\"><span>the fastest in each row, of {}</span><div class=\"strip\">{}</div><ul>{}</ul>{own}</div>",
        count(rows, "row"),
        parts.collect::<String>(),
        legend.collect::<String>(),
    )
}
