//! All of a decoder but its head.

use crate::config::Config;
use crate::layer::{frequencies, Layer, Rows, Span};
use crate::scratch::{Gates, Scratch};
use crate::store::Store;
use crate::weights::{Norm, Source, Table};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::RmsNorm;

/// The most tokens of a prompt that go through the layers at once.
pub(crate) const CHUNK: usize = 2048;

#[derive(Debug, Clone)]
pub(crate) struct Body {
    pub config: Config,
    pub table: Table,
    layers: Vec<Layer>,
    norm: RmsNorm,
}

impl Body {
    pub fn load(source: &mut dyn Source) -> Result<Self> {
        let config = source.config().clone().checked()?;
        let table = source.table()?;
        let frequencies = frequencies(source, &table.device())?;
        let layers = (0..config.layers).map(|layer| Layer::load(source, layer, &frequencies));
        let layers = layers.collect::<Result<_>>()?;
        let norm = RmsNorm::new(source.norm(Norm::Last)?, config.eps);
        Ok(Self { config, table, layers, norm })
    }

    pub fn device(&self) -> Device {
        self.table.device()
    }

    pub fn dtype(&self) -> DType {
        self.table.dtype()
    }

    /// Memory for calls of so many rows.
    pub fn scratch(&self, rows: usize) -> Result<Scratch> {
        let (dtype, device, mut gates) = (self.dtype(), self.device(), Gates::default());
        self.layers.iter().try_for_each(|layer| layer.reserve(&mut gates, rows, dtype))?;
        Scratch::new(&self.config, rows, gates, dtype, &device)
    }

    /// (rows, hidden) to `scratch.x`.
    fn through(&self, x: &Tensor, store: &Store, rows: &Rows, scratch: &Scratch) -> Result<()> {
        let mut x = x;
        for (layer, cache) in self.layers.iter().zip(store.layers()) {
            layer.forward(x, cache, rows, scratch)?;
            x = &scratch.x;
        }
        Ok(())
    }

    /// New tokens of a sequence, (tokens, hidden), after `past` tokens of its slot: (tokens, hidden) before the last norm. The slot has room.
    pub fn prompt(&self, x: &Tensor, slot: usize, past: usize, store: &Store) -> Result<Tensor> {
        let (tokens, _) = x.dims2()?;
        let device = self.device();
        let positions = Tensor::arange(past as u32, (past + tokens) as u32, &device)?;
        let slots = Tensor::full(slot as u32, tokens, &device)?;
        let span = Span::Prompt { slot, past };
        let rows = Rows { positions: &positions, slots: &slots, span, workspace: store.workspace() };
        let scratch = self.scratch(tokens)?;
        self.through(x, store, &rows, &scratch)?;
        Ok(scratch.x)
    }

    /// A new token of each sequence, (sequences, hidden), at `positions` of `slots`: `scratch.x` before the last norm. `lengths` are positions + 1.
    ///
    /// Positions, lengths and slots are on the device and of the same shape, (sequences) in u32. This call is what a graph captures: it allocates nothing.
    pub fn step(
        &self,
        x: &Tensor,
        [positions, lengths, slots]: [&Tensor; 3],
        store: &Store,
        scratch: &Scratch,
    ) -> Result<()> {
        let span = Span::Step { lengths };
        self.through(x, store, &Rows { positions, slots, span, workspace: store.workspace() }, scratch)
    }

    /// A cache of so many slots for these layers, in the layers' type or in fp8.
    pub fn store(&self, slots: usize, capacity: Option<usize>, dtype: DType) -> Result<Store> {
        if ![self.dtype(), DType::F8E4M3].contains(&dtype) {
            bail!("Cache: a cache in {dtype:?}; this decoder takes {:?} and {:?}", self.dtype(), DType::F8E4M3);
        }
        Store::new(&self.config, dtype, &self.device(), slots, capacity)
    }

    /// The last norm.
    pub fn norm(&self) -> &RmsNorm {
        &self.norm
    }
}
