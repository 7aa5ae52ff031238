//! What a decoder asks of weights of both kinds.

use super::tokens::{Head, Table};
use crate::config::Config;
use crate::feed_forward::FeedForward;
use candle::{Device, Result, Tensor};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::MergedLinear;

/// Where a model's weights come from.
pub(crate) trait Source {
    /// The weights of a norm: those of a layer by the layer's number.
    fn norm(&mut self, norm: Norm) -> Result<Tensor>;
    /// q, k and v in one.
    fn qkv(&mut self, layer: usize) -> Result<MergedLinear>;
    /// The product after attention.
    fn o(&mut self, layer: usize) -> Result<MergedLinear>;
    /// The sinks of the heads of q in f32, if the model has some.
    fn sinks(&mut self, layer: usize) -> Result<Option<Tensor>>;
    /// The feed-forward part.
    fn feed_forward(&mut self, layer: usize) -> Result<FeedForward>;
    /// The rows of tokens.
    fn table(&mut self) -> Result<Table>;
    /// The product to logits; `table` is the embedding's, which a tied head shares.
    fn head(&mut self, table: &Table) -> Result<Head>;
    /// What divides the frequencies of rotations, if there is such a list.
    fn rope_factors(&mut self) -> Result<Option<Vec<f32>>>;
    /// What the model is: on a rank of a group, its part.
    fn config(&self) -> &Config;
    /// Where the decoder is going to be.
    fn device(&self) -> &Device;
    /// The rank that the weights are for.
    fn group(&self) -> &Group;
}

/// A norm of the model.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Norm {
    BeforeAttention(usize),
    BeforeFeedForward(usize),
    OfQ(usize),
    OfK(usize),
    Last,
}
