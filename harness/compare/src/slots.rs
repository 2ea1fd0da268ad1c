//! The positions, cache slots and block tables that an engine gave its kernels, against the rows of the run: which row has a
//! wrong position, and which one was written to a slot that another one still needs.

use crate::borne::Borne;
use crate::capture::{Fed, Plan, RowsSaid, Whose};
use crate::diagnose::pass::{Fit, Group, Numbers, PAGES, Pass, Position, When, conditions, earlier, rules, told};
use crate::number::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Wrong rows that are kept.
const KEPT: usize = 64;

/// What the comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlotsCheck {
    /// Positions, slots and entries of block tables that were looked at.
    pub checked: usize,
    /// Which of the three were captured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<String>,
    /// The first rows that are wrong, in the order in which they ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<WrongRow>,
    /// Wrong rows beyond these.
    #[serde(default)]
    pub more: usize,
    /// Whether the values of all sequences are right nonetheless, those of the caches among them: rows were copied, as an engine
    /// copies a shared block before it writes to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub harmless: bool,
    /// What the values of the run say of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Borne>,
    /// What became of them on other tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<Elsewhere>,
    /// The rule that gives all of them, if one does, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// Positions, slots and block tables of another run, and its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Elsewhere {
    /// They were compared.
    Tried {
        /// Tokens of the other run.
        tokens: usize,
        /// Whether they are wrong there, too.
        wrong: bool,
        /// What its values say of them.
        values: Borne,
    },
    /// There is none.
    Untried {
        /// Why.
        because: String,
    },
}

/// A row that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WrongRow {
    /// Its sequence.
    pub sequence: u32,
    /// Its place in the sequence, from 0 on.
    pub token: usize,
    /// The pass in which it is wrong.
    #[serde(default)]
    pub pass: usize,
    /// Whether the block tables name another, free slot of the row whose slot it is: the row may have been copied there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved: bool,
    /// How.
    pub how: WrongBy,
}

/// How a row is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum WrongBy {
    /// Its position is not its place in the sequence.
    Position {
        /// The position.
        position: i64,
    },
    /// It was written nowhere.
    NoSlot {
        /// The name of its slot.
        slot: i64,
    },
    /// It was written to a slot that another row is read from.
    Taken {
        /// The slot.
        slot: i64,
        /// The other row's sequence.
        owner: u32,
        /// Its place in that.
        of_token: usize,
    },
    /// It was taken from another sequence, whose slot holds another row by then.
    Cached {
        /// The slot.
        slot: i64,
        /// The sequence that it was taken from.
        from: u32,
        /// The sequence and place of the row that the slot holds.
        holds: Option<(u32, usize)>,
    },
    /// The block table of its sequence has another slot for it than it was written to.
    Table {
        /// The slot in the table.
        slot: i64,
        /// Where the row was written.
        written: i64,
        /// The sequence and place of the row that the slot holds, if one does.
        holds: Option<(u32, usize)>,
    },
}

impl WrongRow {
    /// In words.
    pub fn words(&self) -> String {
        let Self { sequence, token, how, .. } = self;
        let row = format!("token {token} of sequence {sequence}");
        match how {
            WrongBy::Position { position } => format!("{row} was given position {position}"),
            WrongBy::NoSlot { slot } => format!("{row} was given slot {slot}, so it was not written to the cache"),
            WrongBy::Taken { slot, owner, of_token } if owner == sequence => {
                format!("{row} was written to slot {slot}, which holds token {of_token} of the same sequence")
            }
            WrongBy::Taken { slot, owner, of_token } => {
                format!("{row} was written to slot {slot}, which belongs to sequence {owner} (its token {of_token})")
            }
            WrongBy::Cached { slot, from, holds } => {
                let holds =
                    holds.map_or_else(|| "another row".to_owned(), |(of, at)| format!("token {at} of sequence {of}"));
                format!("{row} is the cached one of sequence {from} in slot {slot}, which holds {holds} by then")
            }
            WrongBy::Table { slot, written, holds } => {
                let holds =
                    holds.map_or_else(String::new, |(of, at)| format!(", which holds token {at} of sequence {of}"));
                format!(
                    "the block table of sequence {sequence} has slot {slot} for token {token}{holds}; {row} was written to \
                         slot {written}"
                )
            }
        }
    }

    /// Whether another row of this sequence has to do with it.
    fn meets(&self, number: u32) -> bool {
        let other = match self.how {
            WrongBy::Taken { owner, .. } => Some(owner),
            WrongBy::Table { holds, .. } => holds.map(|(of, _)| of),
            _ => None,
        };
        other == Some(number)
    }
}

