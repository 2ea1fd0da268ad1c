//! Which keys a query sees: by their place and their distance from the query, by the parts of the prompt, and by the tiles
//! of keys and of queries that a kernel works in.

use crate::capture::{Capture, InPass, Step};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Where a query is.
#[derive(Clone, Copy, Debug)]
pub(in super::super::super) struct Seat {
    /// Its position.
    pub(super) position: usize,
    /// Keys that its part sees.
    pub(in super::super) keys: usize,
    /// The first position of its part.
    pub(super) first: usize,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Keys that its sequence shares with another one.
    pub(super) shared: usize,
    /// Those of them that its sequence did not write itself: it goes on from another one.
    pub(super) received: usize,
    /// Whether it is the only one of its part.
    pub(super) single: bool,
    /// The most keys of a sequence when a pass like its own first ran.
    pub(super) recorded: Option<usize>,
    /// The keys of the sequence of the pass's first row.
    pub(super) leads: Option<usize>,
    /// The keys of the shortest sequence of the pass, of those before and after its own, and of the one that had its place when a pass of
    /// as many rows first ran.
    pub(super) others: [Option<usize>; 4],
    /// The number of its head among those that share a head of the cache, and how many these are.
    pub(super) line: Option<(usize, usize)>,
}

impl Seat {
    /// That of a decoded token which sees so many keys.
    pub(in super::super) fn alone(keys: usize, prompt: usize) -> Self {
        Self {
            position: keys - 1,
            keys,
            first: keys - 1,
            prompt,
            shared: 0,
            received: 0,
            single: true,
            recorded: None,
            leads: None,
            others: [None; 4],
            line: None,
        }
    }

    /// That of a row of a part of so many tokens.
    pub(in super::super) fn of_part(first: usize, row: usize, tokens: usize) -> Self {
        let keys = first + tokens;
        Self {
            position: first + row,
            keys,
            first,
            prompt: keys,
            shared: 0,
            received: 0,
            single: false,
            recorded: None,
            leads: None,
            others: [None; 4],
            line: None,
        }
    }

    /// That of a row of a part of so many tokens, of a prompt of so many.
    pub(in super::super) fn of_run(first: usize, (row, tokens): (usize, usize), prompt: usize) -> Self {
        Self { prompt, single: tokens == 1, ..Self::of_part(first, row, tokens) }
    }

    /// The same of one of the heads that share a head of the cache, of so many.
    pub(in super::super) fn of_line(self, head: usize, heads: usize) -> Self {
        Self { line: (heads > 1).then_some((head % heads, heads)), ..self }
    }

    /// Its position.
    pub(in super::super) fn position(self) -> usize {
        self.position
    }

    /// Tokens of the prompt.
    pub(in super::super) fn prompt(self) -> usize {
        self.prompt
    }

    /// Whether it is the only query of its part.
    pub(in super::super) fn is_alone(self) -> bool {
        self.single
    }

    /// Whether it is of a decoded token.
    pub(in super::super::super) fn decodes(self) -> bool {
        self.position >= self.prompt
    }
}

/// Where the queries of a run are.
#[derive(Clone)]
pub(in super::super::super) struct Seats {
    /// The first position of each part, its tokens, and its place in a pass of several sequences.
    parts: Arc<[(usize, usize, Option<InPass>)]>,
    prompt: usize,
    /// Tokens that the sequence has from another one.
    shared: usize,
}

impl Seats {
    pub(in super::super::super) fn of(capture: &Capture) -> Self {
        let prompt = capture.steps.iter().filter(|step| step.index == 0).map(Step::keys).max().unwrap_or(0);
        let own = capture.steps.last().map_or(0, |step| step.whose.sequence);
        let others = capture.steps.iter().filter(|step| step.whose.sequence != own);
        let part = |step: &Step| (step.first, step.tokens.len(), step.in_pass);
        Self {
            parts: capture.steps.iter().map(part).collect(),
            prompt,
            shared: others.map(|step| step.tokens.len()).sum(),
        }
    }

