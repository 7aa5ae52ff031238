//! Batch dimensions that are rows or columns of one product, and columns that are rows of one, by every kernel that takes the folded product and by the dispatcher's choice, against sums in f64
//! over the batch as asked.

use crate::cases::{self, Data};
use crate::device::{Element, Gpu};
use crate::shard::side_by_side;
use crate::{random, with_one_b, Test};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::kernel::Fusion;
use candle_tilegemm::problem::{BiasAxis, Epilogue, Operand, Types};
use candle_tilegemm::{Activation, Layout, Problem};
use half::{bf16, f16};

pub fn tests() -> Vec<(String, Test)> {
    vec![
        ("folded_batches_f16".into(), Box::new(every_kernel::<f16, f16>)),
        ("folded_batches_bf16".into(), Box::new(every_kernel::<bf16, bf16>)),
        ("folded_batches_bf16_f32".into(), Box::new(every_kernel::<bf16, f32>)),
        ("folded_batches_f32".into(), Box::new(every_kernel::<f32, f32>)),
        ("folded_batches_f64".into(), Box::new(every_kernel::<f64, f64>)),
        ("one_column_f16".into(), Box::new(columns::<f16, f16>)),
        ("one_column_bf16_f32".into(), Box::new(columns::<bf16, f32>)),
        ("one_column_f32".into(), Box::new(columns::<f32, f32>)),
        ("one_column_f64".into(), Box::new(columns::<f64, f64>)),
    ]
}

/// The operand of which one matrix serves a whole batch dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shared {
    A,
    B,
}

/// Dense matrices as the op has them: D is (outer, inner, M, N), and one operand lacks the dimension `dim`.
fn problem(
    batch: [usize; 2],
    [m, n, k]: [usize; 3],
    shared: Shared,
    dim: usize,
    layout: Layout,
    types: Types,
) -> Problem {
    let dense = Problem::dense(m, n, k, 2, layout, types.a);
    dense.with(|p| {
        p.batch = batch;
        p.d.format = types.d;
        let place = |operand: &mut Operand, elements: usize, is_shared: bool| {
            let elements = elements as i64;
            operand.batch_stride = match (is_shared, dim) {
                (true, 0) => [0, elements],
                (true, _) => [elements, 0],
                (false, _) => [elements * batch[1] as i64, elements],
            };
        };
        place(&mut p.a, m * k, shared == Shared::A);
        place(&mut p.b, k * n, shared == Shared::B);
        place(&mut p.d, m * n, false);
    })
}

fn every_kernel<T: Element, Out: Element>(gpu: &Gpu) -> Result<(), String> {
    let types = Types::new(T::KERNEL_DTYPE, Out::KERNEL_DTYPE);
    let mut by_name = 0;
    for (shared, batch, dim, sizes) in [
        (Shared::B, [5, 3], 0, [1, 64, 128]),
        (Shared::B, [3, 5], 1, [1, 72, 136]),
        (Shared::B, [70, 4], 0, [1, 128, 64]),
        (Shared::B, [33, 3], 0, [1, 100, 100]),
        (Shared::B, [9, 2], 0, [1, 37, 41]),
        (Shared::A, [5, 3], 0, [64, 1, 128]),
        (Shared::A, [3, 70], 1, [72, 1, 136]),
        (Shared::A, [9, 2], 0, [37, 1, 41]),
        (Shared::A, [1, 9], 1, [1, 40, 128]),
    ] {
        for layout in [Layout::NT, Layout::NN] {
            let plain = problem(batch, sizes, shared, dim, layout, types);
            for asked in variants(&plain) {
                let is_folded = asked.canonical().problem.batch_count() < asked.batch_count();
                // Columns of B are apart where its rows are contiguous.
                let rows_of_b = shared == Shared::A && sizes[1] > 1 && layout == Layout::NN;
                // A bias along N differs from column to column, and columns of several matrices have the same one.
                let same_bias = shared == Shared::A && asked.epilogue.bias == Some(BiasAxis::N);
                if is_folded == (rows_of_b || same_bias) {
                    return Err(format!("{asked:?} is folded: {is_folded}"));
                }
                by_name += by_every_kernel::<T, Out>(gpu, &asked)?;
            }
        }
    }
    match by_name > 100 {
        true => Ok(()),
        false => Err(format!("only {by_name} products ran by the names of kernels")),
    }
}

/// Products with one column of D, which are rows of the transposed product.
fn columns<T: Element, Out: Element>(gpu: &Gpu) -> Result<(), String> {
    let types = Types::new(T::KERNEL_DTYPE, Out::KERNEL_DTYPE);
    for (m, k, batch) in [(4096, 512, 1), (1000, 1001, 1), (130, 8, 3), (37, 4104, 1), (2, 64, 5)] {
        for layout in [Layout::NT, Layout::TN] {
            let plain = Problem::dense(m, 1, k, batch, layout, types.a).with(|p| p.d.format = types.d);
            for asked in variants(&plain) {
                by_every_kernel::<T, Out>(gpu, &asked)?;
            }
        }
    }
    Ok(())
}

/// The product by every kernel that takes it and by the dispatcher's choices; the number of kernels.
fn by_every_kernel<T: Element, Out: Element>(gpu: &Gpu, asked: &Problem) -> Result<usize, String> {
    let dispatcher = Dispatcher::new(gpu.info.clone());
    let kernels = with_one_b().filter(|kernel| kernel.types == asked.types());
    let forced = kernels.map(|kernel| Policy::force(kernel.name)).collect::<Result<Vec<_>, _>>();
    let forced = forced.map_err(|e| e.to_string())?.into_iter();
    let forced: Vec<Policy> = forced.filter(|policy| dispatcher.plan(asked, *policy).is_ok()).collect();
    let count = forced.len();
    let chosen = [Policy::default(), Policy::own(), Policy::default().with_batch_invariance(true)];
    let policies: Vec<Policy> = forced.into_iter().chain(chosen).collect();
    for data in [Data::Normal, Data::Integers] {
        let operands = cases::operands::<T, Out>(asked, 0, data, 21);
        side_by_side(&policies, |policy| random::run(gpu, asked, &operands, data, *policy, Fusion::Full))?;
    }
    Ok(count)
}

/// The bare product, and parts of an epilogue that may fold and that may not.
fn variants(plain: &Problem) -> Vec<Problem> {
    let with_c = plain.with(|p| {
        p.epilogue = Epilogue::new(-0.5, 2.0);
        p.epilogue.c = Some(p.d);
    });
    let with_bias = plain.with(|p| {
        p.epilogue.bias = Some(BiasAxis::N);
        p.epilogue.activation = Activation::Silu;
    });
    vec![*plain, with_c, with_bias]
}
