//! The `qdiff` binary: arguments in, exit code out.

fn main() -> std::process::ExitCode {
    qdiff::cli::main()
}
