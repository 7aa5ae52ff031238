//! Decoders of GGUF files that several ranks compute, as threads on the CPU, against the whole decoders of the same files.

use crate::common::gguf::files::Counting;
use crate::common::gguf::{config, file, file_elsewhere, LLAMA3};
use crate::common::ranks::{agree, bits, has_whole_experts, on_ranks, run};
use crate::common::{difference, error, Random};
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::gguf::GgufFile;
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm_models::{Cache, Config, Decoder, ExpertSplit, Experts, Split};
use std::io::Cursor;

/// What flips of activations' roundings to 8 bits may change of the logits, over the largest: three times what was measured, 0.0068. By arithmetic: a flip is a
/// step of 1 / 127 of its block's largest number, some 2.1 deviations; in a sum of 256 products that is 2.1 / 127 / sqrt(256) = 0.1 %, and later products flip
/// others. Where nothing flips, the logits are 2.5e-7 apart.
const FLIPS: f32 = 0.02;

/// Sizes of which 2 and 4 ranks have whole blocks, also of 256 numbers.
fn sizes(arch: &str, tied: bool) -> Result<Config> {
    Ok(Config { heads: 16, kv_heads: 4, feed_forward: 1024, ..config(arch, tied)? })
}

fn load(file: &[u8], group: &Group) -> Result<Decoder> {
    let mut reader = Cursor::new(file);
    let gguf = GgufFile::read(&mut reader)?;
    Decoder::from_gguf_rank(&gguf, group, &mut reader, DType::F32, &Device::Cpu)
}

fn load_whole_experts(file: &[u8], split: Split) -> Result<Decoder> {
    let mut reader = Cursor::new(file);
    let gguf = GgufFile::read(&mut reader)?;
    let decoder = Decoder::from_gguf_rank(&gguf, split, &mut reader, DType::F32, &Device::Cpu)?;
    assert!(has_whole_experts(&decoder, &Config::from_gguf_file(&gguf)?));
    Ok(decoder)
}

/// Eight experts, of which 2 and 4 ranks have some, with 64 inner numbers, of which four ranks have half a block.
fn moe() -> Result<Config> {
    let config = sizes("qwen3moe", false)?;
    let experts = config.experts.clone().map(|experts| Experts { count: 8, feed_forward: 64, ..experts });
    Ok(Config { experts, ..config })
}

/// On two ranks with whole experts by choice, and on four as given.
fn agrees_by_expert(file: &[u8], on_four: ExpertSplit) -> Result<()> {
    let whole = on_ranks(1, |group| run(load(file, group)?))?.remove(0)?;
    [(2, ExpertSplit::Whole), (4, on_four)].into_iter().try_for_each(|(ranks, experts)| {
        agree(&whole, ranks, |group| load_whole_experts(file, Split::from(group).with_experts(experts)))
    })
}

fn agrees(file: &[u8]) -> Result<()> {
    let whole = on_ranks(1, |group| run(load(file, group)?))?.remove(0)?;
    [2, 4].into_iter().try_for_each(|ranks| agree(&whole, ranks, |group| load(file, group)))
}

/// Logits of a prompt, whose products round activations to 8 bits.
///
/// A rank has whole blocks of K, and rounds the same activations to the same bits. Ranks change the order of sums in f32 alone; where these lie near the middle
/// of two steps of 8 bits, the next product rounds them to the other one.
fn flips(file: &[u8]) -> Result<()> {
    let logits = |group: &Group| {
        let decoder = load(file, group)?;
        let tokens = Random(9).tokens(12, decoder.config().vocabulary);
        decoder.prefill(0, &tokens, &mut Cache::new(&decoder, 1)?)
    };
    let whole = on_ranks(1, logits)?.remove(0)?;
    for ranks in [2, 4] {
        let all: Vec<Tensor> = on_ranks(ranks, logits)?.into_iter().collect::<Result<_>>()?;
        let (apart, first) = (difference(&all[0], &whole)?, bits(&all[..1])?);
        println!("8 bits, {ranks} ranks: {apart:e}");
        assert!(apart < FLIPS, "{ranks} ranks: {apart:e}");
        assert!(all.iter().all(|logits| bits(std::slice::from_ref(logits)).unwrap() == first), "{ranks} ranks");
    }
    Ok(())
}

