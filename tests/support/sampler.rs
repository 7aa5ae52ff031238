//! The sampler's tokens, distributions and keys, on the CPU and on a GPU.

use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::{Next, Sampler, Sampling};

/// Settings by the field that a test changes.
pub fn drawn(change: impl Fn(&mut Sampling)) -> Sampling {
    Sampling::new(1.0, 0x1234_5678_9abc_def0).with(|settings| change(settings))
}

/// The tokens of rows at these positions.
pub fn tokens(device: &Device, rows: &Tensor, settings: Option<&[Sampling]>, position: i32) -> Result<Vec<u32>> {
    let (sequences, vocabulary) = rows.dims2()?;
    let sampler = match settings {
        None => Sampler::greedy(sequences, vocabulary, device)?,
        Some(settings) => Sampler::new(settings, vocabulary, device)?,
    };
    let tokens = Tensor::zeros(sequences, DType::U32, device)?;
    let positions = Tensor::from_vec(vec![position as u32; sequences], sequences, device)?;
    sampler.choose(&rows.to_device(device)?, &Next::new(&tokens, &positions))?;
    tokens.to_device(&Device::Cpu)?.to_vec1()
}

/// Rows of the same logits.
pub fn repeated(logits: &[f32], times: usize) -> Result<Tensor> {
    Tensor::new(logits, &Device::Cpu)?.unsqueeze(0)?.repeat((times, 1))
}

/// The largest logit: first of equals, infinities, NaN, and all types and odd vocabularies; with settings and without.
pub fn greedy(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for vocabulary in [1, 5, 100, 1003, 49152, 128_256] {
            let rows = Tensor::randn(0f32, 4f32, (3, vocabulary), &Device::Cpu)?.to_dtype(dtype)?;
            let expected = rows.to_dtype(DType::F32)?.to_vec2::<f32>()?.into_iter().map(|row| {
                let better = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
                (0..row.len()).fold(0, better) as u32
            });
            let expected: Vec<u32> = expected.collect();
            for settings in [None, Some(&[Sampling::greedy(); 3][..])] {
                let got = tokens(device, &rows, settings, 0)?;
                if got != expected {
                    bail!(
                        "{dtype:?}, {vocabulary} tokens, settings {}: {got:?}, expected {expected:?}",
                        settings.is_some()
                    );
                }
            }
        }
    }
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (logits, token) in [
        ([nan, 1.0, 1.0, 0.0], 1),
        ([nan, nan, -inf, -3.0], 3),
        ([0.0, inf, inf, nan], 1),
        ([-0.0, 0.0, -1.0, -2.0], 0),
    ] {
        for settings in [None, Some(&[Sampling::greedy()][..]), Some(&[drawn(|s| s.temperature = 1e-30)])] {
            let got = tokens(device, &repeated(&logits, 1)?, settings, 3)?;
            // A draw at almost no temperature is among equals.
            let is_equal = got[0] != token && settings.is_some_and(|s| s[0].temperature > 0.0);
            if got != [token] && !(is_equal && logits[got[0] as usize] == logits[token as usize]) {
                bail!("{logits:?}: {got:?}, expected {token}");
            }
        }
    }
    Ok(())
}

/// What a choice changes: tokens, positions, lengths and the history, the error, and nothing for rows of padding.
pub fn state(device: &Device) -> Result<()> {
    let logits = Tensor::new(&[[1f32, 2., 0.], [f32::NAN, f32::NEG_INFINITY, f32::NAN], [3., 0., 0.]], device)?;
    let u32s = |numbers: &[u32]| Tensor::new(numbers, device);
    for sampler in [Sampler::greedy(3, 3, device)?, Sampler::new(&[drawn(|s| s.top_k = 1); 3], 3, device)?] {
        let (tokens, positions, lengths) = (u32s(&[9, 9, 9])?, u32s(&[0, 1, 5])?, u32s(&[1, 2, 6])?);
        let (history, slots, error) = (Tensor::full(7u32, (3, 2), device)?, u32s(&[0, 1, u32::MAX])?, u32s(&[0])?);
        let next = Next {
            lengths: Some(&lengths),
            history: Some(&history),
            slots: Some(&slots),
            error: Some(&error),
            ..Next::new(&tokens, &positions)
        };
        sampler.choose(&logits, &next)?;
        let u = |t: &Tensor| t.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u32>();
        // The second row's position 2 is behind its history.
        let found = (u(&tokens)?, u(&positions)?, u(&lengths)?, u(&history)?, u(&error)?);
        let expected = (vec![1, 0, 9], vec![1, 2, 5], vec![2, 3, 6], vec![7, 1, 7, 7, 7, 7], vec![2]);
        if found != expected {
            bail!("tokens, positions, lengths, history, error: {found:?}, expected {expected:?}");
        }
    }
    Ok(())
}

/// How often each token is drawn, in `rows` sequences with numbers of their own.
pub fn counts(device: &Device, logits: &[f32], settings: Sampling, rows: usize) -> Result<Vec<f64>> {
    let settings: Vec<Sampling> = (0..rows).map(|s| settings.with(|settings| settings.sequence = s as u32)).collect();
    let mut counts = vec![0.0; logits.len()];
    for token in tokens(device, &repeated(logits, rows)?, Some(&settings), 11)? {
        counts[token as usize] += 1.0 / rows as f64;
    }
    Ok(counts)
}

