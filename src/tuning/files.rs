//! Where the tables of this user lie.

use crate::settings;
use std::fs;
use std::path::PathBuf;

/// The default path of the table that `tilegemm tune` writes for a GPU model and that the dispatcher reads:
/// `candle-tilegemm/<model>.json` in `$XDG_CACHE_HOME` or `~/.cache`. `None` where neither folder is known.
pub fn cache_file(gpu: &str) -> Option<PathBuf> {
    Some(settings::cache_folder()?.join("candle-tilegemm").join(plain(gpu) + ".json"))
}

/// A GPU model as the name of a file.
fn plain(gpu: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    gpu.chars().map(plain).collect()
}

/// The file of a GPU model: `candle-tilegemm/<model>/learned.json` in `$XDG_CACHE_HOME` or `~/.cache`. `None` where neither folder is known.
pub fn learned_file(gpu: &str) -> Option<PathBuf> {
    Some(settings::cache_folder()?.join("candle-tilegemm").join(plain(gpu)).join("learned.json"))
}

/// The files of what programs have learned of all GPU models, in order.
pub fn learned_files() -> Vec<PathBuf> {
    let folders = settings::cache_folder().and_then(|cache| fs::read_dir(cache.join("candle-tilegemm")).ok());
    let files = folders.into_iter().flatten().flatten().map(|folder| folder.path().join("learned.json"));
    let mut files: Vec<PathBuf> = files.filter(|file| file.exists()).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::learned_file;

    #[test]
    fn models_have_files_of_their_own() {
        let [h100, h200] = ["NVIDIA H100 80GB HBM3", "NVIDIA H200"].map(|gpu| learned_file(gpu).unwrap());
        assert!(h100.ends_with("candle-tilegemm/nvidia-h100-80gb-hbm3/learned.json"), "{}", h100.display());
        assert_ne!(h100, h200);
    }
}
