//! Keeps join tokens out of messages: people paste them where a name or a file belongs.

use std::borrow::Cow;

/// Start of tokens of every version.
const TOKEN_START: &str = "comity-join-v";
/// Stands for a token.
const REDACTED: &str = "comity-join-[redacted]";

/// The text with each token in it replaced, for messages that may quote what a person typed.
#[must_use]
pub fn redact_tokens(text: &str) -> Cow<'_, str> {
    if !text.contains(TOKEN_START) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(TOKEN_START);
    let mut redacted = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_of_token = |letter: char| letter.is_ascii_alphanumeric() || "-_.=+/".contains(letter);
        redacted.push_str(REDACTED);
        redacted.push_str(part.trim_start_matches(is_of_token));
    }
    Cow::Owned(redacted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_redacted_wherever_they_stand() {
        let token = "comity-join-v1.eyJzZWNyZXQiOiJhYiJ9";
        assert_eq!(
            redact_tokens(&format!("cannot open '{token}': no such file, {token} twice")),
            "cannot open 'comity-join-[redacted]': no such file, comity-join-[redacted] twice"
        );
        assert!(matches!(redact_tokens("/etc/comity-join/join.token"), Cow::Borrowed(_)));
    }
}
