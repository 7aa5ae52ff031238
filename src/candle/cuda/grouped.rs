//! Grouped products, and the kernels beside them in a layer of experts, on a GPU.

use super::{first, tensor, Launcher};
use crate::kernel::Role;
use crate::launch::experts::{self, blocks_for, Choice};
use crate::launch::{GroupPointers, Pointers};
use crate::problem::{power_of_two_in, Epilogue, Format, Problem};
use ::candle::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, DeviceRepr};
use ::candle::cuda_backend::{CudaDType, WrapErr};
use ::candle::{CudaDevice, Result, Tensor};
use half::{bf16, f16};
use std::sync::Arc;

/// The types of a product of experts.
macro_rules! by_format {
    ($format:expr, $function:ident($($argument:expr),*)) => {
        match $format {
            Format::F16 => $function::<f16>($($argument),*),
            Format::BF16 => $function::<bf16>($($argument),*),
            _ => $function::<f32>($($argument),*),
        }
    };
}

/// The lists of a product with groups of rows, contiguous.
pub(in crate::candle) struct Lists<'a> {
    pub bounds: &'a Tensor,
    pub pairs: Option<&'a Tensor>,
    pub scales: Option<&'a Tensor>,
}

/// The grouped product of tensors whose rows are contiguous, as `problem` lays them out.
pub(in crate::candle) fn product(
    device: &CudaDevice,
    problem: Problem,
    operands: [&Tensor; 2],
    lists: &Lists,
) -> Result<Tensor> {
    by_format!(problem.a.format, product_as(device, problem, operands, lists))
}

fn product_as<T: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    mut problem: Problem,
    [x, w]: [&Tensor; 2],
    lists: &Lists,
) -> Result<Tensor> {
    let stream = device.cuda_stream();
    let (m, columns) = (problem.m, problem.columns_of_d());
    // SAFETY: the kernel writes every row that the lists name, zeros where the row is of no group; the caller's documentation says so.
    let mut out: CudaSlice<T> = unsafe { device.alloc(m * columns)? };
    {
        let [x, w, bounds] = [x, w, lists.bounds].map(Tensor::storage_and_layout);
        let [pairs, scales] = [lists.pairs, lists.scales].map(|list| list.map(Tensor::storage_and_layout));
        // Until the launch is made, the guards order this stream behind all other users of the memory.
        let (a, _a_guard) = first::<T>((&x.0, x.1), &stream)?;
        let (b, _b_guard) = first::<T>((&w.0, w.1), &stream)?;
        let (bounds, _bounds_guard) = first::<u32>((&bounds.0, bounds.1), &stream)?;
        let pairs = pairs.as_ref().map(|(list, layout)| first::<u32>((list, layout), &stream)).transpose()?;
        let scales = scales.as_ref().map(|(list, layout)| first::<f32>((list, layout), &stream)).transpose()?;
        let (d, _d_guard) = out.device_ptr_mut(&stream);
        for (operand, address) in [(&mut problem.a, a), (&mut problem.b, b), (&mut problem.d, d)] {
            operand.pointer_align = power_of_two_in(address);
        }
        let [pairs, scales] = [&pairs, &scales].map(|list| list.as_ref().map_or(0, |(address, _)| *address));
        let groups = GroupPointers::new(bounds as _).with_lists(pairs as _, scales as _);
        let pointers = Pointers::new(a as _, b as _, d as _).with_groups(groups);
        let launcher = Launcher::on(device, &stream)?;
        let Launcher { queue, dispatcher, policy } = launcher;
        // SAFETY: the layouts stay inside their storage, the guards above keep the storage alive, and D is freshly allocated. Kernels leave out
        // rows that the lists send elsewhere.
        let launch = |problem: &Problem, pointers| unsafe { launcher.launch(problem, pointers) };
        // A product without a gate needs one plan. Before a gate in a kernel of its own, sums in 16 bits would be rounded, and factors would multiply what the gate gets.
        let is_fused = problem.epilogue.gate.is_none()
            || problem.d.format != Format::F32
            || problem.groups.is_some_and(|groups| groups.scaled)
            || dispatcher.with_plan(&problem, policy, |plan| plan.kernel.role != Role::LastResort)?;
        match problem.epilogue.gate {
            // No fast kernel applies the gate: a kernel of its own does.
            Some(gate) if !is_fused => {
                // SAFETY: as above.
                let mut both: CudaSlice<T> = unsafe { device.alloc(m * problem.n)? };
                let (both, _both_guard) = both.device_ptr_mut(&stream);
                let activation = problem.epilogue.activation;
                let ungated = problem.with(|problem| {
                    problem.epilogue = Epilogue::new(problem.epilogue.alpha(), 0.0);
                    (problem.d.row_stride, problem.d.pointer_align) = (problem.n as i64, power_of_two_in(both));
                });
                launch(&ungated, Pointers { d: both as _, ..pointers })?;
                let (format, sizes, to) = (problem.d.format, [m, problem.n], queue.stream);
                // SAFETY: both matrices are dense, and `both` is freed behind the launch in the same stream.
                unsafe { experts::gate_rows(format, sizes, (gate, activation), both as _, d as _, to)? };
            }
            _ => launch(&problem, pointers)?,
        }
    }
    Ok(tensor(out, (m, columns), device))
}

