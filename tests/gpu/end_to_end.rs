//! The op, the layers and the interposer on the GPU, against the same on the CPU.

use crate::device::Gpu;
use crate::Test;
use candle::cuda_backend::WrapErr;
use candle::{DType, Device, Result, Tensor};
use candle_tilegemm::internal::suite;
use candle_tilegemm::interpose::{self, Mode};
use candle_tilegemm::{set_f32_mode, Activation, F32Mode, Gemm, GemmExt};

fn wrap(test: fn(&Device) -> Result<()>) -> Test {
    Box::new(move |gpu: &Gpu| test(&Device::Cuda(gpu.device.clone())).map_err(|e| e.to_string()))
}

/// What looks at the device's free memory.
pub fn alone() -> Vec<(String, Test)> {
    vec![("a_stream_keeps_its_workspace".into(), wrap(a_stream_keeps_its_workspace))]
}

pub fn tests() -> Vec<(String, Test)> {
    vec![
        ("interposer_is_active".into(), wrap(interposer_is_active)),
        ("interposer_takes_every_layout".into(), wrap(interposer_takes_every_layout)),
        ("interposer_forwards_what_it_does_not_take".into(), wrap(interposer_forwards)),
        ("vendor_call_is_candles".into(), wrap(vendor_call_is_candles)),
        ("interposer_folds_a_broadcast".into(), wrap(interposer_folds_a_broadcast)),
        ("trace_has_a_row_for_each_product".into(), wrap(trace_has_a_row_for_each_product)),
        ("products_are_as_exact_as_asked".into(), wrap(products_are_as_exact_as_asked)),
        ("dry_run_launches_nothing".into(), wrap(dry_run_launches_nothing)),
        ("op_matches_cpu".into(), wrap(op_matches_cpu)),
        ("op_backward_matches_cpu".into(), wrap(op_backward_matches_cpu)),
        ("op_reads_views_without_copies".into(), wrap(op_reads_views)),
        ("op_zero_sizes".into(), wrap(op_zero_sizes)),
    ]
}

/// Runs `f` with cuBLAS out of reach.
fn forced<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = interpose::stats();
    interpose::set_mode(Mode::Force);
    let result = f();
    interpose::set_mode(Mode::On);
    let counted = interpose::stats().since(&before);
    if counted.refused > 0 || counted.forwarded.iter().any(|(_, count)| *count > 0) {
        candle::bail!("a product did not run on our kernels: {counted:?}");
    }
    result
}

fn interposer_is_active(_: &Device) -> Result<()> {
    if !interpose::is_active() {
        candle::bail!("candle's cuBLAS calls do not arrive at the interposer");
    }
    Ok(())
}

