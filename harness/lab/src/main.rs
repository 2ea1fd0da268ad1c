//! The `qdiff-lab` binary: arguments in, exit code out.

fn main() -> std::process::ExitCode {
    qdiff::cli::program::<qdiff_lab::cli::Lab>()
}
