//! The passes of a run of several sequences: how many rows each of them has in which pass.

use super::passes::{MOST, Passes, in_other_run};
use super::{InPass, Step};
use anyhow::{Context as _, bail, ensure};
use qdiff_engine::cpu::Row;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

/// Most sequences.
const SEQUENCES: usize = 256;

/// What a pass feeds of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Its tokens; none where the sequence has no part in the pass.
    pub tokens: usize,
    /// What it takes back before the pass.
    pub back: Option<Back>,
    /// What is removed from its middle before the pass, after that.
    pub shift: Option<Shift>,
    /// The sequence that it begins with.
    pub prefix: Option<u32>,
    /// With how many tokens of it; all that it had before the pass where `None`.
    pub length: Option<usize>,
}

/// Tokens that are removed from the middle of a sequence. Those behind them have as much lower positions: their cached keys are
/// rotated again, by as many positions back, and their values stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// How many (`n_discard` in llama.cpp).
    pub tokens: usize,
    /// The position of the first of them: so many are kept before it (`n_keep`).
    pub from: usize,
}

impl Shift {
    /// Whether a sequence of so many tokens has them, and others behind them.
    fn fits(self, length: usize) -> bool {
        self.tokens > 0 && self.from.checked_add(self.tokens).is_some_and(|end| end < length)
    }

    /// The shift of a sequence of so many tokens that is as near to this one as can be.
    fn near(self, length: usize) -> Option<Self> {
        let from = self.from.min(length.checked_sub(2)?);
        Some(Self { from, tokens: self.tokens.min(length - 1 - from) })
    }
}

/// Tokens that a sequence takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// The last ones, so many: a draft of which that much was rejected.
    Last(usize),
    /// All of them: it ends, and its slots are free.
    All,
}

/// Passes as people write them. In `7,5+1+17@0` the first pass feeds 7 tokens of sequence 0. The second pass feeds 5 more of
/// sequence 0, one of sequence 1 and 17 of sequence 2, which begins with what sequence 0 had before (its 7 tokens). With
/// `17@0:4` it begins with the first 4 of these. In `9,5,1~4` the last 4 tokens are taken back before the third pass. With
/// `1~all` all of them are: the sequence begins anew. In `9,5-4:2` the 4 tokens from position 2 on are removed before the second
/// pass, and those behind them move down (a context shift).
///
/// What a sequence is after it took tokens back is a run of its own: what it had is judged, and what it has then is judged as
/// if the tokens that were taken back had never been. Such runs have the numbers after those of the sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Plan(pub Vec<Vec<Share>>);

/// A pass that runs: sequences that take tokens back, sequences that are shifted, sequences that begin with a prefix, and rows; in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fed {
    /// Which sequence goes back, and to how many tokens.
    pub backs: Vec<(u32, usize)>,
    /// Which sequence is shifted, and how.
    pub shifts: Vec<(u32, Shift)>,
    /// Whose prefix, which sequence begins with it, and its length.
    pub prefixes: Vec<(u32, u32, usize)>,
    /// The rows of all sequences, one sequence after another.
    pub rows: Vec<Row>,
}

/// What a run is of: a sequence, from when on it had taken tokens back so many times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Whose {
    /// The sequence, from 0 on.
    #[serde(default)]
    pub sequence: u32,
    /// How often it had taken tokens back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rollbacks: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Whose {
    /// What it is called where `own` is what is looked at.
    pub fn beside(&self, own: Self) -> String {
        match self.sequence == own.sequence && self.rollbacks < own.rollbacks {
            true => format!("sequence {} before rollback {}", self.sequence, self.rollbacks + 1),
            false => self.to_string(),
        }
    }

    /// The first sequence before it takes tokens back, which has no number in words.
    pub fn is_first(&self) -> bool {
        *self == Self::default()
    }
}

impl Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sequence {}", self.sequence)?;
        if self.rollbacks > 0 { write!(f, " after rollback {}", self.rollbacks) } else { Ok(()) }
    }
}

/// What a pass feeds of a run.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// What the run is of.
    whose: Whose,
    /// The run.
    run: usize,
    /// The run that it begins with, and with how many tokens of it.
    begins: Option<(usize, usize)>,
    /// Tokens that it is fed.
    tokens: usize,
    /// What is removed from its middle before.
    shift: Option<Shift>,
}

impl Plan {
    /// Tokens that are fed in all.
    pub fn tokens(&self) -> usize {
        self.0.iter().flatten().fold(0, |sum, share| sum.saturating_add(share.tokens))
    }

    /// Plans like this one with other numbers of tokens, by [`in_other_run`], `by` places on. The first one has other lengths of
    /// shared prefixes and of what is taken back, too: what depends on such a length comes apart from what does not. All of a
    /// prefix and all of a draft stay all of it, and a part stays a part.
    pub fn like(&self, by: usize) -> [Self; 2] {
        [self.alike(by, true), self.alike(by, false)]
    }