fn random(shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::randn(0f32, 1f32, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// |got - expected| over |expected|, Euclidean.
fn relative_error(got: &Tensor, expected: &Tensor) -> Result<f64> {
    let to_f64 = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (got, expected) = (to_f64(got)?, to_f64(expected)?);
    let norm = |t: Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>();
    Ok((norm((got - &expected)?)? / norm(expected)?.max(1e-30)).sqrt())
}

fn assert_close(what: &str, got: &Tensor, expected: &Tensor, dtype: DType) -> Result<()> {
    let tolerance = match dtype {
        DType::BF16 => 6e-3,
        DType::F16 => 1e-3,
        DType::F32 => 2e-6,
        _ => 1e-14,
    };
    let error = relative_error(got, expected)?;
    if error.is_nan() || error > tolerance || got.dims() != expected.dims() {
        candle::bail!("{what}: relative error {error:.2e}, allowed {tolerance:.0e}, shape {:?}", got.dims());
    }
    Ok(())
}

fn interposer_takes_every_layout(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (m, n, k) in [(1, 1, 1), (5, 7, 3), (64, 128, 64), (129, 40, 72), (1, 256, 512)] {
            for batch in [1, 3] {
                for (a_t, b_t) in [(false, false), (false, true), (true, false), (true, true)] {
                    let a = random(&if a_t { [batch, k, m] } else { [batch, m, k] }, DType::F32)?.to_dtype(dtype)?;
                    let b = random(&if b_t { [batch, n, k] } else { [batch, k, n] }, DType::F32)?.to_dtype(dtype)?;
                    let view = |t: Tensor, transposed: bool| if transposed { t.t() } else { Ok(t) };
                    let product = |a: Tensor, b: Tensor| view(a, a_t)?.matmul(&view(b, b_t)?);
                    let expected = product(a.to_dtype(DType::F64)?, b.to_dtype(DType::F64)?)?;
                    let got = forced(|| product(a.to_device(device)?, b.to_device(device)?))?;
                    assert_close(&format!("{m}x{n}x{k} {dtype:?} {a_t} {b_t}"), &got, &expected, dtype)?;
                }
            }
        }
    }
    Ok(())
}

fn interposer_forwards(device: &Device) -> Result<()> {
    let (a, b) = (random(&[64, 64], DType::F16)?, random(&[64, 64], DType::F16)?);
    let expected = a.to_dtype(DType::F64)?.matmul(&b.to_dtype(DType::F64)?)?;
    let product = || a.to_device(device)?.matmul(&b.to_device(device)?);
    let before = interpose::stats();
    interpose::set_mode(Mode::Off);
    let stock = product();
    interpose::set_mode(Mode::On);
    assert_close("off", &stock?, &expected, DType::F16)?;
    // An f16 accumulator is outside of the contract.
    candle::cuda_backend::set_gemm_reduced_precision_f16(true);
    let reduced = product();
    candle::cuda_backend::set_gemm_reduced_precision_f16(false);
    if relative_error(&reduced?, &expected)? > 2e-2 {
        candle::bail!("the forwarded f16 product is wrong");
    }
    let counted = interpose::stats().since(&before);
    let expected = [(interpose::Forwarded::Off, 1), (interpose::Forwarded::ComputeType, 1)];
    if counted.forwarded != expected || counted.ours != 0 {
        candle::bail!("counted {counted:?}, expected {expected:?} forwarded");
    }
    Ok(())
}

/// Three products of candle's, one of them twice and one with a broadcast weight, and one of the op with an epilogue.
fn trace_has_a_row_for_each_product(device: &Device) -> Result<()> {
    let path = std::env::temp_dir().join(format!("tilegemm-gpu-trace-{}.toml", std::process::id()));
    let on_device = |shape: &[usize], dtype| random(shape, dtype)?.to_device(device);
    let products = || -> Result<()> {
        let (x, w) = (on_device(&[5, 128], DType::BF16)?, on_device(&[256, 128], DType::BF16)?);
        x.matmul(&w.t()?)?;
        x.matmul(&w.t()?)?;
        on_device(&[300, 64], DType::F16)?.matmul(&on_device(&[64, 32], DType::F16)?)?;
        let (x, w) = (on_device(&[6, 16, 64], DType::F32)?, on_device(&[48, 64], DType::F32)?);
        x.matmul(&w.t()?.broadcast_left(6)?)?;
        let (x, w) = (on_device(&[2, 64], DType::F16)?, on_device(&[64, 64], DType::F16)?);
        x.gemm(&w.t()?)?;
        Ok(())
    };
    interpose::trace_to(&path);
    let result = products();
    interpose::set_mode(Mode::On);
    result?;
    let text = std::fs::read_to_string(&path)?;
    std::fs::remove_file(&path)?;
    let rows = suite::parse("trace", &text).map_err(candle::Error::wrap)?;
    let got: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.class.as_str(), row.b_batch_stride)).collect();
    let expected = [
        ("trace-5x256x128-nt-bf16", "small", None),
        ("trace-300x32x64-nn-f16", "prefill", None),
        ("trace-16x48x64-nt-f32-b6", "broadcast", Some(0)),
        ("trace-2x64x64-nt-f16", "decode", None),
    ];
    if got != expected {
        candle::bail!("traced {got:?}, expected {expected:?}, from\n{text}");
    }
    Ok(())
}

