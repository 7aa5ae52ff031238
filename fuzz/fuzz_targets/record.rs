#![no_main]

#[allow(dead_code)] // a target for each reader
#[path = "../../cli/tests/cli/readers.rs"]
mod readers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    readers::record(bytes);
});
