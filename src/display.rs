//! Explanations as text.

use crate::config::Config;
use crate::dispatch::{Explanation, Reason, Tuned};
use crate::kernel::{KernelDesc, Rejection};
use crate::packing;
use crate::problem::{F32Mode, Format, Types};
use crate::tuning::{Entry, Learned};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result};

/// The width of an explanation, in columns.
const WIDTH: usize = 118;

impl Display for Tuned {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Entry { m: [first, last], kernel, config, gain, learned, .. } = self.entry;
        let config = config.map_or(String::new(), |config| format!("@{config}"));
        match learned {
            Some(Learned { samples, us, against_us }) => {
                writeln!(f, "learned: {kernel}{config}, {samples} samples, {us:.1} us against {against_us:.1}")?;
            }
            None => writeln!(f, "measured: {kernel}{config} is {gain} times as fast as the choice without")?,
        }
        write!(f, "  the entry for M {first} to {last} of {}", self.table)?;
        match &self.rejection {
            Some(rejection) => write!(f, "\n  which is passed over: {rejection}"),
            None => Ok(()),
        }
    }
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.write_question(f)?;
        if self.asked.is_empty() {
            return writeln!(f, "there is nothing to compute: no kernel is launched");
        }
        self.tuned.iter().try_for_each(|tuned| writeln!(f, "{tuned}"))?;
        self.write_able(f)?;
        self.write_rejected(f)
    }
}

impl Explanation {
    fn write_question(&self, f: &mut Formatter<'_>) -> Result {
        let (device, canonical) = (&self.device, &self.canonical);
        writeln!(f, "{} on {} ({} SMs)", self.asked, device.name, device.sm_count)?;
        if self.asked.is_f32() {
            writeln!(f, "f32 mode {}: {}", self.asked.f32_mode, meaning(self.asked.f32_mode))?;
        }
        if canonical.swapped {
            let what = match self.asked.canonical_strides() {
                asked if asked.d.col_stride != 1 => "D is column-major",
                asked if asked.n == 1 => "D is a column",
                _ => "D is column-major once the batch is folded",
            };
            writeln!(f, "{what}: A and B are swapped and every matrix transposed")?;
        }
        match (canonical.problem.batch_count(), self.asked.batch_count()) {
            (left, asked) if left == asked => {}
            (1, _) => writeln!(f, "one {} for the whole batch: run as {}", self.shared(), canonical.problem)?,
            _ => writeln!(f, "one {} for a dimension of the batch: run as {}", self.shared(), canonical.problem)?,
        }
        if let Some(sums) = self.sums {
            writeln!(f, "batch-invariant: every row adds up {sums}")?;
        }
        writeln!(f, "roofline {} us: the least that arithmetic and device memory allow", micros(self.roofline_us))
    }

