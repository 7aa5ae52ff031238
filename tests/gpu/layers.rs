//! The blocks of a layer on the GPU: against f64, alone and among others, and captured.

#[path = "../support/layers.rs"]
mod blocks;
#[path = "../support/sampler.rs"]
mod sampler;

use crate::device::Gpu;
use crate::replayed::as_launched;
use crate::Test;
use blocks::{exact, ints, randn, Shape};
use candle::{bail, DType, Device, Module, Result, Tensor};
use candle_tilegemm::nn::attention::{self, KvCache, Rope, RopeStyle, Settings, Workspace};
use candle_tilegemm::nn::{gate_into, Embedding, GateFunction, Next, RmsNorm, Sampler, Sampling};
use candle_tilegemm::problem::Gate;

type Check = fn(&Device) -> Result<()>;

fn test(name: &str, check: impl Fn(&Device) -> Result<()> + Send + 'static) -> (String, Test) {
    let run = move |gpu: &Gpu| check(&Device::Cuda(gpu.device.clone())).map_err(|error| error.to_string());
    (name.into(), Box::new(run))
}

pub fn tests() -> Vec<(String, Test)> {
    let mut tests = Vec::new();
    let checks: [(&str, Check); 16] = [
        ("layers_norms", blocks::norms),
        ("layers_embeddings", blocks::embeddings),
        ("layers_embeddings_of_blocks", blocks::embeddings_of_blocks),
        ("layers_gates", blocks::gates),
        ("layers_greedy", sampler::greedy),
        ("layers_state_of_a_choice", sampler::state),
        ("layers_distributions", sampler::distributions),
        ("layers_penalties", sampler::penalties),
        ("layers_keys", sampler::keys),
        ("layers_draws_are_those_of_the_cpu", draws_of_the_cpu),
        ("layers_results_on_a_gpu_are_those_of_the_cpu", as_on_the_cpu),
        ("layers_nan_stays_where_it_is", nan_stays),
        ("layers_refusals", refusals),
        ("layers_sinks_refused", blocks::sinks::refused),
        ("layers_in_a_graph", in_graphs),
        ("layers_workspace_of_many_sizes", one_workspace),
    ];
    tests.extend(checks.map(|(name, check)| test(name, check)));
    for shape in shapes() {
        let name = format!("{}_{:?}_{:?}", shape.head, shape.dtype, shape.cache).to_lowercase();
        tests.push(test(&format!("layers_append_{name}"), move |device| blocks::appends(device, shape)));
        tests.push(test(&format!("layers_decode_{name}"), move |device| {
            for heads in [1, 3, 4, 8, 16] {
                blocks::decodes(device, Shape { heads: shape.kv_heads * heads, ..shape })?;
            }
            blocks::decodes(device, Shape { capacity: 2500, ..shape })
        }));
        if shape.cache == shape.dtype {
            tests.push(test(&format!("layers_prefill_{name}"), move |device| {
                blocks::prefills(device, shape)?;
                blocks::prefills(device, Shape { capacity: 2200, ..shape })?;
                blocks::prefills(device, Shape { heads: 3 * shape.kv_heads, ..shape })
            }));
        }
        tests.push(test(&format!("layers_sinks_{name}"), move |device| {
            blocks::sinks::special(device, shape)?;
            blocks::sinks::special(device, Shape { capacity: 2500, ..shape })
        }));
        tests.push(test(&format!("layers_alone_and_among_69_{name}"), move |device| alone_and_among(device, shape)));
    }
    tests.push(test("family_layer", few));
    tests
}

/// Each head size and type.
fn shapes() -> Vec<Shape> {
    let types = [
        (DType::BF16, DType::BF16),
        (DType::F16, DType::F16),
        (DType::BF16, DType::F8E4M3),
        (DType::F16, DType::F8E4M3),
    ];
    let of = |(dtype, cache)| {
        [64, 96, 128, 256].map(|head| Shape { heads: 8, kv_heads: 2, head, capacity: 300, dtype, cache })
    };
    types.into_iter().flat_map(of).collect()
}

