//! Finds the join token of a login: in the argument, in a file, on standard input or by a prompt.

use std::io::{IsTerminal as _, Read as _};
use std::path::Path;

use comity_runtime::atomic_file;
use comity_runtime::join_token::{JoinToken, JoinTokenError, TOKEN_MAX_BYTES};
use comity_runtime::SecretString;

use super::prompt;
use crate::failure::Failure;

const MAX_INPUT_BYTES: u64 = 2 * TOKEN_MAX_BYTES as u64;
/// Paths longer than this are more likely a part of a token, and are not shown.
const SHOWN_PATH_BYTES: usize = 100;
const REMEDY: &str = "a maintainer of the federation makes a token with 'comity user add NAME'";

/// Reads the token that `argument` is or names: a token, a file, or `-` for standard input. Without an argument, asks
/// on the terminal.
pub(super) fn read(argument: Option<&SecretString>) -> Result<JoinToken, Failure> {
    let text = match argument.map(|argument| argument.expose().trim()) {
        None if std::io::stdin().is_terminal() => {
            prompt::read_secret("Token: ").map_err(|error| unreadable("the terminal", &error))?
        }
        None => {
            return Err(Failure::usage("no token is given").field("TOKEN", "").remedy(format!(
                "give it, a file with it, or - for standard input; {REMEDY}"
            )));
        }
        Some("-") => standard_input()?,
        Some(given) => match find(given) {
            Err(JoinTokenError::Prefix) => file(given)?,
            found => return found.map_err(|error| bad_token(&error)),
        },
    };
    find(text.expose()).map_err(|error| bad_token(&error))
}

/// The token in a text, which may be the whole line `comity login TOKEN`.
fn find(text: &str) -> Result<JoinToken, JoinTokenError> {
    for word in text.split_whitespace() {
        match word.parse() {
            Err(JoinTokenError::Prefix) => {}
            found => return found,
        }
    }
    Err(JoinTokenError::Prefix)
}

fn standard_input() -> Result<SecretString, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_INPUT_BYTES).read_to_string(&mut text);
    read.map_err(|error| unreadable("standard input", &error))?;
    Ok(SecretString::new(text))
}

fn file(path: &str) -> Result<SecretString, Failure> {
    let shown = if path.len() > SHOWN_PATH_BYTES { "" } else { path };
    match atomic_file::read_bounded(Path::new(path), MAX_INPUT_BYTES) {
        Ok(bytes) => Ok(SecretString::new(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.is_not_found() || shown.is_empty() => {
            Err(Failure::usage("this is neither a join token nor a file").field("TOKEN", shown).remedy(REMEDY))
        }
        Err(error) => Err(unreadable(shown, &error.source)),
    }
}

fn unreadable(what: &str, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot read the token from {what}: {error}")).field("TOKEN", "")
}

fn bad_token(error: &JoinTokenError) -> Failure {
    Failure::usage(error.to_string()).field("TOKEN", "").remedy(REMEDY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> SecretString {
        SecretString::new(text.to_owned())
    }

    #[test]
    fn a_damaged_token_is_never_shown() {
        let body = "eyJzZWNyZXQiOiJhYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5eiJ9".repeat(3);
        let file = tempfile::NamedTempFile::new().expect("made");
        std::fs::write(file.path(), format!("comity-join-v1.{body}\n")).expect("written");
        // Cut off at its end, at its beginning, in a file, and with the rest of the line.
        for given in [
            format!("comity-join-v1.{body}"),
            body.clone(),
            file.path().display().to_string(),
            format!("comity login comity-join-v1.{body}"),
        ] {
            let failure = read(Some(&secret(&given))).expect_err("damaged");
            assert_eq!(failure.exit.number(), 2);
            let shown = format!("{}{}{failure:?}", failure.text(), failure.json());
            assert!(!shown.contains("eyJzZWNyZXQi") && shown.contains("comity user add"), "{shown}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let failure = read(Some(&secret("alice.token"))).expect_err("missing");
        assert_eq!((failure.field.as_str(), failure.value.as_str()), ("TOKEN", "alice.token"));
    }
}
