//! Reads `csrc/*/family.toml` and expands their rows into kernels. Used by build.rs, and by a test of every kind of bad row.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

mod align;
mod cases;
mod family;
mod features;
mod limits;
mod out;
mod sass;

use align::{align_of, dtype_bytes};
use cases::Cases;
use family::Family;
pub use family::{Language, Role};
pub use features::features;
use limits::Limits;
use out::Out;

/// With `a` for the very compute capability, with `f` for all compute capabilities of the family: 10.0 and 10.3 for `sm100f`.
const ARCHS: [&str; 9] = ["sm80", "sm89", "sm90", "sm90a", "sm100", "sm100a", "sm100f", "sm120", "sm120a"];
const DTYPES: [&str; 6] = ["f16", "bf16", "f32", "f64", "f8e4m3", "i8"];
/// The formats of B beside those of `dtype`: blocks of GGUF, and narrow weights.
const OTHERS_OF_B: [&str; 18] = [
    "q4k", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2k", "q3k", "q5k", "q6k", "mxfp4", "iq4_nl", "iq4_xs", "u4",
    "f4e2m1", "i8", "u8", "f8e4m3",
];
/// Ways to multiply; `native`, the dtype itself, is the default of a row.
const MATHS: [&str; 4] = ["native", "tf32", "bf16x6", "fast_accum"];
const LAYOUTS: [&str; 5] = ["nn", "nt", "tn", "tt", "any"];
const SCHEDULES: [&str; 7] = ["none", "cooperative", "pingpong", "naive", "prefetch", "subtiles", "two_ctas"];
/// The largest extent of a tile: far more than a multiprocessor holds, and a cluster's extents still are numbers of 32 bits.
const MOST_TILE: u32 = 1 << 16;
const EPILOGUES: [&str; 3] = ["none", "bias_act", "full"];

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// sm80 sm89 sm90 sm90a sm100 sm100a sm100f sm120 sm120a; built with the Cargo feature of that number. Empty where `by_name` has all.
    #[serde(default)]
    arch: Vec<String>,
    /// Archs on which other kernels win, or no card has run the row: the row runs by name, in builds of the profile `every`.
    #[serde(default)]
    by_name: Vec<String>,
    /// f16 bf16 f32 f64 f8e4m3 i8: A and B, and C, the bias and D without `out`. Products are accumulated in f32, in f64 for f64.
    dtype: Vec<String>,
    /// B, where B has another format than A: blocks of GGUF, or narrow weights. Each makes a kernel.
    #[serde(default)]
    b: Vec<String>,
    /// C, the bias and D: f32 of 16-bit operands; f16, bf16 or f32 of f8e4m3 and i8, which have no results of their own. Of a list each makes a kernel: `own` is A's.
    out: Option<Out>,
    /// How f32 is multiplied: tf32, or bf16x6 (three bf16 parts, six products). f8e4m3: fast_accum (the tensor cores' sums). Absent: in the dtype itself.
    #[serde(default = "native")]
    math: String,
    /// nn nt tn tt, row-major (tilegemm.h); any: any strides.
    layout: Vec<String>,
    /// M, N, K of one output tile and one pipeline stage, unless the family's file gives them another meaning.
    #[serde(default)]
    tile: [u32; 3],
    /// Thread blocks of a cluster along M, N; in CUDA Tile C++ the blocks that share one tile.
    #[serde(default = "one_block")]
    cluster: [u32; 2],
    /// Widths of the row's tiles, where the row has several: rows of the tiles with A and B swapped, else columns. The widest is that side
    /// of `tile`. `tile`, `cluster` and `split` are upper bounds of a plan's configuration.
    #[serde(default)]
    widths: Vec<u32>,
    /// Parts of K that the blocks of a cluster add up.
    #[serde(default = "whole_k")]
    split: u32,
    /// Pipeline depth; 0: as many stages as shared memory holds.
    #[serde(default)]
    stages: u32,
    /// Worker warps of a thread block; 0: the family's own number.
    #[serde(default)]
    warps: u32,
    /// Bytes that pointers and strides must be multiples of; 0: one element.
    #[serde(default)]
    align: u32,
    /// cooperative, pingpong: CUTLASS's; naive ... two_ctas: rungs of csrc/sm100_gemm. Absent: the family's own.
    #[serde(default = "no_schedule")]
    schedule: String,
    /// full: bias, activation and beta * C; bias_act: bias and activation; none: alpha only.
    epilogue: String,
    /// Whether the build profile `fast`, which compiles in minutes, has the row, too.
    #[serde(default)]
    fast: bool,
    /// Cargo features that build the row, beside the family's.
    #[serde(default)]
    features: Vec<String>,
    /// Limits that take the place of the family's.
    #[serde(default)]
    limits: toml::Table,
    /// The shapes that earn the row its place.
    why: String,
}