    /// Tokens that the sequence has from another one, which it goes on from.
    pub(in super::super) fn received(&self) -> usize {
        self.shared
    }

    /// The place of the query of a position, whose part sees so many keys.
    pub(in super::super::super) fn at(&self, position: usize, keys: usize) -> Seat {
        let own = self.parts.iter().copied().filter(|(first, ..)| *first <= position).max_by_key(|(first, ..)| *first);
        let (first, tokens, in_pass) = own.unwrap_or((0, 0, None));
        let [recorded, leads] = [in_pass.and_then(|pass| pass.recorded), in_pass.map(|pass| pass.first + pass.leads)];
        Seat {
            position,
            keys,
            first,
            prompt: self.prompt,
            shared: in_pass.map_or(self.shared, |pass| pass.shared),
            received: self.shared,
            single: tokens == 1,
            recorded,
            leads,
            others: in_pass
                .map_or([None; 4], |pass| [Some(pass.shortest), pass.beside[0], pass.beside[1], pass.recorded_here]),
            line: None,
        }
    }
}

/// Keys, of those there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// Those before the query's own.
    Before,
    /// One after the query's own as well.
    Next,
    /// All of the part.
    All,
    /// The query's own.
    Own,
    /// Those of its own part.
    OwnPart,
    /// As many as its row in the part says.
    RowInPart,
    /// Those that were in the cache before the part.
    Cached,
    /// As many as the prompt has tokens, and so many more.
    Prompt(usize),
    /// Those of the pages of so many that the prompt fills or begins.
    PromptPages(usize),
    /// As many as the longest sequence had when a pass of as many rows first ran, rounded up to a multiple of this.
    Recorded(usize),
    /// As many as the sequence of the pass's first row has, rounded up to a multiple of this.
    OfLeading(usize),
    /// As many as another sequence of the pass has, rounded up to a multiple of this.
    OfOther(Other, usize),
    /// All but the last one that was in the cache before the part.
    ButLastCached,
    /// All but the first of the part.
    ButFirstOfPart,
    /// The whole pages of so many that were in the cache before the part, and those of the part.
    CachedPages(usize),
    /// All but those of the part that lie in the page of so many which earlier keys began.
    ButBegunPage(usize),
    /// All but the first so many.
    ButFirst(usize),
    /// All but the last so many.
    ButLast(usize),
    /// Less than so many before the query.
    Window(usize),
    /// The first so many.
    First(usize),
    /// Those of the query's own block.
    Block(usize),
    /// Up to the end of its own block.
    ToBlockEnd(usize),
    /// Those before its own block.
    BeforeBlock(usize),
    /// The same, and its own key.
    BeforeBlockAndOwn(usize),
    /// A window, and the first key.
    WindowAndFirst(usize),
    /// Those of whole tiles of what it sees.
    WholeTiles(usize),
    /// The same, and the first key of the tail.
    WholeTilesAndOne(usize),
    /// Those of as many tiles as the number of what it sees is nearest to, and of one at least.
    NearestTiles(usize),
    /// Those of whole shares, of which there are so many at most, of a number of keys at least; those of the first one in any case.
    WholeShares {
        /// Shares at most.
        splits: usize,
        /// Keys of a share at least.
        least: usize,
    },
    /// Those of whole tiles of what its part sees.
    WholeTilesOfPart(usize),
    /// All but those with this rest.
    ButRest(usize, usize),
    /// All but the last where the number of keys has the rest 1.
    ButLastWhere(usize),
    /// Up to the last query of its tile of queries.
    ToQueriesEnd(usize),
    /// Up to the first query of its tile of queries.
    ToQueriesStart(usize),
    /// Tiles of keys that begin no later than the first query of its tile of queries.
    TilesToQueriesStart {
        /// Keys of a tile.
        keys: usize,
        /// Queries of a tile.
        queries: usize,
    },
    /// The same of the token of the first line of its tile of lines, which are counted over tokens and the heads that share a head of
    /// the cache.
    TilesToLinesStart {
        /// Keys of a tile.
        keys: usize,
        /// Lines of a tile.
        lines: usize,
    },
    /// Whole tiles of keys up to the end of its tile of queries, and the first one at least.
    WholeTilesToQueriesEnd {
        /// Keys of a tile.
        keys: usize,
        /// Queries of a tile.
        queries: usize,
        /// Whether tiles of queries are counted from the part's first row, and not from position 0.
        of_part: bool,
        /// Whether the last tile ends with the part.
        cut: bool,
    },
    /// All of the tiles of keys that its tile of queries sees something of.
    TilesToQueriesEnd {
        /// Keys of a tile.
        keys: usize,
        /// Queries of a tile.
        queries: usize,
    },
    /// Those it should see, and all of the tiles of keys that the last query of its tile of queries sees whole.
    TilesSeenByLast {
        /// Keys of a tile.
        keys: usize,
        /// Queries of a tile.
        queries: usize,
    },
    /// Those it should see, and all of the tiles of keys before the one that the last query of its tile of queries is in.
    TilesBeforeLast {
        /// Keys of a tile.
        keys: usize,
        /// Queries of a tile.
        queries: usize,
    },
    /// Those it should see, and all of the pages of so many that hold keys which another sequence has as well.
    SharedPages(usize),
    /// All but those of a prefix from another sequence that lie in its last page of so many, which is not full.
    ButPrefixTail(usize),
    /// All but those behind a prefix from another sequence that lie in the page of so many in which it ends.
    ButPrefixPage(usize),
    /// Up to the row that a line's number says, of lines that are tokens by heads, or heads by tokens, and taken for the other.
    OfLines {
        /// Whether they are tokens by heads.
        by_token: bool,
    },
    /// All but those of the last page of so many, if that is full.
    ButFullPage(usize),
    /// Up to its row in the part, divided by this, after those in the cache.
    RowDivided(usize),
    /// Up to its position divided by this.
    PositionDivided(usize),
    /// Up to its position as if the part began at a multiple of this.
    PartRounded {
        /// The multiple.
        to: usize,
        /// Whether it is the next one, and not the one before.
        up: bool,
    },
    /// Those that splits take among which tiles are divided, rounded down.
    Dealt {
        /// Splits.
        splits: usize,
        /// Keys of a tile.
        tile: usize,
        /// Tiles that a split has at least.
        least: usize,
        /// Whether the last tile counts that is not full.
        begun: bool,
    },
}

