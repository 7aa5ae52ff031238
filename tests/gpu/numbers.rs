//! Random numbers for operands, drawn once for each type and copied from a place that the seed gives. Drawing and rounding them anew took most of the suite's time.

use crate::device::Element;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// A prime: whatever the length of a row, no two rows of a matrix have the same numbers at the same columns, unless the matrix has as many rows.
const COUNT: usize = 4_194_301;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// N(0, 1).
    Normal,
    /// Whole numbers from -2 to 2.
    Integers,
}

// By one thread: threads that wait for each other's work must not wait for this.
static NORMAL: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let mut rng = StdRng::seed_from_u64(0);
    (0..COUNT).map(|_| StandardNormal.sample(&mut rng)).collect()
});

/// All numbers of a kind in a type.
fn table<T: Element>(kind: Kind) -> &'static [T] {
    type Table = &'static (dyn Any + Send + Sync);
    static TABLES: LazyLock<Mutex<HashMap<(TypeId, Kind), Table>>> = LazyLock::new(Mutex::default);
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let table = tables.entry((TypeId::of::<T>(), kind)).or_insert_with(|| {
        let mut rng = StdRng::seed_from_u64(1);
        let table: Vec<T> = match kind {
            Kind::Normal => NORMAL.iter().map(|&x| T::from_f64(x)).collect(),
            Kind::Integers => (0..COUNT).map(|_| T::from_f64(f64::from(rng.random_range(-2..=2)))).collect(),
        };
        Box::leak(Box::new(table))
    });
    table.downcast_ref::<Vec<T>>().expect("the table of this type")
}

/// Numbers in a type, without end.
pub struct Numbers<T: 'static> {
    table: &'static [T],
    at: usize,
}

impl<T: Element> Numbers<T> {
    pub fn new(kind: Kind, rng: &mut StdRng) -> Self {
        Self { table: table(kind), at: rng.random_range(0..COUNT) }
    }

    /// Fills `values` with the next numbers.
    pub fn fill(&mut self, mut values: &mut [T]) {
        while !values.is_empty() {
            let count = values.len().min(COUNT - self.at);
            let (now, rest) = values.split_at_mut(count);
            now.copy_from_slice(&self.table[self.at..self.at + count]);
            self.at = (self.at + count) % COUNT;
            values = rest;
        }
    }

    /// The next numbers, so many.
    pub fn take(&mut self, count: usize) -> Vec<T> {
        let mut values = vec![T::from_f64(0.0); count];
        self.fill(&mut values);
        values
    }
}

/// So many numbers of N(0, 1).
pub fn normal<T: Element>(count: usize, rng: &mut StdRng) -> Vec<T> {
    Numbers::new(Kind::Normal, rng).take(count)
}
