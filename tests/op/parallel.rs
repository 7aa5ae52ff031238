//! Layers of which ranks have parts, as threads on the CPU, against the same layers whole.

use candle::safetensors::BufferedSafetensors;
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::narrow::Checkpoint;
use candle_tilegemm::nn::parallel::{self, Group};
use candle_tilegemm::nn::{self, GateFunction};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What each rank's thread returns.
fn on_ranks<T: Send>(ranks: usize, work: impl Fn(&Group) -> Result<T> + Sync) -> Result<Vec<Result<T>>> {
    within(Duration::from_secs(60), ranks, work)
}

fn within<T: Send>(
    timeout: Duration,
    ranks: usize,
    work: impl Fn(&Group) -> Result<T> + Sync,
) -> Result<Vec<Result<T>>> {
    let (groups, work) = (Group::threads(ranks, timeout)?, &work);
    Ok(std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || work(&group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    }))
}

fn error<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

/// A safetensors file in f32.
fn file(tensors: &[(&str, &Tensor)]) -> Result<Vec<u8>> {
    let (mut header, mut data) = (vec![], vec![]);
    for (name, tensor) in tensors {
        let from = data.len();
        data.extend(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes));
        let (shape, to) = (tensor.dims(), data.len());
        header.push(format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{from},{to}]}}"#));
    }
    let header = format!("{{{}}}", header.join(","));
    Ok([&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat())
}

fn builder(file: &[u8], group: &Group) -> Result<VarBuilder<'static>> {
    let files = BufferedSafetensors::new(file.to_vec())?;
    Ok(Checkpoint::from(files).of_rank(group).var_builder(DType::F32, &Device::Cpu))
}

fn randn(dims: &[usize]) -> Result<Tensor> {
    Tensor::randn(0f32, 1f32, dims, &Device::Cpu)
}

/// Refuses results that are further apart than sums in another order are.
fn close(x: &Tensor, y: &Tensor) -> Result<()> {
    assert_eq!(x.dims(), y.dims());
    let apart = (x - y)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    let largest = y.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    assert!(apart <= 2e-6 * largest, "{apart:e} of {largest}");
    Ok(())
}

#[test]
fn sums_and_columns_of_ranks() -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let all = on_ranks(3, |group| {
            let rank = group.rank() as f32;
            let whole = Tensor::zeros((4, 2), dtype, &Device::Cpu)?;
            let x = whole.narrow(0, 1, 2)?; // between others' numbers
            x.slice_set(&Tensor::new(&[[rank, 1.], [10. * rank, 256.]], &Device::Cpu)?.to_dtype(dtype)?, 0, 0)?;
            group.all_reduce(&x)?;
            let part = Tensor::new(&[[rank], [rank + 0.5]], &Device::Cpu)?.to_dtype(dtype)?;
            let [between, columns] = [0; 2].map(|_| Tensor::zeros((2, 3), dtype, &Device::Cpu));
            let columns = columns?;
            group.gather_columns_into(&part, &between?, &columns)?;
            let row = Tensor::zeros((1, 6), dtype, &Device::Cpu)?;
            group.gather_columns_into(&part.reshape((1, 2))?, &row.narrow(1, 0, 0)?, &row)?; // needs no memory between
            [whole, columns, row]
                .map(|x| x.to_dtype(DType::F32)?.to_vec2::<f32>())
                .into_iter()
                .collect::<Result<Vec<_>>>()
        })?;
        for of_rank in all {
            let [whole, columns, row] = &of_rank?[..] else { panic!("three results") };
            assert_eq!(whole, &[[0., 0.], [3., 3.], [30., 768.], [0., 0.]]);
            assert_eq!(columns, &[[0., 1., 2.], [0.5, 1.5, 2.5]]);
            assert_eq!(row, &[[0., 0.5, 1., 1.5, 2., 2.5]]);
        }
    }
    Ok(())
}

