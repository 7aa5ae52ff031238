//! The data of a card in `tuning/<card>`: the fitted numbers of families, and the trees of their errors.

use super::fitted::Fitted;
use super::model::Model;
use crate::arch::Known;
use crate::kernel::KernelDesc;

/// A card with numbers or trees of its own. The H100's count for families that it has none of.
pub struct Card {
    pub(crate) card: Known,
    /// The numbers of each family, by name.
    pub(crate) fits: &'static [(&'static str, &'static dyn Fitted)],
    /// The estimates of each kernel of the table, in its order.
    pub(crate) models: &'static [Model<'static>],
}

impl Card {
    /// The estimates of the kernel's family.
    pub fn model(&self, kernel: &KernelDesc) -> Model<'static> {
        self.models[kernel.index]
    }

    /// The fitted numbers of a family; `None` where the name is no family.
    pub(crate) fn fit(&self, family: &str) -> Option<(&'static str, &'static dyn Fitted)> {
        self.fits.iter().find(|(name, _)| *name == family).copied()
    }
}

impl std::fmt::Debug for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.card.gpu.fmt(f)
    }
}
