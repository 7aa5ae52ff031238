//! Floating point of 8 and 4 bits: fp8, NVFP4 and MXFP4.

use super::codes::Codes;
use super::scales::{ScaleFormat, Scales};
use super::scheme::{Fp8, Granularity, Nvfp4};
use super::tensors::{Array, Module};
use super::weight::QuantWeight;
use ::candle::{bail, Result};

/// Numbers of MXFP4 that share a power of two.
pub(super) const MX_GROUP: usize = 32;
/// Numbers of NVFP4 that share a factor.
pub(super) const NV_GROUP: usize = 16;
/// The block of checkpoints whose config does not say it.
const BLOCK: [usize; 2] = [128, 128];

/// Reads `weight` in F8_E4M3, (N, K), and its factors, `weight_scale_inv` or `weight_scale`: one, one for each row, one for each block, or one for each of `parts`,
/// the rows of matrices that were merged.
pub(super) fn read_fp8(of: &Module, [n, k]: [usize; 2], parts: &[usize], scheme: &Fp8) -> Result<QuantWeight> {
    let name = if of.has("weight_scale_inv") { "weight_scale_inv" } else { "weight_scale" };
    let weight = of.shaped(&[n, k]).fp8("weight")?.values;
    fp8(&weight, [n, k], &fp8_factors(of, name, [n, k], parts, scheme.granularity)?, parts, scheme.granularity)
}

/// The rows and columns that share a factor of weights with `n` rows; none of factors of rows or of the whole.
pub(super) fn factors_of_blocks(of: &Module, n: usize, granularity: Option<Granularity>) -> Result<Option<[usize; 2]>> {
    let name = if of.has("weight_scale_inv") { "weight_scale_inv" } else { "weight_scale" };
    let factors = of.floats(name)?;
    let is_of_rows = factors.values.len() == 1 || factors.dims.len() != 2 || factors.dims == [n, 1];
    Ok(block(granularity).filter(|_| !is_of_rows))
}

/// The factors of (n, k) weights. On a rank all are read, which are few: their shape says whose they are.
fn fp8_factors(
    of: &Module,
    name: &str,
    [n, k]: [usize; 2],
    parts: &[usize],
    granularity: Option<Granularity>,
) -> Result<Array<f32>> {
    let all = of.floats(name)?;
    let rows = if all.dims.len() == 1 { vec![n] } else { vec![n, 1] };
    let is_list = all.dims.get(1).is_none_or(|columns| *columns == 1);
    let of_parts = all.values.len() == parts.len() && is_list;
    if all.values.len() == 1 || of_parts || all.dims == rows {
        return Ok(all);
    }
    if let [_] | [_, 1] = all.dims[..] {
        if let Ok(of_rank) = of.shaped(&rows).floats(name) {
            return Ok(of_rank);
        }
    }
    let Some(block) = block(granularity).filter(|_| all.dims.len() == 2) else { return Ok(all) };
    let blocks = [n.div_ceil(block[0]), k.div_ceil(block[1])];
    of.uncut("rows", [n, block[0]], blocks[0], || Ok(Some(all.dims[0])))?;
    of.uncut("columns", [k, block[1]], blocks[1], || Ok(Some(all.dims[1])))?;
    if all.dims == blocks {
        return Ok(all);
    }
    of.shaped(&blocks).floats(name).or(Ok(all))
}

/// Rows and columns that share a factor, unless all of a row or of the tensor do.
fn block(granularity: Option<Granularity>) -> Option<[usize; 2]> {
    match granularity {
        Some(Granularity::Block(block)) => Some(block),
        Some(Granularity::Group(group)) => Some([1, group]),
        None => Some(BLOCK),
        _ => None,
    }
}

