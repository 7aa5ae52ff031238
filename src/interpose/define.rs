//! Definitions of functions in place of other libraries'.
//!
//! The functions of one more library are a list for `define!`, with the arguments of each as a call. A function that its library still has is forwarded
//! where our kernels do not run the call (`vendor.rs`). The definition of a function in a static archive is not in the program: its calls have no way
//! back (`kernels.rs`).

/// Defines a function in place of a library's.
///
/// - `Cublas: fn name(...) -> c_int => contract`: of a shared library, by its name in `Library`. The expression is a `Contract` with the arguments.
/// - `declarations: fn name(...) => call`: of a static archive, by the module that declares its functions: a version with another signature does not
///   compile. The expression is a `Call` with the arguments.
macro_rules! define {
    ($(#[$doc:meta])* $library:ident: fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> c_int => $contract:expr) => {
        /// Replaces the library's own definition.
        ///
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the function of this name in the library's documentation.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            type Function = unsafe extern "C" fn($($type),*) -> std::ffi::c_int;
            static REAL: once_cell::sync::OnceCell<Function> = once_cell::sync::OnceCell::new();
            let forward = || {
                // SAFETY: the library's header declares this type.
                let find = || unsafe { $crate::launch::cublas::api::Library::$library.function(stringify!($name)) };
                match REAL.get_or_try_init(find) {
                    // SAFETY: the arguments are the caller's, unchanged.
                    Ok(function) => unsafe { function($($argument),*) },
                    Err(_) => $crate::interpose::vendor::STATUS_NOT_INITIALIZED,
                }
            };
            let call = $crate::interpose::vendor::Forwardable { contract: &$contract, forward: &forward };
            // SAFETY: the caller's promises are passed on.
            unsafe { $crate::interpose::symbol::enter(stringify!($name), call) }
        }
    };
    ($(#[$doc:meta])* $declarations:ident: fn $name:ident($($argument:ident: $type:ty),* $(,)?) => $call:expr) => {
        const _: unsafe extern "C" fn($($type),*) = $declarations::$name;

        /// Replaces the library's own definition.
        ///
        $(#[$doc])*
        ///
        /// # Safety
        /// The pointers are device memory of the current device, of the sizes that the library's declaration states, and `stream` is a stream of
        /// that device.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) {
            let call = $call;
            // SAFETY: the caller's promises are passed on.
            unsafe { $crate::interpose::symbol::enter(stringify!($name), call) }
        }
    };
}

/// Defines a function that says whether calls of a function of a static archive arrive: it makes the call in parentheses, with which the library's own
/// function reads and writes no memory. `anchor` is a second symbol of the object that has our definition.
///
/// rustc makes the linker look for each symbol that has no mangled name. Where another library with a function of that name comes first in the link, the
/// second symbol still takes the object into the program: the two definitions are an error of the link; with lto, ours wins. Without it, the calls would
/// reach the other library's function, whose arguments may be others.
#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
macro_rules! check {
    ($(#[$doc:meta])* fn $active:ident() by $declarations:ident::$name:ident($($argument:expr),*), anchor $anchor:literal) => {
        $(#[$doc])*
        pub fn $active() -> bool {
            let declared: unsafe extern "C" fn($($crate::interpose::define::inferred!($argument)),*) = $declarations::$name;
            // The compiler may not take the declaration for the definition of this module.
            let declared = std::hint::black_box(declared);
            // SAFETY: the library's own function reads and writes no memory, and ours does nothing.
            $crate::interpose::symbol::arrives(stringify!($name), || unsafe { declared($($argument),*) })
        }

        #[unsafe(export_name = $anchor)]
        static ANCHOR: $crate::interpose::define::Address = $crate::interpose::define::Address($name as *const ());
    };
}

#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
macro_rules! inferred {
    ($argument:expr) => {
        _
    };
}

/// The address of a function.
#[repr(transparent)]
#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
pub(super) struct Address(pub *const ());

// SAFETY: nothing reads the address.
#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
unsafe impl Sync for Address {}

pub(super) use define;
#[cfg(any(feature = "interpose-kernels", feature = "interpose-mistralrs"))]
pub(super) use {check, inferred};
