//! GPT-2's alphabet: one printable character for each byte, so that a vocabulary can be written as text.
//!
//! Bytes that are printable in Latin-1 represent themselves; the others take the characters from U+0100 on, in order.

/// Whether a byte represents itself.
fn printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character of each byte.
pub fn characters() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if printable(byte) {
            char::from(byte)
        } else {
            let c = char::from_u32(next).unwrap_or_default();
            next += 1;
            c
        }
    })
}

/// The byte of a character of the alphabet.
pub(super) fn byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0..=0xFF => u8::try_from(code).ok().filter(|b| printable(*b)),
        0x100..=0x143 => (0..=0xFFu8).filter(|b| !printable(*b)).nth(code as usize - 0x100),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{byte, characters};

    #[test]
    fn each_byte_has_one_character() {
        for (b, c) in characters().into_iter().enumerate() {
            assert_eq!(byte(c), Some(b as u8));
        }
        assert_eq!(characters()[usize::from(b' ')], 'Ġ');
        assert_eq!(characters()[usize::from(b'\n')], 'Ċ');
        assert_eq!((0..0x11_0000).filter_map(char::from_u32).filter_map(byte).count(), 256);
    }
}
