//! What can be tapped.

/// The elements of an array in the capture's format.
#[derive(Clone, Debug, PartialEq)]
pub struct Elements {
    /// Number format: `f32`, `f64`, `f16`, `bf16`, `f8_e4m3`, `f8_e5m2`, and for tables of indices `i32` and `i64`.
    pub format: &'static str,
    /// Extents, outermost axis first.
    pub shape: Vec<usize>,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

impl Elements {
    /// Those of this shape, which come in row-major order.
    pub fn of<T: Element>(shape: Vec<usize>, elements: impl IntoIterator<Item = T>) -> Self {
        let mut bytes = Vec::with_capacity(shape.iter().product::<usize>() * size_of::<T>());
        elements.into_iter().for_each(|element| element.put(&mut bytes));
        Self { format: T::FORMAT, shape, bytes }
    }

    /// Refuses what qdiff cannot read.
    pub(crate) fn check(&self) -> Result<(), String> {
        let size = match self.format {
            "f64" | "i64" => 8,
            "f32" | "i32" => 4,
            "f16" | "bf16" => 2,
            "f8_e4m3" | "f8_e5m2" => 1,
            other => return Err(format!("qdiff reads no number format {other}")),
        };
        if self.shape.is_empty() || self.shape.contains(&0) {
            return Err(format!("an array of shape {:?} has no rows", self.shape));
        }
        let count = self.shape.iter().try_fold(size, |n: usize, extent| n.checked_mul(*extent));
        if count != Some(self.bytes.len()) {
            let (shape, length) = (&self.shape, self.bytes.len());
            return Err(format!("{length} bytes are no array of shape {shape:?} in {}", self.format));
        }
        Ok(())
    }
}

/// What an engine has its values in. Implement it for a tensor of your own to tap that directly.
pub trait Array {
    /// Its elements, copied.
    ///
    /// # Errors
    /// Why it is no array, or cannot be read.
    fn elements(&self) -> Result<Elements, String>;
}

impl<A: Array + ?Sized> Array for &A {
    fn elements(&self) -> Result<Elements, String> {
        (**self).elements()
    }
}

/// Elements in a number format of any kind, as they are in memory.
impl Array for Elements {
    fn elements(&self) -> Result<Elements, String> {
        Ok(self.clone())
    }
}

/// A number that a capture can hold. Implement it for a narrow float of your own.
pub trait Element: Copy {
    /// As [`Elements::format`].
    const FORMAT: &'static str;
    /// Appends its bytes, little-endian.
    fn put(self, out: &mut Vec<u8>);
}

macro_rules! elements {
    ($($(#[$when:meta])? $number:ty = $format:literal),+ $(,)?) => {$(
        $(#[$when])?
        impl Element for $number {
            const FORMAT: &'static str = $format;
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )+};
}

elements! {
    f32 = "f32",
    f64 = "f64",
    i32 = "i32",
    i64 = "i64",
    #[cfg(feature = "half")] half::f16 = "f16",
    #[cfg(feature = "half")] half::bf16 = "bf16",
}

/// Rows of `width` elements, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    /// All of them.
    pub data: &'a [T],
    /// Elements of a row.
    pub width: usize,
}

impl<T: Element> Array for Rows<'_, T> {
    fn elements(&self) -> Result<Elements, String> {
        let (length, width) = (self.data.len(), self.width);
        if width == 0 || !length.is_multiple_of(width) {
            return Err(format!("{length} elements are no rows of {width}"));
        }
        Ok(Elements::of(vec![length / width, width], self.data.iter().copied()))
    }
}

/// An array of any shape whose first element is the first of `data`.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T> {
    /// Where its elements stand, and what lies between them.
    pub data: &'a [T],
    /// Extents, outermost axis first.
    pub shape: &'a [usize],
    /// How many elements apart the elements of an axis are.
    pub strides: &'a [usize],
}

impl<T: Element> Array for Strided<'_, T> {
    fn elements(&self) -> Result<Elements, String> {
        let Self { data, shape, strides } = *self;
        let last = shape
            .iter()
            .zip(strides)
            .try_fold(0usize, |at, (extent, stride)| at.checked_add(extent.checked_sub(1)?.checked_mul(*stride)?));
        if shape.len() != strides.len() || last.is_none_or(|last| last >= data.len()) {
            let length = data.len();
            return Err(format!("{length} elements hold no array of shape {shape:?} with strides {strides:?}"));
        }
        // Offsets of the elements: those of the axes so far, each with all indices of the next.
        let offsets = shape.iter().zip(strides).fold(vec![0], |offsets, (extent, stride)| {
            offsets.iter().flat_map(|at| (0..*extent).map(move |i| at + i * stride)).collect()
        });
        Ok(Elements::of(shape.to_vec(), offsets.into_iter().map(|at| data[at])))
    }
}

#[cfg(feature = "ndarray")]
impl<T: Element, S: ndarray::Data<Elem = T>, D: ndarray::Dimension> Array for ndarray::ArrayBase<S, D> {
    fn elements(&self) -> Result<Elements, String> {
        Ok(Elements::of(self.shape().to_vec(), self.iter().copied()))
    }
}
