//! Stored archives changed from outside, byte by byte.

/// Replaces part of an array's numpy header by text of the same length.
///
/// # Panics
/// If the array is not there.
pub fn retitle(npz: &mut [u8], array: &str, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let (start, end) = extent(npz, array);
    let magic = (0..start).rfind(|&i| npz[i..].starts_with(b"\x93NUMPY")).unwrap();
    let at = magic + npz[magic..start].windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
    npz[at..at + to.len()].copy_from_slice(to.as_bytes());
    seal(npz, array, magic, end);
}

/// Changes the f32 values of one stored array in an npz, checksum included.
///
/// # Panics
/// If the array is not there.
pub fn tamper(npz: &mut [u8], array: &str, change: fn(&mut [f32])) {
    let (start, end) = extent(npz, array);
    let mut values: Vec<f32> = npz[start..end].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    change(&mut values);
    for (bytes, v) in npz[start..end].chunks_mut(4).zip(&values) {
        bytes.copy_from_slice(&v.to_le_bytes());
    }
    let magic = (0..start).rfind(|&i| npz[i..].starts_with(b"\x93NUMPY")).unwrap();
    seal(npz, array, magic, end);
}

fn find(npz: &[u8], what: &[u8], from: usize) -> usize {
    from + npz[from..].windows(what.len()).position(|w| w == what).unwrap()
}

/// Where the values of a stored array begin and end.
fn extent(npz: &[u8], array: &str) -> (usize, usize) {
    let local = find(npz, format!("{array}.npy").as_bytes(), 0);
    let magic = find(npz, b"\x93NUMPY", local);
    let header = u16::from_le_bytes([npz[magic + 8], npz[magic + 9]]) as usize;
    let start = magic + 10 + header;
    let record = |w: &[u8]| [&b"PK\x03\x04"[..], b"PK\x01\x02", b"PK\x07\x08"].contains(&w);
    let next = npz[start..].windows(4).position(record).unwrap();
    (start, start + next / 4 * 4)
}

/// Mends the checksum, in the local header and in the central directory.
fn seal(npz: &mut [u8], array: &str, magic: usize, end: usize) {
    let name = format!("{array}.npy");
    let local = find(npz, name.as_bytes(), 0);
    let crc = crc32(&npz[magic..end]).to_le_bytes();
    npz[local - 16..local - 12].copy_from_slice(&crc);
    let central = find(npz, name.as_bytes(), local + name.len());
    npz[central - 30..central - 26].copy_from_slice(&crc);
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for b in bytes {
        crc ^= u32::from(*b);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & 0u32.wrapping_sub(crc & 1));
        }
    }
    !crc
}