impl SlotsCheck {
    /// Holds what an engine said of the rows of each pass against the passes of `plan`. `None` where it said nothing.
    ///
    /// # Panics
    /// If there are fewer tokens than the plan has.
    pub fn of(plan: &Plan, tokens: &[u32], said: &[RowsSaid]) -> Option<Self> {
        let any = said.iter().any(|pass| pass.positions.is_some() || pass.slots.is_some());
        any.then(|| {
            let mut run = Run::of(plan, tokens);
            for (pass, (fed, said)) in plan.fed(tokens).iter().zip(said).enumerate() {
                run.pass(pass, fed, said);
            }
            let of = [
                ("positions", said.iter().any(|pass| pass.positions.is_some())),
                ("slots", said.iter().any(|pass| pass.slots.is_some())),
                ("entries of block tables", said.iter().any(|pass| !pass.tables.is_empty())),
            ];
            let rule = run.check.wrong.first().and_then(|row| match row.how {
                WrongBy::Position { .. } => rule_of_positions(plan, tokens, said, &run.check),
                WrongBy::Taken { .. } => rule_of_slots(plan, tokens, said, &run.check)
                    .or_else(|| rule_of_blocks(plan, tokens, said, &run.check)),
                WrongBy::Table { .. } => rule_of_blocks(plan, tokens, said, &run.check),
                _ => None,
            });
            run.check.rule = rule;
            run.check.of = of.into_iter().filter(|(_, any)| *any).map(|(name, _)| name.to_owned()).collect();
            run.check
        })
    }

    /// What of it is about a run of `plan`: its own wrong rows, and, where its stages are wrong, rows of others that took slots of
    /// its sequence.
    #[must_use]
    pub fn concerning(&self, plan: &Plan, run: Whose, stages_are_wrong: bool) -> Self {
        let concerns = |row: &&WrongRow| {
            plan.whose_in(row.pass, row.sequence) == Some(run) || stages_are_wrong && row.meets(run.sequence)
        };
        let wrong: Vec<_> = self.wrong.iter().filter(concerns).cloned().collect();
        Self { more: if wrong.is_empty() { 0 } else { self.more }, wrong, ..self.clone() }
    }

    /// Whether a row is wrong, and it is not that rows were copied.
    pub fn diverged(&self) -> bool {
        !self.wrong.is_empty() && !self.harmless
    }

    /// Notes whether the values of all sequences are right: slots of rows that may have been copied are harmless then.
    #[must_use]
    pub fn beside(self, values_are_right: bool) -> Self {
        let without_effect = self.values.is_some_and(|of| of.elements == 0);
        let harmless = values_are_right && without_effect && self.more == 0 && self.wrong.iter().all(|row| row.moved);
        Self { harmless: harmless && !self.wrong.is_empty(), ..self }
    }

    /// The outcome in words.
    pub fn words(&self) -> String {
        let Some(first) = self.wrong.first() else {
            let list = match &self.of[..] {
                [] => "captured positions, slots and entries of block tables".to_owned(),
                [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
                all => all.concat(),
            };
            let alone = self.of.len() == 1 && self.of[0] == "positions";
            let rest = if alone { "; slots and block tables were not captured" } else { "" };
            return format!("all {} {list} agree with the rows of the run{rest}", self.checked);
        };
        // Whose the rows are that were not kept is not known.
        let own = self.wrong.iter().filter(|row| self.more > 0 || row.sequence == first.sequence).count();
        let more = match (own - 1 + self.more, self.wrong.len() - own) {
            (0, 0) => String::new(),
            (1, 0) => "; 1 more row is wrong".to_owned(),
            (rest, 0) => format!("; {rest} more rows are wrong"),
            (0, others) => format!("; so are {} of other sequences", counted(others, "row")),
            (rest, others) => {
                format!("; so are {} of this sequence and {others} of others", counted(rest, "more row"))
            }
        };
        let harmless =
            if self.harmless { "; every value is right nonetheless: such rows may have been copied" } else { "" };
        let rule = self.rule.as_ref().map_or_else(String::new, |rule| format!("; all of them by one rule: {rule}"));
        first.words() + &more + &rule + harmless
    }

    /// How far they may be taken for the cause of the values that are wrong.
    pub fn standing(&self) -> Option<String> {
        let Borne { elements, otherwise, unwritten } = self.values.filter(|_| self.diverged())?;
        let own = match (elements, otherwise) {
            (0, 0) => return Some("no captured value of this sequence is wrong by it".to_owned()),
            (elements, 0) => {
                let slots = match unwritten {
                    0 => String::new(),
                    rows => format!(
                        " ({} in slots that this run did not write: zeros, or copies of another sequence's rows)",
                        counted(rows, "row")
                    ),
                };
                let elements = counted(elements, "wrong element");
                format!("in this run all {elements} are what they say{slots}, and no row is otherwise")
            }
            (_, rows) => return Some(format!("{} what they say: something else is wrong as well", are_not(rows))),
        };
        Some(match &self.elsewhere {
            Some(Elsewhere::Tried { tokens, wrong: true, values }) if values.holds() => format!(
                "confirmed on {}: they are wrong there too, and all {} of that run are what they say; {own}",
                counted(*tokens, "other token"),
                counted(values.elements, "wrong element")
            ),
            Some(Elsewhere::Tried { tokens, wrong, values }) => {
                let there = match (wrong, values.otherwise) {
                    (false, _) => "none of them is wrong there".to_owned(),
                    (true, 0) => "no captured value is wrong by them there".to_owned(),
                    (true, rows) => format!("{} what they say", are_not(rows)),
                };
                format!("{own}; {} do not tell more: {there}", counted(*tokens, "other token"))
            }
            Some(Elsewhere::Untried { because }) => format!("{own}; not tried on other tokens: {because}"),
            None => own,
        })
    }

    /// What is wrong first, in a word.
    pub fn what(&self) -> &'static str {
        let position = self.wrong.first().is_some_and(|row| matches!(row.how, WrongBy::Position { .. }));
        if position { "positions" } else { "slots" }
    }

