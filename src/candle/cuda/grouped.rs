//! Grouped products, and the kernels beside them in a layer of experts, on a GPU.

use super::into::placed;
use super::places::{with, Use, Use::Read, Use::Write};
use super::quantized::Weights;
use super::Launcher;
use crate::candle::lowering::format_of;
use crate::candle::tensors::{unwritten, Rows};
use crate::kernel::Role;
use crate::launch::experts::{self, blocks_for, Choice, OfPairs};
use crate::launch::{GroupPointers, Pointers};
use crate::problem::{power_of_two_in, Activation, Epilogue, Format, Gate, Problem};
use ::candle::{bail, CudaDevice, Result, Tensor};
use std::ffi::c_void;

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
    [x, w]: [&Tensor; 2],
    lists: &Lists,
) -> Result<Tensor> {
    let problem = aligned(problem, [x, w]);
    let make = |columns: usize| unwritten(&[problem.m, columns], x.dtype(), x.device());
    let (out, launcher) = (make(problem.columns_of_d())?, Launcher::on(device, &device.cuda_stream())?);
    let both = if gates_apart(&launcher, &problem)? { Some(make(problem.n)?) } else { None };
    product_into(device, problem, [x, w], lists, both.as_ref(), &out)?;
    Ok(out)
}

/// The problem for operands of these offsets in their memory.
fn aligned(problem: Problem, [x, w]: [&Tensor; 2]) -> Problem {
    let align = |tensor: &Tensor, format: Format| power_of_two_in(format.bytes(tensor.layout().start_offset()) as u64);
    problem.with(|problem| {
        problem.a.pointer_align = align(x, problem.a.format);
        problem.b.pointer_align = align(w, problem.b.format);
    })
}

/// Whether a kernel of its own applies the gate, because no fast kernel of products does. Only in f32: before it, sums in 16 bits would be rounded, and factors would
/// multiply what the gate gets.
fn gates_apart(Launcher { dispatcher, policy, .. }: &Launcher, problem: &Problem) -> Result<bool> {
    let is_possible = problem.epilogue.gate.is_some()
        && problem.d.format == Format::F32
        && !problem.groups.is_some_and(|groups| groups.scaled);
    // A product without a gate needs one plan.
    Ok(is_possible && dispatcher.with_plan(problem, *policy, |plan| plan.kernel.role == Role::LastResort)?)
}

/// [`product`] into rows that exist. Allocates nothing. `both`, (m, n), is for gates that a kernel of its own applies.
pub(in crate::candle) fn product_into(
    device: &CudaDevice,
    problem: Problem,
    [x, w]: [&Tensor; 2],
    lists: &Lists,
    both: Option<&Tensor>,
    out: &Tensor,
) -> Result<()> {
    let launcher = Launcher::on(device, &device.cuda_stream())?;
    let gate = problem.epilogue.gate;
    let gate = if gates_apart(&launcher, &aligned(problem, [x, w]))? { gate } else { None };
    if gate.is_some() && both.is_none() {
        bail!("a grouped product: no kernel applies gates in f32 to {problem} here, and `forward_into` has no memory for a kernel of its own; use `forward`, or 16 bits");
    }
    let tensors = [
        Read(Some(x)),
        Read(Some(w)),
        Read(Some(lists.bounds)),
        Read(lists.pairs),
        Read(lists.scales),
        Write(both.filter(|_| gate.is_some())),
        Write(Some(out)),
    ];
    with(device, tensors, |[a, b, bounds, pairs, scales, both, d], stream| {
        let problem = placed(problem, [a, b, d, d]);
        let groups = GroupPointers::new(bounds).with_lists(pairs, scales);
        let pointers = Pointers::new(a, b, d).with_groups(groups);
        // SAFETY: the layouts stay inside their storage, which `with` holds, and D is apart from the rest. Kernels leave out rows that the lists send elsewhere.
        let launch = |problem: &Problem, pointers| unsafe { launcher.launch(problem, pointers) };
        let Some(gate) = gate else { return launch(&problem, pointers) };
        let ungated = problem.with(|problem| {
            problem.epilogue = Epilogue::new(problem.epilogue.alpha(), 0.0);
            (problem.d.row_stride, problem.d.pointer_align) = (problem.n as i64, power_of_two_in(both as u64));
        });
        launch(&ungated, Pointers { d: both, ..pointers })?;
        let (format, sizes) = (problem.d.format, [problem.m, problem.n]);
        // SAFETY: both matrices are dense.
        unsafe { experts::gate_rows(format, sizes, (gate, problem.epilogue.activation), both, d, stream)? };
        Ok(())
    })
}