    /// The operand that a folded batch has in common.
    fn shared(&self) -> &'static str {
        let is_one =
            |strides: [i64; 2]| self.asked.batch.iter().zip(strides).any(|(&size, stride)| size > 1 && stride == 0);
        if is_one(self.asked.b.batch_stride) {
            "B"
        } else {
            "A"
        }
    }

    /// The kernels that can run the product, the fastest first.
    fn write_able(&self, f: &mut Formatter<'_>) -> Result {
        let mut able: Vec<(&KernelDesc, f64)> =
            self.candidates.iter().filter_map(|c| Some((c.kernel, *c.verdict.as_ref().ok()?))).collect();
        able.sort_by(|x, y| x.1.total_cmp(&y.1));
        writeln!(f)?;
        if let (Some((packing, us)), Some(kernel)) = (self.packing, self.chosen) {
            writeln!(f, "-> {kernel} on copies of {}: {us:.1} us with the copies", packing.list())?;
            if packing.d && packing::rounds_after_copy(&self.canonical.problem) {
                writeln!(f, "   the copy of D is in f32; a kernel applies the rest of the epilogue to it and rounds")?;
            }
        }
        if able.is_empty() {
            return writeln!(f, "no kernel can run it where the operands lie");
        }
        let width = able.iter().map(|(kernel, _)| kernel.name.len()).max().unwrap_or(0);
        writeln!(f, "   {:<width$}  {:>11}  roofline  made for", "kernel", "estimate")?;
        let room = WIDTH.saturating_sub(width + 28);
        let short = |kernel: &KernelDesc| shorten(kernel.why, room);
        for &(kernel, us) in &able {
            let arrow = if self.packing.is_none() && self.chosen.is_some_and(|chosen| chosen.name == kernel.name) {
                "->"
            } else {
                "  "
            };
            let ratio = times(us / self.roofline_us);
            let head = format!("{arrow} {kernel:<width$}  {us:>8.1} us  {ratio:>8}");
            let why = short(kernel);
            // What is cut off may be what tells two kernels apart.
            let is_cut = able.iter().any(|(other, _)| other.why != kernel.why && short(other) == why);
            let text = if is_cut { lines(kernel.why, room) } else { vec![why.into()] };
            writeln!(f, "{head}  {}", text.join(&format!("\n{:1$}", "", width + 28)))?;
        }
        match self.config.is_default() {
            true => Ok(()),
            false => writeln!(f, "configuration {}: {}", self.config, describe(&self.config)),
        }
    }

    /// The kernels that cannot run the product, by reason: a line for each reason, and the names unless the reason is
    /// [`Nearness::Elsewhere`].
    fn write_rejected(&self, f: &mut Formatter<'_>) -> Result {
        let mut groups: BTreeMap<(Nearness, String), Group> = BTreeMap::new();
        for candidate in &self.candidates {
            let Err(rejection) = &candidate.verdict else { continue };
            let (nearness, common, own) = words(rejection);
            let group = groups.entry((nearness, common)).or_default();
            group.kernels.push(candidate.kernel);
            if !group.own.contains(&own) {
                group.own.push(own);
            }
        }
        if groups.is_empty() {
            return Ok(());
        }
        writeln!(f, "\ncannot run it")?;
        for ((nearness, common), Group { mut own, kernels }) in groups {
            own.sort_by_key(|word| (word.len(), word.clone())); // sm80 before sm100
            writeln!(f, "{:>4}  {common}{}", kernels.len(), own.join(", "))?;
            let forced = self.chosen.filter(|_| self.reason == Some(Reason::Forced) && self.packing.is_none());
            if let Some(forced) = forced.filter(|forced| kernels.contains(forced)) {
                writeln!(f, "   -> {forced}, which was asked for by name")?;
            }
            if nearness < Nearness::Elsewhere {
                write_names(f, &kernels)?;
            }
        }
        Ok(())
    }
}

/// A configuration in words.
fn describe(config: &Config) -> String {
    let Config { tile: [rows, columns], cluster: [along_m, along_n], split, stages, warps, swap_ab } = *config;
    let parts = [
        (rows > 0, format!("tiles of {rows} x {columns}")),
        (along_m * along_n > 1, format!("clusters of {along_m} x {along_n} blocks")),
        (split > 1, format!("K in {split} parts")),
        (stages > 0, format!("{stages} stages")),
        (warps > 0, format!("{warps} warps a block")),
        (swap_ab, "A and B swapped".into()),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|(is_said, _)| *is_said).map(|(_, text)| text).collect();
    parts.join(", ")
}

fn meaning(mode: F32Mode) -> &'static str {
    match mode {
        F32Mode::Accurate => "kernels with no more error than cuBLAS SGEMM",
        F32Mode::Strict => "fused multiply-adds only",
        F32Mode::Tf32 => "inputs may be rounded to TF32",
    }
}

fn write_names(f: &mut Formatter<'_>, kernels: &[&KernelDesc]) -> Result {
    const SHOWN: usize = 4;
    let names: Vec<&str> = kernels.iter().take(SHOWN).map(|kernel| kernel.name).collect();
    for pair in names.chunks(2) {
        writeln!(f, "      {}", pair.join("  "))?;
    }
    match kernels.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(f, "      and {more} more"),
    }
}

