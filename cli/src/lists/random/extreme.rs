//! Random products of extreme shapes: one extent is short and another is long. An estimate that is right for layers of models can be far off here.

use super::draw::{of_shares, Draw};
use crate::lists::Shape;
use candle_tilegemm::internal::suite::Size;
use candle_tilegemm::problem::{F32Mode, Format, Layout};

/// The name of the list.
pub(super) const CLASS: &str = "extreme";

/// The short and the long extent, of M, N and K, by the class. Each is as likely as another.
const KINDS: [(&str, usize, usize); 6] = [
    ("short-m-long-n", 0, 1),
    ("short-m-long-k", 0, 2),
    ("short-n-long-m", 1, 0),
    ("short-n-long-k", 1, 2),
    ("short-k-long-m", 2, 0),
    ("short-k-long-n", 2, 1),
];
/// Formats by their shares in twentieths.
pub(super) const FORMATS: [(Format, usize); 4] =
    [(Format::BF16, 6), (Format::F16, 6), (Format::F32, 6), (Format::F64, 2)];
const LAYOUTS: [Layout; 4] = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
/// The short extent: octaves from 1 on. One in five has 8 to 16 elements.
const SHORT_OCTAVES: usize = 3;
/// The long extent: octaves from this on. All sizes are log-uniform.
const LONG: usize = 1 << 16;
const LONG_OCTAVES: usize = 7;
/// The third extent: octaves from 1 on.
const OCTAVES: usize = 14;
/// The most bytes of A, B and D together.
const MOST_BYTES: usize = 256 << 20;

/// The product of a seed and an index.
pub(super) fn product(seed: u64, index: usize) -> Shape {
    let mut draw = Draw::new(seed, 1 << 60 | index as u64);
    let (class, short, long) = draw.of(&KINDS);
    let (format, layout) = (of_shares(&mut draw, &FORMATS), draw.of(&LAYOUTS));
    let f32 = (format == Format::F32)
        .then(|| draw.of(&[F32Mode::Accurate, F32Mode::Accurate, F32Mode::Strict, F32Mode::Tf32]));
    // Half of all sizes have no alignment.
    let step = draw.of(&[1, 1, 8, 64]);
    loop {
        let mut sizes = [draw.octaves(OCTAVES).next_multiple_of(step); 3];
        sizes[short] = if draw.chance(80) { draw.octaves(SHORT_OCTAVES) } else { 8 + draw.below(9) };
        sizes[long] = (LONG * draw.octaves(LONG_OCTAVES) + draw.below(LONG)) / step * step;
        let [m, n, k] = sizes;
        if format.bytes(m * k + k * n + m * n) > MOST_BYTES {
            continue;
        }
        let size = |size: usize| Size::try_from(size).expect("sizes are above zero");
        return Shape {
            id: format!("random-{CLASS}-{seed}-{index:04}"),
            class: class.into(),
            f32,
            ..Shape::dense(sizes.map(size), Size::default(), layout, format)
        };
    }
}
