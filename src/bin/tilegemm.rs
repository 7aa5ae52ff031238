//! The command `tilegemm`; `src/cli` has the code.

fn main() -> std::process::ExitCode {
    candle_tilegemm::cli::main()
}
