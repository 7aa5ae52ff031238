//! Decoders on two GPUs, and on four where there are as many, against the CPU in f32 with the same weights. On one GPU they are left out.

use crate::common::narrow::file_of;
use crate::common::steps::{self, expect_graphs, outcome, prompted, Check, Outcome};
use crate::common::{builder, weights};
use crate::families::far;
use candle::safetensors::BufferedSafetensors;
use candle::{bail, DType, Device, Error, Result, Tensor};
use candle_tilegemm::launch::device_count;
use candle_tilegemm::nn::narrow::Checkpoint;
use candle_tilegemm::nn::parallel::{Group, Id};
use candle_tilegemm_models::{Config, Decoder, ExpertSplit, Sampler, Split};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::spawn;
use std::time::{Duration, Instant};

const KILLED: &str = "ranks_end_with_one_that_is_killed";
pub const CHECKS: [(&str, Check); 4] = [
    ("ranks_add_and_gather", sums),
    ("ranks_agree", families),
    ("ranks_that_do_not_divide_heads", refused),
    (KILLED, killed),
];

/// The number of a rank, the ranks, and their id: a process with these is a rank.
const OF_RANK: [&str; 3] = ["TILEGEMM_TEST_RANK", "TILEGEMM_TEST_RANKS", "TILEGEMM_TEST_ID"];
/// What the other ranks have to end in.
const END: Duration = Duration::from_secs(5);

/// More roundings than on one card: a sum's parts are rounded before they are added, 2 of some 10 roundings of a layer.
const BF16: f32 = 0.05;

/// Numbers of ranks that this host has GPUs for.
fn counts() -> Result<Vec<usize>> {
    let gpus = device_count()?;
    Ok([2, 4].into_iter().filter(|count| *count <= gpus).collect())
}

/// What each of the ranks returns, from a thread and a GPU of its own.
fn on<T: Send + 'static>(
    ranks: usize,
    work: impl Fn(&Group, &Device) -> Result<T> + Send + Clone + 'static,
) -> Result<Vec<T>> {
    let id = Id::new()?;
    let thread = |rank: usize| {
        let work = work.clone();
        spawn(move || {
            let device = Device::new_cuda(rank)?;
            let group = Group::cards(&device, rank, ranks, id)?;
            let result = work(&group, &device)?;
            device.synchronize()?;
            Ok(result)
        })
    };
    let threads: Vec<_> = (0..ranks).map(thread).collect();
    threads.into_iter().map(|thread| thread.join().map_err(|_| Error::msg("a rank panicked"))?).collect()
}

fn sums(_: &Device) -> Result<()> {
    for ranks in counts()? {
        for (dtype, rows) in [DType::F32, DType::BF16, DType::F16]
            .into_iter()
            .flat_map(|dtype| [1usize, 7, 2048].map(|rows| (dtype, rows)))
        {
            let all = on(ranks, move |group, device| {
                let rank = group.rank() as f32;
                let x = Tensor::full(rank + 1., (rows, 4096), device)?.to_dtype(dtype)?;
                group.all_reduce(&x)?;
                let part = Tensor::full(rank, (rows, 128), device)?.to_dtype(dtype)?;
                let memory = || Tensor::zeros((rows, 128 * ranks), dtype, device);
                let (between, columns) = (memory()?, memory()?);
                group.gather_columns_into(&part, &between, &columns)?;
                let list = |x: &Tensor| x.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2::<f32>();
                Ok((list(&x)?, list(&columns)?))
            })?;
            let expected = (1..=ranks).sum::<usize>() as f32;
            for (sum, columns) in all {
                assert!(sum.iter().flatten().all(|x| *x == expected), "{dtype:?}, {rows} rows, {ranks} ranks");
                let of_rank = |(i, x): (usize, &f32)| *x == (i / 128) as f32;
                assert!(
                    columns.iter().all(|row| row.iter().enumerate().all(of_rank)),
                    "{dtype:?}, {rows} rows, {ranks} ranks"
                );
            }
        }
    }
    Ok(())
}

fn load(config: &Config, file: Vec<u8>, group: &Group, experts: ExpertSplit, device: &Device) -> Result<Decoder> {
    let vb = Checkpoint::from(BufferedSafetensors::new(file)?).of_rank(group).var_builder(DType::BF16, device);
    Decoder::load_rank(config, Split::from(group).with_experts(experts), vb)
}

/// Prompts, steps and a last token of some sequences.
fn run(ranks: usize, config: &Config, experts: ExpertSplit, file: &[u8], sequences: usize) -> Result<Vec<Outcome>> {
    let (config, file) = (config.clone(), file.to_vec());
    on(ranks, move |group, device| {
        let decoder = load(&config, file.clone(), group, experts, device)?;
        let mut cache = prompted(&decoder, sequences, 64)?;
        steps::steps(&decoder, &mut cache, Sampler::greedy(), 8)?;
        expect_graphs(&cache, device, 1)?;
        outcome(&decoder, &mut cache)
    })
}