/// Another sequence of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Other {
    /// The shortest.
    Shortest,
    /// The one before.
    Before,
    /// The one after.
    After,
    /// The one that had its place when a pass of as many rows first ran.
    Recorded,
}

/// Tiles of keys or queries.
pub(super) const TILES: [usize; 6] = [4, 8, 16, 32, 64, 128];

impl Keys {
    /// Whether a key is among them.
    pub(in super::super::super) fn has(self, k: usize, seat: Seat) -> bool {
        let Seat { position: p, keys: n, first, prompt, .. } = seat;
        let causal = k <= p;
        let tile_of_queries = |m: usize| p.saturating_sub(first) / m * m + first;
        match self {
            Self::Before => k < p,
            Self::Next => k <= p + 1,
            Self::All => true,
            Self::Own => k == p,
            Self::OwnPart => causal && k >= first,
            Self::RowInPart => k + first <= p,
            Self::Cached => k < first || first == 0 && causal,
            Self::Prompt(more) => causal && k < prompt + more,
            Self::PromptPages(m) => causal && k < prompt.next_multiple_of(m),
            Self::Recorded(m) => causal && seat.recorded.is_none_or(|keys| k < keys.next_multiple_of(m)),
            Self::OfLeading(m) => causal && seat.leads.is_none_or(|keys| k < keys.next_multiple_of(m)),
            Self::OfOther(other, m) => {
                causal && seat.others[other as usize].is_none_or(|keys| k < keys.next_multiple_of(m))
            }
            Self::ButLastCached => causal && (first == 0 || k != first - 1),
            Self::ButFirstOfPart => causal && (first == 0 || k != first),
            Self::CachedPages(m) => causal && (k >= first || k < first / m * m),
            Self::ButBegunPage(m) => causal && (k < first || k >= first.next_multiple_of(m)),
            Self::ButFirst(m) => causal && k >= m,
            Self::ButLast(m) => k + m <= p,
            Self::Window(m) => causal && p - k < m,
            Self::First(m) => causal && k < m,
            Self::Block(m) => causal && k / m == p / m,
            Self::ToBlockEnd(m) => k < (p + 1).next_multiple_of(m).min(n),
            Self::BeforeBlock(m) => k < p / m * m,
            Self::BeforeBlockAndOwn(m) => k < p / m * m || k == p,
            Self::WindowAndFirst(m) => causal && (p - k < m || k == 0),
            Self::WholeTiles(m) => causal && k < (p + 1) / m * m,
            Self::WholeTilesAndOne(m) => causal && k <= (p + 1) / m * m,
            Self::NearestTiles(m) => causal && k < ((p + 1 + m / 2) / m).max(1) * m,
            Self::WholeShares { splits, least } => {
                let share = (p + 1).div_ceil(splits).max(least);
                causal && k < ((p + 1) / share).max(1) * share
            }
            Self::WholeTilesOfPart(m) => causal && k < n / m * m,
            Self::ButRest(r, m) => causal && k % m != r,
            Self::ButLastWhere(m) => causal && !(k == p && (p + 1) % m == 1),
            Self::ToQueriesEnd(m) => k < (tile_of_queries(m) + m).min(n),
            Self::ToQueriesStart(m) => causal && k <= tile_of_queries(m),
            Self::TilesToQueriesStart { keys, queries } => causal && k / keys * keys <= tile_of_queries(queries),
            Self::TilesToLinesStart { keys, lines } => {
                let token = |(head, heads): (usize, usize)| {
                    (p.saturating_sub(first) * heads + head) / lines * lines / heads + first
                };
                causal && seat.line.is_none_or(|line| k / keys * keys <= token(line))
            }
            Self::WholeTilesToQueriesEnd { keys, queries, of_part, cut } => {
                let end = if of_part { tile_of_queries(queries) } else { p / queries * queries } + queries;
                let end = if cut { end.min(n) } else { end };
                causal && k < (end / keys * keys).max(keys)
            }
            Self::TilesToQueriesEnd { keys, queries } => {
                let last = (tile_of_queries(queries) + queries).min(n) - 1;
                k < (last / keys * keys + keys).min(n)
            }
            Self::TilesSeenByLast { keys, queries } => {
                let last = (tile_of_queries(queries) + queries).min(n) - 1;
                causal || (k / keys * keys + keys).min(n) <= last + 1
            }
            Self::TilesBeforeLast { keys, queries } => {
                let last = (tile_of_queries(queries) + queries).min(n) - 1;
                causal || k / keys < last / keys
            }
            Self::SharedPages(m) => causal || k < seat.shared.next_multiple_of(m).min(n),
            Self::ButPrefixTail(m) => causal && !(seat.received / m * m..seat.received).contains(&k),
            Self::ButPrefixPage(m) => causal && !(seat.received..seat.received.next_multiple_of(m)).contains(&k),
            Self::OfLines { by_token } => {
                let (rows, row) = (n.saturating_sub(first).max(1), p.saturating_sub(first));
                let taken = |(head, heads): (usize, usize)| match by_token {
                    true => (row * heads + head) % rows,
                    false => (head * rows + row) / heads,
                };
                seat.line.map_or(causal, |line| k <= first + taken(line))
            }
            Self::ButFullPage(m) => causal && !((p + 1).is_multiple_of(m) && k + m > p),
            Self::RowDivided(m) => k <= first + (p - first) / m,
            Self::PositionDivided(m) => k <= p / m,
            Self::PartRounded { to, up: false } => k <= p - first % to,
            Self::PartRounded { to, .. } => k <= p - first + first.next_multiple_of(to),
            Self::Dealt { splits, tile, least, begun } => {
                let tiles = if begun { n.div_ceil(tile) } else { n / tile };
                causal && k < (tiles / splits).max(least) * splits * tile
            }
        }
    }