fn one_block() -> [u32; 2] {
    [1, 1]
}

fn whole_k() -> u32 {
    1
}

fn native() -> String {
    "native".into()
}

fn no_schedule() -> String {
    "none".into()
}

/// A family.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    family: toml::Spanned<Family>,
    #[serde(default)]
    limits: toml::Table,
    #[serde(default)]
    tests: Cases,
    #[serde(default)]
    sass: Vec<sass::Expected>,
    kernel: Vec<toml::Spanned<Row>>,
}

/// A kernel: a row for one arch, dtype and layout.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The name in CUTLASS's grammar, computed from the row.
    pub name: String,
    /// The folder in csrc.
    pub family: String,
    pub role: Role,
    pub language: Language,
    /// The Cargo features that build the kernel together, beside the feature of the arch.
    pub features: Vec<String>,
    /// Flags of the compiler for the kernel's tile.
    pub flags: Vec<String>,
    /// `sm90a`; empty for the vendor library.
    pub arch: String,
    pub dtype: String,
    /// The format of B.
    pub b: String,
    /// The format of C, the bias and D.
    pub out: String,
    pub math: String,
    pub layout: String,
    pub tile: [u32; 3],
    pub cluster: [u32; 2],
    pub widths: Vec<u32>,
    pub split: u32,
    pub stages: u32,
    pub warps: u32,
    pub align: u32,
    pub schedule: String,
    pub epilogue: String,
    /// Whether the build profile `fast` has the kernel.
    pub fast: bool,
    /// Whether the build profile `sample` has the kernel: the first of its row for the size of its operands' elements and the row's first arch (in cuTile,
    /// whose compiler writes other code for each arch, for every arch), or the first of its family for its arch.
    pub sample: bool,
    pub why: String,
    /// Line of the row in its family.toml.
    pub line: usize,
    /// Hash of the kernel's code (build/code.rs); empty until the sources are read.
    pub code: String,
    /// The kernel's limits: an expression of Rust, and a function in C++.
    pub limits: [String; 2],
}