/// Each of two numbers of 2^-8 is lost beside 1 in bf16; together they are not.
#[test]
fn a_sum_in_16_bits_is_rounded_once() -> Result<()> {
    let all = on_ranks(3, |group| {
        let x = Tensor::new(&[if group.rank() == 0 { 1f32 } else { 0.5f32.powi(8) }], &Device::Cpu)?;
        let x = x.to_dtype(DType::BF16)?;
        group.all_reduce(&x)?;
        x.to_dtype(DType::F32)?.to_vec1::<f32>()
    })?;
    for of_rank in all {
        assert_eq!(of_rank?, [1. + 0.5f32.powi(7)]);
    }
    Ok(())
}

#[test]
fn layers_of_ranks_give_what_whole_layers_do() -> Result<()> {
    let (hidden, inner, heads, kv_heads, head, vocabulary) = (24, 32, 8, 4, 3, 20);
    let q = heads * head;
    let tensors = [
        ("up.weight", randn(&[inner, hidden])?),
        ("up.bias", randn(&[inner])?),
        ("down.weight", randn(&[hidden, inner])?),
        ("down.bias", randn(&[hidden])?),
        ("attn.q_proj.weight", randn(&[q, hidden])?),
        ("attn.q_proj.bias", randn(&[q])?),
        ("attn.k_proj.weight", randn(&[kv_heads * head, hidden])?),
        ("attn.k_proj.bias", randn(&[kv_heads * head])?),
        ("attn.v_proj.weight", randn(&[kv_heads * head, hidden])?),
        ("attn.v_proj.bias", randn(&[kv_heads * head])?),
        ("mlp.gate_proj.weight", randn(&[inner, hidden])?),
        ("mlp.up_proj.weight", randn(&[inner, hidden])?),
        ("mlp.down_proj.weight", randn(&[hidden, inner])?),
        ("tokens.weight", randn(&[vocabulary, hidden])?),
    ];
    let file = file(&tensors.iter().map(|(name, tensor)| (*name, tensor)).collect::<Vec<_>>())?;
    let (x, tokens) = (randn(&[5, hidden])?, Tensor::new(&[[3u32, 19, 0], [7, 7, 1]], &Device::Cpu)?);

    let vb = builder(&file, &Group::one())?;
    let whole = (
        nn::linear(inner, hidden, vb.pp("down"))?.forward(&nn::linear(hidden, inner, vb.pp("up"))?.forward(&x)?)?,
        nn::qkv_linear(hidden, [q, kv_heads * head, kv_heads * head], true, vb.pp("attn"))?,
        nn::gated_mlp(hidden, inner, GateFunction::SwiGlu, vb.pp("mlp"))?.forward(&x)?,
        nn::embedding(vocabulary, hidden, vb.pp("tokens"))?.forward(&tokens)?,
        nn::linear_no_bias(hidden, vocabulary, vb.pp("tokens"))?.forward(&x)?,
    );
    for ranks in [1, 2, 4] {
        let all = on_ranks(ranks, |group| {
            let vb = builder(&file, group)?;
            let up = parallel::column_linear(hidden, inner, true, group, vb.pp("up"))?;
            assert_eq!(up.weight().dims(), [inner / ranks, hidden]);
            let down = parallel::row_linear(inner, hidden, true, group, vb.pp("down"))?;
            close(&down.forward(&up.forward(&x)?)?, &whole.0)?;
            let out = Tensor::zeros((5, hidden), DType::F32, &Device::Cpu)?;
            down.forward_into(&up.forward(&x)?, &out)?;
            close(&out, &whole.0)?;

            let qkv = parallel::qkv_linear(hidden, [heads, kv_heads], head, true, group, vb.pp("attn"))?;
            for (part, all) in qkv.split(&qkv.forward(&x)?)?.iter().zip(whole.1.split(&whole.1.forward(&x)?)?) {
                let columns = part.dim(1)?;
                close(&part.contiguous()?, &all.narrow(1, group.rank() * columns, columns)?.contiguous()?)?;
            }

            let mlp = parallel::gated_mlp(hidden, inner, GateFunction::SwiGlu, group, vb.pp("mlp"))?;
            close(&mlp.forward(&x)?, &whole.2)?;
            mlp.forward_into(&x, &mlp.workspace(5, DType::F32)?, &out)?;
            close(&out, &whole.2)?;

            let table = parallel::embedding(vocabulary, hidden, group, vb.pp("tokens"))?;
            assert_eq!(table.forward(&tokens)?.to_vec3::<f32>()?, whole.3.to_vec3::<f32>()?);
            close(&parallel::head(hidden, vocabulary, group, vb.pp("tokens"))?.forward(&x)?, &whole.4)
        })?;
        all.into_iter().collect::<Result<Vec<()>>>()?;
    }
    Ok(())
}

