//! The limits of a family: the table `[limits]` of its family.toml, and its form in Rust (`Limits` in src/kernel/limits.rs).

use super::{one_of, Kernel};
use serde::Deserialize;

/// The largest number of 32 bits with a sign; a limit may be a part of it.
const INT: u64 = i32::MAX as u64;
const OPERANDS: [&str; 4] = ["A", "B", "C", "D"];
/// Extents that may have to be multiples: N, K, or the contiguous extent of an operand.
const EXTENTS: [(&str, &str); 4] = [("N", "N"), ("K", "K"), ("line of A", "LineOfA"), ("line of B", "LineOfB")];

/// A number: `65535`, `"int"`, `"int/4"` or `"int-1024"`, where `int` is the largest number of 32 bits with a sign.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(u64),
    OfInt(String),
}

impl Number {
    fn value(&self) -> Result<u64, String> {
        let bad = |text: &str| format!("a limit is {text:?}; expected a number, \"int\", \"int/4\" or \"int-1024\"");
        match self {
            Number::Plain(value) => Ok(*value),
            Number::OfInt(text) => match text.strip_prefix("int").map(|rest| rest.split_at(rest.len().min(1))) {
                Some(("", _)) => Ok(INT),
                Some(("/", by)) => by.parse().ok().and_then(|by| INT.checked_div(by)).ok_or_else(|| bad(text)),
                Some(("-", less)) => less.parse().ok().and_then(|less| INT.checked_sub(less)).ok_or_else(|| bad(text)),
                _ => Err(bad(text)),
            },
        }
    }
}

/// The smallest tile of a row.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Sides {
    Given([u32; 2]),
    Named(Named),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Named {
    /// The row's tile.
    Tile,
    /// The tiles of the row's cluster.
    Cluster,
    /// The narrowest of the row's widths.
    Narrowest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Of {
    Matrix,
    Batch,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tiles {
    most: Number,
    sides: Sides,
    /// Whether the tiles of one matrix count, or the tiles of all matrices together.
    of: Of,
}

/// Groups of rows with a B each: whether a kernel takes such problems beside others, or takes no others.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Grouping {
    Optional,
    Always,
}

/// The `[limits]` table. An absent field sets no limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Absent: the kernels take no groups.
    groups: Option<Grouping>,
    /// The kernels take gated products.
    gates: bool,
    /// The kernels take products whose gates multiply C.
    gates_c: bool,
    /// The most rows, columns of B, columns of A, and matrices.
    extents: Option<Number>,
    /// The most rows: the row's tile.
    rows_of_tile: bool,
    k: Option<Number>,
    matrices: Option<Number>,
    tiles: Option<Tiles>,
    /// 1 unless given.
    least_k: Option<u64>,
    most_k: Option<u64>,
    /// Operands may have any strides: the kernel indexes element by element.
    any_strides: bool,
    one_batch_dimension: bool,
    /// Operands that must be aligned as the row says, and operands that go through TMA.
    aligned: Vec<String>,
    tma: Vec<String>,
    /// Extents whose bytes must be a multiple of the row's alignment.
    multiples: Vec<String>,
    /// The row's cluster is a cluster of thread blocks.
    clustered: bool,
    /// A kernel that does not fuse `beta * C` adds to D in place.
    adds_to_d: bool,
}

impl Limits {
    /// The limits of a row: the family's, except those that the row has itself.
    pub fn read(family: &toml::Table, row: &toml::Table) -> Result<Self, String> {
        let mut table = family.clone();
        table.extend(row.clone());
        let limits: Self = table.try_into().map_err(|e: toml::de::Error| e.message().to_string())?;
        limits.check().map(|()| limits)
    }

    /// Whether the table makes sense.
    fn check(&self) -> Result<(), String> {
        let extents: Vec<&str> = EXTENTS.iter().map(|(name, _)| *name).collect();
        for (field, values, allowed) in [
            ("aligned", &self.aligned, &OPERANDS[..]),
            ("tma", &self.tma, &OPERANDS[..]),
            ("multiples", &self.multiples, &extents[..]),
        ] {
            if !values.is_empty() {
                one_of(field, values, allowed)?;
            }
        }
        let numbers = [&self.extents, &self.k, &self.matrices].into_iter().flatten();
        numbers.chain(self.tiles.iter().map(|tiles| &tiles.most)).try_for_each(|number| number.value().map(drop))
    }

    /// The limits of a kernel as an expression of Rust.
    pub fn rust(&self, kernel: &Kernel) -> Result<String, String> {
        let number = |number: &Option<Number>| match number {
            Some(number) => number.value().map(|value| value.to_string()),
            None => Ok("usize::MAX".into()),
        };
        let extents = number(&self.extents)?;
        let or_extents = |own: &Option<Number>| if own.is_some() { number(own) } else { Ok(extents.clone()) };
        let operands = |names: &[String]| OPERANDS.map(|operand| names.iter().any(|name| name == operand));
        let multiples: String = EXTENTS
            .iter()
            .filter(|(name, _)| self.multiples.iter().any(|multiple| multiple == name))
            .map(|(_, variant)| format!("Extent::{variant}, "))
            .collect();
        let tiles = match &self.tiles {
            Some(Tiles { most, sides, of }) => {
                let (sides, most) = (sides.of(kernel), most.value()?);
                format!("Some(Tiles {{ sides: {sides:?}, most: {most}, of_batch: {} }})", *of == Of::Batch)
            }
            None => "None".into(),
        };
        Ok(format!(
            "Limits {{ groups: Grouping::{}, gates: {}, gates_c: {}, rows: {}, columns: {extents}, k: {}, matrices: {}, tiles: {tiles}, least_k: {}, most_k: {}, \
             any_strides: {}, two_batch_dims: {}, aligned: {:?}, tma: {:?}, multiples: &[{multiples}], clustered: {}, \
             adds_to_d: {} }}",
            self.groups.map_or("Never".into(), |groups| format!("{groups:?}")),
            self.gates,
            self.gates_c,
            if self.rows_of_tile { kernel.tile[0].to_string() } else { extents.clone() },
            or_extents(&self.k)?,
            or_extents(&self.matrices)?,
            self.least_k.unwrap_or(1),
            self.most_k.map_or("usize::MAX".into(), |most| most.to_string()),
            self.any_strides,
            !self.one_batch_dimension,
            operands(&self.aligned),
            operands(&self.tma),
            self.clustered,
            self.adds_to_d,
        ))
    }
}

impl Sides {
    fn of(&self, kernel: &Kernel) -> [u32; 2] {
        let [m, n, _] = kernel.tile;
        match self {
            Sides::Given(sides) => *sides,
            Sides::Named(Named::Tile) => [m, n],
            Sides::Named(Named::Cluster) => [m * kernel.cluster[0], n * kernel.cluster[1]],
            Sides::Named(Named::Narrowest) => match kernel.widths.first() {
                Some(width) if kernel.widths.last() == Some(&m) => [*width, n],
                Some(width) => [m, *width],
                None => [m, n],
            },
        }
    }
}
