//! The constants that build.rs makes of the cards' data in `tuning`, and the choice among the cards.

use super::card::Card;
use super::model::Model;
use super::trees::{Fact, Tree, Trees};
use crate::arch::{DeviceInfo, Known};
use crate::kernel::{Case, KernelDesc};
use crate::problem::Problem;
use crate::workspace;

include!(concat!(env!("OUT_DIR"), "/cards.rs"));

impl Card {
    /// The data for a device: those of the card with exactly its name, else the H100's.
    pub fn of(device: &DeviceInfo) -> &'static Card {
        find(CARDS, &device.name)
    }
}

fn find<'a>(cards: &'a [Card], gpu: &str) -> &'a Card {
    cards.iter().find(|card| card.card.gpu == gpu).unwrap_or(&cards[0])
}

/// Expected time of `kernel` for the canonical `problem`, in microseconds, with a workspace of the default size.
pub fn estimate_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let case = Case { kernel, problem, device, workspace: workspace::DEFAULT_BYTES };
    Card::of(device).model(kernel).configure(&case).1
}

#[cfg(test)]
mod tests {
    use super::{find, CARDS};
    use crate::arch::{DeviceInfo, Known};
    use crate::family::card::Card;
    use crate::family::KERNELS;

    #[test]
    fn a_card_without_data_has_those_of_the_h100() {
        let card = |short| Card { card: Known::named(short), fits: &[], models: &[] };
        let cards = [card("h100"), card("l4")];
        for (device, gpu) in [
            (DeviceInfo::by_name("l4").unwrap(), "NVIDIA L4"),
            (DeviceInfo::h100(), "NVIDIA H100 80GB HBM3"),
            (DeviceInfo::a100(), "NVIDIA H100 80GB HBM3"),
            (DeviceInfo { name: "NVIDIA L40".into(), ..DeviceInfo::a100() }, "NVIDIA H100 80GB HBM3"),
        ] {
            assert_eq!(find(&cards, &device.name).card.gpu, gpu, "{}", device.name);
        }
    }

    #[test]
    fn every_card_has_an_estimate_of_each_kernel() {
        assert_eq!(CARDS[0].card, Known::named("h100"));
        for card in CARDS {
            assert_eq!(card.models.len(), KERNELS.len(), "{card:?}");
            assert!(KERNELS.iter().all(|kernel| card.fit(kernel.family).is_some()), "{card:?}");
        }
    }
}
