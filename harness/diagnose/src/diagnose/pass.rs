//! Rules for the rows of a pass over several sequences: which row is taken for another one, and in which passes.

use std::collections::BTreeMap;
use std::fmt;

/// A rule, and when it holds, in words.
#[derive(Clone, Debug)]
pub struct Fit {
    /// What is done.
    pub rule: String,
    /// When.
    pub when: String,
    /// Whether the same rule fits in every pass: then another run alone can show that it holds in some.
    pub narrower: bool,
}

impl Fit {
    /// A rule that is reported.
    pub fn new(rule: impl Into<String>, when: impl Into<String>) -> Self {
        Self { rule: rule.into(), when: when.into(), narrower: false }
    }
}

/// Whether it is the same rule.
impl PartialEq for Fit {
    fn eq(&self, other: &Self) -> bool {
        (&self.rule, &self.when) == (&other.rule, &other.when)
    }
}

/// So many of the rules that fit are reported.
const TOLD: usize = 3;

/// Rules that fit, in words; nothing if there are none.
pub fn rules(fits: &[&Fit]) -> String {
    // One that fits in every pass needs no condition.
    let wider = |fit: &Fit| fits.iter().any(|other| !other.narrower && other.rule == fit.rule);
    let fits: Vec<&Fit> = fits.iter().copied().filter(|fit| !(fit.narrower && wider(fit))).collect();
    let Some((first, more)) = fits.split_first() else { return String::new() };
    let whole = |fit: &Fit| format!("{}, {}", fit.rule, fit.when);
    if more.is_empty() {
        return whole(first);
    }
    let other = |fit: &&Fit| if fit.rule == first.rule { fit.when.clone() } else { whole(fit) };
    // One more takes no more words than to say so.
    let shown = if more.len() > TOLD { TOLD - 1 } else { TOLD };
    let mut others: Vec<String> = more.iter().take(shown).map(other).collect();
    let rest = more.len() - others.len();
    if rest > 0 {
        others.push(format!("by one of {rest} more rules"));
    }
    format!("{} (or {}: the values fit each of these rules)", whole(first), others.join(", or "))
}

/// The rows that a pass has of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The sequence.
    pub sequence: u32,
    /// The position of the first of them.
    pub first: usize,
    /// How many they are.
    pub rows: usize,
    /// Tokens that the sequence has taken back so far.
    pub taken_back: usize,
    /// Tokens that the longest sequence has after the first pass of the run.
    pub room: usize,
    /// Tokens that the sequence has from another one, which it goes on from.
    pub prefix: usize,
}

/// The rows of a pass: those of one sequence after those of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass(pub Vec<Group>, pub Numbers);

/// Other numbers than positions that an engine may take for those of a pass's rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The cache slot of each row, where that is known.
    pub slots: Option<Vec<usize>>,
    /// The positions of the rows of the pass before.
    pub before: Vec<usize>,
    /// If every sequence has one row, and had so in the pass before: the positions of that.
    pub again: Option<Vec<usize>>,
    /// If every sequence has one row: the positions of the pass of this kind at which the number of rows last changed.
    pub changed: Option<Vec<usize>>,
    /// If every sequence has one row: the positions of the first pass of this kind with as many rows, rounded up to a power of two.
    pub recorded: Option<Vec<usize>>,
}

/// Tells each pass of a run, in order, the positions of earlier ones that a buffer may still hold.
pub fn earlier<'a>(all: impl Iterator<Item = &'a mut Pass>) {
    let (mut before, mut changed, mut recorded) = (Vec::new(), Vec::new(), BTreeMap::<usize, Vec<usize>>::new());
    let mut decoded = false;
    for pass in all {
        let positions = pass.positions();
        let decodes = pass.0.iter().all(|group| group.rows == 1);
        pass.1.again = (decodes && decoded && before.len() == positions.len()).then(|| before.clone());
        decoded = decodes;
        if pass.0.iter().all(|group| group.rows == 1) {
            if changed.len() != positions.len() {
                changed.clone_from(&positions);
            }
            let first = recorded.entry(positions.len().next_power_of_two()).or_insert_with(|| positions.clone());
            (pass.1.changed, pass.1.recorded) = (Some(changed.clone()), Some(first.clone()));
        }
        pass.1.before = std::mem::replace(&mut before, positions);
    }
}

