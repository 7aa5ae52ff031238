//! Our decoder on several cards, each a rank with a thread of its own.

use super::ours::{set_graphs, Ours};
use super::size::Size;
use super::subject::Subject;
use candle::{bail, Device, Error, Result, Tensor};
use candle_tilegemm::nn::parallel::Group;
use std::cell::Cell;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::spawn;
use std::time::{Duration, Instant};

/// What another rank may take until a call counts as hanging, on the CPU.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What ranks have to answer in. Loading a model is one call, and so are many steps.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the other ranks have to answer in once one has failed.
const GRACE: Duration = Duration::from_secs(2);

/// All ranks. Each call goes to all of them, and ends once all have ended, or one has failed; rank 0 answers.
pub struct Ranks {
    ranks: Vec<Sender<Job>>,
    /// Whether ranks still wait for one that has failed.
    hangs: Cell<bool>,
    patience: Duration,
}

type Job = Box<dyn FnOnce(&mut Ours) + Send>;
/// How a thread makes its rank.
type Join = Box<dyn FnOnce() -> Result<(Group, Device)> + Send>;

fn joins(cards: usize, on_cpu: bool) -> Result<Vec<Join>> {
    if on_cpu {
        let groups = Group::threads(cards, TIMEOUT)?;
        return Ok(groups.into_iter().map(|group| Box::new(move || Ok((group, Device::Cpu))) as Join).collect());
    }
    joins_of_cards(cards)
}

#[cfg(feature = "nccl")]
fn joins_of_cards(cards: usize) -> Result<Vec<Join>> {
    let there = candle_tilegemm::launch::device_count()?;
    if there < cards {
        bail!("--cards {cards}: there are {there} GPUs");
    }
    if std::env::var_os("NCCL_SOCKET_IFNAME").is_none() {
        std::env::set_var("NCCL_SOCKET_IFNAME", "lo"); // all ranks are threads of this process
    }
    let id = candle_tilegemm::nn::parallel::Id::new()?;
    let join = |rank: usize| -> Join {
        Box::new(move || {
            let device = Device::new_cuda(rank)?;
            Ok((Group::cards(&device, rank, cards, id)?, device))
        })
    };
    Ok((0..cards).map(join).collect())
}

#[cfg(not(feature = "nccl"))]
fn joins_of_cards(cards: usize) -> Result<Vec<Join>> {
    bail!("--cards {cards}: this build has no NCCL; build it with the feature nccl")
}

impl Ranks {
    /// Loads a rank's part of the decoder on each card, from card 0 on.
    pub fn load(size: &Size, fp8_cache: bool, cards: usize, device: &Device) -> Result<Self> {
        let (mut ranks, (tell, told)) = (vec![], channel());
        for (rank, join) in joins(cards, device.is_cpu())?.into_iter().enumerate() {
            let (jobs, of_rank) = channel::<Job>();
            let (size, tell) = (size.clone(), tell.clone());
            spawn(move || {
                let tell = |answer| drop(tell.send((rank, answer)));
                let (group, device) = match join() {
                    Ok(joined) => joined,
                    Err(error) => return tell(Err(error)),
                };
                match Ours::load_rank(&size, fp8_cache, &group, &device) {
                    Ok(mut ours) => {
                        tell(Ok(()));
                        of_rank.into_iter().for_each(|job| job(&mut ours));
                    }
                    // Before the group ends: that may wait for the other ranks.
                    Err(error) => tell(Err(error)),
                }
            });
            ranks.push(jobs);
        }
        let ranks = Self { ranks, hangs: Cell::new(false), patience: PATIENCE };
        ranks.answer(&told)?;
        Ok(ranks)
    }

    /// The same call of all ranks.
    fn all<T: Send + 'static>(&self, work: impl Fn(&mut Ours) -> Result<T> + Send + Sync + 'static) -> Result<T> {
        if self.hangs.get() {
            bail!("ranks still wait for one that has failed or hangs");
        }
        let (work, (tell, told)) = (Arc::new(work), channel());
        for (rank, jobs) in self.ranks.iter().enumerate() {
            let (of_rank, work) = (tell.clone(), work.clone());
            if jobs.send(Box::new(move |ours| drop(of_rank.send((rank, work(ours)))))).is_err() {
                let _ = tell.send((rank, Err(Error::msg("it has ended"))));
            }
        }
        drop(tell);
        self.answer(&told)
    }

    /// Rank 0's answer, once all have answered; else the first error, for which other ranks may wait without an end, or the ranks that are silent.
    fn answer<T>(&self, told: &Receiver<(usize, Result<T>)>) -> Result<T> {
        let (mut first, mut failure, began) = (None, None, Instant::now());
        let mut silent: Vec<usize> = (0..self.ranks.len()).collect();
        while !silent.is_empty() {
            let left = self.patience.saturating_sub(began.elapsed());
            let (rank, answer) = match told.recv_timeout(if failure.is_none() { left } else { GRACE }) {
                Ok(answer) => answer,
                Err(why) => {
                    self.hangs.set(true);
                    let ranks: Vec<String> = silent.iter().map(usize::to_string).collect();
                    let why = match why {
                        RecvTimeoutError::Timeout => format!("no answer within {:?}", self.patience),
                        RecvTimeoutError::Disconnected => "ended without an answer".to_string(),
                    };
                    failure = failure.or_else(|| Some(Error::msg(format!("rank {}: {why}", ranks.join(", ")))));
                    break;
                }
            };
            silent.retain(|other| *other != rank);
            match answer {
                Ok(answer) if rank == 0 => first = Some(answer),
                Ok(_) => {}
                Err(error) => failure = failure.or(Some(error.context(format!("rank {rank}")))),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => first.ok_or_else(|| Error::msg("no rank")),
        }
    }
}

