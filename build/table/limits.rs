//! The limits of a family: the table `[limits]` of its family.toml, and its forms in Rust (`Limits` in src/kernel/limits.rs) and in C++
//! (`Limits` in csrc/common/limits.hpp).

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

/// Gated products: whether a kernel takes such products beside others, or takes no others, and these with gates in halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Gating {
    Optional,
    Halves,
}

/// The `[limits]` table. An absent field sets no limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Absent: the kernels take no groups.
    groups: Option<Grouping>,
    /// Absent: the kernels take no gated products.
    gates: Option<Gating>,
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
    /// Operands that may have factors.
    scales: Vec<String>,
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
            ("scales", &self.scales, &["A", "B", "D"]),
        ] {
            if !values.is_empty() {
                one_of(field, values, allowed)?;
            }
        }
        let numbers = [&self.extents, &self.k, &self.matrices].into_iter().flatten();
        numbers.chain(self.tiles.iter().map(|tiles| &tiles.most)).try_for_each(|number| number.value().map(drop))
    }

    /// The limits of a kernel, as numbers.
    pub fn of(&self, kernel: &Kernel) -> Result<Numbers, String> {
        let number = |number: &Option<Number>| number.as_ref().map(Number::value).transpose();
        let extents = number(&self.extents)?;
        let tiles = self.tiles.as_ref().map(|Tiles { most, sides, of }| {
            Ok::<_, String>(TileNumbers { sides: sides.of(kernel), most: most.value()?, of_batch: *of == Of::Batch })
        });
        let operands = |names: &[String]| OPERANDS.map(|operand| names.iter().any(|name| name == operand));
        Ok(Numbers {
            groups: self.groups.map_or("Never".into(), |groups| format!("{groups:?}")),
            gates: self.gates.map_or("Never".into(), |gates| format!("{gates:?}")),
            gates_c: self.gates_c,
            rows: if self.rows_of_tile { Some(kernel.tile[0].into()) } else { extents },
            columns: extents,
            k: number(&self.k)?.or(extents),
            matrices: number(&self.matrices)?.or(extents),
            tiles: tiles.transpose()?,
            least_k: self.least_k.unwrap_or(1),
            most_k: self.most_k,
            any_strides: self.any_strides,
            two_batch_dims: !self.one_batch_dimension,
            aligned: operands(&self.aligned),
            tma: operands(&self.tma),
            multiples: EXTENTS.map(|(name, _)| self.multiples.iter().any(|multiple| multiple == name)),
            clustered: self.clustered,
            adds_to_d: self.adds_to_d,
            scales: operands(&self.scales),
        })
    }
}

/// A limit on the number of tiles.
struct TileNumbers {
    sides: [u32; 2],
    most: u64,
    of_batch: bool,
}

/// The limits of a kernel. `None`: no limit.
pub(super) struct Numbers {
    groups: String,
    gates: String,
    gates_c: bool,
    rows: Option<u64>,
    columns: Option<u64>,
    k: Option<u64>,
    matrices: Option<u64>,
    tiles: Option<TileNumbers>,
    least_k: u64,
    most_k: Option<u64>,
    any_strides: bool,
    two_batch_dims: bool,
    aligned: [bool; 4],
    tma: [bool; 4],
    multiples: [bool; 4],
    clustered: bool,
    adds_to_d: bool,
    scales: [bool; 4],
}

impl Numbers {
    /// An expression of Rust.
    pub fn rust(&self) -> String {
        let most = |number: Option<u64>| number.map_or("usize::MAX".into(), |value| value.to_string());
        let tiles = match &self.tiles {
            Some(TileNumbers { sides, most, of_batch }) => {
                format!("Some(Tiles {{ sides: {sides:?}, most: {most}, of_batch: {of_batch} }})")
            }
            None => "None".into(),
        };
        let multiples = EXTENTS.iter().zip(self.multiples).filter(|(_, is_multiple)| *is_multiple);
        let multiples: String = multiples.map(|((_, variant), _)| format!("Extent::{variant}, ")).collect();
        format!(
            "Limits {{ groups: Grouping::{}, gates: Gating::{}, gates_c: {}, rows: {}, columns: {}, k: {}, matrices: {}, \
             tiles: {tiles}, least_k: {}, most_k: {}, any_strides: {}, two_batch_dims: {}, aligned: {:?}, tma: {:?}, \
             multiples: &[{multiples}], clustered: {}, adds_to_d: {}, scales: {:?} }}",
            self.groups,
            self.gates,
            self.gates_c,
            most(self.rows),
            most(self.columns),
            most(self.k),
            most(self.matrices),
            self.least_k,
            most(self.most_k),
            self.any_strides,
            self.two_batch_dims,
            self.aligned,
            self.tma,
            self.clustered,
            self.adds_to_d,
            [self.scales[0], self.scales[1], self.scales[3]],
        )
    }

    /// The kernel's limits in C++, as a function: what differs from no limit.
    pub fn cpp(&self, kernel: &Kernel) -> String {
        let set = |members: [bool; 4]| members.iter().rev().fold(0, |set, member| set << 1 | u32::from(*member));
        let most_k = [self.k, self.most_k].into_iter().flatten().min();
        let tiles = self.tiles.as_ref();
        let blocks = if self.clustered { kernel.cluster[0] * kernel.cluster[1] } else { 1 };
        let own = |value: String, none: &str| (value != none).then_some(value);
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let fields = [
            ("groups", own(format!("Grouping::{}", self.groups.to_lowercase()), "Grouping::never")),
            ("gates", own((self.gates != "Never").to_string(), "false")),
            ("gates_c", own(self.gates_c.to_string(), "false")),
            ("fusion", own(format!("Fusion::{}", kernel.epilogue), "Fusion::full")),
            ("rows", number(self.rows)),
            ("columns", number(self.columns)),
            ("least_k", own(self.least_k.to_string(), "1")),
            ("most_k", number(most_k)),
            ("matrices", number(self.matrices)),
            ("tiles", number(tiles.map(|tiles| tiles.most))),
            ("tile_rows", number(tiles.map(|tiles| tiles.sides[0].into()))),
            ("tile_columns", number(tiles.map(|tiles| tiles.sides[1].into()))),
            ("tiles_of_batch", own(tiles.is_some_and(|tiles| tiles.of_batch).to_string(), "false")),
            ("any_strides", own(self.any_strides.to_string(), "false")),
            ("two_batch_dims", own(self.two_batch_dims.to_string(), "true")),
            ("aligned", own(set(self.aligned).to_string(), "0")),
            ("tma", own(set(self.tma).to_string(), "0")),
            ("multiples", own(set(self.multiples).to_string(), "0")),
            ("scales", own(set(self.scales).to_string(), "0")),
            ("blocks", own(blocks.to_string(), "1")),
        ];
        let numbers = fields.into_iter().filter_map(|(name, value)| Some(format!("own.{name} = {}; ", value?)));
        let (name, numbers) = (&kernel.name, numbers.collect::<String>());
        format!("namespace tilegemm {{ constexpr Limits {name}_limits() {{ Limits own; {numbers}return own; }} }}\n")
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