/// A dry run succeeds, counts nothing and leaves the result unwritten; afterwards products are products again.
fn dry_run_launches_nothing(device: &Device) -> Result<()> {
    let ones = Tensor::ones((32, 32), DType::F32, device)?;
    let before = interpose::stats();
    interpose::set_dry_run(true);
    let dry = (0..10).try_for_each(|_| ones.matmul(&ones).map(drop));
    interpose::set_dry_run(false);
    dry?;
    let counted = interpose::stats().since(&before).calls();
    if counted != 0 {
        candle::bail!("{counted} calls went on to a kernel");
    }
    let sum = ones.matmul(&ones)?.sum_all()?.to_scalar::<f32>()?;
    if sum != 32f32.powi(3) || interpose::stats().since(&before).calls() != 1 {
        candle::bail!("after the dry run the product of ones sums up to {sum}");
    }
    Ok(())
}

/// Through the interposer and the op, by candle's flag, by the process and by the call. At this size TF32 is chosen where it may be.
fn products_are_as_exact_as_asked(device: &Device) -> Result<()> {
    use candle::cuda_backend::set_gemm_reduced_precision_f32 as set_candles_flag;
    let (a, b) = (random(&[2048, 1024], DType::F32)?, random(&[1024, 2048], DType::F32)?);
    let expected = a.to_dtype(DType::F64)?.matmul(&b.to_dtype(DType::F64)?)?;
    let (a, b) = (a.to_device(device)?, b.to_device(device)?);
    let gemm = |mode: Option<F32Mode>| {
        let gemm = Gemm::new();
        mode.map_or(gemm.clone(), |mode| gemm.f32_mode(mode)).forward(&a, &b)
    };
    let check = |what: &str, got: Result<Tensor>, tf32: bool| {
        let error = relative_error(&got?, &expected)?;
        let allowed = if tf32 { 1e-5..2e-3 } else { 0.0..2e-6 };
        if allowed.contains(&error) {
            Ok(())
        } else {
            candle::bail!("{what}: relative error {error:.2e}, expected {allowed:?}")
        }
    };
    let run = || {
        for (mode, flag) in F32Mode::ALL.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            set_f32_mode(mode);
            set_candles_flag(flag);
            let tf32 = flag || mode == F32Mode::Tf32;
            check(&format!("matmul, {mode}, flag {flag}"), a.matmul(&b), tf32)?;
            check(&format!("gemm, {mode}, flag {flag}"), gemm(None), tf32)?;
            for asked in F32Mode::ALL {
                check(&format!("gemm in {asked}, {mode}, flag {flag}"), gemm(Some(asked)), asked == F32Mode::Tf32)?;
            }
        }
        Ok(())
    };
    let result = run();
    set_candles_flag(false);
    set_f32_mode(F32Mode::Accurate);
    result
}

/// Asked for again and again it takes no more memory. The kernels' tests may have given away all that there are.
fn a_stream_keeps_its_workspace(device: &Device) -> Result<()> {
    let free = || Ok::<_, candle::Error>(device.as_cuda_device()?.cuda_stream().context().mem_get_info().w()?.0);
    let prepare = |device: &Device| match candle_tilegemm::prepare(device) {
        Err(error) if error.to_string().contains("have one of their own") => Ok(None),
        bytes => bytes.map(Some),
    };
    let all = Some(candle_tilegemm::workspace::bytes()?);
    for device in [device, &Device::new_cuda_with_stream(0)?] {
        let bytes = prepare(device)?;
        let left = free()?;
        for _ in 0..4 {
            if prepare(device)? != bytes || bytes.is_some() && bytes != all {
                candle::bail!("{bytes:?} bytes at first, and then others");
            }
        }
        if left.saturating_sub(free()?) as u64 >= bytes.unwrap_or(u64::MAX).max(1) {
            candle::bail!("a workspace was allocated again");
        }
    }
    Ok(())
}

