//! The folders of `csrc`: which are families, which headers the folder `common` has, and the names and the linkage of kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The folders of headers and kernels that belong to no family.
const BESIDE: [&str; 8] = ["common", "elementwise", "experts", "fp8", "gguf", "layer", "narrow", "swap_ab"];

/// Headers of `common` for two subjects. Neither can have the header, as a family includes no header of another one.
const OF_TWO: [&str; 5] = [
    "common/bf16_parts.hpp", // f32 by six products: with mma.sync, and with wgmma
    "common/bf16_sums.hpp",
    "common/fma.hpp",     // sm90_dgemm, sm90_sgemm
    "common/operand.hpp", // sm80_gemm, sm80_grouped_gemm
    "common/warps.hpp",
];

fn csrc() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/csrc"))
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())
}

/// All files below a folder.
fn files(folder: &Path) -> Box<dyn Iterator<Item = PathBuf>> {
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { Box::new(std::iter::once(path)) };
    Box::new(entries(folder).flat_map(below))
}

/// The files of `csrc` that a file of it includes, by name.
fn included(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(csrc().join(file)).unwrap();
    let names = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    names.filter(|name| csrc().join(name).exists()).map(String::from).collect()
}

/// The first folder of a file's name, if the file is in one.
fn folder(file: &str) -> &str {
    file.split_once('/').map_or("", |(folder, _)| folder)
}

/// The subject of a family: families with the same one of these words in their names, or with a folder for themselves, have a subject in common.
fn subject(family: &str) -> &str {
    if ["sm90_few_rows", "sm90_wave"].contains(&family) {
        return "swap_ab";
    }
    ["gguf", "grouped", "bf16x6", "fp8"].into_iter().find(|subject| family.contains(subject)).unwrap_or(family)
}

/// The subjects whose sources include a header, for each header, directly or by way of others.
fn users() -> BTreeMap<String, BTreeSet<String>> {
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let sources = entries(csrc()).filter(|path| path.is_dir()).flat_map(|folder| entries(&folder));
    for source in sources.filter(|path| path.extension().is_some_and(|ending| ending == "cu")) {
        let source = source.strip_prefix(csrc()).unwrap().display().to_string();
        let mut files = vec![source.clone()];
        let mut next = 0;
        while let Some(file) = files.get(next) {
            for header in included(file) {
                let is_own = [folder(&source)].iter().chain(&BESIDE).any(|own| folder(&header) == *own);
                assert!(is_own || !header.contains('/'), "{source} includes {header} of another family");
                users.entry(header.clone()).or_default().insert(subject(folder(&source)).into());
                if !files.contains(&header) {
                    files.push(header);
                }
            }
            next += 1;
        }
    }
    users
}

#[test]
fn a_folder_is_a_family_or_beside_them() {
    for path in entries(csrc()).filter(|path| path.is_dir()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_family = path.join("family.toml").exists();
        assert!(is_family != BESIDE.contains(&name), "csrc/{name} has no family.toml, or is not to have one");
    }
}

#[test]
fn common_headers_have_three_users() {
    let users = users();
    let few = |of: &BTreeSet<String>| of.len() < 3;
    let common = || users.iter().filter(|(header, _)| folder(header) == "common");
    let of_few: Vec<&str> = common().filter(|(_, of)| few(of)).map(|(header, _)| header.as_str()).collect();
    assert_eq!(of_few, OF_TWO, "headers for fewer than three subjects: {users:#?}");
    let unused = |path: &PathBuf| {
        let name = path.strip_prefix(csrc()).unwrap().to_str().unwrap();
        name.ends_with(".hpp") && !users.contains_key(name)
    };
    let unused: Vec<PathBuf> = files(csrc()).filter(unused).collect();
    assert!(unused.is_empty(), "headers that no source includes: {unused:?}");
}

/// The name of the function in a declaration behind `__global__`.
fn function(declaration: &str) -> &str {
    let rest = declaration.trim_start();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    match rest.split_at(end) {
        ("void", rest) => function(rest),
        ("__launch_bounds__" | "__maxnreg__", rest) => {
            let mut depth = 0;
            let closes = |c: char| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            };
            function(&rest[rest.find(closes).expect("a closing parenthesis") + 1..])
        }
        (name, _) => name,
    }
}

/// A profiler's list has kernels of all families, and other programs' kernels.
#[test]
fn kernels_have_names_of_their_own() {
    let mut names = BTreeSet::new();
    for path in files(csrc()).filter(|path| path.extension().is_some_and(|ending| ending != "toml")) {
        let file = path.strip_prefix(csrc()).unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let is_kernel = |at: usize| at == 0 || text.as_bytes()[at - 1] == b'\n';
        for mark in ["__global__ ", "__tile_global__ "] {
            for (at, _) in text.match_indices(mark).filter(|(at, _)| is_kernel(*at)) {
                let name = function(&text[at + mark.len()..]);
                let is_of_family = ["common", "elementwise", "experts"].contains(&folder(file))
                    || name == folder(file)
                    || name.strip_prefix(folder(file)).is_some_and(|rest| rest.starts_with('_'));
                assert!(is_of_family, "{file}: the name of kernel {name} does not begin with that of the family");
                assert!(names.insert(name.to_string()), "{file}: another kernel has the name {name}");
            }
        }
    }
    assert!(names.len() > 30 && names.contains("sm90_gemm") && names.contains("gemv_mma"), "{names:?}");
}

/// nvcc before 13.0 makes weak symbols of kernels with external linkage: of two architectures in one binary, one would take the
/// other's.
#[test]
fn kernels_have_internal_linkage() {
    let mut kernels = 0;
    for path in files(csrc()).filter(|path| path.extension().is_some_and(|ending| ending != "toml")) {
        let (mut namespaces, text) = (Vec::new(), std::fs::read_to_string(&path).unwrap());
        for (number, line) in text.lines().enumerate() {
            match line {
                _ if line.starts_with("namespace ") && line.ends_with('{') => namespaces.push(line == "namespace {"),
                _ if line.starts_with("}  // namespace") => drop(namespaces.pop()),
                _ if line.starts_with("__global__")
                    || line.starts_with("__tile_global__")
                    || line.starts_with("TG_ANCHOR") =>
                {
                    assert!(namespaces.contains(&true), "{}:{}: not in `namespace {{`", path.display(), number + 1);
                    kernels += 1;
                }
                _ => {}
            }
        }
    }
    assert!(kernels > 15, "only {kernels} kernels found in csrc");
}
