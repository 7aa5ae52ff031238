//! The model's folder, and the trait of both models.

use crate::input::Batch;
use crate::minilm::{additive_mask, Embeddings, MiniLm};
use anyhow::{anyhow, ensure, Result};
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertEncoder, BertModel, Config};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// The folder of the repository into which `third_party/fetch.sh model` puts the model.
const FETCHED: &str = "third_party/dist/model/all-MiniLM-L6-v2";

/// The length for which all-MiniLM-L6-v2 is meant (its sentence_bert_config.json). The model has positions for more tokens.
const MAX_TOKENS: usize = 256;

/// A folder with the model's files.
pub struct Folder {
    path: PathBuf,
    config: Config,
}

impl Folder {
    /// The given folder, else the folder of TILEGEMM_MODEL_DIR, else the fetched folder.
    pub fn find(given: Option<&Path>) -> Result<Self> {
        let from_env = || std::env::var_os("TILEGEMM_MODEL_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        // Cargo tells a program where the package is, a folder of the repository. Without cargo, the current folder counts as the repository.
        let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let repository = package.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let path = given.map(PathBuf::from).or_else(from_env).unwrap_or_else(|| repository.join(FETCHED));
        ensure!(
            path.is_dir(),
            "there is no model folder {}; run `third_party/fetch.sh model`, or name your copy of all-MiniLM-L6-v2 with \
             --model or TILEGEMM_MODEL_DIR",
            path.display()
        );
        let config = parse(&path.join("config.json"), |bytes| serde_json::from_slice(bytes))?;
        Ok(Self { path, config })
    }

    /// The longest sentence, in tokens.
    pub fn max_tokens(&self) -> usize {
        MAX_TOKENS.min(self.config.max_position_embeddings)
    }

    /// The token that pads shorter sentences of a batch.
    pub fn pad_id(&self) -> u32 {
        self.config.pad_token_id as u32
    }

    pub fn load_tokenizer(&self) -> Result<Tokenizer> {
        parse(&self.path.join("tokenizer.json"), |bytes| Tokenizer::from_bytes(bytes))
    }

    /// Loads both models from the same weights.
    pub fn load_models(&self, dtype: DType, device: &Device) -> Result<(Stock, MiniLm)> {
        parse(&self.path.join("model.safetensors"), |bytes| {
            let vb = VarBuilder::from_slice_safetensors(bytes, dtype, device)?;
            // Checkpoints with a head on the encoder keep the encoder under this name.
            let vb = if vb.contains_tensor("bert.embeddings.word_embeddings.weight") { vb.pp("bert") } else { vb };
            candle::Result::Ok((Stock::load(vb.clone(), &self.config)?, MiniLm::load(vb, &self.config)?))
        })
    }
}

fn parse<T, E: Display>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, E>) -> Result<T> {
    let damaged = |error: &dyn Display| {
        anyhow!(
            "{} is missing or damaged ({error}); delete its folder and run `third_party/fetch.sh model`, or name your copy \
             of all-MiniLM-L6-v2 with --model or TILEGEMM_MODEL_DIR",
            path.display()
        )
    };
    let bytes = std::fs::read(path).map_err(|error| damaged(&error))?;
    parse(&bytes).map_err(|error| damaged(&error))
}

/// A model that embeds sentences.
pub trait Embedder {
    /// The last layer's output, (batch, tokens, hidden).
    fn hidden_states(&self, batch: &Batch) -> candle::Result<Tensor>;

    /// For each sentence the mean over its tokens, as a unit vector: (batch, hidden), f32.
    fn embed(&self, batch: &Batch) -> candle::Result<Tensor> {
        let hidden = self.hidden_states(batch)?.to_dtype(DType::F32)?;
        let mask = batch.mask.unsqueeze(2)?; // (batch, tokens, 1)
        let mean = hidden.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)?;
        mean.broadcast_div(&mean.sqr()?.sum_keepdim(1)?.sqrt()?)
    }
}

/// candle-transformers' model.
pub enum Stock {
    /// The whole model.
    Model(Box<BertModel>),
    /// The encoder behind our embeddings, for f16 and bf16. `BertModel` yields NaN in these types: its mask is
    /// `(1 - mask) * f32::MIN`, which is 0 * -inf for a token.
    Encoder(Embeddings, BertEncoder),
}

impl Stock {
    fn load(vb: VarBuilder, config: &Config) -> candle::Result<Self> {
        if vb.dtype() == DType::F32 {
            return Ok(Self::Model(Box::new(BertModel::load(vb, config)?)));
        }
        let dtype = vb.dtype().as_str();
        eprintln!("notice: stock BertModel yields NaN in {dtype}; its encoder is compared, behind our embeddings");
        let embeddings = Embeddings::load(vb.pp("embeddings"), config)?;
        Ok(Self::Encoder(embeddings, BertEncoder::load(vb.pp("encoder"), config)?))
    }
}

impl Embedder for Stock {
    fn hidden_states(&self, Batch { ids, mask }: &Batch) -> candle::Result<Tensor> {
        match self {
            Self::Model(model) => model.forward(ids, &ids.zeros_like()?, Some(mask)),
            Self::Encoder(embeddings, encoder) => {
                let x = embeddings.forward(ids)?;
                encoder.forward(&x, &additive_mask(mask, x.dtype())?)
            }
        }
    }
}