    /// What to do about it.
    pub fn remedy(&self) -> Option<&'static str> {
        if self.harmless {
            return None;
        }
        Some(match self.wrong.first()?.how {
            WrongBy::Position { .. } => {
                "positions go on from the tokens that a sequence has: look at how they are counted behind a cached prefix, in \
                 chunks, and after tokens were taken back"
            }
            WrongBy::Table { .. } => {
                "the slot mapping and the block table disagree: look at how slots are computed from the table (block number, rows of a \
                 block, offset in it), how the table is filled, and which row of it a sequence is given"
            }
            WrongBy::Cached { .. } => "look at how the prefix cache learns that a block was given to another sequence",
            WrongBy::NoSlot { .. } | WrongBy::Taken { .. } => {
                "look at how the slot mapping is computed from the block table: block number, offset in the block, and whose row it is; \
                 and at how blocks are given out and freed"
            }
        })
    }
}

fn are_not(rows: usize) -> String {
    format!("{} {} not", counted(rows, "row"), if rows == 1 { "is" } else { "are" })
}

/// The rows of each pass, by sequence; none where the rows of a sequence are not side by side.
fn passes(plan: &Plan, tokens: &[u32], said: &[RowsSaid]) -> Option<Vec<Pass>> {
    let [mut have, mut taken_back, mut prefix] = [(); 3].map(|()| vec![0; plan.sequences()]);
    let (mut all, mut room) = (Vec::new(), 0);
    for (fed, said) in plan.fed(tokens).iter().zip(said) {
        for &(sequence, to) in &fed.backs {
            taken_back[sequence as usize] += have[sequence as usize] - to;
            have[sequence as usize] = to;
        }
        for &(_, to, length) in &fed.prefixes {
            (have[to as usize], prefix[to as usize]) = (length, length);
        }
        let mut groups: Vec<Group> = Vec::new();
        for &sequence in &said.sequences {
            let known = groups.iter().position(|group| group.sequence == sequence);
            match known {
                Some(at) if at + 1 == groups.len() => groups[at].rows += 1,
                Some(_) => return None,
                None => groups.push(Group {
                    sequence,
                    first: have[sequence as usize],
                    rows: 1,
                    taken_back: taken_back[sequence as usize],
                    room,
                    prefix: prefix[sequence as usize],
                }),
            }
        }
        groups.iter().for_each(|group| have[group.sequence as usize] += group.rows);
        if all.is_empty() {
            room = have.iter().copied().max().unwrap_or(0);
            groups.iter_mut().for_each(|group| group.room = room);
        }
        let slots = said.slots.as_ref();
        let slots = slots.and_then(|all| all.iter().map(|slot| usize::try_from(*slot).ok()).collect());
        all.push(Pass(groups, Numbers { slots, ..Numbers::default() }));
    }
    earlier(all.iter_mut());
    Some(all)
}

/// Passes with wrong rows that show a rule.
const SHOWN: usize = 2;

