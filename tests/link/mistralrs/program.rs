//! A program on mistralrs. The exit code is the number of functions whose calls reach our definition.
#![no_std]
#![no_main]

#[cfg(first)]
use ours as _;

use mistral as engine;

#[cfg(last)]
use ours as _;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    let mut ours = 0;
    for (place, from) in engine::calls().enumerate() {
        match (from, place) {
            (1, _) => {}
            // The first one is mistralrs's alone.
            (2, 1..) => ours += 1,
            _ => return 126,
        }
    }
    ours
}
