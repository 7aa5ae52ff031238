//! The house: the rooms of `src` and the direction of their imports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rooms that a room imports from, with the files that do.
type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// The name of the room that a file of `src` belongs to: a folder, or a file beside the folders. `None` for the files that join rooms.
fn room(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_str()?;
    let name = first.trim_end_matches(".rs");
    (!["lib", "internal"].contains(&name)).then(|| name.into())
}

/// The names after `crate::` in a source: `a` of `crate::a::b`, `a` and `b` of `crate::{a::c, b}`.
fn imported(source: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
    let mut names = Vec::new();
    for (at, _) in source.match_indices("crate::").filter(|(at, _)| !source[..*at].ends_with('$')) {
        let rest = &source[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let (mut depth, mut starts) = (0, true);
                for (place, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => starts = true,
                        _ if starts && is_word(c) => {
                            names.push(&list[place..place + word(&list[place..])]);
                            starts = false;
                        }
                        _ => {}
                    }
                }
            }
            None => names.push(&rest[..word(rest)]),
        }
    }
    names
}

/// A source without its comments and without its tests, which are the last item of a file.
fn code(source: &str) -> String {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let line = |line: &str| line.split("//").next().unwrap_or_default().to_string();
    code.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Calls `with` with the path and the code of each source below a folder, but for tests.
pub fn visit(folder: &Path, root: &Path, with: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            visit(&path, root, with);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            with(path.strip_prefix(root).unwrap(), &code(&std::fs::read_to_string(&path).unwrap()));
        }
    }
}

fn imports() -> Imports {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut imports = Imports::new();
    visit(&root, &root, &mut |path, code| {
        let Some(room) = room(path) else { return };
        let of_room = imports.entry(room.clone()).or_default();
        for name in imported(code).into_iter().filter(|name| *name != room) {
            of_room.entry(name.into()).or_default().insert(path.display().to_string());
        }
    });
    imports
}

/// Removes the rooms that import from no other room, again and again. The rooms of circles, and those above circles, remain.
fn circles(mut imports: Imports) -> Imports {
    loop {
        let ends: Vec<String> =
            imports.iter().filter(|(_, from)| from.is_empty()).map(|(room, _)| room.clone()).collect();
        if ends.is_empty() {
            return imports;
        }
        imports.retain(|room, _| !ends.contains(room));
        imports.values_mut().for_each(|from| from.retain(|room, _| !ends.contains(room)));
    }
}

#[test]
fn imports_go_down_only() {
    let rooms = imports();
    assert!(rooms.len() > 15 && rooms["dispatch"].contains_key("cost"), "the test reads the imports: {rooms:#?}");
    let mut among_rooms = rooms.clone();
    among_rooms.values_mut().for_each(|from| from.retain(|name, _| rooms.contains_key(name)));
    let circles = circles(among_rooms);
    assert!(
        circles.is_empty(),
        "rooms of a circle, and rooms above, with the rooms that they import from: {circles:#?}"
    );
}

#[test]
fn rooms_name_items_by_their_room() {
    let rooms = imports();
    for (room, from) in &rooms {
        for (name, files) in from {
            assert!(rooms.contains_key(name), "{room}: {files:?} import crate::{name}; name the room that has {name}");
        }
    }
}

#[test]
fn a_circle_is_found() {
    let room = |names: &[&str]| names.iter().map(|name| (name.to_string(), BTreeSet::new())).collect();
    let rooms = [("a", room(&["b"])), ("b", room(&["c"])), ("c", room(&["b", "d"])), ("d", room(&[]))];
    let rooms: Imports = rooms.into_iter().map(|(name, from)| (name.to_string(), from)).collect();
    assert_eq!(circles(rooms).into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(imported("use crate::{a::{x, y}, b}; crate::c::d(); $crate::e"), ["a", "b", "c"]);
}
