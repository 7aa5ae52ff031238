//! The choice of the next token.

use super::draw::{draw, Row};
use super::next::Next;
#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
use crate::candle::numbers::{change_integers, integers, wide};
use crate::candle::tensors::{Block, Rows, FLOATS};
use crate::layer::Sampling;
use ::candle::{bail, DType, Device, Result, Tensor};
use rayon::prelude::*;

const BLOCK: Block = Block("Sampler");

/// Chooses the next token of each sequence by its logits, on the device: greedily, or by temperature, top-k, top-p, min-p and repetition penalty
/// ([`Sampling`]). The token goes where the next step reads it, and nothing is read back.
///
/// Random numbers are Philox4x32-10 with the key `seed` and the counter (token / 4, position, sequence, 0), and the token with the largest p / e wins, where e is
/// exponential: a draw depends on the row's logits, the seed, the sequence's number and its position alone, not on the other sequences. The CPU and a GPU draw by
/// the same numbers; where two tokens are nearly equal, their roundings may differ.
///
/// A NaN counts as -inf. A row without a number above -inf gives token 0. On a GPU the sampler needs the feature `layers`, and draws from at most 262144 tokens.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_tilegemm::nn::{Next, Sampler, Sampling};
///
/// let device = &Device::Cpu;
/// let logits = Tensor::new(&[[0f32, 3., 1.], [2., 0., 0.]], device)?;
/// let tokens = Tensor::zeros(2, DType::U32, device)?;
/// let positions = Tensor::new(&[7u32, 0], device)?; // of the tokens that made the logits
///
/// Sampler::greedy(2, 3, device)?.choose(&logits, &Next::new(&tokens, &positions))?;
/// assert_eq!(tokens.to_vec1::<u32>()?, [1, 0]);
/// assert_eq!(positions.to_vec1::<u32>()?, [8, 1]);
///
/// let settings = [Sampling::new(0.7, 42).with(|s| s.top_p = 0.9), Sampling::greedy()];
/// Sampler::new(&settings, 3, device)?.choose(&logits, &Next::new(&tokens, &positions))?;
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Sampler {
    /// The words of each sequence's settings, (sequences, 10); none: all greedy.
    settings: Option<Tensor>,
    #[cfg_attr(not(feature = "layers"), expect(dead_code))]
    workspace: Option<Tensor>,
    sequences: usize,
    vocabulary: usize,
    device: Device,
}

impl Sampler {
    /// The token with the largest logit, the first of equals, of so many sequences, without penalty.
    ///
    /// # Errors
    /// Sizes of 0, and a GPU without the feature `layers`.
    pub fn greedy(sequences: usize, vocabulary: usize, device: &Device) -> Result<Self> {
        Self::with_settings(sequences, None, vocabulary, device)
    }

    /// The settings of each sequence.
    ///
    /// # Errors
    /// As for [`greedy`](Self::greedy).
    pub fn new(settings: &[Sampling], vocabulary: usize, device: &Device) -> Result<Self> {
        let words: Vec<u32> = settings.iter().flat_map(Sampling::to_words).collect();
        let words = Tensor::from_vec(words, (settings.len(), 10), device)?;
        Self::with_settings(settings.len(), Some(words), vocabulary, device)
    }

    fn with_settings(sequences: usize, settings: Option<Tensor>, vocabulary: usize, device: &Device) -> Result<Self> {
        if sequences == 0 || vocabulary == 0 {
            bail!("Sampler: {sequences} sequences and a vocabulary of {vocabulary}; expected 1 and more");
        }
        let workspace = match device {
            Device::Cpu => None,
            #[cfg(feature = "layers")]
            Device::Cuda(of) => {
                let bytes = layers::sample_workspace(of, sequences, vocabulary)?;
                Some(Tensor::zeros(bytes.div_ceil(4) as usize, DType::U32, device)?)
            }
            other => BLOCK.elsewhere(other)?,
        };
        Ok(Self { settings, workspace, sequences, vocabulary, device: device.clone() })
    }

    /// Replaces the settings of all sequences: also of a graph that was captured with this sampler. Copies from the host, so not itself to be captured.
    ///
    /// # Errors
    /// Another number of sequences, and a greedy sampler, which has no settings.
    pub fn set(&self, settings: &[Sampling]) -> Result<()> {
        let Some(words) = self.settings.as_ref().filter(|_| settings.len() == self.sequences) else {
            bail!(
                "Sampler: {} settings for {} sequences; make the sampler by `Sampler::new` with as many",
                settings.len(),
                self.sequences
            );
        };
        let new: Vec<u32> = settings.iter().flat_map(Sampling::to_words).collect();
        words.slice_set(&Tensor::from_vec(new, (self.sequences, 10), &self.device)?, 0, 0)
    }

