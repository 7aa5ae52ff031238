fn main() {
    let theirs = std::env::var("THEIRS").expect("THEIRS names the folder of libtheirs.a (theirs.sh)");
    println!("cargo:rerun-if-env-changed=THEIRS");
    println!("cargo:rustc-link-search=native={theirs}");
    println!("cargo:rustc-link-lib=static=theirs");
    println!("cargo:rustc-link-lib=dylib=cudart");
    println!("cargo:rustc-link-lib=dylib=stdc++");
}
