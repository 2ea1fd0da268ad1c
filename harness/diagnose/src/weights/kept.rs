//! A file that was compared before, by this very program on this machine: what differs then is known to be nothing.

use super::WeightCheck;
use crate::hash;
use crate::machine::Machine;
use std::path::{Path, PathBuf};

/// Fewer values are compared in less time than is worth a place in the cache.
const LEAST: u64 = 1 << 25;

/// What `compare` finds: from the cache where it found before that nothing differs, in the file of this hash. It must
/// depend on nothing but that file and the code of this program; the contents of a device, or of a file without a hash,
/// depend on more.
pub fn once(model: &str, compare: impl FnOnce() -> WeightCheck) -> WeightCheck {
    match hash::of_program().zip(qdiff_engine::cache_folder()) {
        Some((program, cache)) => once_in(&cache.join("weights"), &[model, &program, &Machine::this().cpu], compare),
        None => compare(),
    }
}

fn once_in(folder: &Path, of: &[&str], compare: impl FnOnce() -> WeightCheck) -> WeightCheck {
    let kept: PathBuf = folder.join(&hash::sha256(of.join("\n").as_bytes())[..32]);
    if let Some(check) = read(&kept) {
        return check;
    }
    let check = compare();
    if !check.diverged() && check.not_finite.is_empty() && check.values >= LEAST {
        // Written beside and renamed: a reader never sees half a line. A cache that cannot be used is no error.
        let part = kept.with_extension(format!("{}.part", std::process::id()));
        let line = format!("{} {} equal\n", check.tensors, check.values);
        let _ = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&part, line))
            .and_then(|()| std::fs::rename(&part, &kept));
    }
    check
}

fn read(kept: &Path) -> Option<WeightCheck> {
    let text = std::fs::read_to_string(kept).ok()?;
    let (tensors, values) = text.strip_suffix(" equal\n")?.split_once(' ')?;
    let (tensors, values) = (tensors.parse().ok()?, values.parse().ok()?);
    Some(WeightCheck { tensors, values, kept: true, ..WeightCheck::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn only_the_same_file_and_program_are_not_compared_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let compared = Cell::new(0);
        let found = |values, unpaired: &[&str]| {
            compared.set(compared.get() + 1);
            let unpaired = unpaired.iter().map(|t| (*t).to_owned()).collect();
            WeightCheck { tensors: 7, values, unpaired, ..WeightCheck::default() }
        };
        let equal = || found(LEAST, &[]);
        let times = |of: &[&str], compare: &dyn Fn() -> WeightCheck| {
            compared.set(0);
            let checks = [once_in(folder.path(), of, compare), once_in(folder.path(), of, compare)];
            assert!(checks.iter().all(|c| c.tensors == 7 && c.values > 0));
            (compared.get(), checks[1].kept)
        };
        assert_eq!(times(&["file", "program", "machine"], &equal), (1, true));
        assert_eq!(times(&["file", "another program", "machine"], &equal), (1, true));
        assert_eq!(times(&["another file", "program", "machine"], &|| found(LEAST, &["a tensor"])), (2, false));
        assert_eq!(times(&["a small file", "program", "machine"], &|| found(LEAST - 1, &[])), (2, false));
        // What is no line of this cache is as good as none.
        for entry in std::fs::read_dir(folder.path()).expect("the folder") {
            std::fs::write(entry.expect("an entry").path(), "7 335").expect("written");
        }
        assert_eq!(times(&["file", "program", "machine"], &equal), (1, true));
    }
}
