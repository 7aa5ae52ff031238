//! The order of rows for a limited time.

use candle_tilegemm::internal::suite::Shape;

/// The rows by information: classes in turn, and within a class always the row that is farthest from the rows already
/// taken, by the ratios of m, n, k and batch. The first row of a class is its first row in the suite.
pub fn by_information(shapes: &[Shape]) -> Vec<usize> {
    let mut classes: Vec<(&str, Vec<usize>)> = Vec::new();
    for (index, shape) in shapes.iter().enumerate() {
        match classes.iter_mut().find(|(class, _)| *class == shape.class) {
            Some((_, rows)) => rows.push(index),
            None => classes.push((&shape.class, vec![index])),
        }
    }
    let orders: Vec<Vec<usize>> = classes.iter().map(|(_, rows)| farthest_first(shapes, rows)).collect();
    let longest = orders.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|turn| orders.iter().filter_map(move |order| order.get(turn).copied())).collect()
}

fn farthest_first(shapes: &[Shape], rows: &[usize]) -> Vec<usize> {
    let mut rest = rows.to_vec();
    let mut taken: Vec<usize> = vec![rest.remove(0)];
    while !rest.is_empty() {
        let gap = |row: usize| {
            taken.iter().map(|&other| distance(&shapes[row], &shapes[other])).fold(f64::INFINITY, f64::min)
        };
        // On a tie, the first row in the suite.
        let mut next = 0;
        for candidate in 1..rest.len() {
            if gap(rest[candidate]) > gap(rest[next]) {
                next = candidate;
            }
        }
        taken.push(rest.remove(next));
    }
    taken
}

fn distance(x: &Shape, y: &Shape) -> f64 {
    let sizes = |shape: &Shape| [shape.m, shape.n, shape.k, shape.batch].map(|size| (size.get() as f64).log2());
    let squares: f64 = sizes(x).into_iter().zip(sizes(y)).map(|(x, y)| (x - y).powi(2)).sum();
    let other = [x.dtype != y.dtype, x.b != y.b, x.layout != y.layout, x.groups != y.groups];
    squares.sqrt() + other.into_iter().filter(|differs| *differs).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_tilegemm::internal::suite;

    #[test]
    fn classes_take_turns_and_every_row_comes_once() {
        let shapes =
            suite::parse("suite.toml", include_str!("../../../benches/suite.toml")).unwrap_or_else(|e| panic!("{e}"));
        let order = by_information(&shapes);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..shapes.len()).collect::<Vec<_>>());
        let mut classes: Vec<&str> = shapes.iter().map(|shape| shape.class.as_str()).collect();
        classes.dedup();
        classes.sort_unstable();
        classes.dedup();
        let mut first: Vec<&str> = order[..classes.len()].iter().map(|&row| shapes[row].class.as_str()).collect();
        first.sort_unstable();
        assert_eq!(first, classes, "the first turn takes one row of each class");
    }

    #[test]
    fn the_second_row_of_a_class_is_its_farthest() {
        let row = |id: &str, m: u32| {
            format!(
                "[[shape]]\nid = \"{id}\"\nclass = \"c\"\nm = {m}\nn = 64\nk = 64\nlayout = \"nt\"\ndtype = \"bf16\"\n"
            )
        };
        let text = row("a", 16) + &row("b", 32) + &row("c", 4096);
        let shapes = suite::parse("made up", &text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(by_information(&shapes), [0, 2, 1]);
    }
}
