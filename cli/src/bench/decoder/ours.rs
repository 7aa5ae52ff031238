//! Our decoder: steps launched by the host, and steps captured as graphs.

use super::blocks;
use super::narrow::Checkpoint;
use super::pool::Pool;
use super::record::CAPTURED;
use super::size::{Size, Weights};
use super::subject::{dtype, Subject};
use candle::{bail, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::gguf::{GgufFile, Tensors};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm_models::{Cache, Decoder, Sampler};
use std::time::Instant;

/// What decides whether steps are captured. A cache reads it at its first step.
const GRAPHS: &str = "TILEGEMM_GRAPHS";

pub struct Ours {
    decoder: Decoder,
    /// The type of keys and values.
    cache: DType,
    /// Where prompts go.
    prompt: Option<Cache>,
    /// The sequences of `fill`, and the tokens that each has.
    filled: Option<(Cache, usize)>,
}

impl Ours {
    pub fn load(size: &Size, fp8_cache: bool, device: &Device) -> Result<Self> {
        Self::load_rank(size, fp8_cache, &Group::one(), device)
    }

    /// A rank's part.
    pub fn load_rank(size: &Size, fp8_cache: bool, group: &Group, device: &Device) -> Result<Self> {
        let decoder = match size.weights {
            Weights::Dense => {
                let pool = Pool::new(dtype(device), device)?;
                let builder = VarBuilder::from_backend(Box::new(pool), dtype(device), device.clone());
                Decoder::load_rank(&size.config()?, group, builder)?
            }
            Weights::Narrow(format) => {
                let checkpoint = Checkpoint::new(size, format, Pool::new(dtype(device), device)?);
                let builder = VarBuilder::from_backend(Box::new(checkpoint), dtype(device), device.clone());
                Decoder::load_rank(&size.config()?, group, builder)?
            }
            _ => {
                let (content, mut bytes) = blocks::file(size);
                let file = GgufFile { tensors: Tensors::from(&content), content };
                Decoder::from_gguf_rank(&file, group, &mut bytes, dtype(device), device)?
            }
        };
        candle_tilegemm::prepare(device)?;
        device.synchronize()?;
        let cache = if fp8_cache { DType::F8E4M3 } else { decoder.dtype() };
        Ok(Self { decoder, cache, prompt: None, filled: None })
    }

    fn cache(&self, sequences: usize, tokens: usize) -> Result<Cache> {
        Cache::with_capacity_in(&self.decoder, sequences, tokens, self.cache)
    }
}

impl Subject for Ours {
    fn prefill(&mut self, prompt: &[u32]) -> Result<Tensor> {
        let mut cache = match self.prompt.take() {
            Some(cache) if cache.capacity() >= prompt.len() => cache,
            _ => self.cache(1, prompt.len())?,
        };
        cache.clear(0)?;
        let logits = self.decoder.prefill(0, prompt, &mut cache);
        self.prompt = Some(cache);
        logits
    }

    fn first_token(&mut self, prompt: &[u32]) -> Result<u32> {
        let mut cache = self.cache(1, prompt.len() + 2)?;
        self.decoder.prefill(0, prompt, &mut cache)?;
        match self.decoder.step(&mut cache, Sampler::greedy())?.next()?[..] {
            [Some(token)] => Ok(token),
            ref tokens => bail!("a step of one sequence gave {tokens:?}"),
        }
    }

    fn bytes_to_prefill(&self, tokens: usize) -> f64 {
        self.bytes_to_decode(tokens, 1)
    }

    fn bytes_to_decode(&self, context: usize, sequences: usize) -> f64 {
        let bytes = Cache::bytes(self.decoder.config(), sequences, context, self.cache);
        bytes.map_or(f64::INFINITY, |bytes| bytes as f64)
    }

    fn fill(&mut self, prompts: &[Vec<u32>], steps: usize) -> Result<()> {
        (self.prompt, self.filled) = (None, None);
        let tokens = prompts[0].len();
        // Room for these steps, and for the one that runs ahead: a cache that grows has other graphs.
        let mut cache = self.cache(prompts.len(), tokens + steps + 2)?;
        for (slot, prompt) in prompts.iter().enumerate() {
            self.decoder.prefill(slot, prompt, &mut cache)?;
        }
        self.decoder.device().synchronize()?;
        self.filled = Some((cache, tokens));
        Ok(())
    }

    fn fills_by_steps(&self, _: usize) -> bool {
        false
    }

    fn decode(&mut self, arm: &str, warm_up: usize, steps: usize) -> Result<(f64, Vec<u32>)> {
        set_graphs(arm);
        self.steps(arm, warm_up, steps)
    }

    fn clear(&mut self) -> Result<()> {
        (self.prompt, self.filled) = (None, None);
        self.decoder.device().synchronize()
    }
}

/// Makes steps those of an arm, in the whole process.
pub fn set_graphs(arm: &str) {
    std::env::set_var(GRAPHS, if arm == CAPTURED { "on" } else { "off" });
}

impl Ours {
    /// [`decode`](Subject::decode), once [`set_graphs`] has made steps the arm's.
    pub fn steps(&mut self, arm: &str, warm_up: usize, steps: usize) -> Result<(f64, Vec<u32>)> {
        let Some((cache, context)) = &mut self.filled else { bail!("there are no sequences") };
        for slot in 0..cache.sequences() {
            cache.truncate(slot, *context)?;
        }
        let mut step = self.decoder.step(cache, Sampler::greedy())?;
        let mut tokens = vec![];
        let mut next = || -> Result<()> {
            tokens.extend(step.next()?[0]);
            Ok(())
        };
        for _ in 0..warm_up {
            next()?;
        }
        let start = Instant::now();
        for _ in 0..steps {
            next()?;
        }
        let seconds = start.elapsed().as_secs_f64() / steps as f64;
        let (graphs, expected) = (cache.graphs(), usize::from(arm == CAPTURED));
        if graphs != expected {
            bail!("{graphs} graphs of a step; expected {expected}");
        }
        Ok((seconds, tokens))
    }
}
