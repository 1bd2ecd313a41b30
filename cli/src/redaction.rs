//! Keeps join tokens out of messages: people paste them where a name or a file belongs.

use std::borrow::Cow;

/// Start of every join token.
const TOKEN_START: &str = "comity-join-v";
const REDACTED: &str = "[redacted]";

/// The text with each join token replaced by its first letters.
pub(crate) fn without_tokens(text: &str) -> Cow<'_, str> {
    if !text.contains(TOKEN_START) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(TOKEN_START);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end =
            part.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))).unwrap_or(part.len());
        shown.push_str(TOKEN_START);
        // A short remainder, as in "it does not begin with 'comity-join-v1.'", holds no secret.
        let version = part[..end].find('.').map_or(end, |dot| dot + 1);
        shown.push_str(&part[..version]);
        if version < end {
            shown.push_str(REDACTED);
        }
        shown.push_str(&part[end..]);
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_cut_wherever_they_are() {
        let token = "comity-join-v1.eyJzZWNyZXQiOiJhYiJ9";
        assert_eq!(without_tokens("no token"), "no token");
        assert_eq!(without_tokens(token), "comity-join-v1.[redacted]");
        assert_eq!(
            without_tokens(&format!("'{token}' and \"{token}\"\n")),
            "'comity-join-v1.[redacted]' and \"comity-join-v1.[redacted]\"\n"
        );
        let remedy = "it does not begin with 'comity-join-v1.'; ask for another";
        assert_eq!(without_tokens(remedy), remedy);
    }
}
