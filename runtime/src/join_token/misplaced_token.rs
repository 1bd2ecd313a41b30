//! Finds a join token among the arguments of a command line that expect something else, whose errors would print it.

use clap::{Arg, ArgMatches, Command};
use thiserror::Error;

use super::is_token;

/// A join token stands in the place of another value. Never quotes the token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{argument} is a join token; give the token as in '{usage}', and nothing else there")]
pub struct MisplacedToken {
    /// The argument, as in `--kubeconfig <FILE>`.
    pub argument: String,
    /// A command line with the token in its place.
    pub usage: &'static str,
}

/// Checks the values of all arguments, but for those with the names in `expected`, where a token belongs. `matches` are
/// those of `command`.
///
/// # Errors
/// [`MisplacedToken`] for the first argument with a token.
pub fn misplaced_token(
    command: &Command,
    matches: &ArgMatches,
    expected: &[&str],
    usage: &'static str,
) -> Result<(), MisplacedToken> {
    for id in matches.ids().filter(|id| !expected.contains(&id.as_str())) {
        // The name of a group of arguments has no values of its own.
        let values = matches.try_get_raw(id.as_str()).ok().flatten();
        if values.into_iter().flatten().any(|value| is_token(&value.to_string_lossy())) {
            let argument = command.get_arguments().find(|argument| argument.get_id() == id);
            return Err(MisplacedToken { argument: argument.map_or_else(|| id.to_string(), Arg::to_string), usage });
        }
    }
    let below = matches.subcommand().and_then(|(name, below)| Some((command.find_subcommand(name)?, below)));
    below.map_or(Ok(()), |(command, matches)| misplaced_token(command, matches, expected, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_where_none_is_expected_and_not_printed() {
        let command = || {
            let below = Command::new("join").args([Arg::new("token"), Arg::new("kube_config").long("kube-config")]);
            Command::new("agent").subcommand(below)
        };
        let check = |words: &[&str]| {
            let mut command = command();
            let matches = command.try_get_matches_from_mut(words).expect("a command line");
            misplaced_token(&command, &matches, &["token"], "agent join TOKEN")
        };
        let token = "comity-join-v1.c2VjcmV0";
        assert_eq!(check(&["agent", "join", token, "--kube-config", "file"]), Ok(()));
        let error = check(&["agent", "join", "--kube-config", token]).expect_err("misplaced").to_string();
        assert!(
            error.starts_with("--kube-config <kube_config> is a join token") && !error.contains("c2VjcmV0"),
            "{error}"
        );
    }
}
