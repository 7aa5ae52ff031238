//! A program, or with the configuration `library` a library that a host loads. The exit code has the definitions that calls reach.
#![no_std]
#![cfg_attr(not(library), no_main)]

#[cfg(uses)]
use ours as _;

#[cfg(calls_foreign)]
unsafe extern "C" {
    /// Of another library: passes the call on to moe_gemm_wmma.
    fn foreign(from: *mut i32);
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The definition that candle's call reaches, then the definition that the call of another library reaches, then whether ours says that
/// candle's calls arrive: two bits each.
#[unsafe(export_name = "main")]
#[cfg(not(library))]
extern "C" fn main() -> i32 {
    code()
}

#[unsafe(no_mangle)]
#[cfg(library)]
pub extern "C" fn run() -> i32 {
    code()
}

fn code() -> i32 {
    if nn::moe_gemm_gguf() != 1 {
        return 126;
    }
    #[allow(unused_mut)]
    let mut other = 0;
    #[cfg(calls_foreign)]
    // SAFETY: a place to write to.
    unsafe {
        foreign(&mut other);
    }
    #[cfg(asks)]
    let active = 1 + i32::from(ours::experts_are_active());
    #[cfg(not(asks))]
    let active = 0;
    nn::moe_gemm() | other << 2 | active << 4
}
