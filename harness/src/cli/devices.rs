//! `qdiff devices`.

use super::args::JsonArgs;
use super::exit;
use super::say::page;
use crate::runners::LLAMA;
use crate::tasks::devices::devices;
use anyhow::Result;

/// Lists what the engine can run on, and which runners that leaves.
pub(super) fn run(json: &JsonArgs) -> Result<u8> {
    json.check()?;
    let found = devices();
    page("cpu   always\n")?;
    for d in &found.cuda {
        let (major, minor) = d.capability;
        let memory = d.memory;
        page(&format!("cuda  {}: {}, compute capability {major}.{minor}, {memory} MiB\n", d.ordinal, d.name))?;
    }
    if let Some(why) = &found.no_cuda {
        page(&format!("cuda  none: {why}\n"))?;
    }
    page("\nengines\n")?;
    for runner in &found.runners {
        let lacks = runner.lacks.as_ref().map_or_else(String::new, |_| " (not here)".to_owned());
        let variant = found.llama_variant.filter(|_| runner.name == LLAMA.name);
        let variant = variant.map_or_else(String::new, |variant| format!(" (kernels: {variant})"));
        page(&format!("  {:<11} {}{variant}{lacks}\n", runner.name, runner.about))?;
    }
    page("\nformats of weights (as F32, F16 or BF16: the same values, in more memory and slower)\n")?;
    for runner in &found.runners {
        for (way, names) in &runner.formats {
            let names = if runner.formats.len() == 1 { "all".to_owned() } else { names.join(" ") };
            page(&format!("  {:<11} {way:<10} {names}\n", runner.name))?;
        }
    }
    json.write(&found)?;
    Ok(exit::MATCH)
}