/// The sums of `of_row` rows each of a contiguous matrix.
pub(in crate::candle) fn sum_rows(device: &CudaDevice, format: Format, x: &Tensor, of_row: usize) -> Result<Tensor> {
    by_format!(format, sum_rows_as(device, format, x, of_row))
}

fn sum_rows_as<T: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    format: Format,
    x: &Tensor,
    of_row: usize,
) -> Result<Tensor> {
    let stream = device.cuda_stream();
    let (rows, columns) = x.dims2()?;
    let rows = rows / of_row;
    // SAFETY: the kernel writes every number.
    let mut out: CudaSlice<T> = unsafe { device.alloc(rows * columns)? };
    {
        let (storage, layout) = x.storage_and_layout();
        let (a, _a_guard) = first::<T>((&storage, layout), &stream)?;
        let (d, _d_guard) = out.device_ptr_mut(&stream);
        stream.context().bind_to_thread().w()?;
        // SAFETY: the guards keep both matrices alive, and the stream is the device's own.
        unsafe { experts::sum_rows(format, [rows, columns, of_row], a as _, d as _, stream.cu_stream().cast())? };
    }
    Ok(tensor(out, (rows, columns), device))
}

/// What [`route`] makes: the experts and the scales of each token, the first row of each expert, and the pairs.
pub(in crate::candle) type Routed = [Tensor; 4];

/// Chooses experts by contiguous logits, tokens x experts.
pub(in crate::candle) fn route(
    device: &CudaDevice,
    format: Format,
    logits: &Tensor,
    top_k: usize,
    normalise: bool,
) -> Result<Routed> {
    by_format!(format, route_as(device, format, logits, top_k, normalise))
}

fn route_as<T: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    format: Format,
    logits: &Tensor,
    top_k: usize,
    normalise: bool,
) -> Result<Routed> {
    let stream = device.cuda_stream();
    let (tokens, experts) = logits.dims2()?;
    // SAFETY: the kernels write every number.
    let mut chosen: CudaSlice<u32> = unsafe { device.alloc(tokens * top_k)? };
    // SAFETY: as above.
    let mut scales: CudaSlice<f32> = unsafe { device.alloc(tokens * top_k)? };
    let lists = {
        let (storage, layout) = logits.storage_and_layout();
        let (logits, _logits_guard) = first::<T>((&storage, layout), &stream)?;
        let (chosen, _chosen_guard) = chosen.device_ptr_mut(&stream);
        let (scales, _scales_guard) = scales.device_ptr_mut(&stream);
        let of = Choice::new([tokens, experts, top_k], chosen as _);
        list(device, &stream, of.by_logits(logits as _, format, normalise, scales as _))?
    };
    let [first_row, pairs] = lists;
    Ok([tensor(chosen, (tokens, top_k), device), tensor(scales, (tokens, top_k), device), first_row, pairs])
}

/// The first row of each expert and the pairs, for given experts of each token: contiguous, tokens x top_k.
pub(in crate::candle) fn route_chosen(device: &CudaDevice, experts: usize, chosen: &Tensor) -> Result<[Tensor; 2]> {
    let stream = device.cuda_stream();
    let (tokens, top_k) = chosen.dims2()?;
    let (storage, layout) = chosen.storage_and_layout();
    let (chosen, _chosen_guard) = first::<u32>((&storage, layout), &stream)?;
    list(device, &stream, Choice::new([tokens, experts, top_k], chosen as _))
}

fn list(device: &CudaDevice, stream: &Arc<CudaStream>, choice: Choice) -> Result<[Tensor; 2]> {
    let (rows, experts) = (choice.tokens * choice.top_k, choice.experts);
    // SAFETY: the kernels write every number that another kernel reads.
    let [mut first_row, mut pairs, mut counts]: [CudaSlice<u32>; 3] = unsafe {
        [device.alloc(experts + 1)?, device.alloc(rows)?, device.alloc(blocks_for(choice.tokens) * experts)?]
    };
    {
        let (first_row, _first_row_guard) = first_row.device_ptr_mut(stream);
        let (pairs, _pairs_guard) = pairs.device_ptr_mut(stream);
        let (counts, _counts_guard) = counts.device_ptr_mut(stream);
        stream.context().bind_to_thread().w()?;
        let choice = Choice { first_row: first_row as _, pairs: pairs as _, counts: counts as _, ..choice };
        // SAFETY: the guards keep the memory alive, and the stream is the device's own. `counts` is freed behind the launch in the same stream.
        unsafe { experts::route(&choice, stream.cu_stream().cast())? };
    }
    Ok([tensor(first_row, experts + 1, device), tensor(pairs, rows, device)])
}
