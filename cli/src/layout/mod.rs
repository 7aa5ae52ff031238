//! `tilegemm layout`: the copies, products and shared memory of kernels that are written with CuTe, as CuTe evaluates them.

mod page;
mod svg;

use crate::{print, words, Failure, Result};
use candle_tilegemm::family::KERNELS;
use page::{Access, Entry, Grid, Page, View};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Args {
    /// A kernel, or an example
    #[arg(group = "what")]
    name: Option<String>,
    /// Names the kernels and examples that have layouts
    #[arg(long, group = "what")]
    list: bool,
    /// Only the view of this number
    #[arg(long, value_name = "NUMBER", conflicts_with = "list")]
    view: Option<usize>,
    /// Draws the grids of the views to this file
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    svg: Option<PathBuf>,
    /// All views with the cells of their grids, as JSON
    #[arg(long, conflicts_with_all = ["list", "svg", "view"])]
    json: bool,
}

pub fn run(args: &Args) -> Result {
    if Page::none() {
        let message =
            "CuTe's layouts are not in this build; build with the feature `layout`, which needs nvcc and CUTLASS \
                       (`third_party/fetch.sh` has both) and no GPU";
        return Err(Failure::Error(message.into()));
    }
    let Some(name) = &args.name else { return list(&Page::all()?) };
    let name = &words::kernel(name);
    let described = Page::described(name);
    let is_entry = |entry: &&Entry| words::is_same(&entry.name, described);
    let has_entry = |pages: &[Page]| pages.iter().any(|page| page.entries.iter().any(|entry| is_entry(&entry)));
    let pages = match Page::that_name(described)? {
        pages if has_entry(&pages) => pages,
        _ => Page::all()?, // an example in other letters
    };
    let found = pages.iter().find_map(|page| Some((page, page.entries.iter().find(is_entry)?)));
    let (page, entry) = found.ok_or_else(|| Failure::Usage(unknown(name)))?;
    if args.json {
        return crate::print_json(&as_json(name, page, entry));
    }
    let numbered: Vec<(usize, &View)> = (1..).zip(&entry.views).collect();
    let views: Vec<(usize, &View)> =
        numbered.into_iter().filter(|(number, _)| args.view.is_none_or(|chosen| chosen == *number)).collect();
    if views.is_empty() {
        return Err(Failure::Usage(format!("{name} has the views 1 to {}", entry.views.len())));
    }
    match &args.svg {
        Some(file) => draw(page, entry, &views, file),
        None => show(name, entry, &views),
    }
}

/// Why there is nothing to show for this name.
fn unknown(name: &str) -> String {
    let why = match KERNELS.iter().find(|kernel| kernel.name == name) {
        Some(kernel) => format!("the family {} has no layouts of CuTe", kernel.family),
        None => format!("there is no kernel and no example {name}"),
    };
    format!("{why}; `tilegemm layout --list` names kernels and examples")
}

fn list(pages: &[Page]) -> Result {
    for entry in pages.iter().flat_map(|page| &page.entries) {
        print(format!("{:<60} {}", entry.name, entry.about).trim_end())?;
        Page::same(&entry.name).try_for_each(print)?;
    }
    Ok(())
}

/// An entry in JSON, each view with its grid.
fn as_json(name: &str, page: &Page, entry: &Entry) -> serde_json::Value {
    let view = |view: &View| {
        let facts: BTreeMap<_, _> = view.facts.iter().map(|(name, value)| (name, value)).collect();
        serde_json::json!({ "title": view.title, "facts": facts, "accesses": view.accesses, "grid": page.grid(view) })
    };
    let views: Vec<_> = entry.views.iter().map(view).collect();
    serde_json::json!({ "name": name, "layouts_of": entry.name, "about": entry.about, "views": views })
}

fn show(name: &str, entry: &Entry, views: &[(usize, &View)]) -> Result {
    print(name)?;
    if name != entry.name {
        print(format_args!("the layouts of {}: types of one size have the same", entry.name))?;
    }
    if !entry.about.is_empty() {
        print(&entry.about)?;
    }
    for (number, view) in views {
        print(format_args!("\n{number}  {}", view.title))?;
        let width = view.facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in &view.facts {
            print(format_args!("   {name:<width$}  {value}"))?;
        }
        for access in &view.accesses {
            print(format_args!("   {}", sentence(access)))?;
        }
    }
    Ok(())
}

/// An access in words.
fn sentence(access: &Access) -> String {
    let Access { by, lanes, bytes, ways } = access;
    let conflict = match ways {
        1 => "no bank conflict".into(),
        ways => format!("a bank conflict of {ways} ways"),
    };
    format!("{by}: {lanes} x {bytes} bytes at a time, {conflict}")
}

fn draw(page: &Page, entry: &Entry, views: &[(usize, &View)], file: &Path) -> Result {
    let grids = views.iter().filter_map(|(_, view)| Some((view.title.clone(), page.grid(view)?)));
    let grids: Vec<(String, &Grid)> = grids.collect();
    if grids.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: these views have no grid, as one thread holds all values",
            entry.name
        )));
    }
    std::fs::write(file, svg::draw(&grids)).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    print(format_args!("{} grids in {}", grids.len(), file.display()))
}
