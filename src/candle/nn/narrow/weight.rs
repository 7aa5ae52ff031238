//! Narrow weights on the host, as kernels read them.

use super::codes::Codes;
use super::scales::Scales;
use ::candle::{Device, Result, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Rows that are read together: a column of a checkpoint's words that lie side by side is in one line of the cache.
const TILE: usize = 16;

/// A weight matrix, (out, in), in narrow codes, as kernels read it.
///
/// The weight (n, k) is `(code - zero) * scale * alpha`, where zero and scale are those of the group that has (n, k).
///
/// - **Codes**: row n starts at byte `n * row_bytes`, which is a multiple of 16. Codes of 8 bits lie in order. Of codes of 4 bits, 16 bytes hold 32 in an order
///   that suits tensor cores, and rows are padded to a multiple of 32 by codes of zero.
/// - **Scales**: a matrix of their own, with strides ([`Scales`]).
/// - **Zero points**: a byte each, in a matrix with the strides of the scales. Without it they are 8 in `U4`, 128 in `U8`, and 0 elsewhere.
/// - **Gather**: where columns were sorted by group (GPTQ's act order), the column of x that column k meets.
///
/// ```
/// use candle::{Device, Tensor};
/// use candle_tilegemm::nn::narrow::{Codes, QuantWeight, Quantizer};
///
/// let weight = Tensor::new(&[[127f32, -3., 64.], [0., 254., -2.]], &Device::Cpu)?;
/// let narrow = QuantWeight::quantize(&weight, Quantizer::Int8 { group: None })?; // factors of 1 and 2
/// assert_eq!((narrow.codes(), narrow.shape(), narrow.row_bytes()), (Codes::I8, [2, 3], 16));
/// assert_eq!(narrow.bytes()[..3], [127, -3i8 as u8, 64]);
/// assert_eq!(narrow.dequantize(), [127., -3., 64., 0., 254., -2.]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct QuantWeight {
    pub(super) codes: Codes,
    pub(super) shape: [usize; 2],
    pub(super) bytes: Vec<u8>,
    pub(super) scales: Scales,
    pub(super) zeros: Option<Vec<u8>>,
    pub(super) alpha: f32,
    pub(super) gather: Option<Vec<u32>>,
}

impl QuantWeight {
    /// Packs codes. `read` writes those of `rows` rows from `first` on, one a byte, row after row.
    pub(super) fn pack(
        codes: Codes,
        shape: [usize; 2],
        scales: Scales,
        zeros: Option<Vec<u8>>,
        read: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Self {
        let [n, k] = shape;
        let row_bytes = codes.row_bytes(k);
        let mut bytes = vec![0; n * row_bytes];
        if !bytes.is_empty() {
            bytes.par_chunks_mut(TILE * row_bytes).enumerate().for_each(|(tile, rows)| {
                let mut natural = vec![0; rows.len() / row_bytes * k];
                read(tile * TILE, &mut natural);
                for (i, (row, natural)) in rows.chunks_mut(row_bytes).zip(natural.chunks(k)).enumerate() {
                    let last = scales.index(tile * TILE + i, k - 1);
                    codes.pack_row(natural, zeros.as_ref().map_or(codes.middle(), |zeros| zeros[last]), row);
                }
            });
        }
        Self { codes, shape, bytes, scales, zeros, alpha: 1.0, gather: None }
    }

    pub(super) fn with_alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    pub(super) fn with_gather(self, gather: Option<Vec<u32>>) -> Self {
        Self { gather, ..self }
    }

    /// What the codes are.
    pub fn codes(&self) -> Codes {
        self.codes
    }

    /// Rows and columns: out and in.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The codes, row after row.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes from a row of codes to the next.
    pub fn row_bytes(&self) -> usize {
        self.codes.row_bytes(self.shape[1])
    }

    /// The factors.
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// The zero points, where they are stored.
    pub fn zeros(&self) -> Option<&[u8]> {
        self.zeros.as_deref()
    }

    /// The factor of all weights.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// The column of x that each column of codes meets, where columns are sorted.
    pub fn gather(&self) -> Option<&[u32]> {
        self.gather.as_deref()
    }

    /// The weights in f32, row after row, columns in the order of x. Each is `(code - zero) * scale`, rounded once, and for an alpha other than 1 times alpha.
    pub fn dequantize(&self) -> Vec<f32> {
        self.dequantize_rows(0..self.shape[0])
    }

    /// The weights of some rows, as [`dequantize`](Self::dequantize) has them.
    ///
    /// # Panics
    /// Where the matrix has no such rows.
    pub fn dequantize_rows(&self, rows: Range<usize>) -> Vec<f32> {
        let ([_, k], bytes) = (self.shape, self.row_bytes());
        let mut weights = vec![0.0; rows.len() * k];
        let codes = self.bytes[rows.start * bytes..rows.end * bytes].par_chunks(bytes.max(1));
        let lines = weights.par_chunks_mut(k.max(1)).zip(codes).enumerate();
        lines.for_each(|(n, (weights, codes))| self.dequantize_row(rows.start + n, codes, weights));
        weights
    }

    fn dequantize_row(&self, n: usize, row: &[u8], weights: &mut [f32]) {
        let k = weights.len();
        let (mut codes, group) = (vec![0; k], self.scales.shared()[1].min(k));
        self.codes.unpack_row(row, &mut codes);
        for first in (0..k).step_by(group) {
            let index = self.scales.index(n, first);
            let (scale, zero) = (self.scales.value(index), self.zero(index));
            for at in first..(first + group).min(k) {
                let column = self.gather.as_ref().map_or(at, |gather| gather[at] as usize);
                weights[column] = (self.codes.value(codes[at]) - zero) * scale;
            }
        }
        if self.alpha != 1.0 {
            weights.iter_mut().for_each(|weight| *weight *= self.alpha);
        }
    }

    fn zero(&self, index: usize) -> f32 {
        f32::from(self.zeros.as_ref().map_or(self.codes.middle(), |zeros| zeros[index]))
    }

    /// The weights, (out, in), as a tensor in f32 on the CPU.
    ///
    /// # Errors
    /// None is expected.
    pub fn to_tensor(&self) -> Result<Tensor> {
        Tensor::from_vec(self.dequantize(), (self.shape[0], self.shape[1]), &Device::Cpu)
    }
}