/// A row that cannot be built: file and line, the field and the expected value.
#[derive(Debug, PartialEq)]
pub struct TableError {
    pub file: String,
    pub line: usize,
    pub message: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for TableError {}

/// The name and the family.toml of every family, in the order of the names. A folder of csrc with a family.toml is a family.
fn files(csrc: &Path) -> Result<Vec<(String, String)>, String> {
    let entries = std::fs::read_dir(csrc).map_err(|e| format!("cannot list {}: {e}", csrc.display()))?;
    let folders = entries.flatten().filter(|entry| entry.path().join("family.toml").exists());
    let mut families: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    families.sort();
    let read = |family: String| {
        let path = csrc.join(&family).join("family.toml");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Ok((family, text))
    };
    families.into_iter().map(read).collect()
}

/// The whole table: the kernels of every family.
pub fn read(csrc: &Path) -> Result<Vec<Kernel>, String> {
    let mut kernels = Vec::new();
    for (family, text) in files(csrc)? {
        kernels.extend(parse(&family, &text).map_err(|e| e.to_string())?);
    }
    Ok(kernels)
}

/// The tables that tests/gpu includes: the `[tests]` of every family.
pub fn cases(csrc: &Path) -> Result<String, String> {
    let (mut sizes, mut refused) = (String::new(), String::new());
    for (family, text) in files(csrc)? {
        let file: File = toml::from_str(&text).map_err(|e| format!("csrc/{family}/family.toml: {e}"))?;
        let [more_sizes, more_refused] = file.tests.rust(&family);
        sizes += &more_sizes;
        refused += &more_refused;
    }
    Ok(format!(
        "/// M, N and K that a family's kernels are tried with, beside the sizes for every kernel.\n\
         pub const SIZES: &[(&str, &[[usize; 3]])] = &[\n{sizes}];\n\n\
         /// A kernel, M, N, K and matrices of a product, and a configuration that the kernel refuses for this product.\n\
         pub const REFUSED: &[(&str, [usize; 4], &str)] = &[\n{refused}];\n"
    ))
}

/// The tables that tests/sass includes: the `[[sass]]` of every family.
pub fn sass(csrc: &Path) -> Result<String, String> {
    let mut expected = String::new();
    for (family, text) in files(csrc)? {
        let file: File = toml::from_str(&text).map_err(|e| format!("csrc/{family}/family.toml: {e}"))?;
        expected.extend(file.sass.iter().map(|entry| entry.rust(&family)));
    }
    Ok(format!(
        "/// What the families' files say of their machine code.\nconst EXPECTED: &[Expected] = &[\n{expected}];\n"
    ))
}

/// The kernels of a family.toml, in its order.
pub fn parse(family: &str, text: &str) -> Result<Vec<Kernel>, TableError> {
    let line_of = |offset: usize| text[..offset].matches('\n').count() + 1;
    let error = |line, message| TableError { file: format!("csrc/{family}/family.toml"), line, message };
    let file: File = toml::from_str(text)
        .map_err(|e| error(e.span().map_or(1, |span| line_of(span.start)), e.message().to_string()))?;
    let line = line_of(file.family.span().start);
    let head = file.family.into_inner();
    head.check_itself()
        .and_then(|()| Limits::read(&file.limits, &toml::Table::new()))
        .map_err(|message| error(line, message))?;
    let mut kernels = Vec::new();
    let mut lines = BTreeMap::new();
    for row in file.kernel {
        let line = line_of(row.span().start);
        let row = row.into_inner();
        let limits = Limits::read(&file.limits, &row.limits).map_err(|message| error(line, message))?;
        for kernel in expand(family, &head, row, line).map_err(|message| error(line, message))? {
            if let Some(first) = lines.insert(kernel.name.clone(), line) {
                return Err(error(line, format!("{} is already the name of a kernel of line {first}", kernel.name)));
            }
            let numbers = limits.of(&kernel).map_err(|message| error(line, message))?;
            let sample = kernel.sample || !kernels.iter().any(|other: &Kernel| other.arch == kernel.arch);
            kernels.push(Kernel { limits: [numbers.rust(), numbers.cpp(&kernel)], sample, ..kernel });
        }
    }
    Ok(kernels)
}

fn expand(family: &str, head: &Family, row: Row, line: usize) -> Result<Vec<Kernel>, String> {
    check(&row)?;
    head.check(family, &row)?;
    let chosen = if head.is_vendor() { vec![String::new()] } else { row.arch.clone() };
    let archs = chosen.iter().map(|arch| (arch, head.role)).chain(row.by_name.iter().map(|arch| (arch, Role::ByName)));
    let mut kernels = Vec::new();
    for (index, (arch, role)) in archs.enumerate() {
        for ((dtype, b), out) in operands(&row).flat_map(|of| row.outs(of.0).into_iter().map(move |out| (of, out))) {
            for layout in &row.layout {
                kernels.push(Kernel {
                    name: name(family, &row, arch, [dtype, b], out, layout),
                    family: family.into(),
                    role,
                    language: head.language,
                    features: head.features.iter().chain(&row.features).cloned().collect(),
                    flags: head.tiles_of(family, &row, dtype, layout)?.flags.clone(),
                    arch: arch.clone(),
                    dtype: dtype.clone(),
                    b: b.clone(),
                    out: out.unwrap_or(dtype).clone(),
                    math: row.math.clone(),
                    layout: layout.clone(),
                    tile: row.tile,
                    cluster: row.cluster,
                    widths: row.widths.clone(),
                    split: row.split,
                    stages: row.stages,
                    warps: row.warps,
                    align: if row.align == 0 { dtype_bytes(dtype) } else { align_of(row.align, b) },
                    schedule: row.schedule.clone(),
                    epilogue: row.epilogue.clone(),
                    fast: row.fast,
                    sample: (index == 0 || head.language == Language::Tile)
                        && *layout == row.layout[0]
                        && first_of_size(dtype, &row.dtype)
                        && row.b.first().is_none_or(|first| first == b),
                    why: row.why.clone(),
                    line,
                    code: String::new(),
                    limits: Default::default(),
                });
            }
        }
    }
    Ok(kernels)
}

/// The formats of A and B: each dtype with each format of `b`, or with itself.
fn operands(row: &Row) -> impl Iterator<Item = (&String, &String)> {
    let of = move |dtype| row.b.iter().chain(row.b.is_empty().then_some(dtype)).map(move |b| (dtype, b));
    row.dtype.iter().flat_map(of)
}

/// family [arch] dtype [b] [out] [math] layout [tile cluster] [s<split>] [schedule] [w<warps>] [align<bytes>]
fn name(family: &str, row: &Row, arch: &str, [dtype, b]: [&String; 2], out: Option<&String>, layout: &str) -> String {
    let mut parts = vec![family.to_string()];
    if !family.starts_with(arch.trim_end_matches(['a', 'f'])) {
        parts.push(arch.into());
    }
    parts.push(dtype.clone());
    parts.extend((b != dtype).then(|| b.clone()));
    parts.extend(out.cloned());
    if row.math != "native" && !family.contains(&row.math) {
        parts.push(row.math.clone());
    }
    parts.push(layout.into());
    if row.tile != [0; 3] {
        parts.push(row.tile.map(|x| x.to_string()).join("x"));
        parts.push(row.cluster.map(|x| x.to_string()).join("x"));
    }
    if row.split > 1 {
        parts.push(format!("s{}", row.split));
    }
    if row.schedule != "none" {
        parts.push(row.schedule.clone());
    }
    if row.warps > 0 {
        parts.push(format!("w{}", row.warps));
    }
    if row.align > 0 && row.align < 16 {
        parts.push(format!("align{}", align_of(row.align, b)));
    }
    parts.join("_")
}

/// Checks the rules for the rows of every family.
fn check(row: &Row) -> Result<(), String> {
    one_of("dtype", &row.dtype, &DTYPES)?;
    if !row.b.is_empty() {
        one_of("b", &row.b, &OTHERS_OF_B)?;
    }
    row.check_outs()?;
    one_of("math", std::slice::from_ref(&row.math), &MATHS)?;
    one_of("layout", &row.layout, &LAYOUTS)?;
    one_of("schedule", std::slice::from_ref(&row.schedule), &SCHEDULES)?;
    one_of("epilogue", std::slice::from_ref(&row.epilogue), &EPILOGUES)?;
    features::check(&row.features)?;
    if row.why.trim().is_empty() {
        return Err("field `why` is empty; say which shapes earn the row its place".into());
    }
    if row.align > 0 && !(row.align.is_power_of_two() && row.align <= 16) {
        return Err(format!("field `align` is {}; expected 0, 1, 2, 4, 8 or 16 bytes", row.align));
    }
    let multiplied = if row.math == "fast_accum" { "f8e4m3" } else { "f32" };
    if row.math != "native" && row.dtype != [multiplied] {
        return Err(format!("field `math`: {} is a way to multiply [{multiplied:?}]", row.math));
    }
    if row.tile.iter().any(|extent| *extent > MOST_TILE) {
        return Err(format!("field `tile` is {:?}; expected extents up to {MOST_TILE}", row.tile));
    }
    if row.cluster.contains(&0) || row.cluster.into_iter().fold(1, u32::saturating_mul) > 8 {
        return Err(format!("field `cluster` is {:?}; expected [M, N] with 1 to 8 blocks", row.cluster));
    }
    Ok(())
}

fn one_of(field: &str, values: &[String], allowed: &[&str]) -> Result<(), String> {
    if values.is_empty() {
        return Err(format!("field `{field}` is empty; expected some of {}", allowed.join(", ")));
    }
    match values.iter().find(|value| !allowed.contains(&value.as_str())) {
        Some(value) => Err(format!("field `{field}`: unknown '{value}'; expected one of {}", allowed.join(", "))),
        None => Ok(()),
    }
}

/// Whether no dtype before this one in the list has elements of the same size.
fn first_of_size(dtype: &str, list: &[String]) -> bool {
    list.iter().find(|other| dtype_bytes(other) == dtype_bytes(dtype)).is_some_and(|first| first == dtype)
}

impl Kernel {
    /// The compute capability in the arch's name: 90 of `sm90a`.
    pub fn capability(&self) -> u16 {
        self.arch.trim_start_matches("sm").trim_end_matches(['a', 'f']).parse().unwrap_or(0)
    }

