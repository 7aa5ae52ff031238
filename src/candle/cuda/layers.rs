//! The blocks of a layer on a GPU: tensors to arguments, and the launch.

use super::places::{with, Use};
use crate::candle::nn::attention::{Append, Decode, KvCache, Prefill, Workspace};
use crate::candle::nn::Next;
use crate::candle::qweights::QWeights;
use crate::candle::tensors::Rows as Matrix;
use crate::layer::{self, Cache, GateFunction, Rows};
use crate::problem::Format;
use ::candle::cuda_backend::WrapErr;
use ::candle::{bail, CudaDevice, DType, Result, Tensor};
use std::ffi::c_void;
use Use::{Read, Write};

fn format(dtype: DType) -> Format {
    match dtype {
        DType::F16 => Format::F16,
        DType::BF16 => Format::BF16,
        DType::F8E4M3 => Format::F8E4M3,
        _ => Format::F32,
    }
}

fn rows(of: Matrix, at: *mut c_void) -> Rows {
    Rows::new(at, of.stride as i64)
}

pub(in crate::candle) fn rms_norm(
    device: &CudaDevice,
    x: Matrix,
    adds: Option<(Matrix, Matrix)>,
    weight: &Tensor,
    out: Matrix,
    eps: f32,
) -> Result<()> {
    let (residual, sum) = adds.unzip();
    let tensors = [
        Read(Some(x.tensor)),
        Read(residual.map(|r| r.tensor)),
        Read(Some(weight)),
        Write(sum.map(|s| s.tensor)),
        Write(Some(out.tensor)),
    ];
    with(device, tensors, |[at_x, at_residual, weight, at_sum, at_y], stream| {
        let norm = layer::RmsNorm {
            x: rows(x, at_x),
            residual: residual.map_or(Rows::NONE, |residual| rows(residual, at_residual)),
            weight,
            sum: sum.map_or(Rows::NONE, |sum| rows(sum, at_sum)),
            y: rows(out, at_y),
            rows: x.rows,
            columns: x.columns,
            eps,
            format: format(x.tensor.dtype()),
            y_format: format(out.tensor.dtype()),
        };
        // SAFETY: the block has checked the shapes, and `with` holds the storage.
        unsafe { norm.launch(stream) }
    })
}

pub(in crate::candle) fn embedding(
    device: &CudaDevice,
    tokens: &Tensor,
    table: &Tensor,
    out: &Tensor,
    error: Option<&Tensor>,
) -> Result<()> {
    let (vocabulary, columns) = table.dims2()?;
    let tensors = [Read(Some(tokens)), Read(Some(table)), Write(Some(out)), Write(error)];
    with(device, tensors, |[at_tokens, at_table, out, error], stream| {
        let embedding = layer::Embedding {
            tokens: at_tokens.cast(),
            table: at_table,
            out,
            error: error.cast(),
            count: tokens.elem_count(),
            vocabulary,
            columns,
            format: format(table.dtype()),
            table_format: format(table.dtype()),
        };
        // SAFETY: as in `rms_norm`.
        unsafe { embedding.launch(stream) }
    })
}

/// The same of a table in blocks, of the format `blocks`.
pub(in crate::candle) fn embedding_of_blocks(
    device: &CudaDevice,
    tokens: &Tensor,
    (table, blocks): (&QWeights, Format),
    out: &Tensor,
    error: Option<&Tensor>,
) -> Result<()> {
    let (vocabulary, columns) = table.shape().dims2()?;
    let stream = device.cuda_stream();
    let held = table.as_qtensor().map(|table| table.device_ptr_with_guard(&stream)).transpose()?;
    let tensors = [Read(Some(tokens)), Read(table.bytes()), Write(Some(out)), Write(error)];
    with(device, tensors, |[at_tokens, bytes, at_out, error], stream| {
        let embedding = layer::Embedding {
            tokens: at_tokens.cast(),
            table: held.as_ref().map_or(bytes, |(table, _)| table.cast_mut().cast()),
            out: at_out,
            error: error.cast(),
            count: tokens.elem_count(),
            vocabulary,
            columns,
            format: format(out.dtype()),
            table_format: blocks,
        };
        // SAFETY: as in `rms_norm`; `held` or `with` holds the blocks.
        unsafe { embedding.launch(stream) }
    })
}