/// The rule that gives every position of a run, in words, if nothing else is wrong.
fn rule_of_positions(plan: &Plan, tokens: &[u32], said: &[RowsSaid], check: &SlotsCheck) -> Option<String> {
    let of_positions = check.wrong.iter().all(|row| matches!(row.how, WrongBy::Position { .. }));
    let wrong: HashSet<usize> = check.wrong.iter().map(|row| row.pass).collect();
    if check.more > 0 || !of_positions || wrong.len() < SHOWN {
        return None;
    }
    let passes = passes(plan, tokens, said)?;
    // As far off as the first one.
    let first = check.wrong.first()?;
    let by = match first.how {
        WrongBy::Position { position } => position - first.token as i64,
        _ => 0,
    };
    let all = Position::all().chain((by.abs() > 1).then_some(Position::By(by)));
    let mut fits = Vec::new();
    for position in all {
        let given: Vec<Vec<Option<usize>>> = passes.iter().map(|pass| position.of_all(pass)).collect();
        let fit = |condition: [When; 2]| {
            passes.iter().zip(said).zip(&given).all(|((pass, said), given)| {
                let Some(positions) = &said.positions else { return true };
                (0..pass.rows()).all(|r| {
                    let Some(at) = pass.at(r) else { return false };
                    let holds = condition.iter().all(|when| when.has(pass, at));
                    let own = Some(pass.0[at.0].first + at.1);
                    let other = given[r].filter(|_| holds).or(own);
                    other.is_some_and(|other| positions.get(r) == Some(&(other as i64)))
                })
            })
        };
        let before = fits.len();
        for condition in position.conditions() {
            // A rule with a condition counts only if none fits without.
            if condition[0] != When::Always && fits.len() > before {
                break;
            }
            if !fit(condition) {
                continue;
            }
            fits.push(Fit::new(format!("each row is given {position}"), told(condition)));
            if condition == [When::Always; 2] {
                break;
            }
        }
    }
    let words = rules(&fits.iter().collect::<Vec<_>>());
    (!words.is_empty()).then_some(words)
}

/// The rule that gives every slot that is another row's, in words.
fn rule_of_slots(plan: &Plan, tokens: &[u32], said: &[RowsSaid], check: &SlotsCheck) -> Option<String> {
    let passes = passes(plan, tokens, said)?;
    let in_line = passes.iter().zip(said).all(|(pass, said)| {
        let Some(slots) = &said.slots else { return true };
        let from_first = |r: usize| {
            let (group, number) = pass.at(r)?;
            Some(*slots.get(pass.first_of(group))? + number as i64)
        };
        (0..pass.rows()).all(|r| from_first(r) == slots.get(r).copied())
    });
    // A first row says nothing of what is counted from it.
    let behind = |row: &WrongRow| {
        let group = passes.get(row.pass)?.0.iter().find(|group| group.sequence == row.sequence)?;
        Some(row.token > group.first && matches!(row.how, WrongBy::Taken { .. }))
    };
    let all = check.more == 0 && check.wrong.iter().all(|row| behind(row) == Some(true));
    let words = "the slots of a sequence in a pass are counted on from that of its first row there, as if its pages lay one after another";
    (in_line && all).then(|| words.to_owned())
}

/// The rule that gives every slot from the block tables by another number of rows of a block than the cache has, in words.
fn rule_of_blocks(plan: &Plan, tokens: &[u32], said: &[RowsSaid], check: &SlotsCheck) -> Option<String> {
    let of_slots = |row: &WrongRow| matches!(row.how, WrongBy::Table { .. } | WrongBy::Taken { .. });
    let wrong: HashSet<usize> = check.wrong.iter().map(|row| row.pass).collect();
    if check.more > 0 || !check.wrong.iter().all(of_slots) || wrong.len() < SHOWN {
        return None;
    }
    let passes = passes(plan, tokens, said)?;
    // The slot of a row by the table, and the one that it is given.
    let both = |pass: usize, (group, number): (usize, usize)| -> Option<(usize, i64)> {
        let (of, said) = (&passes[pass], &said[pass]);
        let own = of.0[group];
        let by_table = *said.tables.get(&own.sequence)?.get(own.first + number)?;
        Some((usize::try_from(by_table).ok()?, *said.slots.as_ref()?.get(of.first_of(group) + number)?))
    };
    let mut fits = Vec::new();
    let sizes = PAGES.into_iter().flat_map(|rows| PAGES.into_iter().map(move |other| (rows, other)));
    for (rows, other) in sizes.filter(|(rows, other)| rows != other) {
        let mut changed = 0;
        let mut fit = |condition: [When; 2]| {
            changed = 0;
            passes.iter().enumerate().all(|(number, pass)| {
                (0..pass.rows()).all(|r| {
                    let Some((at, (slot, given))) = pass.at(r).and_then(|at| Some((at, both(number, at)?))) else {
                        return true;
                    };
                    let holds = condition.iter().all(|when| when.has(pass, at));
                    let expected = if holds { slot / rows * other + slot % rows } else { slot };
                    changed += usize::from(expected != slot);
                    given == expected as i64
                })
            }) && changed > 0
        };
        if let Some(condition) = conditions().find(|condition| fit(*condition)) {
            let rule =
                format!("a row is written to slot {other} b + i, for row i of block b, where blocks have {rows} rows");
            fits.push(Fit::new(rule, told(condition)));
        }
    }
    let words = rules(&fits.iter().collect::<Vec<_>>());
    (!words.is_empty()).then_some(words)
}

