//! `qdiff compare`.

use super::args::{CompareArgs, RunArgs, SidesArgs};
use super::output::Output;
use super::{exit, run};
use crate::compare::compare;
use crate::runners::Spec;
use anyhow::{Result, bail};

/// With a model, as `run` judges two captures; without, only their distance.
pub(super) fn run(args: &CompareArgs) -> Result<u8> {
    if args.run.sides.prompt.model.is_some() {
        return run::run(&RunArgs {
            sides: SidesArgs {
                subject: Spec::Capture(args.a.clone()),
                reference: Spec::Capture(args.b.clone()),
                ..args.run.sides.clone()
            },
            ..args.run.clone()
        });
    }
    if args.run.sides.map.is_some() || !args.run.tolerance.is_empty() {
        bail!("--map and --tolerance need the model: name it with -m");
    }
    let output = Output::new(&args.run.output, 1)?;
    let store = args.run.sides.capture.memory.store();
    let code = output.tell(&compare(&args.a, &args.b, &store)?)?;
    Ok(if args.run.bisect && code == exit::INCOMPLETE { exit::SKIP } else { code })
}
