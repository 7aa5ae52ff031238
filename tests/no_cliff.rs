use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::internal::cost::roofline_us;
use candle_tilegemm::internal::suite::random;
use candle_tilegemm::problem::{Epilogue, Operand};
use candle_tilegemm::{Activation, Format, Layout, Problem};
use std::collections::BTreeMap;

const LAYOUTS: [Layout; 4] = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];

fn wide() -> Vec<(String, Problem)> {
    let mut all = Vec::new();
    for seed in 3..=4 {
        for shape in random::products(seed, 300, &[]) {
            let p = shape.problem();
            let [m, n, k] = [p.m.min(4096), p.n.min(4096), p.k.min(4096)];
            let f = p.a.format;
            let mut add = |name: &str, q: Problem| all.push((format!("{name} {}", shape.id), q.with(|q| q.f32_mode = p.f32_mode)));
            // heads of a view [b, t, h, d]: two batch dims
            let (t, d, h, b) = (m.min(1024), k.min(128), 12usize, 4usize);
            for layout in LAYOUTS {
                let mut q = Problem::dense(t, n.min(1024), d, b * h, layout, f);
                q.batch = [b, h];
                let (s, nn) = ((h * d) as i64, n.min(1024));
                // a: rows of heads side by side
                match layout {
                    Layout::NN | Layout::NT => q.a = Operand::new(f, [s, 1], [t as i64 * s, d as i64]),
                    _ => q.a = Operand::new(f, [1, (h * t) as i64], [(d * h * t) as i64, t as i64]),
                }
                match layout {
                    Layout::NT | Layout::TT => q.b = Operand::new(f, [1, s], [nn as i64 * s, d as i64]),
                    _ => q.b = Operand::new(f, [(h * nn) as i64, 1], [(d * h * nn) as i64, nn as i64]),
                }
                q.d.batch_stride = [(h * t * nn) as i64, (t * nn) as i64];
                add(&format!("heads-{layout}"), q);
            }
            for layout in LAYOUTS {
                let q = Problem::dense(m, n, k, 1, layout, f);
                add(&format!("rows0-a-{layout}"), q.with(|q| match layout { Layout::NN | Layout::NT => q.a.row_stride = 0, _ => q.a.col_stride = 0 }));
                add(&format!("rows0-b-{layout}"), q.with(|q| match layout { Layout::NN | Layout::TN => q.b.row_stride = 0, _ => q.b.col_stride = 0 }));
                let mut q = Problem::dense(1, n, k, 12, layout, f);
                q.a.batch_stride = [0, 0];
                q.b.batch_stride = [0, 0];
                add(&format!("one-row-{layout}"), q);
                let mut q = Problem::dense(1, n, k, 12, layout, f);
                q.a.batch_stride = [0, 0];
                add(&format!("one-row-a-{layout}"), q);
                for in_place in [false, true] {
                    let mut q = Problem::dense(m, n, k, 1, layout, f);
                    q.a.pointer_align = f.bytes(1) as u32;
                    q.epilogue = Epilogue::new(1.0, 0.5);
                    q.epilogue.c = Some(q.d);
                    q.epilogue.in_place = in_place;
                    add(&format!("beta-unaligned-{in_place}-{layout}"), q);
                    let mut q = Problem::dense(m, n - n % 2 - 1, k, 1, layout, f);
                    q.epilogue = Epilogue::new(1.0, 0.5);
                    q.epilogue.c = Some(q.d);
                    q.epilogue.in_place = in_place;
                    add(&format!("beta-oddn-{in_place}-{layout}"), q);
                    let mut q = Problem::dense(m, n, k, 1, layout, f);
                    q.epilogue = Epilogue::new(1.0, 0.5);
                    q.epilogue.c = Some(q.d);
                    q.epilogue.in_place = in_place;
                    add(&format!("beta-{in_place}-{layout}"), q);
                }
                let mut q = Problem::dense(m, n - n % 2 - 1, k, 1, layout, f);
                q.epilogue.activation = Activation::Silu;
                add(&format!("act-odd-{layout}"), q);
                let mut q = Problem::dense(m, n, k, 1, layout, f);
                q.epilogue.activation = Activation::Silu;
                add(&format!("act-{layout}"), q);
                if f.bytes(1) == 2 {
                let mut q = Problem::dense(m, n, k, 1, layout, f);
                q.d.format = Format::F32;
                add(&format!("out32-{layout}"), q);
                let mut q = Problem::dense(m, n - n % 2 - 1, k, 1, layout, f);
                q.d.format = Format::F32;
                add(&format!("out32-odd-{layout}"), q);
                }
                let mut q = Problem::dense(m, n, k, 1, layout, f);
                q.d = Operand::col_major(f, m, [0, 0]);
                add(&format!("colmajor-d-{layout}"), q);
                let q = Problem::dense(m, n, k, 1, layout, Format::F64);
                add(&format!("f64-{layout}"), q);
                let q = Problem::dense(m, n - n % 2 - 1, k - k % 2 - 1, 1, layout, Format::F64);
                add(&format!("f64-odd-{layout}"), q);
                let q = Problem::dense(m.min(1000), n.min(1000), k.min(500), 7, layout, f);
                add(&format!("batch-{layout}"), q);
                let mut q = Problem::dense(m.min(1000), n.min(1000), k.min(500), 7, layout, f);
                q.a.batch_stride = [0, 0];
                add(&format!("batch-a0-{layout}"), q);
                let mut q = Problem::dense(m, n, k, 1, layout, f);
                q.b = Operand::new(f, [3, 3 * k as i64], [0, 0]);
                add(&format!("any-{layout}"), q);
            }
        }
    }
    all
}

#[test]
fn explore() {
    for device in [DeviceInfo::h100(), DeviceInfo::h200()] {
    let d = Dispatcher::hypothetical(device.clone());
    let mut seen: BTreeMap<String, (usize, usize, f64, String)> = BTreeMap::new();
    let mut check = |name: String, p: &Problem| {
        let key: String = name.split(' ').next().unwrap().into();
        let kind = if p.a.format.bytes(1) == 2 { "16".to_string() } else { format!("{}", p.a.format) };
        let aligned = p.canonical().problem.alignments().iter().all(|(_, a)| *a >= 16);
        for (pn, policy) in [("", Policy::default()), (" own", Policy::own())] {
            let plan = match d.plan(p, policy) { Ok(plan) => plan, Err(e) => { println!("{e}"); continue } };
            let roof = roofline_us(&plan.canonical.problem, &device);
            let ratio = plan.estimate_us / (4.0 * roof + 10.0);
            let e = seen.entry(format!("{key} {kind} {} {}{pn}", if aligned { "al" } else { "un" }, plan.kernel.family)).or_default();
            e.0 += 1;
            if ratio > 1.0 { e.1 += 1; if ratio > e.2 { e.2 = ratio; e.3 = format!("{name} {p}: {:.1} us, roof {roof:.1}", plan.estimate_us); } }
            if plan.kernel.family == "reference" { println!("REFERENCE {name} {p}{pn}"); }
        }
    };
    for seed in 1..=10 {
        for shape in random::products(seed, 300, &[]) { check(format!("{} {}", shape.class, shape.id), &shape.problem()); }
    }
    for (name, p) in wide() { check(name, &p); }
    for (key, (all, bad, worst, which)) in seen { if bad > 0 { println!("{key}: {bad} of {all}, worst {worst:.1}: {which}"); } }
    }
}