impl Pass {
    /// How many they are.
    pub fn rows(&self) -> usize {
        self.0.iter().map(|group| group.rows).sum()
    }

    /// The number of the group of a row, and the row's number in it.
    pub fn at(&self, row: usize) -> Option<(usize, usize)> {
        let mut first = 0;
        for (i, group) in self.0.iter().enumerate() {
            if row < first + group.rows {
                return Some((i, row - first));
            }
            first += group.rows;
        }
        None
    }

    /// The position of each row.
    pub fn positions(&self) -> Vec<usize> {
        self.0.iter().flat_map(|group| group.first..group.first + group.rows).collect()
    }

    /// The number of the first row of a group.
    pub fn first_of(&self, group: usize) -> usize {
        self.0[..group].iter().map(|group| group.rows).sum()
    }

    /// The groups in another order: their numbers.
    fn sorted(&self, order: Order) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.0.len()).collect();
        let keys = |i: &usize| self.0[*i].first + self.0[*i].rows;
        match order {
            Order::Longest => all.sort_by_key(|i| std::cmp::Reverse(keys(i))),
            Order::Shortest => all.sort_by_key(keys),
            Order::MostRows => all.sort_by_key(|i| std::cmp::Reverse(self.0[*i].rows)),
            Order::FewestRows => all.sort_by_key(|i| self.0[*i].rows),
            Order::OnesFirst => all.sort_by_key(|i| self.0[*i].rows > 1),
            Order::OnesLast => all.sort_by_key(|i| self.0[*i].rows <= 1),
            Order::Reversed => all.reverse(),
            Order::Numbers => all.sort_by_key(|i| self.0[*i].sequence),
        }
        all
    }
}

/// An order of the sequences of a pass. Those that are alike stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The longest first.
    Longest,
    /// The shortest first.
    Shortest,
    /// That with the most rows first.
    MostRows,
    /// That with the fewest rows first.
    FewestRows,
    /// Those with one row before all others: decode before prefill.
    OnesFirst,
    /// Those with one row behind all others.
    OnesLast,
    /// The last first.
    Reversed,
    /// By the numbers of the sequences.
    Numbers,
}

impl Order {
    const ALL: [Self; 8] = [
        Self::Longest,
        Self::Shortest,
        Self::MostRows,
        Self::FewestRows,
        Self::OnesFirst,
        Self::OnesLast,
        Self::Reversed,
        Self::Numbers,
    ];
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Longest => "from the longest sequence to the shortest",
            Self::Shortest => "from the shortest sequence to the longest",
            Self::MostRows => "from the sequence with the most rows to that with the fewest",
            Self::FewestRows => "from the sequence with the fewest rows to that with the most",
            Self::OnesFirst => "with the sequences first that have one row in the pass",
            Self::OnesLast => "with the sequences last that have one row in the pass",
            Self::Reversed => "from the last sequence of the pass to the first",
            Self::Numbers => "by the numbers of the sequences",
        })
    }
}

/// How rows that were ordered are put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// They are not.
    Left,
    /// They were not ordered, and are put back.
    Back,
    /// They are ordered once more.
    Twice,
}

/// Which row of a pass is taken for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Rows are in this order of their sequences.
    Ordered(Order, Put),
    /// Row r mod m.
    Rest(usize),
    /// The first row of each m.
    FirstOf(usize),
    /// Row r, but m − 1 at most.
    AtMost(usize),
    /// In the last tile of m rows, which is not full, the rows of a full tile that ends with the pass.
    TileBack(usize),
    /// In the last tile of m rows, which is not full and not the first, the row m before.
    TileBefore(usize),
    /// In such a tile, the row at the same place of the first one.
    TileFirst(usize),
    /// The first row of the pass.
    First,
    /// The last row of the pass.
    Last,
    /// The row of the pass that has the row's number in its own sequence.
    OfSequence,
    /// The row that has the sequence's number in the pass.
    OneEach,
    /// The last row of the longest sequence.
    OfLongest,
    /// The same for the first row alone.
    OfLongestFirst,
    /// The row before, the first being after the last.
    Before,
    /// The row before, the first at least.
    Previous,
    /// The row after, the last being before the first.
    After,
    /// The row after, the last at most.
    Next,
    /// Row b + i for row i of the b-th sequence: rows of sequences are one apart.
    OneApart,
    /// Row b·m + i, the last at most, for row i of the b-th sequence, where the longest has m rows: sequences are as far apart as if each
    /// were filled up to m.
    Padded,
}

