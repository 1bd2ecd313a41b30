//! Finds a join token among the arguments of a command line that expect something else, whose errors would print it.

use clap::ArgMatches;
use thiserror::Error;

use super::is_token;

/// A join token stands in the place of another value. Never quotes the token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{argument} is a join token; give the token as in '{usage}', and nothing else there")]
pub struct MisplacedToken {
    /// The argument, as in `--kubeconfig`.
    pub argument: String,
    /// A command line with the token in its place.
    pub usage: &'static str,
}

/// Checks the values of all arguments, but for those with the names in `expected`, where a token belongs.
///
/// # Errors
/// [`MisplacedToken`] for the first argument with a token.
pub fn misplaced_token(matches: &ArgMatches, expected: &[&str], usage: &'static str) -> Result<(), MisplacedToken> {
    for id in matches.ids().map(clap::Id::as_str).filter(|id| !expected.contains(id)) {
        // The name of a group of arguments has no values of its own.
        let values = matches.try_get_raw(id).ok().flatten();
        if values.into_iter().flatten().any(|value| is_token(&value.to_string_lossy())) {
            return Err(MisplacedToken { argument: format!("--{}", id.replace('_', "-")), usage });
        }
    }
    matches.subcommand().map_or(Ok(()), |(_, below)| misplaced_token(below, expected, usage))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn a_token_is_found_where_none_is_expected_and_not_printed() {
        let command = || {
            let below = Command::new("join").args([Arg::new("token"), Arg::new("kube_config").long("kube-config")]);
            Command::new("agent").subcommand(below)
        };
        let check = |words: &[&str]| {
            let matches = command().try_get_matches_from(words).expect("a command line");
            misplaced_token(&matches, &["token"], "agent join TOKEN")
        };
        let token = "comity-join-v1.c2VjcmV0";
        assert_eq!(check(&["agent", "join", token, "--kube-config", "file"]), Ok(()));
        let error = check(&["agent", "join", "--kube-config", token]).expect_err("misplaced").to_string();
        assert!(error.starts_with("--kube-config is a join token") && !error.contains("c2VjcmV0"), "{error}");
    }
}
