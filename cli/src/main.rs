//! The command `tilegemm`; the library of this package has the code.

fn main() -> std::process::ExitCode {
    tilegemm::main()
}
