//! Metadata values, typed as in the file.

use super::error::Problem;
use super::reader::Reader;
use serde_json::Value as Json;

/// Many strings in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StringArray {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl StringArray {
    pub(crate) fn push(&mut self, string: &[u8]) {
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

/// A string as JSON has it: what is not UTF-8 in it becomes U+FFFD.
fn text(bytes: &[u8]) -> Json {
    String::from_utf8_lossy(bytes).into()
}

/// A number as JSON has it: NaN and infinity, which it has not, become text.
fn number(json: Json, value: impl ToString) -> Json {
    if json.is_null() { value.to_string().into() } else { json }
}

/// Makes the values of a list of types of fixed length: number in a file, variant, type, name, and how its bytes are
/// read.
macro_rules! values {
    ($($id:literal $variant:ident($ty:ty) $name:literal $read:expr;)*) => {
        /// An array of one element type. GGUF has no arrays of arrays.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is named after its element type")]
        pub enum ArrayValue {
            $($variant(Vec<$ty>),)*
            String(StringArray),
        }

        impl ArrayValue {
            /// How many elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$variant(v) => v.len(),)*
                    Self::String(v) => v.len(),
                }
            }

            /// Whether there is none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The elements' type, as [`Value::type_name`].
            pub fn type_name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                    Self::String(_) => "str",
                }
            }

            /// The first `n` elements, as a list.
            pub fn json(&self, n: usize) -> Json {
                match self {
                    $(Self::$variant(v) => v.iter().take(n).map(|v| number((*v).into(), v)).collect(),)*
                    Self::String(v) => v.iter().take(n).map(text).collect(),
                }
            }

            /// `n` elements of the type of fixed length with this number, if there is one.
            pub(super) fn read(r: &mut Reader<'_>, id: u32, n: u64) -> Result<Option<Self>, Problem> {
                Ok(match id {
                    $($id => Some(Self::$variant(r.numbers(n, $read)?)),)*
                    _ => None,
                })
            }
        }

        /// A metadata value.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is named after its type")]
        pub enum Value {
            $($variant($ty),)*
            /// Of any bytes: GGUF says UTF-8, files say what they like.
            String(Box<[u8]>),
            Array(ArrayValue),
        }

        impl Value {
            /// The type's name as in llama.cpp's messages: "u32", "str", "arr", ...
            pub fn type_name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                    Self::String(_) => "str",
                    Self::Array(_) => "arr",
                }
            }

            /// The value of one element, or the first `n` of an array.
            pub fn json(&self, n: usize) -> Json {
                match self {
                    $(Self::$variant(v) => number((*v).into(), v),)*
                    Self::String(v) => text(v),
                    Self::Array(v) => v.json(n),
                }
            }

            /// A value of the type of fixed length with this number, if there is one.
            pub(super) fn read(r: &mut Reader<'_>, id: u32) -> Result<Option<Self>, Problem> {
                Ok(match id {
                    $($id => Some(Self::$variant(r.array("a metadata value").map($read)?)),)*
                    _ => None,
                })
            }
        }
    };
}

values! {
    0 U8(u8) "u8" u8::from_le_bytes;
    1 I8(i8) "i8" i8::from_le_bytes;
    2 U16(u16) "u16" u16::from_le_bytes;
    3 I16(i16) "i16" i16::from_le_bytes;
    4 U32(u32) "u32" u32::from_le_bytes;
    5 I32(i32) "i32" i32::from_le_bytes;
    6 F32(f32) "f32" f32::from_le_bytes;
    7 Bool(bool) "bool" |[byte]| byte != 0;
    10 U64(u64) "u64" u64::from_le_bytes;
    11 I64(i64) "i64" i64::from_le_bytes;
    12 F64(f64) "f64" f64::from_le_bytes;
}

impl Value {
    /// An integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => v.try_into().ok(),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => v.try_into().ok(),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => v.try_into().ok(),
            Self::U64(v) => Some(v),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
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
