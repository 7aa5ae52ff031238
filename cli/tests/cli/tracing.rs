//! `tilegemm trace`.

use super::command::{tilegemm, Outcome};
use candle_tilegemm::{Format, Layout, Problem};
use std::path::Path;

/// `tilegemm trace` of a shell command, into a file of a folder of its own, which is given to `check` afterwards.
fn traced(test: &str, options: &[&str], before: Option<&str>, script: &str, check: impl FnOnce(Outcome, &Path)) {
    let folder = std::env::temp_dir().join(format!("tilegemm-cli-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("trace.toml");
    if let Some(text) = before {
        std::fs::write(&file, text).unwrap();
    }
    let mut args = vec!["trace", "--out", file.to_str().unwrap()];
    args.extend(options.iter().chain(&["--", "sh", "-c", script]));
    check(tilegemm(&args), &file);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_program_without_products_is_told_what_it_takes() {
    let script = "echo $TILEGEMM; echo from the program; exit 7";
    traced("none", &[], None, script, |Outcome { code, stdout, stderr }, file| {
        assert_eq!((code, stdout.as_str()), (7, "trace\nfrom the program\n"), "{stderr}");
        for words in ["no product was recorded", "use candle_tilegemm as _;", "`interpose`", "GPU"] {
            assert!(stderr.contains(words), "no '{words}' in: {stderr}");
        }
        assert!(!file.exists(), "an empty file is left behind");
    });
    traced("signal", &[], None, "kill -9 $$", |Outcome { code, .. }, _| assert_eq!(code, 128 + 9));
}

#[test]
fn a_trace_is_counted_and_not_overwritten() {
    let row = candle_tilegemm::internal::suite::Shape::of(
        &Problem::dense(2, 4, 8, 1, Layout::NT, Format::F32),
        "x".into(),
        "f32".into(),
    );
    let row = candle_tilegemm::internal::suite::to_toml(&[row.unwrap()]);
    // Stands in for a program with products; the file's name is absolute for those that change their folder.
    let script = format!("cd / && cat > \"$TILEGEMM_TRACE\" <<'END'\n{row}\n# left out: another\nEND");
    traced("rows", &[], None, &script, |Outcome { code, stderr, .. }, file| {
        assert_eq!(code, 0, "{stderr}");
        let expected = format!("1 row in {}, 1 left out", file.display());
        assert!(stderr.contains(&expected) && stderr.contains("tilegemm bench --suite"), "{stderr}");
    });
    traced("kept", &[], Some("mine"), &script, |Outcome { code, stderr, .. }, file| {
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("is there already") && stderr.contains("--force"), "{stderr}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "mine");
    });
    traced("replaced", &["--force"], Some("mine"), &script, |Outcome { code, stderr, .. }, file| {
        assert_eq!(code, 0, "{stderr}");
        assert!(std::fs::read_to_string(file).unwrap().starts_with(&row));
    });
    traced("broken", &[], None, "echo '[[shape]]' > $TILEGEMM_TRACE", |Outcome { code, stderr, .. }, _| {
        assert_eq!(code, 1);
        assert!(stderr.contains("trace.toml: ") && stderr.contains("missing field"), "{stderr}");
    });
}

#[test]
fn what_cannot_be_traced_is_said() {
    let nowhere = std::env::temp_dir().join("tilegemm-no-such-folder/trace.toml");
    let Outcome { code, stderr, .. } = tilegemm(&["trace", "--out", nowhere.to_str().unwrap(), "--", "true"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("cannot write") && stderr.contains("--out"), "{stderr}");

    let file = std::env::temp_dir().join(format!("tilegemm-cli-no-program-{}.toml", std::process::id()));
    let Outcome { code, stderr, .. } = tilegemm(&["trace", "--out", file.to_str().unwrap(), "--", "no-such-program"]);
    assert_eq!((code, file.exists()), (1, false), "{stderr}");
    assert!(stderr.contains("cannot run no-such-program"), "{stderr}");
}
