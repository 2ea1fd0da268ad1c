//! Small GGUF files, written byte by byte, and what is expected of files that are bad in one way each.

use super::llama_says::{Asked, loaded};

/// What is expected of a file.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// qdiff and llama.cpp take it.
    Taken,
    /// Both refuse it, qdiff with these words.
    Refused(&'static [&'static str]),
    /// qdiff refuses it with these words, llama.cpp takes it; why it is refused all the same.
    Stricter(&'static [&'static str], &'static str),
}

/// A file, and what is expected of it.
pub struct Case {
    pub bytes: Vec<u8>,
    pub expected: Expected,
}

pub fn taken(bytes: Vec<u8>) -> Case {
    Case { bytes, expected: Expected::Taken }
}

pub fn refused(words: &'static [&'static str], bytes: Vec<u8>) -> Case {
    Case { bytes, expected: Expected::Refused(words) }
}

pub fn stricter(why: &'static str, words: &'static [&'static str], bytes: Vec<u8>) -> Case {
    Case { bytes, expected: Expected::Stricter(words, why) }
}

/// Classes of files: the name of each, with files of it.
pub struct Classes(pub Vec<(&'static str, Vec<Case>)>);

impl Classes {
    /// Holds what is expected of every file against what llama.cpp says.
    pub fn agree(self, asked: Asked) {
        let cases: Vec<_> =
            self.0.into_iter().flat_map(|(name, files)| files.into_iter().map(move |f| (name, f))).collect();
        let files: Vec<_> = cases.iter().map(|(_, case)| case.bytes.clone()).collect();
        let mut wrong = Vec::new();
        for ((name, case), loads) in cases.iter().zip(loaded(&files, asked)) {
            let (expected, words, why) = match case.expected {
                Expected::Taken => (true, &[][..], "as qdiff"),
                Expected::Refused(words) => (false, words, "as qdiff"),
                Expected::Stricter(words, why) => (true, words, why),
            };
            if loads != expected {
                wrong.push(format!("{name}: {words:?}, expected to load: {expected} ({why})"));
            }
        }
        assert!(wrong.is_empty(), "llama.cpp says otherwise of\n{}", wrong.join("\n"));
    }
}

/// Makes a test of each class, named after it, and `all`, which gives them together. Each file is given to `$check`.
macro_rules! classes {
    ($check:path; $($(#[$doc:meta])* $name:ident: $files:expr;)*) => {
        $($(#[$doc])* #[test] fn $name() { ($files).into_iter().for_each(|case| $check(&case)) })*

        /// Every class.
        pub fn all() -> $crate::gguf_files::Classes {
            $crate::gguf_files::Classes(vec![$((stringify!($name), Vec::from($files))),*])
        }
    };
}
pub(crate) use classes;

/// One tensor of a file under construction: (name, dims, type, offset).
pub type Tensor<'a> = (&'a str, &'a [i64], u32, i64);

pub fn string(out: &mut Vec<u8>, s: &[u8]) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s);
}

/// A file of raw metadata entries `(key, type and value)` and tensors; data of
/// `n_data` bytes from the next multiple of `alignment`.
pub fn build(kv: &[(&str, Vec<u8>)], tensors: &[Tensor<'_>], alignment: usize, n_data: usize) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((kv.len() as u64).to_le_bytes());
    for (key, value) in kv {
        string(&mut out, key.as_bytes());
        out.extend(value);
    }
    for (name, dims, ty, offset) in tensors {
        string(&mut out, name.as_bytes());
        out.extend((dims.len() as u32).to_le_bytes());
        out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(alignment) + n_data, 7);
    out
}

pub fn u32_value(v: u32) -> Vec<u8> {
    [4_u32.to_le_bytes(), v.to_le_bytes()].concat()
}

/// An array value: element type, length, then raw elements.
pub fn array(ty: u32, n: i64, elements: &[u8]) -> Vec<u8> {
    [&9_u32.to_le_bytes()[..], &ty.to_le_bytes(), &n.to_le_bytes(), elements].concat()
}

pub fn small() -> Vec<u8> {
    let mut text = 8_u32.to_le_bytes().to_vec();
    string(&mut text, b"some \xff text");
    let mut strings = Vec::new();
    string(&mut strings, b"a");
    string(&mut strings, b"bc");
    build(
        &[
            ("general.alignment", u32_value(64)),
            ("text", text),
            ("tokens", array(8, 2, &strings)),
            ("scores", array(6, 2, &[0; 8])),
            ("flag", [&7_u32.to_le_bytes()[..], &[5]].concat()),
        ],
        &[("a", &[32, 2], 8, 0), ("b", &[3], 0, 128)],
        64,
        128 + 12,
    )
}