    /// The first of the plans like this one, with passes more: decode steps of all sequences, short and long parts beside decode steps,
    /// and parts alone. They show under which condition something holds that this plan leaves open. `None` if a sequence has
    /// more than `room` tokens then.
    pub fn varied(&self, by: usize, room: usize) -> Option<Self> {
        const MORE: [[usize; 4]; 8] = [
            [1, 1, 1, 1],
            [3, 1, 2, 5],
            [1, 9, 1, 17],
            [7, 0, 0, 0],
            [2, 4, 8, 1],
            [0, 8, 0, 0],
            [1, 0, 0, 0],
            [1, 1, 1, 1],
        ];
        let mut varied = self.alike(by, true);
        let sequences = self.sequences();
        let share = |tokens: &usize| Share { tokens: *tokens, ..Share::default() };
        let more = MORE.map(|lengths| lengths.iter().cycle().take(sequences).map(share).collect::<Vec<Share>>());
        varied.0.extend(more.into_iter().filter(|pass| pass.iter().any(|share| share.tokens > 0)));
        let longest = varied.turns().iter().flatten().fold(BTreeMap::new(), |mut all, turn| {
            let begins = turn.begins.map(|(_, tokens)| tokens);
            *all.entry(turn.run).or_insert(begins.unwrap_or(0)) += turn.tokens;
            all
        });
        (varied.runs() == self.runs() && longest.values().all(|tokens| *tokens <= room)).then_some(varied)
    }

    fn alike(&self, by: usize, other_lengths: bool) -> Self {
        let mut like = self.clone();
        let shares = like.0.iter_mut().flatten().filter(|share| share.tokens > 0);
        shares.enumerate().for_each(|(at, share)| share.tokens = in_other_run(share.tokens, at + by));
        // The longest of those that begin together is another one: what goes by an order of lengths comes apart from what does not.
        if other_lengths && let Some(first) = like.0.first_mut() {
            let fresh = |share: &&mut Share| share.tokens > 1 && share.prefix.is_none() && share.back.is_none();
            let mut begin: Vec<&mut usize> = first.iter_mut().filter(fresh).map(|share| &mut share.tokens).collect();
            let lengths: Vec<usize> = begin.iter().map(|tokens| **tokens).collect();
            // Sorting sorted lengths moves nothing, and would not show.
            let turned = (1..lengths.len()).map(|by| [&lengths[by..], &lengths[..by]].concat());
            let unordered = |all: &Vec<usize>| !all.is_sorted() && !all.iter().rev().is_sorted();
            if let Some(turned) = turned.into_iter().find(unordered) {
                begin.iter_mut().zip(turned).for_each(|(tokens, other)| **tokens = other);
            }
        }
        // The tokens of each sequence, here and there, and what is left of those that it was last fed.
        let mut lengths = vec![([0usize; 2], [0usize; 2]); self.sequences()];
        for (pass, there) in self.0.iter().zip(&mut like.0) {
            for (s, (own, other)) in pass.iter().zip(there.iter_mut()).enumerate() {
                let Some(back) = own.back else { continue };
                let ([here, now], [last, draft]) = lengths[s];
                if let Back::Last(tokens) = back {
                    let taken = match tokens.cmp(&last) {
                        _ if tokens == here => now,
                        _ if !other_lengths => tokens,
                        Ordering::Less => (tokens + 1 + s % 2).min(draft.saturating_sub(1)),
                        Ordering::Equal => draft,
                        Ordering::Greater => (tokens + draft).saturating_sub(last),
                    };
                    let most = if tokens == here { now } else { now.saturating_sub(1) };
                    other.back = Some(Back::Last(taken.min(most).max(1)));
                }
                let left = [back.from(here), other.back.unwrap_or(back).from(now)];
                lengths[s] = (left, [last.saturating_sub(here - left[0]), draft.saturating_sub(now - left[1])]);
            }
            for (s, (own, other)) in pass.iter().zip(there.iter_mut()).enumerate() {
                let Some(shift) = own.shift else { continue };
                let ([here, now], last) = lengths[s];
                // Another number of tokens, if so many are there.
                let longer = Shift { tokens: shift.tokens + usize::from(other_lengths), ..shift };
                other.shift = longer.near(now);
                let left = [here - shift.tokens, now - other.shift.map_or(0, |shift| shift.tokens)];
                lengths[s] = (left, last);
            }
            let before = lengths.clone();
            for (s, (own, other)) in pass.iter().zip(there).enumerate() {
                if let Some(from) = own.prefix {
                    let [here, now] = before[from as usize].0;
                    other.length = own.length.map(|length| match length.cmp(&here) {
                        Ordering::Less if !other_lengths => length.min(now),
                        // Longer if there are so many; else shorter by one.
                        // No whole pages of 8, of which none would be copied.
                        Ordering::Less if length + 2 < now => {
                            let longer = (length + 3 + 2 * by).min(now - 1);
                            if longer.is_multiple_of(8) { longer - 1 } else { longer }
                        }
                        Ordering::Less => length.min(now).saturating_sub(1).max(1),
                        _ => now,
                    });
                    lengths[s].0 = [own.length.unwrap_or(here), other.length.unwrap_or(now)];
                }
                if own.tokens > 0 {
                    let [here, now] = lengths[s].0;
                    lengths[s] = ([here + own.tokens, now + other.tokens], [own.tokens, other.tokens]);
                }
            }
        }
        like
    }

