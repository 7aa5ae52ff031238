//! A model of a folder or of a GGUF file.

use super::chat::Template;
use super::tokenizer;
use anyhow::{bail, Context, Result};
use candle::safetensors::MmapedSafetensors;
use candle::{DType, Device};
use candle_tilegemm::gguf::GgufFile;
use candle_tilegemm::nn::narrow::{Checkpoint, Quantizer};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::QuantizationConfig;
use candle_tilegemm_models::{Config, Decoder, Quantization};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

pub struct Model {
    pub decoder: Decoder,
    pub tokenizer: Tokenizer,
    pub template: Option<Template>,
}

/// What is to be loaded, and how.
pub struct Wanted<'a> {
    /// A folder or a GGUF file.
    pub path: &'a Path,
    /// A tokenizer.json instead of the model's own.
    pub tokenizer: Option<&'a Path>,
    pub quantize: Option<Quantizer>,
    pub wide_activations: bool,
    /// The type of what is not in blocks or few bits.
    pub dtype: DType,
}

/// Calls `loaded` with the number of layers that are there and the number of all.
pub fn model(wanted: &Wanted, group: &Group, device: &Device, loaded: impl FnMut(usize, usize)) -> Result<Model> {
    let path = wanted.path;
    if path.is_dir() {
        folder(wanted, group, device, loaded)
    } else if wanted.quantize.is_some() {
        bail!("{}: the weights of a GGUF file stay as they are; --quantize is for a folder", path.display())
    } else {
        gguf(wanted, group, device, loaded).with_context(|| path.display().to_string())
    }
}

fn gguf(wanted: &Wanted, group: &Group, device: &Device, loaded: impl FnMut(usize, usize)) -> Result<Model> {
    let file = File::open(wanted.path).context("cannot read it; `third_party/fetch.sh smollm2` has a small model")?;
    let mut file = BufReader::new(file);
    let gguf = GgufFile::read(&mut file)?;
    let template = Template::of_gguf(&gguf.content);
    let tokenizer = match wanted.tokenizer {
        Some(file) => read_tokenizer(file)?,
        None => tokenizer::of(&gguf.content)?,
    };
    let decoder = Decoder::from_gguf_rank_with(&gguf, group, &mut file, wanted.dtype, device, loaded)?;
    Ok(Model { decoder, tokenizer, template })
}

fn folder(wanted: &Wanted, group: &Group, device: &Device, loaded: impl FnMut(usize, usize)) -> Result<Model> {
    let path = wanted.path;
    let read = |name: &str| {
        std::fs::read_to_string(path.join(name)).with_context(|| format!("cannot read {}", path.join(name).display()))
    };
    let mut config = Config::from_json(&read("config.json")?)?;
    // Where ModelOpt's description lies in a file of its own.
    let of_modelopt = path.join("hf_quant_config.json");
    if config.quantization == Quantization::None && of_modelopt.exists() {
        let stored = QuantizationConfig::from_json(&read("hf_quant_config.json")?)?;
        config = config.with_quantization(Quantization::Stored(stored));
    }
    if let Some(to) = wanted.quantize {
        if config.quantization != Quantization::None {
            bail!("{}: the weights are in few bits already; leave out --quantize", path.display());
        }
        config = config.with_quantization(Quantization::Rounded(to));
    }
    let config = if wanted.wide_activations { config.with_wide_activations() } else { config };
    let own = path.join("tokenizer.json");
    let tokenizer = read_tokenizer(wanted.tokenizer.unwrap_or(&own))?;
    let template = Template::of_folder(path)?;
    let mut files: Vec<PathBuf> = std::fs::read_dir(path)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    if files.is_empty() {
        bail!("{} has no *.safetensors", path.display());
    }
    // SAFETY: nobody changes the files while they are mapped.
    let files = unsafe { MmapedSafetensors::multi(&files)? };
    let vb = Checkpoint::from(files).of_rank(group).var_builder(wanted.dtype, device);
    Ok(Model { decoder: Decoder::load_rank_with(&config, group, vb, loaded)?, tokenizer, template })
}

fn read_tokenizer(file: &Path) -> Result<Tokenizer> {
    Tokenizer::from_file(file).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))
}
