//! The table `[family]` of a family.toml: the rows that the family's source can be compiled for, and the check of a row.

use super::{features, one_of, Row, ARCHS, DTYPES, LAYOUTS, MATHS, SCHEDULES};
use serde::Deserialize;

/// The language of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// CUDA C++, with CUTLASS.
    #[default]
    Cuda,
    /// CUDA Tile C++.
    Tile,
}

/// The role of a family's kernels in the dispatcher's choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    #[default]
    Kernel,
    /// The vendor library: there is no source, and rows have no arch.
    Vendor,
    /// Taken only where no other kernel runs the problem.
    LastResort,
    /// Run only by name: by `TILEGEMM_FORCE`, tests and benches.
    ByName,
}

/// The `[family]` table. Each list holds the words that a row may have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Family {
    /// A description of the source, in one line.
    about: String,
    /// The role of the kernels in the dispatcher's choice.
    #[serde(default)]
    pub role: Role,
    #[serde(default)]
    pub language: Language,
    /// The Cargo features that build the family together, beside the feature of the arch.
    #[serde(default)]
    pub features: Vec<String>,
    #[serde(default)]
    arch: Vec<String>,
    dtype: Vec<String>,
    /// The formats of B beside those of `dtype`.
    #[serde(default)]
    b: Vec<String>,
    /// The formats of results beside those of `dtype`.
    #[serde(default)]
    out: Vec<String>,
    #[serde(default = "native")]
    math: Vec<String>,
    layout: Vec<String>,
    #[serde(default = "no_schedule")]
    schedule: Vec<String>,
    /// The most parts of K that the blocks of a cluster add up.
    #[serde(default = "super::whole_k")]
    most_split: u32,
    /// Widths of tiles, for a source whose rows have several.
    #[serde(default)]
    widths: Vec<u32>,
    /// A kernel belongs to the first entry that fits.
    #[serde(default = "any_tiles")]
    tiles: Vec<Tiles>,
}

/// Tiles that a source is written for. An empty list permits every value.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tiles {
    dtype: Vec<String>,
    layout: Vec<String>,
    schedule: Vec<String>,
    split: Vec<u32>,
    m: Vec<u32>,
    n: Vec<u32>,
    k: Vec<u32>,
    /// The side whose length is the largest of the row's widths.
    widths: Option<Side>,
    cluster: Vec<[u32; 2]>,
    /// Flags of the compiler for these tiles.
    pub flags: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    M,
    N,
}

fn native() -> Vec<String> {
    vec![super::native()]
}

fn no_schedule() -> Vec<String> {
    vec![super::no_schedule()]
}

fn any_tiles() -> Vec<Tiles> {
    vec![Tiles::default()]
}

impl Family {
    pub fn is_vendor(&self) -> bool {
        self.role == Role::Vendor
    }

    /// Whether the head makes sense, whatever the rows are.
    pub fn check_itself(&self) -> Result<(), String> {
        if self.about.trim().is_empty() {
            return Err("field `about` is empty; say what the source is".into());
        }
        if !self.is_vendor() {
            one_of("arch", &self.arch, &ARCHS)?;
        }
        features::check(&self.features)?;
        one_of("dtype", &self.dtype, &DTYPES)?;
        one_of("math", &self.math, &MATHS)?;
        one_of("layout", &self.layout, &LAYOUTS)?;
        one_of("schedule", &self.schedule, &SCHEDULES)
    }

