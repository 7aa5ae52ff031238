//! Sequences that go through the layers together.

use crate::decoder::{Decoder, Out};
use crate::layer::Step;
use crate::mail::{Letter, Mail};
use crate::replay::Replay;
use crate::rows::MOST_CAPTURED;
use crate::scratch::Scratch;
use crate::store::Store;
use candle::{DType, Result, Tensor};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::{self, Sampling};

/// A slot that no cache has.
const PADDING: u32 = u32::MAX;

/// What a choice of tokens looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Greedy,
    Drawn,
    /// Drawn or greedy, with a penalty for tokens that a sequence has.
    Penalised,
}

impl Kind {
    pub fn of(settings: &[Sampling]) -> Self {
        let penalises = |sampling: &Sampling| sampling.repetition_penalty != 1.0 && sampling.repetition_penalty > 0.0;
        match settings {
            _ if settings.iter().any(penalises) => Self::Penalised,
            _ if settings.iter().all(|sampling| sampling.temperature <= 0.0) => Self::Greedy,
            _ => Self::Drawn,
        }
    }
}

/// A sequence of a batch.
pub(crate) struct Row<'a> {
    pub slot: usize,
    /// All its tokens; one at least.
    pub tokens: &'a [u32],
    pub sampling: Sampling,
}

/// Rows of a step. What the kernels read of its sequences is on the device, where the choice of tokens moves it on: while the sequences are the same ones, a
/// step reads nothing from the host, and all steps are the same work.
///
/// Fields go in their order: first the letters wait for the last step, and a graph goes before the communicator that it calls and the memory whose addresses it has.
#[derive(Debug)]
pub(crate) struct Batch {
    mail: Mail,
    replay: Replay,
    group: Group,
    kind: Kind,
    rows: usize,
    /// (1 + rows) in u32: 1 + a row without a number above -inf, else 0; then the last tokens. One copy takes both to the host.
    told: Tensor,
    /// (rows) in u32.
    tokens: Tensor,
    slots: Tensor,
    /// Of the last tokens.
    positions: Tensor,
    /// Positions + 1.
    lengths: Tensor,
    /// (rows, capacity) in u32.
    history: Option<Tensor>,
    sampler: nn::Sampler,
    scratch: Scratch,
    out: Out,
}

impl Batch {
    /// `captures`: whether its steps become a graph.
    pub fn new(kind: Kind, rows: usize, decoder: &Decoder, capacity: usize, captures: bool) -> Result<Self> {
        let (device, vocabulary) = (&decoder.device(), decoder.config().vocabulary);
        let list = |count: usize| Tensor::zeros(count, DType::U32, device);
        let told = list(1 + rows)?;
        Ok(Self {
            mail: Mail::new(1 + rows, device)?,
            replay: Replay::new(captures && rows <= MOST_CAPTURED, device),
            group: decoder.body.group.clone(),
            kind,
            rows,
            tokens: told.narrow(0, 1, rows)?,
            told,
            slots: list(rows)?,
            positions: list(rows)?,
            lengths: list(rows)?,
            history: match kind {
                Kind::Penalised => Some(Tensor::zeros((rows, capacity), DType::U32, device)?),
                Kind::Greedy | Kind::Drawn => None,
            },
            sampler: match kind {
                Kind::Greedy => nn::Sampler::greedy(rows, vocabulary, device)?,
                Kind::Drawn | Kind::Penalised => nn::Sampler::new(&vec![Sampling::greedy(); rows], vocabulary, device)?,
            },
            scratch: decoder.body.scratch(rows)?,
            out: decoder.out(rows)?,
        })
    }

    pub fn is(&self, kind: Kind, rows: usize) -> bool {
        (self.kind, self.rows) == (kind, rows)
    }

    pub fn is_captured(&self) -> bool {
        self.replay.is_captured()
    }

