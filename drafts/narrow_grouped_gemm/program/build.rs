fn main() {
    println!("cargo:rustc-link-search=native=/tmp/theirs");
    println!("cargo:rustc-link-lib=static=theirs");
    println!("cargo:rustc-link-lib=dylib=cudart");
    println!("cargo:rustc-link-lib=dylib=stdc++");
}
