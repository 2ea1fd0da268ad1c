//! Arguments of `qdiff report`.

use super::OutputArgs;
use clap::Args;
use std::path::PathBuf;

/// `qdiff report`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff report qdiff-report/haiku/report.json --report haiku.html
  qdiff report a.json b.json --report junit.xml
  qdiff report a.json b.json --digest results/cpu.json --title 'On the CPU'
  qdiff report results --report REPORT.md")]
pub struct ReportArgs {
    /// Reports that `run --json` wrote; or a folder of JSON results, told as one document
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Also write the figures of all of them as one small file, for a folder of results
    #[arg(long, value_name = "FILE")]
    pub digest: Option<PathBuf>,
    /// Heading of the digest
    #[arg(long, value_name = "TEXT", default_value = "Runs", requires = "digest")]
    pub title: String,
    /// Where they go
    #[command(flatten)]
    pub output: OutputArgs,
}
