//! Products into tensors that exist, and merged layers, on the GPU: the bits of `forward`, no allocation, and captured graphs.

#[path = "../support/merged.rs"]
mod merged;
#[path = "../support/into.rs"]
pub(crate) mod products;

use crate::device::Gpu;
use crate::replayed::as_launched;
use crate::Test;
use candle::quantized::{GgmlDType, QTensor};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::internal::blocks::ggml_type;
use candle_tilegemm::nn::moe::{self, FusedMoe};
use candle_tilegemm::nn::{
    GateFunction, GatedMlp, GatedMlpWorkspace, Linear, MergedLinear, QLinear, QWeights, QkvLinear,
};
use candle_tilegemm::{Activation, Format, Gemm};
use products::{exact, randn};
use std::sync::Arc;

type Check = fn(&Device) -> Result<()>;

pub fn tests() -> Vec<(String, Test)> {
    let checks: [(&str, Check); 11] = [
        ("into_dense", products::dense),
        ("into_batches_and_types", products::of_other_kinds),
        ("into_of_blocks", products::quantised),
        ("into_experts", products::experts),
        ("into_refusals", products::refusals),
        ("merged_feed_forward", merged::mlps),
        ("merged_blocks", merged::of_blocks),
        ("merged_names", merged::of_names),
        ("merged_refusals", merged::refusals),
        ("merged_side_by_side", side_by_side),
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

/// Products of several formats that run side by side read what those before have written, over what those have read: the bits of products for each of which the
/// host waits.
fn side_by_side(device: &Device) -> Result<()> {
    use Format::{IQ4_NL, IQ4_XS, MXFP4, Q4K, Q4_0, Q6K, Q8_0};
    const COLUMNS: [usize; 3] = [640, 256, 128];
    // A graph is held to two runs on end: 60 links, each up to four times as large as what it multiplies, end below 2^121.
    const LINKS: usize = 30;
    let hidden: usize = COLUMNS.iter().sum();
    for formats in [
        [Q4K, Q4K, Q6K],
        [Q6K, Q4K, Q4K],
        [Q4K, Q6K, Q8_0],
        [Q8_0, Q4_0, Q4_0],
        [MXFP4, IQ4_NL, IQ4_XS],
        [IQ4_XS, MXFP4, MXFP4],
    ] {
        // Sums of as many products are as large as what they multiply, or up to four times as large.
        let weight = |i: usize| -> Result<QWeights> {
            let shape = (COLUMNS[i], hidden);
            let numbers = Tensor::randn(0f32, (hidden as f32).sqrt().recip(), shape, &Device::Cpu)?;
            match ggml_type(formats[i]) {
                Some(format) => Ok(QTensor::quantize_onto(&numbers, format, device)?.into()),
                None => {
                    let blocks = products::drawn::blocks(formats[i], COLUMNS[i] * hidden, i as u64);
                    QWeights::from_bytes(formats[i], blocks, shape, device)
                }
            }
        };
        let weights = [weight(0)?, weight(1)?, weight(2)?];
        let all = QkvLinear::from_qtensors(weights.clone(), None)?;
        // One product each, as in `all`.
        let mut apart: Vec<(usize, MergedLinear)> = Vec::new();
        for same in [0, 1, 2].chunk_by(|i, j| formats[*i] == formats[*j]) {
            let layers =
                same.iter().map(|i| QLinear::from_blocks(weights[*i].clone(), None)).collect::<Result<Vec<_>>>()?;
            apart.push((COLUMNS[..same[0]].iter().sum(), MergedLinear::new(layers)?));
        }
        for (rows, dtype) in [(1, DType::F32), (2, DType::F32), (8, DType::BF16), (16, DType::F32), (40, DType::F32)] {
            let start = randn(&[rows, hidden], dtype, device)?;
            let [x, y] = [start.copy()?, start.copy()?];
            let ends = [[&x, &y], [&y, &x]];
            for link in 0..LINKS {
                let [from, to] = ends[link % 2];
                for (at, layer) in &apart {
                    layer.forward_into(from, &to.narrow(1, *at, layer.columns())?)?;
                    device.synchronize()?;
                }
            }
            let expected = exact(&x)?;
            let reset = || x.slice_set(&start, 0, 0);
            let run = || (0..LINKS).try_for_each(|link| all.forward_into(ends[link % 2][0], ends[link % 2][1]));
            let what = format!("{formats:?}, {rows} rows");
            let state = || {
                let got = exact(&x)?;
                if got.iter().all(|x| *x == 0.0) || got.iter().any(|x| !x.is_finite()) {
                    bail!("{what}: no numbers");
                }
                Ok(got)
            };
            reset()?;
            run()?;
            let other = state()?.iter().zip(&expected).filter(|(x, y)| x != y).count();
            if other > 0 {
                bail!("{what}: {other} numbers are not those of products apart");
            }
            as_launched(device, &what, reset, run, state)?;
        }
    }
    Ok(())
}
