//! Products into tensors that exist, and merged layers, on the GPU: the bits of `forward`, no allocation, and captured graphs.

#[path = "../support/merged.rs"]
mod merged;
#[path = "../support/into.rs"]
mod products;

use crate::device::Gpu;
use crate::replayed::as_launched;
use crate::Test;
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
    candle_tilegemm::prepare(device)?;
    for rows in [1, 5, 32, 200] {
        let step = Step::new(rows, device)?;
        let state = || {
            let state = step.state()?;
            match state.iter().all(|x| x.is_finite()) {
                true => Ok(state),
                false => bail!("{rows} rows: a result is no number"),
            }
        };
        as_launched(device, &format!("{rows} rows"), || step.reset(), || step.run(), state)?;
    }
    Ok(())
}
