//! All of a decoder but its head.

use crate::config::Config;
use crate::layer::{frequencies, Layer, Step};
use crate::prompt::{Prompt, Wanted};
use crate::scratch::{Gates, Scratch};
use crate::store::Store;
use crate::weights::{Norm, Source, Table};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::RmsNorm;

/// The most tokens of a prompt that go through the layers at once.
pub(crate) const CHUNK: usize = 2048;

#[derive(Debug, Clone)]
pub(crate) struct Body {
    /// The rank's part.
    pub config: Config,
    pub group: Group,
    pub table: Table,
    layers: Vec<Layer>,
    norm: RmsNorm,
}

impl Body {
    pub fn load(source: &mut dyn Source) -> Result<Self> {
        Self::load_with(source, &mut |_, _| ())
    }

    /// Tells `loaded` how many of the layers are there: 0 once the embedding is, then after each layer.
    pub fn load_with(source: &mut dyn Source, loaded: &mut dyn FnMut(usize, usize)) -> Result<Self> {
        let config = source.config().clone().checked()?;
        config.check_device(source.device().is_cuda(), false)?;
        let table = source.table()?;
        let frequencies = frequencies(source, &table.device())?;
        let mut layers = Vec::with_capacity(config.layers);
        loaded(0, config.layers);
        while layers.len() < config.layers {
            layers.push(Layer::load(source, layers.len(), &frequencies)?);
            loaded(layers.len(), config.layers);
        }
        let norm = RmsNorm::new(source.norm(Norm::Last)?, config.eps);
        Ok(Self { config, group: source.group().clone(), table, layers, norm })
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

    /// The rows of tokens to `scratch.x`.
    pub fn embed(&self, tokens: &Tensor, scratch: &Scratch) -> Result<()> {
        if self.group.size() == 1 {
            return self.table.rows_into(tokens, &scratch.x);
        }
        // The rank's columns, in memory that nothing is in yet.
        let (rows, columns) = (tokens.elem_count(), self.config.hidden / self.group.size());
        let part = scratch.between.flatten_all()?.narrow(0, 0, rows * columns)?.reshape((rows, columns))?;
        self.table.rows_into(tokens, &part)?;
        self.group.gather_columns_into(&part, &scratch.normed, &scratch.x)
    }

    /// Adds the residual to what the last layer of a rank leaves.
    fn end(&self, scratch: &Scratch) -> Result<()> {
        match self.group.size() {
            1 => Ok(()),
            _ => self.norm.add_into(&scratch.x, &scratch.between, &scratch.x, &scratch.normed),
        }
    }

    /// New tokens of a sequence, (tokens, hidden), to `scratch.x` before the last norm: the rows that are wanted, one by one as they are. The slot has room, and
    /// the memory is for so many tokens.
    pub fn prompt(&self, x: &Tensor, prompt: &Prompt, wanted: Wanted, store: &Store, scratch: &Scratch) -> Result<()> {
        let last = self.layers.len() - 1;
        for (i, (layer, cache)) in self.layers.iter().zip(store.layers()).enumerate() {
            let (x, wanted) = (if i == 0 { x } else { &scratch.x }, if i == last { wanted } else { Wanted::All });
            layer.prompt(x, cache, prompt, wanted, store.workspace(), scratch)?;
        }
        match wanted {
            Wanted::None => Ok(()),
            Wanted::Last => self.end(&scratch.row(prompt.tokens() - 1)?),
            Wanted::All => self.end(scratch),
        }
    }

    /// A new token of each sequence, (sequences, hidden), to `scratch.x` before the last norm.
    ///
    /// This call is what a graph captures: it allocates nothing.
    pub fn step(&self, x: &Tensor, step: Step, store: &Store, scratch: &Scratch) -> Result<()> {
        for (i, (layer, cache)) in self.layers.iter().zip(store.layers()).enumerate() {
            layer.step(if i == 0 { x } else { &scratch.x }, cache, step, store.workspace(), scratch)?;
        }
        self.end(scratch)
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
