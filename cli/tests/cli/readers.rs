//! The readers of text that comes from outside of the crate: files, and values of environment variables. Each function here reads any bytes and
//! uses what it has read as the crate does. mistakes.rs gives them files with mistakes, `fuzz/` what cargo-fuzz finds.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::internal::settings::ALL;
use candle_tilegemm::internal::suite;
use candle_tilegemm::internal::tuning::Tuning;
use candle_tilegemm::{Config, F32Mode, Format, Layout};
use candle_tilegemm_build::table;
use std::ffi::OsString;
use std::sync::LazyLock;

static H100: LazyLock<Dispatcher> = LazyLock::new(|| Dispatcher::hypothetical(DeviceInfo::h100()));

/// A reader by the name of what it reads: `true` where the bytes were taken for it.
pub type Reader = fn(&[u8]) -> bool;
pub const READERS: [(&str, Reader); 5] =
    [("kernels", kernels), ("tuning", tuning), ("suite", suite), ("record", record), ("setting", setting)];

/// A family.toml, which is the table of kernels.
pub fn kernels(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match table::parse("sm90_gemm", text) {
        Ok(_) => true,
        Err(error) => error.to_string().is_empty(),
    }
}

/// A measured table. What is read is written, and read again.
pub fn tuning(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(table) = Tuning::parse("a table", text) else { return false };
    let written = table.to_text();
    let again = Tuning::parse("a table", &written).expect("a table that was written is read");
    assert_eq!((again.entries(), again.to_text()), (table.entries(), written));
    // A table for another card is refused.
    if let Ok(dispatcher) = Dispatcher::hypothetical(DeviceInfo::h100()).with_tuning(table) {
        for entry in again.entries() {
            let key = &entry.key;
            let problem = candle_tilegemm::Problem::dense(entry.m[0], key.n, key.k, key.batch, key.layout, key.dtype);
            let _ = dispatcher.plan(&problem, Policy::default());
        }
    }
    true
}

/// A suite. Its products are planned.
pub fn suite(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(shapes) = suite::parse("a suite", text) else { return false };
    for shape in &shapes {
        let _ = H100.plan(&shape.problem(), Policy::default());
    }
    let written = suite::to_toml(&shapes);
    let again = suite::parse("a suite", &written).expect("a suite that was written is read");
    assert_eq!(suite::to_toml(&again), written);
    true
}

/// A record of `tilegemm bench` or `tilegemm errors`, with all that the command prints and draws of it.
pub fn record(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| tilegemm::draw_record(text).is_ok())
}

/// The value of an environment variable, and what a value may name: a kernel with a configuration, a mode, a format, a layout.
pub fn setting(bytes: &[u8]) -> bool {
    let lossy = String::from_utf8_lossy(bytes);
    let parsed = [
        Policy::force(&lossy).is_ok(),
        lossy.parse::<Config>().is_ok_and(|config| config.to_string() == lossy),
        lossy.parse::<F32Mode>().is_ok(),
        lossy.parse::<Format>().is_ok(),
        lossy.parse::<Layout>().is_ok(),
    ];
    // SAFETY: any bytes may come from the environment; on this platform they are an OsString's.
    let value = unsafe { OsString::from_encoded_bytes_unchecked(bytes.to_vec()) };
    let holders = |value: &OsString| ALL.iter().filter(|setting| setting.check_value(value.clone()).is_ok()).count();
    // Some variables hold any text.
    holders(&value) > holders(&"no variable asks for this".into()) || parsed.contains(&true)
}
