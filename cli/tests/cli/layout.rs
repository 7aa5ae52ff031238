//! `tilegemm layout`: published examples of CuTe to the character, every kernel of the families that have layouts, and the drawing.

use std::process::{Command, Output};

fn tilegemm(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tilegemm")).arg("layout").args(args).output().unwrap()
}

#[cfg(not(feature = "layout"))]
#[test]
fn a_build_without_layouts_names_the_feature() {
    let output = tilegemm(&["--list"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("build with the feature `layout`"), "{message}");
}

#[cfg(feature = "layout")]
mod with_layouts {
    use super::tilegemm;
    use candle_tilegemm::arch::DeviceInfo;
    use candle_tilegemm::family::KERNELS;
    use candle_tilegemm::kernel::{Math, Rejection};
    use candle_tilegemm::{F32Mode, Problem};
    use serde_json::Value;
    use std::path::Path;

    fn stdout(args: &[&str]) -> String {
        let output = tilegemm(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn view(name: &str, title: &str) -> Value {
        let entry: Value = serde_json::from_str(&stdout(&[name, "--json"])).unwrap();
        let views = entry["views"].as_array().unwrap();
        views.iter().find(|view| view["title"] == title).unwrap_or_else(|| panic!("{name} has no {title}")).clone()
    }

    fn assert_facts(view: &Value, expected: &[(&str, &str)]) {
        for (fact, value) in expected {
            assert_eq!(view["facts"][fact], *value, "{fact}");
        }
    }

    #[test]
    fn a_copy_of_16_bytes_a_thread_is_as_published() {
        let copy = view("copy_column_major", "tiles from global to shared memory");
        assert_facts(
            &copy,
            &[
                ("tiler", "(64,4)"),
                ("thread-value layout", "(32,8):(8,1)"),
                ("source partition", "((8,1),2,8,32):((1,0),64,4096,32768)"),
                ("destination partition", "((8,1),2,8):((1,0),64,512)"),
            ],
        );
        assert_eq!(copy["accesses"][0]["ways"], 1);
    }

    /// The tiles of A along K are the last mode of the source; the stages of shared memory are the last mode of the destination.
    #[test]
    fn the_copy_of_a_of_a_sgemm_is_as_published() {
        let copy = view("sgemm_copy_a", "A from global to shared memory");
        assert_facts(
            &copy,
            &[
                ("tiler", "(128,8)"),
                ("thread-value layout", "(256,4):(4,1)"),
                ("source partition", "((4,1),1,1,8):((1,0),0,0,2048)"),
                ("destination partition", "((4,1),1,1,3):((1,0),0,0,1024)"),
            ],
        );
    }

    #[test]
    fn an_elementwise_tiling_is_as_published() {
        let copy = view("elementwise_row_major", "tiles between global memory and registers");
        assert_facts(&copy, &[("tiler", "(16,256)"), ("thread-value layout", "((32,4),(8,4)):((128,4),(16,1))")]);
    }

    #[test]
    fn padding_removes_a_bank_conflict() {
        for (name, ways) in [("sgemm_copy_a_k_major", 8), ("sgemm_copy_a_k_major_padded", 1)] {
            let copy = view(name, "A from global to shared memory");
            assert_eq!(copy["accesses"][0]["ways"], ways, "{name}");
        }
    }

    /// The 16-byte pieces of a row of 128 bytes are xored with the row's number: PTX ISA, "128B swizzling mode".
    #[test]
    fn the_swizzle_of_a_k_major_operand_is_that_of_the_hardware() {
        let shared = view("sm90_gemm_bf16_nt_128x256x64_2x1_cooperative", "A in shared memory");
        let grid = &shared["grid"];
        assert_eq!((&grid["rows"], &grid["columns"]), (&8.into(), &64.into()));
        for row in 0..8 {
            for column in 0..64 {
                let offset = row * 64 + ((column / 8) ^ row) * 8 + column % 8;
                assert_eq!(grid["cells"][row * 64 + column], serde_json::json!([offset / 2 % 32, offset]));
            }
        }
    }

    /// Orders of accesses that the kernel chose to avoid conflicts: CuTe finds the conflict of the plain order, and none in the kernel's.
    #[test]
    fn the_orders_of_tf32_avoid_conflicts() {
        let nn = "sm90_tf32_f32_nn_256x128x32_1x2";
        for (name, title) in
            [(nn, "B in shared memory"), ("sm90_tf32_f32_nt_128x256x32_2x1", "the panels of D in shared memory")]
        {
            let shared = view(name, title);
            let accesses = shared["accesses"].as_array().unwrap();
            let ways = |word: &str| {
                accesses.iter().find(|access| access["by"].as_str().unwrap().contains(word)).unwrap()["ways"].clone()
            };
            assert_eq!((ways("would"), ways("odd")), (2.into(), 1.into()), "{name}: {title}");
        }
    }

    #[test]
    fn every_kernel_of_a_family_with_layouts_has_them() {
        let csrc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../csrc");
        let listed = stdout(&["--list"]);
        let listed: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
        let mut kernels = 0;
        for kernel in KERNELS.iter().filter(|kernel| csrc.join(kernel.family).join("layout.cu").exists()) {
            assert!(listed.contains(&kernel.name), "{}", kernel.name);
            let text = stdout(&[kernel.name]);
            for title in ["A in shared memory", "B in shared memory", "MMA: C in registers"] {
                assert!(text.contains(title), "{}: {title}", kernel.name);
            }
            // An order of accesses that the kernel avoids is told beside its own. The epilogue of sm80_gemm has one conflict: a thread has
            // eight neighbouring columns of D, in two loads, or four in f64.
            let known = ["would", "a thread loads four of eight numbers", "a thread loads two of eight numbers"];
            let is_known = |line: &&str| known.iter().any(|words| line.contains(words));
            let conflicts = text.lines().filter(|line| line.contains("a bank conflict") && !is_known(line));
            assert_eq!(conflicts.collect::<Vec<_>>(), Vec::<&str>::new(), "{}", kernel.name);
            assert!(text.contains("no bank conflict"), "{}", kernel.name);
            kernels += 1;
        }
        assert!(kernels > 0);
    }

    /// The launch function asks for the bytes that C++ computes; the dispatcher refuses a card by the bytes that Rust computes.
    #[test]
    fn rust_and_cpp_agree_on_the_shared_memory_of_a_block() {
        let mut compared = 0;
        for kernel in KERNELS.iter().filter(|kernel| kernel.family == "sm80_gemm") {
            let problem = Problem::dense(512, 512, 512, 1, kernel.layout, kernel.types.a);
            let f32_mode = if kernel.math == Math::Tf32 { F32Mode::Tf32 } else { F32Mode::Accurate };
            let problem = problem.with(|p| (p.d.format, p.f32_mode) = (kernel.types.d, f32_mode));
            // Without shared memory, except for the share of each block that belongs to the system.
            let mut card = DeviceInfo::by_name("a100").unwrap();
            (card.capability, card.model.shared_bytes) = (kernel.arch.capability, 1024);
            let Err(Rejection::SharedMemory { need, .. }) = kernel.supports(&problem, &card) else {
                panic!("{kernel} needs no shared memory for {problem}");
            };
            let bytes = view(kernel.name, "shared memory of a block");
            assert_facts(&bytes, &[("bytes", &need.to_string())]);
            compared += 1;
        }
        assert!(compared > 0);
    }

    #[test]
    fn a_drawing_has_every_cell() {
        let file = std::env::temp_dir().join(format!("tilegemm-layout-{}.svg", std::process::id()));
        stdout(&["copy_column_major", "--svg", file.to_str().unwrap()]);
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<rect x=").count(), 64 * 4);
        for thread in 0..32 {
            assert_eq!(svg.matches(&format!(">T{thread}<")).count(), 8, "values of thread {thread}");
        }
        // Row 63, column 3: the last value of the last thread.
        let cell = "<rect x=\"90\" y=\"1386\" width=\"30\" height=\"22\" fill=\"hsl(251 70% 84%)\"/>\
                    <text x=\"105\" y=\"1395\">T31</text><text x=\"105\" y=\"1404\">V7</text>";
        assert!(svg.contains(cell), "{}", svg.lines().rfind(|line| line.contains("T31<")).unwrap());
    }

    /// f16 and bf16 have the same layouts: the program describes one of them.
    #[test]
    fn a_kernel_of_another_type_of_the_same_size_names_the_described_one() {
        let [bf16, f16] = ["bf16", "f16"].map(|dtype| format!("sm90_gemm_{dtype}_nt_128x256x64_2x1_cooperative"));
        let shown = stdout(&[&f16]);
        assert!(
            shown.starts_with(&format!("{f16}\nthe layouts of {bf16}: types of one size have the same\n")),
            "{shown}"
        );
    }

    #[test]
    fn the_documentation_shows_what_the_command_prints_and_draws() {
        let page = include_str!("../../../docs/layout.md");
        let (_, example) = page.split_once("$ tilegemm layout copy_column_major\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        assert_eq!(
            stdout(&["copy_column_major"]),
            example,
            "docs/layout.md has another example: copy the left side into it"
        );

        let file = std::env::temp_dir().join(format!("tilegemm-layout-docs-{}.svg", std::process::id()));
        let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(root.join("docs/kernels.md")).unwrap();
        let commands = page.lines().filter_map(|line| line.strip_prefix("tilegemm layout ")?.split_once(" --svg "));
        let mut drawings = 0;
        for (what, drawing) in commands {
            let arguments = what.split(' ').chain(["--svg", file.to_str().unwrap()]);
            stdout(&arguments.collect::<Vec<_>>());
            let drawn = std::fs::read_to_string(&file).unwrap();
            let redo = format!("draw it again: tilegemm layout {what} --svg {drawing}");
            assert!(
                drawn == std::fs::read_to_string(root.join(drawing)).unwrap(),
                "{drawing} is another drawing; {redo}"
            );
            drawings += 1;
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(
            drawings,
            std::fs::read_dir(root.join("docs/layouts")).unwrap().count(),
            "every drawing has its command"
        );
    }

    #[test]
    fn a_name_without_layouts_is_refused() {
        for (name, expected) in
            [("nothing", "there is no kernel and no example nothing"), (KERNELS[0].name, "has no layouts of CuTe")]
        {
            let output = tilegemm(&[name]);
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2));
            assert!(message.contains(expected) && message.contains("--list"), "{message}");
        }
    }
}
