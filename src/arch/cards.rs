//! The cards that plans can be made for without having one.

use super::DeviceInfo;

/// A card: its short name, the driver's name, compute capability, multiprocessors, MiB of L2, and GiB of memory.
type Card = (&'static str, &'static str, u16, u32, u64, u64);

/// Sources: the data sheets and whitepapers that `model.rs` names for each card; the Blackwell tuning guide for the B200's L2. Without a source of
/// NVIDIA: the L2 of the H20 and the GH200 (taken from the H200), and of the B300 its L2 and multiprocessors (taken from the B200) and its
/// memory (as sellers state it).
#[rustfmt::skip]
const CARDS: [Card; 14] = [
    ("a100", "NVIDIA A100-SXM4-80GB", 80, 108, 40, 80),
    ("a10", "NVIDIA A10", 86, 72, 6, 24),
    ("rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 6, 24),
    ("l4", "NVIDIA L4", 89, 58, 48, 24),
    ("l40s", "NVIDIA L40S", 89, 142, 96, 48),
    ("rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 72, 24),
    ("h100", "NVIDIA H100 80GB HBM3", 90, 132, 50, 80),
    ("h100-pcie", "NVIDIA H100 PCIe", 90, 114, 50, 80),
    ("h200", "NVIDIA H200", 90, 132, 60, 141),
    ("h20", "NVIDIA H20", 90, 78, 60, 96),
    ("gh200", "NVIDIA GH200 480GB", 90, 132, 60, 96),
    ("b200", "NVIDIA B200", 100, 148, 126, 180),
    ("b300", "NVIDIA B300 SXM6 AC", 103, 148, 126, 270),
    ("rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, 96, 32),
];

/// What two cards have in common where kernels take the same number of waves on both.
#[doc(hidden)] // `tilegemm fit` asks, too
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chip {
    capability: u16,
    sm_count: u32,
}

/// A card of the list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Known {
    /// The driver's name.
    pub gpu: &'static str,
    pub chip: Chip,
}

impl Known {
    /// The card with exactly this short name.
    pub const fn named(short: &str) -> Self {
        let mut place = 0;
        while place < CARDS.len() {
            let (name, gpu, capability, sm_count, ..) = CARDS[place];
            if is_same(name.as_bytes(), short.as_bytes()) {
                return Self { gpu, chip: Chip { capability, sm_count } };
            }
            place += 1;
        }
        panic!("a folder of `tuning` has the short name of a card of src/arch/cards.rs")
    }
}

const fn is_same(x: &[u8], y: &[u8]) -> bool {
    let mut place = 0;
    while place < x.len() && place < y.len() && x[place] == y[place] {
        place += 1;
    }
    place == x.len() && place == y.len()
}

impl DeviceInfo {
    /// What kernels see of the card.
    #[doc(hidden)]
    pub fn chip(&self) -> Chip {
        Chip { capability: self.capability, sm_count: self.sm_count }
    }

    /// The short names of the cards that [`DeviceInfo::by_name`] knows: `a100`, `rtx4090`, `h100`, ...
    pub fn names() -> impl Iterator<Item = &'static str> {
        CARDS.iter().map(|card| card.0)
    }

    /// A card by its short name in any case. Rates of cards that nobody has measured are from data sheets
    /// ([`ArchModel::source`](super::ArchModel::source)).
    pub fn by_name(name: &str) -> Option<Self> {
        let (_, name, capability, sm_count, l2_mib, memory_gib) =
            *CARDS.iter().find(|card| card.0.eq_ignore_ascii_case(name))?;
        let model = super::ArchModel::of(name, capability, sm_count);
        let (l2_bytes, memory_bytes) = (l2_mib << 20, memory_gib << 30);
        Some(Self { name: name.into(), capability, sm_count, l2_bytes, memory_bytes, model })
    }

    /// One H100 SXM5 80 GB.
    pub fn h100() -> Self {
        Self::known("h100")
    }

    /// One H200 SXM 141 GB.
    pub fn h200() -> Self {
        Self::known("h200")
    }

    /// One A100 SXM4 80 GB.
    pub fn a100() -> Self {
        Self::known("a100")
    }

    fn known(name: &str) -> Self {
        Self::by_name(name).expect("a card of the list")
    }
}
