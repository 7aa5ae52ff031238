//! Decoders that several ranks compute, as threads on the CPU.

use super::{difference, Random, ROUNDING};
use candle::safetensors::BufferedSafetensors;
use candle::Shape;
use candle::{DType, Device, Result, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_tilegemm::nn::narrow::Checkpoint;
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::Sampling;
use candle_tilegemm_models::{Cache, Config, Decoder, ExpertSplit, Sampler, Split};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a decoder says: logits, and the tokens of all sequences.
pub type Said = (Vec<Tensor>, Vec<Vec<u32>>);

/// What each rank's thread returns.
pub fn on_ranks<T: Send>(ranks: usize, work: impl Fn(&Group) -> Result<T> + Sync) -> Result<Vec<Result<T>>> {
    let groups = Group::threads(ranks, Duration::from_secs(60))?;
    let work = &work;
    Ok(std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || work(&group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    }))
}

/// Parts of a file's tensors.
pub fn builder(file: &[u8], group: &Group) -> Result<VarBuilder<'static>> {
    let files = BufferedSafetensors::new(file.to_vec())?;
    Ok(Checkpoint::from(files).of_rank(group).var_builder(DType::F32, &Device::Cpu))
}

/// The names of tensors that were read, and their bytes.
pub type Log = Arc<Mutex<Vec<(String, usize)>>>;

/// A checkpoint that logs what it gives.
struct Logged {
    checkpoint: Checkpoint,
    log: Log,
}

impl Logged {
    fn note(&self, name: &str, tensor: Tensor) -> Result<Tensor> {
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        self.log.lock().unwrap().push((name.to_string(), bytes));
        Ok(tensor)
    }
}

impl SimpleBackend for Logged {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        self.note(name, self.checkpoint.get(shape, name, init, dtype, device)?)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.note(name, self.checkpoint.get_unchecked(name, dtype, device)?)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.checkpoint.contains_tensor(name)
    }
}

/// [`builder`], and what is read by it.
pub fn logged(file: &[u8], group: &Group) -> Result<(VarBuilder<'static>, Log)> {
    let checkpoint = Checkpoint::from(BufferedSafetensors::new(file.to_vec())?).of_rank(group);
    let log = Log::default();
    let backend = Box::new(Logged { checkpoint, log: log.clone() });
    Ok((VarBuilder::from_backend(backend, DType::F32, Device::Cpu), log))
}

/// The logits of prompts of different lengths in chunks, steps of all sequences, and the logits of one more token of each.
pub fn run(decoder: Decoder) -> Result<Said> {
    let decoder = decoder.with_chunk(3);
    let vocabulary = decoder.config().vocabulary;
    let (mut random, mut logits) = (Random(5), vec![]);
    let mut cache = Cache::with_capacity(&decoder, 3, 8)?;
    for (slot, count) in [(0, 7), (1, 1), (2, 11)] {
        logits.push(decoder.prefill(slot, &random.tokens(count, vocabulary), &mut cache)?);
    }
    let sampler = Sampler::same(Sampling::new(0.8, 7).with(|sampling| sampling.top_p = 0.9));
    let mut step = decoder.step(&mut cache, sampler)?;
    for _ in 0..4 {
        step.next()?;
    }
    let tokens = (0..3).map(|slot| Ok(cache.tokens(slot)?.to_vec())).collect::<Result<_>>()?;
    for slot in 0..3 {
        logits.push(decoder.prefill(slot, &[5], &mut cache)?);
    }
    Ok((logits, tokens))
}

/// Whether so many ranks say what the whole decoder says, up to roundings, and all of them the same bits.
pub fn agree((logits, tokens): &Said, ranks: usize, load: impl Fn(&Group) -> Result<Decoder> + Sync) -> Result<()> {
    let all = on_ranks(ranks, |group| run(load(group)?))?;
    for (rank, of_rank) in all.iter().enumerate() {
        let (of_rank, chosen) = of_rank.as_ref().map_err(|error| candle::Error::msg(error.to_string()))?;
        assert_eq!(chosen, tokens, "rank {rank} of {ranks}");
        for (i, (x, y)) in of_rank.iter().zip(logits).enumerate() {
            let apart = difference(x, y)?;
            assert!(apart < ROUNDING, "rank {rank} of {ranks}, logits {i}: {apart:e}");
        }
        // All ranks have the same bits: they choose the same tokens.
        assert_eq!(bits(of_rank)?, bits(&all[0].as_ref().unwrap().0)?, "rank {rank} of {ranks}");
    }
    Ok(())
}

/// The same for these numbers of ranks; `builder` has a rank's part of the weights.
pub fn agrees(
    config: &Config,
    counts: &[usize],
    builder: impl Fn(&Group) -> Result<VarBuilder<'static>> + Sync,
) -> Result<()> {
    let whole = run(Decoder::load(config, builder(&Group::one())?)?)?;
    let of_rank = |group: &Group| Decoder::load_rank(config, group, builder(group)?);
    counts.iter().try_for_each(|ranks| agree(&whole, *ranks, of_rank))
}

/// The same with experts split so, each of which a rank has as a whole.
pub fn agrees_by_expert(
    config: &Config,
    counts: &[usize],
    experts: ExpertSplit,
    builder: impl Fn(&Group) -> Result<VarBuilder<'static>> + Sync,
) -> Result<()> {
    let whole = run(Decoder::load(config, builder(&Group::one())?)?)?;
    let of_rank = |group: &Group| {
        let decoder = Decoder::load_rank(config, Split::from(group).with_experts(experts), builder(group)?)?;
        assert!(has_whole_experts(&decoder, config));
        Ok(decoder)
    };
    counts.iter().try_for_each(|ranks| agree(&whole, *ranks, of_rank))
}

/// Whether a rank's experts have all inner numbers.
pub fn has_whole_experts(of_rank: &Decoder, config: &Config) -> bool {
    let inner = |config: &Config| config.experts.as_ref().map(|experts| experts.feed_forward);
    inner(of_rank.config()) == inner(config)
}

pub fn bits(logits: &[Tensor]) -> Result<Vec<Vec<f32>>> {
    logits.iter().map(Tensor::to_vec1).collect()
}