/// Rows of x with the columns of a list, dense in u32, as many as the result has.
pub(in crate::candle) fn gather(device: &CudaDevice, x: Matrix, columns: &Tensor, out: Matrix) -> Result<()> {
    let tensors = [Read(Some(x.tensor)), Read(Some(columns)), Write(Some(out.tensor))];
    with(device, tensors, |[at_x, at_columns, at_out], stream| {
        let gather = layer::Gather {
            x: rows(x, at_x),
            columns: at_columns.cast_const().cast(),
            out: rows(out, at_out),
            rows: out.rows,
            width: x.columns,
            count: out.columns,
            format: format(out.tensor.dtype()),
        };
        // SAFETY: as in `rms_norm`.
        unsafe { gather.launch(stream) }
    })
}

/// Rows of x in codes of one byte, i8 or e4m3, whose rows are `codes`, with factors of blocks at these steps, or else of rows. With a gate, rows of x have both.
#[cfg(feature = "narrow")]
pub(in crate::candle) fn quantise(
    device: &CudaDevice,
    x: Matrix,
    gate: Option<GateFunction>,
    [codes, factors]: [&Tensor; 2],
    code_format: Format,
    block_step: Option<usize>,
) -> Result<()> {
    let codes_stride = codes.dims2()?.1 as i64;
    with(device, [Read(Some(x.tensor)), Write(Some(codes)), Write(Some(factors))], |[at_x, codes, factors], stream| {
        let quantise = layer::Quantise {
            x: rows(x, at_x),
            codes: Rows::new(codes, codes_stride),
            factors: factors.cast(),
            row_step: 1,
            block_step: block_step.unwrap_or(0) as i64,
            rows: x.rows,
            columns: if gate.is_some() { x.columns / 2 } else { x.columns },
            kind: if block_step.is_some() { layer::Factors::Blocks } else { layer::Factors::Rows },
            format: format(x.tensor.dtype()),
            code_format,
            gate,
        };
        // SAFETY: as in `rms_norm`.
        unsafe { quantise.launch(stream) }
    })
}

pub(in crate::candle) fn gate(
    device: &CudaDevice,
    x: Matrix,
    interleaved: bool,
    function: GateFunction,
    out: Matrix,
) -> Result<()> {
    with(device, [Read(Some(x.tensor)), Write(Some(out.tensor))], |[at_x, at_out], stream| {
        let gated = layer::Gated {
            x: rows(x, at_x),
            out: rows(out, at_out),
            rows: x.rows,
            columns: out.columns,
            interleaved,
            function,
            format: format(x.tensor.dtype()),
        };
        // SAFETY: as in `rms_norm`.
        unsafe { gated.launch(stream) }
    })
}

/// A cache at these addresses of K, V and their scales.
fn cache(of: &KvCache, [k, v, k_scale, v_scale]: [*mut c_void; 4]) -> Cache {
    let scales = [k_scale.cast(), v_scale.cast()];
    Cache { scales, ..Cache::new(k, v, format(of.dtype()), of.sizes()) }
}

