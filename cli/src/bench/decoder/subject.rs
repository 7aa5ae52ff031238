//! A decoder that can be timed.

use candle::{DType, Device, Result, Tensor};

/// A loaded decoder.
pub trait Subject {
    /// The logits after a prompt of one sequence, from nothing: (vocabulary) in f32 on the device, which may still compute them.
    fn prefill(&mut self, prompt: &[u32]) -> Result<Tensor>;
    /// From nothing to the first token after a prompt.
    fn first_token(&mut self, prompt: &[u32]) -> Result<u32>;
    /// Device memory of a prompt, besides the weights.
    fn bytes_to_prefill(&self, tokens: usize) -> f64;
    /// Device memory of steps, besides the weights.
    fn bytes_to_decode(&self, context: usize, sequences: usize) -> f64;
    /// Sequences with these tokens, from which so many steps start.
    fn fill(&mut self, prompts: &[Vec<u32>], steps: usize) -> Result<()>;
    /// Whether `fill` takes as long as so many steps.
    fn fills_by_steps(&self, sequences: usize) -> bool;
    /// Steps after the tokens of `fill`, as the arm takes them: `warm_up` of them, then the seconds of each of `steps`, and the tokens of the first sequence.
    fn decode(&mut self, arm: &str, warm_up: usize, steps: usize) -> Result<(f64, Vec<u32>)>;
    /// Forgets the sequences.
    fn clear(&mut self) -> Result<()>;
}

/// The type of dense weights and of what goes from layer to layer.
pub fn dtype(device: &Device) -> DType {
    if device.is_cpu() {
        DType::F32
    } else {
        DType::BF16
    }
}
