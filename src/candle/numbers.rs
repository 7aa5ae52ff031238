//! Numbers on the CPU: f32 from storage and to storage, rounded once.

use super::tensors::Rows;
use ::candle::{bail, CpuStorage, InplaceOp1, Layout, Result, Storage, StorageRef, Tensor};
use float8::F8E4M3;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use std::cell::Cell;

/// The numbers of a tensor's storage.
#[derive(Clone, Copy)]
pub(super) enum Numbers<'a> {
    F16(&'a [f16]),
    BF16(&'a [bf16]),
    F32(&'a [f32]),
    F8(&'a [F8E4M3]),
}

impl<'a> Numbers<'a> {
    /// Of a tensor on the CPU.
    pub fn of(storage: &'a StorageRef<'_>) -> Result<Self> {
        Ok(match &**storage {
            Storage::Cpu(CpuStorage::F16(x)) => Self::F16(x),
            Storage::Cpu(CpuStorage::BF16(x)) => Self::BF16(x),
            Storage::Cpu(CpuStorage::F32(x)) => Self::F32(x),
            Storage::Cpu(CpuStorage::F8E4M3(x)) => Self::F8(x),
            _ => bail!("a tensor in another type or on another device than was checked"),
        })
    }

    /// Fills `to` with the numbers from `at` on.
    pub fn read(&self, at: usize, to: &mut [f32]) {
        let end = at + to.len();
        match self {
            Self::F16(x) => x[at..end].convert_to_f32_slice(to),
            Self::BF16(x) => x[at..end].convert_to_f32_slice(to),
            Self::F32(x) => to.copy_from_slice(&x[at..end]),
            Self::F8(x) => to.iter_mut().zip(&x[at..end]).for_each(|(to, x)| *to = x.to_f32()),
        }
    }
}

/// Writes numbers to storage from `at` on, each rounded to the storage's type.
pub(super) fn store(storage: &mut CpuStorage, at: usize, from: &[f32]) -> Result<()> {
    let end = at + from.len();
    match storage {
        CpuStorage::F16(x) => x[at..end].convert_from_f32_slice(from),
        CpuStorage::BF16(x) => x[at..end].convert_from_f32_slice(from),
        CpuStorage::F32(x) => x[at..end].copy_from_slice(from),
        CpuStorage::F8E4M3(x) => x[at..end].iter_mut().zip(from).for_each(|(x, from)| *x = F8E4M3::from_f32(*from)),
        other => bail!("numbers in {other:?}, which no block writes"),
    }
    Ok(())
}

/// Changes the storage of a tensor on the CPU in place.
pub(super) fn change(tensor: &Tensor, with: impl FnOnce(&mut CpuStorage, &Layout) -> Result<()>) -> Result<()> {
    struct Change<F>(Cell<Option<F>>);
    impl<F: FnOnce(&mut CpuStorage, &Layout) -> Result<()>> InplaceOp1 for Change<F> {
        fn name(&self) -> &'static str {
            "layer"
        }

        fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
            self.0.take().map_or(Ok(()), |with| with(storage, layout))
        }
    }
    tensor.inplace_op1(&Change(Cell::new(Some(with))))
}

/// The rows of a tensor on the CPU in f32, dense.
pub(super) fn wide(rows: Rows) -> Result<Vec<f32>> {
    let (storage, layout) = rows.tensor.storage_and_layout();
    let numbers = Numbers::of(&storage)?;
    let mut values = vec![0.0; rows.rows * rows.columns];
    values.par_chunks_mut(rows.columns.max(1)).enumerate().for_each(|(i, row)| {
        numbers.read(layout.start_offset() + i * rows.stride, row);
    });
    Ok(values)
}

/// Rounds dense rows to a tensor on the CPU.
pub(super) fn narrow(to: Rows, values: &[f32]) -> Result<()> {
    change(to.tensor, |storage, layout| {
        let mut rows = values.chunks(to.columns.max(1)).enumerate();
        rows.try_for_each(|(i, row)| store(storage, layout.start_offset() + i * to.stride, row))
    })
}

/// Copies a tensor on the CPU to another one of its shape and type, whose lines may be apart.
pub(super) fn put(from: &Tensor, to: &Tensor) -> Result<()> {
    let from = from.contiguous()?;
    let (storage, layout) = from.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("a result on another device than was checked") };
    let first = layout.start_offset();
    change(to, |to, layout| {
        let Some((&columns, outer)) = layout.dims().split_last() else { return Ok(()) };
        let (step, strides) = layout.stride().split_last().unwrap_or((&1, &[]));
        macro_rules! lines {
            ($from:expr, $to:expr) => {
                for (line, from) in $from[first..].chunks(columns.max(1)).take(outer.iter().product()).enumerate() {
                    let (mut at, mut rest) = (layout.start_offset(), line);
                    for (size, stride) in outer.iter().zip(strides).rev() {
                        at += rest % size * stride;
                        rest /= size;
                    }
                    from.iter().enumerate().for_each(|(j, x)| $to[at + j * step] = *x);
                }
            };
        }
        match (storage, to) {
            (CpuStorage::F16(from), CpuStorage::F16(to)) => lines!(from, to),
            (CpuStorage::BF16(from), CpuStorage::BF16(to)) => lines!(from, to),
            (CpuStorage::F32(from), CpuStorage::F32(to)) => lines!(from, to),
            (CpuStorage::F64(from), CpuStorage::F64(to)) => lines!(from, to),
            _ => bail!("a result in a type that no product has"),
        }
        Ok(())
    })
}

/// A list of integers as the kernels read it: numbers from 2^31 on are negative.
pub(super) fn integers(tensor: &Tensor) -> Result<Vec<i32>> {
    Ok(tensor.flatten_all()?.to_vec1::<u32>()?.into_iter().map(|x| x as i32).collect())
}

/// Changes a list of integers on the CPU in place.
pub(super) fn change_integers(tensor: &Tensor, with: impl FnOnce(&mut [u32])) -> Result<()> {
    change(tensor, |storage, layout| {
        if let CpuStorage::U32(x) = storage {
            with(&mut x[layout.start_offset()..]);
        }
        Ok(())
    })
}
