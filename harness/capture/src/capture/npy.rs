//! The header of a numpy array, read with bounds.

use super::array::{Array, Format};
use anyhow::{Context as _, Result, bail, ensure};
use npyz::{Endianness, NpyHeader, Order, TypeChar};
use qdiff_engine::dtype::DType;
use std::io::Read;

/// Longest header of an npy array in bytes: ours and numpy's have 128.
const HEADER: u64 = 1 << 16;

/// Greatest depth of nested brackets in a header: the shape in the
/// dictionary, and the fields of a structured type, which is refused with its name.
const BRACKETS: usize = 4;

/// An npy array: its header is read, its elements are not. `declared` is what its elements are where numpy has no word
/// for it.
///
/// # Errors
/// What is no npy array, or one of another number type.
pub(super) fn open<R: Read>(mut file: R, declared: Option<DType>) -> Result<Array<R>> {
    let header = header(&mut file)?;
    let header = NpyHeader::from_reader(header.as_slice()).context("is no npy array")?;
    let shape = header.shape().iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>()?;
    let (format, big_endian) = format(&header.dtype(), declared)?;
    let lies = if header.order() == Order::C { Vec::new() } else { (0..shape.len()).rev().collect() };
    Ok(Array { shape, lies, format, big_endian, data: file })
}

/// The header, of reasonable length and depth. npyz allocates as much as a header claims to have, up to 4 GiB, before
/// anything of it is read, and its parser takes twice as long for every bracket in another.
fn header(mut file: impl Read) -> Result<Vec<u8>> {
    let mut start = Vec::with_capacity(128);
    // Magic and version, then the length: two bytes in version 1, four later.
    file.by_ref().take(8).read_to_end(&mut start)?;
    let digits = if start.get(6) == Some(&1) { 2 } else { 4 };
    file.by_ref().take(digits).read_to_end(&mut start)?;
    let length = start.iter().skip(8).rev();
    let length = length.fold(0, |n, &byte| n << 8 | u64::from(byte));
    ensure!(
        length <= HEADER,
        "is no npy array of ours: its header claims {length} bytes, and {HEADER} are read at most; write it with numpy.save"
    );
    file.take(length).read_to_end(&mut start)?;
    let deepest = start[start.len().min(8)..].iter().scan(0usize, |depth, byte| {
        match byte {
            b'(' | b'[' | b'{' => *depth += 1,
            b')' | b']' | b'}' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    ensure!(
        deepest.max() <= Some(BRACKETS),
        "is no npy array of ours: its header nests brackets deeper than {BRACKETS}; write it with numpy.save"
    );
    Ok(start)
}

/// The format of the elements, and whether their highest byte comes first. numpy knows neither bf16 nor fp8: those of
/// `ml_dtypes` are bytes to it (`V2`, `V1`), and many write the bits as integers. The only type of two bytes in
/// `ml_dtypes` is bf16.
fn format(dtype: &npyz::DType, declared: Option<DType>) -> Result<(Format, bool)> {
    let npyz::DType::Plain(plain) = dtype else { bail!("has dtype {}; write float32 or float16", dtype.descr()) };
    let own = match (plain.type_char(), plain.size_field()) {
        (TypeChar::Float, 2) => Some(Format::Real(DType::F16)),
        (TypeChar::Float, 4) => Some(Format::Real(DType::F32)),
        (TypeChar::Float, 8) => Some(Format::Double),
        (TypeChar::RawData, 2) if declared.is_none() => Some(Format::Real(DType::Bf16)),
        (TypeChar::RawData | TypeChar::Uint | TypeChar::Int, size) => {
            declared.filter(|e| e.size() as u64 == size).map(Format::Real)
        }
        _ => None,
    };
    let whole = match (plain.type_char(), plain.size_field()) {
        (TypeChar::Int, bytes @ (4 | 8)) if declared.is_none() => Some((bytes as usize, true)),
        (TypeChar::Uint, 4) if declared.is_none() => Some((4, false)),
        _ => None,
    };
    let whole = whole.map(|(bytes, signed)| Format::Whole { bytes, signed });
    let Some(format) = own.or(whole) else {
        bail!(
            "has dtype {}; write float32 or float16, or say under `elements` of the manifest what its bytes are",
            dtype.descr()
        )
    };
    Ok((format, plain.endianness() == Endianness::Big))
}
