//! Metadata values, typed as in the file.

/// Many strings in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StringArray {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl StringArray {
    pub(super) fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    /// How many strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of string `i`.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        Some(&self.bytes[start..end])
    }

    /// The bytes of each string, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}

/// An array of one element type. GGUF has no arrays of arrays.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is named after its element type")]
pub enum ArrayValue {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl ArrayValue {
    /// How many elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is named after its type")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Of any bytes: GGUF says UTF-8, files say what they like.
    String(Box<[u8]>),
    Array(ArrayValue),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The type's name as in llama.cpp's messages: "u32", "str", "arr", ...
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "str",
            Self::Array(_) => "arr",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// An integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        self.integer()?.try_into().ok()
    }

    /// An integer of any width that fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.integer()?.try_into().ok()
    }

    /// A float of either width, exactly; integers are none.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// A bool.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(v) = self { Some(*v) } else { None }
    }

    /// A string that is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(v) = self { std::str::from_utf8(v).ok() } else { None }
    }

    /// An array of strings, UTF-8 or not.
    pub fn as_strings(&self) -> Option<&StringArray> {
        if let Self::Array(ArrayValue::String(v)) = self { Some(v) } else { None }
    }

    /// An array of `i32`.
    pub fn as_i32_array(&self) -> Option<&[i32]> {
        if let Self::Array(ArrayValue::I32(v)) = self { Some(v) } else { None }
    }
}
