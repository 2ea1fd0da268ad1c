//! The lines of a map: which elements of which arrays of an engine are a stage.
//!
//! ```text
//! line   = NAME { choice } "=" STAGE [ ":" way { ";" way } ]
//! choice = "[" item { "," item } "]" | ".reshape(" extent { "," extent } ")"
//! item   = bound | [ bound ] ":" [ bound ] [ ":" step ] | "..." | table
//! bound  = integer | [ "-" ] "{T}" | [ "-" ] "{N}" | table
//! table  = NAME [ "[" item { "," item } "]" ]
//! way    = order of axes, "join" axis, "sum", "same"
//! ```
//!
//! `{L}` in a name is the layer's number; `{0..3}` and `{a,b}` mean several arrays, as in a shell.

use super::view::Choice;
use super::{Step, quoted};
use anyhow::{Context as _, Result, bail, ensure};
use std::ops::RangeInclusive;

/// Stands for the layer's number.
pub(super) const LAYER: &str = "{L}";
/// Stands for the number of this step's tokens.
const TOKENS: &str = "{T}";
/// Stands for the number of tokens so far.
const KEYS: &str = "{N}";

/// Most arrays that a stage is put together of.
const MOST_PARTS: usize = 1024;

/// Greatest depth of tables within tables.
const DEEPEST: usize = 4;

/// How several arrays become one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One after the other along an axis of theirs.
    Join(usize),
    /// Added: two partial sums.
    Sum,
    /// They are equal, and each is the stage.
    Same,
}

/// A line of a map.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// The arrays, with `{L}` in their names.
    pub(super) arrays: Vec<String>,
    /// What is taken of each.
    pub(super) taken: Vec<Taken>,
    /// The stage, without its layer.
    pub(super) stage: String,
    /// How they become one; one array alone needs none.
    pub(super) way: Option<Way>,
    /// Order in which the axes are to be taken; empty for as they are.
    pub(super) order: Vec<usize>,
    /// As the map says it.
    pub(super) said: String,
}

/// What is done to an array.
#[derive(Clone, Debug)]
pub(super) enum Taken {
    /// Other axes; `None` is the one that follows from the others.
    Reshape(Vec<Option<usize>>),
    /// Entries of its axes.
    Choose(Vec<Item>),
}

/// What is chosen along an axis.
#[derive(Clone, Debug)]
pub(super) enum Item {
    At(Bound),
    Slice(Option<Bound>, Option<Bound>, usize),
    Rest,
    /// A table that may be one entry or many.
    Table(Table),
}

/// A number in a choice.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    Number(i64),
    /// The step's tokens, or as many from the end.
    Tokens {
        negative: bool,
    },
    /// The tokens so far, or as many from the end.
    Keys {
        negative: bool,
    },
    Table(Table),
}

/// Entries of an array of integers that the engine dumps beside the others.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Its name, with `{L}` for the layer.
    pub(super) name: String,
    items: Vec<Item>,
}

/// Gives the entries of a table: its name, and what is chosen of it.
pub(super) type Lookup<'a> = &'a dyn Fn(&str, &[Choice]) -> Result<Vec<i64>>;

/// What the numbers of a choice are in a step of a layer.
pub(super) struct Scene<'a> {
    pub(super) step: &'a Step,
    pub(super) layer: Option<u16>,
    pub(super) lookup: Lookup<'a>,
}

/// `name` in this layer, whose number has so many digits at least: 1, or 2 as in qdiff's own names.
pub(super) fn in_layer(name: &str, layer: Option<u16>, digits: usize) -> String {
    layer.map_or_else(|| name.to_owned(), |layer| name.replace(LAYER, &format!("{layer:0digits$}")))
}