/// [`product`] with quantised weights of all groups, (n, k) each, in place of the problem's, into rows that exist. Allocates nothing.
pub(in crate::candle) fn product_of(
    device: &CudaDevice,
    problem: Problem,
    (x, factors_of_x): (&Tensor, Option<&Tensor>),
    weights: Weights,
    lists: &Lists,
    out: &Tensor,
) -> Result<()> {
    let stream = device.cuda_stream();
    let launcher = Launcher::on(device, &stream)?;
    let (problem, blocks) = (weights.of(problem), weights.blocks(&stream)?);
    let [codes, factors, zeros] = weights.tensors();
    let [bounds, pairs, scales] = [Read(Some(lists.bounds)), Read(lists.pairs), Read(lists.scales)];
    let tensors = [Read(Some(x)), Read(factors_of_x), bounds, pairs, scales, Write(Some(out)), codes, factors, zeros];
    with(device, tensors, |[a, of_a, bounds, pairs, scales, d, codes, factors, zeros], _| {
        let w = blocks.as_ref().map_or(codes, |(blocks, _)| blocks.cast_mut().cast());
        let problem = placed(problem, [a, w, d, d]);
        let groups = GroupPointers::new(bounds).with_lists(pairs, scales);
        let pointers = Pointers::new(a, w, d).with_groups(groups).with_scale_of_a(of_a).with_scale_of_b(factors, zeros);
        // SAFETY: as for dense weights; a guard holds blocks.
        unsafe { launcher.launch(&problem, pointers) }
    })
}

/// The gated numbers of dense rows, gates and ups in halves, into dense rows of the same type.
pub(in crate::candle) fn gate_into(device: &CudaDevice, both: &Tensor, of: Activation, out: &Tensor) -> Result<()> {
    let (format, (rows, columns)) = (format_of(both.dtype())?, both.dims2()?);
    with(device, [Read(Some(both)), Write(Some(out))], |[a, d], stream| {
        // SAFETY: both matrices are dense, and `with` holds their storage.
        unsafe { experts::gate_rows(format, [rows, columns], (Gate::Halves, of), a, d, stream) }
    })
}

/// What biases of experts, (count, n) in f32, are added to: results of pairs, whose experts are a list in u32. `scales` multiplies a pair's bias.
#[derive(Clone, Copy)]
pub(in crate::candle) struct Biases<'a> {
    pub bias: Option<&'a Tensor>,
    pub experts: &'a Tensor,
    pub scales: Option<&'a Tensor>,
}

impl Biases<'_> {
    fn tensors(&self) -> [Use<'_>; 3] {
        [Read(self.bias), Read(self.bias.map(|_| self.experts)), Read(self.scales)]
    }

    fn at(&self, [bias, experts, scales]: [*mut c_void; 3]) -> OfPairs {
        let count = self.bias.map_or(0, |bias| bias.dims()[0]);
        OfPairs { bias, experts, scales, count, pairs: self.experts.elem_count() }
    }
}

/// Adds biases to dense results of pairs in f32, (pairs, n).
pub(in crate::candle) fn add_bias(device: &CudaDevice, results: &Tensor, of: Biases) -> Result<()> {
    let ((_, columns), [bias, experts, scales]) = (results.dims2()?, of.tensors());
    with(device, [Write(Some(results)), bias, experts, scales], |[x, bias, experts, scales], stream| {
        // SAFETY: the matrices are dense, the lists have an entry a pair, and `with` holds their storage.
        unsafe { of.at([bias, experts, scales]).add_bias(x, columns, stream) }
    })
}