/// The same from numbers: `weight` has codes, row after row.
pub(super) fn fp8(
    weight: &[u8],
    [n, k]: [usize; 2],
    scale: &Array<f32>,
    parts: &[usize],
    granularity: Option<Granularity>,
) -> Result<QuantWeight> {
    let values = &scale.values;
    let blocks = |[rows, columns]: [usize; 2]| [n.div_ceil(rows), k.div_ceil(columns)];
    let is_rows = scale.dims == [n] || scale.dims == [n, 1];
    // Without a config the factors' shape says whether there are blocks.
    let block = block(granularity).filter(|_| granularity.is_some() || (scale.dims.len() == 2 && !is_rows));
    let scales = match block {
        Some(block) if scale.dims == blocks(block) && values.len() > 1 => block_scales(values, [n, k], block),
        _ if values.len() == 1 => Scales::rounded(ScaleFormat::F32, values, [n.max(1), k.max(1)], [1, 1]),
        _ if is_rows => Scales::rounded(ScaleFormat::F32, values, [1, k.max(1)], [1, n]),
        _ if values.len() == parts.len() && parts.iter().sum::<usize>() == n => {
            let rows = parts.iter().zip(values).flat_map(|(rows, scale)| std::iter::repeat_n(*scale, *rows));
            Scales::rounded(ScaleFormat::F32, &rows.collect::<Vec<_>>(), [1, k.max(1)], [1, n])
        }
        Some(block) if scale.dims.len() == 2 => {
            bail!("{}: the shape is {:?}; expected {:?}, one for {block:?} weights", scale.name, scale.dims, blocks(block))
        }
        _ => bail!(
            "{}: the shape is {:?}; expected one factor, or one for each of {n} rows; of merged matrices, say the rows of each (linear_quantized_parts)",
            scale.name,
            scale.dims
        ),
    };
    Ok(bytes(weight, [n, k], scales))
}

/// Weights of codes in e4m3, row after row.
fn bytes(codes: &[u8], [n, k]: [usize; 2], scales: Scales) -> QuantWeight {
    QuantWeight::pack(Codes::F8E4M3, [n, k], scales, None, |first, rows| {
        rows.copy_from_slice(&codes[first * k..first * k + rows.len()]);
    })
}

/// Factors of blocks, K contiguous as checkpoints have them, in bf16 if it has them exactly, otherwise in f32; those of groups in a row, N contiguous.
fn block_scales(values: &[f32], [n, k]: [usize; 2], [rows, columns]: [usize; 2]) -> Scales {
    if rows == 1 {
        return Scales::narrowest(&transposed(values, [n, k.div_ceil(columns)]), [1, columns], [1, n]);
    }
    let is_bf16 = |x: &f32| x.is_nan() || x.to_bits() & 0xffff == 0;
    let format = if values.iter().all(is_bf16) { ScaleFormat::BF16 } else { ScaleFormat::F32 };
    Scales::rounded(format, values, [rows, columns], [k.div_ceil(columns), 1])
}

/// Reads codes in `weight_packed` or `weight`, (N, K / 2), factors in e4m3, (N, K / 16), and the factor of all.
pub(super) fn read_nvfp4(of: &Module, shape: [usize; 2], kind: Nvfp4) -> Result<QuantWeight> {
    let [n, k] = shape;
    let name = match kind {
        Nvfp4::CompressedTensors => "weight_packed",
        Nvfp4::ModelOpt => "weight",
    };
    check_pairs(of, k)?;
    let groups = k.div_ceil(NV_GROUP);
    of.uncut("columns", [k, NV_GROUP], groups, || Ok(of.fp8("weight_scale")?.dims.get(1).copied()))?;
    let packed = of.shaped(&[n, k / 2]).nibbles(name)?.values;
    let scales = of.shaped(&[n, groups]).fp8("weight_scale")?.values;
    let one = |name: &str| -> Result<f32> {
        match of.floats(name)?.values[..] {
            [factor] => Ok(factor),
            ref others => bail!("{}.{name}: {} factors; expected one", of.path(), others.len()),
        }
    };
    let alpha = match kind {
        Nvfp4::CompressedTensors => 1.0 / one("weight_global_scale")?,
        Nvfp4::ModelOpt => one("weight_scale_2")?,
    };
    let scales = Scales::new(ScaleFormat::E4M3, transposed(&scales, [n, groups]), [1, NV_GROUP], [1, n]);
    Ok(pairs(&packed, shape, scales).with_alpha(alpha))
}