    /// The sequence of each row of each pass, as [`Self::fed`] has them.
    pub fn orders(&self) -> Vec<Vec<u32>> {
        let of = |(s, share): (usize, &Share)| std::iter::repeat_n(s as u32, share.tokens);
        self.0.iter().map(|pass| pass.iter().enumerate().flat_map(of).collect()).collect()
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        self.0.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// How many runs there are: one of each sequence, and one each time that a sequence goes on after it took tokens back.
    pub fn runs(&self) -> usize {
        self.turns().iter().flatten().map(|turn| turn.run + 1).max().unwrap_or(0).max(self.sequences())
    }

    /// What the runs are of.
    pub fn whose(&self) -> Vec<Whose> {
        let mut all: Vec<Whose> = (0..self.sequences()).map(|s| Whose { sequence: s as u32, rollbacks: 0 }).collect();
        all.resize(self.runs(), Whose::default());
        self.turns().iter().flatten().for_each(|turn| all[turn.run] = turn.whose);
        all
    }

    /// What the rows of a sequence in a pass are of.
    pub fn whose_in(&self, pass: usize, sequence: u32) -> Option<Whose> {
        let turns = self.turns();
        turns.get(pass)?.iter().map(|turn| turn.whose).find(|whose| whose.sequence == sequence)
    }

    /// Rows of the pass that has most of them.
    pub fn longest(&self) -> usize {
        let rows = |pass: &Vec<Share>| pass.iter().map(|share| share.tokens).sum();
        self.0.iter().map(rows).max().unwrap_or(0)
    }

    /// Whether tokens are removed from the middle of a sequence.
    pub fn shifts(&self) -> bool {
        self.0.iter().flatten().any(|share| share.shift.is_some())
    }

    /// The most tokens that a sequence has at a time.
    pub fn deepest(&self) -> usize {
        let (mut lengths, mut most) = (vec![0usize; self.sequences()], 0);
        for pass in &self.0 {
            for (length, share) in lengths.iter_mut().zip(pass) {
                *length = share.back.map_or(*length, |back| back.from(*length));
                *length -= share.shift.map_or(0, |shift| shift.tokens);
            }
            let before = lengths.clone();
            for (length, share) in lengths.iter_mut().zip(pass) {
                let all = share.prefix.map(|from| before.get(from as usize).copied().unwrap_or(0));
                *length = all.map_or(*length, |all| share.length.unwrap_or(all)) + share.tokens;
                most = most.max(*length);
            }
        }
        most
    }

    /// The passes over these tokens, which are dealt out pass by pass, and in a pass to one sequence after another.
    ///
    /// # Panics
    /// If there are fewer tokens than [`Self::tokens`].
    pub fn fed(&self, tokens: &[u32]) -> Vec<Fed> {
        let (mut lengths, mut rest) = (vec![0usize; self.sequences()], tokens.iter().copied());
        let mut pass = |shares: &Vec<Share>| {
            let mut fed = Fed::default();
            for (s, share) in shares.iter().enumerate() {
                if let Some(back) = share.back {
                    lengths[s] = back.from(lengths[s]);
                    fed.backs.push((s as u32, lengths[s]));
                }
                if let Some(shift) = share.shift {
                    lengths[s] -= shift.tokens;
                    fed.shifts.push((s as u32, shift));
                }
            }
            let before = lengths.clone();
            for (s, share) in shares.iter().enumerate() {
                if let Some(from) = share.prefix {
                    lengths[s] = share.length.unwrap_or(before[from as usize]);
                    fed.prefixes.push((from, s as u32, lengths[s]));
                }
                for _ in 0..share.tokens {
                    let token = rest.next().expect("a plan has as many tokens as its prompt");
                    fed.rows.push(Row { sequence: s as u32, position: lengths[s] as u32, token });
                    lengths[s] += 1;
                }
            }
            fed
        };
        self.0.iter().map(&mut pass).collect()
    }

    /// What each pass feeds, by run. Runs of a pass are in the order of their sequences.
    fn turns(&self) -> Vec<Vec<Turn>> {
        /// The run of a sequence, the tokens that the sequence has, whether some were taken back since it was fed, and how often
        /// that was before.
        #[derive(Clone, Copy)]
        struct Now {
            run: usize,
            length: usize,
            back: bool,
            rollbacks: u32,
        }
        let mut runs = self.sequences();
        let mut now: Vec<Now> = (0..runs).map(|run| Now { run, length: 0, back: false, rollbacks: 0 }).collect();
        let mut pass = |shares: &Vec<Share>| {
            for (s, share) in shares.iter().enumerate() {
                if let Some(back) = share.back {
                    now[s] = Now { length: back.from(now[s].length), back: true, ..now[s] };
                }
                now[s].length -= share.shift.map_or(0, |shift| shift.tokens);
            }
            let (mut turns, before) = (Vec::new(), now.clone());
            for (s, share) in shares.iter().enumerate().filter(|(_, share)| share.tokens > 0) {
                let mut begins = None;
                if now[s].back {
                    begins = Some((now[s].run, now[s].length)).filter(|(_, length)| *length > 0);
                    now[s] = Now { run: runs, back: false, rollbacks: now[s].rollbacks + 1, ..now[s] };
                    runs += 1;
                }
                if let Some(from) = share.prefix.map(|from| before[from as usize]) {
                    now[s].length = share.length.unwrap_or(from.length);
                    begins = Some((from.run, now[s].length));
                }
                now[s].length += share.tokens;
                let whose = Whose { sequence: s as u32, rollbacks: now[s].rollbacks };
                let shift = share.shift;
                turns.push(Turn { whose, run: now[s].run, begins, tokens: share.tokens, shift });
            }
            turns
        };
        self.0.iter().map(&mut pass).collect()
    }

    /// The steps in which these tokens are fed, without stages: pass by pass, and in a pass one sequence after another. The steps
    /// of a run are numbered as those of a run of it alone, its prefix included.
    ///
    /// # Panics
    /// If there are fewer tokens than [`Self::tokens`].
    pub fn steps(&self, tokens: &[u32]) -> Vec<Step> {
        let (mut steps, mut lengths) = (Vec::new(), vec![Vec::new(); self.runs()]);
        let mut shifts = vec![0; self.runs()];
        for (Fed { rows, .. }, turns) in self.fed(tokens).iter().zip(self.turns()) {
            let before = lengths.clone();
            let mut rows = rows.as_slice();
            for Turn { whose, run, begins, tokens, shift } in turns {
                if let Some((from, length)) = begins {
                    lengths[run] = cut(&before[from], length);
                }
                shifts[run] += u32::from(shift.is_some());
                let (own, others) = rows.split_at(tokens);
                rows = others;
                // The number waits until all passes of the run are known.
                let step = Step::new(own[0].position as usize, own.iter().map(|row| row.token).collect());
                let (index, shifts) = (lengths[run].len(), shifts[run]);
                steps.push(Step { run: run as u32, whose, index, shift, shifts, ..step });
                lengths[run].push(tokens);
            }
        }
        for step in &mut steps {
            let own = &lengths[step.run as usize];
            step.index = Passes::Lengths(own).of_run(own.iter().sum(), 0)[step.index].index;
        }
        steps
    }

    /// Deals `steps`, which are those of [`Self::steps`], out to the runs. A run that begins with tokens of another one has copies
    /// of its steps, from `copy`, whose argument is the number of tokens of a step that belong to the prefix.
    pub fn dealt(&self, steps: Vec<Step>, copy: impl Fn(&Step, usize) -> Step) -> Vec<Vec<Step>> {
        let mut all: Vec<Vec<Step>> = (0..self.runs()).map(|_| Vec::new()).collect();
        let keys: Vec<usize> = steps.iter().map(Step::keys).collect();
        let (mut steps, mut keys) = (steps.into_iter(), keys.as_slice());
        let mut recorded: BTreeMap<usize, usize> = BTreeMap::new();
        let mut recorded_lengths: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        // The sequence of each run, and how many of its tokens another sequence has as well.
        let (mut sequences, mut shared): (BTreeMap<usize, u32>, BTreeMap<usize, usize>) = Default::default();
        for (number, turns) in self.turns().into_iter().enumerate() {
            let (of_pass, others) = keys.split_at(turns.len().min(keys.len()));
            keys = others;
            let steps_before: Vec<usize> = all.iter().map(Vec::len).collect();
            // The position of the first row of the pass, and the rows so far.
            let (mut first, mut before, leads) = (None, 0, turns.first().map_or(0, |turn| turn.tokens));
            let most = turns.iter().map(|turn| turn.tokens).max().unwrap_or(0);
            let rows: usize = turns.iter().map(|turn| turn.tokens).sum();
            let any_begins = turns.iter().zip(of_pass).any(|(turn, keys)| turn.tokens == *keys);
            let first_lengths = (most == 1).then(|| {
                recorded_lengths.entry(turns.len().next_power_of_two()).or_insert_with(|| of_pass.to_vec()).clone()
            });
            let shortest = of_pass.iter().copied().min().unwrap_or(0);
            let longest = of_pass.iter().copied().max().unwrap_or(0);
            for turn in &turns {
                sequences.insert(turn.run, turn.whose.sequence);
                let Some((from, length)) = turn.begins else { continue };
                let of_donor = shared.get(&from).copied().unwrap_or(0);
                if sequences.get(&from) == Some(&turn.whose.sequence) {
                    shared.insert(turn.run, of_donor.min(length));
                } else {
                    shared.insert(turn.run, length);
                    shared.insert(from, of_donor.max(length));
                }
            }
            let recorded = (most == 1).then(|| *recorded.entry(turns.len().next_power_of_two()).or_insert(longest));
            for (turn, Turn { run, begins, tokens, .. }) in turns.into_iter().enumerate() {
                if let Some((from, length)) = begins {
                    let theirs = &all[from][..steps_before[from]];
                    let lengths: Vec<usize> = theirs.iter().map(|step| step.tokens.len()).collect();
                    all[run] = theirs.iter().zip(cut(&lengths, length)).map(|(step, n)| copy(step, n)).collect();
                    all[run].last_mut().into_iter().for_each(|step| step.handed_on = true);
                }
                all[run].extend(steps.next().map(|step| {
                    let first = *first.get_or_insert(step.first);
                    let of = |turn: Option<usize>| turn.and_then(|turn| of_pass.get(turn).copied());
                    let beside = [of(turn.checked_sub(1)), of(Some(turn + 1))];
                    let recorded_here = first_lengths.as_ref().and_then(|all| all.get(turn).copied());
                    let shared = shared.get(&run).copied().unwrap_or(0);
                    Step {
                        in_pass: Some(InPass {
                            number,
                            first,
                            leads,
                            turn,
                            before,
                            most,
                            recorded,
                            shared,
                            rows,
                            begins: any_begins,
                            recorded_here,
                            shortest,
                            beside,
                        }),
                        ..step
                    }
                }));
                before += tokens;
            }
        }
        for of_run in &mut all {
            let lengths: Vec<usize> = of_run.iter().map(|step| step.tokens.len()).collect();
            let passes = Passes::Lengths(&lengths).of_run(lengths.iter().sum(), 0);
            for (i, step) in of_run.iter_mut().enumerate() {
                step.index = passes[i].index;
                // Another part of the prefill follows: this one chooses nothing.
                if passes.get(i + 1).is_some_and(|next| next.index == 0) {
                    step.choice = None;
                }
            }
        }
        all
    }

    /// Adds a pass with rows of these sequences. Some begin with tokens of others: whose, which, and how many. Some take tokens back
    /// before: which, and how many they keep.
    pub(super) fn add(
        &mut self, rows: &[u32], prefixes: &[(u32, u32, usize)], backs: &[(u32, usize)],
    ) -> anyhow::Result<()> {
        let last = rows.iter().copied().chain(backs.iter().map(|back| back.0)).max().unwrap_or(0);
        ensure!((last as usize) < SEQUENCES, "more than {SEQUENCES} sequences");
        let mut pass = vec![Share::default(); last as usize + 1];
        for &(sequence, kept) in backs {
            let there = self.length(sequence as usize);
            ensure!(kept < there, "sequence {sequence} takes tokens back and keeps {kept}, and it has {there}");
            pass[sequence as usize].back = Some(if kept == 0 { Back::All } else { Back::Last(there - kept) });
        }
        rows.iter().for_each(|sequence| pass[*sequence as usize].tokens += 1);
        for &(from, to, length) in prefixes {
            let share = pass.get_mut(to as usize);
            let share = share.with_context(|| format!("sequence {to} begins with tokens of {from}, and has no row"))?;
            (share.prefix, share.length) = (Some(from), Some(length));
        }
        self.0.push(pass);
        Ok(())
    }

    /// The tokens that a sequence has after these passes, whose prefixes have lengths, as those of [`Self::add`].
    fn length(&self, sequence: usize) -> usize {
        self.0.iter().filter_map(|pass| pass.get(sequence)).fold(0, |length, share| {
            let kept = share.back.map_or(length, |back| back.from(length));
            kept + share.length.unwrap_or(0) + share.tokens
        })
    }

    /// Refuses a plan that cannot be run.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(self.sequences() <= SEQUENCES, "more than {SEQUENCES} sequences");
        let (mut lengths, mut fed) = (vec![0usize; self.sequences()], vec![false; self.sequences()]);
        // Whether tokens of a sequence were moved since it began, and which others may have some of its tokens.
        let (mut moved, mut with) = (vec![false; self.sequences()], vec![BTreeSet::new(); self.sequences()]);
        for (i, pass) in self.0.iter().enumerate() {
            ensure!(pass.iter().any(|share| share.tokens > 0), "pass {} feeds no token", i + 1);
            for (s, share) in pass.iter().enumerate() {
                fed[s] |= share.tokens > 0;
                let Some(back) = share.back else { continue };
                let there = lengths[s];
                ensure!(
                    back.tokens(there).is_some_and(|n| (1..=there).contains(&n)),
                    "sequence {s} cannot take {back} back in pass {}: it has {there} tokens",
                    i + 1
                );
                ensure!(
                    !moved[s] || back.from(there) == 0,
                    "sequence {s} cannot take {back} back in pass {}: tokens were removed from its middle before; write {}~all",
                    i + 1,
                    share.tokens
                );
                lengths[s] = back.from(there);
                if lengths[s] == 0 {
                    moved[s] = false;
                    with[s].clear();
                    with.iter_mut().for_each(|others| _ = others.remove(&s));
                }
            }
            for (s, share) in pass.iter().enumerate() {
                let Some(shift) = share.shift else { continue };
                let Shift { tokens, from } = shift;
                ensure!(
                    shift.fits(lengths[s]) && share.tokens > 0,
                    "-{tokens}:{from} cannot remove {tokens} tokens of sequence {s} from position {from} on in pass {}: it has {} \
                     tokens, and one at least must stay behind these, and be fed after them",
                    i + 1,
                    lengths[s]
                );
                ensure!(
                    share.back.is_none(),
                    "sequence {s} takes tokens back and is shifted in pass {}; give each a pass of its own",
                    i + 1
                );
                if let Some(other) = with[s].first() {
                    bail!(
                        "-{tokens}:{from} would move tokens of sequence {s} in pass {} that sequence {other} may have as well, from a \
                         shared prefix; shift a sequence that shares none",
                        i + 1
                    );
                }
                moved[s] = true;
                lengths[s] -= tokens;
            }
            let before = lengths.clone();
            for (s, share) in pass.iter().enumerate() {
                if let Some(from) = share.prefix {
                    let all = before.get(from as usize).copied().unwrap_or(0);
                    let there = share.length.unwrap_or(all);
                    ensure!(
                        lengths[s] == 0 && (1..=all).contains(&there) && share.tokens > 0,
                        "sequence {s} cannot begin with sequence {from} in pass {}: sequence {s} must have no token before, \
                         and sequence {from} must have those that are shared",
                        i + 1
                    );
                    ensure!(
                        !moved[from as usize],
                        "sequence {s} cannot begin with sequence {from} in pass {}: tokens were removed from the middle of that one",
                        i + 1
                    );
                    let mut others = with[from as usize].clone();
                    others.insert(from as usize);
                    others.iter().for_each(|other| _ = with[*other].insert(s));
                    with[s].extend(others);
                    lengths[s] = there;
                }
                lengths[s] += share.tokens;
            }
        }
        if let Some(s) = fed.iter().position(|fed| !fed) {
            bail!("sequence {s} is fed no token");
        }
        Ok(())
    }
}