    /// Choices that kernels make most often, where they make a wrong one.
    pub(in super::super::super) fn usual(capture: &Capture) -> Vec<Self> {
        let mut all = vec![Self::Before, Self::Next, Self::All, Self::ButFirst(1), Self::Own];
        // Parts of several sequences are not distinguished here.
        if capture.steps.len() > 1 && capture.steps.iter().all(|step| step.run == capture.steps[0].run) {
            all.extend([Self::OwnPart, Self::RowInPart, Self::Cached, Self::Prompt(0), Self::Prompt(1)]);
            all.extend([Self::ButLastCached, Self::ButFirstOfPart]);
        }
        all
    }

    /// Whether a key's number, or its distance from the query, says whether it is one of them.
    pub(in super::super) fn are_of_numbers(self) -> bool {
        matches!(
            self,
            Self::Window(_) | Self::First(_) | Self::ButFirst(_) | Self::ButLast(_) | Self::ButRest(..) | Self::Before
        )
    }

    /// Whether which they are depends on tiles of several queries.
    pub(in super::super) fn are_of_queries(self) -> bool {
        match self {
            Self::ToQueriesEnd(_) | Self::ToQueriesStart(_) => true,
            Self::WholeTilesToQueriesEnd { queries, .. } => queries > 1,
            _ => matches!(
                self,
                Self::TilesToQueriesStart { .. }
                    | Self::TilesToLinesStart { .. }
                    | Self::TilesToQueriesEnd { .. }
                    | Self::TilesSeenByLast { .. }
                    | Self::TilesBeforeLast { .. }
            ),
        }
    }

