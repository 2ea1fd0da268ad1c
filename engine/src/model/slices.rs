//! Slices of tensors, by names as numpy writes them: `blk.0.attn_q.weight[448:896]` for rows, or for the elements of a
//! vector; `blk.0.ffn_down.weight[:, 0:2432]` for columns.

use crate::quant::{GgmlType, Stored, WeightSource};
use std::ops::Range;
use std::sync::OnceLock;

/// What of a tensor a name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice<'n> {
    /// The tensor.
    pub tensor: &'n str,
    /// Whether columns are meant.
    pub columns: bool,
    /// Which.
    pub range: Range<usize>,
}

impl<'n> Slice<'n> {
    /// The slice of this name; `None` where the name is that of a whole tensor.
    pub fn of(name: &'n str) -> Option<Self> {
        let (tensor, rest) = name.strip_suffix(']')?.rsplit_once('[')?;
        let (columns, range) = rest.strip_prefix(":, ").map_or((false, rest), |range| (true, range));
        let (start, end) = range.split_once(':')?;
        let range: Range<usize> = start.parse().ok()?..end.parse().ok()?;
        (range.start <= range.end).then_some(Self { tensor, columns, range })
    }
}

/// The tensor of which a name means a slice, or all.
pub fn tensor_of(name: &str) -> &str {
    Slice::of(name).map_or(name, |slice| slice.tensor)
}

/// Weights of a source, and slices of them.
pub struct Slices<S> {
    source: S,
    cut: Kept,
}

/// Columns that were cut out of a tensor, and those that were cut after them.
#[derive(Default)]
struct Kept(OnceLock<Box<(Columns, Kept)>>);

/// Columns of a tensor, as a tensor of its own.
struct Columns {
    name: String,
    ty: GgmlType,
    extent: (usize, usize),
    bytes: Vec<u8>,
}

impl<S: WeightSource> Slices<S> {
    /// Of this source.
    pub fn new(source: S) -> Self {
        Self { source, cut: Kept::default() }
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The columns of this name, cut out at their first use.
    fn columns(&self, name: &str, slice: &Slice<'_>) -> &Columns {
        let mut at = &self.cut;
        loop {
            let (columns, next) = &**at.0.get_or_init(|| Box::new((self.cut_out(name, slice), Kept::default())));
            if columns.name == name {
                return columns;
            }
            at = next;
        }
    }

    /// In the tensor's own format where they are whole blocks, else as f32.
    fn cut_out(&self, name: &str, slice: &Slice<'_>) -> Columns {
        let (Range { start, end }, Stored { ty, extent: (n, rows), bytes }) =
            (slice.range.clone(), self.source.stored(slice.tensor));
        let extent = (end - start, rows);
        let aligned = [start, end].iter().all(|at| at.is_multiple_of(ty.block_size()));
        let (ty, bytes) = if aligned {
            let row = |row: &[u8]| row[ty.row_bytes(start)..ty.row_bytes(end)].to_vec();
            (ty, bytes.chunks(ty.row_bytes(n)).flat_map(row).collect())
        } else {
            let mut values = vec![0f32; (end - start) * rows];
            self.read(slice, 0, &mut values);
            (GgmlType::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
        };
        Columns { name: name.to_owned(), ty, extent, bytes }
    }

    /// Rows of columns, decoded as the source decodes its rows.
    fn read(&self, slice: &Slice<'_>, first: usize, out: &mut [f32]) {
        let (n, _) = self.source.extent(slice.tensor);
        let mut whole = vec![0f32; n];
        for (i, out) in out.chunks_mut(slice.range.len().max(1)).enumerate() {
            self.source.rows(slice.tensor, first + i, &mut whole);
            out.copy_from_slice(&whole[slice.range.clone()]);
        }
    }

    /// The slice that a name means here; of a vector its elements are columns.
    fn slice<'n>(&self, name: &'n str) -> Option<Slice<'n>> {
        let slice = Slice::of(name)?;
        let vector = self.source.extent(slice.tensor).1 == 1;
        Some(Slice { columns: slice.columns || vector, ..slice })
    }
}

impl<S: WeightSource> WeightSource for Slices<S> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        match self.slice(tensor) {
            None => self.source.stored(tensor),
            Some(slice) if slice.columns => {
                let Columns { ty, extent, bytes, .. } = self.columns(tensor, &slice);
                Stored { ty: *ty, extent: *extent, bytes }
            }
            Some(Slice { tensor, range, .. }) => {
                let Stored { ty, extent: (n, _), bytes } = self.source.stored(tensor);
                let of = |rows: usize| rows * ty.row_bytes(n);
                Stored { ty, extent: (n, range.len()), bytes: &bytes[of(range.start)..of(range.end)] }
            }
        }
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        match self.slice(tensor) {
            None => self.source.rows(tensor, first, out),
            Some(slice) if slice.columns => self.read(&slice, first, out),
            Some(slice) => self.source.rows(slice.tensor, slice.range.start + first, out),
        }
    }

    fn extent(&self, tensor: &str) -> (usize, usize) {
        match self.slice(tensor) {
            None => self.source.extent(tensor),
            Some(slice) => {
                let (n, rows) = self.source.extent(slice.tensor);
                if slice.columns { (slice.range.len(), rows) } else { (n, slice.range.len()) }
            }
        }
    }
}
