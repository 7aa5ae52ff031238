//! Attention with sinks that are no ordinary numbers, and those that are refused.

use super::{close, exact, filled, ints, randn, Shape};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::attention::{self, KvCache, Settings, Workspace};

/// A sink for each head: among the scores, above them, below them, and none.
pub fn of_heads(heads: usize, device: &Device) -> Result<Tensor> {
    let sinks = [0.5f32, 4.0, -30.0, f32::NEG_INFINITY, 20.0, -1.0];
    Tensor::from_iter((0..heads).map(|h| sinks[h % sinks.len()]), &Device::Cpu)?.to_device(device)
}

/// Attention in steps, of lengths from 0 on and a row of padding, or of prompts: its result, and for each row whether it sees a key.
type Way = fn(&Tensor, &KvCache, &Settings, &Workspace) -> Result<(Tensor, [bool; 5])>;

const LENGTHS: [i32; 5] = [0, 1, 2, 290, 9];

fn decode(q: &Tensor, cache: &KvCache, settings: &Settings, workspace: &Workspace) -> Result<(Tensor, [bool; 5])> {
    let lists = [ints(&LENGTHS, q.device())?, ints(&[0, 1, 2, 0, -1], q.device())?];
    let out = attention::decode(q, cache, &lists[0], Some(&lists[1]), settings, workspace)?;
    Ok((out, [false, true, true, true, false]))
}

fn prefill(q: &Tensor, cache: &KvCache, settings: &Settings, workspace: &Workspace) -> Result<(Tensor, [bool; 5])> {
    Ok((attention::prefill(q, cache, 1, 0, settings, workspace)?, [true; 5]))
}

fn prefill_late(
    q: &Tensor,
    cache: &KvCache,
    settings: &Settings,
    workspace: &Workspace,
) -> Result<(Tensor, [bool; 5])> {
    let past = cache.sizes()[2] - 5;
    Ok((attention::prefill(q, cache, 1, past, settings, workspace)?, [true; 5]))
}

/// A sink of -inf is none, to the bit; one of inf leaves zeros, and one of NaN gives NaN, each of its head alone.
pub fn special(device: &Device, shape: Shape) -> Result<()> {
    let Shape { heads, head, dtype, .. } = shape;
    let (q, cache) = (randn(&[5, heads, head], dtype, device)?, filled(device, shape, 3)?);
    let workspace = Workspace::new(5, heads, head, device)?;
    let ways: &[Way] = if shape.cache == dtype { &[decode, prefill, prefill_late] } else { &[decode] };
    for (i, way) in ways.iter().enumerate() {
        for window in [0, 3] {
            let what = format!("{shape:?}, way {i}, window {window}");
            let settings = Settings::new(head).with_window(window);
            let (plain, sees) = way(&q, &cache, &settings, &workspace)?;
            let plain = exact(&plain)?;
            for (sink, of_sink) in [(f32::NEG_INFINITY, None), (f32::INFINITY, Some(0.0)), (f32::NAN, Some(f64::NAN))] {
                // Of every other head.
                let sinks = (0..heads).map(|h| if h % 2 == 0 { sink } else { f32::NEG_INFINITY });
                let sinks = Tensor::from_iter(sinks, &Device::Cpu)?.to_device(device)?;
                let (got, _) = way(&q, &cache, &settings.clone().with_sinks(sinks), &workspace)?;
                let of = |i: usize| match of_sink
                    .filter(|_| (i / head % heads).is_multiple_of(2) && sees[i / head / heads])
                {
                    Some(number) => number,
                    None => plain[i],
                };
                let expected: Vec<f64> = (0..plain.len()).map(of).collect();
                close(&format!("{what}, sink {sink}"), &got, &expected, |_| 0.0)?;
            }
        }
    }
    Ok(())
}

/// Sinks of another number, type or device than the heads of q.
pub fn refused(device: &Device) -> Result<()> {
    let cache = KvCache::new(1, 1, 4, 64, if device.is_cpu() { DType::F32 } else { DType::BF16 }, device)?;
    let (q, workspace) = (randn(&[1, 2, 64], cache.dtype(), device)?, Workspace::new(1, 2, 64, device)?);
    let mut wrong = vec![Tensor::zeros(3, DType::F32, device)?, Tensor::zeros(2, DType::F16, device)?];
    if !device.is_cpu() {
        wrong.push(Tensor::zeros(2, DType::F32, &Device::Cpu)?);
    }
    for sinks in wrong {
        let settings = Settings::new(64).with_sinks(sinks.clone());
        let results = [
            attention::prefill(&q, &cache, 0, 0, &settings, &workspace),
            attention::decode(&q, &cache, &ints(&[1], device)?, None, &settings, &workspace),
        ];
        for result in results {
            match result {
                Err(error) if error.to_string().contains("the sinks") => {}
                Err(error) => bail!("{sinks}: {error}"),
                Ok(_) => bail!("{sinks} is taken"),
            }
        }
    }
    Ok(())
}
