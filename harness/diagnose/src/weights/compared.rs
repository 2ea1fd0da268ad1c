//! A tensor on both sides.

use qdiff_engine::model::WeightSource;

/// Blocks of a tensor that are described one by one; all are counted.
pub(super) const DESCRIBED: usize = 256;

/// One tensor on both sides.
pub(crate) struct Compared<'a> {
    /// Its name.
    pub(crate) tensor: &'a str,
    /// The side under suspicion.
    pub(crate) subject: &'a dyn WeightSource,
    /// The side it is held against.
    pub(crate) reference: &'a dyn WeightSource,
    /// Where the tensor begins in the file that is spoken of.
    pub(crate) start: u64,
    /// That file, where the model is in several.
    pub(crate) file: Option<String>,
    /// Whether both sides decode alike, so that equal bytes are equal values.
    pub(crate) one_reader: bool,
}
