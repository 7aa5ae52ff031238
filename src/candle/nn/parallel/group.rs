//! The ranks of a model.

use super::threads::{members, Member};
#[cfg(feature = "nccl")]
use crate::candle::cuda::nccl::{Cards, Id};
use crate::candle::numbers::{narrow, wide};
use crate::candle::tensors::{Block, FLOATS};
use ::candle::{bail, Device, Result, Tensor};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: Block = Block("Group");
/// No model has more ranks: as far as errors name numbers of them.
const MOST_RANKS: usize = 64;

/// One of the ranks that compute a model together, each with a part of its weights. Clones are the same rank.
///
/// All ranks make the same calls in the same order.
///
/// ```
/// use candle::{Device, Tensor};
/// use candle_tilegemm::nn::parallel::Group;
/// use std::time::Duration;
///
/// let ranks = Group::threads(2, Duration::from_secs(10))?;
/// let sums = std::thread::scope(|scope| {
///     let sum = |group: Group| -> candle::Result<Vec<f32>> {
///         let x = Tensor::new(&[1f32, group.rank() as f32], &Device::Cpu)?;
///         group.all_reduce(&x)?;
///         x.to_vec1()
///     };
///     let threads: Vec<_> = ranks.into_iter().map(|group| scope.spawn(move || sum(group))).collect();
///     threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect::<candle::Result<Vec<_>>>()
/// })?;
/// assert_eq!(sums, [[2., 1.], [2., 1.]]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Group(Arc<Ranks>);

#[derive(Debug)]
enum Ranks {
    One,
    Threads(Member),
    #[cfg(feature = "nccl")]
    Cards(Cards),
}

impl Group {
    /// The only rank of a model that is whole.
    pub fn one() -> Self {
        Self(Arc::new(Ranks::One))
    }

    /// The ranks of a group for threads of this process, with tensors on the CPU: a program for several cards runs on it without one. A call that waits longer for
    /// another rank is an error on all ranks that names it, as is a call after a rank has been dropped.
    ///
    /// # Errors
    /// No rank.
    pub fn threads(size: usize, timeout: Duration) -> Result<Vec<Self>> {
        match size {
            0 => bail!("Group: 0 ranks; expected 1 and more"),
            1 => Ok(vec![Self::one()]),
            _ => Ok(members(size, timeout).into_iter().map(|member| Self(Arc::new(Ranks::Threads(member)))).collect()),
        }
    }

    /// A rank of a group of `size` GPUs, which NCCL joins: it waits until all ranks, which are threads or processes, have called it with the same id.
    ///
    /// The end of its last clone waits for the other ranks' ends.
    ///
    /// # Errors
    /// A rank that the group does not have, a device that is no GPU, and NCCL's errors.
    #[cfg(feature = "nccl")]
    pub fn cards(device: &Device, rank: usize, size: usize, id: Id) -> Result<Self> {
        let Device::Cuda(device) = device else {
            bail!("Group: rank {rank} is on {:?}; expected a GPU", device.location())
        };
        if rank >= size {
            bail!("Group: rank {rank} of {size}; expected 0 to {}", size.saturating_sub(1));
        }
        Ok(Self(Arc::new(Ranks::Cards(Cards::join(device, rank, size, id)?))))
    }

    /// Gives the group up, from any thread: calls that wait for another rank end with an error, and so do all later ones. For a program that hears of a rank's end in
    /// another way, such as from the process that had it. Other ranks have to abort for themselves.
    pub fn abort(&self) {
        match &*self.0 {
            Ranks::One => {}
            Ranks::Threads(member) => member.abort(),
            #[cfg(feature = "nccl")]
            Ranks::Cards(cards) => cards.abort(),
        }
    }

    /// An error once the group was given up. Captured calls run again without a look at that: ask before each launch, and once more before results count. On the
    /// CPU the end of another rank is no error here: what its last call gave counts, and the next call fails.
    ///
    /// # Errors
    /// The end of the group.
    pub fn check(&self) -> Result<()> {
        match &*self.0 {
            Ranks::One => Ok(()),
            Ranks::Threads(member) => member.check(),
            #[cfg(feature = "nccl")]
            Ranks::Cards(cards) => cards.check(),
        }
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        match &*self.0 {
            Ranks::One => 0,
            Ranks::Threads(member) => member.rank,
            #[cfg(feature = "nccl")]
            Ranks::Cards(cards) => cards.rank,
        }
    }

    /// The ranks of the group.
    pub fn size(&self) -> usize {
        match &*self.0 {
            Ranks::One => 1,
            Ranks::Threads(member) => member.size(),
            #[cfg(feature = "nccl")]
            Ranks::Cards(cards) => cards.size,
        }
    }

    /// This rank's part of `count` rows, columns or heads; `what` is their name in the error.
    ///
    /// # Errors
    /// A number that the ranks do not divide.
    pub fn part(&self, what: &str, count: usize) -> Result<Range<usize>> {
        self.divides(&[(format_args!("Group: {what}"), count)])?;
        let (rank, part) = (self.rank(), count / self.size());
        Ok(rank * part..(rank + 1) * part)
    }