    /// Chooses the next tokens by `logits`, (sequences, vocabulary) in f16, bf16 or f32. Allocates nothing, and is legal in a capture.
    ///
    /// # Errors
    /// Shapes, types and devices that do not fit, and tensors that track gradients.
    pub fn choose(&self, logits: &Tensor, next: &Next) -> Result<()> {
        let (sequences, device) = (self.sequences, &self.device);
        if logits.dims() != [sequences, self.vocabulary] || !logits.device().same_device(device) {
            let at = logits.device().location();
            bail!(
                "Sampler: the logits are {:?} on {at:?}; expected {:?} on {:?}",
                logits.dims(),
                [sequences, self.vocabulary],
                device.location()
            );
        }
        BLOCK.among("the logits", logits, &FLOATS)?;
        let rows = BLOCK.rows("the logits", logits, self.vocabulary)?;
        BLOCK.list("tokens", next.tokens, DType::U32, sequences, device)?;
        BLOCK.list("positions", next.positions, DType::U32, sequences, device)?;
        BLOCK.list_of("lengths", next.lengths, DType::U32, sequences, device)?;
        BLOCK.list_of("slots", next.slots, DType::U32, sequences, device)?;
        BLOCK.list_of("the error", next.error, DType::U32, 1, device)?;
        if let Some(history) = next.history {
            let columns = history.dims().last().copied().unwrap_or(0);
            BLOCK.list("the history", history, DType::U32, sequences * columns, device)?;
        }
        match device {
            Device::Cpu => self.on_cpu(rows, next),
            #[cfg(feature = "layers")]
            Device::Cuda(device) => layers::sample(device, rows, next, self.settings.as_ref(), self.workspace.as_ref()),
            other => BLOCK.elsewhere(other),
        }
    }

    fn on_cpu(&self, logits: Rows, next: &Next) -> Result<()> {
        let values = wide(logits)?;
        let settings: Vec<Sampling> = match &self.settings {
            None => vec![Sampling::greedy(); self.sequences],
            Some(words) => {
                let words = words.to_vec2::<u32>()?;
                words.into_iter().map(|w| Sampling::from_words(std::array::from_fn(|i| w[i]))).collect()
            }
        };
        let positions = integers(next.positions)?;
        let slots = next.slots.map(integers).transpose()?;
        let history = next.history.map(|history| history.flatten_all()?.to_vec1::<u32>()).transpose()?;
        let columns = history.as_ref().map_or(0, |history| history.len() / self.sequences);
        let chosen: Vec<Option<(u32, bool)>> = (0..self.sequences)
            .into_par_iter()
            .map(|s| {
                if slots.as_ref().is_some_and(|slots| slots[s] < 0) {
                    return None;
                }
                let history = history.as_ref().map_or(&[][..], |history| &history[s * columns..][..columns]);
                let row =
                    Row { logits: &values[s * self.vocabulary..][..self.vocabulary], history, position: positions[s] };
                let token = draw(&row, &settings[s]);
                Some((token.unwrap_or(0), token.is_none()))
            })
            .collect();
        let each = |change: &mut dyn FnMut(usize, u32, bool)| {
            chosen
                .iter()
                .enumerate()
                .filter_map(|(s, c)| c.map(|c| (s, c)))
                .for_each(|(s, (token, none))| change(s, token, none));
        };
        change_integers(next.tokens, |x| each(&mut |s, token, _| x[s] = token))?;
        for list in [Some(next.positions), next.lengths].into_iter().flatten() {
            change_integers(list, |x| each(&mut |s, _, _| x[s] = x[s].wrapping_add(1)))?;
        }
        if let Some(history) = next.history {
            change_integers(history, |x| {
                each(&mut |s, token, _| {
                    if let Some(at) = usize::try_from(positions[s] + 1).ok().filter(|at| *at < columns) {
                        x[s * columns + at] = token;
                    }
                });
            })?;
        }
        match next.error {
            Some(error) => change_integers(error, |x| {
                each(&mut |s, _, none| {
                    if none {
                        x[0] = 1 + s as u32;
                    }
                });
            }),
            None => Ok(()),
        }
    }
}
