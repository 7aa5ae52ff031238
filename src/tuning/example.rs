//! Products that an entry may be of.

use super::{Entry, Key};
use crate::kernel::Fusion;
use crate::problem::{BiasAxis, Bounds, Epilogue, Gate, Groups, Problem, Rows};

impl Entry {
    /// Products of the entry's key with its first and its last number of rows, of dense matrices. Where operands are not aligned, each product may be another one
    /// than that which was measured: there is one for each operand, and one for all.
    pub(crate) fn examples(&self) -> impl Iterator<Item = Problem> {
        let [first, last] = self.m;
        let rows = std::iter::once(first).chain((last > first).then_some(last));
        let key = self.key;
        rows.flat_map(move |m| {
            let problem = key.example(m);
            let unaligned = (0..4).map(move |which| {
                problem.with(|p| {
                    let operands = [&mut p.a, &mut p.b, &mut p.d];
                    let chosen = operands.into_iter().enumerate().filter(|(i, _)| which == 3 || which == *i);
                    chosen.for_each(|(_, operand)| operand.pointer_align = operand.format.bytes(1) as u32);
                })
            });
            std::iter::once(problem).chain(unaligned.take(if key.aligned { 0 } else { 4 }))
        })
    }
}

impl Key {
    /// A product of dense, aligned matrices.
    fn example(&self, m: usize) -> Problem {
        let Key { dtype, b, out, f32, layout, n, k, batch, epilogue, groups, .. } = *self;
        let mut problem = match groups {
            Some(of) => {
                let groups = Groups::new(of.count).with(|groups| {
                    (groups.filled, groups.scaled, groups.bounds) = (of.filled, of.scaled, Bounds::GroupOfRow);
                    groups.rows =
                        of.pairs_per_row.map_or(Rows::InOrder, |pairs_per_row| Rows::Listed { pairs_per_row });
                });
                Problem::grouped([m, n, k], groups, dtype)
            }
            None => Problem::dense(m, n, k, batch, layout, dtype),
        };
        if let Some(b) = b {
            problem = problem.with_weights(b, None);
        }
        (problem.d.format, problem.f32_mode) = (out.unwrap_or(dtype), f32);
        match epilogue {
            Fusion::None => {}
            Fusion::BiasAct => problem.epilogue.bias = Some(BiasAxis::N),
            Fusion::Full => {
                problem.epilogue = Epilogue::new(1.0, 1.0);
                problem.epilogue.c = Some(problem.d);
            }
        }
        if groups.is_some_and(|of| of.gate) {
            problem.epilogue.gate = Some(Gate::Halves);
            problem.d.row_stride = problem.columns_of_d() as i64;
        }
        problem.canonical().problem
    }
}

#[cfg(test)]
mod tests {
    use super::super::{shipped, Among};
    use super::Key;
    use crate::kernel::Fusion;
    use crate::problem::{F32Mode, Format, Groups, Layout, Problem};

    #[test]
    fn an_example_has_the_key_that_it_is_of() {
        let dense = Problem::dense(32, 4096, 1024, 3, Layout::TN, Format::F32);
        let one = Problem::dense(32, 4096, 1024, 1, Layout::NN, Format::BF16);
        let experts = Problem::grouped([64, 1536, 2048], Groups::routed(128, 8, 8), Format::BF16);
        let one_of = |problem: Problem| Key::of(&problem, Among::Own).unwrap();
        let [dense, one, experts] = [dense, one, experts].map(one_of);
        let mut keys = vec![dense, one, experts];
        keys.push(Key { out: Some(Format::F32), epilogue: Fusion::Full, ..one });
        let of_blocks =
            one_of(Problem::dense(5, 4096, 1024, 1, Layout::NT, Format::F32).with_weights(Format::Q4K, None));
        keys.push(of_blocks);
        keys.push(Key { f32: F32Mode::Strict, epilogue: Fusion::BiasAct, ..dense });
        let shipped = shipped().flatten().flat_map(|table| table.entries().iter().map(|e| e.key).collect::<Vec<_>>());
        keys.extend(shipped.filter(|key| key.aligned));
        assert!(keys.len() > 20);
        for key in keys {
            assert_eq!(Key::of(&key.example(64), key.among), Some(key), "{key}");
        }
    }
}
