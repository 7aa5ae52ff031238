//! Selection of libcublas: the library that made the handles of the program, because a handle of version 12 means
//! nothing to version 13.

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::path::PathBuf;

/// Not among libloading's constants: open a library that is already loaded, and load nothing (dlfcn.h).
const RTLD_NOLOAD: c_int = if cfg!(target_os = "macos") { 0x10 } else { 4 };

/// An open library and its file.
#[derive(Debug)]
pub(super) struct Found {
    pub library: Library,
    pub path: PathBuf,
}

/// The library that a call of `symbol` by this program reaches; else the first loaded library of `names`; else the
/// first library of `names` that can be loaded.
pub(super) fn find(symbol: &CStr, names: &[&str]) -> Option<Found> {
    let in_order = |flags| names.iter().find_map(|name| open(name, flags, symbol));
    linked(symbol).or_else(|| in_order(RTLD_NOLOAD)).or_else(|| in_order(0))
}

/// The library that the program's own symbol resolves to.
fn linked(symbol: &CStr) -> Option<Found> {
    let path = file_of(&Library::this(), symbol)?;
    open(path.to_str()?, RTLD_NOLOAD, symbol)
}

fn open(name: &str, flags: c_int, symbol: &CStr) -> Option<Found> {
    // SAFETY: libcublas may be loaded anywhere and any time.
    let library = unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL | flags) }.ok()?;
    let path = file_of(&library, symbol)?;
    Some(Found { library, path })
}

/// The file that defines the address of `symbol` in `library`.
fn file_of(library: &Library, symbol: &CStr) -> Option<PathBuf> {
    // SAFETY: the address is never called.
    let symbol = unsafe { library.get::<*mut c_void>(symbol.to_bytes_with_nul()) }.ok()?;
    let mut info =
        DlInfo { file: std::ptr::null(), base: std::ptr::null(), name: std::ptr::null(), at: std::ptr::null() };
    // SAFETY: a valid place to write to.
    if unsafe { dladdr(symbol.as_raw_ptr(), &mut info) } == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: a terminated string that lives as long as the library is loaded, and the library is open.
    Some(unsafe { CStr::from_ptr(info.file) }.to_string_lossy().into_owned().into())
}

/// `Dl_info` of dlfcn.h.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *const c_void,
    name: *const c_char,
    at: *const c_void,
}

extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::{find, Library, RTLD_LAZY, RTLD_LOCAL};
    use libloading::os::unix::RTLD_GLOBAL;
    use std::ffi::{c_int, CString};
    use std::path::Path;
    use std::process::Command;

    /// `lib<name>.so.13` and `.so.12`, each with a function that returns the library's number.
    fn stubs(name: &str) -> ([String; 2], CString) {
        let folder = std::env::temp_dir().join(format!("tilegemm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let symbol = format!("tilegemm_stub_{name}");
        let paths = [13, 12].map(|version| {
            let (source, library) = (folder.join("stub.c"), folder.join(format!("lib{name}.so.{version}")));
            std::fs::write(&source, format!("int {symbol}(void) {{ return {version}; }}\n")).unwrap();
            let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
            assert!(status.expect("cc, of gcc, builds the stubs").success());
            library.to_str().unwrap().to_string()
        });
        (paths, CString::new(symbol).unwrap())
    }

    fn load(path: &str, scope: c_int) {
        // SAFETY: a stub, which is never unloaded.
        std::mem::forget(unsafe { Library::open(Some(path), RTLD_LAZY | scope) }.unwrap());
    }

    /// The number of the library that `find` returns for these two paths.
    fn found(paths: &[String; 2], symbol: &CString) -> c_int {
        let found = find(symbol, &[&paths[0], &paths[1]]).unwrap();
        // SAFETY: the function of the stub.
        let number = unsafe { found.library.get::<unsafe extern "C" fn() -> c_int>(symbol.as_bytes_with_nul()) };
        // SAFETY: as above.
        let number = unsafe { number.unwrap()() };
        assert_eq!(found.path.file_name(), Path::new(&paths[usize::from(number == 12)]).file_name());
        number
    }

    #[test]
    fn the_first_name_is_opened_where_none_is_loaded() {
        let (paths, symbol) = stubs("unloaded");
        assert_eq!(found(&paths, &symbol), 13);
        let gone = format!("{}-gone", paths[0]);
        assert!(find(&symbol, &[&gone]).is_none());
        assert_eq!(find(&symbol, &[&gone, &paths[1]]).unwrap().path, Path::new(&paths[1]));
    }

    #[test]
    fn one_that_the_program_has_loaded_comes_before_one_that_is_found() {
        let (paths, symbol) = stubs("loaded");
        load(&paths[1], RTLD_LOCAL);
        assert_eq!(found(&paths, &symbol), 12);
    }

    #[test]
    fn of_two_that_are_loaded_the_one_that_the_program_calls_is_taken() {
        let (paths, symbol) = stubs("called");
        load(&paths[0], RTLD_LOCAL);
        load(&paths[1], RTLD_GLOBAL);
        assert_eq!(found(&paths, &symbol), 12);
    }
}