/// The state of a run.
struct Run {
    check: SlotsCheck,
    /// How many tokens of each sequence are needed in each pass or later ones.
    needed: Vec<Vec<usize>>,
    /// The slot of each token of each sequence, where it is known.
    tables: Vec<Vec<Option<i64>>>,
    /// The rows that were written to each slot.
    holders: HashMap<i64, Vec<(u32, usize)>>,
    /// Rows that were found wrong.
    known: HashSet<(u32, usize)>,
}

impl Run {
    fn of(plan: &Plan, tokens: &[u32]) -> Self {
        let mut later = vec![0; plan.sequences()];
        let mut before = |fed: &Fed| {
            fed.rows.iter().for_each(|row| later[row.sequence as usize] = usize::MAX);
            let needed = later.clone();
            // What is taken back later may be overwritten until then.
            for &(sequence, to) in &fed.backs {
                later[sequence as usize] = later[sequence as usize].min(to);
            }
            needed
        };
        let mut needed: Vec<_> = plan.fed(tokens).iter().rev().map(&mut before).collect();
        needed.reverse();
        let tables = vec![Vec::new(); plan.sequences()];
        Self { check: SlotsCheck::default(), needed, tables, holders: HashMap::new(), known: HashSet::new() }
    }

    fn pass(&mut self, pass: usize, fed: &Fed, said: &RowsSaid) {
        for &(sequence, to) in &fed.backs {
            self.tables[sequence as usize].truncate(to);
            self.holders.values_mut().for_each(|held| held.retain(|&(of, token)| of != sequence || token < to));
        }
        for &(from, to, length) in &fed.prefixes {
            let prefix = self.tables[from as usize][..length].to_vec();
            for (token, slot) in prefix.iter().enumerate() {
                let Some(slot) = *slot else { continue };
                let holders = self.holders.entry(slot).or_default();
                let (there, holds) = (holders.contains(&(from, token)), holders.last().copied());
                holders.push((to, token));
                if !there {
                    self.found(pass, to, token, WrongBy::Cached { slot, from, holds });
                }
            }
            self.tables[to as usize] = prefix;
        }
        for (row, &sequence) in said.sequences.iter().enumerate() {
            let token = self.tables[sequence as usize].len();
            if let Some(position) = said.positions.as_ref().map(|all| all[row]) {
                self.check.checked += 1;
                if position != token as i64 {
                    self.found(pass, sequence, token, WrongBy::Position { position });
                }
            }
            let slot = said.slots.as_ref().map(|all| all[row]);
            if let Some(slot) = slot {
                self.check.checked += 1;
                let by_table = said.tables.get(&sequence).and_then(|table| table.get(token)) == Some(&slot);
                self.written(pass, (sequence, token), slot, by_table);
            }
            self.tables[sequence as usize].push(slot.filter(|slot| *slot >= 0));
        }
        // Where the row is now whose slot was taken.
        for row in &mut self.check.wrong {
            let WrongBy::Taken { slot, owner, of_token } = row.how else { continue };
            let now = said.tables.get(&owner).and_then(|table| table.get(of_token));
            row.moved |= now.is_some_and(|now| *now != slot);
        }
        for (&sequence, table) in &said.tables {
            for token in 0..self.tables[sequence as usize].len() {
                let Some(written) = self.tables[sequence as usize][token] else { continue };
                self.check.checked += 1;
                let slot = table.get(token).copied().unwrap_or(-1);
                if slot != written && !self.known.contains(&(sequence, token)) {
                    let holds = self.living(pass, slot).find(|holder| *holder != (sequence, token));
                    self.found(pass, sequence, token, WrongBy::Table { slot, written, holds });
                }
            }
        }
    }

