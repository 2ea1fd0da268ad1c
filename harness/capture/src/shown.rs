//! Text from files as people are shown it: names, prompts and causes come from whoever wrote the file, so what steers
//! a terminal, hides, reorders or gives orders is written out. Every format and every line on a stream goes through here.

/// Whether nobody could see `c`, or it changes how what stands around it is seen: controls, line separators, the
/// controls of writing direction, and what Unicode calls default-ignorable (zero-width and filler characters,
/// variation selectors, tags); and the noncharacters, some of which XML cannot hold.
pub fn unseen(c: char) -> bool {
    c.is_control()
        || u32::from(c) & 0xfffe == 0xfffe
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{3164}' | '\u{fdd0}'..='\u{fdef}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// `text` on one line, with invisible characters as escapes: `\n`, `\u{202e}`. Nor does it hold the beginning of
/// an old command of GitHub Actions, `##[error]`, which works anywhere in a line.
pub fn shown(text: &str) -> String {
    kept(text, |_| false)
}

/// Several lines likewise; tabs stay. A line that would be a command of GitHub Actions, `::error`, is none any more.
pub fn shown_lines(text: &str) -> String {
    let line = |line: &str| {
        let line = kept(line, |c| matches!(c, '\n' | '\t'));
        let command = line.trim_start().starts_with("::");
        if command { line.replacen(':', r"\u{3a}", 1) } else { line }
    };
    text.split_inclusive('\n').map(line).collect()
}

fn kept(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if unseen(c) && !keep(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.replace("##[", r"#\u{23}[")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_sees_is_written_out() {
        for (text, expected) in [
            ("blk.0 – é 漢字 🙂", "blk.0 – é 漢字 🙂"),
            ("a\tb\r\n", r"a\tb\r\n"),
            ("\u{1b}[31m\u{9b}2J\u{7f}", r"\u{1b}[31m\u{9b}2J\u{7f}"),
            ("\u{202e}\u{2066}\u{200f}\u{61c}", r"\u{202e}\u{2066}\u{200f}\u{61c}"),
            ("q\u{200b}_\u{feff}proj\u{2028}", r"q\u{200b}_\u{feff}proj\u{2028}"),
        ] {
            assert_eq!(shown(text), expected);
            assert_eq!(shown(expected), expected, "twice is as once");
        }
    }

    #[test]
    fn lines_give_no_orders() {
        assert_eq!(
            shown_lines("a ::x\n \t::error::y\nz ##[add-mask]\n"),
            "a ::x\n \t\\u{3a}:error::y\nz #\\u{23}[add-mask]\n"
        );
    }
}
