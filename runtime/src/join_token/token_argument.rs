//! A join token on the command line: the token itself, the path of a file with it, or `-` for standard input.

use std::io::Read as _;
use std::path::Path;

use comity_types::JOIN_TOKEN_PREFIX;
use thiserror::Error;
use zeroize::Zeroizing;

use super::{JoinToken, JoinTokenError, TOKEN_MAX_BYTES};
use crate::atomic_file::{self, FileError};

/// Bytes read from a file or from standard input, at most: a token with blanks around it.
const INPUT_MAX_BYTES: u64 = 2 * TOKEN_MAX_BYTES as u64;

/// Why a command line argument yields no token. Never quotes the token.
#[derive(Debug, Error)]
pub enum TokenArgumentError {
    /// The file cannot be read.
    #[error("{0}; give the token itself, a file with it, or - for standard input")]
    File(#[from] FileError),
    /// Standard input cannot be read.
    #[error("cannot read the join token from standard input: {0}")]
    Input(#[source] std::io::Error),
    /// The text is not a token.
    #[error(transparent)]
    Token(#[from] JoinTokenError),
}

/// Whether a text is meant as a join token. A program that expects a file name checks this before it prints the name.
#[must_use]
pub fn is_token(text: &str) -> bool {
    text.trim_start().starts_with(JOIN_TOKEN_PREFIX)
}

/// Whether a text may be a token that was cut off at its beginning. Errors would quote it as a file name.
fn resembles_token(text: &str) -> bool {
    const SHORTEST: usize = 100;
    text.len() > SHORTEST && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

impl JoinToken {
    /// Reads the token that a command line argument names: inline, a file, or `-`.
    ///
    /// # Errors
    /// [`TokenArgumentError`].
    pub fn from_argument(argument: &str) -> Result<Self, TokenArgumentError> {
        let text = if is_token(argument) || argument.trim().is_empty() {
            Zeroizing::new(argument.to_owned())
        } else if argument == "-" {
            read_input(std::io::stdin().lock())?
        } else if resembles_token(argument) && !Path::new(argument).exists() {
            return Err(JoinTokenError::Prefix.into());
        } else {
            let bytes = Zeroizing::new(atomic_file::read_bounded(Path::new(argument), INPUT_MAX_BYTES)?);
            Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(text.parse()?)
    }
}

fn read_input(input: impl std::io::Read) -> Result<Zeroizing<String>, TokenArgumentError> {
    let mut text = Zeroizing::new(String::new());
    input.take(INPUT_MAX_BYTES).read_to_string(&mut text).map_err(TokenArgumentError::Input)?;
    Ok(text)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::entropy::SeededEntropy;

    fn line() -> String {
        let token = JoinToken::generate(
            "127.0.0.1:7443".parse().unwrap(),
            "ab".repeat(32).parse().unwrap(),
            "spiffe://dev.test/broker/2".parse().unwrap(),
            &SeededEntropy::new(1),
        );
        token.encode().expose().clone()
    }

    #[test]
    fn a_token_is_read_inline_and_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("join.token");
        std::fs::write(&file, format!("{}\n", line())).unwrap();
        for argument in [line(), format!(" {}", line()), file.display().to_string()] {
            assert_eq!(JoinToken::from_argument(&argument).unwrap().broker().unwrap(), 2);
        }
        assert_eq!(*read_input(line().as_bytes()).unwrap(), line());
        // A file name that is empty says nothing.
        let error = JoinToken::from_argument(" ").unwrap_err().to_string();
        assert!(error.contains("the text is empty"), "{error}");
    }

    #[test]
    fn errors_name_the_file_and_never_the_token() {
        let error = JoinToken::from_argument("/nonexistent/join.token").unwrap_err().to_string();
        assert!(error.contains("/nonexistent/join.token") && error.contains("standard input"), "{error}");
        let cut = &line()[..60];
        let error = JoinToken::from_argument(cut).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(&cut[20..]), "{error}");
        assert!(is_token(cut) && !is_token("join.token"));
        let rest = &line()[20..];
        let error = JoinToken::from_argument(rest).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(&rest[..20]), "{error}");
    }
}
