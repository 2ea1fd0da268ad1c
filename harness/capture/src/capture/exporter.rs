//! Shapes that say what the exporter did, rather than the engine.

/// What to do about an array of the shape `given` where a stage of the shape `expected` should be: `; check the exporter: …`,
/// or nothing where its shape says nothing.
pub(super) fn remedy(given: &[usize], expected: &[usize]) -> String {
    let sorted = |shape: &[usize]| {
        let mut shape = shape.to_vec();
        shape.sort_unstable();
        shape
    };
    let count = |shape: &[usize]| shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let longer = || {
        let mut other = given.iter().zip(expected).enumerate().filter(|(_, (g, e))| g != e);
        match (given.len() == expected.len(), other.next(), other.next()) {
            (true, Some((axis, (g, e))), None) if g > e => Some((axis, *g, *e)),
            _ => None,
        }
    };
    let why = if given.split_first() == Some((&1, expected)) {
        "it has a batch axis of 1; leave that axis out, or name the array in a map, which drops the axis".to_owned()
    } else if given.len() == expected.len() + 1 && given.ends_with(expected) {
        format!("it holds a batch of {}; say in a map which of them, as in `ARRAY[0] = STAGE`", given[0])
    } else if given.len() == expected.len() && sorted(given) == sorted(expected) {
        "its axes are in another order; a map gives the order, as in `ARRAY = STAGE : 1,0,2`".to_owned()
    } else if count(given) == count(expected) && given.len() < expected.len() {
        format!(
            "it has several axes of the stage as one; write it as {expected:?}, or name it in a map, which splits the axis"
        )
    } else if let Some((axis, got, want)) = longer() {
        let rest = ":, ".repeat(axis);
        let repeated = (got % want == 0).then(|| {
            format!(
                ", or every {} of them, `[{rest}::{}]`, where each occurs so often",
                ordinal(got / want),
                got / want
            )
        });
        format!(
            "axis {axis} has {got} entries for {want}; say in a map which are the stage, as in `[{rest}0:{want}]`{}",
            repeated.unwrap_or_default()
        )
    } else {
        return String::new();
    };
    format!("; check the exporter: {why}")
}

fn ordinal(n: usize) -> String {
    let ending = match (n % 10, n % 100) {
        (1, h) if h != 11 => "st",
        (2, h) if h != 12 => "nd",
        (3, h) if h != 13 => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

#[cfg(test)]
mod tests {
    use super::remedy;

    #[test]
    fn shapes_that_say_what_was_done_get_a_remedy() {
        for (given, expected, words) in [
            (vec![1, 5, 8], vec![5, 8], "a batch axis of 1"),
            (vec![3, 5, 8], vec![5, 8], "a batch of 3"),
            (vec![4, 5, 2], vec![5, 4, 2], "in another order"),
            (vec![5, 8], vec![5, 4, 2], "of the stage as one"),
            (
                vec![5, 6, 2],
                vec![5, 2, 2],
                "axis 1 has 6 entries for 2; say in a map which are the stage, as in `[:, 0:2]`, or every 3rd",
            ),
            (vec![5, 9], vec![5, 8], "`[:, 0:8]`"),
        ] {
            let said = remedy(&given, &expected);
            assert!(said.starts_with("; check the exporter: ") && said.contains(words), "{said}");
        }
        assert_eq!(remedy(&[4, 8], &[5, 8]), "");
        assert_eq!(remedy(&[5, 7, 3], &[5, 8]), "");
    }
}
