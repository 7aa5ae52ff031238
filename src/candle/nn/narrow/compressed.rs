//! Integers as compressed-tensors stores them: packed, or a byte each.

use super::bits::{codes_of_whole_words, words, Stream};
use super::codes::Codes;
use super::gptq::order;
use super::scales::Scales;
use super::scheme::{Granularity, Integers};
use super::tensors::{Array, Module};
use super::weight::QuantWeight;
use ::candle::{bail, Result};

/// Reads `weight_packed`, `weight_scale`, `weight_shape`, and where they are there `weight_zero_point` and `weight_g_idx`.
///
/// Codes are unsigned, more by 2^(bits - 1) than the integers, packed along K from the lowest bit on, (N, K * bits / 32). Zero points are packed along N,
/// (N * bits / 32, groups).
pub(super) fn read_packed(of: &Module, [n, k]: [usize; 2], scheme: &Integers) -> Result<QuantWeight> {
    let bits = scheme.bits;
    if of.has("weight_shape") {
        let shape = of.integers("weight_shape")?;
        if !has_part(&shape.values, [n, k]) {
            bail!("{}: the shape is {:?}; expected {:?}", shape.name, shape.values, [n, k]);
        }
    }
    let (width, of_words) = (words(k, bits), codes_of_whole_words(bits));
    of.uncut("columns", [k, of_words], width, || Ok(of.words("weight_packed")?.dims.get(1).copied()))?;
    let packed = of.shaped(&[n, width]).words("weight_packed")?.values;
    let factors = Factors::read(of, [n, k], scheme)?;
    let middle = 1 << (bits - 1);
    let zeros = if scheme.symmetric {
        None
    } else if matches!(scheme.granularity, Granularity::Tensor | Granularity::Block(_)) {
        let zeros = in_shape(factors.stored, |dims| of.shaped(dims).bytes("weight_zero_point"))?;
        Some(factors.spread(&zeros, |zero| zero.wrapping_add(middle)))
    } else {
        let groups = factors.groups;
        of.uncut("rows", [n, of_words], n, || Ok(of.floats("weight_scale")?.dims.first().copied()))?;
        let stored = of.shaped(&[words(n, bits), groups]).words("weight_zero_point")?.values;
        let zero = |at: usize| Stream { words: &stored, first: at / n, stride: groups, bits }.code(at % n);
        Some((0..groups * n).map(zero).collect::<Vec<u8>>())
    };
    let zeros = zeros.filter(|zeros| zeros.iter().any(|zero| *zero != middle));
    let gather = match of.has("weight_g_idx") {
        true => {
            let of_columns = of.integers("weight_g_idx")?; // of all, on a rank that has a part of them, too
            let [_, group] = scheme.granularity.shared([n, of_columns.values.len()]);
            group_order(&of_columns, k, group)?
        }
        false => None,
    };
    let (codes, change) = match (bits, &zeros) {
        (8, None) => (Codes::I8, middle),
        (8, Some(_)) => (Codes::U8, 0),
        (_, None) => (Codes::U4, Codes::U4.middle() - middle),
        (_, Some(_)) => (Codes::U4, 0),
    };
    let weight = QuantWeight::pack(codes, [n, k], factors.scales(), zeros, |first, rows| {
        for (row, codes) in rows.chunks_exact_mut(k).enumerate() {
            let stream = Stream { words: &packed, first: (first + row) * width, stride: 1, bits };
            for (at, code) in codes.iter_mut().enumerate() {
                let from = gather.as_ref().map_or(at, |gather| gather[at] as usize);
                *code = stream.code(from).wrapping_add(change);
            }
        }
    });
    Ok(weight.with_gather(gather))
}

/// Whether weights of a shape are all of these, or a rank's part of the rows or of the columns.
fn has_part(all: &[i64], part: [usize; 2]) -> bool {
    let [n, k] = part.map(|size| size as i64);
    match *all {
        [rows, columns] if rows == n => columns == k || (k > 0 && columns % k == 0),
        [rows, columns] => columns == k && n > 0 && rows % n == 0,
        _ => false,
    }
}

