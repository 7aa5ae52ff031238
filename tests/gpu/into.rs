//! Products into tensors that exist, and merged layers, on the GPU: the bits of `forward`, no allocation, and captured graphs.

#[path = "../support/merged.rs"]
mod merged;
#[path = "../support/into.rs"]
mod products;

use crate::device::{most_used, Gpu};
use crate::Test;
use candle::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle::quantized::{GgmlDType, QTensor};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::moe::{self, FusedMoe};
use candle_tilegemm::nn::{GateFunction, GatedMlp, GatedMlpWorkspace, Linear, QLinear, QkvLinear};
use candle_tilegemm::{Activation, Gemm};
use products::{exact, randn};
use std::sync::Arc;

type Check = fn(&Device) -> Result<()>;

pub fn tests() -> Vec<(String, Test)> {
    let checks: [(&str, Check); 10] = [
        ("into_dense", products::dense),
        ("into_batches_and_types", products::of_other_kinds),
        ("into_of_blocks", products::quantised),
        ("into_experts", products::experts),
        ("into_refusals", products::refusals),
        ("merged_feed_forward", merged::mlps),
        ("merged_blocks", merged::of_blocks),
        ("merged_names", merged::of_names),
        ("merged_refusals", merged::refusals),
        ("into_in_a_graph", in_graphs),
    ];
    let test = |(name, check): (&str, Check)| -> (String, Test) {
        let run = move |gpu: &Gpu| check(&Device::Cuda(gpu.device.clone())).map_err(|error| error.to_string());
        (name.into(), Box::new(run))
    };
    checks.map(test).into_iter().collect()
}

/// A layer's products, dense, in blocks and with experts, into tensors that exist.
struct Step {
    rows: usize,
    x: Tensor,
    h: Tensor,
    qkv: [Tensor; 2],
    logits: Tensor,
    dense: Linear,
    blocks: QLinear,
    merged: [QkvLinear; 2],
    mlps: [(GatedMlp, GatedMlpWorkspace); 2],
    experts: (FusedMoe, moe::Workspace),
    start: Tensor,
}

impl Step {
    fn new(rows: usize, device: &Device) -> Result<Self> {
        const HIDDEN: usize = 512;
        let bf16 = |shape: &[usize]| randn(shape, DType::BF16, device)?.affine(0.05, 0.0);
        let linear = |n: usize, k: usize| -> Result<Linear> { Ok(Linear::new(bf16(&[n, k])?, Some(bf16(&[n])?))) };
        let blocks = |n: usize, k: usize, format: GgmlDType| -> Result<Arc<QTensor>> {
            Ok(QTensor::quantize_onto(&Tensor::randn(0f32, 0.05f32, (n, k), &Device::Cpu)?, format, device)?.into())
        };
        use GgmlDType::{Q4K, Q6K};
        let plain = |n: usize, k: usize| -> Result<Linear> { Ok(Linear::new(bf16(&[n, k])?, None)) };
        let mlp = GatedMlp::new(plain(2 * 1024, HIDDEN)?, plain(HIDDEN, 1024)?, GateFunction::SwiGlu)?;
        let weights = [blocks(1024, HIDDEN, Q4K)?, blocks(1024, HIDDEN, Q4K)?, blocks(HIDDEN, 1024, Q6K)?];
        let of_blocks = GatedMlp::from_qtensors(weights, GateFunction::GeGluTanh)?;
        let qkv = [blocks(HIDDEN, HIDDEN, Q4K)?, blocks(128, HIDDEN, Q4K)?, blocks(128, HIDDEN, Q6K)?];
        let experts = products::layer_of_experts(DType::BF16, [HIDDEN, 256], device)?;
        Ok(Self {
            rows,
            x: bf16(&[rows, HIDDEN])?,
            h: bf16(&[rows, HIDDEN])?,
            qkv: [bf16(&[rows, 768])?, bf16(&[rows, 768])?],
            logits: randn(&[rows, 1000], DType::F32, device)?,
            dense: linear(HIDDEN, HIDDEN)?.with_activation(Activation::Silu),
            blocks: QLinear::from_arc(blocks(HIDDEN, HIDDEN, Q4K)?, None)?,
            merged: [
                QkvLinear::new([linear(HIDDEN, HIDDEN)?, linear(128, HIDDEN)?, linear(128, HIDDEN)?])?,
                QkvLinear::from_qtensors(qkv, None)?,
            ],
            mlps: [
                (mlp.clone(), mlp.workspace(rows, DType::BF16)?),
                (of_blocks.clone(), of_blocks.workspace(rows, DType::BF16)?),
            ],
            experts: (experts.clone(), experts.workspace(rows)?),
            start: bf16(&[rows, HIDDEN])?,
        })
    }

    fn run(&self) -> Result<()> {
        let Self { x, h, .. } = self;
        for (layer, qkv) in self.merged.iter().zip(&self.qkv) {
            layer.forward_into(x, qkv)?;
        }
        self.dense.forward_into(&self.qkv[0].narrow(1, 256, 512)?, h)?;
        self.dense.forward_residual_into(h, x, x)?;
        self.blocks.forward_residual_into(h, x, x)?;
        for (mlp, workspace) in &self.mlps {
            mlp.forward_residual_into(x, h, workspace, h)?;
        }
        let (experts, workspace) = &self.experts;
        experts.forward_residual_into(h, x, workspace, x)?;
        let head = self.dense.weight().t()?;
        Gemm::new().out_dtype(DType::F32).forward_into(x, &head, &self.logits.narrow(1, 0, 512)?)
    }

    fn state(&self) -> Result<Vec<f64>> {
        let mut all = exact(&self.logits)?;
        for tensor in [&self.x, &self.h, &self.qkv[0], &self.qkv[1]] {
            all.extend(exact(tensor)?);
        }
        Ok(all)
    }

    fn reset(&self) -> Result<()> {
        self.x.slice_set(&self.start, 0, 0)
    }
}

/// A graph of all products, captured in each mode, gives the bits of the launches one by one, twice; and the launches allocate nothing.
fn in_graphs(device: &Device) -> Result<()> {
    const FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let Device::Cuda(cuda) = device else { bail!("a graph is for a GPU") };
    candle_tilegemm::prepare(device)?;
    let wrap = |error| candle::Error::wrap(error);
    let stream = cuda.cuda_stream();
    for step in [Step::new(1, device)?, Step::new(5, device)?, Step::new(32, device)?, Step::new(200, device)?] {
        step.reset()?;
        device.synchronize()?;
        most_used()?;
        let before = most_used()?;
        step.run()?;
        step.run()?;
        device.synchronize()?;
        if most_used()? != before {
            bail!("the launches with {} rows allocate", step.rows);
        }
        let expected = step.state()?;
        if expected.iter().any(|x| !x.is_finite()) {
            bail!("{} rows: a result is no number", step.rows);
        }
        for mode in [
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        ] {
            step.reset()?;
            device.synchronize()?;
            stream.begin_capture(mode).map_err(wrap)?;
            let launched = step.run();
            let graph = stream.end_capture(FLAGS).map_err(wrap);
            launched?;
            let Some(graph) = graph? else { bail!("nothing was captured") };
            graph.launch().map_err(wrap)?;
            graph.launch().map_err(wrap)?;
            device.synchronize()?;
            let got = step.state()?;
            let other = got.iter().zip(&expected).filter(|(x, y)| x != y).count();
            if got.len() != expected.len() || other > 0 {
                bail!("{} rows, {mode:?}: {other} of {} numbers differ", step.rows, got.len());
            }
        }
    }
    Ok(())
}
