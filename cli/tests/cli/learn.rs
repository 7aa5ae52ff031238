//! `tilegemm learn`.

use super::command::{tilegemm_with, Outcome};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::internal::tuning::{Among, Key, Origin, Tuning};
use candle_tilegemm::{Format, Layout, Problem};
use std::path::Path;

/// `tilegemm` with a cache of its own.
fn in_cache(cache: &Path, args: &[&str]) -> Outcome {
    tilegemm_with(&[("XDG_CACHE_HOME", cache.to_str().unwrap()), ("TILEGEMM_TUNING", "")], args)
}

#[test]
fn a_program_that_learns_nothing_is_told_what_it_takes() {
    let cache = std::env::temp_dir().join(format!("tilegemm-cli-learn-{}", std::process::id()));
    let Outcome { code, stdout, stderr } =
        in_cache(&cache, &["learn", "--", "sh", "-c", "echo $TILEGEMM_LEARN; exit 7"]);
    assert_eq!((code, stdout.as_str()), (7, "on\n"), "{stderr}");
    assert!(stderr.contains("nothing was learned") && stderr.contains("GPU"), "{stderr}");
    let Outcome { code, stderr, .. } = in_cache(&cache, &["learn", "--", "/nowhere/program"]);
    assert!(code == 1 && stderr.contains("cannot run /nowhere/program"), "{stderr}");
}

#[test]
fn what_a_program_learned_is_shown_and_the_next_plan_is_made_with_it() {
    let cache = std::env::temp_dir().join(format!("tilegemm-cli-learned-{}", std::process::id()));
    let device = DeviceInfo::h100();
    let problem = Problem::dense(300, 4096, 4096, 1, Layout::NT, Format::BF16);
    let usual = Dispatcher::hypothetical(device.clone()).without_tuning().plan(&problem, Policy::default()).unwrap();
    let other = if usual.kernel.name == "cublas_bf16_nt" {
        "sm90_gemm_bf16_nt_128x256x64_2x1_cooperative"
    } else {
        "cublas_bf16_nt"
    };
    let code = candle_tilegemm::family::by_name(other).unwrap().code;
    let key = serde_json::to_string(&Key::of(&problem, Among::All).unwrap()).unwrap();
    let key = key.trim_start_matches('{').trim_end_matches('}');
    let entry = format!(
        r#"{{{key},"m":[300,300],"kernel":"{other}","code":"{code}","gain":1.1,"learned":{{"samples":5,"us":30.25,"against_us":33.3}}}}"#
    );
    let empty = Tuning::new("any", Origin::of_this_build(&device)).to_text();
    let text = empty.replace("\"entries\": []", &format!("\"entries\": [{entry}]"));
    let source = cache.join("source.json");
    std::fs::create_dir_all(&cache).unwrap();
    std::fs::write(&source, text).unwrap();

    // Stands in for a program that learns.
    let folder = cache.join("candle-tilegemm/nvidia-h100-80gb-hbm3");
    let script = format!("mkdir -p {0} && cp {1} {0}/learned.json", folder.display(), source.display());
    let Outcome { code, stderr, .. } = in_cache(&cache, &["learn", "--", "sh", "-c", &script]);
    assert_eq!(code, 0, "{stderr}");
    for words in ["Mx4096x4096 nt bf16", "300", other, "30.2", "33.3", "1 product learned"] {
        assert!(stderr.contains(words), "no '{words}' in: {stderr}");
    }
    let Outcome { stdout, .. } = in_cache(&cache, &["explain", "300", "4096", "4096", "--device", "h100"]);
    assert!(
        stdout.contains(&format!("learned: {other}")) && stdout.contains("5 samples, 30.2 us against 33.3"),
        "{stdout}"
    );
    let Outcome { stdout, .. } = in_cache(&cache, &["explain", "301", "4096", "4096", "--device", "h100"]);
    assert!(!stdout.contains("learned"), "{stdout}");
    let settings = [("XDG_CACHE_HOME", cache.to_str().unwrap()), ("TILEGEMM_TUNING", "off")];
    let off = tilegemm_with(&settings, &["explain", "300", "4096", "4096", "--device", "h100"]);
    assert!(!off.stdout.contains("learned"), "{}", off.stdout);
    let Outcome { stdout, .. } = in_cache(&cache, &["doctor"]);
    assert!(stdout.contains("learned.json (1 entry)"), "{stdout}");
    std::fs::remove_dir_all(&cache).unwrap();
}