/// The first rows of a slot of a cache in fp8, as numbers in tensors that exist.
pub(in crate::candle) fn widen(device: &CudaDevice, of: &KvCache, slot: usize, out: [&Tensor; 2]) -> Result<()> {
    let scales = of.scales();
    let tensors = [
        Read(Some(of.k())),
        Read(Some(of.v())),
        Read(scales.map(|scales| &scales[0])),
        Read(scales.map(|scales| &scales[1])),
        Write(Some(out[0])),
        Write(Some(out[1])),
    ];
    with(device, tensors, |[k, v, k_scale, v_scale, k_out, v_out], stream| {
        let widen = layer::Widen {
            cache: cache(of, [k, v, k_scale, v_scale]),
            slot,
            rows: out[0].dims()[2],
            out: [k_out, v_out],
            format: format(out[0].dtype()),
        };
        // SAFETY: as in `rms_norm`.
        unsafe { widen.launch(stream) }
    })
}

pub(in crate::candle) fn append(device: &CudaDevice, of: &Append) -> Result<()> {
    let scales = of.cache.scales();
    let norms = of.rope.norms();
    let tensors = [
        Read(Some(of.qkv.tensor)),
        Write(Some(of.q.tensor)),
        Write(Some(of.cache.k())),
        Write(Some(of.cache.v())),
        Write(scales.map(|scales| &scales[0])),
        Write(scales.map(|scales| &scales[1])),
        Read(Some(of.positions)),
        Read(of.slots),
        Read(of.rope.inv_freq()),
        Read(norms.map(|(weights, _)| &weights[0])),
        Read(norms.map(|(weights, _)| &weights[1])),
    ];
    with(device, tensors, |[qkv, q, k, v, k_scale, v_scale, positions, slots, inv_freq, q_norm, k_norm], stream| {
        let append = layer::Append {
            qkv: rows(of.qkv, qkv),
            q: rows(of.q, q),
            cache: cache(of.cache, [k, v, k_scale, v_scale]),
            positions: positions.cast(),
            slots: slots.cast(),
            rope: of.rope.style().map(|style| layer::Rope { style, inv_freq: inv_freq.cast() }),
            norms: [q_norm, k_norm].map(<*mut c_void>::cast_const),
            eps: norms.map_or(0.0, |(_, eps)| eps as f32),
            tokens: of.qkv.rows,
            heads: of.heads,
            format: format(of.qkv.tensor.dtype()),
        };
        // SAFETY: as in `rms_norm`.
        unsafe { append.launch(stream) }
    })
}

/// The memory of a workspace that is large enough for these sequences, heads, and numbers of a head.
fn memory(of: &Workspace, need: [usize; 3]) -> Result<&Tensor> {
    let ([sequences, heads, head], [need_sequences, need_heads, need_head]) = (of.sizes, need);
    let pairs = need_sequences * need_heads;
    // Counters lie behind the sums of the largest call.
    let fits = pairs <= sequences * heads && pairs * (need_head + 2) <= sequences * heads * (head + 2);
    match of.memory.as_ref().filter(|_| fits) {
        Some(memory) => Ok(memory),
        None => bail!("attention: the workspace is for {:?} sequences, heads and numbers of a head on {}; make one for {need:?} on the device of q", of.sizes, if of.memory.is_some() { "a GPU" } else { "the CPU" }),
    }
}

/// Bytes before those of `decode`.
const COUNTER: usize = 16;

pub(in crate::candle) fn decode(
    device: &CudaDevice,
    of: &Decode,
    workspace: &Workspace,
    after_append: bool,
) -> Result<()> {
    let memory = memory(workspace, [of.q.rows, of.heads, of.q.columns / of.heads])?;
    let bytes = memory.elem_count() * 4 - COUNTER;
    let scales = of.cache.scales();
    let tensors = [
        Read(Some(of.q.tensor)),
        Write(Some(of.out.tensor)),
        Read(Some(of.cache.k())),
        Read(Some(of.cache.v())),
        Read(scales.map(|scales| &scales[0])),
        Read(scales.map(|scales| &scales[1])),
        Read(Some(of.lengths)),
        Read(of.slots),
        Read(of.settings.sinks.as_ref()),
        Write(Some(memory)),
    ];
    with(device, tensors, |[q, out, k, v, k_scale, v_scale, lengths, slots, sinks, memory], stream| {
        let decode = layer::Decode {
            q: rows(of.q, q),
            out: rows(of.out, out),
            cache: cache(of.cache, [k, v, k_scale, v_scale]),
            lengths: lengths.cast(),
            slots: slots.cast(),
            sinks: sinks.cast(),
            workspace: memory.cast::<u8>().wrapping_add(COUNTER).cast(),
            workspace_bytes: bytes as u64,
            sequences: of.q.rows,
            heads: of.heads,
            window: of.settings.window,
            scale: of.settings.scale,
            format: format(of.q.tensor.dtype()),
            after_append,
        };
        // SAFETY: as in `rms_norm`.
        unsafe { decode.launch(stream) }
    })
}

