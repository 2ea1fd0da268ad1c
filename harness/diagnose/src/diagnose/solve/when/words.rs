//! Conditions in words.

use super::features::{
    AGAIN, AGE, ALL_ROWS, BEGAN, BEGINS, BEGUN, BEHIND, BESIDE, BEYOND, DECODED, DISTANCE, FED, FILLS, FROM_LAST,
    IN_PAGE, LAST_OF_SEVERAL, LATER, LEFT_OVER, LENGTH, LINE_OF_EXPERT, LOOKED, MOST, OF_PASS, PART_FIRST, ROLLED,
    SIGN, TURN,
};
use super::{Condition, Values};
use std::fmt;

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.feature.feature().name;
        // What is 0 or 1 has no other bounds than these.
        let flag =
            [BEGAN, BEGUN, AGAIN, BEYOND, IN_PAGE, FILLS, LAST_OF_SEVERAL].iter().any(|word| name.contains(word));
        let yes = match &self.values {
            Values::Is(yes) => Some(*yes == 1),
            Values::From(1) => Some(true),
            Values::UpTo(0) => Some(false),
            _ => None,
        };
        match &self.values {
            Values::Is(left) if name.contains(LEFT_OVER) => {
                let which = if *left == 1 { name.to_owned() } else { name.replace("left over after", "of") };
                let of_keys = name.starts_with("keys");
                write!(f, "{} the {which} of each part", if of_keys { "at" } else { "in" })
            }
            _ if flag && yes.is_some() => {
                write!(f, "{} the {name}", if yes == Some(true) { "in" } else { "but for" })
            }
            Values::Is(value) => f.write_str(&at(name, *value)),
            Values::From(low) => f.write_str(&from(name, *low)),
            Values::UpTo(high) => f.write_str(&up_to(name, *high)),
            Values::Rest(m, a, b) => f.write_str(&rest(name, *m, (*a, *b))),
            Values::Between(low, high) => f.write_str(&among(name, &format!("{low} to {high}"))),
            Values::Among(some) => {
                let list: Vec<String> = some.iter().map(ToString::to_string).collect();
                f.write_str(&among(name, &list.join(", ")))
            }
        }?;
        match self.unseen {
            Some((a, b)) if a == b => write!(f, " ({a} tells nothing)"),
            Some((a, b)) => write!(f, " ({a} to {b} tell nothing)"),
            None => Ok(()),
        }
    }
}

fn at(name: &str, value: i64) -> String {
    match (name, value) {
        ("decode step" | "step", 0) => "in the prefill only".to_owned(),
        (BEHIND, 0) => "but in the first pass behind a shared prefix".to_owned(),
        (BEHIND, _) => "in the first pass of a sequence behind a shared prefix".to_owned(),
        (FED, 0) => "but at the ids that were fed so far".to_owned(),
        (FED, _) => "at the ids that were fed so far".to_owned(),
        (LATER, 0) => "in the part that begins at position 0".to_owned(),
        (LATER, _) => "in parts that do not begin at position 0".to_owned(),
        (FROM_LAST, 0) => "in the last row of each part".to_owned(),
        (FROM_LAST, n) => format!("in the row {n} before the last of each part"),
        ("row of the part", n) => format!("in row {n} of the part"),
        ("row of the window", n) => format!("in row {n} of the window"),
        (OF_PASS, n) => format!("in row {n} of the pass"),
        (TURN, 0) => "in the first sequence of a pass".to_owned(),
        (TURN, 1) => "in the second sequence of a pass".to_owned(),
        (TURN, n) => format!("in the sequence behind {n} others in a pass"),
        (ROLLED, 0) => "until tokens are taken back".to_owned(),
        (ROLLED, 1) => "after tokens were taken back once".to_owned(),
        (ROLLED, n) => format!("after tokens were taken back {n} times"),
        (LOOKED, 0) => "in the cache as the prefill left it".to_owned(),
        (LOOKED, n) => format!("in the cache as step {n} left it"),
        (AGE, 0) => "in the rows that the step itself writes, which later steps find written".to_owned(),
        (AGE, n) => format!("in rows that were written {n} steps before"),
        (name, -1) if name.contains(SIGN) => format!("where the {} is negative", name.trim_end_matches("'s sign")),
        (name, 1) if name.contains(SIGN) => format!("where the {} is positive", name.trim_end_matches("'s sign")),
        (name, _) if name.contains(SIGN) => format!("where the {} is 0", name.trim_end_matches("'s sign")),
        (DISTANCE, 0) => "at the query's own key".to_owned(),
        (DISTANCE, n) => format!("at the key {n} before the query"),
        (LENGTH, n) => format!("in parts of {n} token{}", if n == 1 { "" } else { "s" }),
        (ALL_ROWS, n) => format!("in passes of {n} row{}", if n == 1 { "" } else { "s" }),
        (BESIDE, 0) => format!("but in {BESIDE}"),
        (BESIDE, _) => format!("in {BESIDE}"),
        (BEGINS, 0) => "in passes in which no sequence begins at position 0".to_owned(),
        (BEGINS, _) => "in passes in which a sequence begins at position 0".to_owned(),
        (MOST, 1) => "in passes that have one token of each sequence".to_owned(),
        (MOST, n) => format!("in passes that have {n} tokens of one sequence, and no more of another"),
        _ => format!("at {name} {value}"),
    }
}

