//! The C ABI of the kernel library, as bindgen makes it of `csrc/bindings.h`.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code, missing_docs, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
