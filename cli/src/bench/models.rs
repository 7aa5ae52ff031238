//! `tilegemm bench --model`: models of candle-transformers, stock and through the interposer, in turns in one run.
//!
//! Model and weights are the same for both arms; only the interposer's mode differs. To measure the products' time,
//! each arm also runs with products that launch nothing: the difference is the time of the products, host time
//! included. Tokens are fixed, so that no run depends on another run's results. The outputs of both arms are compared
//! with the outputs in f64.

mod bert;
mod llama;
mod record;
mod reference;
#[cfg(test)]
mod tests;
mod workload;

use super::footprint::{out_of_memory, Case, GIB, RESERVE, STOPPED};
use super::samples::Samples;
use super::{shapes, weights};
use crate::{Failure, Result};
use bert::Bert;
use candle::{Device, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::interpose::{self, Mode};
use candle_tilegemm::{launch, stats, Format};
use candle_transformers::models::llama::{Config, LlamaConfig};
use indicatif::{ProgressBar, ProgressStyle};
use llama::LlamaModel;
pub use record::{table, ModelReport};
use record::{Agreement, Arm, Gemms, Phase, Row, SCHEMA, STOCK};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use workload::{Run, Workload};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Model {
    /// all-MiniLM-L6-v2, f32: one forward, as of an encoder
    #[value(name = "minilm")]
    MiniLm,
    /// The shape of BERT-base, f32
    #[value(name = "bert-base")]
    BertBase,
    /// Llama-3.2-1B
    #[value(name = "llama3-1b")]
    Llama1b,
    /// Llama-3.1-8B
    #[value(name = "llama3-8b")]
    Llama8b,
    /// A llama of two small layers on the CPU, where both arms are the same
    #[value(name = "tiny")]
    Tiny,
    /// A BERT of two small layers on the CPU
    #[value(name = "tiny-bert")]
    TinyBert,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Model::MiniLm => "minilm",
            Model::BertBase => "bert-base",
            Model::Llama1b => "llama3-1b",
            Model::Llama8b => "llama3-8b",
            Model::Tiny => "tiny",
            Model::TinyBert => "tiny-bert",
        })
    }
}

impl Model {
    /// Whether the model runs on the CPU, to try the benchmark without a GPU.
    pub fn on_cpu(self) -> bool {
        matches!(self, Model::Tiny | Model::TinyBert)
    }

    /// The shape of an encoder; `None` for a llama.
    fn encoder(self) -> Option<bert::Config> {
        match self {
            Model::MiniLm => Some(bert::all_minilm_l6_v2()),
            Model::BertBase => Some(bert::Config::default()),
            Model::TinyBert => Some(bert::tiny()),
            _ => None,
        }
    }
}

pub struct Options<'a> {
    pub model: Model,
    /// Lengths of the prompt.
    pub prompts: Vec<u32>,
    pub batches: Vec<u32>,
    /// Tokens to decode after the prompt.
    pub decode: u32,
    /// Measured runs of each arm, taken in turns.
    pub runs: u32,
    /// The type of the model; by default bf16 for llamas and f32 for encoders.
    pub dtype: Option<Format>,
    /// A folder with config.json and *.safetensors, in place of random weights.
    pub weights: Option<PathBuf>,
    /// Set to end the run with the rows measured so far.
    pub stop: &'a AtomicBool,
}

pub fn run(options: &Options) -> Result<ModelReport> {
    let dtype = options.dtype()?;
    let (device, gpu) = open(options.model)?;
    let bar = ProgressBar::new(0)
        .with_style(ProgressStyle::with_template("{msg:32} [{bar:30}] {pos}/{len} runs, {elapsed}")?);
    bar.set_message(format!("loading {}", options.model));
    bar.tick();
    let model = options.load(dtype.name().parse()?, &device)?;
    let mut report = ModelReport {
        schema: SCHEMA,
        gpu,
        model: options.model.to_string(),
        weights: options.weights_name(),
        dtype: dtype.name().into(),
        rows: Vec::new(),
        left_out: BTreeMap::new(),
    };
    Bench { options, model: &*model, device, bar }.run(&mut report)?;
    Ok(report)
}