/// Shares of drawn tokens are those of the softmax over the tokens that stay.
pub fn distributions(device: &Device) -> Result<()> {
    const ROWS: usize = 20_000;
    let probabilities = [0.4f64, 0.2, 0.2, 0.1, 0.06, 0.04];
    let logits = probabilities.map(|p| p.ln() as f32);
    let over = |stay: &[usize], power: f64| {
        let sum: f64 = stay.iter().map(|i| probabilities[*i].powf(power)).sum();
        (0..6).map(|i| if stay.contains(&i) { probabilities[i].powf(power) / sum } else { 0.0 }).collect::<Vec<f64>>()
    };
    let cases: [(&str, Sampling, Vec<f64>); 9] = [
        ("all", drawn(|_| ()), over(&[0, 1, 2, 3, 4, 5], 1.0)),
        ("temperature 0.5", drawn(|s| s.temperature = 0.5), over(&[0, 1, 2, 3, 4, 5], 2.0)),
        ("top-k 1", drawn(|s| s.top_k = 1), over(&[0], 1.0)),
        ("top-k 2, a tie", drawn(|s| s.top_k = 2), over(&[0, 1, 2], 1.0)),
        ("top-k 9", drawn(|s| s.top_k = 9), over(&[0, 1, 2, 3, 4, 5], 1.0)),
        ("top-p 0.85", drawn(|s| s.top_p = 0.85), over(&[0, 1, 2, 3], 1.0)),
        ("top-p 0", drawn(|s| s.top_p = 0.0), over(&[0], 1.0)),
        ("min-p 0.2", drawn(|s| s.min_p = 0.2), over(&[0, 1, 2, 3], 1.0)),
        ("top-k 4, top-p 0.8", drawn(|s| (s.top_k, s.top_p) = (4, 0.8)), over(&[0, 1, 2], 1.0)),
    ];
    for (what, settings, expected) in cases {
        let got = counts(device, &logits, settings, ROWS)?;
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            // Five standard deviations.
            let bound = 5.0 * (expected * (1.0 - expected) / ROWS as f64).sqrt() + 1e-9;
            if (got - expected).abs() > bound {
                bail!("{what}: token {i} has the share {got:.4}, expected {expected:.4}");
            }
        }
    }
    Ok(())
}

/// The penalty is for the newest tokens of the history, and for logits of both signs.
pub fn penalties(device: &Device) -> Result<()> {
    let logits = Tensor::new(&[[3f32, 2., 1., -1., -2.]], device)?;
    for (last_n, position, penalty, token) in
        [(0, 2i32, 4.0, 2), (1, 2, 4.0, 0), (0, 0, 4.0, 1), (0, -1, 4.0, 0), (0, 2, 1.0, 0), (2, 2, 0.1, 1)]
    {
        let set = Sampling::greedy().with(|s| (s.last_n, s.repetition_penalty) = (last_n, penalty));
        let sampler = Sampler::new(&[set], 5, device)?;
        let (tokens, positions) = (Tensor::zeros(1, DType::U32, device)?, Tensor::new(&[position as u32], device)?);
        let history = Tensor::new(&[[0u32, 1, 1, 4]], device)?;
        sampler.choose(&logits, &Next { history: Some(&history), ..Next::new(&tokens, &positions) })?;
        let got = tokens.to_device(&Device::Cpu)?.to_vec1::<u32>()?;
        if got != [token] {
            bail!("last {last_n} at {position}, penalty {penalty}: {got:?}, expected {token}");
        }
    }
    Ok(())
}

/// A draw depends on the row's logits, seed, sequence and position alone.
pub fn keys(device: &Device) -> Result<()> {
    let rows = Tensor::randn(0f32, 1f32, (32, 5000), &Device::Cpu)?;
    let settings: Vec<Sampling> = (0..32).map(|s| drawn(|set| set.sequence = s)).collect();
    let together = tokens(device, &rows, Some(&settings), 5)?;
    for s in [0, 13, 31] {
        let alone = tokens(device, &rows.narrow(0, s, 1)?, Some(&settings[s..=s]), 5)?;
        if alone[0] != together[s] {
            bail!("sequence {s} draws {} alone, {} among others", alone[0], together[s]);
        }
    }
    let of =
        |change: &dyn Fn(&mut Sampling)| -> Vec<Sampling> { settings.iter().map(|s| s.with(|s| change(s))).collect() };
    let others = [
        tokens(device, &rows, Some(&settings), 6)?,
        tokens(device, &rows, Some(&of(&|s| s.seed ^= 1)), 5)?,
        tokens(device, &rows, Some(&of(&|s| s.seed ^= 1 << 40)), 5)?,
        tokens(device, &rows, Some(&of(&|s| s.sequence += 100)), 5)?,
    ];
    for (i, other) in others.iter().enumerate() {
        let same = other.iter().zip(&together).filter(|(x, y)| x == y).count();
        if same > 4 {
            bail!("change {i} leaves {same} of 32 tokens as they were");
        }
    }
    match tokens(device, &rows, Some(&settings), 5)? == together {
        true => Ok(()),
        false => bail!("the same draw gives other tokens"),
    }
}
