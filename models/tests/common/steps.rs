//! Steps on any device. On a GPU each case runs twice, with graphs and without, and gives the same bits.

use super::{builder_on, weights, Random};
use candle::{bail, DType, Device, Result};
use candle_tilegemm::nn::Sampling;
use candle_tilegemm_models::{Cache, Config, Decoder, Sampler};

pub type Check = fn(&Device) -> Result<()>;

pub const CHECKS: [(&str, Check); 11] = [
    ("batches_of_all_sizes", batches),
    ("rows_of_padding_append_nothing", padding),
    ("an_end_token_takes_the_next_step_back", end_tokens),
    ("a_cache_grows", growth),
    ("turns_of_a_chat", turns),
    ("settings_change_between_steps", settings),
    ("a_step_for_each_token", one_by_one),
    ("a_full_slot_is_found_before_a_launch", full),
    ("logits_of_nan", nan),
    ("another_thread_goes_on", threads),
    ("keys_and_values_in_fp8", fp8),
];

/// A decoder that runs on a GPU, too.
pub fn config(model_type: &str, more: &str) -> Result<Config> {
    Config::from_json(&format!(
        r#"{{"model_type": "{model_type}", "vocab_size": 320, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 96, "rms_norm_eps": 1e-5,
        "max_window_layers": 2, "use_sliding_window": false, "rope_theta": 10000.0, "eos_token_id": null {more}}}"#
    ))
}

pub fn decoder_of(config: &Config, seed: u64, device: &Device) -> Result<Decoder> {
    let dtype = if device.is_cpu() { DType::F32 } else { DType::BF16 };
    Decoder::load(config, builder_on(&weights(config, seed)?, dtype, device)?)
}

fn decoder(device: &Device) -> Result<Decoder> {
    decoder_of(&config("llama", "")?, 41, device)
}

/// A cache of some sequences of different lengths.
pub fn prompted(decoder: &Decoder, sequences: usize, capacity: usize) -> Result<Cache> {
    let mut cache = Cache::with_capacity(decoder, sequences, capacity)?;
    let mut random = Random(3);
    for slot in 0..sequences {
        let count = 1 + random.next() as usize % 9;
        decoder.prefill(slot, &random.tokens(count, decoder.config().vocabulary), &mut cache)?;
    }
    Ok(cache)
}

/// The tokens of all sequences, and the bits of the logits of one more token of each.
pub type Outcome = (Vec<Vec<u32>>, Vec<Vec<u32>>);

pub fn outcome(decoder: &Decoder, cache: &mut Cache) -> Result<Outcome> {
    let (mut tokens, mut logits) = (vec![], vec![]);
    for slot in 0..cache.sequences() {
        tokens.push(cache.tokens(slot)?.to_vec());
        if cache.tokens(slot)?.len() < decoder.config().max_positions {
            let of_slot = decoder.prefill(slot, &[5], cache)?.to_vec1::<f32>()?;
            logits.push(of_slot.into_iter().map(f32::to_bits).collect());
        }
    }
    Ok((tokens, logits))
}

/// Runs a case with graphs and, on a GPU, without. The variable is the process's: the GPU tests run on one thread.
pub fn equal(device: &Device, case: impl Fn() -> Result<Outcome>) -> Result<Outcome> {
    let with = case()?;
    if device.is_cuda() {
        std::env::set_var("TILEGEMM_GRAPHS", "off");
        let without = case();
        std::env::remove_var("TILEGEMM_GRAPHS");
        if with != without? {
            bail!("graphs change the result");
        }
    }
    Ok(with)
}

/// On a GPU there are as many graphs.
pub fn expect_graphs(cache: &Cache, device: &Device, count: usize) -> Result<()> {
    let on = device.is_cuda() && std::env::var_os("TILEGEMM_GRAPHS").is_none();
    if cache.graphs() != if on { count } else { 0 } {
        bail!("{} graphs instead of {count}", cache.graphs());
    }
    Ok(())
}

pub fn steps(decoder: &Decoder, cache: &mut Cache, sampler: Sampler, count: usize) -> Result<()> {
    let mut step = decoder.step(cache, sampler)?;
    (0..count).try_for_each(|_| step.next().map(drop))
}

fn drawn(temperature: f32, seed: u64) -> Sampler {
    Sampler::same(Sampling::new(temperature, seed).with(|sampling| sampling.top_p = 0.9))
}