impl Subject for Ranks {
    fn prefill(&mut self, prompt: &[u32]) -> Result<Tensor> {
        let prompt = prompt.to_vec();
        self.all(move |ours| {
            let logits = ours.prefill(&prompt)?;
            // candle's stream is the thread's.
            logits.device().synchronize()?;
            Ok(logits)
        })
    }

    fn first_token(&mut self, prompt: &[u32]) -> Result<u32> {
        let prompt = prompt.to_vec();
        self.all(move |ours| ours.first_token(&prompt))
    }

    fn bytes_to_prefill(&self, tokens: usize) -> f64 {
        self.all(move |ours| Ok(ours.bytes_to_prefill(tokens))).unwrap_or(f64::INFINITY)
    }

    fn bytes_to_decode(&self, context: usize, sequences: usize) -> f64 {
        self.all(move |ours| Ok(ours.bytes_to_decode(context, sequences))).unwrap_or(f64::INFINITY)
    }

    fn fill(&mut self, prompts: &[Vec<u32>], steps: usize) -> Result<()> {
        let prompts = prompts.to_vec();
        self.all(move |ours| ours.fill(&prompts, steps))
    }

    fn fills_by_steps(&self, _: usize) -> bool {
        false
    }

    fn decode(&mut self, arm: &str, warm_up: usize, steps: usize) -> Result<(f64, Vec<u32>)> {
        let arm = arm.to_owned();
        set_graphs(&arm);
        self.all(move |ours| ours.steps(&arm, warm_up, steps))
    }

    fn clear(&mut self) -> Result<()> {
        self.all(Subject::clear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn ranks(count: usize, patience: Duration) -> Ranks {
        Ranks { ranks: (0..count).map(|_| channel().0).collect(), hangs: Cell::new(false), patience }
    }

    /// The others may wait for a rank that has failed, in NCCL without an end.
    #[test]
    fn an_error_does_not_wait_for_ranks_that_hang() {
        let ranks = ranks(3, PATIENCE);
        let (tell, told) = channel::<(usize, Result<()>)>();
        tell.send((1, Err(Error::msg("no room")))).unwrap();
        tell.send((2, Ok(()))).unwrap();
        let began = Instant::now();
        let error = ranks.answer(&told).unwrap_err().to_string();
        assert!(error.contains("rank 1") && error.contains("no room"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(30));
        let error = ranks.all(|_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("ranks still wait for one that has failed or hangs"), "{error}");
        drop(tell);
    }

    #[test]
    fn a_rank_that_never_answers_is_named() {
        let ranks = ranks(3, Duration::from_millis(200));
        let (tell, told) = channel::<(usize, Result<()>)>();
        [0, 2].into_iter().for_each(|rank| tell.send((rank, Ok(()))).unwrap());
        let error = ranks.answer(&told).unwrap_err().to_string();
        assert!(error.starts_with("rank 1: no answer within 200ms"), "{error}");
        let error = ranks.all(|_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("ranks still wait for one that has failed or hangs"), "{error}");
        [1, 2].into_iter().for_each(|rank| tell.send((rank, Ok(()))).unwrap());
        drop(tell);
        let error = ranks.answer(&told).unwrap_err().to_string();
        assert!(error.starts_with("rank 0: ended without an answer"), "{error}");
    }

    #[test]
    fn ranks_that_have_failed_and_answered_go_on() {
        let ranks = ranks(2, PATIENCE);
        let (tell, told) = channel::<(usize, Result<usize>)>();
        for answers in [[Err(Error::msg("no room")), Err(Error::msg("no room"))], [Ok(5), Ok(6)]] {
            answers.into_iter().enumerate().rev().for_each(|answer| tell.send(answer).unwrap());
        }
        assert!(ranks.answer(&told).unwrap_err().to_string().contains("rank 1"));
        assert_eq!(ranks.answer(&told).unwrap(), 5);
        // Their threads have ended.
        assert!(ranks.all(|_| Ok(())).unwrap_err().to_string().contains("it has ended"));
    }
}
