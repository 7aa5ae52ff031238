//! Reads `csrc/kernels.toml` and expands its rows into kernels. Used by build.rs, and by a test of every kind of bad row.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// The families that have a `csrc/<family>.cu`; `cublas` is the vendor library.
const FAMILIES: [&str; 16] = [
    "cublas",
    "reference",
    "simt_gemm",
    "split_k",
    "outer",
    "gemv",
    "gevm",
    "sm90_skinny",
    "sm90_wave",
    "sm90_gemm",
    "sm90_bf16x6",
    "sm90_bf16x6_direct",
    "sm90_tf32",
    "sm90_sgemm",
    "sm90_dgemm",
    "tile_gemm",
];
const ARCHS: [&str; 7] = ["sm80", "sm89", "sm90", "sm90a", "sm100", "sm100a", "sm120"];
const DTYPES: [&str; 4] = ["f16", "bf16", "f32", "f64"];
/// `native`, which means the dtype itself, is what a row has without the field.
const MATHS: [&str; 3] = ["native", "tf32", "bf16x6"];
const LAYOUTS: [&str; 5] = ["nn", "nt", "tn", "tt", "any"];
const SCHEDULES: [&str; 4] = ["none", "cooperative", "pingpong", "exchanged"];
const EPILOGUES: [&str; 3] = ["none", "bias_act", "full"];

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// A csrc/<family>.cu, or `cublas`, the vendor library.
    family: String,
    /// sm80 sm89 sm90 sm90a sm100 sm100a sm120; built when the Cargo feature of that number is on.
    #[serde(default)]
    arch: Vec<String>,
    /// f16 bf16 f32 f64: inputs and output. Products are accumulated in f32, in f64 for f64.
    dtype: Vec<String>,
    /// How f32 is multiplied: tf32, or bf16x6 (three bf16 parts of each input, six products of them). Absent: in the dtype itself.
    #[serde(default = "native")]
    math: String,
    /// nn nt tn tt, row-major (tilegemm.h); any: any strides.
    layout: Vec<String>,
    /// M, N, K of one output tile and one pipeline stage. gemv, gevm and sm90_skinny: M is the most rows that they take. Rows of
    /// sm90_sgemm, sm90_bf16x6_direct and split_k have several tiles; one of them names the row.
    #[serde(default)]
    tile: [u32; 3],
    /// Thread blocks of a cluster along M, N. tile_gemm: the blocks that share one tile. The narrow rows of sm90_tf32 choose their
    /// cluster for a launch, up to four blocks along M, N and K, and sm90_bf16x6_direct up to eight along K.
    #[serde(default = "one_block")]
    cluster: [u32; 2],
    /// Of sm90_wave's tiles: their rows where exchanged, else their columns. A plan takes the width that leaves the busiest
    /// multiprocessor least to do; tile, cluster and split are the most that a plan takes.
    #[serde(default)]
    widths: Vec<u32>,
    /// Parts of K that the blocks of a cluster add up; sm90_wave only.
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
    /// cooperative, pingpong: CUTLASS's. exchanged: B is on the tensor cores' M side, so that tiles come in steps of 8 rows
    /// (sm90_wave). Absent: the family's own.
    #[serde(default = "no_schedule")]
    schedule: String,
    /// full: bias, activation and beta * C; bias_act: bias and activation; none: alpha only.
    epilogue: String,
    /// Whether the build profile of that name has the row, too: it compiles in minutes.
    #[serde(default)]
    fast: bool,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kernel: Vec<toml::Spanned<Row>>,
}

/// A kernel: a row for one arch, dtype and layout.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// CUTLASS grammar, computed.
    pub name: String,
    /// A `csrc/<family>.cu`, or `cublas`.
    pub family: String,
    /// `sm90a`; empty for the vendor library.
    pub arch: String,
    pub dtype: String,
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
    /// Whether the build profile `fast` has it.
    pub fast: bool,
    pub why: String,
    /// Line of the row in the table.
    pub line: usize,
}

