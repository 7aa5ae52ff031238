//! The pages that the layout programs print while building (csrc/common/layout/page.hpp).

use serde::{Deserialize, Serialize};

include!(concat!(env!("OUT_DIR"), "/layouts.rs"));

/// The output of one program.
#[derive(Deserialize)]
pub struct Page {
    pub entries: Vec<Entry>,
    grids: Vec<Grid>,
}

/// A kernel or an example.
#[derive(Deserialize)]
pub struct Entry {
    pub name: String,
    /// The copy that an example makes; empty for a kernel.
    pub about: String,
    pub views: Vec<View>,
}

/// A copy, a product or a matrix in shared memory.
#[derive(Deserialize)]
pub struct View {
    pub title: String,
    /// Names and values: tiler, thread-value layout and others.
    pub facts: Vec<(String, String)>,
    pub accesses: Vec<Access>,
    /// The index of the view's grid among the grids of the page.
    pub grid: Option<usize>,
}

/// Accesses to shared memory that are served together.
#[derive(Serialize, Deserialize)]
pub struct Access {
    /// Subject and verb of the access.
    pub by: String,
    pub lanes: u32,
    /// Bytes of a lane.
    pub bytes: u32,
    /// The most words that a bank has to serve one after the other; 1: no bank conflict.
    pub ways: u32,
}

/// The cells of a matrix.
#[derive(Serialize, Deserialize)]
pub struct Grid {
    pub colour: Colour,
    /// The names of the matrix's dimensions.
    pub row: String,
    pub column: String,
    /// Rows and columns of the matrix; the grid shows the first.
    pub of: [usize; 2],
    pub rows: usize,
    pub columns: usize,
    /// Thread and value, or bank and offset, row by row.
    pub cells: Vec<[i32; 2]>,
}

/// The property that colours the cells of a grid.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Colour {
    Thread,
    Bank,
}

impl Page {
    /// Whether this build has none: it lacks the feature `layout`.
    pub fn none() -> bool {
        PAGES.is_empty()
    }

    /// The pages of this build.
    pub fn all() -> serde_json::Result<Vec<Page>> {
        PAGES.iter().map(|page| serde_json::from_str(page)).collect()
    }

    /// Those of them that name an entry in these letters: the others are not read.
    pub fn that_name(entry: &str) -> serde_json::Result<Vec<Page>> {
        let quoted = format!("\"{entry}\"");
        PAGES.iter().filter(|page| page.contains(&quoted)).map(|page| serde_json::from_str(page)).collect()
    }

    /// The kernel or example whose entry has the layouts of `name`.
    pub fn described(name: &str) -> &str {
        SAME.iter().find(|(other, _)| *other == name).map_or(name, |(_, first)| first)
    }

    /// The kernels of this build with the layouts of the kernel `name`.
    pub fn same(name: &str) -> impl Iterator<Item = &'static str> + '_ {
        SAME.iter().filter(move |(_, first)| *first == name).map(|(other, _)| *other)
    }

    /// The grid of a view.
    pub fn grid(&self, view: &View) -> Option<&Grid> {
        view.grid.map(|grid| &self.grids[grid])
    }
}