/// Rows of a page, or of a block, of a cache, as engines have them.
pub const PAGES: [usize; 7] = [4, 8, 16, 32, 64, 128, 256];

/// Rows of a tile or chunk.
const TILES: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];

impl Map {
    /// All that are tried, the plainest first.
    pub fn all() -> impl Iterator<Item = Self> {
        let puts = [Put::Left, Put::Back, Put::Twice];
        let orders = Order::ALL.into_iter().flat_map(move |order| puts.map(|put| Self::Ordered(order, put)));
        let plain = [
            Self::First,
            Self::OfSequence,
            Self::Last,
            Self::OneEach,
            Self::OneApart,
            Self::Padded,
            Self::OfLongest,
            Self::OfLongestFirst,
            Self::Next,
            Self::Previous,
            Self::Before,
            Self::After,
        ];
        let tiles = TILES.into_iter().flat_map(|m| {
            [
                Self::Rest(m),
                Self::FirstOf(m),
                Self::AtMost(m),
                Self::TileBack(m),
                Self::TileBefore(m),
                Self::TileFirst(m),
            ]
        });
        plain.into_iter().chain(orders).chain(tiles)
    }

    /// The rows of its tile or chunk, if it has any: where no pass has more, it says the same as a rule without a number.
    pub fn tile(self) -> Option<usize> {
        match self {
            Self::Rest(m)
            | Self::FirstOf(m)
            | Self::AtMost(m)
            | Self::TileBack(m)
            | Self::TileBefore(m)
            | Self::TileFirst(m) => Some(m),
            _ => None,
        }
    }

    /// The row that is taken for each row.
    pub fn of_all(self, pass: &Pass) -> Vec<Option<usize>> {
        let Self::Ordered(order, put) = self else { return (0..pass.rows()).map(|r| self.of(pass, r)).collect() };
        let mut firsts: Vec<usize> = Vec::with_capacity(pass.0.len());
        pass.0.iter().fold(0, |first, group| {
            firsts.push(first);
            first + group.rows
        });
        let rows = |group: &usize| firsts[*group]..firsts[*group] + pass.0[*group].rows;
        let rows: Vec<usize> = pass.sorted(order).iter().flat_map(rows).collect();
        match put {
            Put::Left => return rows.into_iter().map(Some).collect(),
            Put::Twice => return rows.iter().map(|row| Some(rows[*row])).collect(),
            Put::Back => {}
        }
        let mut put_back = vec![None; rows.len()];
        rows.iter().enumerate().for_each(|(i, row)| put_back[*row] = Some(i));
        put_back
    }

    /// The row that is taken for row `r`.
    pub fn of(self, pass: &Pass, r: usize) -> Option<usize> {
        let n = pass.rows();
        let (group, number) = pass.at(r)?;
        Some(match self {
            Self::Ordered(..) => self.of_all(pass)[r]?,
            Self::Rest(m) => r % m,
            Self::FirstOf(m) => r / m * m,
            Self::AtMost(m) => r.min(m - 1),
            Self::TileBack(m) if n > m && r >= n / m * m => n - m + r % m,
            Self::TileBefore(m) if n > m && r >= n / m * m => r - m,
            Self::TileFirst(m) if n > m && r >= n / m * m => r % m,
            Self::TileBack(_) | Self::TileBefore(_) | Self::TileFirst(_) => r,
            Self::First => 0,
            Self::Last => n - 1,
            Self::OfSequence => number,
            Self::OneEach => group,
            Self::OneApart => group + number,
            Self::Padded => (group * pass.0.iter().map(|group| group.rows).max()? + number).min(n - 1),
            Self::Next => (r + 1).min(n - 1),
            Self::OfLongestFirst if r > 0 => r,
            Self::OfLongest | Self::OfLongestFirst => {
                let longest = *pass.sorted(Order::Longest).first()?;
                pass.first_of(longest) + pass.0[longest].rows - 1
            }
            Self::Previous => r.saturating_sub(1),
            Self::Before => (r + n - 1) % n,
            Self::After => (r + 1) % n,
        })
    }
}

