//! The report of the preload library at the end of a program: the counters, or why no call arrived.

use super::count::stats;
use super::tell::tell;
use crate::settings;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Writes the counters of the process to stderr as JSON where `TILEGEMM_STATS=on` asks for the counters. Where no call has arrived, the reason takes
/// their place.
pub fn report_at_exit() {
    match settings::stats() {
        Ok(false) => {}
        Ok(true) => tell(&report()),
        Err(error) => tell(&error.to_string()),
    }
}

fn report() -> String {
    let stats = stats();
    if stats.calls() > 0 {
        return serde_json::to_string(&stats).unwrap_or_else(|error| error.to_string());
    }
    why_none(&loaded(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default()))
}

/// The files of a process's memory map, in `/proc/self/maps`.
fn loaded(maps: &str) -> BTreeSet<PathBuf> {
    maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..]))).collect()
}

/// Why no call of cuBLAS arrives in a process that has these files loaded.
fn why_none(files: &BTreeSet<PathBuf>) -> String {
    let is_cublas =
        |file: &&PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcublas"));
    let with_cublas = files.iter().find(|file| !is_cublas(file) && contains(file, &marker()).unwrap_or(false));
    if let Some(file) = with_cublas {
        let file = file.display();
        return format!("no call of cuBLAS arrived: cuBLAS is linked into {file} statically, where no preloaded library takes its place");
    }
    match files.iter().find(is_cublas) {
        Some(file) => {
            let file = file.display();
            format!("no call of cuBLAS arrived: the program has {file} loaded, and multiplied nothing, or looked the functions up by dlsym")
        }
        None => "no call of cuBLAS arrived: the program has not loaded libcublas".into(),
    }
}

/// A text that every cuBLASLt has: the name of an environment variable of its own. The text is not in this library as a whole.
fn marker() -> Vec<u8> {
    let parts = std::hint::black_box([b"CUBLASLT".as_slice(), b"_LOG_LEVEL"]);
    parts.concat()
}

/// Whether a file contains `words`.
fn contains(file: &Path, words: &[u8]) -> io::Result<bool> {
    let (mut file, mut block, mut kept) = (File::open(file)?, vec![0; 1 << 20], 0);
    loop {
        let read = file.read(&mut block[kept..])?;
        let have = kept + read;
        if block[..have].windows(words.len()).any(|bytes| bytes == words) {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        // Words may go on in the next block.
        let first = have.saturating_sub(words.len() - 1);
        block.copy_within(first..have, 0);
        kept = have - first;
    }
}

#[cfg(test)]
mod tests {
    use super::{contains, loaded, marker, why_none};
    use std::path::PathBuf;

    #[test]
    fn words_are_found_across_blocks() {
        let path = std::env::temp_dir().join(format!("tilegemm-marker-{}", std::process::id()));
        for before in [0, (1 << 20) - 5, 1 << 20, 3 << 20] {
            std::fs::write(&path, [vec![0; before], marker()].concat()).unwrap();
            assert!(contains(&path, &marker()).unwrap(), "{before}");
        }
        std::fs::write(&path, &marker()[1..]).unwrap();
        assert!(!contains(&path, &marker()).unwrap());
        let maps = format!("7f00-7f01 r-xp 00000000 fe:00 1  {}\n7f02-7f03 rw-p 00000000 00:00 0 \n", path.display());
        assert!(loaded(&maps).into_iter().eq([path.clone()]));
        assert!(why_none(&loaded(&maps)).contains("has not loaded libcublas"));
        std::fs::write(&path, marker()).unwrap();
        assert!(why_none(&loaded(&maps)).contains(&format!("linked into {} statically", path.display())));
        std::fs::remove_file(path).unwrap();
        let library = PathBuf::from("/opt/cuda/lib64/libcublas.so.13");
        assert!(why_none(&[library].into()).contains("libcublas.so.13 loaded"));
    }
}