/// The clamped gates of dense rows in f32 behind their biases, (pairs, 2 n), into dense rows.
pub(in crate::candle) fn clamp_into(
    device: &CudaDevice,
    both: &Tensor,
    of: Biases,
    gate: (Gate, [f32; 2]),
    out: &Tensor,
) -> Result<()> {
    let ((_, columns), [bias, experts, scales]) = (out.dims2()?, of.tensors());
    with(
        device,
        [Read(Some(both)), bias, experts, scales, Write(Some(out))],
        |[x, bias, experts, scales, out], stream| {
            // SAFETY: as in `add_bias`.
            unsafe { of.at([bias, experts, scales]).clamp(gate, x, (out, columns), stream) }
        },
    )
}

/// The sums of `of_row` rows each of a contiguous matrix, and a residual, into rows that exist: in the matrix's type, or in 16 bits of a matrix in f32.
pub(in crate::candle) fn sum_rows_into(
    device: &CudaDevice,
    x: &Tensor,
    of_row: usize,
    residual: Option<Rows>,
    out: Rows,
) -> Result<()> {
    let formats = [format_of(x.dtype())?, format_of(out.tensor.dtype())?];
    let tensors = [Read(Some(x)), Read(residual.map(|residual| residual.tensor)), Write(Some(out.tensor))];
    let strides = [residual.map_or(0, |residual| residual.stride), out.stride];
    with(device, tensors, |[a, c, d], stream| {
        // SAFETY: `with` holds the storage of all matrices.
        unsafe { experts::sum_rows(formats, [out.rows, out.columns, of_row], a, (c, d), strides, stream) }
    })
}

/// Where [`route_into`] writes: the experts and the scales of each token, the first row of each expert, the pairs, and numbers between its kernels.
pub(in crate::candle) struct Routed<'a> {
    pub experts: &'a Tensor,
    pub scales: &'a Tensor,
    pub first_row: &'a Tensor,
    pub pairs: &'a Tensor,
    pub counts: &'a Tensor,
}

/// The numbers between the kernels of a routing.
pub(in crate::candle) fn counts(tokens: usize, experts: usize) -> usize {
    blocks_for(tokens) * experts
}

/// What experts are chosen by: contiguous logits, tokens x candidates, of which those from `first` on are here.
#[derive(Clone, Copy)]
pub(in crate::candle) struct Logits<'a> {
    pub logits: &'a Tensor,
    pub first: usize,
    /// Whether the scales of a token add up to 1.
    pub normalise: bool,
}

/// Chooses experts by logits and lists the pairs of the `experts` that are here; without logits, for the choice that is there.
pub(in crate::candle) fn route_into(
    device: &CudaDevice,
    by: Option<Logits>,
    experts: usize,
    to: &Routed,
) -> Result<()> {
    let (tokens, top_k) = to.experts.dims2()?;
    let logits = by.map(|by| by.logits);
    let format = logits.map_or(Ok(Format::F32), |logits| format_of(logits.dtype()))?;
    let candidates = logits.map_or(Ok(0), |logits| logits.dim(1))?;
    let (first, normalise) = by.map_or((0, false), |by| (by.first, by.normalise));
    let chosen = if logits.is_some() { Write(Some(to.experts)) } else { Read(Some(to.experts)) };
    let scales = Write(logits.map(|_| to.scales));
    let tensors =
        [Read(logits), chosen, scales, Write(Some(to.first_row)), Write(Some(to.pairs)), Write(Some(to.counts))];
    with(device, tensors, |[logits, chosen, scales, first_row, pairs, counts], stream| {
        let choice = Choice::new([tokens, experts, top_k], chosen.cast());
        let choice = choice.by_logits(logits, [candidates, first], format, normalise, scales.cast());
        let choice = Choice { first_row: first_row.cast(), pairs: pairs.cast(), counts: counts.cast(), ..choice };
        // SAFETY: `with` holds the storage of all lists, whose sizes the caller has made.
        unsafe { experts::route(&choice, stream) }
    })
}
