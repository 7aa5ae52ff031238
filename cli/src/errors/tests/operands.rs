//! Operands of every recipe on the CPU: the numbers of their codes, and the products that take them.

use crate::bench::narrow::count;
use crate::errors::data::Kind;
use crate::errors::narrow::ROWS;
use crate::errors::operands::{formats, half_unit, problem, Operand, Recipe, Rounding, RECIPES};
use candle::{Device, Tensor};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::kernel::Role;
use candle_tilegemm::nn::narrow::{QuantWeight, Quantizer};
use candle_tilegemm::Format;

const N: usize = 256;
const K: usize = 512;

fn lines(kind: Kind, side: u64) -> Tensor {
    let values: Vec<f32> = (0..N).flat_map(|index| kind.vector(side, K, index)).collect();
    Tensor::from_vec(values, (N, K), &Device::Cpu).unwrap()
}

fn operand(kind: Kind, rounding: Rounding) -> Operand {
    Operand::new(&lines(kind, 1), rounding).unwrap_or_else(|failure| panic!("{rounding:?}: {failure}"))
}

fn numbers(operand: &Operand) -> Vec<f64> {
    let of = |result: crate::Result<Tensor>| result.unwrap_or_else(|failure| panic!("{failure}"));
    let tensors = operand.tensors(&Device::Cpu).unwrap_or_else(|failure| panic!("{failure}"));
    of(operand.numbers(&tensors)).flatten_all().unwrap().to_vec1().unwrap()
}

/// Two readers of the same bytes: the benchmark's, which knows the problem's factors, and the library's.
#[test]
fn numbers_are_those_that_the_library_reads() {
    for Recipe { weights, .. } in RECIPES {
        let quantizer = match weights {
            Rounding::Library(quantizer) => quantizer,
            Rounding::Around128(group) => Quantizer::Int8 { group: Some(group) },
            Rounding::Nvfp4 => continue,
        };
        for kind in Kind::OF_BLOCKS {
            let expected = QuantWeight::quantize(&lines(kind, 1), quantizer).unwrap().dequantize();
            let ours = numbers(&operand(kind, weights));
            let far = expected.iter().zip(&ours).find(|(x, y)| (f64::from(**x) - **y).abs() > 1e-6 * y.abs());
            assert_eq!(far, None, "{weights:?}, {kind}");
            if quantizer != Quantizer::Mxfp4 {
                assert_eq!(numbers(&operand(kind, weights).with_factors_in_f32()), ours, "{weights:?}, {kind}");
            }
        }
    }
}

/// Rounding errs by at most half a step of the codes; NVFP4's largest step is 2 of 6, and its factor errs by a 16th.
#[test]
fn nvfp4_is_near_the_numbers_it_rounds() {
    for kind in Kind::OF_BLOCKS {
        let exact: Vec<f32> = lines(kind, 1).flatten_all().unwrap().to_vec1().unwrap();
        let operand = operand(kind, Rounding::Nvfp4);
        assert_eq!([operand.codes.len(), operand.factors.len()], [N * K / 2, count(&operand.scale(true), [K, N])]);
        let rounded = numbers(&operand);
        // The factor of the whole is left out.
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0f64, |most, x| most.max(x.abs()));
        let whole = largest(&mut exact.iter().map(|x| f64::from(*x))) / largest(&mut rounded.iter().copied());
        let whole = 2f64.powi(whole.log2().round() as i32);
        for (exact, rounded) in exact.chunks(16).zip(rounded.chunks(16)) {
            let most = largest(&mut exact.iter().map(|x| f64::from(*x)));
            let far = exact.iter().zip(rounded).map(|(x, y)| (f64::from(*x) - whole * y).abs()).fold(0.0, f64::max);
            assert!(far <= 0.24 * most, "{kind}: {far} of {most}");
        }
    }
}

/// The dispatcher has a kernel of its own for each product, and each is another one.
#[test]
fn every_product_has_a_kernel() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    let mut all = vec![];
    for Recipe { activations, weights } in RECIPES {
        let b = operand(Kind::Normal, weights);
        let a = activations.map(|rounding| {
            Operand::new(&lines(Kind::Normal, 0), rounding).unwrap_or_else(|failure| panic!("{failure}"))
        });
        let (a, b) = match a {
            None => (None, b),
            Some(a) => (Some(a.with_factors_in_f32()), b.with_factors_in_f32()),
        };
        for rows in ROWS {
            let problem = problem(a.as_ref(), &b, rows);
            let plan =
                dispatcher.plan(&problem, Policy::default()).unwrap_or_else(|error| panic!("{problem}: {error}"));
            assert_ne!(plan.kernel.role, Role::LastResort, "{problem}: {}", plan.name());
            all.push(formats(&problem));
        }
    }
    all.dedup();
    let expected = [
        "bf16 x f8e4m3 tensor -> bf16",
        "bf16 x f8e4m3 row -> bf16",
        "bf16 x f8e4m3 128x128 -> bf16",
        "bf16 x u4 g32 f16 -> bf16",
        "bf16 x u4 g32 f16 with zeros -> bf16",
        "bf16 x u4 g128 f16 -> bf16",
        "bf16 x u4 g128 f16 with zeros -> bf16",
        "bf16 x i8 row f16 -> bf16",
        "bf16 x u8 g128 f16 -> bf16",
        "bf16 x f4e2m1 g32 f8e8m0 -> bf16",
        "bf16 x f4e2m1 g16 f8e4m3 -> bf16",
        "f8e4m3 tensor x f8e4m3 tensor -> f32",
        "f8e4m3 row x f8e4m3 row -> f32",
        "f8e4m3 g128 x f8e4m3 128x128 -> f32",
        "i8 row x i8 row -> bf16",
    ];
    assert_eq!(all, expected);
}

#[test]
fn half_a_unit_is_what_rounding_errs_at_most() {
    for x in [1.0f64, 1.5, 1.999, -3.7, 1e-5, 300.0] {
        let rounded = f64::from(half::bf16::from_f64(x));
        assert!((x - rounded).abs() <= half_unit(Format::BF16, x), "{x}");
        let next = f64::from(half::bf16::from_bits(half::bf16::from_f64(x).to_bits() + 1));
        let step = (next - rounded).abs() / 2.0;
        assert!((half_unit(Format::BF16, rounded) / step - 1.0).abs() < 1e-12, "{x}");
    }
    assert_eq!([half_unit(Format::BF16, 0.0), half_unit(Format::F32, 1.0)], [0.0, 2f64.powi(-24)]);
}
