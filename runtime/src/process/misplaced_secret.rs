//! Finds secrets among the arguments of a command line, whose errors, brokers and logs would repeat them: private keys, and
//! join tokens where something else is expected.

use clap::{Arg, ArgMatches, Command};
use comity_types::has_private_key;
use thiserror::Error;

use crate::join_token::is_token;

/// A secret stands in the place of another value. Never quotes it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MisplacedSecret {
    /// A join token.
    #[error("{argument} is a join token; give the token as in '{usage}', and nothing else there")]
    Token {
        /// The argument, as in `--kubeconfig <FILE>`.
        argument: String,
        /// A command line with the token in its place.
        usage: &'static str,
    },
    /// A private key. No argument takes one.
    #[error(
        "{argument} is a private key, and no argument takes one; give what '--help' says, and make a new key if others \
         can read your shell's history"
    )]
    PrivateKey {
        /// The argument, as in `<LEASE>`.
        argument: String,
    },
}

/// Checks the values of all arguments. A join token may stand in those with the names in `expected`. `matches` are those
/// of `command`.
///
/// # Errors
/// [`MisplacedSecret`] for the first argument with a secret.
pub fn misplaced_secret(
    command: &Command,
    matches: &ArgMatches,
    expected: &[&str],
    usage: &'static str,
) -> Result<(), MisplacedSecret> {
    for id in matches.ids() {
        let argument = || {
            let argument = command.get_arguments().find(|argument| argument.get_id() == id);
            argument.map_or_else(|| id.to_string(), Arg::to_string)
        };
        // The name of a group of arguments has no values of its own.
        for value in matches.try_get_raw(id.as_str()).ok().flatten().into_iter().flatten() {
            let value = value.to_string_lossy();
            if has_private_key(&value) {
                return Err(MisplacedSecret::PrivateKey { argument: argument() });
            }
            if is_token(&value) && !expected.contains(&id.as_str()) {
                return Err(MisplacedSecret::Token { argument: argument(), usage });
            }
        }
    }
    let below = matches.subcommand().and_then(|(name, below)| Some((command.find_subcommand(name)?, below)));
    below.map_or(Ok(()), |(command, matches)| misplaced_secret(command, matches, expected, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str]) -> Result<(), MisplacedSecret> {
        let below = Command::new("join").args([Arg::new("token"), Arg::new("kube_config").long("kube-config")]);
        let mut command = Command::new("agent").subcommand(below);
        let matches = command.try_get_matches_from_mut(words).expect("a command line");
        misplaced_secret(&command, &matches, &["token"], "agent join TOKEN")
    }

    #[test]
    fn a_token_is_found_where_none_is_expected_and_not_printed() {
        let token = "comity-join-v1.c2VjcmV0";
        assert_eq!(check(&["agent", "join", token, "--kube-config", "file"]), Ok(()));
        let error = check(&["agent", "join", "--kube-config", token]).expect_err("misplaced").to_string();
        assert!(
            error.starts_with("--kube-config <kube_config> is a join token") && !error.contains("c2VjcmV0"),
            "{error}"
        );
    }

    #[test]
    fn a_private_key_is_refused_in_every_argument_and_not_printed() {
        let key = "-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0\n-----END EC PRIVATE KEY-----\n";
        let option = |value| format!("--kube-config={value}");
        for words in [&["agent", "join", &option(key)][..], &["agent", "join", "--", key]] {
            let error = check(words).expect_err("misplaced").to_string();
            assert!(error.contains(" is a private key") && !error.contains("c2VjcmV0"), "{error}");
        }
        let certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        assert_eq!(check(&["agent", "join", &option(certificate)]), Ok(()));
    }
}
