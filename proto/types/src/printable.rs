//! Text from elsewhere, made safe to print: on a terminal, a control character moves the cursor, changes the title or
//! answers for the user, a bidirectional control makes a line read differently from what it says, and an invisible
//! character makes two names look the same or carries a message that only programs read.
//!
//! Doors refuse such text (`is_printable`); what prints replaces the characters, whoever let them in.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character acts on a terminal, a line or the direction of text, or shows nothing: the control characters
/// (C0, DEL, C1), the separators of lines and paragraphs, and the characters with the General Category Cf or the
/// property `Default_Ignorable_Code_Point`. The latter has the joiners and variation selectors of some scripts and emoji.
#[must_use]
pub fn is_steering(character: char) -> bool {
    character.is_control() || (!character.is_ascii() && is_format_or_ignorable(character))
}

/// `DerivedGeneralCategory.txt` (Cf, Zl, Zp) and `DerivedCoreProperties.txt` of the Unicode Character Database 16.0.
fn is_format_or_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}'
        | '\u{8e2}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether a text is one line that only shows characters.
#[must_use]
pub fn is_printable(text: &str) -> bool {
    !text.chars().any(is_steering)
}

/// Whether a text of several lines only shows characters: line breaks and tabs are its only controls.
#[must_use]
pub fn is_printable_text(text: &str) -> bool {
    matches!(printable(text), Cow::Borrowed(_))
}

/// The text with escapes such as `\u{1b}` in place of characters that steer; keeps line breaks and tabs.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |out, steering, next| match (steering, next) {
        ('\n' | '\t', _) | ('\r', Some('\n')) => out.push(steering),
        _ => out.extend(steering.escape_unicode()),
    })
}

/// The text as one line: blanks in place of line breaks and tabs, and escapes in place of other characters that steer.
#[must_use]
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escaped(text, |out, steering, next| match (steering, next) {
        ('\r', Some('\n')) => {}
        ('\n' | '\t', _) => out.push(' '),
        _ => out.extend(steering.escape_unicode()),
    })
}

/// The same JSON value, with the escapes of JSON in place of characters that steer. Serialisers escape only those below
/// U+0020.
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    escaped(json, |out, steering, next| match (steering, next) {
        // Between values; inside strings they are escaped already.
        ('\n' | '\t', _) | ('\r', Some('\n')) => out.push(steering),
        // Alone it would overwrite the line.
        ('\r', _) => out.push('\n'),
        // JSON writes a character beyond U+FFFF as two surrogates. A string takes any formatted text.
        _ => steering.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(out, "\\u{unit:04x}")),
    })
}

/// Passes each steering character, and the one after it, to `escape`.
fn escaped(text: &str, escape: impl Fn(&mut String, char, Option<char>)) -> Cow<'_, str> {
    let Some((first, _)) = text.char_indices().find(|(_, c)| is_steering(*c)) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    let mut characters = text[first..].chars().peekable();
    while let Some(character) = characters.next() {
        if is_steering(character) {
            escape(&mut out, character, characters.peek().copied());
        } else {
            out.push(character);
        }
    }
    if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_steers_is_shown_as_an_escape() {
        for (text, line) in [
            ("\u{1b}[31mred\u{1b}[0m", r"\u{1b}[31mred\u{1b}[0m"),
            ("\u{1b}]0;title\u{7}", r"\u{1b}]0;title\u{7}"),
            ("\u{9b}2J", r"\u{9b}2J"),
            ("over\rwritten\u{8}\u{7f}", r"over\u{d}written\u{8}\u{7f}"),
            ("user\u{202e}nimda\u{2066}", r"user\u{202e}nimda\u{2066}"),
            ("two\u{2028}lines", r"two\u{2028}lines"),
            ("ad\u{200b}min", r"ad\u{200b}min"),
            ("\u{feff}ad\u{2060}m\u{2064}in", r"\u{feff}ad\u{2060}m\u{2064}in"),
            ("ad\u{ad}min\u{e0061}\u{e007f}", r"ad\u{ad}min\u{e0061}\u{e007f}"),
            ("ad\u{200d}min\u{fe0f}\u{e01ef}", r"ad\u{200d}min\u{fe0f}\u{e01ef}"),
            ("\u{3164}\u{115f}\u{180e}\u{fff9}", r"\u{3164}\u{115f}\u{180e}\u{fff9}"),
        ] {
            assert_eq!((printable(text), printable_line(text)), (line.into(), line.into()));
            assert!(!is_printable(text) && !is_printable_text(text), "{text:?}");
        }
    }

    #[test]
    fn line_breaks_are_text_but_no_part_of_a_line() {
        let text = "first\r\nsecond\tcolumn\n";
        assert_eq!(printable(text), text);
        assert_eq!(printable_line(text), "first second column ");
        assert!(is_printable_text(text) && !is_printable(text));
        for plain in ["", "astronomie-données 東京 שלום", "काशी 한글 👩🔬"] {
            assert_eq!((printable(plain), printable_line(plain)), (plain.into(), plain.into()));
            assert!(is_printable(plain));
        }
    }

    #[test]
    fn a_carriage_return_between_json_values_overwrites_no_line() {
        let json = "{\"refused\":true,\r \"ok\":\r\ntrue}";
        let safe = printable_json(json);
        assert_eq!(safe, "{\"refused\":true,\n \"ok\":\r\ntrue}");
        assert!(is_printable_text(&safe));
        assert!(serde_json::from_str::<serde_json::Value>(&safe).is_ok());
    }

    proptest! {
        #[test]
        fn json_keeps_its_value(text in ".*|[a\\x{200b}\\x{feff}\\x{e0000}-\\x{e0fff}]*", pretty: bool) {
            let value = serde_json::json!({ "text": text });
            let json = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let json = json.expect("a string serialises");
            let safe = printable_json(&json);
            prop_assert!(is_printable_text(&safe));
            let back: serde_json::Value = serde_json::from_str(&safe).expect("still JSON");
            prop_assert_eq!(back, value);
        }

        #[test]
        fn nothing_that_steers_is_left(text in "\\PC*|[\\x00-\\x{ad}\\x{200b}-\\x{206f}\\x{fe00}-\\x{feff}\\x{e0000}-\\x{e0fff}]*") {
            prop_assert!(is_printable(&printable_line(&text)));
            prop_assert!(is_printable_text(&printable(&text)));
        }
    }
}
