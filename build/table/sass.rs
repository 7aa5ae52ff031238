//! The tables `[[sass]]` of a family.toml: what tests/sass expects of the machine code of the family's device functions.

use serde::Deserialize;

/// What the machine code of one device function must be, in every instance of the function.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expected {
    /// The name of the `__global__` function.
    function: String,
    /// The archs that the entry is for; absent: all.
    #[serde(default)]
    arch: Vec<String>,
    /// A part of the mangled template arguments, for a function whose instances differ.
    #[serde(default)]
    of: String,
    /// The instruction that multiplies. The innermost loops with this instruction are the main loops; a function has at least one.
    main: Option<String>,
    /// Instructions that the function must have, by name and some of the modifiers: `LDG.128` is `LDG.E.EF.128`, too.
    #[serde(default)]
    needs: Vec<String>,
    /// Instructions that a main loop must have.
    #[serde(default)]
    main_needs: Vec<String>,
    /// The most accesses of local memory in a main loop; 0 unless the file says why.
    #[serde(default)]
    local: usize,
    /// The function loads before `griddepcontrol.wait`: the kernel before is the family's own and has waited itself.
    #[serde(default)]
    loads_early: bool,
    /// The most registers of a thread.
    registers: u32,
}

impl Expected {
    /// The entry as an expression of Rust.
    pub fn rust(&self, family: &str) -> String {
        let Self { function, arch, of, main, needs, main_needs, local, loads_early, registers } = self;
        let main = main.as_deref().unwrap_or_default();
        format!(
            "Expected {{ family: {family:?}, function: {function:?}, arch: &{arch:?}, of: {of:?}, main: {main:?}, \
             needs: &{needs:?}, main_needs: &{main_needs:?}, local: {local}, loads_early: {loads_early}, registers: {registers} }},\n"
        )
    }
}
