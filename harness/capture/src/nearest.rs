//! Names that are close to one that does not exist.

/// How alike two names must be, from 0 to 1, for one to be meant by the other.
const ALIKE: f64 = 0.6;

/// Names shown at most.
const MOST: usize = 3;

/// The names of `known` that `wanted` may have meant, the nearest first: those that are few edits away, or contain it.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    let alike = |name: &str| match wanted.len() > 2 && name.contains(&wanted) {
        true => 1.0,
        false => strsim::normalized_damerau_levenshtein(&wanted, name).max(strsim::jaro_winkler(&wanted, name) - 0.2),
    };
    let mut near: Vec<(f64, &str)> = known.into_iter().map(|name| (alike(name), name)).collect();
    near.retain(|(alike, _)| *alike >= ALIKE);
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// `; did you mean …?` of the nearest names, or `; ` and `otherwise` where none is near.
pub fn hint<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>, otherwise: &str) -> String {
    let quoted: Vec<String> = nearest(wanted, known).iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => format!("; {otherwise}"),
        near => format!("; did you mean {}? {otherwise}", near.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["rope-base", "rope-pairing", "mask-missing", "qkv-bias-omitted", "lm-head-ld"];
        assert_eq!(nearest("rope-bsae", known)[0], "rope-base");
        assert_eq!(nearest("bias-omitted", known), ["qkv-bias-omitted"]);
        assert_eq!(nearest("mask_missing", known)[0], "mask-missing");
        assert!(nearest("no-such-bug", known).is_empty());
    }
}