/// A batch of single rows against one weight is one product, on whichever kernel.
fn interposer_folds_a_broadcast(device: &Device) -> Result<()> {
    for (dtype, n) in [(DType::BF16, 4096), (DType::F32, 96)] {
        let rows = random(&[64, 1, 256], dtype)?.to_device(device)?;
        let weight = random(&[n, 256], dtype)?.to_device(device)?.t()?.broadcast_left(64)?;
        let before = interpose::stats();
        let got = rows.matmul(&weight)?;
        let counted = interpose::stats().since(&before);
        if counted.calls() != 1 || counted.forwarded.iter().any(|(reason, _)| *reason != interpose::Forwarded::Chosen) {
            candle::bail!("{dtype:?}: {counted:?}");
        }
        let folded = candle_tilegemm::stats::gemms();
        if !folded.iter().any(|gemm| (gemm.n, gemm.k, gemm.batch) == (n, 256, 64) && gemm.calls > 0) {
            candle::bail!("{dtype:?}: the product is not counted");
        }
        interpose::set_mode(Mode::Off);
        let expected = rows.matmul(&weight);
        interpose::set_mode(Mode::On);
        assert_close(&format!("{dtype:?}"), &got, &expected?.to_device(&Device::Cpu)?, dtype)?;
    }
    Ok(())
}

/// The call that benchmarks time as stock candle gives candle's own result, bit by bit.
fn vendor_call_is_candles(device: &Device) -> Result<()> {
    use candle_tilegemm::launch::{Pointers, VendorCall};
    use candle_tilegemm::{Layout, Problem};
    let address = |t: &Tensor| -> Result<u64> {
        use candle::cuda_backend::cudarc::driver::DevicePtr;
        let (storage, _) = t.storage_and_layout();
        let candle::Storage::Cuda(storage) = &*storage else { candle::bail!("not on the GPU") };
        let stream = device.as_cuda_device()?.cuda_stream();
        let address = storage.as_cuda_slice::<half::bf16>()?.device_ptr(&stream).0;
        Ok(address)
    };
    let handle = device.as_cuda_device()?.cublas_handle();
    for (m, n, k, batch, layout) in [
        (64, 96, 128, 1, Layout::NT),
        (64, 96, 128, 3, Layout::NN),
        (64, 96, 128, 1, Layout::TN),
        (64, 96, 128, 2, Layout::TT),
        (1, 4096, 512, 1, Layout::NT),
        (512, 64, 1, 1, Layout::NN),
        (33, 1, 64, 1, Layout::NT),
    ] {
        let stored = |rows: usize, cols: usize, transposed: bool| -> Result<(Tensor, Tensor)> {
            let shape = if transposed { [batch, cols, rows] } else { [batch, rows, cols] };
            let stored = random(&shape, DType::BF16)?.to_device(device)?;
            Ok((stored.clone(), if transposed { stored.t()? } else { stored }))
        };
        let (a, a_view) = stored(m, k, matches!(layout, Layout::TN | Layout::TT))?;
        let (b, b_view) = stored(k, n, matches!(layout, Layout::NT | Layout::TT))?;
        interpose::set_mode(Mode::Off);
        let expected = a_view.matmul(&b_view);
        interpose::set_mode(Mode::On);
        let expected = expected?.to_dtype(DType::F32)?.flatten_all()?;
        let d = Tensor::zeros((batch, m, n), DType::BF16, device)?;
        let problem = Problem::dense(m, n, k, batch, layout, candle_tilegemm::Format::BF16);
        let call = VendorCall::by_candle(&problem)?;
        let [a, b, c] = [address(&a)? as _, address(&b)? as _, std::ptr::null()];
        let pointers = Pointers::new(a, b, address(&d)? as _).with_c(c);
        // SAFETY: the tensors have the problem's extents and live until the comparison has waited.
        unsafe { call.run(pointers, (*handle.handle()).cast())? };
        let got = d.to_dtype(DType::F32)?.flatten_all()?;
        if got.to_vec1::<f32>()? != expected.to_vec1::<f32>()? {
            candle::bail!("{problem}: the results differ");
        }
    }
    Ok(())
}

