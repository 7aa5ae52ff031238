//! The layer of experts on the CPU.

use candle::{DType, Device, Tensor};
use candle_tilegemm::nn::moe::moe_gemm;

fn randn(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(0f32, 1f32, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn the_layer_is_a_product_of_each_pair_on_the_cpu() {
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::BF16, 0.05), (DType::F16, 0.01)] {
        let (tokens, top_k, count, n, k) = (5, 2, 4, 6, 8);
        let (x, weights) = (randn(&[tokens, k], dtype), randn(&[count, n, k], dtype));
        // Pairs of expert e: those p with (3 p) % 4 = e.
        let mut list: Vec<(u32, u32)> = (0..(tokens * top_k) as u32).map(|p| (3 * p % 4, p)).collect();
        list.sort();
        let column = |of: fn(&(u32, u32)) -> u32| Tensor::from_iter(list.iter().map(of), &Device::Cpu).unwrap();
        let (groups, pairs) = (column(|row| row.0), column(|row| row.1));
        let y = moe_gemm(&x, &weights, &None, &pairs, &groups, top_k, true).unwrap();
        assert_eq!((y.dims(), y.dtype()), (&[tokens * top_k, n][..], dtype));
        let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
        let factors: Vec<f32> = (0..tokens * top_k).map(|p| 0.25 * (p + 1) as f32).collect();
        let scales = Tensor::new(factors.as_slice(), &Device::Cpu).unwrap();
        let narrow = randn(&[tokens * top_k, 2 * k], dtype).narrow(1, k, k).unwrap(); // neither dense nor at the start
        let z = moe_gemm(&narrow, &weights, &Some(scales), &pairs, &groups, top_k, false).unwrap();
        for p in 0..tokens * top_k {
            let w = wide(&weights.get(3 * p % 4).unwrap()).t().unwrap();
            let close = |got: &Tensor, row: Tensor, factor: f64| {
                let expected = (wide(&row).unsqueeze(0).unwrap().matmul(&w).unwrap() * factor).unwrap();
                let difference = (wide(&got.narrow(0, p, 1).unwrap()) - expected).unwrap().abs().unwrap();
                let worst = difference.max_all().unwrap().to_scalar::<f32>().unwrap();
                assert!(worst <= tolerance * factor.max(1.0) as f32 * 4.0, "{dtype:?}, pair {p}: {worst}");
            };
            close(&y, x.get(p / top_k).unwrap(), 1.0);
            close(&z, narrow.get(p).unwrap(), 0.25 * (p + 1) as f64);
        }
    }
}

#[test]
fn the_layer_says_what_does_not_fit() {
    let (x, weights) = (randn(&[3, 8], DType::F32), randn(&[4, 6, 8], DType::F32));
    let list = |count: usize| Tensor::zeros(count, DType::U32, &Device::Cpu).unwrap();
    let error = |x: &Tensor, weights: &Tensor, scales: &Option<Tensor>, pairs: &Tensor, groups: &Tensor| {
        moe_gemm(x, weights, scales, pairs, groups, 2, true).unwrap_err().to_string()
    };
    let cases = [
        (error(&randn(&[3, 7], DType::F32), &weights, &None, &list(6), &list(6)), "rows of 7 numbers"),
        (error(&x, &randn(&[4, 6, 8], DType::F64), &None, &list(6), &list(6)), "f16, bf16 or f32"),
        (error(&x, &weights, &None, &list(5), &list(6)), "sorted_token_ids has 5 numbers in U32; expected 6"),
        (error(&x, &weights, &None, &list(6), &list(7)), "experts_ids has 7"),
        (
            error(&x, &weights, &Some(list(3)), &list(3), &list(3)),
            "topk_weights has 3 numbers in U32; expected 3 in F32",
        ),
    ];
    for (error, words) in cases {
        assert!(error.contains(words), "{error}");
    }
}