fn batches(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    let sizes: &[usize] = if device.is_cpu() { &[1, 2, 9] } else { &[1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65] };
    for &sequences in sizes {
        let (tokens, _) = equal(device, || {
            let mut cache = prompted(&decoder, sequences, 32)?;
            steps(&decoder, &mut cache, Sampler::greedy(), 6)?;
            expect_graphs(&cache, device, usize::from(sequences <= 64))?;
            outcome(&decoder, &mut cache)
        })?;
        let lengths = prompted(&decoder, sequences, 32)?;
        for (slot, tokens) in tokens.iter().enumerate() {
            assert_eq!(tokens.len(), lengths.tokens(slot)?.len() + 6, "{sequences} sequences, slot {slot}");
        }
    }
    Ok(())
}

fn padding(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    equal(device, || {
        // 9 sequences run as 16; slots 9 to 11 are empty, and slot 0 ends.
        let mut cache = prompted(&decoder, 12, 32)?;
        (9..12).chain([0]).try_for_each(|slot| cache.clear(slot))?;
        steps(&decoder, &mut cache, Sampler::greedy(), 4)?;
        for slot in [0, 9, 10, 11] {
            assert!(cache.tokens(slot)?.is_empty());
            let logits = decoder.prefill(slot, &[9, 8, 7], &mut cache)?.to_vec1::<f32>()?;
            let mut fresh = Cache::with_capacity(&decoder, 12, 32)?;
            assert_eq!(logits, decoder.prefill(slot, &[9, 8, 7], &mut fresh)?.to_vec1::<f32>()?);
        }
        outcome(&decoder, &mut cache)
    })?;
    Ok(())
}

fn end_tokens(device: &Device) -> Result<()> {
    let mut config = config("llama", "")?;
    let free = decoder_of(&config, 41, device)?;
    let mut cache = prompted(&free, 3, 32)?;
    let prompts = [0, 1, 2].map(|slot| cache.tokens(slot).map_or(0, <[u32]>::len));
    steps(&free, &mut cache, Sampler::greedy(), 12)?;
    // A token that only sequence 1 chooses, not at once.
    let mut own = cache.tokens(1)?[prompts[1]..].iter().skip(2);
    let others = [&cache.tokens(0)?[prompts[0]..], &cache.tokens(2)?[prompts[2]..]].concat();
    config.end_tokens = own.find(|token| !others.contains(token)).copied().into_iter().collect();
    let decoder = decoder_of(&config, 41, device)?;
    equal(device, || {
        let mut cache = prompted(&decoder, 3, 32)?;
        let mut step = decoder.step(&mut cache, Sampler::greedy())?;
        let mut ended = [false; 3];
        assert_eq!(config.end_tokens.len(), 1);
        for _ in 0..12 {
            let tokens = step.next()?;
            for (slot, token) in tokens.iter().enumerate() {
                assert_eq!(token.is_none(), ended[slot]);
                ended[slot] |= token.is_some_and(|token| config.end_tokens.contains(&token));
                assert_eq!(step.cache().has_ended(slot)?, ended[slot]);
            }
        }
        assert_eq!(ended, [false, true, false]);
        // What ran behind the end left nothing: the sequence goes on as one that stopped there.
        let tokens = cache.tokens(1)?.to_vec();
        assert!(config.end_tokens.contains(tokens.last().unwrap()));
        decoder.prefill(1, &[4, 5], &mut cache)?;
        assert!(!cache.has_ended(1)?);
        assert_eq!(cache.tokens(1)?, [&tokens[..], &[4, 5]].concat());
        steps(&decoder, &mut cache, Sampler::greedy(), 3)?;
        outcome(&decoder, &mut cache)
    })?;
    Ok(())
}

fn growth(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    for sampler in [Sampler::greedy(), Sampler::same(Sampling::new(1.0, 5).with(|s| s.repetition_penalty = 1.2))] {
        let case = |capacity: usize| {
            let mut cache = prompted(&decoder, 2, capacity)?;
            let mut sizes = vec![];
            let mut step = decoder.step(&mut cache, sampler.clone())?;
            for _ in 0..40 {
                step.next()?;
                sizes.push(step.cache().capacity());
            }
            sizes.dedup();
            if capacity == 10 {
                assert_eq!(sizes[sizes.len() - 2..], [40, 80]);
            }
            expect_graphs(&cache, device, 1)?;
            outcome(&decoder, &mut cache)
        };
        // A cache that grows gives what one of the last size gives.
        assert_eq!(equal(device, || case(10))?, case(80)?);
    }
    Ok(())
}