#[test]
fn parts_that_there_are_not() -> Result<()> {
    let file = file(&[("weight", &randn(&[4, 6])?), ("mlp.gate.weight", &randn(&[4, 6])?)])?;
    let all = on_ranks(2, |group| {
        let vb = builder(&file, group)?;
        assert!(vb.get((2, 6), "weight").is_ok() && vb.get((4, 3), "weight").is_ok());
        // As a config asks whose sizes are twice the file's.
        assert!(error(vb.get((4, 6), "weight")).contains("what one of 2 ranks has of it"));
        assert!(vb.get((4, 6), "mlp.gate.weight").is_ok());
        for shape in [(2, 3), (1, 6), (4, 2), (8, 6), (6, 4)] {
            assert!(error(vb.get(shape, "weight")).contains("shape mismatch for weight"), "{shape:?}");
        }
        let text = error(parallel::qkv_linear(6, [6, 3], 1, false, group, vb));
        assert!(text.contains("heads of k and v is 3, which 2 ranks do not divide; expected 1, 3 ranks"), "{text}");
        Ok(())
    })?;
    all.into_iter().collect::<Result<Vec<()>>>()?;
    assert!(error(Group::threads(0, Duration::from_secs(1))).contains("expected 1 and more"));
    Ok(())
}

#[test]
fn ranks_that_do_not_agree() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    // Other calls: an error on every rank, in every later call, too.
    let all = on_ranks(3, |group| {
        let x = zeros(&[if group.rank() == 2 { 4 } else { 3 }])?;
        let text = error(group.all_reduce(&x));
        assert_eq!(text, error(group.all_reduce(&x)));
        Ok(text)
    })?;
    for (rank, of_rank) in all.into_iter().enumerate() {
        let expected = format!("rank {rank}: rank 2 calls all_reduce of F32 [4], and rank 0 all_reduce of F32 [3]; expected the same calls");
        assert!(of_rank?.starts_with(&expected));
    }
    // A rank that ends, and one that does not come.
    let began = Instant::now();
    let all =
        on_ranks(
            3,
            |group| if group.rank() == 1 { Ok(String::new()) } else { Ok(error(group.all_reduce(&zeros(&[3])?))) },
        )?;
    for rank in [0, 2] {
        let text = all[rank].as_ref().unwrap();
        assert!(text.starts_with(&format!("rank {rank}: rank 1 has ended")), "{text}");
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    // A rank that ends after the last call has taken nothing from the others.
    let mut ranks = Group::threads(2, Duration::from_secs(60))?;
    let [last, first] = [ranks.remove(1), ranks.remove(0)];
    let x = zeros(&[3])?;
    std::thread::scope(|scope| {
        scope.spawn(|| first.all_reduce(&x.copy()?));
        last.all_reduce(&x)
    })?;
    drop(first);
    last.check()?;
    assert!(error(last.all_reduce(&x)).starts_with("rank 1: rank 0 has ended"));
    // A group that another thread gives up while its rank waits.
    let over = Barrier::new(2);
    let all = on_ranks(2, |group| {
        let mut text = String::new();
        if group.rank() == 0 {
            let other = group.clone();
            let later = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                other.abort();
            });
            text = error(group.all_reduce(&zeros(&[3])?));
            later.join().expect("it aborts");
        }
        over.wait();
        Ok(text)
    })?;
    assert!(all[0].as_ref().unwrap().starts_with("rank 0: rank 0 has aborted the group"));
    let all = within(Duration::from_secs(1), 3, |group| {
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_secs(3));
        }
        Ok(error(group.all_reduce(&zeros(&[3])?)))
    })?;
    for (rank, of_rank) in all.into_iter().enumerate() {
        let text = of_rank?;
        let expected = format!("rank {rank}: rank 1 has not come to all_reduce of F32 [3] within 1s");
        assert!(text.starts_with(&expected), "{text}");
    }
    Ok(())
}