impl Rule {
    /// Reads a line.
    ///
    /// # Errors
    /// What is none, with what a right one looks like.
    pub(super) fn parse(line: &str) -> Result<Self> {
        let (theirs, ours) = line.split_once('=').with_context(|| format!("`{line}` is not THEIRS = OURS"))?;
        let (stage, ways) = ours.split_once(':').unwrap_or((ours, ""));
        let mut parser = Parser { rest: theirs.trim(), depth: 0 };
        let name = parser.name()?;
        let taken = parser.taken()?;
        ensure!(
            parser.rest.is_empty(),
            "`{}` after `{}` is nothing that can be taken of an array; write [..] or .reshape(..)",
            parser.rest,
            theirs.trim().strip_suffix(parser.rest).unwrap_or("").trim()
        );
        let (mut way, mut order) = (None, Vec::new());
        for word in ways.split(';').map(str::trim).filter(|w| !w.is_empty()) {
            let new = match word.split_once(char::is_whitespace) {
                Some(("join", axis)) => Some(Way::Join(
                    axis.trim()
                        .parse()
                        .ok()
                        .with_context(|| format!("`{word}` does not say along which axis; write join 1"))?,
                )),
                None if word == "sum" => Some(Way::Sum),
                None if word == "same" => Some(Way::Same),
                _ => None,
            };
            match new {
                Some(_) if way.is_some() => bail!("`{}` says twice how arrays become one", ways.trim()),
                Some(_) => way = new,
                None if order.is_empty() => order = axes_of(word)?,
                None => bail!("`{}` orders the axes twice", ways.trim()),
            }
        }
        let arrays = expanded(name)?;
        match way {
            None => ensure!(
                arrays.len() == 1,
                "`{name}` is {} arrays, and nothing says how they become one; write `: join AXIS`, `: sum` or `: same` \
                 after the stage",
                arrays.len()
            ),
            Some(_) => ensure!(
                arrays.len() > 1,
                "`{name}` is one array; to put several together, name all of them, as in rank{{0..3}}/{name}"
            ),
        }
        ensure!(
            way != Some(Way::Sum) || arrays.len() == 2,
            "the sum of {} arrays depends on the order in which the engine adds them, which nobody knows, and what reads \
             the sum would be judged on another; dump the sum, or leave the stage out: it is then checked as part of the next",
            arrays.len()
        );
        Ok(Self { arrays, taken, stage: stage.trim().to_owned(), way, order, said: quoted(line) })
    }

    /// Whether the array is the stage, in other brackets or another order of axes at most.
    pub(super) fn is_whole(&self) -> bool {
        self.taken.is_empty() && self.way.is_none()
    }

    /// The tables to look in.
    pub(super) fn tables(&self) -> Vec<&str> {
        fn bound<'a>(of: &'a Bound, all: &mut Vec<&'a str>) {
            if let Bound::Table(table) = of {
                add(table, all);
            }
        }
        fn add<'a>(table: &'a Table, all: &mut Vec<&'a str>) {
            all.push(&table.name);
            table.items.iter().for_each(|i| item(i, all));
        }
        fn item<'a>(of: &'a Item, all: &mut Vec<&'a str>) {
            match of {
                Item::At(at) => bound(at, all),
                Item::Slice(from, to, _) => from.iter().chain(to).for_each(|b| bound(b, all)),
                Item::Table(table) => add(table, all),
                Item::Rest => {}
            }
        }
        let mut all = Vec::new();
        for taken in &self.taken {
            if let Taken::Choose(items) = taken {
                items.iter().for_each(|i| item(i, &mut all));
            }
        }
        all
    }
}

impl Item {
    pub(super) fn choice(&self, scene: &Scene<'_>) -> Result<Choice> {
        Ok(match self {
            Self::At(bound) => Choice::At(bound.number(scene)?),
            Self::Slice(from, to, step) => {
                let number = |b: &Option<Bound>| b.as_ref().map(|b| b.number(scene)).transpose();
                Choice::Slice(number(from)?, number(to)?, *step)
            }
            Self::Rest => Choice::Rest,
            Self::Table(table) => match (table.entries(scene)?, table.is_one()) {
                (one, true) if one.len() == 1 => Choice::At(one[0]),
                (entries, _) => Choice::Rows(entries),
            },
        })
    }
}

impl Bound {
    fn number(&self, scene: &Scene<'_>) -> Result<i64> {
        let signed = |count: usize, negative: bool| if negative { -(count as i64) } else { count as i64 };
        Ok(match self {
            Self::Number(n) => *n,
            Self::Tokens { negative } => signed(scene.step.rows(), *negative),
            Self::Keys { negative } => signed(scene.step.keys(), *negative),
            Self::Table(table) => match table.entries(scene)?[..] {
                [one] => one,
                ref all => bail!("`{}` gives {} numbers where one is needed", table.name, all.len()),
            },
        })
    }
}

impl Table {
    fn entries(&self, scene: &Scene<'_>) -> Result<Vec<i64>> {
        let choices = self.items.iter().map(|i| i.choice(scene)).collect::<Result<Vec<_>>>()?;
        let named = |digits| (scene.lookup)(&in_layer(&self.name, scene.layer, digits), &choices);
        named(1).or_else(|error| named(2).map_err(|_| error))
    }