    /// The size of an element of A.
    pub fn dtype_bytes(&self) -> u32 {
        dtype_bytes(&self.dtype)
    }

    /// The source file; `None` for the vendor library.
    pub fn source(&self, csrc: &Path) -> Option<PathBuf> {
        (self.role != Role::Vendor).then(|| csrc.join(&self.family).join(format!("{}.cu", self.family)))
    }

    /// The kernel in a unit's list of rows: its limits, and its line (TG_KERNEL in csrc/common/kernel.hpp).
    pub fn cpp(&self) -> String {
        let widths: Vec<String> = self.widths.iter().map(u32::to_string).collect();
        let [m, n, k] = self.tile;
        let [cm, cn] = self.cluster;
        format!(
            "{}TG_KERNEL({}, {}, TG_{}, TG_{}, TG_{}, TG_{}, TG_{}, {m}, {n}, {k}, {cm}, {cn}, {}, {}, {}, {}, {}, {})\n",
            self.limits[1],
            self.name,
            self.capability(),
            self.dtype.to_uppercase(),
            self.b.to_uppercase(),
            self.out.to_uppercase(),
            self.math.to_uppercase(),
            self.layout.to_uppercase(),
            self.split,
            self.stages,
            self.warps,
            self.align,
            self.schedule,
            widths.join(", ")
        )
    }

