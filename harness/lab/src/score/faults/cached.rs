//! KV caches in blocks that are stored or read wrongly. The quantiser here is one more, in plain loops: what a bug shows follows
//! from its own fields.

use super::Spot;
use super::kernels::rounding::{bf16, f16};
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::Op;
use qdiff_engine::quant::{ActivationFormat, KvType};
use std::ops::RangeInclusive;

/// A bug of a cache in blocks, as it can be planted.
pub struct CacheFault {
    /// Its name, in kebab case.
    pub name: &'static str,
    /// What the engine does instead.
    pub what: &'static str,
    /// Bits of a code of the formats that it happens to.
    bits: RangeInclusive<u8>,
    /// What it takes of a format.
    of: Of,
    /// Happens to the values alone, whose type must be another than that of the keys.
    values: bool,
    /// Does it.
    spoil: fn(&mut Row<'_>),
}

/// Formats.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Every,
    /// Those with an offset.
    Offsets,
    /// Those without.
    Scales,
    /// Those whose codes are centred, and not signed: q5_0 and q4_0.
    Centred,
    /// iq4_nl.
    Table,
}

impl CacheFault {
    /// Whether it can be planted in this stage where the caches have these formats.
    pub fn concerns(&self, node: &Node, kv: KvType) -> bool {
        let format = kv.of(node.is_of_values());
        let Some(kind) = Kind::of(format) else { return false };
        let of = match self.of {
            Of::Every => true,
            Of::Offsets => kind.offset,
            Of::Scales => !kind.offset,
            Of::Centred => kind.centre > 0,
            Of::Table => kind.table,
        };
        let values = !self.values || node.role == Role::Value && kv.keys != kv.values;
        matches!(node.op, Op::KvCache(_)) && of && values && self.bits.contains(&kind.bits)
    }

    /// Leaves in the rows of this step what a cache with the bug has.
    pub(super) fn spoil(&self, s: &mut Spot<'_>) {
        let given = &s.inputs[0].data;
        let (width, start) = (given.len() / s.positions.len(), s.out.len() - given.len());
        let Some(kind) = Kind::of(s.kv.of(s.node.is_of_values())) else { return };
        for (t, x) in given.chunks(width).enumerate() {
            let at = start + t * width;
            let blocks = x.chunks(32).map(|x| kind.store(x)).collect();
            let mut row = Row {
                kind,
                keys: Kind::of(s.kv.keys),
                head: s.config.head_dim / 32,
                position: s.positions[t] as usize,
                decodes: s.positions.len() == 1 && s.positions[0] > 0,
                before: at.checked_sub(width).map(|from| s.out[from..at].to_vec()),
                x,
                blocks,
                read: Vec::new(),
            };
            (self.spoil)(&mut row);
            if row.read.is_empty() {
                row.read = row.blocks.iter().flat_map(|b| b.read(kind)).collect();
            }
            s.out[at..at + width].copy_from_slice(&row.read);
        }
    }
}

/// A row on its way through the cache.
struct Row<'a> {
    kind: Kind,
    keys: Option<Kind>,
    /// Blocks of a head.
    head: usize,
    position: usize,
    decodes: bool,
    /// The row before, as it is read.
    before: Option<Vec<f32>>,
    x: &'a [f32],
    blocks: Vec<Block>,
    /// What is read of it; of the blocks where it is empty.
    read: Vec<f32>,
}

#[derive(Clone, Copy)]
struct Kind {
    bits: u8,
    offset: bool,
    /// What is taken off a code.
    centre: i32,
    table: bool,
}

#[derive(Clone, Copy)]
struct Block {
    d: f32,
    m: f32,
    q: [i32; 32],
}