    /// Whether single entries are chosen of it along every axis that is named.
    fn is_one(&self) -> bool {
        !self.items.is_empty() && self.items.iter().all(|i| matches!(i, Item::At(_)))
    }
}

/// Reads from the front of a text.
struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, word: &str) -> bool {
        let rest = self.rest.trim_start();
        rest.strip_prefix(word).map(|rest| self.rest = rest).is_some()
    }

    /// An array's name: up to what is taken of it.
    fn name(&mut self) -> Result<&'a str> {
        let text = self.rest.trim_start();
        let mut braces = 0;
        let stops = text.char_indices().find(|&(at, c)| {
            match c {
                '{' => braces += 1,
                '}' => braces -= 1,
                _ => {}
            }
            let ends = if self.depth == 0 { "[" } else { "[]:" };
            ends.contains(c) || self.depth > 0 && braces == 0 && c == ',' || text[at..].starts_with(".reshape(")
        });
        let (name, rest) = text.split_at(stops.map_or(text.len(), |(at, _)| at));
        self.rest = rest;
        let name = name.trim_end();
        ensure!(!name.is_empty(), "`{text}` does not begin with the name of an array");
        Ok(name)
    }

    fn taken(&mut self) -> Result<Vec<Taken>> {
        let mut all = Vec::new();
        loop {
            all.push(if self.eat(".reshape(") {
                let (inside, rest) = self.rest.split_once(')').context("`.reshape(` has no `)`")?;
                self.rest = rest;
                let extent = |e: &str| match e.trim() {
                    "-1" => Some(None),
                    e => e.parse().ok().filter(|n| *n > 0).map(Some),
                };
                let extents: Option<Vec<Option<usize>>> = inside.split(',').map(extent).collect();
                let extents = extents.filter(|e| e.iter().filter(|e| e.is_none()).count() < 2);
                Taken::Reshape(
                    extents.with_context(|| format!("`({inside})` is no shape such as (-1, 2, 64), one -1 at most"))?,
                )
            } else if self.eat("[") {
                Taken::Choose(self.items()?)
            } else {
                return Ok(all);
            });
        }
    }

    fn items(&mut self) -> Result<Vec<Item>> {
        self.depth += 1;
        ensure!(self.depth <= DEEPEST, "tables are nested more than {DEEPEST} deep");
        let mut items = Vec::new();
        loop {
            items.push(self.item()?);
            if self.eat("]") {
                self.depth -= 1;
                return Ok(items);
            }
            ensure!(self.eat(","), "`{}` should be `,` or `]`", self.rest);
        }
    }

    fn item(&mut self) -> Result<Item> {
        if self.eat("...") {
            return Ok(Item::Rest);
        }
        let from = self.bound()?;
        if !self.eat(":") {
            return Ok(match from.with_context(|| format!("`{}` chooses nothing", self.rest))? {
                Bound::Table(table) => Item::Table(table),
                bound => Item::At(bound),
            });
        }
        let to = self.bound()?;
        let step = if self.eat(":") {
            let step = match self.bound()? {
                Some(Bound::Number(n)) => usize::try_from(n).ok().filter(|n| *n > 0),
                _ => None,
            };
            step.context("the step of a slice must be a number above 0")?
        } else {
            1
        };
        Ok(Item::Slice(from, to, step))
    }

    fn bound(&mut self) -> Result<Option<Bound>> {
        let text = self.rest.trim_start();
        let (negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        for (symbol, bound) in [(TOKENS, Bound::Tokens { negative }), (KEYS, Bound::Keys { negative })] {
            if let Some(rest) = unsigned.strip_prefix(symbol) {
                self.rest = rest;
                return Ok(Some(bound));
            }
        }
        let digits = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
        if digits > 0 {
            let (number, rest) = unsigned.split_at(digits);
            self.rest = rest;
            let number: i64 = number.parse().ok().with_context(|| format!("{number} is more than any array has"))?;
            return Ok(Some(Bound::Number(if negative { -number } else { number })));
        }
        if text.is_empty() || text.starts_with([':', ',', ']']) {
            return Ok(None);
        }
        ensure!(!negative, "`{text}` is no number");
        let name = self.name()?.to_owned();
        let items = if self.eat("[") { self.items()? } else { Vec::new() };
        Ok(Some(Bound::Table(Table { name, items })))
    }
}