#[test]
fn tensors_that_a_group_does_not_take() -> Result<()> {
    let group = Group::one();
    let x = randn(&[4, 4])?;
    assert!(error(group.all_reduce(&x.narrow(1, 0, 2)?)).contains("contiguous"));
    assert!(error(group.all_reduce(&x.to_dtype(DType::F64)?)).contains("F64"));
    assert!(error(group.all_gather_into(&x, &x)).contains("share memory"));
    assert!(error(group.all_gather_into(&x, &randn(&[5, 4])?)).contains("the result"));
    assert!(error(group.gather_columns_into(&x, &x, &randn(&[2, 8])?)).contains("expected [4, 4]"));
    let y = Tensor::zeros((4, 4), DType::F32, &Device::Cpu)?;
    group.gather_columns_into(&x, &x, &y)?;
    assert_eq!(x.to_vec2::<f32>()?, y.to_vec2::<f32>()?);
    for text in on_ranks(2, |group| Ok(error(group.gather_columns_into(&x, &y, &randn(&[4, 8])?))))? {
        let text = text?;
        assert!(text.contains("room for 16 numbers; expected 32"), "{text}");
    }
    Ok(())
}

/// On GPUs NCCL does nothing for them.
#[test]
fn tensors_without_numbers() -> Result<()> {
    for ranks in [1, 3] {
        let all = on_ranks(ranks, |group| {
            let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
            group.all_reduce(&zeros(&[0, 4])?)?;
            group.gather_columns_into(&zeros(&[0, 4])?, &zeros(&[0])?, &zeros(&[0, 4 * ranks])?)?;
            group.gather_columns_into(&zeros(&[3, 0])?, &zeros(&[0])?, &zeros(&[3, 0])?)
        })?;
        all.into_iter().collect::<Result<Vec<()>>>()?;
    }
    Ok(())
}

#[test]
fn a_group_that_waits_for_ever() -> Result<()> {
    let all = within(Duration::MAX, 2, |group| {
        let x = Tensor::new(&[1f32], &Device::Cpu)?;
        group.all_reduce(&x)?;
        x.to_vec1::<f32>()
    })?;
    for of_rank in all {
        assert_eq!(of_rank?, [2.]);
    }
    Ok(())
}

/// Clones are the same rank: a second call beside the first would take its place.
#[test]
fn two_calls_of_a_rank_at_once() -> Result<()> {
    let groups = Group::threads(2, Duration::from_secs(60))?;
    let call = |group: &Group, number: f32| -> Result<Vec<f32>> {
        let x = Tensor::new(&[number], &Device::Cpu)?;
        group.all_reduce(&x)?;
        x.to_vec1()
    };
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for number in [1., 1.] {
            let (tell, group) = (tell.clone(), groups[0].clone());
            scope.spawn(move || tell.send(call(&group, number)));
        }
        // The first waits for rank 1.
        assert!(error(told.recv().unwrap()).contains("another call of this rank runs"));
        assert_eq!(call(&groups[1], 10.)?, [11.]);
        assert_eq!(told.recv().unwrap()?, [11.]);
        Ok(())
    })
}