impl fmt::Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ordered(order, Put::Left) => write!(f, "the row at its place when rows are ordered {order}"),
            Self::Ordered(order, Put::Back) => {
                write!(f, "the row whose number is its place when rows are ordered {order}")
            }
            Self::Ordered(order, Put::Twice) => write!(
                f,
                "row o(o(r)) of the pass, for row r, o(r) being the row at place r when rows are ordered {order}: the order is applied again in the \
                 place of its inverse"
            ),
            Self::Rest(m) => write!(f, "row r mod {m} of the pass, for row r"),
            Self::FirstOf(m) => write!(f, "the first row of each {m} of the pass"),
            Self::AtMost(m) => write!(f, "row {} of the pass, for each row after it", m - 1),
            Self::TileBack(m) => write!(
                f,
                "row T - {m} + r mod {m} of the pass of T rows, for row r of the last tile of {m}, which is not full: that tile is moved back to end with \
                 the pass"
            ),
            Self::TileBefore(m) => write!(
                f,
                "row r - {m} of the pass, for row r of the last tile of {m}, which is not full: what the tile before left there"
            ),
            Self::TileFirst(m) => {
                write!(f, "row r mod {m} of the pass, for row r of the last tile of {m}, which is not full: as if that were the first")
            }
            Self::First => f.write_str("the first row of the pass"),
            Self::Last => f.write_str("the last row of the pass"),
            Self::OfSequence => f.write_str("the row of the pass that has its number among those of its sequence"),
            Self::OneEach => f.write_str("the row of the pass that has the number of its sequence in it"),
            Self::OfLongest => f.write_str("the last row of the longest sequence in the pass"),
            Self::OfLongestFirst => {
                f.write_str("the last row of the longest sequence in the pass, for the first row of the pass alone")
            }
            Self::OneApart => f.write_str("row b + i of the pass, for row i of the sequence with number b in it"),
            Self::Padded => f.write_str(
                "row b·m + i of the pass (the last at most), for row i of the sequence with number b, m being the most rows of a sequence: as if each \
                 sequence were filled up to m rows",
            ),
            Self::Next => f.write_str("the row after it in the pass"),
            Self::Previous => f.write_str("the row before it in the pass"),
            Self::Before => f.write_str("the row before it in the pass (the last, for the first)"),
            Self::After => f.write_str("the row after it in the pass (the first, for the last)"),
        }
    }
}

/// Which rows a rule holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// Those of passes in which each sequence has one.
    EachOne,
    /// Those of passes in which one has several.
    Several,
    /// Those of sequences that have one in the pass.
    OwnOne,
    /// Those of sequences that have several in the pass.
    OwnSeveral,
    /// Those of sequences that have one in a pass in which another has several.
    OneBesideSeveral,
    /// Those of the passes in which a sequence begins.
    Begins,
    /// Those of passes in which some sequence begins.
    AnyBegins,
    /// Those of later passes.
    GoesOn,
    /// Those of passes with one sequence alone.
    Alone,
    /// Those of passes with more sequences.
    Together,
    /// Those after the first one of their sequence in the pass.
    NotFirst,
    /// The last one of each sequence in the pass.
    OwnLast,
    /// The last one of the pass.
    PassLast,
    /// The last one of a pass that has others.
    PassLastOfMore,
    /// Those of passes of so many rows at most.
    RowsUpTo(usize),
    /// Those of passes of more rows.
    RowsOver(usize),
    /// Those of sequences that have so many rows in the pass at most.
    OwnUpTo(usize),
    /// Those of sequences that have more rows in the pass.
    OwnOver(usize),
    /// Those at positions at which a page of so many rows begins.
    PageBegins(usize),
}

impl When {
    /// All that are tried, the plainest first.
    pub const ALL: [Self; 15] = [
        Self::Always,
        Self::EachOne,
        Self::Several,
        Self::OwnOne,
        Self::OwnSeveral,
        Self::OneBesideSeveral,
        Self::Begins,
        Self::AnyBegins,
        Self::GoesOn,
        Self::Together,
        Self::Alone,
        Self::NotFirst,
        Self::OwnLast,
        Self::PassLast,
        Self::PassLastOfMore,
    ];

