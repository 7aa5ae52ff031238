//! K and V of all layers.

use crate::config::Config;
use crate::rows::padded;
use candle::{bail, DType, Device, Result};
use candle_tilegemm::nn::attention::{KvCache, Workspace};

/// The positions that a slot has at first, unless asked otherwise.
const FIRST: usize = 4096;

/// A static cache for each layer. All grow together, up to the model's longest sequence.
#[derive(Debug)]
pub(crate) struct Store {
    layers: Vec<KvCache>,
    workspace: Workspace,
    heads: usize,
    longest: usize,
}

/// The bytes of K and V of all layers.
pub(crate) fn bytes(config: &Config, slots: usize, capacity: usize, dtype: DType) -> Result<usize> {
    let layer = KvCache::bytes(slots, config.kv_heads, capacity, config.head_size, dtype)?;
    match layer.checked_mul(config.layers) {
        Some(bytes) => Ok(bytes),
        None => bail!("Cache: {} layers of {layer} bytes have more bytes than there are addresses", config.layers),
    }
}

/// Refuses more bytes than a GPU can allocate now.
fn check_free(bytes: usize, what: &str, device: &Device) -> Result<()> {
    match KvCache::free_bytes(device)? {
        Some(free) if bytes > free => {
            bail!(
                "Cache: {what} takes {} MiB, and {} MiB are free; take fewer sequences or positions",
                bytes >> 20,
                free >> 20
            )
        }
        _ => Ok(()),
    }
}

impl Store {
    /// Empty slots. `capacity`: positions of a slot; 4096 unless given, and at most the model's longest sequence.
    pub fn new(config: &Config, dtype: DType, device: &Device, slots: usize, capacity: Option<usize>) -> Result<Self> {
        let longest = config.max_positions;
        let capacity = capacity.unwrap_or(FIRST).min(longest);
        let need = bytes(config, slots, capacity, dtype)?;
        check_free(need, &format!("a cache of {slots} sequences of {capacity} positions"), device)?;
        let layer = |_| KvCache::new(slots, config.kv_heads, capacity, config.head_size, dtype, device);
        Ok(Self {
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            workspace: Workspace::new(padded(slots, device), config.heads, config.head_size, device)?,
            heads: config.heads,
            longest,
        })
    }

    /// The same content in memory of its own.
    pub fn copy(&self) -> Result<Self> {
        let [slots, _, _, head] = self.sizes();
        let layers = self.layers.iter().map(|layer| layer.grown(layer.sizes()[2])).collect::<Result<_>>()?;
        let device = self.layers[0].k().device();
        let workspace = Workspace::new(padded(slots, device), self.heads, head, device)?;
        Ok(Self { layers, workspace, heads: self.heads, longest: self.longest })
    }

    pub fn layers(&self) -> &[KvCache] {
        &self.layers
    }

    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Slots, heads, positions and numbers of a head.
    pub fn sizes(&self) -> [usize; 4] {
        // A growth that failed half way leaves layers with more positions than others.
        let [slots, heads, _, head] = self.layers[0].sizes();
        let capacity = self.layers.iter().map(|layer| layer.sizes()[2]).min().unwrap_or(0);
        [slots, heads, capacity, head]
    }

    /// Makes room for `positions` of a slot: doubles the capacity as often as that takes.
    pub fn reserve(&mut self, slot: usize, positions: usize) -> Result<()> {
        let [slots, heads, capacity, head] = self.sizes();
        if slot >= slots {
            bail!("Cache: there is no slot {slot}; the cache has {slots}, from 0");
        }
        if positions > self.longest {
            bail!(
                "Cache: slot {slot} is full: {positions} positions, and the model takes {} at most; clear the slot, or truncate it",
                self.longest
            );
        }
        if positions <= capacity {
            return Ok(());
        }
        let mut grown = capacity;
        while grown < positions {
            grown = (2 * grown).min(self.longest);
        }
        let dtype = self.layers[0].dtype();
        let layer = |capacity| KvCache::bytes(slots, heads, capacity, head, dtype);
        // Layers grow one by one, and an old one goes when its successor is there.
        let more = (layer(grown)? - layer(capacity)?) * self.layers.len() + layer(capacity)?;
        let what = format!("to grow {slots} sequences from {capacity} to {grown} positions");
        check_free(more, &what, self.layers[0].k().device())?;
        for cache in &mut self.layers {
            if cache.sizes()[2] < grown {
                *cache = cache.grown(grown)?;
            }
        }
        Ok(())
    }
}