const TABLE: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Kind {
    fn of(format: ActivationFormat) -> Option<Self> {
        let (bits, offset, centre, table) = match format {
            ActivationFormat::Q8_0 => (8, false, 0, false),
            ActivationFormat::Q5_1 => (5, true, 0, false),
            ActivationFormat::Q5_0 => (5, false, 16, false),
            ActivationFormat::Q4_1 => (4, true, 0, false),
            ActivationFormat::Q4_0 => (4, false, 8, false),
            ActivationFormat::Iq4Nl => (4, false, 0, true),
            _ => return None,
        };
        Some(Self { bits, offset, centre, table })
    }

    /// A block as it should be.
    fn store(self, x: &[f32]) -> Block {
        self.store_by(x, |scaled| (scaled + 0.5).floor())
    }

    /// The same, with codes rounded so.
    fn store_by(self, x: &[f32], nearest: fn(f32) -> f32) -> Block {
        let mut q = [0; 32];
        let mut largest = 0f32;
        for v in x {
            if v.abs() > largest.abs() {
                largest = *v;
            }
        }
        if self.table {
            let d = largest / TABLE[0] as f32;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            let (mut above, mut below) = (0f32, 0f32);
            for i in 0..32 {
                let mut best = 0;
                for level in 1..16 {
                    let off = |l: usize| (x[i] * inverse - TABLE[l] as f32).abs();
                    if off(level) <= off(best) {
                        best = level;
                    }
                }
                q[i] = best as i32;
                let level = TABLE[best] as f32;
                above += x[i] * x[i] * level * x[i];
                below += x[i] * x[i] * level * level;
            }
            return Block { d: f16(if below > 0.0 { above / below } else { 0.0 }), m: 0.0, q };
        }
        if self.offset {
            let top = (1 << self.bits) - 1;
            let (mut low, mut high) = (x[0], x[0]);
            for v in x {
                low = low.min(*v);
                high = high.max(*v);
            }
            let d = (high - low) / top as f32;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            for i in 0..32 {
                q[i] = (nearest((x[i] - low) * inverse) as i32).clamp(0, top);
            }
            return Block { d: f16(d), m: f16(low), q };
        }
        if self.centre == 0 {
            let d = largest.abs() / 127.0;
            let inverse = if d == 0.0 { 0.0 } else { 127.0 / largest.abs() };
            for i in 0..32 {
                let scaled = x[i] * inverse;
                // Halves to even, as the vector code does, unless the bug rounds otherwise.
                let rounded = if nearest(0.75) == 1.0 { scaled.round_ties_even() } else { nearest(scaled) };
                q[i] = (rounded as i32).clamp(-128, 127);
            }
            return Block { d: f16(d), m: 0.0, q };
        }
        let d = largest / -self.centre as f32;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        for i in 0..32 {
            q[i] = (nearest(x[i] * inverse + self.centre as f32) as i32).clamp(0, 2 * self.centre - 1);
        }
        Block { d: f16(d), m: 0.0, q }
    }
}

impl Block {
    fn read(&self, kind: Kind) -> [f32; 32] {
        let level = |q: i32| if kind.table { TABLE[q as usize & 15] } else { q - kind.centre };
        self.q.map(|q| level(q) as f32 * self.d + self.m)
    }
}

/// Each block has the scale of the one that `from` names.
fn scales(row: &mut Row<'_>, from: impl Fn(usize) -> usize) {
    let d: Vec<f32> = row.blocks.iter().map(|b| b.d).collect();
    for (i, block) in row.blocks.iter_mut().enumerate() {
        block.d = d[from(i).min(d.len() - 1)];
    }
}

/// Codes of a block in another order.
fn reordered(row: &mut Row<'_>, from: fn(usize) -> usize) {
    for block in &mut row.blocks {
        let old = block.q;
        for i in 0..32 {
            block.q[i] = old[from(i)];
        }
    }
}