    /// The kernel's descriptor in Rust (`KernelDesc` in kernel.rs), at this position of the table, with this link to its family.
    pub fn rust(&self, index: usize, built: bool, room: &str) -> String {
        let family = &self.family;
        let [a, b, out] = [&self.dtype, &self.b, &self.out].map(|format| format.to_uppercase());
        let of_b = if a == b { String::new() } else { format!(".with_b(Format::{b})") };
        format!(
            "KernelDesc {{ index: {index}, name: {:?}, family: {family:?}, role: Role::{:?}, arch: Arch {{ capability: {}, \
             exact: {} }}, types: Types::new(Format::{a}, Format::{out}){of_b}, math: Math::{}, layout: Layout::{}, tile: {:?}, cluster: {:?}, widths: &{:?}, \
             split: {}, stages: {}, warps: {}, align: {}, fusion: Fusion::{}, schedule: {:?}, why: {:?}, code: {:?}, \
             limits: {}, features: &{:?}, built: {built}, room: {} }},\n",
            self.name,
            self.role,
            self.capability(),
            self.arch.ends_with('a'),
            camel_case(&self.math),
            if self.layout == "any" { "Any".into() } else { self.layout.to_uppercase() },
            self.tile,
            self.cluster,
            self.widths,
            self.split,
            self.stages,
            self.warps,
            self.align,
            camel_case(&self.epilogue),
            self.schedule,
            self.why,
            self.code,
            self.limits[0],
            self.features,
            room,
        )
    }
}

/// The names of the families, in the order of the table.
pub fn families(kernels: &[Kernel]) -> Vec<&str> {
    let mut families: Vec<&str> = kernels.iter().map(|kernel| kernel.family.as_str()).collect();
    families.dedup();
    families
}

pub fn camel_case(snake: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    snake.split('_').map(capital).collect()
}
