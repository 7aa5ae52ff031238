//! The measurement of a decoder: cases, arms, and the time that is left.

use super::super::footprint::{out_of_memory, tokens, GIB, RESERVE, STOPPED};
#[cfg(feature = "bench")]
use super::super::models::Interposed;
use super::super::samples::Samples;
use super::ours::Ours;
use super::ranks::Ranks;
use super::record::{Agreement, DecoderReport, Limits, Start, Timed, CAPTURED, EAGER, FAILED, OURS, SCHEMA, STOCK};
use super::roof;
use super::size::{Size, Weights};
use super::stock::Stock;
use super::subject::{dtype, Subject};
use crate::{Failure, Result};
use candle::Device;
use candle_tilegemm::nn::attention::KvCache;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Steps before those that count: graphs are captured in the first ones.
const WARM_UP: usize = 4;
/// Fewer steps are timed where so many take longer than this.
const LONGEST: Duration = Duration::from_secs(1);
/// The least steps of a run.
const FEWEST: usize = 4;
/// The share of the time that ours may take where stock is measured, too.
const SHARE_OF_OURS: f64 = 0.6;
const NO_TIME: &str = "no time left in the budget";

pub struct Options<'a> {
    pub model: &'a str,
    /// `stock`, `eager`, `captured`.
    pub arms: Vec<String>,
    /// Lengths of prompts.
    pub prefill: Vec<usize>,
    pub contexts: Vec<usize>,
    pub sequences: Vec<usize>,
    /// Cards that compute the model together.
    pub cards: usize,
    /// Whether keys and values of ours are in fp8.
    pub fp8_cache: bool,
    /// Steps of a run.
    pub steps: usize,
    pub runs: usize,
    pub budget: Option<Duration>,
    pub limits: Option<Limits>,
    /// Set to end the run with the rows measured so far.
    pub stop: &'a AtomicBool,
}

/// Measures on this device.
pub fn run(options: &Options, device: &Device, gpu: &str) -> Result<DecoderReport> {
    let size = Size::by_name(options.model)
        .ok_or_else(|| Failure::Usage(format!("--decoder {}: there is no such size", options.model)))?;
    let report = DecoderReport {
        schema: SCHEMA,
        gpu: gpu.into(),
        model: options.model.into(),
        weights: format!(
            "random weights in {}{}",
            size.format(device.is_cpu()),
            if options.fp8_cache { ", keys and values of ours in fp8" } else { "" }
        ),
        weights_gb: roof::step_bytes(&size, 1, dtype(device).size_in_bytes() as f64) / 1e9,
        cards: options.cards,
        limits: options.limits.map(|limits| limits.of_cards(options.cards)),
        starts: BTreeMap::new(),
        prefill: vec![],
        decode: vec![],
        agreement: None,
        wrong: vec![],
        left_out: BTreeMap::new(),
    };
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}, {elapsed}")?);
    let mut bench =
        Bench { options, size, device, report, bar, start: Instant::now(), until: None, logits: BTreeMap::new() };
    // A device that failed fails in all that follows; what was measured before stays.
    if let Err(failure) = bench.all() {
        bench.report.wrong.push(format!("the run ended: {failure}"));
    }
    bench.bar.finish_and_clear();
    Ok(bench.report)
}

struct Bench<'a> {
    options: &'a Options<'a>,
    size: Size,
    device: &'a Device,
    report: DecoderReport,
    bar: ProgressBar,
    start: Instant,
    /// When the arm in hand has to end.
    until: Option<Duration>,
    /// The logits of each arm after the first prompt.
    logits: BTreeMap<&'static str, Vec<f32>>,
}