    /// Whether no number of a kernel's own says which they are.
    pub(in super::super) fn are_plain(self) -> bool {
        matches!(
            self,
            Self::Before | Self::Next | Self::All | Self::Own | Self::OwnPart | Self::RowInPart | Self::Cached
        )
    }

    /// Whether which they are depends on the query's head.
    pub(in super::super) fn are_of_lines(self) -> bool {
        matches!(self, Self::TilesToLinesStart { .. } | Self::OfLines { .. })
    }

    /// The number that parts are counted by, of rules that round where a part begins.
    pub(in super::super) fn number(self) -> Option<usize> {
        if let Self::PartRounded { to, .. } = self { Some(to) } else { None }
    }

    /// Whether which they are depends on the length of the prompt.
    pub(super) fn are_of_prompt(self) -> bool {
        matches!(self, Self::Prompt(_) | Self::PromptPages(_))
    }

    /// Those that splits leave to nobody, of tiles of one key and more.
    fn dealt() -> impl Iterator<Item = Self> {
        let splits = [2, 4, 8, 3, 16, 5, 6, 7, 32];
        let tiles = [1, 16, 32, 64, 8, 128, 4];
        let all = splits.into_iter().flat_map(move |splits| tiles.map(|tile| (splits, tile)));
        all.flat_map(|(splits, tile)| {
            let each = [1, 2, 4].map(|least| Self::Dealt { splits, tile, least, begun: true });
            each.into_iter().chain((tile > 1).then_some(Self::Dealt { splits, tile, least: 1, begun: false }))
        })
    }