fn open(model: Model) -> Result<(Device, String)> {
    if model.on_cpu() {
        return Ok((Device::Cpu, "CPU".into()));
    }
    let gpu = launch::device_info(0)?.name;
    if !interpose::is_active() {
        return Err("candle's cuBLAS calls do not arrive at the interposer; `tilegemm doctor` says what to do".into());
    }
    Ok((Device::new_cuda(0)?, gpu))
}

impl Options<'_> {
    fn dtype(&self) -> Result<Format> {
        let llama = matches!(self.model, Model::Llama1b | Model::Llama8b);
        match self.dtype.unwrap_or(if llama { Format::BF16 } else { Format::F32 }) {
            Format::F64 => Err(Failure::Usage("models are measured in bf16, f16 or f32, not in f64".into())),
            // The mask of candle's BERT is (1 - mask) * f32::MIN, and for a visible token that is 0 * -inf in these
            // types.
            dtype if self.model.encoder().is_some() && dtype != Format::F32 => {
                let model = self.model;
                let reason = format!("candle-transformers' BertModel yields NaN in {dtype}; --model {model} takes f32");
                Err(Failure::Usage(reason))
            }
            dtype => Ok(dtype),
        }
    }

    /// The folder's name without its path, which means nothing to other readers.
    fn weights_name(&self) -> String {
        match &self.weights {
            None => "seeded random".into(),
            Some(folder) => folder.file_name().map_or("given".into(), |name| name.to_string_lossy().into_owned()),
        }
    }

    fn load(&self, dtype: candle::DType, device: &Device) -> Result<Box<dyn Workload>> {
        let builder = || match &self.weights {
            None => Ok(VarBuilder::from_backend(Box::new(weights::Seeded::default()), dtype, device.clone())),
            Some(folder) => open_weights(folder, dtype, device),
        };
        if let Some(shape) = self.model.encoder() {
            let config = self.weights.as_ref().map_or(Ok(shape), |folder| read_config(folder))?;
            return Ok(Box::new(Bert::load(builder()?, config)?));
        }
        let config = match (&self.weights, self.model) {
            (Some(folder), _) => read_config::<LlamaConfig>(folder)?.into_config(false),
            (None, Model::Llama1b) => shapes::llama_1b(),
            (None, Model::Llama8b) => shapes::llama_8b(),
            (None, _) => Config { max_position_embeddings: 64, ..shapes::tiny() },
        };
        // candle-transformers panics where a layer does not fit into memory.
        let need = llama::bytes_to_load(&config, dtype) + RESERVE;
        match free_bytes(device)? {
            Some(free) if free < need => {
                let (need, free) = (need / GIB, free / GIB);
                Err(format!("loading {} takes {need:.1} GiB, and {free:.1} GiB of the card are free", self.model)
                    .into())
            }
            _ => Ok(Box::new(LlamaModel::load(builder()?, config)?)),
        }
    }

    /// The configurations to measure. Prompts that are too long are named in `left_out`, and the longest possible
    /// prompt replaces them.
    fn cases(&self, model: &dyn Workload, left_out: &mut BTreeMap<String, String>) -> Result<Vec<Case>> {
        let decode = if model.decodes() { self.decode as usize } else { 0 };
        let positions = model.positions();
        let longest = positions.saturating_sub(decode);
        if longest == 0 {
            return Err(Failure::Usage(format!("{decode} tokens to decode: the model has {positions} positions")));
        }
        let mut cases = Vec::new();
        for asked in self.prompts.iter().map(|prompt| *prompt as usize) {
            let prompt = asked.min(longest);
            if prompt < asked {
                let room = if decode > 0 { format!(", {decode} of them to decode") } else { String::new() };
                let reason = format!("the model has {positions} positions{room}; prompt {prompt} is measured instead");
                left_out.insert(format!("prompt {asked}"), reason);
            }
            for batch in self.batches.iter().map(|batch| *batch as usize) {
                let case = Case { prompt, batch, decode };
                if !cases.contains(&case) {
                    cases.push(case);
                }
            }
        }
        Ok(cases)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn read_config<T: serde::de::DeserializeOwned>(folder: &Path) -> Result<T> {
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn open_weights(folder: &Path, dtype: candle::DType, device: &Device) -> Result<VarBuilder<'static>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    files.sort();
    if files.is_empty() {
        return Err(format!("no *.safetensors in {}", folder.display()).into());
    }
    // SAFETY: the files are not changed while they are mapped.
    Ok(unsafe { VarBuilder::from_mmaped_safetensors(&files, dtype, device)? })
}

/// Free device memory; `None` on the CPU.
fn free_bytes(device: &Device) -> Result<Option<f64>> {
    let Device::Cuda(cuda) = device else { return Ok(None) };
    device.synchronize()?; // the pool gives its memory back
    let (free, _) = cuda.cuda_stream().context().mem_get_info()?;
    Ok(Some(free as f64))
}

/// Sets the interposer's mode until the drop of this guard.
pub struct Interposed(Mode);

impl Interposed {
    /// candle's own products.
    #[cfg(all(feature = "layers", feature = "models"))]
    pub fn off() -> Self {
        Self::set(Mode::Off, false)
    }

    fn set(mode: Mode, dry: bool) -> Self {
        let before = interpose::mode();
        interpose::set_mode(mode);
        interpose::set_dry_run(dry);
        Self(before)
    }
}

impl Drop for Interposed {
    fn drop(&mut self) {
        interpose::set_dry_run(false);
        interpose::set_mode(self.0);
    }
}

struct Bench<'a> {
    options: &'a Options<'a>,
    model: &'a dyn Workload,
    device: Device,
    bar: ProgressBar,
}

