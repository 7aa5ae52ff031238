//! Narrow weights over one another.

use super::scales::Scales;
use super::weight::QuantWeight;
use ::candle::{bail, Result};

impl QuantWeight {
    /// Whether [`stack`](Self::stack) takes the two.
    pub fn stacks_with(&self, other: &Self) -> bool {
        let form = |weight: &Self| (weight.codes, weight.shape[1], weight.scales.shared()[1].min(weight.shape[1]));
        form(self) == form(other) && self.gather == other.gather
    }

    /// Matrices over one another, as those of q, k and v, or those of a layer's experts.
    ///
    /// Where matrices have one factor each, the rows of all get a factor each. Different alphas become part of the factors. Factors of different formats are then in
    /// the narrowest of f16, bf16 and f32 that has them exactly.
    ///
    /// # Errors
    /// No matrices, and matrices of other codes, columns, groups or orders of columns.
    pub fn stack(parts: &[Self]) -> Result<Self> {
        let [first, rest @ ..] = parts else { bail!("QuantWeight: no matrices to stack") };
        if rest.is_empty() {
            return Ok(first.clone());
        }
        let group = |part: &Self| part.scales.shared()[1].min(part.shape[1]);
        for (i, part) in parts.iter().enumerate() {
            if (part.codes, part.shape[1], group(part)) != (first.codes, first.shape[1], group(first)) {
                bail!(
                    "QuantWeight: matrix {i} has {} columns of {} in groups of {}, the first has {} of {} in groups of {}; matrices in one stack have the same",
                    part.shape[1],
                    part.codes,
                    group(part),
                    first.shape[1],
                    first.codes,
                    group(first)
                );
            }
            if part.gather != first.gather {
                bail!("QuantWeight: matrix {i} has its columns in another order than the first; matrices in one stack have the same");
            }
        }
        let n = parts.iter().map(|part| part.shape[0]).sum();
        let factors = Factors::of(parts, n, group(first));
        Ok(Self {
            codes: first.codes,
            shape: [n, first.shape[1]],
            bytes: parts.iter().flat_map(|part| part.bytes.iter().copied()).collect(),
            zeros: factors.zeros(parts),
            scales: factors.scales(parts),
            alpha: if factors.has_alpha { 1.0 } else { first.alpha },
            gather: first.gather.clone(),
        })
    }
}

impl QuantWeight {
    /// The same matrix with factors of their own for each row.
    pub(super) fn with_factors_of_rows(&self) -> Self {
        let [n, k] = self.shape;
        let group = self.scales.shared()[1].min(k);
        let count = n * k.div_ceil(group.max(1));
        let factors = Factors { shared: [1, group], strides: [1, n], count, has_alpha: false };
        let one = std::slice::from_ref(self);
        Self { scales: factors.scales(one), zeros: factors.zeros(one), ..self.clone() }
    }
}

/// How the factors of a stack lie.
struct Factors {
    shared: [usize; 2],
    strides: [usize; 2],
    count: usize,
    /// Whether alphas are part of the factors.
    has_alpha: bool,
}

impl Factors {
    fn of(parts: &[QuantWeight], n: usize, group: usize) -> Self {
        let (first, last) = (&parts[0], parts.len() - 1);
        let (rows, groups) = (first.scales.shared()[0], first.shape[1].div_ceil(group.max(1)));
        let is_whole = |(i, part): (usize, &QuantWeight)| {
            part.scales.shared()[0] == rows && (i == last || part.shape[0].is_multiple_of(rows))
        };
        let has_alpha = parts.iter().any(|part| part.alpha != first.alpha);
        // Blocks stay blocks where none has rows of two matrices.
        let (shared, strides, blocks) = if rows > 1 && groups > 1 && parts.iter().enumerate().all(is_whole) {
            ([rows, group], [groups, 1], n.div_ceil(rows))
        } else {
            ([1, group], [1, n], n)
        };
        Self { shared, strides, count: blocks * groups, has_alpha }
    }

    /// Calls `with` with the place of each factor in the stack, its matrix, and its place there.
    fn each<'a>(&self, parts: &'a [QuantWeight], mut with: impl FnMut(usize, &'a QuantWeight, usize)) {
        let mut above = 0;
        for part in parts {
            let [n, k] = part.shape;
            for row in (0..n).step_by(self.shared[0]) {
                for column in (0..k).step_by(self.shared[1].max(1)) {
                    let place =
                        (above + row) / self.shared[0] * self.strides[0] + column / self.shared[1] * self.strides[1];
                    with(place, part, part.scales.index(row, column));
                }
            }
            above += n;
        }
    }

    fn scales(&self, parts: &[QuantWeight]) -> Scales {
        let format = parts[0].scales.format();
        if self.has_alpha || parts.iter().any(|part| part.scales.format() != format) {
            let mut values = vec![0.0; self.count];
            self.each(parts, |place, part, index| {
                let alpha = if self.has_alpha { part.alpha } else { 1.0 };
                values[place] = part.scales.value(index) * alpha;
            });
            return Scales::narrowest(&values, self.shared, self.strides);
        }
        let size = format.bytes();
        let mut bytes = vec![0; self.count * size];
        self.each(parts, |place, part, index| {
            let from = &part.scales.bytes()[index * size..(index + 1) * size];
            bytes[place * size..(place + 1) * size].copy_from_slice(from);
        });
        Scales::new(format, bytes, self.shared, self.strides)
    }

    fn zeros(&self, parts: &[QuantWeight]) -> Option<Vec<u8>> {
        parts.iter().any(|part| part.zeros.is_some()).then(|| {
            let mut zeros = vec![0; self.count];
            self.each(parts, |place, part, index| {
                zeros[place] = part.zeros.as_ref().map_or(part.codes.middle(), |zeros| zeros[index]);
            });
            zeros
        })
    }
}
