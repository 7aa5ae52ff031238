//! How problems and explanations read.

use crate::dispatch::Explanation;
use crate::kernel::Rejection;
use crate::problem::{Activation, Problem};
use std::fmt;

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { m, n, k, .. } = self;
        write!(f, "{m}x{n}x{k} {} {}", self.layout(), self.dtype)?;
        if self.batch_count() != 1 {
            write!(f, " batch {}", self.batch_count())?;
        }
        let epilogue = &self.epilogue;
        if epilogue.alpha() != 1.0 {
            write!(f, " alpha {}", epilogue.alpha())?;
        }
        if epilogue.bias.is_some() {
            write!(f, " + bias")?;
        }
        if epilogue.activation != Activation::Identity {
            write!(f, " {:?}", epilogue.activation)?;
        }
        if epilogue.reads_c() {
            write!(f, " + {} C", epilogue.beta())?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        writeln!(f, "{} on {} ({} SMs)", self.asked, device.name, device.sm_count)?;
        if self.canonical.swapped {
            writeln!(f, "D is column-major: A and B are exchanged and every matrix transposed")?;
        }
        if self.canonical.problem.m != self.asked.m && !self.canonical.swapped {
            writeln!(f, "one B for the whole batch: run as {}", self.canonical.problem)?;
        }
        writeln!(f, "roofline {:.1} us", self.roofline_us)?;
        let mut able: Vec<_> =
            self.candidates.iter().filter_map(|c| Some((c.kernel, *c.verdict.as_ref().ok()?))).collect();
        able.sort_by(|x, y| x.1.total_cmp(&y.1));
        let chosen = |name: &str| if self.chosen.is_some_and(|chosen| chosen.name == name) { "->" } else { "  " };
        for (kernel, us) in able {
            writeln!(f, "{} {:<52} {us:>9.1} us  {}", chosen(kernel.name), kernel.name, kernel.why)?;
        }
        for candidate in &self.candidates {
            // Other dtypes and archs are no candidates at all: a line for each would bury the rest.
            match &candidate.verdict {
                Ok(_) | Err(Rejection::DType { .. } | Rejection::Arch { .. }) => {}
                Err(rejection) => writeln!(
                    f,
                    "{} {:<52} {:>12}  {rejection}",
                    chosen(candidate.kernel.name),
                    candidate.kernel.name,
                    "-"
                )?,
            }
        }
        if self.chosen.is_none() {
            writeln!(f, "no kernel runs this problem")?;
        }
        Ok(())
    }
}