/// The arms: the interposer's mode of each.
fn arms() -> [(&'static str, Mode); 2] {
    // The arm `ours` keeps TILEGEMM=trace or force.
    let ours = match interpose::mode() {
        Mode::Off => Mode::On,
        mode => mode,
    };
    [(STOCK, Mode::Off), ("ours", ours)]
}

/// Seconds of prefill and of all decode steps, over several runs.
type Times = [Samples; 2];

impl Bench<'_> {
    fn run(&self, report: &mut ModelReport) -> Result {
        let cases = self.options.cases(self.model, &mut report.left_out)?;
        let runs = (arms().len() + self.options.runs as usize * self.turns().len()) as u64;
        self.bar.set_length(runs * cases.len() as u64);
        for (case, done) in cases.iter().zip(1..) {
            self.bar.set_message(case.to_string());
            match self.measure_if_possible(case, &mut report.left_out)? {
                Ok(row) => report.rows.push(row),
                Err(reason) => drop(report.left_out.insert(case.to_string(), reason)),
            }
            self.bar.set_position(runs * done);
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    /// The row, or the reason why there is none.
    fn measure_if_possible(
        &self,
        case: &Case,
        left_out: &mut BTreeMap<String, String>,
    ) -> Result<std::result::Result<Row, String>> {
        if self.options.stopped() {
            return Ok(Err(STOPPED.into()));
        }
        let need = self.model.bytes_to_run(case) + RESERVE;
        if let Some(free) = free_bytes(&self.device)?.filter(|free| *free < need) {
            let (need, free) = (need / GIB, free / GIB);
            return Ok(Err(format!("takes {need:.1} GiB beside the weights, and {free:.1} GiB of the card are free")));
        }
        match self.measure(case, left_out) {
            Ok(row) => Ok(row.ok_or(STOPPED.into())),
            Err(failure) => Ok(Err(out_of_memory(&failure).ok_or(failure)?)),
        }
    }

    /// `None` when stopped before every arm had a run.
    fn measure(&self, case: &Case, left_out: &mut BTreeMap<String, String>) -> Result<Option<Row>> {
        let mut warm = Vec::new();
        let before = stats::gemms();
        for (_, mode) in arms() {
            if self.options.stopped() {
                return Ok(None);
            }
            warm.push(self.once((mode, false), case, true)?);
        }
        let products = record::products(&before, stats::gemms());
        let mut times = vec![Times::default(); self.turns().len()];
        for _ in 0..self.options.runs {
            let Some(round) = self.round(case)? else { break };
            for (times, run) in times.iter_mut().zip(round) {
                for (times, phase) in times.iter_mut().zip(run.phases) {
                    times.push(phase.seconds);
                }
            }
        }
        if times[0][0].len() == 0 {
            return Ok(None);
        }
        let reference = self.reference(case, left_out)?;
        let Case { prompt, batch, decode } = *case;
        let mut row = Row { prompt, batch, decode, arms: BTreeMap::new(), products };
        for (index, ((name, _), run)) in arms().into_iter().zip(&warm).enumerate() {
            let (wet, dry) = (&times[index], times.get(index + warm.len()));
            let phase = |index: usize, tokens: usize, forwards: usize| {
                let gemms = Gemms::new(&run.phases[index].gemms, forwards);
                phase(&wet[index], dry.map(|dry| &dry[index]), case.batch * tokens, gemms)
            };
            let decode = (case.decode > 0).then(|| phase(1, 1, case.decode));
            let agreement = if name == STOCK {
                None
            } else {
                Some(Agreement::between(&warm[0].outputs, &run.outputs, self.model.decodes())?)
            };
            let errors =
                reference.as_ref().map(|reference| record::errors(&run.outputs, reference, self.model.decodes()));
            let errors = errors.transpose()?.unwrap_or_default();
            row.arms.insert(name.into(), Arm { prefill: phase(0, case.prompt, 1), decode, agreement, errors });
        }
        Ok(Some(row))
    }

    /// The outputs in f64, where the model has a reference and the outputs fit onto the card.
    fn reference(&self, case: &Case, left_out: &mut BTreeMap<String, String>) -> Result<Option<Vec<Tensor>>> {
        let _guard = self.device.is_cuda().then(|| Interposed::set(Mode::Off, false));
        let failure = match self.model.reference(case) {
            Ok(reference) => return Ok(reference),
            Err(error) => Failure::from(error),
        };
        let reason = out_of_memory(&failure).ok_or(failure)?;
        left_out.insert(format!("errors of {case}"), reason);
        Ok(None)
    }

    /// The runs of a round: each arm, and on a GPU each arm without products too.
    fn turns(&self) -> Vec<(Mode, bool)> {
        let variants: &[bool] = if self.device.is_cpu() { &[false] } else { &[false, true] };
        variants.iter().flat_map(|dry| arms().map(|(_, mode)| (mode, *dry))).collect()
    }

    /// One run of each turn; `None` when stopped.
    fn round(&self, case: &Case) -> Result<Option<Vec<Run>>> {
        let mut runs = Vec::new();
        for turn in self.turns() {
            if self.options.stopped() {
                return Ok(None);
            }
            runs.push(self.once(turn, case, false)?);
        }
        Ok(Some(runs))
    }

    fn once(&self, (mode, dry): (Mode, bool), case: &Case, keep: bool) -> Result<Run> {
        let _guard = self.device.is_cuda().then(|| Interposed::set(mode, dry));
        let run = self.model.run(case, keep)?;
        self.bar.inc(1);
        Ok(run)
    }
}

/// The phase of `gemms.forwards` forwards with `tokens` tokens each.
fn phase(times: &Samples, dry: Option<&Samples>, tokens: usize, gemms: Gemms) -> Phase {
    let ms = |seconds: f64| seconds * 1e3 / gemms.forwards as f64;
    Phase {
        ms: ms(times.median()),
        ms_min: ms(times.at(0.0)),
        ms_max: ms(times.at(1.0)),
        runs: times.len(),
        tokens_per_s: tokens as f64 * 1e3 / ms(times.median()),
        dry_ms: dry.map(|dry| ms(dry.median())),
        gemms,
    }
}