    /// A row is written to a slot, which its block table names or not.
    fn written(&mut self, pass: usize, (sequence, token): (u32, usize), slot: i64, by_table: bool) {
        if slot < 0 {
            return self.found(pass, sequence, token, WrongBy::NoSlot { slot });
        }
        let owner = self.living(pass, slot).next();
        // A row that was written to the wrong slot makes none wrong that has its own there.
        let strays = |(of, at): (u32, usize)| {
            let stray =
                |row: &WrongRow| (row.sequence, row.token) == (of, at) && matches!(row.how, WrongBy::Table { .. });
            by_table && self.check.wrong.iter().any(stray)
        };
        if let Some((owner, of_token)) = owner.filter(|owner| !strays(*owner)) {
            self.found(pass, sequence, token, WrongBy::Taken { slot, owner, of_token });
        }
        let holders = self.holders.entry(slot).or_default();
        holders.clear();
        holders.extend(owner.into_iter().chain([(sequence, token)]));
    }

    /// The rows in a slot that are needed.
    fn living(&self, pass: usize, slot: i64) -> impl Iterator<Item = (u32, usize)> {
        let holders = self.holders.get(&slot).into_iter().flatten();
        holders.copied().filter(move |(sequence, token)| *token < self.needed[pass][*sequence as usize])
    }

