//! Progress of loading, for people.

use std::io::{IsTerminal, Result, Write};

/// A line that is rewritten on a terminal, and a line for each quarter elsewhere.
pub struct Progress<W: Write> {
    out: W,
    is_terminal: bool,
    /// The quarters that are told.
    told: usize,
}

impl Progress<std::io::Stderr> {
    pub fn stderr() -> Self {
        let out = std::io::stderr();
        let is_terminal = out.is_terminal();
        Self::new(out, is_terminal)
    }
}

impl<W: Write> Progress<W> {
    pub fn new(out: W, is_terminal: bool) -> Self {
        Self { out, is_terminal, told: 0 }
    }

    /// So many layers of all are loaded.
    pub fn loaded(&mut self, layers: usize, of: usize) -> Result<()> {
        if self.is_terminal {
            write!(self.out, "\rloaded {layers} of {of} layers")?;
            return self.out.flush();
        }
        let quarter = 4 * layers / of.max(1);
        if quarter > self.told {
            self.told = quarter;
            writeln!(self.out, "loaded {layers} of {of} layers")?;
        }
        Ok(())
    }
}

/// Takes the line of a terminal away, also where loading has failed.
impl<W: Write> Drop for Progress<W> {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write!(self.out, "\r\x1b[K").and_then(|()| self.out.flush());
        }
    }
}