fn from(name: &str, low: i64) -> String {
    match (name, low) {
        ("decode step", 1) => "in decode steps only".to_owned(),
        ("step", 1) => "in the steps after the prefill only".to_owned(),
        (FROM_LAST, 1) => "in all rows of each part but the last".to_owned(),
        (FROM_LAST, n) => format!("in all rows of each part but the last {n}"),
        (LENGTH, 2) => "in parts of several tokens".to_owned(),
        (LENGTH, n) => format!("in parts of {n} tokens and more"),
        (ALL_ROWS, n) => format!("in passes of {n} rows and more"),
        (MOST, 2) => "in passes that have several tokens of a sequence".to_owned(),
        (MOST, n) => format!("in passes that have {n} tokens and more of a sequence"),
        (DISTANCE, n) => format!("at keys {n} and more before the query"),
        ("row of the part", n) => format!("from row {n} of the part on"),
        (OF_PASS, n) => format!("from row {n} of the pass on"),
        (ROLLED, 1) => "after tokens were taken back".to_owned(),
        (ROLLED, n) => format!("after tokens were taken back {n} times or more"),
        (TURN, 1) => "in all sequences of a pass but the first".to_owned(),
        (TURN, n) => format!("in all sequences of a pass but the first {n}"),
        (LINE_OF_EXPERT, 1) => "in all lines of each expert of the part but the first".to_owned(),
        (LINE_OF_EXPERT, n) => format!("in the lines of each expert behind its first {n} of the part"),
        (PART_FIRST, n) => format!("in parts that begin at position {n} or later"),
        (AGE, 1) => "in rows of earlier steps, as a later step left them".to_owned(),
        (AGE, n) => format!("in rows that were written {n} steps before and earlier"),
        (LOOKED, n) => format!("in the cache as step {n} and later steps left it"),
        _ => format!("from {name} {low} on"),
    }
}

fn up_to(name: &str, high: i64) -> String {
    match (name, high) {
        (FROM_LAST, n) => format!("in the last {} rows of each part", n + 1),
        (LENGTH, 1) => "in parts of 1 token".to_owned(),
        (LENGTH, n) => format!("in parts of up to {n} tokens"),
        (ALL_ROWS, n) => format!("in passes of up to {n} rows"),
        (MOST, 1) => "in passes that have one token of each sequence".to_owned(),
        (MOST, n) => format!("in passes that have up to {n} tokens of each sequence"),
        (DISTANCE, n) => format!("at keys up to {n} before the query"),
        ("row of the part", n) => format!("up to row {n} of the part"),
        (OF_PASS, n) => format!("up to row {n} of the pass"),
        (ROLLED, 0) => "until tokens are taken back".to_owned(),
        (TURN, 0) => "in the first sequence of a pass".to_owned(),
        (TURN, n) => format!("in the first {} sequences of a pass", n + 1),
        (LINE_OF_EXPERT, 0) => "in the first line of each expert of the part".to_owned(),
        (LINE_OF_EXPERT, n) => format!("in the first {} lines of each expert of the part", n + 1),
        (PART_FIRST, n) => format!("in parts that begin at position {n} or before"),
        (AGE, n) => format!("in rows that were written up to {n} steps before"),
        (LOOKED, 0) => "in the cache as the prefill left it".to_owned(),
        (LOOKED, n) => format!("in the cache as the steps up to {n} left it"),
        _ => format!("up to {name} {high}"),
    }
}

/// Values in a list, or from one to another.
fn among(name: &str, list: &str) -> String {
    match name {
        FROM_LAST => format!("in the rows {list} before the last of each part"),
        "row of the part" => format!("in rows {list} of the part"),
        OF_PASS => format!("in rows {list} of the pass"),
        LENGTH => format!("in parts of {list} tokens"),
        ALL_ROWS => format!("in passes of {list} rows"),
        DISTANCE => format!("at the keys {list} before the query"),
        LOOKED => format!("in the cache as steps {list} left it"),
        AGE => format!("in rows that were written {list} steps before"),
        "column of the head" => format!("at columns {list} of the head"),
        _ => format!("at {name}s {list}"),
    }
}

/// Values whose rest modulo m lies between two numbers.
fn rest(name: &str, m: i64, (a, b): (i64, i64)) -> String {
    let what = match name {
        FROM_LAST => "number of later rows in the part",
        LOOKED => "number of the step that left the cache so",
        DECODED => "the position of a decoded token",
        name => name,
    };
    match (m, a, b) {
        (2, 0, 0) => format!("where the {what} is even"),
        (2, 1, 1) => format!("where the {what} is odd"),
        _ if a == b => format!("where {what} mod {m} = {a}"),
        _ => format!("where {what} mod {m} is {a} to {b}"),
    }
}