/// A few small launches of each kernel, for compute-sanitizer.
fn few(device: &Device) -> Result<()> {
    for (dtype, cache) in [(DType::BF16, DType::BF16), (DType::F16, DType::F8E4M3)] {
        let shape = Shape { heads: 4, kv_heads: 2, head: 64, capacity: 150, dtype, cache };
        blocks::decodes(device, shape)?;
        blocks::appends(device, shape)?;
        if cache == dtype {
            blocks::prefills(device, Shape { head: 128, ..shape })?;
        }
    }
    blocks::embeddings(device)?;
    let x = randn(&[3, 576], DType::BF16, device)?;
    RmsNorm::new(randn(&[576], DType::BF16, device)?, 1e-5).add(&x, &x)?;
    gate_into(&x, Gate::Halves, GateFunction::SwiGlu, &randn(&[3, 288], DType::BF16, device)?)?;
    sampler::state(device)?;
    let rows = sampler::repeated(&[0.5; 1003], 2)?;
    sampler::tokens(device, &rows, Some(&[sampler::drawn(|s| (s.top_k, s.top_p) = (50, 0.9)); 2]), 1)?;
    Ok(())
}

/// A sequence's bits do not depend on the others.
fn alone_and_among(device: &Device, shape: Shape) -> Result<()> {
    let Shape { heads, head, dtype, .. } = shape;
    // The cache's rows come without heads of q beyond one for each of K.
    let cache = blocks::filled(device, Shape { capacity: 700, heads: shape.kv_heads, ..shape }, 70)?;
    let q = randn(&[70, heads, head], dtype, device)?;
    let lengths: Vec<i32> = (0..70).map(|s| (s * 389 + 7) % 701).collect();
    let workspace = Workspace::new(70, heads, head, device)?;
    let settings = Settings::new(head);
    let together = attention::decode(&q, &cache, &ints(&lengths, device)?, None, &settings, &workspace)?;
    for s in [0, 5, 17, 31, 32, 50, 69] {
        let (slot, length) = (ints(&[s as i32], device)?, ints(&[lengths[s]], device)?);
        let alone = attention::decode(&q.narrow(0, s, 1)?, &cache, &length, Some(&slot), &settings, &workspace)?;
        let expected = exact(&together.narrow(0, s, 1)?.contiguous()?)?;
        blocks::close(&format!("sequence {s} of {} rows", lengths[s]), &alone, &expected, |_| 0.0)?;
    }
    Ok(())
}

/// One workspace, for calls of many and of few sequences in turns.
fn one_workspace(device: &Device) -> Result<()> {
    let shape = Shape { heads: 8, kv_heads: 2, head: 128, capacity: 4000, dtype: DType::BF16, cache: DType::BF16 };
    let cache = blocks::filled(device, shape, 4)?;
    let q = randn(&[4, 8, 128], DType::BF16, device)?;
    let (settings, shared) = (Settings::new(128), Workspace::new(4, 8, 128, device)?);
    let lengths = ints(&[4000, 1, 3000, 700], device)?;
    let prompt = randn(&[16, 8, 128], DType::BF16, device)?;
    let run = |sequences: usize, workspace: &Workspace| {
        let (q, lengths) = (q.narrow(0, 0, sequences)?, lengths.narrow(0, 0, sequences)?);
        attention::decode(&q, &cache, &lengths, None, &settings, workspace)
    };
    for sequences in [4, 1, 3, 1, 4, 2, 4] {
        // A few tokens after many positions, which keep sums in the same memory.
        attention::prefill(&prompt, &cache, 0, 3900, &settings, &shared)?;
        let own = run(sequences, &Workspace::new(sequences, 8, 128, device)?)?;
        blocks::close(&format!("{sequences} sequences"), &run(sequences, &shared)?, &exact(&own)?, |_| 0.0)?;
    }
    Ok(())
}