    /// Whether the source can be compiled for `row`. The error names the wrong field and the expected values.
    pub fn check(&self, name: &str, row: &Row) -> Result<(), String> {
        if !self.math.contains(&row.math) {
            return Err(match self.math == native() {
                true => format!("field `math`: {name} multiplies in the dtype itself; remove it"),
                false => format!("field `math` is {}; {name} multiplies as {}", row.math, self.math.join(" or ")),
            });
        }
        if self.is_vendor() && !row.arch.is_empty() {
            return Err(format!("field `arch` means nothing for {name}; remove it"));
        }
        if !self.is_vendor() && (row.by_name.is_empty() || !row.arch.is_empty()) {
            one_of("arch", &row.arch, &ARCHS)?;
        }
        if let Some(arch) = row.by_name.iter().find(|arch| self.is_vendor() || row.arch.contains(arch)) {
            return Err(format!("field `by_name`: {arch} is in `arch`, or means nothing for {name}; remove it"));
        }
        for (field, verb, values, allowed) in [
            ("arch", "is written for", &row.arch, &self.arch),
            ("by_name", "is written for", &row.by_name, &self.arch),
            ("dtype", "computes in", &row.dtype, &self.dtype),
            ("b", "multiplies by", &row.b, &self.b),
            ("layout", "reads", &row.layout, &self.layout),
        ] {
            if values.iter().any(|value| !allowed.contains(value)) {
                return Err(format!("field `{field}`: {name} {verb} {allowed:?}"));
            }
        }
        if let Some(out) = row.named_outs().find(|out| !self.out.contains(out)) {
            return Err(match self.out.is_empty() {
                true => format!("field `out` is {out}; {name} stores D in the type of A and B; remove it"),
                false => format!("field `out` is {out}; {name} has {}", self.out.join(" or ")),
            });
        }
        if row.tile.contains(&0) && !self.is_vendor() {
            return Err(format!("field `tile` is {:?}; expected three positive numbers [M, N, K]", row.tile));
        }
        if !(1..=self.most_split).contains(&row.split) {
            return Err(format!("field `split` is {}; {name} has 1 to {}", row.split, self.most_split));
        }
        if !self.schedule.contains(&row.schedule) {
            return Err(format!("field `schedule` is {}; {name} has {}", row.schedule, self.schedule.join(" or ")));
        }
        self.check_widths(name, row)
    }

    fn check_widths(&self, name: &str, row: &Row) -> Result<(), String> {
        let widths = &row.widths;
        if self.widths.is_empty() {
            return match widths.is_empty() {
                true => Ok(()),
                false => Err(format!("field `widths`: {name} has one, in `tile`; remove it")),
            };
        }
        let are_known = widths.iter().all(|width| self.widths.contains(width));
        if widths.is_empty() || !widths.is_sorted_by(|a, b| a < b) || !are_known {
            return Err(format!("field `widths` is {widths:?}; expected some of {:?}, in their order", self.widths));
        }
        Ok(())
    }

    /// The tiles to which a kernel of `row` belongs.
    pub fn tiles_of(&self, name: &str, row: &Row, dtype: &str, layout: &str) -> Result<&Tiles, String> {
        self.tiles.iter().find(|tiles| tiles.have(row, dtype, layout)).ok_or_else(|| {
            let known: Vec<String> = self.tiles.iter().map(Tiles::describe).collect();
            format!(
                "field `tile` is {:?}, `cluster` is {:?}, `split` is {} ({dtype}, {layout}); {name} has {}",
                row.tile,
                row.cluster,
                row.split,
                known.join("; ")
            )
        })
    }
}

impl Tiles {
    fn have(&self, row: &Row, dtype: &str, layout: &str) -> bool {
        fn has<T, V: PartialEq<T>>(list: &[V], value: T) -> bool {
            list.is_empty() || list.iter().any(|known| *known == value)
        }
        let [m, n, k] = row.tile;
        let widest = self.widths.map(|side| if side == Side::M { m } else { n });
        has(&self.dtype, dtype)
            && has(&self.layout, layout)
            && has(&self.schedule, row.schedule.as_str())
            && has(&self.split, row.split)
            && has(&self.m, m)
            && has(&self.n, n)
            && has(&self.k, k)
            && has(&self.cluster, row.cluster)
            && widest.is_none_or(|side| row.widths.last() == Some(&side))
    }

    /// For instance `[128, 64|256, 32] in clusters of [1, 1]|[2, 1] for nt|tn|tt`.
    fn describe(&self) -> String {
        fn or<T: std::fmt::Debug>(list: &[T]) -> String {
            let words: Vec<String> = list.iter().map(|value| format!("{value:?}").replace('"', "")).collect();
            if words.is_empty() {
                "any".into()
            } else {
                words.join("|")
            }
        }
        let side = |list: &[u32], side| if self.widths == Some(side) { "its widest".into() } else { or(list) };
        let mut text = format!("[{}, {}, {}]", side(&self.m, Side::M), side(&self.n, Side::N), or(&self.k));
        if !self.cluster.is_empty() {
            text += &format!(" in clusters of {}", or(&self.cluster));
        }
        if !self.split.is_empty() {
            text += &format!(" with a split of {}", or(&self.split));
        }
        for list in [&self.dtype, &self.layout, &self.schedule].into_iter().filter(|list| !list.is_empty()) {
            text += &format!(" for {}", or(list));
        }
        text
    }
}