/// The names that braces in a name expand to; the layer's braces stay.
fn expanded(name: &str) -> Result<Vec<String>> {
    let mut done = vec![String::new()];
    let mut rest = name;
    while let Some(open) = rest.find('{') {
        let close = rest[open..].find('}').with_context(|| format!("`{name}` has a brace that is not closed"))? + open;
        let inside = &rest[open + 1..close];
        let choices: Vec<String> = if rest[open..=close] == *LAYER {
            vec![LAYER.to_owned()]
        } else if let Some(range) = range(inside) {
            ensure!(range.end() - range.start() < MOST_PARTS, "`{{{inside}}}` is more than {MOST_PARTS} arrays");
            range.map(|n| n.to_string()).collect()
        } else {
            ensure!(
                inside.contains(','),
                "`{{{inside}}}` in a name is no {LAYER}, no range such as {{0..3}} and no list such as {{0,2}}"
            );
            inside.split(',').map(|w| w.trim().to_owned()).collect()
        };
        let before = &rest[..open];
        done = done.iter().flat_map(|d| choices.iter().map(move |c| format!("{d}{before}{c}"))).collect();
        ensure!(done.len() <= MOST_PARTS, "`{name}` is more than {MOST_PARTS} arrays");
        rest = &rest[close + 1..];
    }
    done.iter_mut().for_each(|d| d.push_str(rest));
    Ok(done)
}

/// `0..3`, both included.
fn range(text: &str) -> Option<RangeInclusive<usize>> {
    let (from, to) = text.split_once("..")?;
    let (from, to) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
    (from <= to).then_some(from..=to)
}

/// Reads `1,0,2`: a permutation.
fn axes_of(text: &str) -> Result<Vec<usize>> {
    let axes: Option<Vec<usize>> = text.split(',').map(|a| a.trim().parse().ok()).collect();
    let axes = axes
        .with_context(|| format!("`{text}` is not an order of axes such as 1,0,2, nor `join AXIS`, `sum` or `same`"))?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    ensure!(sorted.iter().copied().eq(0..axes.len()), "`{text}` does not name each axis once, from 0 on");
    Ok(axes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_of_axes_are_permutations() {
        assert_eq!(axes_of(" 1, 0,2").unwrap(), [1, 0, 2]);
        for bad in ["1,2", "0,0", "x", "0,,1"] {
            assert!(axes_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn braces_are_those_of_a_shell() {
        assert_eq!(expanded("r{0..2}/x.{L}").unwrap(), ["r0/x.{L}", "r1/x.{L}", "r2/x.{L}"]);
        assert_eq!(expanded("{a,b}{0,2}").unwrap(), ["a0", "a2", "b0", "b2"]);
        for bad in ["x{", "x{}", "x{3..1}", "x{0..99999}", "{0..99}{0..99}"] {
            assert!(expanded(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_are_read_to_their_end() {
        let rule = Rule::parse("k.{L}[tables.{L}[3, :{N}]].reshape(-1, 2, 64)[-{T}:, ::2, ...] = s : 1,0").unwrap();
        assert_eq!(rule.tables(), ["tables.{L}"]);
        assert_eq!((rule.taken.len(), rule.order.as_slice()), (3, [1, 0].as_slice()));
        assert!(!rule.is_whole() && Rule::parse("a.b/c = s : 1,0").unwrap().is_whole());
        for (bad, why) in [
            ("x[1 = s", "should be `,` or `]`"),
            ("x[] = s", "chooses nothing"),
            ("x[1]y = s", "after `x[1]` is nothing"),
            ("x[::0] = s", "a number above 0"),
            ("x[99999999999999999999] = s", "more than any array"),
            ("x.reshape(-1,-1) = s", "one -1 at most"),
            ("x{0..3} = s", "nothing says how they become one"),
            ("x = s : sum", "`x` is one array"),
            ("x{0..3} = s : sum", "the sum of 4 arrays"),
            ("x{0..1} = s : join", "nor `join AXIS`"),
            ("x{0..1} = s : join a", "along which axis"),
            ("x{0..1} = s : sum; same", "says twice"),
            ("x[-a] = s", "is no number"),
            ("[1] = s", "does not begin with the name"),
            ("x[a[b[c[d[0]]]]] = s", "more than 4 deep"),
        ] {
            let said = format!("{:#}", Rule::parse(bad).unwrap_err());
            assert!(said.contains(why), "{bad}: {said}");
        }
    }
}
