//! The file of a trace, row by row.

use crate::problem::{Format, Problem};
use crate::settings;
use crate::suite::{self, Shape};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file of a trace, unless `TILEGEMM_TRACE` names another file.
pub const DEFAULT_FILE: &str = settings::TRACE.default;

/// The prefix of a comment for a product that the format cannot express.
pub const LEFT_OUT: &str = "# left out: ";

/// Writes the file of a trace. A process has one tracer for each file: the first row of a second tracer truncates the
/// file.
#[derive(Debug)]
pub struct Tracer {
    path: PathBuf,
    program: String,
    seen: HashSet<Problem>,
    seen_outside: HashSet<String>,
    ids: HashSet<String>,
    left_out: usize,
    file: State,
}

#[derive(Debug)]
enum State {
    /// A program without products leaves no file.
    Unopened,
    Open(File),
    /// The failure was reported once; no further write is tried.
    Failed,
}

/// The outcome of recording a product that was not seen before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Name of the written row; `None` when the format cannot express the product, or the file cannot be written.
    pub id: Option<String>,
    /// Messages for the user; each message is given once.
    pub notes: Vec<String>,
}

impl Tracer {
    /// A trace of this program to `path`. The first product creates the file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let program = std::env::current_exe().ok();
        let program =
            program.as_deref().and_then(Path::file_stem).map_or("a program".into(), |stem| stem.to_string_lossy());
        Self {
            path: path.into(),
            program: program.into_owned(),
            seen: HashSet::new(),
            seen_outside: HashSet::new(),
            ids: HashSet::new(),
            left_out: 0,
            file: State::Unopened,
        }
    }

    /// A trace to the file that `TILEGEMM_TRACE` names, else to [`DEFAULT_FILE`] in the working folder.
    pub fn from_env() -> Self {
        Self::new(settings::trace().unwrap_or_else(|| DEFAULT_FILE.into()))
    }

    /// The number of distinct products that the format could not express.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Writes a row for `problem`; `None` when the product was seen before.
    pub fn record(&mut self, problem: &Problem) -> Option<Recorded> {
        let problem = suite::without_alignment(problem);
        if !self.seen.insert(problem) {
            return None;
        }
        let id = self.unique_id(&problem);
        let Some(shape) = Shape::of(&problem, id.clone(), class_of(&problem).into()) else {
            return Some(self.comment(&describe(&problem)));
        };
        let row = suite::to_toml(&[Shape { from: Some(self.program.clone()), ..shape }]);
        let mut notes = Vec::new();
        let written = self.write(&format!("\n{row}"), &mut notes);
        self.ids.insert(id.clone());
        Some(Recorded { id: written.then_some(id), notes })
    }

    /// Writes a comment for a product that no [`Problem`] expresses; `None` when the product was seen before.
    pub fn leave_out(&mut self, what: String) -> Option<Recorded> {
        self.seen_outside.insert(what.clone()).then(|| self.comment(&what))
    }

    fn comment(&mut self, what: &str) -> Recorded {
        self.left_out += 1;
        let mut notes = Vec::new();
        let line = what.replace(['\n', '\r'], " ");
        let written = self.write(&format!("\n{LEFT_OUT}{line}\n"), &mut notes);
        if written && self.left_out == 1 {
            let path = self.path.display();
            notes.push(format!(
                "a suite cannot express every product of this program; comments in {path} list the others"
            ));
        }
        Recorded { id: None, notes }
    }

    /// `trace-1x4096x4096-nt-bf16`, with `-b32` for a batch, and `-2` ... for products that differ in strides or
    /// epilogue.
    fn unique_id(&self, problem: &Problem) -> String {
        let Problem { m, n, k, a, b, d, .. } = problem;
        let blocks = if b.format.is_gguf_block() { format!("-{}", b.format) } else { String::new() };
        let out = if d.format == a.format { String::new() } else { format!("-{}", d.format) };
        let batch = if problem.batch_count() > 1 { format!("-b{}", problem.batch_count()) } else { String::new() };
        let name = format!("trace-{m}x{n}x{k}-{}-{}{blocks}{out}{batch}", problem.layout(), a.format);
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone()).chain(numbered).find(|id| !self.ids.contains(id)).unwrap_or(name)
    }

    /// Appends to the file at once, so that a killed program leaves its products in the file. Returns whether the write
    /// succeeded.
    fn write(&mut self, text: &str, notes: &mut Vec<String>) -> bool {
        let path = self.path.display();
        if matches!(self.file, State::Unopened) {
            notes.push(format!("tracing the products of this program to {path}"));
        }
        let result = match &mut self.file {
            State::Failed => return false,
            State::Open(file) => file.write_all(text.as_bytes()),
            State::Unopened => create(&self.path, &self.program).and_then(|mut file| {
                let result = file.write_all(text.as_bytes());
                self.file = State::Open(file);
                result
            }),
        };
        if let Err(error) = &result {
            notes.push(format!(
                "cannot write {path}: {error}; the trace ends here. Set TILEGEMM_TRACE to a file that can be written"
            ));
            self.file = State::Failed;
        }
        result.is_ok()
    }
}

fn create(path: &Path, program: &str) -> io::Result<File> {
    let mut file = File::create(path)?;
    writeln!(
        file,
        "# The products of {program}, as candle-tilegemm {} saw them with TILEGEMM=trace, in the order in which they first came.\n\
         # `tilegemm bench --suite` measures them; benches/README.md of candle-tilegemm describes the format.",
        env!("CARGO_PKG_VERSION"),
    )?;
    Ok(file)
}

/// A product without a row, with the properties that a row cannot express.
fn describe(problem: &Problem) -> String {
    let strides = [("A", problem.a), ("B", problem.b), ("D", problem.d)]
        .map(|(name, o)| format!("{name} {:?}", [o.batch_stride[0], o.batch_stride[1], o.row_stride, o.col_stride]));
    format!("{problem}, strides {}", strides.join(" "))
}

/// The class of `tilegemm bench` for a product, by the first of these properties that holds: blocks of a GGUF file: `gguf`; one A or B for a whole
/// batch: `broadcast`; a batch: `attention`; `f64`; `f32`; then by rows, 1 to 4: `decode`, up to 64: `small`, up to
/// 256: `mid`, more: `prefill`.
pub fn class_of(problem: &Problem) -> &'static str {
    if problem.b.format.is_gguf_block() {
        return "gguf";
    }
    let repeated = [problem.a, problem.b].iter().any(|operand| operand.batch_stride == [0, 0]);
    match (problem.batch_count(), problem.a.format, problem.m) {
        (2.., _, _) if repeated => "broadcast",
        (2.., _, _) => "attention",
        (_, Format::F64, _) => "f64",
        (_, Format::F32, _) => "f32",
        (_, _, ..=4) => "decode",
        (_, _, ..=64) => "small",
        (_, _, ..=256) => "mid",
        _ => "prefill",
    }
}
