//! The arms of an example of a model: a first run of each arm, then measured runs in turns.

use crate::measure::{self, Measurement};
use crate::report::Arm;
use anyhow::Result;
use candle::Tensor;
#[cfg(feature = "interpose")]
use candle_tilegemm::interpose::{self, Mode};

/// The feature that decides what runs on our kernels.
pub const FEATURE: &str = if cfg!(feature = "interpose-kernels") {
    "interpose-kernels"
} else if cfg!(feature = "interpose") {
    "interpose"
} else if cfg!(feature = "cuda") {
    "cuda"
} else {
    "candle"
};

/// One prefill and its decode steps.
pub struct Run {
    /// Seconds of the prefill and of all decode steps.
    pub times: (f64, f64),
    /// The last token's logits of the prefill and of each decode step.
    pub logits: Vec<Tensor>,
}

/// The arms of a build, by name. The interposer is off in the first arm, and on in the second.
pub struct Arms {
    names: &'static [&'static str],
    #[cfg(feature = "interpose")]
    modes: [Mode; 2],
}

impl Arms {
    /// Enters the first arm. TILEGEMM=trace and TILEGEMM=force hold for our arm.
    pub fn new(names: &'static [&'static str]) -> Self {
        let arms = Self {
            names,
            #[cfg(feature = "interpose")]
            modes: [Mode::Off, if interpose::mode() == Mode::Off { Mode::On } else { interpose::mode() }],
        };
        arms.enter(0);
        arms
    }

    fn enter(&self, _arm: usize) {
        #[cfg(feature = "interpose")]
        interpose::set_mode(self.modes[_arm]);
    }

    /// Times `runs` runs of each arm, of `prompt` and `decode` tokens each. The first run of an arm also warms the arm up; its logits are compared with
    /// those of the first arm and of the reference. Returns the logits of the first arm, too.
    pub fn measure(
        &self,
        runs: u32,
        [prompt, decode]: [u32; 2],
        reference: Option<&[Tensor]>,
        mut run: impl FnMut() -> Result<Run>,
    ) -> Result<(Vec<Arm>, Vec<Tensor>)> {
        let mut logits = Vec::new();
        #[cfg(feature = "interpose")]
        let mut dispatched = Vec::new();
        for arm in 0..self.names.len() {
            self.enter(arm);
            #[cfg(feature = "interpose")]
            let before = interpose::stats();
            logits.push(run()?.logits);
            #[cfg(feature = "interpose")]
            dispatched.push(interpose::stats().since(&before));
        }
        let mut times = vec![Vec::new(); self.names.len()];
        for _ in 0..runs {
            for (arm, times) in times.iter_mut().enumerate() {
                self.enter(arm);
                times.push(run()?.times);
            }
        }
        let mut arms = Vec::new();
        for (arm, name) in self.names.iter().enumerate() {
            arms.push(Arm {
                name,
                times: Measurement::median(&times[arm], prompt, decode),
                to_first: if arm > 0 { Some(measure::compare(&logits[0], &logits[arm])?) } else { None },
                to_file: reference.map(|reference| measure::compare(reference, &logits[arm])).transpose()?,
                #[cfg(feature = "interpose")]
                dispatched: dispatched[arm].clone(),
            });
        }
        Ok((arms, logits.swap_remove(0)))
    }
}