/// The order of columns; the library writes -1 everywhere where there is none.
pub(super) fn group_order(groups: &Array<i64>, k: usize, group: usize) -> Result<Option<Vec<u32>>> {
    match groups.values.iter().all(|group| *group == -1) {
        true => Ok(None),
        false => order(groups, k, group),
    }
}

/// Reads `weight` in I8, (N, K), `weight_scale` and, where the weights are not symmetric, `weight_zero_point` in I8.
pub(super) fn read_bytes(of: &Module, [n, k]: [usize; 2], scheme: &Integers) -> Result<QuantWeight> {
    let weight = of.shaped(&[n, k]).bytes("weight")?.values;
    let factors = Factors::read(of, [n, k], scheme)?;
    let zeros = match scheme.symmetric {
        true => None,
        false => {
            let zeros = in_shape(factors.stored, |dims| of.shaped(dims).bytes("weight_zero_point"))?;
            Some(factors.spread(&zeros, |zero| zero.wrapping_add(128)))
        }
    };
    let zeros = zeros.filter(|zeros| zeros.iter().any(|zero| *zero != 128));
    let (codes, change) = if zeros.is_some() { (Codes::U8, 128) } else { (Codes::I8, 0) };
    Ok(QuantWeight::pack(codes, [n, k], factors.scales(), zeros, |first, rows| {
        let weight = &weight[first * k..first * k + rows.len()];
        rows.iter_mut().zip(weight).for_each(|(code, weight)| *code = weight.wrapping_add(change));
    }))
}

/// Factors for each row and group, (groups, N), or for blocks, (N / rows, K / columns).
struct Factors {
    values: Vec<f32>,
    /// Rows and columns of the stored factors.
    stored: [usize; 2],
    shape: [usize; 2],
    /// Rows and columns that share a stored factor.
    rows: usize,
    group: usize,
    groups: usize,
}

impl Factors {
    fn read(of: &Module, [n, k]: [usize; 2], scheme: &Integers) -> Result<Self> {
        let [rows, group] = scheme.granularity.shared([n, k]);
        let stored = [n.div_ceil(rows.max(1)), k.div_ceil(group.max(1))];
        let of_dimension = |at: usize| Ok(of.floats("weight_scale")?.dims.get(at).copied());
        of.uncut("rows", [n, rows], stored[0], || of_dimension(0))?;
        of.uncut("columns", [k, group], stored[1], || of_dimension(1))?;
        let scale = in_shape(stored, |dims| of.shaped(dims).floats("weight_scale"))?;
        let mut factors = Self { values: vec![], stored, shape: [n, k], rows, group, groups: stored[1] };
        factors.values = factors.spread(&scale, |scale| scale);
        Ok(factors)
    }

    /// For each group and row the number that is stored for it.
    fn spread<T: Copy, U>(&self, of: &Array<T>, with: impl Fn(T) -> U) -> Vec<U> {
        let n = self.shape[0];
        let at = |at: usize| (at % n / self.rows) * self.groups + at / n;
        (0..self.groups * n).map(|place| with(of.values[at(place)])).collect()
    }

    fn scales(&self) -> Scales {
        Scales::narrowest(&self.values, [1, self.group], [1, self.shape[0]])
    }
}

/// So many rows and groups of factors: one a row may be (N), (N, 1) or (1, N), one of a tensor () or (1).
fn in_shape<T>([rows, groups]: [usize; 2], read: impl Fn(&[usize]) -> Result<Array<T>>) -> Result<Array<T>> {
    let mut others = vec![];
    if rows == 1 || groups == 1 {
        others.extend([vec![rows * groups], vec![groups, rows]]);
    }
    if rows * groups == 1 {
        others.push(vec![]);
    }
    read(&[rows, groups]).or_else(|error| others.iter().find_map(|dims| read(dims).ok()).ok_or(error))
}
