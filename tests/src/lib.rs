//! What the end-to-end tests share: folders in which `qdiff` runs, models, and reading what it wrote.

pub mod card;
pub mod containers;
pub mod false_alarms;
pub mod folder;
pub mod fuzz;
pub mod markdown;
pub mod narrow;
pub mod npz;
pub mod report;
pub mod schema;
pub mod variants;

pub use folder::{Folder, Said, empty, files, folder, folder_with, real_folder};
pub use qdiff_synth as synth;
pub use report::Told;

use qdiff_engine::quant::GgmlType;
use std::path::PathBuf;
use std::process::Command;
use synth::Synth;

/// The binary of this name that belongs to this build.
///
/// # Panics
/// If it was not built: `cargo test` alone need not build it.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    test.ancestors().map(|folder| folder.join(name)).find(|p| p.is_file()).unwrap_or_else(|| {
        panic!("no {name} beside the tests: run `cargo build --release --workspace --bins` first, or ./scripts/test")
    })
}

/// Whether every case of the long tables runs: `scripts/test-all` sets `QDIFF_TESTS=all`, and `scripts/test` leaves it out.
pub fn whole() -> bool {
    std::env::var_os("QDIFF_TESTS").is_some_and(|asked| asked == "all")
}

/// One case in `every`, from the first on, or all of them where [`whole`]. A table that is cut so has its kinds spread over it.
pub fn share<T>(cases: impl IntoIterator<Item = T>, every: usize) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(if whole() { 1 } else { every })
}

/// A model whose weights both sides take as they are, so that rounding alone differs.
pub fn exact() -> Synth {
    Synth { weight_type: GgmlType::F32, ..Synth::default() }
}

/// The real default model, which `./scripts/test` fetches and names.
///
/// # Panics
/// If it is not named: a test that did not run must not pass.
pub fn real_model() -> PathBuf {
    std::env::var_os("QDIFF_MODEL").map(PathBuf::from).unwrap_or_else(|| {
        panic!("QDIFF_MODEL names no model: run ./scripts/test, or set it to the output of ./scripts/fetch-model")
    })
}

/// The folder of numpy.
///
/// # Panics
/// If there is none.
pub fn numpy() -> String {
    let numpy = Said::from(Command::new(markdown::root().join("scripts/fetch-numpy")).output().unwrap()).exits(0);
    numpy.stdout.trim().to_owned()
}

/// A path of Python with numpy and the package `qdiff_capture`.
///
/// # Panics
/// As [`numpy`].
pub fn python_path() -> String {
    format!("{}:{}", numpy(), markdown::root().join("tap/python").display())
}

/// Runs a Python script in `folder`, with numpy and the package `qdiff_capture` on its path.
///
/// # Panics
/// If there is no numpy, or the script fails.
pub fn python(folder: &Folder, script: &str) {
    let mut python = Command::new("python3");
    let output = python.current_dir(&**folder).env("PYTHONPATH", python_path()).args(["-c", script]).output();
    Said::from(output.expect("python3 starts")).exits(0);
}

/// The verdict of a screen: its first lines, unwrapped.
pub fn headline(screen: &str) -> String {
    let lines = screen.lines().take_while(|l| !l.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// A text with one space between its words, however its lines were wrapped.
pub fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A screen but for the lines that name the reports written, which end it.
pub fn without_reports(screen: &str) -> Vec<&str> {
    screen.lines().take_while(|l| !l.starts_with("report ")).collect()
}

/// Strikes out of a screen what is not the same on every machine: figures,
/// hashes, and the places that depend on them.
pub fn screen() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"sha256 [0-9a-f]{4}…[0-9a-f]{4}", "sha256 HASH");
    // Numbers, then the column gaps and the places that depend on them.
    settings.add_filter(r"-?\d+(\.\d+)?e-?\d+|-?\d+\.\d+|\binf\b", "#");
    settings.add_filter(r"(L\d\d )?\bp\d+( h\d+)?( s(tep)?\d+)?", "@");
    settings.add_filter(r"\[\d+\]:", "[#]:");
    settings.add_filter(r"\d+ %", "# %");
    settings.add_filter(r"\d+ wrong elements?", "# wrong elements");
    settings.add_filter(r"  +", "  ");
    settings.add_filter(r"(?m)^tokens .*\n( .*\n)*", "tokens …\n");
    settings.add_filter(r"(?m)^(element +in the worst row of \S+) .*\n( .*\n)*", "$1 …\n");
    settings.add_filter(r"(?m)  0  ", "  #  ");
    settings.add_filter(r"(?m) +$", "");
    // Where the largest distance is depends on the rounding of the machine.
    settings.add_filter(r"# (L\d\d\.)?\w+ @", "# @");
    settings.add_filter(r"# L\d\d\.\w+", "# @");
    settings
}
