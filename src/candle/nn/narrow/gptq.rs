//! Weights as GPTQ stores them (auto-gptq, gptqmodel).

use super::bits::{codes_of_whole_words, words, Stream};
use super::codes::Codes;
use super::scales::Scales;
use super::scheme::{Gptq, GptqZeros};
use super::tensors::{Array, Module};
use super::weight::QuantWeight;
use ::candle::{bail, Result};

/// Reads `qweight`, `qzeros`, `scales` and `g_idx`.
///
/// `qweight` has codes packed along K from the lowest bit on, (K * bits / 32, N); `qzeros` has zero points packed along N, (groups, N * bits / 32); `scales` is
/// (groups, N). In act order column k has group `g_idx[k]`.
pub(super) fn read(of: &Module, [n, k]: [usize; 2], scheme: &Gptq) -> Result<QuantWeight> {
    let Gptq { bits, group, symmetric, zeros: kind } = *scheme;
    let group = group.unwrap_or(k).max(1);
    let groups = k.div_ceil(group);
    let (height, of_words) = (words(k, bits), codes_of_whole_words(bits));
    of.uncut("columns", [k, of_words], height, || Ok(of.words("qweight")?.dims.first().copied()))?;
    of.uncut("columns", [k, group], groups, || Ok(of.floats("scales")?.dims.first().copied()))?;
    let packed = of.shaped(&[height, n]).words("qweight")?.values;
    let scales = of.shaped(&[groups, n]).floats("scales")?.values;
    let middle = 1 << (bits - 1);
    let mut zeros = vec![middle; groups * n];
    if of.has("qzeros") {
        let stride = words(n, bits);
        of.uncut("rows", [n, of_words], n, || Ok(of.floats("scales")?.dims.get(1).copied()))?;
        let mut stored = of.shaped(&[groups, stride]).words("qzeros")?.values;
        let add = match kind {
            GptqZeros::AsTheyAre => 0,
            GptqZeros::LessOneBorrowed if bits != 3 => {
                let ones = (0..32 / bits).map(|code| 1 << (code * bits)).sum();
                stored.iter_mut().for_each(|word| *word = u32::wrapping_add(*word, ones));
                0
            }
            // Codes of 3 bits straddle words: gptqmodel takes 1 from each for itself.
            GptqZeros::LessOne | GptqZeros::LessOneBorrowed => 1,
        };
        let mask = u8::MAX >> (8 - bits);
        for (group, zeros) in zeros.chunks_mut(n.max(1)).enumerate() {
            let stream = Stream { words: &stored, first: group * stride, stride: 1, bits };
            zeros.iter_mut().enumerate().for_each(|(n, zero)| *zero = stream.code(n).wrapping_add(add) & mask);
        }
    } else if !symmetric {
        bail!("{}.qzeros: no such tensor, and the weights are not symmetric (sym: false)", of.path());
    }
    let gather = match of.has("g_idx") {
        true => {
            let of_columns = of.integers("g_idx")?; // of all, on a rank that has a part of them, too
            order(&of_columns, k, scheme.group.unwrap_or(of_columns.values.len()).max(1))?
        }
        false => None,
    };
    // Symmetric codes need no zero points: those of fewer than 4 bits are moved to the middle of 4.
    let is_symmetric = zeros.iter().all(|zero| *zero == middle);
    let (codes, change) = match (bits, is_symmetric) {
        (8, true) => (Codes::I8, middle),
        (8, false) => (Codes::U8, 0),
        (_, true) => (Codes::U4, Codes::U4.middle() - middle),
        (_, false) => (Codes::U4, 0),
    };
    let scales = Scales::narrowest(&scales, [1, group], [1, n]);
    let weight = QuantWeight::pack(codes, [n, k], scales, (!is_symmetric).then_some(zeros), |first, rows| {
        for at in 0..k {
            let from = gather.as_ref().map_or(at, |gather| gather[at] as usize);
            for (row, codes) in rows.chunks_exact_mut(k).enumerate() {
                let stream = Stream { words: &packed, first: first + row, stride: n, bits };
                // 8 bits: the same sum with the sign's bit changed; fewer: moved.
                codes[at] = stream.code(from).wrapping_add(change);
            }
        }
    });
    Ok(weight.with_gather(gather))
}

/// The `k` columns sorted by their groups; none where they lie so. `groups` has those of all columns, of which a rank may have a part.
pub(super) fn order(groups: &Array<i64>, k: usize, group: usize) -> Result<Option<Vec<u32>>> {
    let (of, all) = (|k: &usize| groups.values[*k], groups.values.len());
    if groups.dims.len() != 1 || (all != k && !all.is_multiple_of(k)) {
        bail!("{}: the shape is {:?}; expected {:?}", groups.name, groups.dims, [k]);
    }
    if (0..all).all(|k| of(&k) == (k / group) as i64) {
        return Ok(None);
    }
    if all != k {
        bail!(
            "{}: {all} columns are in act order, and a rank has {k} of them; expected one rank, or a checkpoint without act order (desc_act: false)",
            groups.name
        );
    }
    let mut order: Vec<usize> = (0..groups.values.len()).collect();
    order.sort_by_key(of);
    if let Some(at) = (0..order.len()).find(|at| of(&order[*at]) != (at / group) as i64) {
        bail!(
            "{}: column {at} in the order of groups is of group {}; expected group {}, as each has {group} columns",
            groups.name,
            of(&order[at]),
            at / group
        );
    }
    Ok(Some(order.into_iter().map(|k| k as u32).collect()))
}
