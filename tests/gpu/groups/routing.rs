//! What groups the rows of a test's products are in: edges of tiles, empty groups, stray rows.

use candle_tilegemm::problem::{Activation, Bounds, Gate, Groups, Rows};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::Rng;

/// Where rows go.
#[derive(Clone)]
pub struct Routing {
    pub groups: Groups,
    pub m: usize,
    /// First rows, or the group of each row.
    pub bounds: Vec<u32>,
    pub pairs: Vec<u32>,
    pub scales: Vec<f32>,
    /// The group, if any, and the row of D of each row; none of a row that is left out.
    pub places: Vec<Option<(Option<usize>, usize)>>,
}

/// What a routing is made of.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub bounds: Bounds,
    pub rows: Rows,
    pub scaled: bool,
    /// Rows of no group behind the last group. With any, there are rows before the first group, too, and pairs that do not exist.
    pub strays: usize,
    pub gate: Option<(Gate, Activation)>,
}

pub const KINDS: [Kind; 11] = {
    let plain = Kind { bounds: Bounds::FirstRow, rows: Rows::InOrder, scaled: false, strays: 0, gate: None };
    let listed = Rows::Listed { pairs_per_row: 8 };
    let candle = Kind { bounds: Bounds::GroupOfRow, rows: listed, ..plain };
    let gated = Kind { rows: listed, gate: Some((Gate::Halves, Activation::Silu)), ..plain };
    [
        candle,
        Kind { rows: Rows::Listed { pairs_per_row: 1 }, scaled: true, ..candle },
        plain,
        Kind { strays: 5, scaled: true, rows: Rows::Listed { pairs_per_row: 3 }, ..plain },
        Kind { strays: 5, ..candle },
        Kind { bounds: Bounds::GroupOfRow, strays: 700, scaled: true, ..plain },
        gated,
        Kind { gate: Some((Gate::Interleaved, Activation::GeluErf)), scaled: true, ..candle },
        Kind { gate: Some((Gate::Halves, Activation::GeluTanh)), strays: 300, ..candle },
        Kind { gate: Some((Gate::Interleaved, Activation::Relu)), ..plain },
        Kind { gate: Some((Gate::Halves, Activation::Identity)), scaled: true, ..gated },
    ]
};

pub fn routing(counts: &[usize], kind: Kind, rng: &mut StdRng) -> Routing {
    let behind = kind.strays;
    let before = if behind > 0 && kind.bounds == Bounds::FirstRow { 3 } else { 0 };
    let in_groups: usize = counts.iter().sum();
    let m = before + in_groups + behind;
    let group_of: Vec<usize> = counts.iter().enumerate().flat_map(|(group, &rows)| vec![group; rows]).collect();
    let bounds = match kind.bounds {
        Bounds::FirstRow => {
            let mut next = before;
            let firsts = counts.iter().map(|rows| {
                next += rows;
                (next - rows) as u32
            });
            let mut bounds: Vec<u32> = firsts.collect();
            bounds.push(next as u32);
            bounds
        }
        _ => {
            let stray = [0, 1, 1000, 1 << 31, u32::MAX].map(|more: u32| more.saturating_add(counts.len() as u32));
            let strays = stray.into_iter().chain(std::iter::repeat(u32::MAX)).take(behind);
            group_of.iter().map(|group| *group as u32).chain(strays).collect()
        }
    };
    let mut pairs: Vec<u32> = (0..m as u32).collect();
    if let Rows::Listed { .. } = kind.rows {
        pairs.shuffle(rng);
        if kind.strays > 0 {
            for stray in [m as u32, m as u32 + 7, 1 << 31, u32::MAX] {
                let at = rng.random_range(0..m);
                pairs[at] = stray;
            }
        }
    }
    let place = |i: usize| {
        let group = i.checked_sub(before).and_then(|i| group_of.get(i).copied());
        let pair = pairs[i] as usize;
        (pair < m).then_some((group, pair))
    };
    let places: Vec<_> = (0..m).map(place).collect();
    let mut scales: Vec<f32> = (0..m).map(|_| rng.random_range(0.1f32..1.5)).collect();
    for (_, pair) in places.iter().flatten().filter(|(group, _)| group.is_none()) {
        scales[*pair] = f32::NAN; // a row of no group has no factor
    }
    let groups =
        Groups::new(counts.len()).with(|g| (g.bounds, g.rows, g.scaled) = (kind.bounds, kind.rows, kind.scaled));
    Routing { groups, m, bounds, pairs, scales, places }
}

/// Numbers of rows of each group.
pub fn distributions(most: usize, rng: &mut StdRng) -> Vec<Vec<usize>> {
    let mut one_of_many = vec![0; 16];
    one_of_many[11] = 3 * most + 5;
    let mut skewed = vec![0; 64];
    for _ in 0..500 {
        let x: f64 = rng.random_range(0.0..1.0);
        skewed[(x.powi(4) * 64.0) as usize] += 1;
    }
    let mut decode = vec![0; 128];
    for group in [0, 3, 4, 31, 32, 100, 126, 127] {
        decode[group] = 1;
    }
    let mut many = vec![0; 1024];
    for _ in 0..300 {
        many[rng.random_range(0..1024)] += 1;
    }
    let edges = vec![0, 1, most - 1, most, most + 1, 0, 2 * most + 3, 8, 9, 0];
    vec![edges, one_of_many, skewed, decode, many, vec![7], vec![2 * most; 3]]
}