    /// Sets the sequences; rows behind them are padding.
    pub fn load(&self, sequences: &[Row]) -> Result<()> {
        let last = |row: &Row| row.tokens.last().copied().unwrap_or(0);
        set(&self.tokens, self.of_rows(sequences, 0, last))?;
        set(&self.told.narrow(0, 0, 1)?, vec![0])?;
        set(&self.slots, self.of_rows(sequences, PADDING, |row| row.slot as u32))?;
        set(&self.positions, self.of_rows(sequences, 0, |row| row.tokens.len() as u32 - 1))?;
        set(&self.lengths, self.of_rows(sequences, 0, |row| row.tokens.len() as u32))?;
        if self.kind != Kind::Greedy {
            let mut settings: Vec<Sampling> = sequences.iter().map(|row| row.sampling).collect();
            settings.resize(self.rows, Sampling::greedy());
            self.sampler.set(&settings)?;
        }
        let Some(history) = &self.history else { return Ok(()) };
        let (_, capacity) = history.dims2()?;
        let mut tokens = vec![0u32; self.rows * capacity];
        for (row, of) in tokens.chunks_mut(capacity).zip(sequences) {
            row[..of.tokens.len()].copy_from_slice(of.tokens);
        }
        history.slice_set(&Tensor::from_vec(tokens, (self.rows, capacity), history.device())?, 0, 0)
    }

    fn of_rows(&self, sequences: &[Row], padding: u32, of: impl Fn(&Row) -> u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = sequences.iter().map(of).collect();
        numbers.resize(self.rows, padding);
        numbers
    }

    /// Launches the choice of the next tokens by logits that are there, (1, vocabulary) in f32. Rows of sequences that have none go through the layers.
    pub fn open(
        &mut self,
        sequences: &[Row],
        known: &[Option<Tensor>],
        decoder: &Decoder,
        store: &Store,
    ) -> Result<Letter> {
        if known.iter().any(Option::is_none) {
            // The others have been there: they append nothing.
            let slot = |(row, known): (&Row, &Option<Tensor>)| if known.is_some() { PADDING } else { row.slot as u32 };
            let mut slots: Vec<u32> = sequences.iter().zip(known).map(slot).collect();
            slots.resize(self.rows, PADDING);
            set(&self.slots, slots)?;
            self.through(decoder, store)?;
            set(&self.slots, self.of_rows(sequences, PADDING, |row| row.slot as u32))?;
        }
        for (row, known) in known.iter().enumerate() {
            if let Some(known) = known {
                self.out.logits.slice_set(known, 0, row)?;
            }
        }
        self.choose()?;
        self.mail.send(&self.told)
    }

    /// Launches a step of all rows.
    pub fn launch(&mut self, decoder: &Decoder, store: &Store) -> Result<Letter> {
        self.group.check()?;
        let mut replay = std::mem::replace(&mut self.replay, Replay::Eager);
        let work = || {
            self.through(decoder, store)?;
            self.choose()
        };
        let launched = replay.launch(&decoder.device(), work);
        self.replay = replay;
        launched?;
        self.mail.send(&self.told)
    }

    /// What a letter says: the row that failed, and the chosen token of each row.
    pub fn read(&self, letter: Letter) -> Result<(Option<usize>, Vec<u32>)> {
        let mut told = self.mail.read(letter)?;
        self.group.check()?;
        let tokens = told.split_off(1);
        Ok(((told[0] as usize).checked_sub(1), tokens))
    }

    /// The logits of each row's last token.
    fn through(&self, decoder: &Decoder, store: &Store) -> Result<()> {
        let Scratch { x, .. } = &self.scratch;
        decoder.body.embed(&self.tokens, &self.scratch)?;
        let step = Step { positions: &self.positions, lengths: &self.lengths, slots: &self.slots };
        decoder.body.step(x, step, store, &self.scratch)?;
        decoder.logits_into(x, &self.out)
    }

    fn choose(&self) -> Result<()> {
        let next = nn::Next {
            tokens: &self.tokens,
            positions: &self.positions,
            lengths: Some(&self.lengths),
            history: self.history.as_ref(),
            slots: Some(&self.slots),
            error: Some(&self.told.narrow(0, 0, 1)?),
        };
        self.sampler.choose(&self.out.logits, &next)
    }
}

/// Replaces the numbers of a list.
fn set(list: &Tensor, numbers: Vec<u32>) -> Result<()> {
    list.slice_set(&Tensor::new(numbers, list.device())?, 0, 0)
}
