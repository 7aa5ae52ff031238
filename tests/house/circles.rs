//! Circles of files: no file of a library depends on one that depends on it, inside rooms either.
//!
//! A file depends on the files that have the items it names. A name that a module imports or re-exports stands for the item, so that a parent that
//! only declares and re-exports its children depends on none of them.

use crate::rooms::visit;
use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The libraries, by their folders.
const LIBRARIES: [&str; 3] = ["cli/src", "models/src", "src"];

/// The name of a module: `["a", "b"]` of `crate::a::b`.
type Name = Vec<String>;

/// The modules of a library that have a file.
type Modules = BTreeMap<Name, Module>;

/// What a file says about others.
#[derive(Debug, Default)]
struct Module {
    imports: Vec<Import>,
    /// The paths in the code beside imports.
    paths: BTreeSet<Vec<String>>,
    /// The words of this code.
    words: BTreeSet<String>,
}

/// An item that `use` gives a name.
#[derive(Debug)]
struct Import {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The imports of a tree such as `a::{b, c as d}`. The first name of `::a` is empty.
fn imports(tree: &str, before: &[String], is_public: bool) -> Vec<Import> {
    let segments = |path: &str| path.trim().split("::").map(|name| name.trim().to_string()).collect::<Vec<_>>();
    if let Some((path, list)) = tree.trim().strip_suffix('}').and_then(|tree| tree.split_once('{')) {
        let path = path.trim().strip_suffix("::").map_or(Vec::new(), segments);
        let mut depth = 0;
        let items = list.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        let items = items.filter(|item| !item.trim().is_empty());
        return items.flat_map(|item| imports(item, &[before, &path].concat(), is_public)).collect();
    }
    let (path, name) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
    let mut path = [before, &segments(path)].concat();
    path.pop_if(|last| last == "self");
    let name = name.map_or_else(|| path.last().cloned().unwrap_or_default(), |name| name.trim().into());
    vec![Import { name, path, is_public }]
}

impl Module {
    fn of(code: &str) -> Self {
        let (mut module, mut rest, mut lines) = (Self::default(), String::new(), code.lines());
        while let Some(line) = lines.next() {
            let item = line.trim_start();
            let inner = item.strip_prefix("pub").map(|item| match item.strip_prefix('(') {
                Some(within) => within.split_once(')').map_or(within, |(_, item)| item).trim_start(),
                None => item.trim_start(),
            });
            match inner.unwrap_or(item).strip_prefix("use ") {
                Some(first) => {
                    let mut tree = first.to_string();
                    while !tree.contains(';') {
                        tree.extend([" ", lines.next().expect("the end of an import")]);
                    }
                    let tree = tree.split(';').next().unwrap_or_default();
                    module.imports.extend(imports(tree, &[], inner.is_some()));
                }
                // A declaration of a child is no use of it.
                None if inner.unwrap_or(item).starts_with("mod ") && item.ends_with(';') => {}
                None => rest.extend([line, "\n"]),
            }
        }
        let mut at = 0;
        while let Some(start) = rest[at..].find(is_word).map(|start| at + start) {
            let mut path = Vec::new();
            let mut next = start;
            loop {
                let end = rest[next..].find(|c| !is_word(c)).map_or(rest.len(), |end| next + end);
                path.push(rest[next..end].to_string());
                at = end;
                next = end + 2;
                let goes_on = rest[end..].starts_with("::") && rest[next..].starts_with(is_word);
                if !goes_on {
                    break;
                }
            }
            module.words.extend(path.iter().cloned());
            if path.len() > 1 && !rest[..start].ends_with([':', '$']) {
                module.paths.insert(path);
            }
        }
        module
    }
}

/// The module that has the item of a path in the code of module `from`; `None` for items of other crates and for names that need no path.
fn home(modules: &Modules, from: &Name, path: &[String], seen: &mut Vec<(Name, String)>) -> Option<Name> {
    let child = |module: &Name, name: &String| [module.clone(), vec![name.clone()]].concat();
    let (first, mut rest) = path.split_first()?;
    let mut module = from.clone();
    match first.as_str() {
        "crate" => module.clear(),
        "self" => {}
        "super" => drop(module.pop()),
        name => {
            let is_imported = modules[from].imports.iter().any(|import| import.name == name);
            if !is_imported && !modules.contains_key(&child(from, first)) {
                return None;
            }
            rest = path;
        }
    }
    while let Some((name, behind)) = rest.split_first() {
        let import = modules.get(&module).and_then(|of| of.imports.iter().find(|import| import.name == *name));
        let place = (module.clone(), name.clone());
        match import {
            _ if name == "super" => drop(module.pop()),
            _ if modules.contains_key(&child(&module, name)) => module.push(name.clone()),
            Some(import) if !seen.contains(&place) => {
                seen.push(place);
                return home(modules, &module, &[&import.path, behind].concat(), seen);
            }
            _ => return Some(module),
        }
        rest = behind;
    }
    Some(module)
}

/// The modules that a module depends on.
fn dependencies(modules: &Modules, name: &Name) -> BTreeSet<Name> {
    let module = &modules[name];
    let used = module.imports.iter().filter(|import| !import.is_public || module.words.contains(&import.name));
    let paths = used.map(|import| &import.path).filter(|path| path.last().is_none_or(|last| last != "*"));
    let homes = paths.chain(&module.paths).filter_map(|path| home(modules, name, path, &mut Vec::new()));
    homes.filter(|home| home != name && modules.contains_key(home)).collect()
}

/// The circles, each with the modules in order of their names.
fn circles(modules: &Modules) -> Vec<Vec<String>> {
    let mut graph = DiGraph::<&Name, ()>::new();
    let nodes: BTreeMap<&Name, _> = modules.keys().map(|name| (name, graph.add_node(name))).collect();
    for (name, node) in &nodes {
        for home in dependencies(modules, name) {
            graph.add_edge(*node, nodes[&home], ());
        }
    }
    let circles = tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1);
    let named = circles.map(|circle| circle.into_iter().map(|node| graph[node].join("::")).collect::<BTreeSet<_>>());
    named.map(|names| names.into_iter().collect()).collect()
}

