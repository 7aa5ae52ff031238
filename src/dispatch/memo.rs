//! Caches of decisions. A thread finds a recent decision without a lock, without an allocation, and without a write to memory that
//! other threads read.

use super::policy::Policy;
use crate::error::Result;
use crate::problem::Problem;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::cell::RefCell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, RwLock};
use std::thread::LocalKey;

/// A question to a dispatcher: the key of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Question<'a> {
    /// The number of the dispatcher, unique in the process.
    pub dispatcher: usize,
    pub policy: Policy,
    pub problem: &'a Problem,
}

/// A decision, which holds its own question: a thread's cache needs no second copy of the problem.
pub(super) trait Answer {
    fn question(&self) -> Question<'_>;
}

/// A dispatcher's answers of one kind, for all threads.
#[derive(Debug)]
pub(super) struct Memo<T>(RwLock<Generations<T>>);

type Answers<T> = FxHashMap<(Problem, Policy), Arc<T>>;

/// Two generations of answers. A full young generation becomes the old one, and the previous old generation is dropped. No thread
/// has looked up a dropped answer since the last change of generations.
#[derive(Debug)]
struct Generations<T> {
    young: Answers<T>,
    old: Answers<T>,
}

/// The answers of a generation; two generations are kept.
const GENERATION: usize = 1 << 15;

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self(RwLock::new(Generations { young: Answers::default(), old: Answers::default() }))
    }
}

impl<T> Generations<T> {
    /// Keeps `answer`, or the answer that is there already. Returns the kept answer, and the answers that are dropped.
    fn keep(&mut self, key: (Problem, Policy), answer: Arc<T>) -> (Arc<T>, Answers<T>) {
        let answer = self.old.remove(&key).unwrap_or(answer);
        let answer = self.young.entry(key).or_insert(answer).clone();
        if self.young.len() < GENERATION {
            return (answer, Answers::default());
        }
        let young = std::mem::take(&mut self.young);
        (answer, std::mem::replace(&mut self.old, young))
    }
}

impl<T: Answer> Memo<T> {
    /// Calls `then` with the answer to `question`: from this thread's cache, from the answers for all threads, or from `make`.
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
            // The borrow fails only where `then` of an outer call has led here.
            if let Ok(mut recent) = recent.try_borrow_mut() {
                recent.keep(hash, answer.clone());
            }
            Ok(then(&answer))
        })
    }

    fn shared(&self, key: (Problem, Policy), make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let old = {
            let answers = self.0.read().unwrap();
            if let Some(answer) = answers.young.get(&key) {
                return Ok(answer.clone());
            }
            answers.old.get(&key).cloned()
        };
        let answer = old.map_or_else(|| make().map(Arc::new), Ok)?;
        // The dropped answers are freed after the lock.
        let (answer, _forgotten) = self.0.write().unwrap().keep(key, answer);
        Ok(answer)
    }

    /// Drops the answers for some problems, by any policy. Threads that had one may keep it.
    pub fn forget(&self, is_one: impl Fn(&Problem) -> bool) {
        let mut answers = self.0.write().unwrap();
        let Generations { young, old } = &mut *answers;
        for answers in [young, old] {
            answers.retain(|(problem, _), _| !is_one(problem));
        }
    }

    /// All kept answers.
    pub fn all(&self) -> Vec<Arc<T>> {
        let answers = self.0.read().unwrap();
        answers.young.values().chain(answers.old.values()).cloned().collect()
    }
}

const WAYS: usize = 4;
const SETS: usize = 256;

/// A thread's latest answers, in a set-associative cache. In a direct-mapped cache hot products collide too often: of 100 products in
/// 512 slots, one in six would take the lock each time.
pub(super) struct Recent<T>(Vec<Set<T>>);

/// One cache line.
#[repr(align(64))]
struct Set<T>([(u64, Option<Arc<T>>); WAYS]);

impl<T: Answer> Recent<T> {
    /// An empty cache, without an allocation.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    fn find(&self, hash: u64, question: Question) -> Option<&Arc<T>> {
        let set = self.0.get(hash as usize % SETS)?;
        set.0.iter().filter(|(tag, _)| *tag == hash).find_map(|(_, answer)| {
            // `==` compares the cheap fields first, the problem last.
            answer.as_ref().filter(|answer| answer.question() == question)
        })
    }

    /// Replaces the oldest answer of the set.
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

/// FxHash in four lanes. A problem is forty words; in a single lane each multiplication would wait for the previous one.
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

#[cfg(test)]
mod tests {
    use super::{Answer, Memo, Question, Recent, GENERATION};
    use crate::dispatch::Policy;
    use crate::problem::{Format, Layout, Problem};
    use std::cell::RefCell;
    use std::sync::Arc;

    struct Cheap(Problem);

    impl Answer for Cheap {
        fn question(&self) -> Question<'_> {
            Question { dispatcher: 0, policy: Policy::default(), problem: &self.0 }
        }
    }

    thread_local! {
        static RECENT: RefCell<Recent<Cheap>> = const { RefCell::new(Recent::new()) };
    }

    fn product(m: usize) -> Problem {
        Problem::dense(m, 64, 64, 1, Layout::NT, Format::BF16)
    }

    /// The answer, and whether the answer was made for this question.
    fn ask(memo: &Memo<Cheap>, m: usize) -> (Arc<Cheap>, bool) {
        let problem = product(m);
        let question = Question { dispatcher: 0, policy: Policy::default(), problem: &problem };
        let mut is_new = false;
        let make = || {
            is_new = true;
            Ok(Cheap(problem))
        };
        let answer = memo.recall(&RECENT, question, make, Arc::clone).unwrap();
        assert_eq!(answer.0, problem);
        (answer, is_new)
    }

    #[test]
    fn of_questions_without_end_a_bounded_number_is_kept_and_a_hot_one_among_them() {
        const HOT: usize = 1;
        let memo = Memo::default();
        let (hot, _) = ask(&memo, HOT);
        for m in 2..200_002 {
            assert!(ask(&memo, m).1, "the first time");
            if m % 5000 == 0 {
                let (again, is_new) = ask(&memo, HOT);
                assert!(Arc::ptr_eq(&again, &hot) && !is_new, "made anew after {m}");
                assert!(memo.all().len() <= 2 * GENERATION);
            }
        }
        // The newest answers are kept, too: for all threads, also where this thread's cache has dropped them.
        assert!(
            (200_002 - GENERATION / 4..200_002).all(|m| !ask(&memo, m).1) && ask(&memo, 2).1,
            "a question of long ago is new"
        );
        let kept = memo.all();
        let distinct: std::collections::HashSet<usize> = kept.iter().map(|answer| answer.0.m).collect();
        assert_eq!(distinct.len(), kept.len(), "kept twice");
    }
}
