//! Layers of a model that several GPUs compute together, split as Megatron-LM splits them (Shoeybi et al., 2019, <https://arxiv.org/abs/1909.08053>).
//!
//! Each rank of a [`Group`] is a thread or a process with a GPU of its own and a part of each matrix: heads of attention, columns of a feed-forward part. A product
//! whose rows are split, [`RowLinear`], gives a part of each sum, and the group adds these up. NCCL does all communication between GPUs (feature `nccl`); groups of
//! threads on the CPU compute the same for tests.
//!
//! Files of safetensors give each rank its part by [`Checkpoint::of_rank`](super::narrow::Checkpoint::of_rank):
//!
//! ```
//! use candle::safetensors::BufferedSafetensors;
//! use candle::{DType, Device, Module, Result, Tensor};
//! use candle_tilegemm::nn::narrow::Checkpoint;
//! use candle_tilegemm::nn::parallel::{column_linear, row_linear, Group};
//! use std::time::Duration;
//!
//! // y = down(up(x)) with up = [[1], [2]] and down = [[1, 10]].
//! let header = br#"{"up.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
//!     "down.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}}"#;
//! let numbers = [1f32, 2., 1., 10.].map(f32::to_le_bytes).concat();
//! let file = [&(header.len() as u64).to_le_bytes()[..], header, &numbers].concat();
//!
//! let rank = |group: &Group| -> Result<Vec<Vec<f32>>> {
//!     let checkpoint = Checkpoint::from(BufferedSafetensors::new(file.clone())?).of_rank(group);
//!     let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
//!     let up = column_linear(1, 2, false, group, vb.pp("up"))?;
//!     let down = row_linear(2, 1, false, group, vb.pp("down"))?;
//!     assert_eq!((up.weight().dims(), group.size()), (&[1, 1][..], 2));
//!     down.forward(&up.forward(&Tensor::new(&[[3f32]], &Device::Cpu)?)?)?.to_vec2()
//! };
//! let ranks = Group::threads(2, Duration::from_secs(10))?;
//! std::thread::scope(|scope| -> Result<()> {
//!     let threads: Vec<_> = ranks.iter().map(|group| scope.spawn(|| rank(group))).collect();
//!     for thread in threads {
//!         assert_eq!(thread.join().expect("a rank panicked")?, [[63.]]); // 3 * (1 * 1 + 2 * 10) on both
//!     }
//!     Ok(())
//! })?;
//! # Ok::<(), candle::Error>(())
//! ```

mod group;
mod linear;
mod mlp;
mod threads;
mod tokens;

#[cfg(feature = "nccl")]
pub use crate::candle::cuda::nccl::Id;
pub use group::Group;
pub use linear::{column_linear, qkv_linear, row_linear, RowLinear};
pub use mlp::{gated_mlp, GatedMlp};
pub use tokens::{embedding, head, Embedding, Head};
