//! Where a join token comes from: a file, standard input, or the token itself, which is never printed.

use std::convert::Infallible;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use comity_runtime::atomic_file::FileError;
use comity_runtime::join_token::{JoinToken, TOKEN_MAX_BYTES, TokenArgumentError, is_token};
use comity_runtime::{Secret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::join_error::JoinError;

/// Bytes read for a token, at most: a token with some white space around it.
const TOKEN_FILE_MAX_BYTES: u64 = 2 * TOKEN_MAX_BYTES as u64;

/// Source of a join token. A text that is a token is one, wherever a file is expected.
#[derive(Clone, Debug)]
pub enum JoinTokenSource {
    /// A file.
    File(PathBuf),
    /// The token itself.
    Inline(SecretString),
    /// Standard input, "-".
    StandardInput,
}

impl JoinTokenSource {
    /// The same source, with standard input read: it can be read only once.
    ///
    /// # Errors
    /// [`JoinError::File`].
    pub fn loaded(self) -> Result<Self, JoinError> {
        if !matches!(self, Self::StandardInput) {
            return Ok(self);
        }
        let mut text = Zeroizing::new(String::new());
        let read = std::io::stdin().lock().take(TOKEN_FILE_MAX_BYTES).read_to_string(&mut text);
        read.map_err(|source| FileError { operation: "read", path: PathBuf::from("standard input"), source })?;
        Ok(Self::Inline(Secret::new(std::mem::take(&mut *text))))
    }

    /// Reads and parses the token.
    ///
    /// # Errors
    /// [`JoinError::File`] or [`JoinError::Token`]; neither quotes the token.
    pub fn read(&self) -> Result<JoinToken, JoinError> {
        let invalid = |origin: &dyn fmt::Display, source| JoinError::Token { origin: origin.to_string(), source };
        match self {
            Self::Inline(text) => text.expose().parse().map_err(|source| invalid(self, source)),
            Self::File(path) => JoinToken::from_argument(&path.to_string_lossy()).map_err(|error| match error {
                TokenArgumentError::File(error) => error.into(),
                TokenArgumentError::Input(source) => FileError { operation: "read", path: path.clone(), source }.into(),
                TokenArgumentError::Token(source) if path.exists() => invalid(self, source),
                // It may be a token that was cut off at its beginning.
                TokenArgumentError::Token(source) => invalid(&"the given text", source),
            }),
            Self::StandardInput => self.clone().loaded()?.read(),
        }
    }

    /// The file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Inline(_) | Self::StandardInput => None,
        }
    }
}

impl FromStr for JoinTokenSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "-" => Self::StandardInput,
            token if is_token(token) => Self::Inline(Secret::new(token.to_owned())),
            path => Self::File(PathBuf::from(path)),
        })
    }
}

impl fmt::Display for JoinTokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Inline(_) => f.write_str("the given text"),
            Self::StandardInput => f.write_str("standard input"),
        }
    }
}

impl PartialEq for JoinTokenSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => one == other,
            (Self::Inline(one), Self::Inline(other)) => one.ct_eq(other.expose().as_bytes()),
            (Self::StandardInput, Self::StandardInput) => true,
            _ => false,
        }
    }
}

impl Eq for JoinTokenSource {}

impl Serialize for JoinTokenSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::File(path) => path.serialize(serializer),
            Self::Inline(secret) => serializer.collect_str(secret),
            Self::StandardInput => serializer.serialize_str("-"),
        }
    }
}

impl<'de> Deserialize<'de> for JoinTokenSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        let Ok(source) = text.parse();
        Ok(source)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_token_where_a_file_is_expected_is_recognised_and_not_printed() {
        let text = "comity-join-v1.c2VjcmV0";
        let source: JoinTokenSource = text.parse().unwrap();
        assert!(matches!(source, JoinTokenSource::Inline(_)) && source.file().is_none());
        let error = source.read().unwrap_err();
        let yaml = serde_json::to_string(&source).unwrap();
        let printed = format!("{source} {source:?} {error} {error:?} {yaml}");
        assert!(!printed.contains("c2VjcmV0"), "{printed}");
        let from_yaml: JoinTokenSource = serde_json::from_str(&format!("{text:?}")).unwrap();
        assert!(from_yaml == source);
    }

    #[test]
    fn other_texts_name_a_file_or_standard_input() {
        let parse = |text: &str| text.parse::<JoinTokenSource>().unwrap();
        assert_eq!(parse("/etc/comity/join.token").file(), Some(Path::new("/etc/comity/join.token")));
        assert_eq!(parse("-"), JoinTokenSource::StandardInput);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join.token");
        std::fs::write(&path, "no token").unwrap();
        let error = parse(path.to_str().unwrap()).read().unwrap_err().to_string();
        assert!(error.contains("join.token: not a join token"), "{error}");
        let cut = "eyJzZWNyZXQiOiJhYiJ9".repeat(10);
        let error = parse(&cut).read().unwrap_err();
        assert!(!format!("{error} {error:?}").contains(&cut), "{error}");
    }
}
