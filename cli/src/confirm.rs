//! Asks before a command takes something away.

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use comity_types::printable_line;

use crate::failure::Failure;
use crate::output::write_stderr;

/// `--yes` of commands that ask.
#[derive(Debug, Args)]
pub struct ConfirmArgs {
    /// Do not ask; required where standard input is not a terminal
    #[arg(long)]
    yes: bool,
}

impl ConfirmArgs {
    /// Whether the caller is asked, on the terminal.
    #[must_use]
    pub const fn asks(&self) -> bool {
        !self.yes
    }

    /// Fails if the caller would have to be asked, but nobody can answer.
    ///
    /// # Errors
    /// [`Failure`] with exit code 2.
    pub fn check_terminal(&self) -> Result<(), Failure> {
        if self.yes || std::io::stdin().is_terminal() {
            return Ok(());
        }
        Err(unconfirmed(None))
    }

    /// Asks whether to go on in spite of `consequence`, which the failure names if nobody can answer.
    ///
    /// # Errors
    /// Like [`ask`](Self::ask).
    pub fn ask_about(&self, consequence: &str) -> Result<(), Failure> {
        self.check_terminal().map_err(|_| unconfirmed(Some(consequence)))?;
        self.ask(&format!("{consequence}."))
    }

    /// Asks `question` unless `--yes` is given; the answer is no unless it is `y` or `yes`.
    ///
    /// # Errors
    /// [`Failure`]: the answer is no (exit code 1), or there is no terminal (exit code 2).
    pub fn ask(&self, question: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        self.check_terminal()?;
        // The answer counts even if standard error is closed.
        write_stderr(&format!("{} Continue? [y/N] ", printable_line(question)));
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        if read.is_ok() && is_yes(&line) {
            return Ok(());
        }
        Err(Failure::refused("not-confirmed", "nothing was changed").remedy("answer y to confirm, or add --yes"))
    }
}

/// Nobody can answer. Begins with what is so: a consequence in the present tense reads as done.
fn unconfirmed(consequence: Option<&str>) -> Failure {
    let reason = "nothing was changed: the command asks for confirmation, and standard input is not a terminal";
    let reason = match consequence {
        Some(consequence) => format!("{reason}; what follows once confirmed: {consequence}"),
        None => reason.to_owned(),
    };
    Failure::usage(reason).remedy("add --yes to confirm")
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for yes in ["y\n", "Yes\n", " YES "] {
            assert!(is_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "yess", "no"] {
            assert!(!is_yes(no), "{no:?}");
        }
    }

    #[test]
    fn an_unconfirmed_command_says_first_that_nothing_was_changed() {
        for consequence in [None, Some("all certificates of hana are void")] {
            let failure = unconfirmed(consequence);
            assert!(failure.reason.starts_with("nothing was changed: "), "{failure}");
            assert_eq!(failure.exit.number(), 2);
        }
        let reason = unconfirmed(Some("all certificates of hana are void")).reason;
        assert!(reason.ends_with("; what follows once confirmed: all certificates of hana are void"), "{reason}");
    }
}