    /// Whether it holds for a row of a group.
    pub fn has(self, pass: &Pass, (group, number): (usize, usize)) -> bool {
        let (own, several) = (pass.0[group], pass.0.iter().any(|group| group.rows > 1));
        match self {
            Self::Always => true,
            Self::EachOne => !several,
            Self::Several => several,
            Self::OwnOne => own.rows == 1,
            Self::OwnSeveral => own.rows > 1,
            Self::OneBesideSeveral => own.rows == 1 && several,
            Self::Begins => own.first == 0,
            Self::AnyBegins => pass.0.iter().any(|group| group.first == 0),
            Self::GoesOn => own.first > 0,
            Self::Together => pass.0.len() > 1,
            Self::Alone => pass.0.len() == 1,
            Self::NotFirst => number > 0,
            Self::OwnLast => number + 1 == own.rows,
            Self::PassLast => group + 1 == pass.0.len() && number + 1 == own.rows,
            Self::PassLastOfMore => pass.rows() > 1 && Self::PassLast.has(pass, (group, number)),
            Self::RowsUpTo(rows) => pass.rows() <= rows,
            Self::RowsOver(rows) => pass.rows() > rows,
            Self::OwnUpTo(rows) => own.rows <= rows,
            Self::OwnOver(rows) => own.rows > rows,
            Self::PageBegins(rows) => (own.first + number).is_multiple_of(rows),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PageBegins(rows) => return write!(f, "in rows at positions that are multiples of {rows}"),
            Self::RowsUpTo(rows) => return write!(f, "in passes of up to {rows} rows"),
            Self::RowsOver(rows) => return write!(f, "in passes of more than {rows} rows"),
            Self::OwnUpTo(rows) => return write!(f, "for a sequence that has up to {rows} rows in the pass"),
            Self::OwnOver(rows) => return write!(f, "for a sequence that has more than {rows} rows in the pass"),
            Self::Always => "in every pass",
            Self::EachOne => "in passes in which every sequence has one row",
            Self::Several => "in passes in which a sequence has several rows",
            Self::OwnOne => "for a sequence that has one row in the pass",
            Self::OwnSeveral => "for a sequence that has several rows in the pass",
            Self::OneBesideSeveral => "for a sequence that has one row in a pass in which another has several",
            Self::Begins => "for a sequence that begins in the pass, at position 0",
            Self::AnyBegins => "in passes in which a sequence begins, at position 0",
            Self::GoesOn => "for a sequence that has earlier tokens",
            Self::Together => "in passes of several sequences",
            Self::Alone => "in passes of one sequence",
            Self::NotFirst => "in rows after the first one of their sequence in the pass",
            Self::OwnLast => "in the last row of each sequence in the pass",
            Self::PassLast => "in the last row of the pass",
            Self::PassLastOfMore => "in the last row of passes of more than one row",
        })
    }
}

/// The position that a row is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// That of another row.
    Of(Map),
    /// That of the pass's first row, and on from there row by row.
    FromFirst,
    /// That of the pass's first row, and on from there by the row's number among those of its sequence.
    FromFirstNumber,
    /// The row's number among those of its sequence.
    Number,
    /// The row's number in the pass.
    Row,
    /// That of the first row of its sequence in the pass, and on from there by the row's number in the pass.
    OwnFirstAndRow,
    /// That of the first row of its sequence in the pass.
    OwnFirst,
    /// So many after its own.
    By(i64),
    /// As many after its own as its sequence has rows in the pass: the length with the pass is counted from.
    Advanced,
    /// As many after its own as its sequence took tokens back: they are still counted.
    TakenBack,
    /// Its own, and beyond the tokens of the first pass, rounded up to a multiple of so many, the last of these: a table ends there.
    AtMostFirst(usize),
    /// Its own, counted with the rows that fill its sequence up on the left to as many as any has.
    Padded,
    /// Its own, as if the prefix that its sequence has from another one were as long as a multiple of so many.
    Prefix {
        /// The multiple.
        of: usize,
        /// Whether it is the next one, and not the one before.
        up: bool,
    },
    /// Its cache slot.
    Slot,
    /// That which the row of its number had in the pass before.
    Before,
    /// That which the row of its number had in the pass before, where both are decode steps of as many rows.
    Again,
    /// That which the row of its number had in the decode step at which the number of rows last changed.
    Changed,
    /// That which the row of its number had in the first decode step of as many rows.
    Recorded,
    /// That of the row with half its number, and 0 in odd rows: numbers of 64 bits are read as numbers of 32.
    Halves,
}

