//! The hash of a kernel's code: it changes with what the kernel is made of, and with nothing else.

use candle_tilegemm_build::code;

use candle_tilegemm::family::KERNELS;

#[test]
fn comments_blanks_and_includes_are_no_code() {
    let same = [
        "int x = 1; // one\nint y;",
        "int x = 1;\n\n   int y; ",
        "/* a kernel\n   of ours */ int x = 1;\tint y;",
        "int x = 1; /**/ int y; // trailing",
        "#include <limits>\nint x = 1;\n  #include \"common/x.hpp\"\nint y;",
        "int x =\n    1;\nint y;",
        "int x=1;  \\\n  int y;",
    ];
    assert!(same.iter().all(|text| code::code(text) == "int x=1;int y;"), "{:?}", same.map(code::code));
    assert_eq!(code::code(r#"f("// no /* comment \" */", '"'); // c"#), r#"f("// no /* comment \" */",'"');"#);
    assert_eq!(code::code("x - -y < *z  int\n8"), "x- -y< *z int 8", "neighbours that would become one have a blank");
    assert_eq!(code::code("1'000; // it's\nx"), "1'000; // it's x", "an odd apostrophe ends with its line");
    assert_eq!(code::code("a // no end"), "a");
    assert_eq!(code::code("a /* no end"), "a");
}

#[test]
fn code_of_another_architecture_does_not_count() {
    let text = "void wait() {\n#if __CUDA_ARCH__ >= 900\n  asm();\n#endif\n}\n#ifdef X\nint x;\n#endif\n";
    let code_for = |capability| code::code(&code::for_capability(text, capability));
    assert_eq!(code_for(90), "void wait(){asm();}#ifdef X int x;#endif");
    assert_eq!(code_for(100), code_for(90));
    assert_eq!(code_for(80), "void wait(){}#ifdef X int x;#endif");
}

#[test]
fn the_hash_of_a_kernel_is_of_what_it_is_made_of() {
    let folder = std::env::temp_dir().join(format!("tilegemm-hash-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("tilegemm.h", "struct args;");
    write("common/kernel.hpp", "#include \"tilegemm.h\"\nint kernel;");
    write("common/ptx.hpp", "int ptx;");
    write("gemv/mma.hpp", "#include \"common/ptx.hpp\"\nint mma;");
    write("gemv/gemv.cu", "#include \"common/kernel.hpp\"\n#include \"gemv/mma.hpp\"\n#include TG_ROWS\nint gemv;");
    write("outer/outer.cu", "#include <limits>\n#include \"common/kernel.hpp\"\nint outer;");
    let hash = |row: &str, family: &str| {
        let digest = code::digest(&folder.join(family).join(format!("{family}.cu")), &folder, 90).unwrap();
        code::hash(row, Some(&digest))
    };
    let hashes = || [hash("row", "gemv"), hash("row", "outer"), code::hash("row", None)];
    let first = hashes();
    assert!(
        first.iter().all(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())),
        "{first:?}"
    );
    // Which of gemv, outer and the vendor's have another one after a change.
    let changed = |path: &str, text: &str| {
        let before = std::fs::read_to_string(folder.join(path)).unwrap();
        write(path, text);
        let after = hashes();
        write(path, &before);
        [0, 1, 2].map(|i| after[i] != first[i])
    };
    assert_eq!(changed("common/ptx.hpp", "int  ptx; // why"), [false; 3], "words");
    assert_eq!(changed("gemv/mma.hpp", "#include \"common/ptx.hpp\"\nint mma = 2;"), [true, false, false]);
    assert_eq!(changed("common/ptx.hpp", "int ptx = 2;"), [true, false, false], "only gemv includes it");
    assert_eq!(changed("outer/outer.cu", "#include \"common/kernel.hpp\"\nint outer = 2;"), [false, true, false]);
    assert_eq!(changed("common/kernel.hpp", "#include \"tilegemm.h\"\nint kernel = 2;"), [true, true, false]);
    assert_eq!(changed("tilegemm.h", "struct arguments;"), [true, true, false]);
    // A header has moved, and is included before another one.
    write("common/mma.hpp", "#include \"common/ptx.hpp\"\nint mma;");
    let moved = "#include \"common/mma.hpp\"\n#include \"common/kernel.hpp\"\n#include TG_ROWS\nint gemv;";
    assert_eq!(changed("gemv/gemv.cu", moved), [false; 3]);
    assert_ne!(hash("another row", "gemv"), first[0]);
    assert_ne!(code::hash("another row", None), first[2]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_kernel_has_a_hash_of_its_own() {
    let mut codes: Vec<&str> = KERNELS.iter().map(|kernel| kernel.code).collect();
    assert!(codes.iter().all(|code| code.len() == 16));
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), KERNELS.len());
}