/// Kernels that are rejected for the same reason.
#[derive(Default)]
struct Group {
    /// The differing parts of the rejections.
    own: Vec<String>,
    kernels: Vec<&'static KernelDesc>,
}

/// The change after which a rejected kernel would run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    /// A setting or a feature of the build.
    Switch,
    /// Slightly different operands.
    Operands,
    /// A different problem or device; the kernel's name says which.
    Elsewhere,
}

/// The change after which the kernel would run, the common part of the rejections of the kernel's group, and the part of this rejection.
fn words(rejection: &Rejection) -> (Nearness, String, String) {
    match rejection {
        Rejection::NotBuilt { features } => {
            (Nearness::Switch, "not in this build; build with the features ".into(), features.join(" and "))
        }
        Rejection::Precision { asked, offers } => {
            (Nearness::Switch, format!("the f32 mode is {asked}; these multiply as "), offers.to_string())
        }
        Rejection::VendorOff | Rejection::NotInProfile | Rejection::FastAccumulation => {
            (Nearness::Switch, rejection.to_string(), String::new())
        }
        Rejection::Layout { have, need } => {
            (Nearness::Elsewhere, format!("the operands are {need}; these read "), have.to_string())
        }
        Rejection::Types { have, need } if is_of_bytes(have) && !is_of_bytes(need) => {
            (Nearness::Elsewhere, "these multiply numbers of 8 bits by such numbers".into(), String::new())
        }
        Rejection::Types { have, need } => {
            let (common, own) = match [have, need].map(|types| types.b.is_gguf_block() || types.has_narrow_b()) {
                [false, false] => (format!("the problem is in {need}; these compute in "), have.to_string()),
                [true, false] => ("these multiply by quantised weights, the problem has none".into(), String::new()),
                [false, true] => ("these multiply by no quantised weights".into(), String::new()),
                [true, true] => {
                    (format!("the problem is in {need}; these take other weights or activations"), String::new())
                }
            };
            (Nearness::Elsewhere, common, own)
        }
        Rejection::Arch { built, device } => {
            (Nearness::Elsewhere, format!("the device is an sm{device}; these are built for "), built.to_string())
        }
        Rejection::Groups | Rejection::NoGroups | Rejection::NoGate | Rejection::ByName | Rejection::Scales { .. } => {
            (Nearness::Elsewhere, rejection.to_string(), String::new())
        }
        _ => (Nearness::Operands, rejection.to_string(), String::new()),
    }
}

/// Whether A is in fp8 or int8.
fn is_of_bytes(types: &Types) -> bool {
    matches!(types.a, Format::F8E4M3 | Format::I8)
}

/// Microseconds: one digit after the point, and two digits that are not 0 where the time is shorter.
fn micros(us: f64) -> String {
    let zeros = (-us.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{us:.*}", if us >= 0.1 || us <= 0.0 { 1 } else { zeros + 1 })
}

/// A time over the roofline. Beyond a hundred, the launch is what takes the time, and digits say nothing.
fn times(ratio: f64) -> String {
    if ratio < 100.0 {
        format!("{ratio:.2}x")
    } else {
        "> 100x".into()
    }
}

/// The words of a sentence in lines of at most `width` columns.
fn lines(sentence: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// At most `width` columns of a sentence: up to the end of a clause, else of a word, with dots for the rest.
fn shorten(sentence: &str, width: usize) -> Cow<'_, str> {
    if sentence.len() <= width {
        return sentence.into();
    }
    let last =
        |ends: &[char], width: usize| sentence.match_indices(ends).map(|(end, _)| end).rfind(|end| *end <= width);
    match last(&[':', ';', ','], width) {
        Some(end) => sentence[..end].into(),
        None => {
            last(&[' '], width.saturating_sub(3)).map_or("...".into(), |end| format!("{} ...", &sentence[..end]).into())
        }
    }
}
