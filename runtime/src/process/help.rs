//! Shapes the help of every program: `-h` shows the flags used most, `--help` all of them, their variables and details.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, Parser};

use super::misplaced_secret::misplaced_secret;

/// How much of the help is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// `-h`.
    Short,
    /// `--help`.
    Full,
}

impl Detail {
    /// The detail that a command line asks for.
    #[must_use]
    pub fn of(words: &[OsString]) -> Self {
        let asks = words.iter().take_while(|word| *word != "--").any(|word| word == "--help");
        if asks { Self::Full } else { Self::Short }
    }
}

/// Where a command line takes a token.
#[derive(Clone, Copy, Debug)]
pub struct TokenPlace {
    /// The arguments that take one.
    pub args: &'static [&'static str],
    /// The command to use, for an error.
    pub instead: &'static str,
}

/// Parses the command line of a program. Refuses private keys, and a token elsewhere than in `place`,
/// without printing them.
///
/// # Errors
/// The error, the help or the version to print.
pub fn parse<P: Parser>(
    words: impl IntoIterator<Item = impl Into<OsString>>,
    place: TokenPlace,
) -> Result<P, clap::Error> {
    let words = help_flag_last(words.into_iter().map(Into::into).collect());
    let mut command = shaped(P::command(), Detail::of(&words));
    let matches = command.try_get_matches_from_mut(words)?;
    misplaced_secret(&command, &matches, place.args, place.instead)
        .map_err(|error| command.error(ErrorKind::InvalidValue, error))?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// `comity help lease list` as `comity lease list --help`.
#[must_use]
pub fn help_flag_last(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// Renders `--help` as compactly as `-h`: one line for each flag, without clap's blank lines.
#[must_use]
pub fn shaped(command: Command, detail: Detail) -> Command {
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort);
    let mut command = command.disable_help_flag(true).mut_subcommands(|sub| shaped(sub, detail));
    let says_more = |arg: &Arg| arg.is_hide_short_help_set() || (arg.get_env().is_some() && !arg.is_global_set());
    let more = command.get_arguments().any(says_more) || command.get_after_long_help().is_some();
    command = command.arg(help.help(if more { "Print help (--help: more)" } else { "Print help" }));
    if let Some(after) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(unfolded(&after));
    }
    if detail == Detail::Short {
        return command.mut_args(|arg| if arg.is_global_set() { arg } else { arg.hide_env(true) });
    }
    if let Some(about) = command.get_long_about().cloned() {
        command = command.about(about);
    }
    if let Some(after) = command.get_after_long_help().map(ToString::to_string) {
        command = command.after_help(unfolded(&after));
    }
    command.mut_args(|arg| match arg.get_long_help() {
        Some(long) => {
            let help = long.to_string().replace("\n\n", " ");
            arg.hide_short_help(false).help(help.trim_end_matches('.').to_owned())
        }
        None => arg.hide_short_help(false),
    })
}

/// Joins the lines of each paragraph, so that the terminal's width alone breaks them. Indented lines stay: those of
/// examples and lists.
fn unfolded(text: &str) -> String {
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut joined = String::new();
    let mut before = "";
    for line in text.lines() {
        if is_prose(before) && is_prose(line) {
            joined.push(' ');
        } else if !joined.is_empty() {
            joined.push('\n');
        }
        joined.push_str(line);
        before = line;
    }
    joined.push('\n');
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "program", after_help = "Examples", after_long_help = "Examples and exit codes")]
    struct Program {
        /// Data directory.
        ///
        /// Default: the present one.
        #[arg(long, env = "PROGRAM_DATA")]
        data: Option<String>,
        /// A detail.
        #[arg(long, hide_short_help = true)]
        detail: bool,
    }

    const NOWHERE: TokenPlace = TokenPlace { args: &[], instead: "" };

    #[test]
    fn full_help_has_details_and_variables() {
        let help = |line: &str| parse::<Program>(line.split(' '), NOWHERE).expect_err("help").to_string();
        let short = help("program -h");
        assert!(short.contains("Data directory\n") && short.contains("--help: more"), "{short}");
        assert!(!short.contains("PROGRAM_DATA") && !short.contains("--detail"), "{short}");
        let full = help("program --help");
        for part in ["Data directory. Default: the present one", "PROGRAM_DATA", "--detail", "exit codes"] {
            assert!(full.contains(part), "{part}: {full}");
        }
        assert_eq!(help("program help"), full);
        assert!(parse::<Program>("program --detail".split(' '), NOWHERE).expect("good").detail);
    }

    #[test]
    fn a_paragraph_is_broken_by_the_terminal_alone() {
        let text = "Examples:\n  program one\n  program two\n\nA paragraph\nof two lines.\n\nCodes:\n  0  done\n";
        let joined = "Examples:\n  program one\n  program two\n\nA paragraph of two lines.\n\nCodes:\n  0  done\n";
        assert_eq!(unfolded(text), joined);
        assert_eq!(unfolded(joined), joined);
    }

    #[test]
    fn help_as_a_command_is_the_flag() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(help_flag_last(words("comity help lease list")), words("comity lease list --help"));
        assert_eq!(help_flag_last(words("comity lease list")), words("comity lease list"));
        assert_eq!(Detail::of(&words("comity lease -- --help")), Detail::Short);
    }
}
