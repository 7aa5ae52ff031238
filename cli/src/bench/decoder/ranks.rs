//! Our decoder on several cards, each a rank with a thread of its own.

use super::ours::{set_graphs, Ours};
use super::size::Size;
use super::subject::Subject;
use candle::{bail, Device, Error, Result, Tensor};
use candle_tilegemm::nn::parallel::Group;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::spawn;
use std::time::Duration;

/// What another rank may take until a call counts as hanging, on the CPU.
const TIMEOUT: Duration = Duration::from_secs(60);

/// All ranks. Each call goes to all of them, and ends once all have ended; rank 0 answers.
pub struct Ranks {
    ranks: Vec<Sender<Job>>,
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
        let (mut ranks, mut loaded) = (vec![], vec![]);
        for join in joins(cards, device.is_cpu())? {
            let ((jobs, of_rank), (tell, told)) = (channel::<Job>(), channel());
            let size = size.clone();
            spawn(move || {
                let ours = join().and_then(|(group, device)| Ours::load_rank(&size, fp8_cache, &group, &device));
                match ours {
                    Ok(mut ours) => {
                        let _ = tell.send(Ok(()));
                        of_rank.into_iter().for_each(|job| job(&mut ours));
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                    }
                }
            });
            ranks.push(jobs);
            loaded.push(told);
        }
        first(loaded)?;
        Ok(Self { ranks })
    }

    /// The same call of all ranks.
    fn all<T: Send + 'static>(&self, work: impl Fn(&mut Ours) -> Result<T> + Send + Sync + 'static) -> Result<T> {
        let work = Arc::new(work);
        let call = |rank: &Sender<Job>| {
            let ((tell, told), work) = (channel(), work.clone());
            // A rank that has ended tells nothing.
            let _ = rank.send(Box::new(move |ours| drop(tell.send(work(ours)))));
            told
        };
        first(self.ranks.iter().map(call).collect())
    }
}

/// Rank 0's answer, once all have answered; else the first error.
fn first<T>(told: Vec<Receiver<Result<T>>>) -> Result<T> {
    let answer = |(rank, told): (usize, Receiver<Result<T>>)| match told.recv() {
        Ok(answer) => answer.map_err(|error| error.context(format!("rank {rank}"))),
        Err(_) => bail!("rank {rank} has ended"),
    };
    let answers: Vec<Result<T>> = told.into_iter().enumerate().map(answer).collect();
    let all = answers.into_iter().collect::<Result<Vec<T>>>()?;
    all.into_iter().next().ok_or_else(|| Error::msg("no rank"))
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