fn families(_: &Device) -> Result<()> {
    let experts =
        r#", "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "norm_topk_prob": true"#;
    let families = [
        ("llama", "", ExpertSplit::Auto),
        ("llama", r#", "tie_word_embeddings": true"#, ExpertSplit::Auto),
        ("qwen2", "", ExpertSplit::Auto),
        ("qwen3_moe", experts, ExpertSplit::Inner),
        ("qwen3_moe", experts, ExpertSplit::Whole),
    ];
    let cases = counts()?.into_iter().flat_map(|ranks| families.map(|family| (ranks, family)));
    for (ranks, (family, more, split)) in cases {
        let config = Config { heads: 16, kv_heads: 8, ..steps::config(family, more)? };
        let rounded =
            |(name, weight): (String, Tensor)| Ok((name, weight.to_dtype(DType::BF16)?.to_dtype(DType::F32)?));
        let weights: HashMap<String, Tensor> = weights(&config, 17)?.into_iter().map(rounded).collect::<Result<_>>()?;
        let (truth, file) = (Decoder::load(&config, builder(&weights))?, file_of(&weights)?);
        for sequences in [1, 32] {
            let name = format!("{family} by {split:?}, {sequences} sequences on {ranks} GPUs");
            let all = run(ranks, &config, split, &file, sequences)?;
            if all.iter().any(|of_rank| *of_rank != all[0]) || all != run(ranks, &config, split, &file, sequences)? {
                bail!("{name}: two ranks, or two runs, have other bits");
            }
            std::env::set_var("TILEGEMM_GRAPHS", "off");
            let eager = run(ranks, &config, split, &file, sequences);
            std::env::remove_var("TILEGEMM_GRAPHS");
            if eager? != all {
                bail!("{name}: graphs change the result");
            }
            let (tokens, logits) = &all[0];
            let mut most = 0f32;
            for (slot, (tokens, logits)) in tokens.iter().zip(logits).enumerate().take(3) {
                let (name, tokens) = (format!("{name}, slot {slot}"), tokens.split_at(tokens.len() - 8));
                most = most.max(far(BF16, &name, &truth, tokens, logits.clone())?);
            }
            println!("{name}: {most:.4}");
            assert!(most < BF16, "{name}: {most}");
        }
    }
    Ok(())
}

/// Heads of K and V that the ranks do not divide.
fn refused(_: &Device) -> Result<()> {
    for ranks in counts()? {
        let (heads, legal) = if ranks == 2 { (3, "1") } else { (2, "1, 2") };
        let config = Config { heads, kv_heads: heads, ..steps::config("llama", "")? };
        let file = file_of(&weights(&config, 17)?)?;
        let of_ranks = on(ranks, move |group, device| {
            Ok(load(&config, file.clone(), group, ExpertSplit::Auto, device)
                .map(drop)
                .map_err(|error| error.to_string()))
        })?;
        let expected =
            format!("num_key_value_heads is {heads}, which {ranks} ranks do not divide; expected {legal} ranks");
        for of_rank in of_ranks {
            let text = of_rank.expect_err("an error");
            assert!(text.contains(&expected), "{text}");
        }
    }
    Ok(())
}

/// A process, which ends with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ranks that are processes: one is killed in the middle of its steps, and what looks after them tells the others, which end with an error.
fn killed(_: &Device) -> Result<()> {
    if let [Some(rank), Some(ranks), Some(id)] = OF_RANK.map(|name| std::env::var(name).ok()) {
        let number = |text: &str| text.parse().map_err(Error::wrap);
        let bytes: Vec<u8> = id.split(',').map(|byte| byte.parse().map_err(Error::wrap)).collect::<Result<_>>()?;
        let id = Id::from_bytes(bytes.try_into().map_err(|_| Error::msg("an id of another length"))?);
        return at_work(number(&rank)?, number(&ranks)?, id);
    }
    for ranks in counts()? {
        let id = Id::new()?.to_bytes().map(|byte| byte.to_string()).join(",");
        let start = |rank: usize| -> Result<Process> {
            let values = [rank.to_string(), ranks.to_string(), id.clone()];
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--exact", KILLED, "--nocapture"]).envs(OF_RANK.into_iter().zip(values));
            Ok(Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
        };
        let mut processes = (0..ranks).map(start).collect::<Result<Vec<_>>>()?;
        let mut texts = Vec::new();
        for process in &mut processes {
            let mut lines = BufReader::new(process.0.stdout.take().expect("a pipe")).lines();
            while !lines.next().ok_or_else(|| Error::msg("a rank has ended before its steps"))??.contains(AT_WORK) {}
            texts.push(spawn(move || lines.map_while(std::io::Result::ok).collect::<Vec<_>>().join("\n")));
        }
        drop(processes.pop());
        let began = Instant::now();
        for process in &mut processes {
            drop(process.0.stdin.take()); // the end of its input
        }
        for (rank, (process, text)) in processes.iter_mut().zip(texts).enumerate() {
            while process.0.try_wait()?.is_none() && began.elapsed() < END {
                std::thread::sleep(Duration::from_millis(20));
            }
            let status = process.0.try_wait()?;
            process.0.kill()?;
            let text = text.join().expect("a thread that reads");
            let is_told = text.contains(&format!("rank {rank}: the group was aborted"));
            assert!(status.is_some_and(|status| !status.success()) && is_told, "rank {rank}: {status:?}\n{text}");
        }
        println!("{ranks} ranks, one killed: the others ended after {:.1} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

const AT_WORK: &str = "steps run";

/// A rank that chooses tokens until the end of its input.
fn at_work(rank: usize, ranks: usize, id: Id) -> Result<()> {
    let device = Device::new_cuda(rank)?;
    let group = Group::cards(&device, rank, ranks, id)?;
    let aborts = group.clone();
    spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        aborts.abort();
    });
    let config = Config { heads: 16, kv_heads: 8, ..steps::config("llama", "")? };
    let decoder = load(&config, file_of(&weights(&config, 17)?)?, &group, ExpertSplit::Auto, &device)?;
    let mut cache = prompted(&decoder, 1, 64)?;
    let tokens = cache.tokens(0)?.len();
    for round in 0.. {
        let mut step = decoder.step(&mut cache, Sampler::greedy())?;
        for _ in 0..40 {
            step.next()?;
        }
        cache.truncate(0, tokens)?;
        if round == 0 {
            println!("{AT_WORK}");
        }
    }
    Ok(())
}
