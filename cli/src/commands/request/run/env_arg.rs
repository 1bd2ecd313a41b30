//! Environment variables of the command.

/// Parses `NAME=VALUE`, or `NAME` for its value here.
///
/// # Errors
/// One sentence with the text and the remedy.
pub(super) fn parse_env(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => {
            let value = std::env::var(text)
                .map_err(|_| format!("{text:?} is not set here, or is not text; set it, or write {text}=VALUE"))?;
            (text, value)
        }
    };
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
        && !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit());
    if !is_name {
        return Err(format!("{name:?} is no name of a variable; write NAME=VALUE, as in EPOCHS=3"));
    }
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_given_or_taken_from_here() {
        assert_eq!(parse_env("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(parse_env("PATH").map(|(name, _)| name), Ok("PATH".to_owned()));
        for text in ["=1", "1A=2", "A B=1", ""] {
            assert!(parse_env(text).is_err_and(|error| error.contains("=")), "{text}");
        }
        assert!(parse_env("NOT_SET_ANYWHERE").is_err_and(|error| error.contains("=VALUE")));
    }
}
