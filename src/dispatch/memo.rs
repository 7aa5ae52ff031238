//! What was decided before, found again without a lock, without an allocation, and without a write to memory that other
//! threads read.

use super::Policy;
use crate::error::Result;
use crate::problem::Problem;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::cell::RefCell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, RwLock};
use std::thread::LocalKey;

/// A product as one dispatcher is asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Question<'a> {
    /// Of the dispatcher; no two of a process have the same.
    pub dispatcher: usize,
    pub policy: Policy,
    pub problem: &'a Problem,
}

/// What is kept knows what it answers, so that a thread's cache holds no second copy of the problem.
pub(super) trait Answer {
    fn question(&self) -> Question<'_>;
}

/// Answers of one kind that a dispatcher keeps for all threads.
#[derive(Debug)]
pub(super) struct Memo<T>(RwLock<FxHashMap<(Problem, Policy), Arc<T>>>);

/// Answers kept for all threads; above this number one is made anew when a thread has lost it.
const MOST_ANSWERS: usize = 1 << 16;

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T: Answer> Memo<T> {
    /// Calls `then` with the answer to `question`: the one that this thread has, or that all threads have, or that `make` makes.
    pub fn recall<R>(
        &self,
        recent: &'static LocalKey<RefCell<Recent<T>>>,
        question: Question,
        make: impl FnOnce() -> Result<T>,
        then: impl FnOnce(&Arc<T>) -> R,
    ) -> Result<R> {
        let hash = hash(&question);
        recent.with(|recent| {
            if let Some(answer) = recent.borrow().find(hash, question) {
                return Ok(then(answer));
            }
            let answer = self.shared((*question.problem, question.policy), make)?;
            // Borrowed only where `then` of an outer call has led here.
            if let Ok(mut recent) = recent.try_borrow_mut() {
                recent.keep(hash, answer.clone());
            }
            Ok(then(&answer))
        })
    }

    fn shared(&self, key: (Problem, Policy), make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        if let Some(answer) = self.0.read().unwrap().get(&key) {
            return Ok(answer.clone());
        }
        let answer = Arc::new(make()?);
        let mut answers = self.0.write().unwrap();
        if answers.len() >= MOST_ANSWERS {
            return Ok(answer);
        }
        Ok(answers.entry(key).or_insert(answer).clone())
    }

    /// All that is kept.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.read().unwrap().values().cloned().collect()
    }
}

const WAYS: usize = 4;
const SETS: usize = 256;

/// The last answers that a thread was given, in a set-associative cache. A handful of hot products share a set of
/// direct-mapped ones too often: of 100 in 512 slots, one in six would be looked up under the lock each time.
pub(super) struct Recent<T>(Vec<Set<T>>);

/// One cache line.
#[repr(align(64))]
struct Set<T>([(u64, Option<Arc<T>>); WAYS]);

impl<T: Answer> Recent<T> {
    /// Nothing, and nothing allocated.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    fn find(&self, hash: u64, question: Question) -> Option<&Arc<T>> {
        let set = self.0.get(hash as usize % SETS)?;
        set.0.iter().filter(|(tag, _)| *tag == hash).find_map(|(_, answer)| {
            // The cheap fields first, the problem last.
            answer.as_ref().filter(|answer| answer.question() == question)
        })
    }

    /// In place of the oldest of its set.
    fn keep(&mut self, hash: u64, answer: Arc<T>) {
        if self.0.is_empty() {
            self.0.resize_with(SETS, || Set([const { (0, None) }; WAYS]));
        }
        let set = &mut self.0[hash as usize % SETS].0;
        set.rotate_right(1);
        set[0] = (hash, Some(answer));
    }
}

fn hash(question: &Question) -> u64 {
    let mut hasher = Lanes([0; 4]);
    question.hash(&mut hasher);
    hasher.finish()
}

/// FxHash in four lanes: a problem is forty words, and in one lane each multiplication waits for the one before.
struct Lanes([u64; 4]);

impl Hasher for Lanes {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let [a, b, c, d] = self.0;
        self.0 = [b, c, d, (a.rotate_left(5) ^ word).wrapping_mul(0xf135_7aea_2e62_a9c5)];
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        FxBuildHasher.hash_one(self.0)
    }
}