/// Draws of a GPU and of the CPU differ only where roundings decide.
fn draws_of_the_cpu(device: &Device) -> Result<()> {
    let rows = Tensor::randn(0f32, 2f32, (500, 3001), &Device::Cpu)?;
    let settings = |change: fn(&mut Sampling)| -> Vec<Sampling> {
        (0..500).map(|s| sampler::drawn(change).with(|set| set.sequence = s)).collect()
    };
    let changes: [fn(&mut Sampling); 4] =
        [|_| (), |s| s.top_k = 40, |s| s.top_p = 0.9, |s| (s.temperature, s.min_p) = (0.6, 0.05)];
    for (i, change) in changes.into_iter().enumerate() {
        let set = settings(change);
        let (got, expected) =
            (sampler::tokens(device, &rows, Some(&set), 3)?, sampler::tokens(&Device::Cpu, &rows, Some(&set), 3)?);
        let other = got.iter().zip(&expected).filter(|(x, y)| x != y).count();
        if other > 2 {
            bail!("settings {i}: {other} of 500 tokens differ from the CPU's");
        }
    }
    Ok(())
}

/// Whole blocks with the CPU's inputs.
fn as_on_the_cpu(device: &Device) -> Result<()> {
    let (heads, kv_heads, head) = (16, 4, 128);
    let qkv = randn(&[300, (heads + 2 * kv_heads) * head], DType::BF16, &Device::Cpu)?;
    let run = |device: &Device| -> Result<Tensor> {
        let cache = KvCache::new(1, kv_heads, 512, head, DType::BF16, device)?;
        let positions: Vec<i32> = (0..300).collect();
        let rope = Rope::new(RopeStyle::Halves, head, 500_000.0, device)?;
        let (at, slots) = (ints(&positions, device)?, ints(&[0; 300], device)?);
        let q = attention::append(&qkv.to_device(device)?, &cache, &at, Some(&slots), &rope)?;
        attention::prefill(&q, &cache, 0, 0, &Settings::new(head), &Workspace::new(1, heads, head, device)?)
    };
    let expected = exact(&run(&Device::Cpu)?)?;
    blocks::close("a prompt", &run(device)?, &expected, |i| 0.02 * expected[i].abs() + 0.02)
}

/// A NaN in q stays in its row and head; what lies behind a length reaches nothing.
fn nan_stays(device: &Device) -> Result<()> {
    let shape = Shape { heads: 4, kv_heads: 2, head: 64, capacity: 200, dtype: DType::BF16, cache: DType::BF16 };
    let cache = blocks::filled(device, shape, 2)?;
    // Slot 0 has NaN from row 150 on.
    let nan = Tensor::full(f32::NAN, (1, 2, 50, 64), &Device::Cpu)?.to_dtype(DType::BF16)?.to_device(device)?;
    for tensor in [cache.k(), cache.v()] {
        let rest = tensor.narrow(0, 1, 1)?.copy()?;
        let first = Tensor::cat(&[&tensor.narrow(0, 0, 1)?.narrow(2, 0, 150)?, &nan], 2)?;
        tensor.slice_set(&Tensor::cat(&[&first, &rest], 0)?.contiguous()?, 0, 0)?;
    }
    let (settings, workspace) = (Settings::new(64), Workspace::new(150, 4, 64, device)?);
    let is_number = |tensor: &Tensor| -> Result<bool> { Ok(exact(tensor)?.iter().all(|x| x.is_finite())) };
    let q = randn(&[150, 4, 64], DType::BF16, device)?;
    let of_lengths =
        attention::decode(&q.narrow(0, 0, 2)?, &cache, &ints(&[150, 200], device)?, None, &settings, &workspace)?;
    let of_prompt = attention::prefill(&q, &cache, 0, 0, &settings, &workspace)?;
    if !is_number(&of_lengths)? || !is_number(&of_prompt)? {
        bail!("a NaN behind the length reaches a result");
    }
    let all = attention::decode(&q.narrow(0, 0, 2)?, &cache, &ints(&[151, 200], device)?, None, &settings, &workspace)?;
    let numbers = exact(&all)?;
    if numbers[..256].iter().any(|x| !x.is_nan()) || numbers[256..].iter().any(|x| x.is_nan()) {
        bail!("a NaN in the cache is not in its sequence, or in another");
    }
    Ok(())
}

