//! Captures: those that fail, other streams, memory.

use crate::common::gguf;
use crate::common::steps::{config, decoder_of, expect_graphs, outcome, prompted, steps, Check};
use crate::replay::Replay;
use candle::cuda_backend::cudarc::driver::{result, sys, DriverError};
use candle::quantized::gguf_file::Content;
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm_models::{Decoder, Sampler};
use std::cell::Cell;
use std::ffi::c_void;

pub const CHECKS: [(&str, Check); 4] = [
    ("a_capture_that_fails_runs_one_by_one", failing),
    ("work_is_captured_at_the_second_launch", second),
    ("a_stream_of_its_own", own_stream),
    ("a_graph_allocates_nothing", memory),
];

fn is_capturing(device: &Device) -> Result<bool> {
    let Device::Cuda(device) = device else { bail!("not a GPU") };
    let status = device.cuda_stream().capture_status().map_err(candle::Error::wrap)?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Work that waits for the device, which no capture takes: it runs all the same, each time, and is tried once.
fn failing(device: &Device) -> Result<()> {
    let (sum, one) = (Tensor::zeros(1, DType::F32, device)?, Tensor::ones(1, DType::F32, device)?);
    let (captures, runs) = (Cell::new(0), Cell::new(0));
    let work = || {
        let count = if is_capturing(device)? { &captures } else { &runs };
        count.set(count.get() + 1);
        let next = (&sum + &one)?;
        device.synchronize()?;
        sum.slice_set(&next, 0, 0)
    };
    let mut replay = Replay::new(true, device);
    for run in 1..=5 {
        replay.launch(device, work)?;
        assert_eq!((captures.get(), runs.get(), replay.is_captured()), (i32::from(run > 1), run, false));
        assert!(!is_capturing(device)?);
        assert_eq!(sum.to_vec1::<f32>()?, [run as f32]);
    }
    Ok(())
}

fn second(device: &Device) -> Result<()> {
    let (sum, one) = (Tensor::zeros(1, DType::F32, device)?, Tensor::ones(1, DType::F32, device)?);
    let calls = Cell::new(0);
    let work = || {
        calls.set(calls.get() + 1);
        sum.slice_set(&(&sum + &one)?, 0, 0)
    };
    for (captures, expected) in [(true, [1, 2, 2, 2]), (false, [3, 4, 5, 6])] {
        let mut replay = Replay::new(captures, device);
        for (run, expected) in expected.into_iter().enumerate() {
            replay.launch(device, work)?;
            assert_eq!((calls.get(), replay.is_captured()), (expected, captures && run > 0));
        }
    }
    assert_eq!(sum.to_vec1::<f32>()?, [8.0]);
    Ok(())
}

/// On a stream of its own candle records an event behind each use of a tensor.
fn own_stream(device: &Device) -> Result<()> {
    let config = config("llama", "")?;
    let run = |device: &Device| {
        let decoder = decoder_of(&config, 41, device)?;
        let mut cache = prompted(&decoder, 3, 32)?;
        steps(&decoder, &mut cache, Sampler::greedy(), 7)?;
        expect_graphs(&cache, device, 1)?;
        outcome(&decoder, &mut cache)
    };
    let expected = run(device)?;
    assert_eq!(run(&Device::new_cuda_with_stream(0)?)?, expected);
    Ok(())
}

/// The bytes that graphs of the device have for tensors that they allocate themselves.
fn bytes_of_graphs() -> Result<u64> {
    let mut bytes = 0u64;
    let attribute = sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
    let device = result::device::get(0).map_err(candle::Error::wrap)?;
    // SAFETY: the attribute is a number of 64 bits.
    let status = unsafe { sys::cuDeviceGetGraphMemAttribute(device, attribute, (&raw mut bytes).cast::<c_void>()) };
    status.result().map_err(|error: DriverError| candle::Error::wrap(error))?;
    Ok(bytes)
}

fn memory(device: &Device) -> Result<()> {
    let before = bytes_of_graphs()?;
    let llama = config("llama", "")?;
    let file = |arch: &str| {
        let (mut bytes, _) = gguf::file(&gguf::config(arch, true)?, arch, true, &[])?;
        Decoder::from_gguf(&Content::read(&mut bytes)?, &mut bytes, device)
    };
    let moe = r#", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": true"#;
    let experts = decoder_of(&config("qwen3_moe", moe)?, 41, device)?;
    for (what, decoder) in [
        ("llama", decoder_of(&llama, 41, device)?),
        ("a file", file("llama")?),
        ("its experts", file("qwen3moe")?),
        ("experts", experts),
        ("gpt_oss", crate::gpt_oss::decoder(2, DType::BF16, device)?),
    ] {
        let mut cache = prompted(&decoder, 9, 64)?;
        steps(&decoder, &mut cache, Sampler::greedy(), 7)?;
        expect_graphs(&cache, device, 1)?;
        device.synchronize()?;
        assert_eq!(bytes_of_graphs()?, before, "{what}");
    }
    Ok(())
}