const fn bug(name: &'static str, what: &'static str, of: Of, spoil: fn(&mut Row<'_>)) -> CacheFault {
    CacheFault { name, what, bits: 4..=8, of, values: false, spoil }
}

/// Every bug of a cache in blocks.
pub const FAULTS: &[CacheFault] = &[
    bug(
        "cached-scale-of-next-block",
        "each block is read with the scale of the block after it in the row",
        Of::Every,
        |r| {
            scales(r, |i| i + 1);
        },
    ),
    bug(
        "cached-scale-of-first-block-of-head",
        "all blocks of a head are read with the scale of its first",
        Of::Every,
        |r| {
            let head = r.head;
            scales(r, |i| i / head * head);
        },
    ),
    bug("cached-scale-of-first-head", "every head is read with the scales of the first head", Of::Every, |r| {
        let head = r.head;
        scales(r, |i| i % head);
    }),
    bug("cached-scale-not-passed", "the scale is not passed to the kernel, which takes 1", Of::Every, |r| {
        r.blocks.iter_mut().for_each(|b| b.d = 1.0);
    }),
    bug("cached-scale-in-bf16", "scales are kept in bf16", Of::Every, |r| {
        let x = r.x;
        for (block, x) in r.blocks.iter_mut().zip(x.chunks(32)) {
            let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
            if largest > 0.0 {
                block.d = bf16(block.d);
            }
        }
    }),
    CacheFault {
        values: true,
        ..bug("cached-values-in-the-type-of-keys", "values are stored in the type of the keys", Of::Every, |r| {
            let (Some(keys), x) = (r.keys, r.x) else { return };
            r.read = x.chunks(32).flat_map(|x| keys.store(x).read(keys)).collect();
        })
    },
    CacheFault {
        bits: 4..=4,
        ..bug(
            "cached-nibbles-exchanged",
            "the low and the high half of each byte are taken for each other",
            Of::Every,
            |r| {
                reordered(r, |i| (i + 16) % 32);
            },
        )
    },
    CacheFault {
        bits: 4..=4,
        ..bug("cached-nibbles-as-neighbours", "the two halves of a byte are taken for neighbours", Of::Every, |r| {
            reordered(r, |i| i / 2 + 16 * (i % 2));
        })
    },
    CacheFault {
        bits: 5..=5,
        ..bug("cached-fifth-bit-lost", "the fifth bit of each code is lost", Of::Every, |r| {
            r.blocks.iter_mut().for_each(|b| b.q.iter_mut().for_each(|q| *q &= 15));
        })
    },
    bug("cached-offset-lost", "the offset of each block is not added", Of::Offsets, |r| {
        r.blocks.iter_mut().for_each(|b| b.m = 0.0);
    }),
    bug("cached-offset-of-next-block", "each block is read with the offset of the block after it", Of::Offsets, |r| {
        let m: Vec<f32> = r.blocks.iter().map(|b| b.m).collect();
        let last = m.len() - 1;
        r.blocks.iter_mut().enumerate().for_each(|(i, b)| b.m = m[(i + 1).min(last)]);
    }),
    bug(
        "cached-offset-scaled",
        "the offset is added to the code before the scale is multiplied in",
        Of::Offsets,
        |r| {
            r.blocks.iter_mut().for_each(|b| b.m *= b.d);
        },
    ),
    bug("cached-codes-not-centred", "the middle of the codes is not taken off", Of::Centred, |r| {
        let centre = r.kind.centre;
        r.blocks.iter_mut().for_each(|b| b.m = b.d * centre as f32);
    }),
    bug("cached-scale-without-sign", "the scale is read without its sign", Of::Centred, |r| {
        r.blocks.iter_mut().for_each(|b| b.d = b.d.abs());
    }),
    bug("cached-codes-of-table-as-numbers", "codes are taken for numbers, of which 8 is taken off", Of::Table, |r| {
        r.read = r.blocks.iter().flat_map(|b| b.q.map(|q| (q - 8) as f32 * b.d)).collect();
    }),
    bug("cached-codes-cut", "codes are cut to whole numbers and not rounded", Of::Every, |r| {
        let (kind, x) = (r.kind, r.x);
        if !kind.table {
            r.blocks = x.chunks(32).map(|x| kind.store_by(x, f32::trunc)).collect();
        } else {
            // The table's number below.
            for (block, x) in r.blocks.iter_mut().zip(x.chunks(32)) {
                let largest = x.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
                for i in 0..32 {
                    let scaled = x[i] * -127.0 / largest;
                    block.q[i] = TABLE.iter().rposition(|l| *l as f32 <= scaled).unwrap_or(0) as i32;
                }
            }
        }
    }),
    CacheFault {
        bits: 8..=8,
        ..bug("cached-codes-without-sign", "codes are read as bytes without sign", Of::Scales, |r| {
            r.blocks.iter_mut().for_each(|b| b.q.iter_mut().for_each(|q| *q &= 255));
        })
    },
    bug(
        "cached-last-block-stale",
        "the last block of a row is not written and keeps what the row before has",
        Of::Every,
        |r| {
            let Some(before) = r.before.clone() else { return };
            r.read = r.blocks.iter().flat_map(|b| b.read(r.kind)).collect();
            let last = r.read.len() - 32;
            r.read[last..].copy_from_slice(&before[last..]);
        },
    ),
    bug("cached-last-block-empty", "the last block of a row is never written", Of::Every, |r| {
        if let Some(last) = r.blocks.last_mut() {
            *last = Block { d: 0.0, m: 0.0, q: [0; 32] };
        }
    }),
    bug(
        "cached-decode-without-blocks",
        "when a single token is decoded, its row is stored without quantisation",
        Of::Every,
        |r| {
            if r.decodes {
                r.read = r.x.to_vec();
            }
        },
    ),
    bug("cached-blocks-of-64", "two blocks share the scale of the larger one", Of::Scales, |r| {
        let (kind, x) = (r.kind, r.x);
        if kind.table {
            scales(r, |i| i / 2 * 2);
            return;
        }
        r.read = x
            .chunks(64)
            .flat_map(|x| {
                let largest = x.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
                let levels = if kind.centre == 0 { 127.0 } else { -kind.centre as f32 };
                let d = if kind.centre == 0 { largest.abs() / levels } else { largest / levels };
                let top = if kind.centre == 0 { 127 } else { kind.centre - 1 };
                x.iter()
                    .map(move |v| {
                        let q = if d == 0.0 { 0 } else { ((v / d).round() as i32).clamp(-top - 1, top) };
                        q as f32 * f16(d)
                    })
                    .collect::<Vec<f32>>()
            })
            .collect();
    }),
    bug(
        "cached-rotation-left",
        "rows are multiplied by a Hadamard matrix of 64 before they are stored, and not after",
        Of::Every,
        |r| {
            let (kind, x) = (r.kind, r.x);
            let mut rotated = x.to_vec();
            for run in rotated.chunks_mut(64) {
                let old = run.to_vec();
                for (i, v) in run.iter_mut().enumerate() {
                    let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                    *v = old.iter().enumerate().map(|(j, x)| sign(j) * x).sum::<f32>() / 8.0;
                }
            }
            r.blocks = rotated.chunks(32).map(|x| kind.store(x)).collect();
        },
    ),
    bug("cached-blocks-reversed", "the blocks of a head are read in the reverse order", Of::Every, |r| {
        let head = r.head;
        r.blocks.chunks_mut(head).for_each(<[Block]>::reverse);
    }),
    bug(
        "cached-scale-of-first-token",
        "from the second token on, rows are read with the scales of the first head doubled",
        Of::Every,
        |r| {
            if r.position > 0 {
                let head = r.head;
                r.blocks[..head].iter_mut().for_each(|b| b.d *= 2.0);
            }
        },
    ),
];