fn op_matches_cpu(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let (a, w) = (random(&[2, 33, 64], dtype)?, random(&[48, 64], dtype)?);
        let (bias, residual) = (random(&[48], dtype)?, random(&[2, 33, 48], dtype)?);
        for activation in Activation::ALL {
            let gemm = |device: &Device, dtype: DType| {
                let to = |t: &Tensor| t.to_dtype(dtype)?.to_device(device);
                let gemm = Gemm::new().alpha(0.125).bias(&to(&bias)?).activation(activation);
                gemm.residual(&to(&residual)?).beta(-1.5).forward(&to(&a)?, &to(&w)?.t()?)
            };
            let (got, expected) = (gemm(device, dtype)?, gemm(&Device::Cpu, DType::F64)?);
            assert_close(&format!("{dtype:?} {activation:?}"), &got, &expected, dtype)?;
        }
    }
    Ok(())
}

fn op_backward_matches_cpu(device: &Device) -> Result<()> {
    let (a, w) = (random(&[2, 5, 8], DType::F32)?, random(&[8, 6], DType::F32)?);
    let (bias, residual) = (random(&[6], DType::F32)?, random(&[2, 5, 6], DType::F32)?);
    for activation in Activation::ALL {
        let gradients = |device: &Device| -> Result<Vec<Tensor>> {
            let var = |t: &Tensor| candle::Var::from_tensor(&t.to_device(device)?);
            let vars = [var(&a)?, var(&w)?, var(&bias)?, var(&residual)?];
            let gemm = Gemm::new().bias(&vars[2]).residual(&vars[3]).activation(activation).alpha(0.5);
            let grads = gemm.forward(&vars[0], &vars[1])?.sqr()?.sum_all()?.backward()?;
            let missing = || candle::Error::Msg("a gradient is missing".into());
            vars.iter().map(|var| grads.get(var).cloned().ok_or_else(missing)).collect()
        };
        for (got, expected) in gradients(device)?.iter().zip(&gradients(&Device::Cpu)?) {
            if relative_error(got, expected)? > 1e-5 {
                candle::bail!("{activation:?}: a gradient of shape {:?} is off", expected.dims());
            }
        }
    }
    Ok(())
}

/// Views that candle's own matmul refuses or copies; tests/op holds the CPU's side against candle.
fn op_reads_views(device: &Device) -> Result<()> {
    let base = random(&[6, 40, 96], DType::F32)?;
    let views = |t: &Tensor| -> Result<Vec<(Tensor, Tensor)>> {
        let narrow = t.narrow(2, 3, 64)?;
        let permuted = t.reshape((2, 3, 40, 96))?.transpose(0, 1)?;
        let heads = t.reshape((6, 40, 4, 24))?.transpose(1, 2)?;
        Ok(vec![
            (narrow.clone(), narrow.t()?),
            (permuted.clone(), permuted.t()?),
            (heads.clone(), heads.t()?),
            (t.get(0)?, t.get(1)?.t()?.broadcast_left((2, 2, 2))?),
            (t.narrow(1, 7, 1)?, t.t()?),
        ])
    };
    let on_device = views(&base.to_device(device)?)?;
    for (index, ((a, b), (x, y))) in on_device.iter().zip(&views(&base)?).enumerate() {
        let expected = x.gemm(y)?;
        assert_close(&format!("view {index}"), &a.gemm(b)?, &expected, DType::F32)?;
    }
    Ok(())
}

fn op_zero_sizes(device: &Device) -> Result<()> {
    let zeros = |shape: (usize, usize)| Tensor::zeros(shape, DType::BF16, device);
    let no_k = zeros((3, 0))?.gemm(&zeros((0, 4))?)?.to_dtype(DType::F32)?;
    if no_k.to_vec2::<f32>()? != vec![vec![0.0; 4]; 3] {
        candle::bail!("a product over nothing is not zero");
    }
    for (m, n) in [(0, 4), (4, 0)] {
        let empty = zeros((m, 8))?.gemm(&zeros((8, n))?)?;
        if empty.dims() != [m, n] {
            candle::bail!("expected an empty ({m}, {n}), got {:?}", empty.dims());
        }
    }
    Ok(())
}