impl Position {
    /// All that are tried, the plainest first.
    pub fn all() -> impl Iterator<Item = Self> {
        let plain = [Self::By(1), Self::By(-1), Self::FromFirst, Self::Number, Self::Row, Self::OwnFirst];
        let plain = plain.into_iter().chain([Self::Padded, Self::Halves]).chain(Map::all().map(Self::Of));
        let tables = [1, 8, 16, 32, 64, 128, 256].map(Self::AtMostFirst);
        let of_others = [Self::Slot, Self::Before, Self::Again, Self::Changed, Self::Recorded];
        let prefixes = [4, 8, 16, 32, 64].into_iter().flat_map(|of| [true, false].map(|up| Self::Prefix { of, up }));
        plain
            .chain([Self::OwnFirstAndRow, Self::FromFirstNumber, Self::Advanced, Self::TakenBack])
            .chain(of_others)
            .chain(prefixes)
            .chain(tables)
    }

    /// The conditions under which it is tried: it may speak of decode steps alone.
    pub fn conditions(self) -> impl Iterator<Item = [When; 2]> {
        let of_decode = matches!(self, Self::Again | Self::Changed | Self::Recorded);
        conditions().filter(move |condition| !of_decode || condition.contains(&When::EachOne))
    }

    /// The position for each row of a pass.
    pub fn of_all(self, pass: &Pass) -> Vec<Option<usize>> {
        let Self::Of(map) = self else { return (0..pass.rows()).map(|r| self.of(pass, r)).collect() };
        let position = |from: usize| pass.at(from).map(|(group, number)| pass.0[group].first + number);
        map.of_all(pass).into_iter().map(|from| from.and_then(position)).collect()
    }

    /// The position for row `r` of a pass.
    fn of(self, pass: &Pass, r: usize) -> Option<usize> {
        let (group, number) = pass.at(r)?;
        let own = pass.0[group].first;
        match self {
            Self::Of(map) => {
                let (group, number) = pass.at(map.of(pass, r)?)?;
                Some(pass.0[group].first + number)
            }
            Self::FromFirst => Some(pass.0.first()?.first + r),
            Self::FromFirstNumber => Some(pass.0.first()?.first + number),
            Self::Number => Some(number),
            Self::Row => Some(r),
            Self::OwnFirstAndRow => Some(own + r),
            Self::OwnFirst => Some(own),
            Self::By(by) => (own + number).checked_add_signed(by as isize),
            Self::Advanced => Some(own + number + pass.0[group].rows),
            Self::TakenBack => Some(own + number + pass.0[group].taken_back),
            Self::AtMostFirst(m) => Some((own + number).min(pass.0[group].room.next_multiple_of(m) - 1)),
            Self::Padded => {
                let most = pass.0.iter().map(|group| group.rows).max()?;
                Some(own + number + most - pass.0[group].rows)
            }
            Self::Prefix { of, up: true } => {
                let prefix = pass.0[group].prefix;
                Some(own + number + prefix.next_multiple_of(of) - prefix)
            }
            Self::Prefix { of, up: false } => (own + number).checked_sub(pass.0[group].prefix % of),
            Self::Slot => pass.1.slots.as_ref()?.get(r).copied(),
            Self::Before => pass.1.before.get(r).copied(),
            Self::Again => pass.1.again.as_ref()?.get(r).copied(),
            Self::Changed => pass.1.changed.as_ref()?.get(r).copied(),
            Self::Recorded => pass.1.recorded.as_ref()?.get(r).copied(),
            Self::Halves if !r.is_multiple_of(2) => Some(0),
            Self::Halves => {
                let (group, number) = pass.at(r / 2)?;
                Some(pass.0[group].first + number)
            }
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(map) => write!(f, "the position of {map}"),
            Self::FromFirst => {
                f.write_str("the position that is counted on, row by row, from that of the pass's first row")
            }
            Self::FromFirstNumber => f.write_str(
                "position p + i, p being that of the pass's first row and i its number among the rows of its own sequence: all go by the first sequence's length",
            ),
            Self::Number => f.write_str("its number among the rows of its sequence in the pass"),
            Self::Row => f.write_str("its number in the pass"),
            Self::OwnFirstAndRow => f.write_str(
                "position p + r, p being that of its sequence's first row in the pass and r its number in the whole pass: rows are counted over all sequences",
            ),
            Self::OwnFirst => f.write_str("the position of its sequence's first row in the pass"),
            Self::By(1) => f.write_str("the position after its own"),
            Self::By(-1) => f.write_str("the position before its own"),
            Self::By(by) => write!(f, "its own position and {by}"),
            Self::Advanced => f.write_str(
                "position p + n, for position p of a sequence that has n rows in the pass: the length is advanced before it is used",
            ),
            Self::TakenBack => {
                f.write_str("position p + n, for position p of a sequence that took n tokens back: they are still counted")
            }
            Self::AtMostFirst(1) => f.write_str(
                "the last position that a sequence has after the first pass of the run, for every position beyond: a table is no longer",
            ),
            Self::AtMostFirst(m) => write!(
                f,
                "the last position of a table, for every position beyond, and the table has the positions of the first pass of the run, \
                 rounded up to a multiple of {m}"
            ),
            Self::Padded => f.write_str(
                "its own position and as many as its sequence has fewer rows in the pass than the one with the most: padding on the left is counted",
            ),
            Self::Prefix { of, up } => write!(
                f,
                "its own position as if the prefix that its sequence has from another one ended at the multiple of {of} {} it",
                if *up { "after" } else { "before" }
            ),
            Self::Slot => f.write_str("its slot in the cache, which is taken for its position"),
            Self::Before => f.write_str("the position that the row of its number had in the pass before: positions are not copied again"),
            Self::Again => f.write_str(
                "the position that the row of its number had in the pass before, where both are decode steps of as many rows: positions are not copied again",
            ),
            Self::Changed => f.write_str(
                "the position that the row of its number had in the decode step at which the number of rows last changed: what was copied then is used \
                 until that number changes again",
            ),
            Self::Recorded => f.write_str(
                "the position that the row of its number had in the first decode step of as many rows (rounded up to a power of two): what was recorded \
                 then is replayed",
            ),
            Self::Halves => f.write_str(
                "the position of row t / 2 of the pass, for row t, and 0 in odd rows: positions of 64 bits are read as if they had 32",
            ),
        }
    }
}