    fn found(&mut self, pass: usize, sequence: u32, token: usize, how: WrongBy) {
        self.known.insert((sequence, token));
        let moved = matches!(how, WrongBy::Table { slot: 0.., holds: None, .. });
        match self.check.wrong.len() < KEPT {
            true => self.check.wrong.push(WrongRow { sequence, token, pass, moved, how }),
            false => self.check.more += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows of a run that is as it should be: slots in blocks of `block`, shared prefixes in the blocks of whoever wrote them.
    fn right(plan: &Plan, block: usize) -> Vec<RowsSaid> {
        let tokens = vec![0; plan.tokens()];
        let (mut tables, mut taken): (Vec<Vec<i64>>, usize) = (vec![Vec::new(); plan.sequences()], 3);
        let mut pass = |(fed, order): (Fed, Vec<u32>)| {
            fed.backs.iter().for_each(|&(sequence, to)| tables[sequence as usize].truncate(to));
            for (from, to, length) in fed.prefixes {
                tables[to as usize] = tables[from as usize][..length].to_vec();
            }
            let mut said = RowsSaid { sequences: order, ..RowsSaid::default() };
            for &sequence in &said.sequences {
                let table = &mut tables[sequence as usize];
                let slot = match table.last() {
                    // A shared block is not written to again: a new one begins.
                    Some(last) if table.len() % block > 0 && said.slots.is_some() => last + 1,
                    _ => {
                        taken += block;
                        (taken * block) as i64
                    }
                };
                said.positions.get_or_insert_default().push(table.len() as i64);
                said.slots.get_or_insert_default().push(slot);
                table.push(slot);
            }
            said.tables = said.sequences.iter().map(|s| (*s, tables[*s as usize].clone())).collect();
            said
        };
        plan.fed(&tokens).into_iter().zip(plan.orders()).map(&mut pass).collect()
    }

    fn check(plan: &Plan, said: &[RowsSaid]) -> SlotsCheck {
        SlotsCheck::of(plan, &vec![0; plan.tokens()], said).expect("positions and slots are declared")
    }

    #[test]
    fn a_slot_of_another_sequence_is_named() {
        let plan: Plan = "7,5+1+17@0,1+1+1".parse().unwrap();
        let mut said = right(&plan, 4);
        assert!(!check(&plan, &said).diverged());
        let other = said[0].slots.as_ref().unwrap()[5];
        *said[2].slots.as_mut().unwrap().last_mut().unwrap() = other;
        let found = check(&plan, &said);
        assert_eq!(
            found.words(),
            format!("token 24 of sequence 2 was written to slot {other}, which belongs to sequence 0 (its token 5)")
        );
        assert_eq!(found.wrong.len(), 1, "its block table is not accused besides: {found:?}");
        // Whose slot it was is right, if its stages are.
        let concerns =
            |sequence: u32, wrong: bool| found.concerning(&plan, Whose { sequence, rollbacks: 0 }, wrong).diverged();
        assert!(concerns(2, false) && !concerns(0, false) && concerns(0, true) && !concerns(1, true));
    }

    #[test]
    fn positions_and_slots_of_one_rule_are_told_by_it() {
        let plan: Plan = "7,5+4,1+1,1+1".parse().unwrap();
        let mut said = right(&plan, 4);
        // Where each sequence has one row, both get the position of the longer one.
        for pass in &mut said[2..] {
            let positions = pass.positions.as_mut().unwrap();
            positions[1] = positions[0];
        }
        let rule = "each row is given the position of the first row of the pass, in passes in which every sequence has one row";
        let found = check(&plan, &said).rule.unwrap();
        assert!(found.starts_with(rule) && found.contains("the values fit each of these rules"), "{found}");
        // Another one that no rule gives.
        said[1].positions.as_mut().unwrap()[3] += 5;
        assert_eq!(check(&plan, &said).rule, None);
        // Sequence 1 has the page that lies behind the one of sequence 0; this has another one next.
        let plan: Plan = "6+3,4+1".parse().unwrap();
        let mut said = right(&plan, 8);
        let first = said[0].slots.as_ref().unwrap()[0];
        let theirs: Vec<i64> = (8..12).map(|slot| first + slot).collect();
        said[0].slots.as_mut().unwrap()[6..].copy_from_slice(&theirs[..3]);
        said[1].slots.as_mut().unwrap()[4] = theirs[3];
        said[0].tables.insert(1, theirs[..3].to_vec());
        said[1].tables.insert(1, theirs);
        assert_eq!(check(&plan, &said).rule, None);
        said[1].slots.as_mut().unwrap()[..4].copy_from_slice(&[6, 7, 8, 9].map(|slot| first + slot));
        let own = (0..8).map(|slot| first + slot).chain([900, 901]).collect();
        said[1].tables.insert(0, own);
        let rule = check(&plan, &said).rule;
        assert!(rule.as_deref().is_some_and(|rule| rule.contains("as if its pages lay one after another")), "{rule:?}");
    }

    #[test]
    fn slots_of_a_sequence_that_has_ended_are_free() {
        let plan: Plan = "4,0+4".parse().unwrap();
        let mut said = right(&plan, 4);
        let slots = said[0].slots.clone().unwrap();
        said[1].tables.insert(1, slots.clone());
        said[1].slots = Some(slots);
        assert!(!check(&plan, &said).diverged());
        // Where it goes on, they are not.
        let plan: Plan = "4,0+4,1+1".parse().unwrap();
        let mut said = right(&plan, 4);
        let slots = said[0].slots.clone().unwrap();
        said[1].tables.insert(1, slots.clone());
        said[1].slots = Some(slots);
        assert!(check(&plan, &said).words().contains("token 0 of sequence 1 was written to slot"));
    }

    /// A prefix whose slots were given to another sequence is the wrong one, and not who took the slots.
    #[test]
    fn a_prefix_of_evicted_rows_is_named() {
        let plan: Plan = "4,0+4,0+0+3@0:4".parse().unwrap();
        let mut said = right(&plan, 4);
        let slots = said[0].slots.clone().unwrap();
        said[1].tables.insert(1, slots.clone());
        said[1].slots = Some(slots.clone());
        let found = check(&plan, &said);
        let words = format!(
            "token 0 of sequence 2 is the cached one of sequence 0 in slot {}, which holds token 0 of sequence 1 by then",
            slots[0]
        );
        assert_eq!(found.words(), words + "; 3 more rows are wrong");
        assert!(found.wrong.iter().all(|row| row.sequence == 2), "{found:?}");
    }

    /// A sequence that was interrupted declares tokens as taken back when it goes on; its slots were free before.
    #[test]
    fn slots_of_tokens_that_are_taken_back_later_are_free() {
        for (back, right_words) in [("1~2", ""), ("1~1", "was written to slot")] {
            let plan: Plan = format!("4+4,0+2,{back}+1").parse().unwrap();
            let mut said = right(&plan, 4);
            let slots = said[0].slots.as_ref().unwrap()[2..4].to_vec();
            for (pass, said) in said.iter_mut().enumerate().skip(1) {
                let table = said.tables.get_mut(&1).unwrap();
                table[4..6].copy_from_slice(&slots);
                if pass == 1 {
                    said.slots = Some(slots.clone());
                }
            }
            let found = check(&plan, &said);
            assert!(found.words().contains(right_words) && found.diverged() != right_words.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn a_table_and_a_position_are_named() {
        let plan: Plan = "7,5+1+17@0:4,1+1+1".parse().unwrap();
        let (mut said, right) = (right(&plan, 4), right(&plan, 4));
        let wrong = right[1].tables[&0][8];
        said[1].tables.get_mut(&2).unwrap()[2] = wrong;
        let words = check(&plan, &said).words();
        let written = right[0].slots.as_ref().unwrap()[2];
        assert!(words.starts_with(&format!(
            "the block table of sequence 2 has slot {wrong} for token 2, which holds token 8 of sequence 0; token 2 of sequence 2 was \
             written to slot {written}"
        )), "{words}");
        said.clone_from(&right);
        said[1].positions.as_mut().unwrap()[6] = 0;
        assert_eq!(check(&plan, &said).words(), "token 4 of sequence 2 was given position 0");
        said.clone_from(&right);
        said[1].slots.as_mut().unwrap()[5] = -1;
        assert!(check(&plan, &said).words().contains("token 0 of sequence 1 was given slot -1"));
    }

    /// What is read off whole numbers is a cause only if the values follow from it, and confirmed only if they do so elsewhere.
    #[test]
    fn slots_are_confirmed_where_the_values_follow_from_them() {
        let plan: Plan = "7,5+1,1+1".parse().unwrap();
        let mut said = right(&plan, 4);
        *said[2].slots.as_mut().unwrap().last_mut().unwrap() = said[0].slots.as_ref().unwrap()[0];
        let found = check(&plan, &said);
        let standing = |of: (usize, usize), there: Option<(bool, usize, usize)>| {
            let values = |elements: usize, otherwise: usize| Borne { elements, otherwise, unwritten: 0 };
            let elsewhere = there.map(|(wrong, elements, otherwise)| Elsewhere::Tried {
                tokens: 20,
                wrong,
                values: values(elements, otherwise),
            });
            SlotsCheck { values: Some(values(of.0, of.1)), elsewhere, ..found.clone() }.standing().unwrap()
        };
        assert!(
            standing((64, 0), Some((true, 32, 0)))
                .starts_with("confirmed on 20 other tokens: they are wrong there too")
        );
        for (of, there, words) in [
            ((64, 0), None, "in this run all 64 wrong elements are what they say, and no row is otherwise"),
            ((64, 0), Some((false, 0, 0)), "20 other tokens do not tell more: none of them is wrong there"),
            ((64, 0), Some((true, 0, 0)), "no captured value is wrong by them there"),
            ((64, 0), Some((true, 32, 1)), "1 row is not what they say"),
            ((64, 2), Some((true, 32, 0)), "2 rows are not what they say: something else is wrong as well"),
            ((0, 0), Some((true, 32, 0)), "no captured value of this sequence is wrong by it"),
        ] {
            let said = standing(of, there);
            assert!(said.contains(words) && !said.contains("confirmed"), "{said}");
        }
    }

    /// An engine that copies a shared block before it writes to it has other slots for rows than those that they were written to.
    #[test]
    fn copied_rows_are_no_fault() {
        let plan: Plan = "7,5+1,1+1".parse().unwrap();
        let mut said = right(&plan, 4);
        let first = said[0].slots.as_ref().unwrap()[0];
        *said[2].slots.as_mut().unwrap().last_mut().unwrap() = first;
        // The report's overwritten row is not the one that the slots give.
        let of = |said: &[RowsSaid]| SlotsCheck {
            values: Some(Borne { otherwise: 1, ..Borne::default() }),
            ..check(&plan, said)
        };
        assert!(of(&said).beside(true).diverged(), "the table still names the slot");
        said[2].tables.get_mut(&0).unwrap()[0] = 1000;
        assert!(of(&said).beside(false).diverged());
        let copied = of(&said).beside(true);
        assert!(!copied.diverged() && copied.remedy().is_none(), "{copied:?}");
        assert!(
            copied.words().ends_with("; every value is right nonetheless: such rows may have been copied"),
            "{}",
            copied.words()
        );
        // A wrong position is an error even if it has no effect.
        said[1].positions.as_mut().unwrap()[0] += 1;
        assert!(of(&said).beside(true).diverged());
    }

    proptest! {
        /// A run that is as it should be is never accused; one slot that another living row has always is.
        #[test]
        fn one_wrong_slot_is_the_one_that_is_found(
            lengths in prop::collection::vec(prop::array::uniform3(1usize..6), 2..5), block in 1usize..5, which in any::<prop::sample::Index>(),
            other in any::<prop::sample::Index>(),
        ) {
            let passes: Vec<String> = lengths.iter().map(|of| of.map(|n| n.to_string()).join("+")).collect();
            let plan: Plan = passes.join(",").parse().unwrap();
            let mut said = right(&plan, block);
            prop_assert!(!check(&plan, &said).diverged());
            // A row of the last pass goes where a row of the first pass is.
            let slots = said[0].slots.clone().unwrap();
            let slot = slots[other.index(slots.len())];
            let last = said.last_mut().unwrap();
            let row = which.index(last.sequences.len());
            last.slots.as_mut().unwrap()[row] = slot;
            let (sequence, at) = (last.sequences[row], last.sequences[..row].iter().filter(|s| **s == last.sequences[row]).count());
            let before: usize = lengths[..lengths.len() - 1].iter().map(|of| of[sequence as usize]).sum();
            let found = check(&plan, &said);
            prop_assert_eq!((found.wrong[0].sequence, found.wrong[0].token), (sequence, before + at));
            let is_taken = matches!(found.wrong[0].how, WrongBy::Taken { slot: there, .. } if there == slot);
            prop_assert!(is_taken);
        }
    }
}