impl Bench<'_> {
    fn all(&mut self) -> Result {
        let is_asked = |arm: &str| self.options.arms.iter().any(|asked| asked == arm);
        let ours: Vec<&'static str> = [EAGER, CAPTURED].into_iter().filter(|arm| is_asked(arm)).collect();
        let stock = is_asked(STOCK);
        let on_cpu = self.device.is_cpu();
        if on_cpu && ours.contains(&CAPTURED) {
            self.leave_out(CAPTURED, "graphs need a GPU");
        }
        let ours: Vec<&str> = ours.into_iter().filter(|arm| !on_cpu || *arm != CAPTURED).collect();
        let fp8_cache = self.options.fp8_cache;
        if !ours.is_empty() {
            self.until = self.options.budget.map(|all| if stock { all.mul_f64(SHARE_OF_OURS) } else { all });
            let cards = self.options.cards;
            self.arm(OURS, &ours, self.size.positions, |size, device| {
                Ok(match cards {
                    1 => Box::new(Ours::load(size, fp8_cache, device)?),
                    _ => Box::new(Ranks::load(size, fp8_cache, cards, device)?),
                })
            })?;
        }
        if stock {
            self.until = self.options.budget;
            self.stock()?;
        }
        if let (Some(stock), Some(ours)) = (self.logits.get(STOCK), self.logits.get(OURS)) {
            let agreement = Agreement::between(self.first_prompt(), stock, ours);
            if !agreement.is_close() {
                let what = format!("logits of ours are {:.2} from stock's (relative L2)", agreement.relative_l2);
                self.report.wrong.push(what);
            }
            self.report.agreement = Some(agreement);
        }
        Ok(())
    }

    fn stock(&mut self) -> Result {
        if matches!(self.size.weights, Weights::Narrow(_)) {
            self.leave_out(STOCK, "candle-transformers reads no such weights");
            return Ok(());
        }
        if self.options.cards > 1 {
            self.leave_out(STOCK, "candle-transformers' model runs on one card");
            return Ok(());
        }
        let has_experts = self.size.experts.is_some();
        if cfg!(feature = "interpose-kernels") && (has_experts || self.size.weights != Weights::Dense) {
            self.leave_out(STOCK, "this build has our kernels in candle's place; build it without interpose-kernels");
            return Ok(());
        }
        #[cfg(feature = "bench")]
        let _off = self.device.is_cuda().then(Interposed::off);
        let longest = Stock::longest(&self.size);
        self.arm(STOCK, &[STOCK], longest, |size, device| Ok(Box::new(Stock::load(size, device)?)))
    }

    /// Loads a decoder, and measures its arms.
    fn arm(
        &mut self,
        name: &'static str,
        arms: &[&str],
        longest: usize,
        load: impl Fn(&Size, &Device) -> Result<Box<dyn Subject>>,
    ) -> Result {
        let need = roof::bytes(&self.size, dtype(self.device).size_in_bytes() as f64) / self.options.cards as f64;
        if let Some(reason) = self.refused(0.0, need)? {
            self.leave_out(name, &reason);
            return Ok(());
        }
        self.tell(format!("{name}: loading {}", self.options.model));
        let start = Instant::now();
        let mut subject = match load(&self.size, self.device) {
            Ok(subject) => subject,
            Err(failure) => {
                self.leave_out(name, &failed(failure));
                return Ok(());
            }
        };
        let load_s = start.elapsed().as_secs_f64();
        let prompt = self.first_prompt().min(longest - 1);
        let start = Instant::now();
        if let Err(error) = subject.first_token(&self.prompt(prompt)) {
            self.leave_out(name, &failed(error.into()));
            return Ok(());
        }
        let first_token_ms = start.elapsed().as_secs_f64() * 1e3;
        self.report.starts.insert(name.into(), Start { load_s, first_token_ms, prompt });

        let rate = self.prefill(name, longest, &mut *subject)?;
        subject.clear()?;
        self.decode(name, arms, longest, &mut *subject, rate)
    }

    fn first_prompt(&self) -> usize {
        self.options.prefill.first().copied().unwrap_or(128)
    }

    fn prompt(&self, length: usize) -> Vec<u32> {
        tokens(1, length, 0, self.size.vocabulary)
    }

    /// The rows of prompts, and the most seconds of a token in them.
    fn prefill(&mut self, name: &'static str, longest: usize, subject: &mut dyn Subject) -> Result<f64> {
        let mut rate = 0f64;
        for &length in &self.options.prefill {
            let case = format!("{name}, prefill {length}");
            if length > longest {
                self.leave_out(&case, &format!("the model has {longest} positions"));
                continue;
            }
            let need = rate * (length * (1 + self.options.runs)) as f64;
            if let Some(reason) = self.refused(need, subject.bytes_to_prefill(length))? {
                self.leave_out(&case, &reason);
                continue;
            }
            self.tell(case.clone());
            match self.prompts(subject, length) {
                Ok((logits, samples)) => {
                    rate = rate.max(samples.median() / length as f64);
                    if length == self.first_prompt() {
                        if logits.iter().any(|logit| !logit.is_finite()) {
                            self.report.wrong.push(format!("{case}: a logit is not finite"));
                        }
                        self.logits.insert(name, logits);
                    }
                    let roof_ms =
                        self.report.limits.map(|limits| limits.prefill_ms(&self.size, length, self.of_cache()));
                    let row = self.report.prefill_of(length);
                    row.roof_ms = roof_ms;
                    row.arms.insert(name.into(), timed(&samples, length));
                }
                Err(failure) => self.leave_out(&case, &failed(failure)),
            }
        }
        Ok(rate)
    }

    fn prompts(&self, subject: &mut dyn Subject, length: usize) -> Result<(Vec<f32>, Samples)> {
        let prompt = self.prompt(length);
        let logits = subject.prefill(&prompt)?.to_vec1()?;
        let mut samples = Samples::default();
        for _ in 0..self.options.runs {
            self.device.synchronize()?;
            let start = Instant::now();
            let logits = subject.prefill(&prompt)?;
            self.device.synchronize()?;
            samples.push(start.elapsed().as_secs_f64());
            drop(logits);
        }
        Ok((logits, samples))
    }

    /// The rows of steps. `rate`: seconds of a token of a prompt.
    fn decode(&mut self, name: &str, arms: &[&str], longest: usize, subject: &mut dyn Subject, rate: f64) -> Result {
        let mut step_s = 0f64;
        for &context in &self.options.contexts {
            for &sequences in &self.options.sequences {
                let case = format!("{name}, context {context}, sequences {sequences}");
                if context + WARM_UP + self.options.steps > longest {
                    self.leave_out(&case, &format!("the model has {longest} positions"));
                    continue;
                }
                let fill =
                    if subject.fills_by_steps(sequences) { step_s } else { rate * (sequences * arms.len()) as f64 };
                // A step of several sequences takes no less than one of one.
                let steps = step_s * (arms.len() * self.options.runs * (WARM_UP + FEWEST)) as f64;
                let need = fill * context as f64 + steps;
                if let Some(reason) = self.refused(need, subject.bytes_to_decode(context, sequences))? {
                    self.leave_out(&case, &reason);
                    continue;
                }
                let mut chosen = vec![];
                for arm in arms {
                    let case = format!("{arm}, context {context}, sequences {sequences}");
                    self.tell(case.clone());
                    let measured = self.steps(subject, arm, [context, sequences]);
                    subject.clear()?;
                    match measured {
                        Ok((samples, tokens)) => {
                            step_s = step_s.max(samples.median());
                            let of_cache = self.of_cache();
                            let step_ms = |limits: Limits| limits.step_ms(&self.size, context, sequences, of_cache);
                            let roof_ms = self.report.limits.map(step_ms);
                            let row = self.report.decode_of([context, sequences]);
                            row.roof_ms = roof_ms;
                            row.arms.insert(arm.to_string(), timed(&samples, sequences));
                            chosen.push(tokens);
                        }
                        Err(failure) => self.leave_out(&case, &failed(failure)),
                    }
                }
                // As many as both have.
                let differ = |x: &[u32], y: &[u32]| x.iter().zip(y).any(|(x, y)| x != y);
                if chosen.iter().any(|tokens| differ(tokens, &chosen[0])) {
                    let case = format!("context {context}, sequences {sequences}");
                    self.report.wrong.push(format!("{case}: captured steps choose other tokens than eager ones"));
                }
            }
        }
        Ok(())
    }

    /// The seconds of a step, and the tokens of a run.
    fn steps(
        &self,
        subject: &mut dyn Subject,
        arm: &str,
        [context, sequences]: [usize; 2],
    ) -> Result<(Samples, Vec<u32>)> {
        let all = tokens(sequences, context, 0, self.size.vocabulary);
        let prompts: Vec<Vec<u32>> = all.chunks(context).map(<[u32]>::to_vec).collect();
        subject.fill(&prompts, WARM_UP + self.options.steps)?;
        let (one, _) = subject.decode(arm, WARM_UP, 1)?;
        let steps = ((LONGEST.as_secs_f64() / one) as usize).clamp(FEWEST.min(self.options.steps), self.options.steps);
        let (mut samples, mut chosen) = (Samples::default(), vec![]);
        for _ in 0..self.options.runs {
            let (seconds, tokens) = subject.decode(arm, WARM_UP, steps)?;
            samples.push(seconds);
            chosen = tokens;
        }
        Ok((samples, chosen))
    }

    /// Why there is no room or no time for something that takes so many seconds and bytes, if so.
    fn refused(&self, seconds: f64, bytes: f64) -> Result<Option<String>> {
        if self.options.stop.load(Ordering::Relaxed) {
            return Ok(Some(STOPPED.into()));
        }
        if self.until.is_some_and(|until| self.start.elapsed().as_secs_f64() + seconds > until.as_secs_f64()) {
            return Ok(Some(NO_TIME.into()));
        }
        self.device.synchronize()?;
        let free = KvCache::free_bytes(self.device)?.map(|free| free as f64);
        let need = bytes + RESERVE;
        Ok(free
            .filter(|free| *free < need)
            .map(|free| format!("takes {:.1} GiB, and {:.1} GiB of the card are free", need / GIB, free / GIB)))
    }

    /// The bytes of a number of keys and values.
    fn of_cache(&self) -> f64 {
        roof::of_cache(&self.size, self.options.fp8_cache)
    }

    fn leave_out(&mut self, what: &str, reason: &str) {
        self.report.left_out.insert(what.into(), reason.into());
    }

    fn tell(&self, what: String) {
        self.bar.set_message(what);
        self.bar.tick();
    }
}

/// Why a case was not measured.
fn failed(failure: Failure) -> String {
    out_of_memory(&failure).unwrap_or_else(|| format!("{FAILED}: {failure}"))
}

/// Samples in seconds.
fn timed(samples: &Samples, tokens: usize) -> Timed {
    let ms = |share: f64| samples.at(share) * 1e3;
    Timed {
        ms: ms(0.5),
        ms_min: ms(0.0),
        ms_max: ms(1.0),
        runs: samples.len(),
        tokens_per_s: tokens as f64 * 1e3 / ms(0.5),
    }
}