impl Back {
    /// How many tokens that is of `length`; none where there are not as many.
    fn tokens(self, length: usize) -> Option<usize> {
        match self {
            Self::Last(tokens) => Some(tokens).filter(|tokens| *tokens <= length),
            Self::All => Some(length),
        }
    }

    /// What is left of `length` tokens.
    fn from(self, length: usize) -> usize {
        length - self.tokens(length).unwrap_or(length)
    }
}

impl Display for Back {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Last(tokens) => write!(f, "{tokens}"),
            Self::All => f.write_str("all"),
        }
    }
}

/// The lengths of passes up to so many tokens, the last of them cut.
fn cut(lengths: &[usize], tokens: usize) -> Vec<usize> {
    let mut left = tokens;
    let kept = lengths.iter().map(|&length| {
        let kept = length.min(left);
        left -= kept;
        kept
    });
    kept.take_while(|kept| *kept > 0).collect()
}

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (tokens, prefix) = text.split_once('@').map_or((text, None), |(tokens, from)| (tokens, Some(from)));
        let problem = || {
            format!(
                "`{text}` says nothing of a sequence: a number of tokens such as 17, 17@0 to begin with sequence 0, 17@0:4 to begin \
                 with its first 4 tokens, 17~3 to take 3 tokens back before, 17~all to take all of them back, or 17-4:2 to remove \
                 4 tokens from position 2 on before"
            )
        };
        let (tokens, shift) =
            tokens.split_once('-').map_or((tokens, None), |(tokens, shift)| (tokens, Some(shift.split_once(':'))));
        let number = |text: &str| text.trim().parse().with_context(problem);
        let shift = shift.map(|shift| {
            let (tokens, from) = shift.with_context(problem)?;
            anyhow::Ok(Shift { tokens: number(tokens)?, from: number(from)? })
        });
        let (tokens, back) =
            tokens.split_once('~').map_or((tokens, None), |(tokens, back)| (tokens, Some(back.trim())));
        let back = back.map(|back| match back {
            "all" => Ok(Back::All),
            back => back.parse().map(Back::Last),
        });
        let (from, length) = match prefix.map(|prefix| prefix.split_once(':').ok_or(prefix)) {
            Some(Ok((from, length))) => (Some(from), Some(length)),
            Some(Err(from)) => (Some(from), None),
            None => (None, None),
        };
        Ok(Self {
            tokens: tokens.trim().parse().with_context(problem)?,
            back: back.transpose().with_context(problem)?,
            shift: shift.transpose()?,
            prefix: from.map(|from| from.trim().parse()).transpose().with_context(problem)?,
            length: length.map(|length| length.trim().parse()).transpose().with_context(problem)?,
        })
    }
}