/// What the kernels do not take is an error that says what they take, and nothing is launched.
fn refusals(device: &Device) -> Result<()> {
    let text = |result: Result<Tensor>| result.err().map_or("no error".into(), |error| error.to_string());
    let cache = KvCache::new(1, 1, 8, 80, DType::BF16, device)?;
    let settings = Settings::new(80);
    let (q, one) = (randn(&[1, 1, 80], DType::BF16, device)?, ints(&[1], device)?);
    let on_cpu = Workspace::new(1, 1, 80, &Device::Cpu)?;
    let workspace = Workspace::new(1, 1, 80, device)?;
    let fp8 = KvCache::new(1, 1, 8, 64, DType::F8E4M3, device)?;
    let q64 = randn(&[1, 1, 64], DType::BF16, device)?;
    let wide = KvCache::new(1, 1, 8, 64, DType::BF16, device)?;
    let many = randn(&[1, 17, 64], DType::BF16, device)?;
    let of_17 = Workspace::new(1, 17, 64, device)?;
    let errors = [
        (
            text(attention::decode(&q, &cache, &one, None, &settings, &workspace)),
            "heads of 80 numbers; the kernels have 64, 96, 128 and 256",
        ),
        (text(attention::decode(&q64, &wide, &one, None, &settings, &on_cpu)), "the workspace is for"),
        (text(attention::decode(&many, &wide, &one, None, &settings, &of_17)), "the kernel has 1 to 16 times as many"),
        (text(attention::prefill(&q64, &fp8, 0, 0, &Settings::new(64), &workspace)), "a cache in fp8"),
        (
            text(RmsNorm::new(randn(&[20000], DType::F32, device)?, 0.0).forward(&randn(
                &[1, 20000],
                DType::F32,
                device,
            )?)),
            "1 to 16384",
        ),
        (
            text(Embedding::new(randn(&[4, 6], DType::BF16, device)?, 6).forward(&Tensor::new(&[0u32], device)?)),
            "multiples of 16 bytes",
        ),
        (
            text(KvCache::new(1 << 20, 8, 1 << 20, 128, DType::BF16, device).map(|cache| cache.k().clone())),
            "MiB are free",
        ),
        (text(KvCache::new(1, 1, 8, 64, DType::F32, device).map(|cache| cache.k().clone())), "for the CPU"),
        (
            text(Sampler::new(&[Sampling::new(1.0, 0)], 300_000, device).and_then(|sampler| {
                let (tokens, positions) = (Tensor::zeros(1, DType::U32, device)?, ints(&[0], device)?);
                sampler.choose(&randn(&[1, 300_000], DType::F32, device)?, &Next::new(&tokens, &positions))?;
                Ok(tokens)
            })),
            "draws from 1 to 262144 tokens",
        ),
    ];
    for (error, words) in errors {
        if !error.contains(words) {
            bail!("{error}\ndoes not have\n{words}");
        }
    }
    Ok(())
}

/// A step of one layer and the choice of the token, into tensors that exist.
struct Step {
    x: Tensor,
    qkv: Tensor,
    q: Tensor,
    out: Tensor,
    prompt: [Tensor; 2],
    gates: [Tensor; 2],
    logits: Tensor,
    tokens: Tensor,
    positions: Tensor,
    lengths: Tensor,
    cache: KvCache,
    workspace: Workspace,
    norm: RmsNorm,
    rope: Rope,
    table: Embedding,
    sampler: Sampler,
}