    /// All that are looked for; `reach` are numbers that the given values show.
    pub(in super::super) fn all(capture: &Capture, reach: &[usize]) -> Vec<Self> {
        let mut all = Self::usual(capture);
        all.extend([4, 8, 16, 32, 64, 128, 256].map(Self::PromptPages));
        if capture.steps.iter().any(|step| step.in_pass.is_some_and(|pass| pass.recorded.is_some())) {
            all.extend([1, 8, 16, 32, 64, 128, 256].map(Self::Recorded));
        }
        if capture.steps.iter().any(|step| step.in_pass.is_some_and(|pass| pass.before > 0 || pass.beside[1].is_some()))
        {
            all.extend([1, 8, 16, 32, 64, 128, 256].map(Self::OfLeading));
            let others = [Other::Shortest, Other::Before, Other::After, Other::Recorded];
            all.extend(others.into_iter().flat_map(|other| [1, 8, 16, 32, 64].map(|m| Self::OfOther(other, m))));
        }
        for m in reach.iter().copied().chain([4, 8, 16, 32, 64, 128, 256, 512, 1024]) {
            all.extend([Self::Window(m), Self::First(m), Self::Block(m), Self::ToBlockEnd(m)]);
            if m > 1 {
                all.push(Self::WholeTiles(m));
            }
            if m > 2 {
                all.push(Self::WholeTilesAndOne(m));
            }
            all.extend([Self::BeforeBlock(m), Self::BeforeBlockAndOwn(m), Self::WindowAndFirst(m)]);
        }
        for m in [2, 4, 8, 16, 32] {
            all.extend((0..m).map(|r| Self::ButRest(r, m)));
            all.push(Self::ButLastWhere(m));
        }
        all.extend((1..=4).flat_map(|m| [Self::ButLast(m), Self::ButFirst(m)]));
        all.extend(TILES.map(Self::WholeTilesOfPart));
        all.extend(TILES.map(Self::NearestTiles));
        all.extend(TILES.into_iter().flat_map(|m| [Self::ToQueriesEnd(m), Self::ToQueriesStart(m)]));
        let both = TILES.into_iter().flat_map(|keys| TILES.map(|queries| (keys, queries)));
        all.extend(both.clone().map(|(keys, queries)| Self::TilesToQueriesStart { keys, queries }));
        all.extend(both.clone().map(|(keys, lines)| Self::TilesToLinesStart { keys, lines }));
        // Tiles of one query end with it.
        all.extend(TILES.map(|keys| Self::WholeTilesToQueriesEnd { keys, queries: 1, of_part: false, cut: false }));
        let ways = [(true, true), (true, false), (false, true), (false, false)];
        all.extend(both.clone().flat_map(|(keys, queries)| {
            ways.map(|(of_part, cut)| Self::WholeTilesToQueriesEnd { keys, queries, of_part, cut })
        }));
        all.extend(both.clone().map(|(keys, queries)| Self::TilesToQueriesEnd { keys, queries }));
        all.extend(both.clone().map(|(keys, queries)| Self::TilesSeenByLast { keys, queries }));
        all.extend(both.map(|(keys, queries)| Self::TilesBeforeLast { keys, queries }));
        if capture.steps.iter().any(|step| step.in_pass.is_some_and(|pass| pass.shared > 0)) {
            all.extend([4, 8, 16, 32, 64].map(Self::SharedPages));
        }
        if Seats::of(capture).received() > 0 {
            all.extend([4, 8, 16, 32, 64].into_iter().flat_map(|m| [Self::ButPrefixTail(m), Self::ButPrefixPage(m)]));
        }
        all.extend([true, false].map(|by_token| Self::OfLines { by_token }));
        all.extend([4, 8, 16, 32, 64].map(Self::ButFullPage));
        all.extend((2..=8).flat_map(|m| [Self::RowDivided(m), Self::PositionDivided(m)]));
        if capture.steps.len() > 1 {
            all.extend(TILES.into_iter().flat_map(|m| [Self::CachedPages(m), Self::ButBegunPage(m)]));
            all.extend(TILES.into_iter().flat_map(|to| [false, true].map(|up| Self::PartRounded { to, up })));
        }
        all.extend(Self::dealt());
        let least = [1, 16, 32, 64, 128, 256];
        all.extend((2..=64).flat_map(|splits| least.map(|least| Self::WholeShares { splits, least })));
        all
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before => f.write_str("the keys before the query's own, which is not seen"),
            Self::Next => f.write_str("one key too many: the slot after the position of the query is seen"),
            Self::All => f.write_str("all keys of the part: nothing is masked"),
            Self::Own => f.write_str("the query's own key alone"),
            Self::OwnPart => f.write_str("the keys of the query's own part alone: those in the cache are not seen"),
            Self::RowInPart => {
                f.write_str("the keys up to the query's row in its part, which is taken for its position")
            }
            Self::Cached => {
                f.write_str("the keys that were in the cache before the part: those of the part itself are not seen")
            }
            Self::Prompt(0) => f.write_str("the keys of the prompt alone: those of decoded tokens are not seen"),
            Self::Prompt(m) => write!(
                f,
                "the first keys alone, as many as the prompt has tokens and {m} more: the number of keys does not grow"
            ),
            Self::PromptPages(m) => {
                write!(
                    f,
                    "the keys of the pages of {m} that the prompt fills or begins: pages that are added later are not seen"
                )
            }
            Self::Recorded(1) => f.write_str(
                "as many keys as the longest sequence had when a pass of as many rows first ran: what was launched then is launched again",
            ),
            Self::Recorded(m) => write!(
                f,
                "as many tiles of {m} keys as the longest sequence had when a pass of as many rows first ran: what was launched then is launched again"
            ),
            Self::OfLeading(1) => f.write_str(
                "as many keys as the sequence of the pass's first row has: its length is taken for that of each sequence",
            ),
            Self::OfLeading(m) => write!(
                f,
                "as many tiles of {m} keys as the sequence of the pass's first row has: its length is taken for that of each sequence"
            ),
            Self::OfOther(other, m) => {
                let of = match other {
                    Other::Shortest => "the shortest sequence of the pass",
                    Other::Before => "the sequence before it in the pass",
                    Other::After => "the sequence after it in the pass",
                    Other::Recorded => {
                        let tiles = if *m > 1 { format!("tiles of {m} keys") } else { "keys".to_owned() };
                        return write!(
                            f,
                            "as many {tiles} as the sequence at its place had when a pass of as many rows first ran: lengths of then are used again"
                        );
                    }
                };
                let tiles = if *m > 1 { format!("tiles of {m} keys") } else { "keys".to_owned() };
                write!(f, "as many {tiles} as {of} has: its length is taken for the sequence's own")
            }
            Self::ButLastCached => f.write_str("all keys but the last that was in the cache before the part"),
            Self::ButFirstOfPart => f.write_str("all keys but the first of the part"),
            Self::CachedPages(m) => write!(
                f,
                "the part's own keys and whole pages of {m} of those that were in the cache before it: the page that these had begun is left out"
            ),
            Self::ButBegunPage(m) => {
                write!(f, "all keys but those of the part that lie in a page of {m} which earlier keys had begun")
            }
            Self::ButFirst(1) => f.write_str("all keys but the first"),
            Self::ButFirst(m) => write!(f, "all keys but the first {m}"),
            Self::ButLast(m) => write!(f, "all keys but the last {m}"),
            Self::Window(m) => write!(f, "keys less than {m} before the query: a sliding window"),
            Self::First(m) => write!(f, "the first {m} keys alone"),
            Self::Block(m) => write!(f, "the keys of the query's own block of {m}"),
            Self::ToBlockEnd(m) => {
                write!(f, "all keys up to the end of the query's own {m}: later ones are not masked")
            }
            Self::BeforeBlock(m) => write!(f, "the keys before the query's own {m}"),
            Self::BeforeBlockAndOwn(m) => write!(f, "the keys before the query's own {m}, and its own key"),
            Self::WindowAndFirst(m) => write!(f, "the last {m} keys and the first"),
            Self::WholeTiles(m) => write!(f, "whole tiles of {m} keys: the tail is left out"),
            Self::WholeTilesAndOne(m) => {
                write!(f, "whole tiles of {m} keys, and one key of those that are left over: the rest of the tail is left out")
            }
            Self::NearestTiles(m) => write!(
                f,
                "as many tiles of {m} keys as the number of keys is nearest to: a tail of less than half a tile is left out"
            ),
            Self::WholeShares { splits, least } => {
                let least = if *least > 1 { format!(", and {least} at least") } else { String::new() };
                write!(
                    f,
                    "whole shares of the keys, a share being their number divided by {splits}, rounded up{least}: the last share, which is not full, is left out"
                )
            }
            Self::WholeTilesOfPart(m) => {
                write!(f, "whole tiles of {m} of the keys that the part has: the tail is left out")
            }
            Self::ButRest(r, m) => write!(f, "the keys but those ≡ {r} mod {m}"),
            Self::ButLastWhere(m) => write!(f, "the keys but the last where (keys mod {m}) = 1"),
            Self::ToQueriesEnd(m) => write!(
                f,
                "all keys up to the last query of its tile of {m} of the part: the mask is that of the tile and not of the row"
            ),
            Self::ToQueriesStart(m) => write!(
                f,
                "the keys up to the first query of its tile of {m} of the part: the mask is that of the tile's first row"
            ),
            Self::TilesToQueriesStart { keys, queries } => write!(
                f,
                "the tiles of {keys} keys that begin no later than the first query of its tile of {queries} of the part: a tile on the diagonal is skipped"
            ),
            Self::TilesToLinesStart { keys, lines } => write!(
                f,
                "the tiles of {keys} keys that begin no later than the token of the first line in its tile of {lines} (lines are counted over tokens and the heads that share a head of the cache): a tile on the diagonal is skipped"
            ),
            Self::WholeTilesToQueriesEnd { keys, queries: 1, .. } => {
                write!(f, "whole tiles of {keys} keys: the tail is left out, but not that of the first")
            }
            Self::WholeTilesToQueriesEnd { keys, queries, of_part, .. } => {
                let of = if *of_part { " of the part" } else { "" };
                write!(
                    f,
                    "whole tiles of {keys} keys, as many as there are up to the end of its tile of {queries} queries{of}: the tile in which that ends is left out"
                )
            }
            Self::TilesToQueriesEnd { keys, queries } => write!(
                f,
                "all of the tiles of {keys} keys that its tile of {queries} queries of the part sees something of: the tile on the diagonal is not masked"
            ),
            Self::TilesSeenByLast { keys, queries } => write!(
                f,
                "its own keys, and all of each tile of {keys} that the last query of its tile of {queries} of the part sees whole: there nothing is masked, for no query"
            ),
            Self::TilesBeforeLast { keys, queries } => write!(
                f,
                "its own keys, and all of the tiles of {keys} before the one that the last query of its tile of {queries} of the part is in: that one alone is masked"
            ),
            Self::SharedPages(m) => {
                write!(f, "its own keys, and all of the pages of {m} that hold the prefix which another sequence shares: there nothing is masked")
            }
            Self::ButPrefixTail(m) => write!(
                f,
                "all keys but those which a prefix from another sequence has in its last page of {m}, which it does not fill"
            ),
            Self::ButPrefixPage(m) => write!(
                f,
                "all keys but those that lie behind a prefix from another sequence in the page of {m} in which it ends"
            ),
            Self::OfLines { by_token } => {
                let (are, taken) = if *by_token { ("tokens by heads", "heads by tokens") } else { ("heads by tokens", "tokens by heads") };
                write!(
                    f,
                    "the keys up to the token of another line of the part: the lines are {are} (of the heads that share a head of the cache), and the mask takes them for {taken}"
                )
            }
            Self::ButFullPage(m) => write!(f, "all keys but the last {m} where their number is a multiple of {m}: a full last page is left out"),
            Self::RowDivided(m) => {
                write!(f, "the keys up to the query's row in its part divided by {m}, and those in the cache")
            }
            Self::PositionDivided(m) => write!(f, "the keys up to the query's position divided by {m}"),
            Self::PartRounded { to, up } => {
                let way = if *up { "up" } else { "down" };
                write!(
                    f,
                    "the keys up to the query's position as if its part began at a multiple of {to}, rounded {way}"
                )
            }
            Self::Dealt { splits, tile, least, begun } => {
                let what = match (tile, begun) {
                    (1, _) => "keys are".to_owned(),
                    (_, true) => format!("tiles of {tile} keys are"),
                    (_, false) => format!("whole tiles of {tile} keys are"),
                };
                let least = if *least > 1 { format!(" ({least} at least for each)") } else { String::new() };
                write!(
                    f,
                    "what {splits} splits take: {what} divided among them, rounded down{least}, and the rest belongs to none"
                )
            }
        }
    }
}