pub(in crate::candle) fn prefill(device: &CudaDevice, of: &Prefill, workspace: &Workspace) -> Result<()> {
    let Some(memory) = &workspace.memory else {
        bail!("attention::prefill: the workspace is on the CPU; make one on the device of q")
    };
    let tensors = [
        Read(Some(of.q.tensor)),
        Write(Some(of.out.tensor)),
        Read(Some(of.cache.k())),
        Read(Some(of.cache.v())),
        Read(of.settings.sinks.as_ref()),
        Write(Some(memory)),
    ];
    with(device, tensors, |[q, out, k, v, sinks, counter], stream| {
        let prefill = layer::Prefill {
            q: rows(of.q, q),
            out: rows(of.out, out),
            cache: cache(of.cache, [k, v, std::ptr::null_mut(), std::ptr::null_mut()]),
            slot: of.slot,
            sinks: sinks.cast(),
            counter: counter.cast(),
            workspace: counter.cast::<u8>().wrapping_add(COUNTER).cast(),
            workspace_bytes: (workspace.counters - COUNTER) as u64,
            tokens: of.q.rows,
            past: of.past,
            heads: of.heads,
            causal: of.settings.causal,
            window: of.settings.window,
            scale: of.settings.scale,
            format: format(of.q.tensor.dtype()),
        };
        // SAFETY: as in `rms_norm`.
        unsafe { prefill.launch(stream) }
    })
}

/// The bytes of a sampler's workspace.
pub(in crate::candle) fn sample_workspace(device: &CudaDevice, sequences: usize, vocabulary: usize) -> Result<u64> {
    device.cuda_stream().context().bind_to_thread().w()?;
    Ok(layer::sample_workspace(sequences, vocabulary)?)
}

pub(in crate::candle) fn sample(
    device: &CudaDevice,
    logits: Matrix,
    next: &Next,
    settings: Option<&Tensor>,
    workspace: Option<&Tensor>,
) -> Result<()> {
    let Some(workspace) = workspace else { bail!("Sampler: it was made for the CPU") };
    let bytes = workspace.elem_count() as u64 * 4;
    let tensors = [
        Read(Some(logits.tensor)),
        Read(settings),
        Read(next.slots),
        Write(Some(next.tokens)),
        Write(Some(next.positions)),
        Write(next.lengths),
        Write(next.history),
        Write(next.error),
        Write(Some(workspace)),
    ];
    let history_stride = next.history.map_or(0, |history| history.elem_count() / logits.rows);
    with(device, tensors, |[at, settings, slots, tokens, positions, lengths, history, error, workspace], stream| {
        let sample = layer::Sample {
            logits: rows(logits, at),
            settings,
            slots: slots.cast(),
            tokens: tokens.cast(),
            positions: positions.cast(),
            lengths: lengths.cast(),
            history: history.cast(),
            history_stride: history_stride as i64,
            error: error.cast(),
            workspace,
            workspace_bytes: bytes,
            sequences: logits.rows,
            vocabulary: logits.columns,
            format: format(logits.tensor.dtype()),
        };
        // SAFETY: as in `rms_norm`.
        unsafe { sample.launch(stream) }
    })
}