/// Reads codes in `weight_packed`, (N, K / 2), and powers of two in `weight_scale`, (N, K / 32).
pub(super) fn read_mxfp4(of: &Module, shape: [usize; 2]) -> Result<QuantWeight> {
    let [n, k] = shape;
    check_pairs(of, k)?;
    let packed = of.shaped(&[n, k / 2]).nibbles("weight_packed")?.values;
    Ok(mxfp4(&packed, shape, &mx_scales(of, shape)?))
}

/// Reads `weight` in F8_E4M3, (N, K), and powers of two in `weight_scale`, (N, K / 32).
pub(super) fn read_mxfp8(of: &Module, [n, k]: [usize; 2]) -> Result<QuantWeight> {
    let groups = k.div_ceil(MX_GROUP);
    let weight = of.shaped(&[n, k]).fp8("weight")?.values;
    let scales = mx_scales(of, [n, k])?;
    let scales = Scales::new(ScaleFormat::E8M0, transposed(&scales, [n, groups]), [1, MX_GROUP], [1, n]);
    Ok(bytes(&weight, [n, k], scales))
}

/// Powers of two in `weight_scale`, (N, K / 32).
fn mx_scales(of: &Module, [n, k]: [usize; 2]) -> Result<Vec<u8>> {
    let groups = k.div_ceil(MX_GROUP);
    of.uncut("columns", [k, MX_GROUP], groups, || Ok(of.exponents("weight_scale")?.dims.get(1).copied()))?;
    Ok(of.shaped(&[n, groups]).exponents("weight_scale")?.values)
}

/// Reads `NAME_blocks`, (experts, n, k / 32, 16), and `NAME_scales`, (experts, n, k / 32), as gpt-oss has them: the matrices of all experts over one another.
pub(super) fn read_mxfp4_experts(of: &Module, name: &str, [experts, n, k]: [usize; 3]) -> Result<QuantWeight> {
    let groups = k.div_ceil(MX_GROUP);
    if !k.is_multiple_of(MX_GROUP) {
        bail!("{}.{name}_blocks: blocks have {MX_GROUP} columns; expected a multiple, not {k} columns", of.path());
    }
    let packed = of.shaped(&[experts, n, groups, MX_GROUP / 2]).bytes(&format!("{name}_blocks"))?.values;
    let scales = of.shaped(&[experts, n, groups]).exponents(&format!("{name}_scales"))?.values;
    Ok(mxfp4(&packed, [experts * n, k], &scales))
}

/// MXFP4 of pairs of codes, (N, K / 2), and powers of two, (N, K / 32).
fn mxfp4(packed: &[u8], [n, k]: [usize; 2], scales: &[u8]) -> QuantWeight {
    let scales = transposed(scales, [n, k.div_ceil(MX_GROUP)]);
    pairs(packed, [n, k], Scales::new(ScaleFormat::E8M0, scales, [1, MX_GROUP], [1, n]))
}

/// Weights of pairs of codes, the first in the low bits.
fn pairs(packed: &[u8], [n, k]: [usize; 2], scales: Scales) -> QuantWeight {
    QuantWeight::pack(Codes::E2M1, [n, k], scales, None, |first, rows| {
        let packed = &packed[first * k / 2..];
        for (codes, pair) in rows.chunks_exact_mut(2).zip(packed) {
            codes.copy_from_slice(&[pair & 0xf, pair >> 4]);
        }
    })
}

fn check_pairs(of: &Module, k: usize) -> Result<()> {
    match k.is_multiple_of(2) {
        true => Ok(()),
        false => bail!("{}: two codes are a byte; expected an even number of columns, not {k}", of.path()),
    }
}

/// The numbers of a matrix column after column.
fn transposed<T: Copy>(values: &[T], [rows, columns]: [usize; 2]) -> Vec<T> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}