/// The modules of the library in this folder.
fn library(folder: &str) -> Modules {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut modules = Modules::new();
    visit(&root, &root, &mut |path, code| {
        let mut name: Name = path.with_extension("").iter().map(|part| part.to_str().unwrap().to_string()).collect();
        name.pop_if(|last| last == "mod");
        if name != ["main"] {
            modules.insert(if name == ["lib"] { Name::new() } else { name }, Module::of(code));
        }
    });
    modules
}

#[test]
fn files_depend_on_one_another_in_one_direction() {
    for folder in LIBRARIES {
        let modules = library(folder);
        assert!(modules.contains_key(&Name::new()), "{folder} has no lib.rs");
        let circles = circles(&modules);
        assert!(circles.is_empty(), "{folder}: each of these files depends on the others of its list: {circles:#?}");
    }
}

#[test]
fn dependencies_are_found() {
    let of = |folder: &str, name: &[&str]| {
        dependencies(&library(folder), &name.iter().map(|name| name.to_string()).collect())
            .into_iter()
            .map(|name| name.join("::"))
            .collect::<BTreeSet<_>>()
    };
    // By the file's path, and by a path that re-exports.
    let choice = of("src", &["dispatch", "choice"]);
    for file in ["dispatch::chosen", "cost", "kernel::rejection", "problem::format"] {
        assert!(choice.contains(file), "{file} is not among {choice:?}");
    }
    assert!(of("cli/src", &["bench", "operands"]).contains("failure"));
}

#[test]
fn a_circle_of_files_is_found() {
    let circles = |files: &[(&str, &str)]| {
        let name =
            |name: &str| if name.is_empty() { Name::new() } else { name.split("::").map(String::from).collect() };
        circles(&files.iter().map(|(path, code)| (name(path), Module::of(code))).collect())
    };
    let child = ("a::b", "use super::Item;\npub struct Part(Item);");
    // A parent that re-exports its child depends on it only where it uses the name.
    assert!(circles(&[("", "mod a;"), ("a", "mod b;\npub use b::Part;\npub struct Item;"), child]).is_empty());
    for parent in [
        "mod b;\npub use b::Part;\npub struct Item;\nfn f(part: Part) {}",
        "mod b;\nuse b::Part as Other;\npub struct Item;\nfn f(other: Other) {}",
        "mod b;\npub struct Item;\nfn f() -> Vec<b::Part> {}",
        "mod b;\npub struct Item;\nfn f(part: crate::a::b::Part) {}",
    ] {
        assert_eq!(circles(&[("", "mod a;"), ("a", parent), child]), [["a", "a::b"]], "{parent}");
    }
    // The item of another file: the parent imports or re-exports it.
    for parent in
        ["mod b;\nmod c;\nuse c::Item;\nfn f(part: b::Part) {}", "mod b;\nmod c;\npub use c::Item;\nuse b::Part;"]
    {
        assert!(circles(&[("", "mod a;"), ("a", parent), child, ("a::c", "pub struct Item;")]).is_empty(), "{parent}");
    }
    let siblings = [("a", "use crate::{b::{self, B}, c};"), ("b", "fn f() { crate::c::d::g() }"), ("c", "mod d;")];
    assert!(circles(&[&siblings[..], &[("", "mod a;\nmod b;\nmod c;"), ("c::d", "pub fn g() {}")]].concat()).is_empty());
    let closed =
        [&siblings[..], &[("", "mod a;\nmod b;\nmod c;"), ("c::d", "use ::a::x;\nuse super::super::a::y;")]].concat();
    assert_eq!(circles(&closed), [["a", "b", "c::d"]]);
}
