//! `qdiff report`.

use super::args::ReportArgs;
use super::exit;
use super::output::Output;
use super::say::{complain, say, terminal};
use super::setup::console;
use super::verify;
use crate::report::json::{self, Saved};
use crate::report::{Outcome, Report, Told, gaps};
use crate::tasks::judge::{Merged, merge};
use anyhow::{Result, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Shows saved reports; gives the exit code of the worst.
pub(super) fn run(args: &ReportArgs) -> Result<u8> {
    if let Some(path) = args.inputs.iter().find(|p| p.join("manifest.json").is_file()) {
        bail!("{0} is a capture, not a report: judge it with `qdiff run --subject capture:{0}`", path.display());
    }
    if let Some(path) = args.inputs.iter().find(|p| p.is_dir()) {
        bail!("{} is a folder: name the reports in it, which are JSON files", path.display());
    }
    if args.verify {
        return verify::run(args);
    }
    let saved = args.inputs.iter().map(|path| json::read(path)).collect::<Result<Vec<Saved>>>()?;
    if saved.iter().any(|saved| matches!(saved, Saved::Part(_))) {
        return parts(args, saved);
    }
    let output = Output::new(&args.output, args.inputs.len())?;
    one_batch(&args.inputs, &saved)?;
    let gaps = gaps(saved.iter().filter_map(Saved::place));
    let mut codes: Vec<u8> = gaps.iter().map(|_| exit::INCOMPLETE).collect();
    let mut reports: Vec<Report> = Vec::new();
    let mut absent = Vec::new();
    for saved in saved {
        match saved {
            Saved::Report(report) => {
                codes.push(exit::of(report.outcome));
                reports.push(*report);
            }
            Saved::Failure(failure) => {
                codes.push(exit::TROUBLE);
                complain(&failure.line());
                absent.push(failure.line());
            }
            Saved::Part(_) => bail!("parts of a verdict do not go together with reports"),
        }
    }
    for gap in gaps {
        let word = Outcome::Incomplete.word();
        say(&terminal().verdict(Outcome::Incomplete, word, &format!("{word}: {gap}")))?;
        absent.push(gap);
    }
    if !reports.is_empty() {
        let told: Vec<&dyn Told> = reports.iter().map(|r| r as &dyn Told).collect();
        output.serve(&told, &absent, None)?;
    }
    Ok(exit::worst(codes))
}

/// Puts parts of a verdict together, and shows it as the machine does that judges alone.
fn parts(args: &ReportArgs, saved: Vec<Saved>) -> Result<u8> {
    let output = Output::new(&args.output, 1)?;
    let parts = args.inputs.iter().zip(saved).map(|(path, saved)| match saved {
        Saved::Part(part) => Ok((path.as_path(), *part)),
        _ => bail!("{} is a report, and others are parts of one; give reports or parts, not both", path.display()),
    });
    let Merged { report, absent } = merge(parts.collect::<Result<_>>()?, console())?;
    let names: Vec<String> = absent.iter().map(ToString::to_string).collect();
    let (s, are, their) = if names.len() == 1 { ("", "is", "its") } else { ("s", "are", "their") };
    let gap = format!("the part{s} {} {are} not there: {their} stages count as not judged", names.join(", "));
    let absent: Vec<String> = absent.first().map(|_| gap).into_iter().collect();
    absent.iter().for_each(|gap| complain(gap));
    output.serve(&[&report], &absent, None)?;
    Ok(exit::worst(absent.iter().map(|_| exit::INCOMPLETE).chain([exit::of(report.outcome)])))
}

/// Refuses files of two batches in one folder: one is left from an earlier run.
fn one_batch(paths: &[PathBuf], saved: &[Saved]) -> Result<()> {
    let mut folders: HashMap<Option<&Path>, (&Path, &str)> = HashMap::new();
    for (path, saved) in paths.iter().zip(saved) {
        let Some(place) = saved.place() else { continue };
        let (first, batch) = *folders.entry(path.parent()).or_insert((path, &place.batch));
        if batch != place.batch {
            bail!(
                "{} and {} beside it are of different batches, of other prompts or of another model; remove the older files",
                first.display(),
                path.display()
            );
        }
    }
    Ok(())
}