    /// Refuses counts that the ranks do not divide, each with its name; the error has the numbers of ranks that divide all of them.
    ///
    /// # Errors
    /// A count that the ranks do not divide.
    pub fn divides(&self, counts: &[(impl Display, usize)]) -> Result<()> {
        let ranks = self.size();
        let Some((what, count)) = counts.iter().find(|(_, count)| !count.is_multiple_of(ranks)) else { return Ok(()) };
        let divides_all = |ranks: &usize| counts.iter().all(|(_, count)| count.is_multiple_of(*ranks));
        let legal: Vec<String> = (1..=MOST_RANKS).filter(divides_all).map(|ranks| ranks.to_string()).collect();
        bail!("{what} is {count}, which {ranks} ranks do not divide; expected {} ranks", legal.join(", "))
    }

    /// Adds up a contiguous tensor of all ranks, in f32, f16 or bf16, in place: each rank has the same bits afterwards.
    ///
    /// On GPUs it allocates nothing, and is legal in a capture once a call of the same size has run.
    ///
    /// # Errors
    /// A tensor that is not contiguous, or tracks gradients; ranks that do not answer, or make another call.
    pub fn all_reduce(&self, x: &Tensor) -> Result<()> {
        BLOCK.among("x", x, &FLOATS)?;
        BLOCK.list("x", x, x.dtype(), x.elem_count(), x.device())?;
        match (&*self.0, x.device()) {
            (Ranks::One, _) => Ok(()),
            _ if x.elem_count() == 0 => Ok(()),
            (Ranks::Threads(member), Device::Cpu) => {
                let numbers = numbers(x)?;
                let all = member.exchange(format!("all_reduce of {:?} {:?}", x.dtype(), x.dims()), numbers)?;
                let mut sums = all[0].clone();
                for of_rank in &all[1..] {
                    sums.iter_mut().zip(of_rank).for_each(|(sum, x)| *sum += x);
                }
                narrow(BLOCK.rows("x", x, x.elem_count())?, &sums)
            }
            #[cfg(feature = "nccl")]
            (Ranks::Cards(cards), Device::Cuda(device)) => cards.all_reduce(device, x),
            (_, other) => elsewhere(other),
        }
    }

    /// Puts the tensors of all ranks, each as `part`, one after another into `all`.
    ///
    /// On GPUs as [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); a result of another size or type.
    pub fn all_gather_into(&self, part: &Tensor, all: &Tensor) -> Result<()> {
        let (count, device) = (part.elem_count(), part.device());
        BLOCK.among("the part", part, &FLOATS)?;
        BLOCK.list("the part", part, part.dtype(), count, device)?;
        BLOCK.list("the result", all, part.dtype(), count * self.size(), device)?;
        BLOCK.apart("the part", part, all)?;
        match (&*self.0, device) {
            (Ranks::One, _) => all.flatten_all()?.slice_set(&part.flatten_all()?, 0, 0),
            _ if count == 0 => Ok(()),
            (Ranks::Threads(member), Device::Cpu) => {
                let numbers = numbers(part)?;
                let parts = member.exchange(format!("all_gather of {:?} {:?}", part.dtype(), part.dims()), numbers)?;
                narrow(BLOCK.rows("the result", all, all.elem_count())?, &parts.concat())
            }
            #[cfg(feature = "nccl")]
            (Ranks::Cards(cards), Device::Cuda(device)) => cards.all_gather(device, part, all),
            (_, other) => elsewhere(other),
        }
    }

    /// Puts the columns of all ranks, (rows, columns) each, beside one another into `all`, (rows, size columns). `between` is memory for as many numbers as `all`
    /// has, in the same type, which one row does not need.
    ///
    /// On GPUs as [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As for [`all_gather_into`](Self::all_gather_into).
    pub fn gather_columns_into(&self, part: &Tensor, between: &Tensor, all: &Tensor) -> Result<()> {
        let (rows, columns) = part.dims2()?;
        if all.dims() != [rows, columns * self.size()] {
            bail!("Group: the result is {:?}; expected {:?}", all.dims(), [rows, columns * self.size()]);
        }
        if rows == 1 || self.size() == 1 {
            return self.all_gather_into(part, all);
        }
        let (have, need) = (between.elem_count(), all.elem_count());
        if have < need {
            bail!("Group: the memory between has room for {have} numbers; expected {need}, as the result has");
        }
        let between = between.flatten_all()?.narrow(0, 0, need)?;
        self.all_gather_into(part, &between)?;
        let between = between.reshape((self.size(), rows, columns))?;
        (0..self.size()).try_for_each(|rank| all.slice_set(&between.get(rank)?, 1, rank * columns))
    }
}

fn numbers(x: &Tensor) -> Result<Vec<f32>> {
    wide(BLOCK.rows("x", x, x.elem_count())?)
}

fn elsewhere<T>(device: &Device) -> Result<T> {
    bail!(
        "Group: the tensor is on {:?}; expected the CPU for `Group::threads`, and the rank's GPU for `Group::cards`",
        device.location()
    )
}
