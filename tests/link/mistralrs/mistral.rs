//! mistralrs: what programs name.
#![no_std]

pub fn calls() -> impl Iterator<Item = i32> {
    quant::calls()
}
