//! The place of tables in a document, and the distributions of the data.

mod f32;
mod gguf;
mod narrow;
#[cfg(feature = "candle")]
mod operands;

use super::data::{Kind, SIZE};
use super::files::{insert, markers};
use super::record::Subject;

#[test]
fn tables_go_between_the_markers_and_nowhere_else() {
    let marks = markers(Subject::F32);
    let document = "before\n<!-- tilegemm errors f32 -->\nold\n<!-- end of tilegemm errors f32 -->\nafter\n";
    let once = insert(document, &marks, "\n| new |\n").unwrap();
    assert_eq!(once, "before\n<!-- tilegemm errors f32 -->\n\n| new |\n\n<!-- end of tilegemm errors f32 -->\nafter\n");
    assert_eq!(insert(&once, &marks, "| new |").unwrap(), once);
    assert_eq!(insert("<!-- end of tilegemm errors f32 --> <!-- tilegemm errors f32 -->", &marks, ""), None);
    let documents = [
        (Subject::F32, include_str!("../../../docs/log/2026-11-f32-errors.md")),
        (Subject::Gguf, include_str!("../../../docs/log/2026-11-gguf-errors.md")),
        (Subject::Narrow, include_str!("../../../docs/log/2026-11-narrow-errors.md")),
    ];
    for (of, document) in documents {
        assert!(insert(document, &markers(of), "").is_some(), "a document has a place for the table of {}", of.name());
    }
}

#[test]
fn numbers_are_what_their_kind_says() {
    let all = |kind: Kind, side| -> Vec<f64> {
        (0..SIZE).flat_map(|index| kind.vector(side, 64, index)).map(f64::from).collect()
    };
    let within = |kind, least: f64, most: f64| all(kind, 0).iter().all(|x| (least..=most).contains(x));
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    for kind in Kind::OF_F32.into_iter().chain(Kind::OF_BLOCKS) {
        let values = all(kind, 0);
        assert_eq!(values.len(), SIZE * 64);
        assert!(values.iter().all(|x| x.is_finite()), "{kind}");
        assert_eq!(values, all(kind, 0), "{kind} is the same every time");
        assert_ne!(values, all(kind, 1), "{kind} in A and B");
    }
    let normal = all(Kind::Normal, 1);
    let squares: Vec<f64> = normal.iter().map(|x| x * x).collect();
    assert!(mean(&normal).abs() < 0.03 && (mean(&squares) - 1.0).abs() < 0.05);
    assert!(within(Kind::Positive, 0.0, 1.0) && (mean(&all(Kind::Positive, 0)) - 0.5).abs() < 0.02);
    assert!(within(Kind::Narrow, 1.003, 1.004) && within(Kind::Integers, -30.0, 30.0));
    for kind in [Kind::Integers, Kind::LargeIntegers] {
        assert!(all(kind, 0).iter().all(|x| x.fract() == 0.0), "{kind}");
    }
    for kind in [Kind::Wide, Kind::Scaled] {
        let sizes: Vec<f64> = all(kind, 0).iter().map(|x| x.abs().log10()).collect();
        let spread = |least, most| sizes.iter().any(|size| *size < least) && sizes.iter().any(|size| *size > most);
        assert!(if kind == Kind::Wide { spread(-13.0, 13.0) } else { spread(-28.0, 28.0) }, "{kind}");
    }
    let (a, b) = (Kind::Cancelling.vector(0, 64, 3), Kind::Cancelling.vector(1, 64, 5));
    let products: Vec<f64> = a.iter().zip(&b).map(|(&x, &y)| f64::from(x) * f64::from(y)).collect();
    assert!(products.chunks(2).all(|pair| (pair[0] + pair[1]).abs() <= 2e-5 * pair[0].abs()), "{products:?}");
    // A row of eight, and a column of 64, has numbers of another size.
    let most = |values: &[f32]| values.iter().map(|x| x.abs()).fold(0.0, f32::max);
    let rows: Vec<f32> = (0..16).map(|index| most(&Kind::OutlierRows.vector(0, 64, index))).collect();
    assert!(rows.iter().enumerate().all(|(index, most)| (*most > 500.0) == (index % 8 == 3)), "{rows:?}");
    let row = Kind::OutlierColumns.vector(0, 1024, 0);
    assert!(row.iter().enumerate().all(|(p, x)| x.abs() < 5.0 || p % 64 == 7) && most(&row) > 100.0);
    assert!(most(&Kind::OutlierColumns.vector(1, 1024, 0)) < 5.0);
    assert!(most(&Kind::HeavyTailed.vector(0, 4096, 0)) > 10.0);
}

#[test]
fn errors_are_over_the_sum_of_absolute_products() {
    let exact = [(1.0, 2.0), (-3.0, 3.0), (0.0, 0.0)];
    let [max, rms] = Kind::Normal.errors(&[1.5, -3.0, 0.0], exact);
    assert_eq!(max, 0.25);
    assert!((rms - (0.25f64 * 0.25 / 3.0).sqrt()).abs() < 1e-15);
    assert_eq!(Kind::Normal.errors(&[f32::NAN, -3.0, 0.0], exact)[0], 1.0, "NaN is as large as can be");
    let beyond = |d: &[f32], allowed| Kind::Normal.errors_beyond(d, exact, |_| allowed);
    assert_eq!(beyond(&[1.5, -3.0, 0.0], 0.25)[0], 0.125, "half of the error is allowed");
    assert_eq!(beyond(&[1.5, -3.0, 0.0], 0.5), [0.0, 0.0]);
    assert_eq!(beyond(&[f32::NAN, -3.0, 0.0], 0.5)[0], 1.0);
    assert_eq!(
        Kind::Scaled.errors(&[7.0], [(0.0, 1e-31)]),
        [0.0, 0.0],
        "too small a result of scaled data counts for nothing"
    );
}