impl FromStr for Plan {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (mut all, mut shares): (Vec<Vec<Share>>, usize) = (Vec::new(), 0);
        for item in text.split(',') {
            let (count, pass) = item.split_once('x').unwrap_or(("1", item));
            let count = count.trim().parse().ok().filter(|n| (1..=MOST - all.len()).contains(n));
            let count = count.with_context(|| format!("`{item}`: no number of passes, from 1 to {MOST} in all"))?;
            let pass = pass.split('+').map(str::parse).collect::<anyhow::Result<Vec<Share>>>()?;
            shares += count.saturating_mul(pass.len());
            ensure!(shares <= MOST, "more than {MOST} parts of passes");
            all.extend(std::iter::repeat_n(pass, count));
        }
        let plan = Self(all);
        plan.check()?;
        ensure!(plan.tokens() <= MOST, "more than {MOST} tokens");
        Ok(plan)
    }
}

impl TryFrom<String> for Plan {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        text.parse()
    }
}

impl From<Plan> for String {
    fn from(plan: Plan) -> Self {
        plan.to_string()
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, run) in self.0.chunk_by(|a, b| a == b).enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            if run.len() > 1 {
                write!(f, "{}x", run.len())?;
            }
            for (s, Share { tokens, back, shift, prefix, length }) in run[0].iter().enumerate() {
                write!(f, "{}{tokens}", if s == 0 { "" } else { "+" })?;
                back.map_or(Ok(()), |back| write!(f, "~{back}"))?;
                shift.map_or(Ok(()), |Shift { tokens, from }| write!(f, "-{tokens}:{from}"))?;
                prefix.map_or(Ok(()), |from| write!(f, "@{from}"))?;
                length.map_or(Ok(()), |length| write!(f, ":{length}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a pass does with a sequence, of what it may do: numbers choose, and are taken modulo what there is.
    type Choice = (usize, usize, usize, usize);

    /// A plan that can be run, by choices for each pass and sequence.
    fn plan_of(choices: &[Vec<Choice>]) -> Plan {
        let mut lengths = vec![0usize; 3];
        let mut plan = Plan::default();
        for choices in choices {
            let mut pass = vec![Share::default(); choices.len()];
            for (s, &(tokens, back, ..)) in choices.iter().enumerate() {
                pass[s].tokens = tokens % 7;
                // One in two takes nothing back.
                pass[s].back = match (lengths[s], back % 8) {
                    (0, _) | (_, 4..) => None,
                    (_, 0) => Some(Back::All),
                    (there, _) => Some(Back::Last(1 + back / 8 % there)),
                };
                lengths[s] = pass[s].back.map_or(lengths[s], |back| back.from(lengths[s]));
                // One in five of those that take nothing back is shifted; what cannot be is refused.
                if pass[s].back.is_none() && back % 5 == 0 && lengths[s] > 1 && pass[s].tokens > 0 {
                    pass[s].shift = Shift { tokens: 1 + back % 3, from: tokens / 7 }.near(lengths[s]);
                    lengths[s] -= pass[s].shift.map_or(0, |shift| shift.tokens);
                }
            }
            let before = lengths.clone();
            for (s, &(_, _, from, length)) in choices.iter().enumerate() {
                let there = before[from % 3];
                if lengths[s] == 0 && there > 0 && from % 3 < choices.len() && pass[s].tokens > 0 {
                    pass[s].prefix = Some(from as u32 % 3);
                    pass[s].length = (length % 2 == 1).then_some(1 + length / 2 % there);
                    lengths[s] = pass[s].length.unwrap_or(there);
                }
                lengths[s] += pass[s].tokens;
            }
            plan.0.push(pass);
        }
        plan
    }

    /// For each share: whether it takes all back, and whether it begins with a part of what another sequence has.
    fn wholes(plan: &Plan) -> Vec<(bool, bool)> {
        let mut all = Vec::new();
        let mut lengths = vec![0usize; plan.sequences()];
        for pass in &plan.0 {
            let there = lengths.clone();
            for (s, share) in pass.iter().enumerate() {
                lengths[s] = share.back.map_or(lengths[s], |back| back.from(lengths[s]));
                lengths[s] -= share.shift.map_or(0, |shift| shift.tokens);
            }
            let before = lengths.clone();
            for (s, share) in pass.iter().enumerate() {
                let from = share.prefix.map(|from| before[from as usize]);
                let length = from.map(|from| share.length.unwrap_or(from));
                all.push((there[s] > 0 && before[s] == 0, length < from));
                lengths[s] = length.unwrap_or(lengths[s]) + share.tokens;
            }
        }
        all
    }

    proptest! {
        /// Plans like one that can be run can be run: each feeds its tokens and writes itself as it is read. What takes all back does
        /// so in them too.
        #[test]
        fn plans_like_one_that_runs_run(
            choices in prop::collection::vec(prop::collection::vec((0..40usize, 0..80usize, 0..9usize, 0..40usize), 3), 1..7),
            by in 0usize..4,
        ) {
            let plan = plan_of(&choices);
            prop_assume!(plan.check().is_ok());
            let all: Vec<u32> = (0..plan.tokens() as u32).collect();
            let most = plan.fed(&all).iter().flat_map(|fed| &fed.rows).map(|row| row.position + 1).max();
            prop_assert_eq!(plan.deepest(), most.unwrap_or(0) as usize);
            for (i, like) in plan.like(by).into_iter().enumerate() {
                prop_assert!(like.check().is_ok(), "{plan} {like}: {:?}", like.check());
                prop_assert_eq!(like.to_string().parse::<Plan>().unwrap(), like.clone());
                let tokens: Vec<u32> = (0..like.tokens() as u32).collect();
                let fed: Vec<u32> = like.fed(&tokens).iter().flat_map(|fed| fed.rows.iter().map(|row| row.token)).collect();
                prop_assert_eq!(fed, tokens.clone());
                prop_assert_eq!((like.steps(&tokens).len(), like.runs()), (plan.steps(&tokens).len(), plan.runs()));
                let (here, there) = (wholes(&plan), wholes(&like));
                prop_assert!(here.iter().zip(&there).all(|(own, other)| own.0 == other.0), "{plan} {like}");
                let parts = here.iter().zip(&there).all(|(own, other)| own.1 || !other.1);
                prop_assert!(parts || i == 1, "{plan} {like}");
            }
        }
    }

    #[test]
    fn a_plan_deals_tokens_out() {
        let plan: Plan = "7,5+1+17@0".parse().unwrap();
        assert_eq!((plan.tokens(), plan.sequences(), plan.longest()), (30, 3, 23));
        let tokens: Vec<u32> = (0..30).collect();
        let fed = plan.fed(&tokens);
        assert_eq!(fed[0].rows.len(), 7);
        assert_eq!(fed[1].prefixes, [(0, 2, 7)]);
        let row = |sequence, position, token| Row { sequence, position, token };
        let some = [fed[1].rows[0], fed[1].rows[5], fed[1].rows[6], fed[1].rows[22]];
        assert_eq!(some, [row(0, 7, 7), row(1, 0, 12), row(2, 7, 13), row(2, 23, 29)]);
        for text in [
            "7,5+1+17@0", "5", "3x1+2,0+4", "2+0,0+1@0", "7,5+1+17@0:4", "9,5,1~4", "9+7,0~all+1,0+1,4+1",
            "9,3+4@0,0+2~all@0:5", "9,5-4:2,1-3:0", "9+4,1-2:3+1,2~all+1",
        ] {
            assert_eq!(text.parse::<Plan>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn steps_have_labels_of_their_own() {
        let plan: Plan = "7,5+1+17@0,1+1+1".parse().unwrap();
        let tokens: Vec<u32> = (0..33).collect();
        let steps = plan.steps(&tokens);
        let labels: Vec<String> = steps.iter().map(Step::label).collect();
        assert_eq!(labels, ["prefill", "prefill@7", "s1.prefill", "s2.prefill@7", "step1", "s1.step1", "s2.step1"]);
        let begun = |step: &Step, tokens: usize| Step { tokens: step.tokens[..tokens].to_vec(), ..step.bare() };
        let dealt = plan.dealt(steps, begun);
        let labels = |s: usize| dealt[s].iter().map(Step::label).collect::<Vec<_>>();
        assert_eq!(labels(0), ["prefill", "prefill@7", "step1"]);
        assert_eq!(labels(2), ["prefill", "s2.prefill@7", "s2.step1"]);
        assert_eq!(dealt[2].iter().map(|step| step.tokens.len()).collect::<Vec<_>>(), [7, 17, 1]);
        // The second pass begins at position 7; the last one at position 12. A prefix has the places of its own pass.
        let place = |step: &Step| step.in_pass.map(|pass| (pass.first, pass.before));
        let places: Vec<_> = dealt.iter().map(|run| run.iter().filter_map(place).collect()).collect();
        let [first, second, third]: [Vec<(usize, usize)>; 3] = places.try_into().unwrap();
        assert_eq!((first, second), (vec![(0, 0), (7, 0), (12, 0)], vec![(7, 5), (12, 1)]));
        assert_eq!(third, [(0, 0), (7, 6), (12, 2)]);
        // Passes of two rows first ran with 4 keys at most, the one of one row with 6.
        let plan: Plan = "3+2,1+1,1+1,1+0".parse().unwrap();
        let dealt = plan.dealt(plan.steps(&tokens[..10]), begun);
        let recorded: Vec<_> = dealt[0].iter().map(|step| step.in_pass.and_then(|pass| pass.recorded)).collect();
        assert_eq!(recorded, [None, Some(4), Some(4), Some(6)]);
        // A part of a prefix: a step of it is cut.
        let plan: Plan = "7,5+0,1+2@0:9".parse().unwrap();
        let dealt = plan.dealt(plan.steps(&tokens[..15]), begun);
        assert_eq!(dealt[1].iter().map(|step| step.tokens.len()).collect::<Vec<_>>(), [7, 2, 2]);
        assert_eq!(dealt[1][1].tokens, [7, 8]);
        assert_eq!(dealt[1][2].first, 9);
    }

    #[test]
    fn a_varied_plan_has_the_same_runs_and_more_passes() {
        for text in ["7", "7,5+1+17@0,1+1+1", "9,5,1~4", "9,7~all", "8+6,5+1,4~2+1,6+5~1"] {
            let plan: Plan = text.parse().unwrap();
            let varied = plan.varied(1, 4096).unwrap();
            assert_eq!(varied.0[..plan.0.len()], plan.like(1)[0].0, "{text}");
            assert!(varied.0.len() > plan.0.len() && varied.runs() == plan.runs(), "{text}: {varied}");
            assert_eq!(varied.to_string().parse::<Plan>().unwrap(), varied, "{text}");
            assert!(plan.varied(1, 20).is_none(), "{text}: more than there is room for");
        }
    }

    #[test]
    fn what_follows_tokens_that_were_taken_back_is_a_run_of_its_own() {
        // A draft of 5 of which one is kept, while another sequence decodes; then it ends, and begins anew.
        let plan: Plan = "9+2,5+1,1~4+1,4~all+1".parse().unwrap();
        let tokens: Vec<u32> = (0..24).collect();
        let fed = plan.fed(&tokens);
        assert_eq!((&fed[2].backs[..], &fed[3].backs[..]), (&[(0, 10)][..], &[(0, 0)][..]));
        assert_eq!((fed[2].rows[0].position, fed[3].rows[0].position), (10, 0));
        assert_eq!((plan.sequences(), plan.runs()), (2, 4));
        let steps = plan.steps(&tokens);
        let labels: Vec<String> = steps.iter().map(Step::label).collect();
        assert_eq!(
            labels,
            ["prefill", "s1.prefill", "prefill@9", "s1.step1", "s2.step2", "s1.step2", "s3.prefill", "s1.step3"]
        );
        let begun = |step: &Step, tokens: usize| Step { tokens: step.tokens[..tokens].to_vec(), ..step.bare() };
        let dealt = plan.dealt(steps, begun);
        let tokens = |run: usize| dealt[run].iter().flat_map(|step| step.tokens.clone()).collect::<Vec<_>>();
        assert_eq!(tokens(0), (0..9).chain(11..16).collect::<Vec<_>>());
        assert_eq!(tokens(2), (0..9).chain([11, 17]).collect::<Vec<_>>());
        assert_eq!(tokens(3), [19, 20, 21, 22]);
        assert_eq!(dealt[2].iter().map(|step| step.first).collect::<Vec<_>>(), [0, 9, 10]);
    }

    #[test]
    fn a_shift_lowers_positions_and_begins_no_run() {
        let plan: Plan = "9+2,5-4:2+1,2-3:0,1~all+1".parse().unwrap();
        let tokens: Vec<u32> = (0..plan.tokens() as u32).collect();
        let fed = plan.fed(&tokens);
        let shift = |tokens, from| Shift { tokens, from };
        assert_eq!((&fed[1].shifts[..], &fed[2].shifts[..]), (&[(0, shift(4, 2))][..], &[(0, shift(3, 0))][..]));
        assert_eq!((fed[1].rows[0].position, fed[2].rows[0].position), (5, 7));
        assert_eq!((plan.runs(), plan.deepest()), (3, 10));
        let steps = plan.steps(&tokens);
        let labels: Vec<String> = steps.iter().map(Step::label).collect();
        assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), labels.len(), "{labels:?}");
        assert_eq!(labels[2], "prefill@5-1");
        let shifts: Vec<_> = steps.iter().map(|step| (step.shift, step.shifts)).collect();
        assert_eq!(shifts[..4], [(None, 0), (None, 0), (Some(shift(4, 2)), 1), (None, 0)]);
        assert_eq!((shifts[4], shifts[5]), ((Some(shift(3, 0)), 2), (None, 0)));
    }

    #[test]
    fn plans_that_cannot_be_run_are_refused() {
        for text in [
            "", "0", "5+0", "5+3@0", "5,3@0", "5,1+3@2", "5,0+0@0", "2x1,2x0+1@0", "a", "0x1", "1+@0", "-1",
            "99999999x1", "5~1", "5,1~0", "5,1~6", "5,0~all", "5,1~", "5,1~x", "5,1+2~all", "5,1+3@0:0", "5,1+3@0:6",
            "5,1+3@0:", "5,1+3:4", "5,1-5:0", "5,1-0:2", "5,1-2:3", "5,1-2", "5,1-:2", "5,1-2:", "5,0-2:1+1",
            "5,1~1-2:1", "5,1-2:1,1~1", "5,1-2:1,1+1@0", "5,1+1@0,1-2:1", "5,1+1@0,1,1+1-2:1", "5-1:0",
        ] {
            assert!(text.parse::<Plan>().is_err(), "{text}");
        }
    }
}