fn turns(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    for sampler in [Sampler::greedy(), drawn(1.1, 8)] {
        equal(device, || {
            let mut cache = prompted(&decoder, 4, 64)?;
            steps(&decoder, &mut cache, sampler.clone(), 5)?;
            decoder.prefill(2, &[7, 8, 9], &mut cache)?;
            steps(&decoder, &mut cache, sampler.clone(), 4)?;
            let kept = cache.tokens(1)?.len() - 3;
            cache.truncate(1, kept)?;
            steps(&decoder, &mut cache, sampler.clone(), 1)?;
            cache.clear(3)?;
            steps(&decoder, &mut cache, sampler.clone(), 2)?;
            decoder.prefill(3, &[1], &mut cache)?;
            decoder.prefill(0, &[2, 3], &mut cache)?;
            steps(&decoder, &mut cache, sampler.clone(), 3)?;
            assert_eq!(cache.tokens(1)?.len(), kept + 6);
            assert_eq!(cache.tokens(3)?.len(), 4);
            outcome(&decoder, &mut cache)
        })?;
    }
    Ok(())
}

fn settings(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    let penalised = Sampling::new(0.9, 1).with(|s| (s.top_k, s.repetition_penalty, s.last_n) = (20, 1.3, 8));
    let each = |seed: u64| {
        let drawn = Sampling::new(1.0, seed).with(|s| s.min_p = 0.05);
        Sampler::each([Sampling::greedy(), drawn, drawn.with(|s| s.sequence = 1)])
    };
    equal(device, || {
        let mut cache = prompted(&decoder, 3, 64)?;
        for sampler in [each(1), each(2), Sampler::greedy(), Sampler::same(penalised), each(1)] {
            steps(&decoder, &mut cache, sampler, 4)?;
        }
        // Greedy, drawn with settings in the graph's memory, and with a penalty.
        expect_graphs(&cache, device, 3)?;
        outcome(&decoder, &mut cache)
    })?;
    Ok(())
}

/// A `Step` for each token takes up the step that the one before has launched.
fn one_by_one(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    for sampler in [Sampler::greedy(), drawn(1.3, 2)] {
        let run = |together: bool| {
            let mut cache = prompted(&decoder, 3, 64)?;
            match together {
                true => steps(&decoder, &mut cache, sampler.clone(), 9)?,
                false => (0..9).try_for_each(|_| steps(&decoder, &mut cache, sampler.clone(), 1))?,
            }
            outcome(&decoder, &mut cache)
        };
        assert_eq!(equal(device, || run(true))?, equal(device, || run(false))?);
    }
    Ok(())
}

fn full(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    equal(device, || {
        let mut cache = Cache::with_capacity(&decoder, 2, 96)?;
        decoder.prefill(0, &[1; 90], &mut cache)?;
        decoder.prefill(1, &[2; 5], &mut cache)?;
        steps(&decoder, &mut cache, Sampler::greedy(), 6)?;
        assert_eq!(cache.tokens(0)?.len(), 96);
        let error = steps(&decoder, &mut cache, Sampler::greedy(), 1).unwrap_err().to_string();
        assert!(error.contains("slot 0 is full"), "{error}");
        assert_eq!(cache.tokens(1)?.len(), 11);
        cache.truncate(0, 20)?;
        steps(&decoder, &mut cache, Sampler::greedy(), 6)?;
        outcome(&decoder, &mut cache)
    })?;
    Ok(())
}

fn nan(device: &Device) -> Result<()> {
    let config = config("llama", "")?;
    let mut weights = weights(&config, 41)?;
    let norm = candle::Tensor::full(f32::NAN, config.hidden, &Device::Cpu)?;
    weights.insert("model.norm.weight".into(), norm);
    let dtype = if device.is_cpu() { DType::F32 } else { DType::BF16 };
    let decoder = Decoder::load(&config, builder_on(&weights, dtype, device)?)?;
    let mut cache = Cache::with_capacity(&decoder, 2, 16)?;
    decoder.prefill(1, &[1, 2, 3], &mut cache)?;
    for _ in 0..2 {
        let error = decoder.step(&mut cache, Sampler::greedy())?.next().unwrap_err().to_string();
        assert!(error.contains("slot 1") && error.contains("NaN"), "{error}");
        assert_eq!(cache.tokens(1)?, [1, 2, 3]);
    }
    Ok(())
}

