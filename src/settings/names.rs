//! Variables of the environment whose names are misspelt: a name that this library does not know has no effect, and nobody would tell.

use super::ALL;

/// What build.rs, tests and examples read.
pub const OTHERS: [&str; 13] = [
    "TILEGEMM_CUDA_HOME",
    "TILEGEMM_GIT",
    "TILEGEMM_MODEL_DIR",
    "TILEGEMM_NVCC_VERSION", // of build.rs; Cargo passes it on to what it runs
    "TILEGEMM_OBJECTS",
    "TILEGEMM_PROFILE",
    "TILEGEMM_SKIP_KERNELS",
    "TILEGEMM_SMOLLM2_DIR",
    "TILEGEMM_TEST_CASES",
    "TILEGEMM_TEST_CHILD",
    "TILEGEMM_TEST_MEMORY_INSIDE",
    "TILEGEMM_TEST_SEED",
    "TILEGEMM_TEST_TIMES",
];
/// The beginning of every name but one, which is the beginning alone.
const PREFIX: &str = "TILEGEMM";
/// Letters that may be missing, too many, swapped or others in a misspelt name.
const MOST: usize = 2;

/// A variable that looks like one of this library's and is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The name in the environment.
    pub name: String,
    /// The known name that is nearest.
    pub nearest: &'static str,
}

/// The unknown names of the environment, in order.
pub fn unknown() -> Vec<Unknown> {
    unknown_of(
        std::env::vars_os().filter(|(_, value)| !value.is_empty()).filter_map(|(name, _)| name.into_string().ok()),
    )
}

fn unknown_of(names: impl Iterator<Item = String>) -> Vec<Unknown> {
    let mut unknown: Vec<Unknown> = names.filter_map(of).collect();
    unknown.sort_by(|x, y| x.name.cmp(&y.name));
    unknown
}

/// The name, where it begins as the names of this library do, or nearly so, and is none of them.
fn of(name: String) -> Option<Unknown> {
    let known = || ALL.iter().map(|setting| setting.name).chain(OTHERS);
    if known().any(|known| known == name) {
        return None;
    }
    let upper = name.to_ascii_uppercase();
    let word = upper.split('_').next().unwrap_or_default();
    // `TILE` alone and `TILES` are words of others.
    let is_ours = distance(word, PREFIX) <= MOST && word.len() + 1 >= PREFIX.len() || upper.starts_with("TILE_GEMM");
    let nearest = known().min_by_key(|known| distance(&upper, known))?;
    is_ours.then_some(Unknown { name, nearest })
}

/// The number of letters to insert, to remove, to replace, or to swap with the next, that make one name of the other.
fn distance(x: &str, y: &str) -> usize {
    let (x, y): (Vec<char>, Vec<char>) = (x.chars().collect(), y.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=y.len()).collect()];
    for i in 1..=x.len() {
        let mut row = vec![i];
        for j in 1..=y.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(x[i - 1] != y[j - 1]);
            let swapped = i > 1 && j > 1 && x[i - 1] == y[j - 2] && x[i - 2] == y[j - 1];
            let swapped = if swapped { rows[i - 2][j - 2] + 1 } else { usize::MAX };
            row.push(replaced.min(swapped).min(rows[i - 1][j] + 1).min(row[j - 1] + 1));
        }
        rows.push(row);
    }
    rows[x.len()][y.len()]
}

#[cfg(test)]
mod tests {
    use super::{distance, unknown_of, Unknown, OTHERS};
    use crate::settings::ALL;

    fn nearest(name: &str) -> Option<&'static str> {
        unknown_of([name.to_string()].into_iter()).first().map(|Unknown { nearest, .. }| *nearest)
    }

    #[test]
    fn a_misspelt_name_has_its_neighbour() {
        let cases = [
            ("TILEGEM", "TILEGEMM"),
            ("TILEGEMN", "TILEGEMM"),
            ("TILEGMEM", "TILEGEMM"),
            ("tilegemm", "TILEGEMM"),
            ("TILE_GEMM", "TILEGEMM"),
            ("TILEGEM_VENDOR", "TILEGEMM_VENDOR"),
            ("TILEGEMM_VENDER", "TILEGEMM_VENDOR"),
            ("TILEGEMM_F23", "TILEGEMM_F32"),
            ("TILEGEMM_BATCHINVARIANT", "TILEGEMM_BATCH_INVARIANT"),
        ];
        for (name, expected) in cases {
            assert_eq!(nearest(name), Some(expected), "{name}");
        }
        assert!(nearest("TILEGEMM_FOO").is_some(), "the prefix is ours");
    }

    #[test]
    fn known_names_and_words_of_others_are_none() {
        let known = ALL.iter().map(|setting| setting.name).chain(OTHERS);
        for name in known.chain(["TILE", "TILES", "TILE_SIZE", "GEMM", "TILING_GEMM", "MILEGE", "PATH", "CUDA_HOME"]) {
            assert_eq!(nearest(name), None, "{name}");
        }
    }

    #[test]
    fn a_distance_counts_letters() {
        let cases =
            [("", "", 0), ("a", "", 1), ("ab", "ba", 1), ("abc", "abd", 1), ("abc", "ac", 1), ("kitten", "sitting", 3)];
        for (x, y, expected) in cases {
            assert_eq!((distance(x, y), distance(y, x)), (expected, expected), "{x} {y}");
        }
    }
}