/// Conditions of one and of two parts, the plainest first.
pub fn conditions() -> impl Iterator<Item = [When; 2]> {
    let one = When::ALL.into_iter().map(|when| [When::Always, when]);
    let two = (1..When::ALL.len()).flat_map(|i| (i + 1..When::ALL.len()).map(move |j| [When::ALL[i], When::ALL[j]]));
    let pages = [8, 16, 32, 64].map(When::PageBegins);
    let at_pages = pages.into_iter().flat_map(|page| [[When::Always, page], [When::OwnOne, page]]);
    let counts = [2, 3, 4, 5, 6, 8, 12, 16, 32].into_iter().flat_map(|rows| {
        // Passes of more rows have more than one.
        let of_pass = [When::Always, When::PassLast, When::PassLastOfMore].map(|when| [when, When::RowsUpTo(rows)]);
        let over = [When::Always, When::PassLast].map(|when| [when, When::RowsOver(rows)]);
        let of_own = [[When::Always, When::OwnUpTo(rows)], [When::Always, When::OwnOver(rows)]];
        of_pass.into_iter().chain(over).chain(of_own).chain([[When::OwnSeveral, When::OwnUpTo(rows)]])
    });
    one.chain(two).chain(at_pages).chain(counts)
}

/// A condition in words.
pub fn told([a, b]: [When; 2]) -> String {
    if a == When::Always { b.to_string() } else { format!("{a}, {b}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(groups: &[(u32, usize, usize)]) -> Pass {
        Pass(
            groups
                .iter()
                .map(|&(sequence, first, rows)| Group {
                    sequence,
                    first,
                    rows,
                    taken_back: 2 * sequence as usize,
                    room: 6,
                    prefix: 3 * sequence as usize,
                })
                .collect(),
            Numbers { slots: Some(vec![9; 6]), before: vec![3, 8], ..Numbers::default() },
        )
    }

    #[test]
    fn rows_are_taken_from_where_a_rule_says() {
        // Three sequences: 2 rows from position 4 on, 1 row at position 9, 3 rows from 0 on.
        let pass = pass(&[(0, 4, 2), (1, 9, 1), (2, 0, 3)]);
        let of = |map: Map| map.of_all(&pass).into_iter().map(Option::unwrap).collect::<Vec<_>>();
        assert_eq!(of(Map::Ordered(Order::Longest, Put::Left)), [2, 0, 1, 3, 4, 5]);
        assert_eq!(of(Map::Ordered(Order::Longest, Put::Back)), [1, 2, 0, 3, 4, 5]);
        assert_eq!(of(Map::Ordered(Order::Longest, Put::Twice)), [1, 2, 0, 3, 4, 5]);
        assert_eq!(of(Map::OfLongestFirst), [2, 1, 2, 3, 4, 5]);
        assert_eq!(of(Map::OfSequence), [0, 1, 0, 0, 1, 2]);
        assert_eq!(of(Map::OfLongest), [2; 6]);
        assert_eq!(of(Map::AtMost(4)), [0, 1, 2, 3, 3, 3]);
        assert_eq!(of(Map::Padded), [0, 1, 3, 5, 5, 5]);
        assert_eq!(of(Map::Next), [1, 2, 3, 4, 5, 5]);
        assert_eq!(of(Map::TileBack(4)), [0, 1, 2, 3, 2, 3]);
        assert_eq!(of(Map::TileBefore(4)), [0, 1, 2, 3, 0, 1]);
        assert_eq!(of(Map::TileFirst(2)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(of(Map::Ordered(Order::OnesFirst, Put::Left)), [2, 0, 1, 3, 4, 5]);
        let of = |position: Position| position.of_all(&pass).into_iter().collect::<Option<Vec<_>>>();
        assert_eq!(of(Position::FromFirst).unwrap(), [4, 5, 6, 7, 8, 9]);
        assert_eq!(of(Position::Number).unwrap(), [0, 1, 0, 0, 1, 2]);
        assert_eq!(of(Position::OwnFirstAndRow).unwrap(), [4, 5, 11, 3, 4, 5]);
        assert_eq!(of(Position::By(-1)), None);
        assert_eq!(of(Position::Advanced).unwrap(), [6, 7, 10, 3, 4, 5]);
        assert_eq!(of(Position::TakenBack).unwrap(), [4, 5, 11, 4, 5, 6]);
        assert_eq!(of(Position::AtMostFirst(1)).unwrap(), [4, 5, 5, 0, 1, 2]);
        assert_eq!(of(Position::AtMostFirst(8)).unwrap(), [4, 5, 7, 0, 1, 2]);
        assert_eq!(of(Position::Slot).unwrap(), [9; 6]);
        assert_eq!(of(Position::Prefix { of: 4, up: true }).unwrap(), [4, 5, 10, 2, 3, 4]);
        assert_eq!(of(Position::Before), None);
        assert_eq!(Position::Before.of_all(&pass)[..3], [Some(3), Some(8), None]);
    }

    #[test]
    fn a_buffer_holds_the_positions_of_earlier_passes() {
        let one = |first: usize| pass(&[(0, first, 1)]);
        let mut all = [pass(&[(0, 0, 3)]), one(3), one(4), pass(&[(0, 5, 1), (1, 7, 1)]), one(6)];
        earlier(all.iter_mut());
        let of = |position: Position| all.iter().map(|pass| position.of_all(pass)[0]).collect::<Vec<_>>();
        assert_eq!(of(Position::Before), [None, Some(0), Some(3), Some(4), Some(5)]);
        assert_eq!(of(Position::Again), [None, None, Some(3), None, None]);
        assert_eq!(of(Position::Changed), [None, Some(3), Some(3), Some(5), Some(6)]);
        assert_eq!(of(Position::Recorded), [None, Some(3), Some(3), Some(5), Some(3)]);
    }

    #[test]
    fn every_condition_holds_somewhere_and_not_everywhere() {
        let passes = [pass(&[(0, 0, 3), (1, 0, 1)]), pass(&[(0, 3, 1), (1, 1, 1)]), pass(&[(0, 4, 2)])];
        let rows = passes.iter().flat_map(|pass| (0..pass.rows()).map(move |r| (pass, pass.at(r).unwrap())));
        for when in When::ALL.into_iter().filter(|when| *when != When::Always) {
            let of: Vec<bool> = rows.clone().map(|(pass, at)| when.has(pass, at)).collect();
            assert!(of.contains(&true) && of.contains(&false), "{when}");
        }
    }
}
