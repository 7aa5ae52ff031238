//! A decision on an epilogue.

use super::memo::{Answer, Question};
use super::policy::Policy;
use crate::kernel::Fusion;
use crate::problem::Problem;

/// How much of an epilogue the GEMM kernel does.
#[derive(Debug)]
pub(super) struct Split {
    pub asked: Problem,
    pub dispatcher: usize,
    pub policy: Policy,
    pub fusion: Fusion,
}

impl Answer for Split {
    fn question(&self) -> Question<'_> {
        Question { dispatcher: self.dispatcher, policy: self.policy, problem: &self.asked }
    }
}