/// One test, as the variable is the process's: with it candle's products take dequantised weights, and do not round activations to 8 bits.
#[test]
fn ranks_agree_with_the_whole() -> Result<()> {
    let bytes = |config: &Config, arch: &str, mixed: bool| Ok::<_, candle::Error>(file(config, arch, mixed, &[])?.0);
    for arch in ["llama", "qwen3moe"] {
        flips(bytes(&sizes(arch, false)?, arch, true)?.get_ref())?;
    }
    std::env::set_var("CANDLE_DEQUANTIZE_ALL", "1");
    for mixed in [true, false] {
        agrees(bytes(&sizes("llama", false)?, "llama", mixed)?.get_ref())?;
        let scaled = Config { rope_scaling: Some(LLAMA3), ..sizes("llama", true)? };
        agrees(bytes(&scaled, "llama", mixed)?.get_ref())?;
        // Biases of q, k and v by ranks, and one after attention that counts once.
        let biased = Config { o_bias: true, ..sizes("qwen2", false)? };
        assert!(biased.qkv_bias);
        agrees(bytes(&biased, "qwen2", mixed)?.get_ref())?;
        agrees(bytes(&sizes("qwen3moe", false)?, "qwen3moe", mixed)?.get_ref())?;
    }
    agrees_by_expert(bytes(&moe()?, "qwen3moe", true)?.get_ref(), ExpertSplit::Auto)?;
    agrees_by_expert(bytes(&moe()?, "qwen3moe", false)?.get_ref(), ExpertSplit::Whole)
}

/// candle's products of these take dequantised weights.
#[test]
fn ranks_agree_in_formats_that_candle_does_not_have() -> Result<()> {
    for (arch, tied) in [("qwen2", false), ("qwen3", true), ("qwen3moe", false)] {
        agrees(file_elsewhere(&sizes(arch, tied)?, arch)?.0.get_ref())?;
    }
    agrees_by_expert(file_elsewhere(&moe()?, "qwen3moe")?.0.get_ref(), ExpertSplit::Auto)
}

#[test]
fn a_rank_reads_its_part() -> Result<()> {
    let of_inner = ExpertSplit::Inner;
    for (config, arch, mixed, experts) in [
        (sizes("llama", false)?, "llama", true, of_inner),
        (sizes("qwen3moe", false)?, "qwen3moe", false, of_inner),
        (moe()?, "qwen3moe", true, ExpertSplit::Whole),
    ] {
        let (bytes, _) = file(&config, arch, mixed, &[])?;
        let (file, all) = (bytes.get_ref(), bytes.get_ref().len());
        let given = on_ranks(4, |group| {
            let mut reader = Counting { reader: Cursor::new(file), given: 0 };
            let gguf = GgufFile::read(&mut reader)?;
            reader.given = 0;
            let split = Split::from(group).with_experts(experts);
            Decoder::from_gguf_rank(&gguf, split, &mut reader, DType::F32, &Device::Cpu)?;
            Ok(reader.given)
        })?;
        // Norms and routers, in f32, are whole on each rank.
        let norms = (2 * config.layers + 1) * config.hidden + 2 * config.layers * config.head_size;
        let routers = config.experts.map_or(0, |experts| config.layers * experts.count * config.hidden);
        for given in given {
            let given = given?;
            assert!(given <= all / 4 + (norms + routers) * 4, "{arch}: {given} bytes of {all}");
        }
    }
    Ok(())
}

#[track_caller]
fn refuses(config: &Config, ranks: usize, expected: &str) {
    let (bytes, _) = file(config, "llama", true, &[]).unwrap();
    let all = on_ranks(ranks, |group| load(bytes.get_ref(), group).map(drop)).unwrap();
    for (rank, of_rank) in all.into_iter().enumerate() {
        let text = error(of_rank);
        assert!(text.contains(expected), "rank {rank}: {text}");
    }
}

#[test]
fn sizes_that_ranks_do_not_divide_are_errors() -> Result<()> {
    let llama = sizes("llama", false)?;
    refuses(&llama, 8, "num_key_value_heads is 4, which 8 ranks do not divide; expected 1, 2, 4 ranks");
    let cut = "of the tensor blk.0.attn_output.weight cut a block, of 256 numbers in q5k; expected multiples of 256";
    refuses(&Config { heads: 8, ..llama.clone() }, 4, cut);
    let cut = "of the tensor blk.0.ffn_down.weight cut a block, of 32 numbers in q4_1; expected multiples of 32";
    refuses(&Config { feed_forward: 96, ..llama.clone() }, 2, cut);
    let cut = "of the tensor token_embd.weight cut a block, of 32 numbers in q8_0; expected multiples of 32";
    refuses(&Config { kv_heads: 16, ..llama }, 16, cut);
    Ok(())
}