/// A row that cannot be built, with its line, the field and what was expected.
#[derive(Debug, PartialEq)]
pub struct TableError {
    pub line: usize,
    pub message: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernels.toml, line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for TableError {}

/// The kernels of a table, in its order.
pub fn parse(text: &str) -> Result<Vec<Kernel>, TableError> {
    let line_of = |offset: usize| text[..offset].matches('\n').count() + 1;
    let table: Table = toml::from_str(text).map_err(|error| TableError {
        line: error.span().map_or(1, |span| line_of(span.start)),
        message: error.message().to_string(),
    })?;
    let mut kernels = Vec::new();
    let mut lines = BTreeMap::new();
    for row in table.kernel {
        let line = line_of(row.span().start);
        for kernel in expand(row.into_inner(), line).map_err(|message| TableError { line, message })? {
            if let Some(first) = lines.insert(kernel.name.clone(), line) {
                let message = format!("{} is already the name of a kernel of line {first}", kernel.name);
                return Err(TableError { line, message });
            }
            kernels.push(kernel);
        }
    }
    Ok(kernels)
}

fn expand(row: Row, line: usize) -> Result<Vec<Kernel>, String> {
    check(&row)?;
    let archs = if row.family == "cublas" { vec![String::new()] } else { row.arch.clone() };
    let mut kernels = Vec::new();
    for arch in &archs {
        for dtype in &row.dtype {
            for layout in &row.layout {
                kernels.push(Kernel {
                    name: name(&row, arch, dtype, layout),
                    family: row.family.clone(),
                    arch: arch.clone(),
                    dtype: dtype.clone(),
                    math: row.math.clone(),
                    layout: layout.clone(),
                    tile: row.tile,
                    cluster: row.cluster,
                    widths: row.widths.clone(),
                    split: row.split,
                    stages: row.stages,
                    warps: row.warps,
                    align: if row.align == 0 { dtype_bytes(dtype) } else { row.align },
                    schedule: row.schedule.clone(),
                    epilogue: row.epilogue.clone(),
                    fast: row.fast,
                    why: row.why.clone(),
                    line,
                });
            }
        }
    }
    Ok(kernels)
}

/// family [arch] dtype [math] layout [tile cluster] [s<split>] [schedule] [w<warps>] [align<bytes>]
fn name(row: &Row, arch: &str, dtype: &str, layout: &str) -> String {
    let mut parts = vec![row.family.clone()];
    if !arch.is_empty() && !row.family.starts_with("sm") {
        parts.push(arch.into());
    }
    parts.push(dtype.into());
    if row.math != "native" && !row.family.contains(&row.math) {
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
        parts.push(format!("align{}", row.align));
    }
    parts.join("_")
}

fn check(row: &Row) -> Result<(), String> {
    one_of("family", std::slice::from_ref(&row.family), &FAMILIES)?;
    one_of("dtype", &row.dtype, &DTYPES)?;
    one_of("math", std::slice::from_ref(&row.math), &MATHS)?;
    one_of("layout", &row.layout, &LAYOUTS)?;
    one_of("schedule", std::slice::from_ref(&row.schedule), &SCHEDULES)?;
    one_of("epilogue", std::slice::from_ref(&row.epilogue), &EPILOGUES)?;
    if row.why.trim().is_empty() {
        return Err("field `why` is empty; say which shapes earn the row its place".into());
    }
    if row.align > 0 && !(row.align.is_power_of_two() && row.align <= 16) {
        return Err(format!("field `align` is {}; expected 0, 1, 2, 4, 8 or 16 bytes", row.align));
    }
    const NATIVE: [&str; 7] = ["cublas", "reference", "simt_gemm", "split_k", "gemv", "sm90_sgemm", "sm90_dgemm"];
    let is_native = NATIVE.contains(&row.family.as_str());
    if row.math != "native" && is_native {
        return Err(format!("field `math`: {} multiplies in the dtype itself; remove it", row.family));
    }
    if row.math != "native" && row.dtype != ["f32"] {
        return Err(format!("field `math`: {} is a way to multiply [\"f32\"]", row.math));
    }
    if row.family == "cublas" {
        return if row.arch.is_empty() {
            Ok(())
        } else {
            Err("field `arch` means nothing for cublas; remove it".into())
        };
    }
    one_of("arch", &row.arch, &ARCHS)?;
    if row.tile.contains(&0) {
        return Err(format!("field `tile` is {:?}; expected three positive numbers [M, N, K]", row.tile));
    }
    if row.cluster.contains(&0) || row.cluster.iter().product::<u32>() > 8 {
        return Err(format!("field `cluster` is {:?}; expected [M, N] with 1 to 8 blocks", row.cluster));
    }
    let most_parts = if row.family == "sm90_wave" { 2 } else { 1 };
    if !(1..=most_parts).contains(&row.split) {
        return Err(format!("field `split` is {}; {} has 1 to {most_parts}", row.split, row.family));
    }
    match row.family.as_str() {
        family if family.starts_with("sm90_") && row.arch != ["sm90a"] => {
            Err(format!("field `arch`: {} is written for [\"sm90a\"]", row.family))
        }
        "gemv" | "gevm" | "outer" if row.arch.iter().any(|arch| ["sm80", "sm89"].contains(&arch.as_str())) => {
            Err(format!("field `arch`: {} needs sm90 or newer", row.family))
        }
        "gemv" | "sm90_skinny" | "sm90_wave" if row.layout != ["nt"] => {
            Err(format!("field `layout`: {} reads [\"nt\"]", row.family))
        }
        "gevm" if row.layout != ["nn"] => Err("field `layout`: gevm reads [\"nn\"]".into()),
        "outer" if row.layout != ["any"] => Err("field `layout`: outer reads [\"any\"]".into()),
        "gemv" if row.tile[0] != if row.dtype == ["f32"] { 16 } else { 8 } || !row.tile[2].is_multiple_of(256) => {
            Err(format!("field `tile` is {:?}; gemv has [8, N, a multiple of 256], [16, ...] in f32", row.tile))
        }
        "gevm" if row.dtype.iter().any(|dtype| row.tile != [4, 128 / dtype_bytes(dtype), 32]) => {
            Err(format!("field `tile` is {:?}; gevm has [4, 64, 32], and [4, 32, 32] in f32", row.tile))
        }
        "sm90_skinny" if row.tile[..2] != [128, 64] || !row.tile[2].is_multiple_of(64) => {
            Err(format!("field `tile` is {:?}; sm90_skinny has [128, 64, a multiple of 64]", row.tile))
        }
        "sm90_wave" => check_wave(row),
        "sm90_bf16x6" | "sm90_bf16x6_direct" if row.math != "bf16x6" => {
            Err(format!("field `math` is {}; {} multiplies as bf16x6", row.math, row.family))
        }
        "sm90_bf16x6" if row.tile[0] != 128 || ![64, 128].contains(&row.tile[1]) || row.tile[2] != 32 => {
            Err(format!("field `tile` is {:?}; sm90_bf16x6 has [128, 64 or 128, 32]", row.tile))
        }
        "sm90_bf16x6" if ![[1, 1], [2, 1]].contains(&row.cluster) => {
            Err(format!("field `cluster` is {:?}; sm90_bf16x6 has [1, 1] or [2, 1]", row.cluster))
        }
        "sm90_bf16x6_direct" if row.layout.iter().any(|layout| !["nt", "nn"].contains(&layout.as_str())) => {
            Err("field `layout`: sm90_bf16x6_direct reads [\"nt\", \"nn\"]".into())
        }
        "sm90_bf16x6_direct" if row.tile != [64, 64, 32] => {
            Err(format!("field `tile` is {:?}; sm90_bf16x6_direct has [64, 64, 32]", row.tile))
        }
        "sm90_tf32" if row.math != "tf32" => {
            Err(format!("field `math` is {}; sm90_tf32 multiplies as tf32", row.math))
        }
        "sm90_tf32" if !row.layout.iter().all(|layout| tf32_tile(layout, row.tile, row.cluster)) => Err(format!(
            "fields `tile` and `cluster` are {:?} and {:?}; sm90_tf32 has [128, W, 32] and [1 or 2, 1], or [W, 128, 32] and \
             [1, 1 or 2], which nn needs; W is 64, 256 or, for nt, 192",
            row.tile, row.cluster
        )),
        "sm90_sgemm" if ![[128, 256, 16], [256, 128, 16], [128, 128, 32]].contains(&row.tile) => Err(format!(
            "field `tile` is {:?}; sm90_sgemm has [128, 256, 16], [256, 128, 16] and [128, 128, 32]",
            row.tile
        )),
        "sm90_sgemm" if row.tile == [256, 128, 16] && row.layout.iter().any(|layout| layout == "tn") => {
            Err("field `layout`: sm90_sgemm reads tn with the tiles [128, 256, 16] and [128, 128, 32]".into())
        }
        "sm90_dgemm" if ![[128, 128, 16], [64, 128, 16]].contains(&row.tile) => {
            Err(format!("field `tile` is {:?}; sm90_dgemm has [64 or 128, 128, 16]", row.tile))
        }
        "sm90_bf16x6_direct" | "sm90_sgemm" | "sm90_dgemm" if row.cluster != [1, 1] => {
            Err(format!("field `cluster` is {:?}; {} has [1, 1]", row.cluster, row.family))
        }
        _ if !row.widths.is_empty() => Err(format!("field `widths`: {} has one, in `tile`; remove it", row.family)),
        _ if row.schedule == "exchanged" => Err(format!("field `schedule`: {} exchanges nothing", row.family)),
        "sm90_gemm" if row.schedule == "none" => {
            Err("field `schedule`: sm90_gemm needs cooperative or pingpong".into())
        }
        "tile_gemm" if !row.tile.iter().all(|x| x.is_power_of_two()) => {
            Err(format!("field `tile` is {:?}; tiles of cuTile C++ are powers of two", row.tile))
        }
        "simt_gemm" | "outer" | "sm90_sgemm" if row.dtype != ["f32"] => {
            Err(format!("field `dtype`: {} computes in [\"f32\"]", row.family))
        }
        "sm90_dgemm" if row.dtype != ["f64"] => Err("field `dtype`: sm90_dgemm computes in [\"f64\"]".into()),
        _ => Ok(()),
    }
}

/// What sm90_wave.cu and wgmma.hpp know.
fn check_wave(row: &Row) -> Result<(), String> {
    const WIDTHS: [u32; 15] = [48, 64, 72, 80, 96, 104, 112, 128, 136, 144, 160, 176, 192, 200, 224];
    let [m, n, k] = row.tile;
    let (what, fits, widest) = match row.schedule.as_str() {
        "exchanged" => ("[its widest, 64, 128 or 192, 64 or 128] where exchanged", [64, 128, 192].contains(&n), m),
        "none" => ("[64 or 128, its widest, 64 or 128]", [64, 128].contains(&m), n),
        _ => return Err("field `schedule`: sm90_wave has none or exchanged".into()),
    };
    if row.widths.is_empty()
        || !row.widths.is_sorted_by(|a, b| a < b)
        || !row.widths.iter().all(|width| WIDTHS.contains(width))
    {
        return Err(format!("field `widths` is {:?}; expected some of {WIDTHS:?}, in their order", row.widths));
    }
    if !fits || ![64, 128].contains(&k) || row.widths.last() != Some(&widest) {
        return Err(format!("field `tile` is {:?}; sm90_wave has {what}", row.tile));
    }
    if ![[1, 1], [2, 1]].contains(&row.cluster) {
        return Err(format!("field `cluster` is {:?}; sm90_wave has [1, 1] or [2, 1]", row.cluster));
    }
    Ok(())
}

/// The tiles that sm90_tf32.cu knows. It exchanges the operands for nn, and where the tile's M is not 128.
fn tf32_tile(layout: &str, [m, n, k]: [u32; 3], [cluster_m, cluster_n]: [u32; 2]) -> bool {
    let exchanged = layout == "nn" || m != 128;
    let (p, q, pair, alone) = if exchanged { (n, m, cluster_n, cluster_m) } else { (m, n, cluster_m, cluster_n) };
    let widths: &[u32] = if layout == "nt" { &[64, 192, 256] } else { &[64, 256] };
    p == 128 && k == 32 && widths.contains(&q) && pair <= 2 && alone == 1
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

fn dtype_bytes(dtype: &str) -> u32 {
    match dtype {
        "f64" => 8,
        "f32" => 4,
        _ => 2,
    }
}

impl Kernel {
    /// The compute capability in the arch's name: 90 of `sm90a`.
    pub fn capability(&self) -> u16 {
        self.arch.trim_start_matches("sm").trim_end_matches('a').parse().unwrap_or(0)
    }

    /// Its line in a unit's list of rows (TG_KERNEL in kernel.hpp).
    pub fn cpp(&self) -> String {
        let widths: Vec<String> = self.widths.iter().map(u32::to_string).collect();
        let [m, n, k] = self.tile;
        let [cm, cn] = self.cluster;
        format!(
            "TG_KERNEL({}, {}, TG_{}, TG_{}, TG_{}, {m}, {n}, {k}, {cm}, {cn}, {}, {}, {}, {}, {}, {})\n",
            self.name,
            self.capability(),
            self.dtype.to_uppercase(),
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

    /// Its descriptor in Rust (`KernelDesc` in kernel.rs), at this position of the table.
    pub fn rust(&self, index: usize, built: bool) -> String {
        let family = &self.family;
        let role = match family.as_str() {
            "cublas" => "Vendor",
            "reference" => "LastResort",
            _ => "Kernel",
        };
        let feature = match family.as_str() {
            "cublas" => "Some((\"cuda\", cfg!(feature = \"cuda\")))",
            "tile_gemm" => "Some((\"cutile\", cfg!(feature = \"cutile\")))",
            _ => "None",
        };
        format!(
            "KernelDesc {{ index: {index}, name: {:?}, family: {family:?}, role: Role::{role}, arch: Arch {{ capability: {}, \
             exact: {} }}, dtype: DType::{}, math: Math::{}, layout: Layout::{}, tile: {:?}, cluster: {:?}, widths: &{:?}, \
             split: {}, stages: {}, warps: {}, align: {}, fusion: Fusion::{}, schedule: {:?}, why: {:?}, feature: {feature}, \
             built: {built}, room: Room(&{family}::{}) }},\n",
            self.name,
            self.capability(),
            self.arch.ends_with('a'),
            self.dtype.to_uppercase(),
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
            camel_case(family),
        )
    }
}

fn camel_case(snake: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    snake.split('_').map(capital).collect()
}