/// candle's stream is another one on each thread.
fn threads(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    let run = |moves: bool| {
        let mut cache = prompted(&decoder, 2, 64)?;
        steps(&decoder, &mut cache, Sampler::greedy(), 5)?;
        device.synchronize()?;
        if moves {
            std::thread::scope(|scope| {
                let go_on = || {
                    steps(&decoder, &mut cache, Sampler::greedy(), 5)?;
                    device.synchronize()
                };
                scope.spawn(go_on).join().unwrap()
            })?;
        } else {
            steps(&decoder, &mut cache, Sampler::greedy(), 5)?;
        }
        steps(&decoder, &mut cache, Sampler::greedy(), 5)?;
        expect_graphs(&cache, device, 1)?;
        outcome(&decoder, &mut cache)
    };
    assert_eq!(equal(device, || run(true))?, run(false)?);
    Ok(())
}

/// The most that keys and values in fp8 may change of the logits, over the largest: twice what the CPU gave, 4.5 to 5.0 %. By arithmetic: a number rounds by up to
/// 2^-4 of itself, 2 % in the mean, and few positions and two layers take little of that away.
const FP8: f32 = 0.1;
/// The most that the way may change, prompts or steps: on a GPU roundings to bf16 (twice 2 %, as families.rs has them), on the CPU those in f32, unless one of them
/// moves a number to the next of fp8.
const WAYS: [f32; 2] = [0.04, 0.01];

fn fp8(device: &Device) -> Result<()> {
    let decoder = decoder(device)?;
    let cache = |sequences: usize, capacity: usize, dtype: DType| -> Result<Cache> {
        let mut cache = Cache::with_capacity_in(&decoder, sequences, capacity, dtype)?;
        let mut random = Random(3);
        for slot in 0..sequences {
            decoder.prefill(slot, &random.tokens(3 + 4 * slot, 320), &mut cache)?;
        }
        Ok(cache)
    };
    // A cache that grows gives what one of the last size gives, with graphs and without.
    let case = |capacity: usize| {
        let mut cache = cache(3, capacity, DType::F8E4M3)?;
        steps(&decoder, &mut cache, Sampler::greedy(), 8)?;
        expect_graphs(&cache, device, 1)?;
        outcome(&decoder, &mut cache)
    };
    let (tokens, logits) = equal(device, || case(11))?;
    assert_eq!(case(22)?.1, logits);

    let apart = |x: &[u32], y: &[u32]| {
        let largest = y.iter().fold(0f32, |most, y| most.max(f32::from_bits(*y).abs()));
        let apart = x.iter().zip(y).map(|(x, y)| (f32::from_bits(*x) - f32::from_bits(*y)).abs());
        apart.fold(0f32, f32::max) / largest
    };
    // The same tokens as prompts: in chunks, and one by one over K and V in the decoder's type.
    for (dtype, least, most) in [(DType::F8E4M3, 0.0, WAYS[usize::from(device.is_cpu())]), (decoder.dtype(), 1e-4, FP8)]
    {
        let chunked = decoder.clone().with_chunk(4);
        let mut cache = Cache::with_capacity_in(&decoder, 3, 22, dtype)?;
        for (slot, tokens) in tokens.iter().enumerate() {
            chunked.prefill(slot, &tokens[..2], &mut cache)?;
            chunked.prefill(slot, &tokens[2..], &mut cache)?;
        }
        let (_, expected) = outcome(&decoder, &mut cache)?;
        for (slot, (x, y)) in logits.iter().zip(&expected).enumerate() {
            let apart = apart(x, y);
            println!("fp8, slot {slot}: {apart:e} from prompts in {dtype:?}");
            if !(least..most).contains(&apart) {
                bail!("slot {slot}: {apart:e} from prompts in {dtype:?}");
            }
        }
    }
    let other = if device.is_cpu() { DType::BF16 } else { DType::F16 };
    let refused = Cache::with_capacity_in(&decoder, 1, 8, other).map(drop).unwrap_err().to_string();
    assert!(refused.contains("this decoder takes") && refused.contains("F8E4M3"), "{refused}");
    Ok(())
}