impl Step {
    fn new(device: &Device) -> Result<Self> {
        let bf16 = |shape: &[usize]| randn(shape, DType::BF16, device);
        Ok(Self {
            x: bf16(&[2, 512])?,
            qkv: bf16(&[2, 8 * 64])?,
            q: bf16(&[2, 4, 64])?,
            out: bf16(&[2, 4, 64])?,
            prompt: [bf16(&[9, 4, 64])?, bf16(&[9, 4, 64])?],
            gates: [bf16(&[2, 64])?, bf16(&[2, 32])?],
            logits: randn(&[2, 1000], DType::F32, device)?,
            tokens: Tensor::zeros(2, DType::U32, device)?,
            positions: ints(&[9, 3], device)?,
            lengths: ints(&[10, 4], device)?,
            cache: blocks::filled(
                device,
                Shape { heads: 4, kv_heads: 2, head: 64, capacity: 32, dtype: DType::BF16, cache: DType::BF16 },
                2,
            )?,
            workspace: Workspace::new(2, 4, 64, device)?,
            norm: RmsNorm::new(bf16(&[512])?, 1e-5),
            rope: Rope::new(RopeStyle::Halves, 64, 1e4, device)?,
            table: Embedding::new(bf16(&[1000, 512])?, 512),
            sampler: Sampler::new(&[Sampling::new(0.8, 7).with(|s| s.top_k = 50), Sampling::greedy()], 1000, device)?,
        })
    }

    fn run(&self) -> Result<()> {
        let settings = Settings::new(64);
        self.table.forward_into(&self.tokens, &self.x, None)?;
        self.norm.forward_into(&self.x, &self.x)?;
        let (cache, workspace) = (&self.cache, &self.workspace);
        let at = [&self.positions, &self.lengths];
        attention::append_decode_into(
            &self.qkv,
            cache,
            at,
            None,
            &self.rope,
            &settings,
            workspace,
            [&self.q, &self.out],
        )?;
        attention::prefill_into(&self.prompt[0], cache, 0, 0, &settings, workspace, &self.prompt[1])?;
        gate_into(&self.gates[0], Gate::Halves, GateFunction::SwiGlu, &self.gates[1])?;
        self.sampler
            .choose(&self.logits, &Next { lengths: Some(&self.lengths), ..Next::new(&self.tokens, &self.positions) })
    }

    /// All that a step changes, in one list.
    fn state(&self) -> Result<Vec<f64>> {
        let tensors = [&self.x, &self.q, &self.out, &self.prompt[1], &self.gates[1], self.cache.k(), self.cache.v()];
        let mut all = Vec::new();
        for tensor in tensors {
            all.extend(exact(tensor)?);
        }
        all.extend(self.tokens.to_device(&Device::Cpu)?.to_vec1::<u32>()?.into_iter().map(f64::from));
        for tensor in [&self.positions, &self.lengths] {
            all.extend(tensor.to_device(&Device::Cpu)?.to_vec1::<u32>()?.into_iter().map(f64::from));
        }
        Ok(all)
    }

    /// What a step reads and changes, as it was at the start.
    fn reset(&self, device: &Device) -> Result<()> {
        self.tokens.slice_set(&Tensor::new(&[5u32, 6], device)?, 0, 0)?;
        self.positions.slice_set(&ints(&[9, 3], device)?, 0, 0)?;
        self.lengths.slice_set(&ints(&[10, 4], device)?, 0, 0)
    }
}

/// A graph of all blocks, captured in each mode, gives the bits of the launches one by one, twice; and the launches allocate nothing.
fn in_graphs(device: &Device) -> Result<()> {
    candle_tilegemm::prepare(device)?;
    let step = Step::new(device)?;
    as_launched(device, "a step", || step.reset(device), || step.run(), || step.state())
}
