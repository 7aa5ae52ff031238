//! What a device has no kernels for.

use super::Config;
use candle::{bail, Result};
use candle_tilegemm::internal::layer::{HEAD_SIZES, MOST_DRAWN, MOST_HEADS};

impl Config {
    /// Refuses what the kernels of a GPU do not compute; the CPU computes everything. A [`Decoder`](crate::Decoder) asks before it reads weights, and a
    /// [`Step`](crate::Step) whose sampler draws tokens, or has a penalty for them, before the first one.
    ///
    /// # Errors
    /// On a GPU, `head_dim` other than 64, 96, 128 and 256, and more than 16 heads of q for one of K and V; with `draws`, more than 262144 tokens in `vocab_size`.
    pub fn check_device(&self, on_gpu: bool, draws: bool) -> Result<()> {
        if !on_gpu {
            return Ok(());
        }
        if !HEAD_SIZES.contains(&self.head_size) {
            bail!(
                "config: head_dim is {}; attention on a GPU has heads of {HEAD_SIZES:?} numbers: take the CPU",
                self.head_size
            );
        }
        if self.heads > MOST_HEADS * self.kv_heads {
            bail!(
                "config: num_attention_heads is {} times num_key_value_heads; attention on a GPU has at most {MOST_HEADS} heads of q for one of K and V: take the CPU",
                self.heads / self.kv_heads
            );
        }
        if draws && self.vocabulary > MOST_DRAWN {
            bail!(
                "config: vocab_size is {}; a sampler on a GPU draws from at most {MOST_DRAWN} tokens: take Sampler::greedy(), or the CPU",
                self.vocabulary
            );
        }
        Ok(())
    }
}
