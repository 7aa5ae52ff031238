//! Products on copies of operands that start anywhere, against the reference kernel.

use crate::cases::{self, Data, Variant};
use crate::device::{Element, Gpu};
use crate::oracle;
use crate::Test;
use candle_tilegemm::dispatch::Policy;
use candle_tilegemm::problem::{BiasAxis, Types};
use candle_tilegemm::{Activation, Format, Layout};
use half::{bf16, f16};

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> = Vec::new();
    for layout in [Layout::NT, Layout::NN, Layout::TN, Layout::TT] {
        tests.push((format!("copies_f16_{layout}"), Box::new(move |gpu| every_variant::<f16, f16>(gpu, layout))));
        tests.push((format!("copies_bf16_{layout}"), Box::new(move |gpu| every_variant::<bf16, bf16>(gpu, layout))));
        tests.push((format!("copies_bf16_f32_{layout}"), Box::new(move |gpu| every_variant::<bf16, f32>(gpu, layout))));
        tests.push((format!("copies_f32_{layout}"), Box::new(move |gpu| every_variant::<f32, f32>(gpu, layout))));
    }
    tests.push(("copies_in_pieces".into(), Box::new(in_pieces)));
    tests
}

fn types<T: Element, Out: Element>() -> Types {
    Types::new(T::KERNEL_DTYPE, Out::KERNEL_DTYPE)
}

/// Odd lengths, strides and addresses, batches that repeat an operand and that do not merge, and every part of an epilogue.
fn every_variant<T: Element, Out: Element>(gpu: &Gpu, layout: Layout) -> Result<(), String> {
    let plain = Variant::PLAIN;
    let variants = [
        plain,
        Variant { offset: 1, ..plain },
        Variant { padding: 1, offset: 3, ..plain },
        Variant { batch: [1, 3], ..plain },
        Variant { batch: [1, 3], broadcast_a: true, ..plain },
        Variant { batch: [1, 3], broadcast_b: true, padding: 1, ..plain },
        Variant { batch: [2, 3], padding: 1, ..plain },
        Variant { beta: -2.0, alpha: 0.5, batch: [1, 2], ..plain },
        Variant { beta: 0.5, padding: 1, in_place: true, ..plain },
        Variant { bias: Some(BiasAxis::M), ..plain },
        Variant { bias: Some(BiasAxis::N), activation: Activation::GeluErf, ..plain },
        Variant { column_major_d: true, bias: Some(BiasAxis::N), ..plain },
        Variant::FULL,
    ];
    for variant in variants {
        for [m, n, k] in
            [[65, 131, 333], [300, 515, 1027], [7, 1001, 515], [1, 260, 77], [129, 1032, 129], [130, 1, 70]]
        {
            let problem = cases::problem(m, n, k, layout, types::<T, Out>(), variant);
            for (data, policy) in
                [(Data::Normal, Policy::default()), (Data::Integers, Policy::own()), (Data::NonFinite, Policy::own())]
            {
                let operands = cases::operands::<T, Out>(&problem, variant.offset, data, 11);
                let compared = oracle::compare(gpu, policy.with_copies(), &problem, &operands, data);
                compared.map_err(|error| format!("{policy:?}, {variant:?}, {problem}, {data:?}: {error}"))?;
            }
        }
    }
    Ok(())
}

/// Copies that do not fit into the workspace at once.
fn in_pieces(gpu: &Gpu) -> Result<(), String> {
    let problem = cases::problem(65, 20001, 4095, Layout::NT, Format::BF16, Variant::PLAIN);
    let operands = cases::operands::<bf16, bf16>(&problem, 0, Data::Normal, 3);
    oracle::compare(gpu, Policy::own().with_copies(), &problem, &operands, Data::Normal)
}
