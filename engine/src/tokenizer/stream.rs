//! Text from a stream of bytes: a character that tokens cut in two is held back until it is whole.

/// Decodes UTF-8 as it comes.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    held: Vec<u8>,
}

impl TextStream {
    /// The text that `bytes` completes. What can be no character any more
    /// becomes U+FFFD, as [`String::from_utf8_lossy`] has it.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let bad = chunk.invalid();
            let last = done + bad.len() == self.held.len();
            if bad.is_empty() || (last && may_become_a_character(bad)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += bad.len();
        }
        self.held.drain(..done);
        text
    }

    /// The rest: U+FFFD if a character was cut off.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Whether more bytes could make `start` a character.
fn may_become_a_character(start: &[u8]) -> bool {
    std::str::from_utf8(start).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::TextStream;
    use proptest::prelude::*;

    #[test]
    fn a_character_comes_whole() {
        let mut stream = TextStream::default();
        assert_eq!(stream.push(b"a\xF0\x9F"), "a");
        assert_eq!(stream.push(b"\xA6"), "");
        assert_eq!(stream.push(b"\x80b\xC3"), "🦀b");
        assert_eq!(stream.finish(), "\u{FFFD}");
    }

    proptest! {
        #[test]
        fn pieces_say_what_the_whole_says(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..8)) {
            let mut stream = TextStream::default();
            let mut text: String = pieces.iter().map(|p| stream.push(p)).collect();
            text.push_str(&stream.finish());
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole).into_owned());
        }
    }
}
