//! Shapes the help: `-h` shows the flags used most, `--help` all of them, and only `comity --help` the global flags.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, CommandFactory as _, FromArgMatches as _};
use comity_runtime::join_token::misplaced_token;

use crate::args::Args;

/// The last line of every subcommand's help.
const GLOBAL_FLAGS: &str = "Global flags: comity --help";

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
    fn of(words: &[OsString]) -> Self {
        let asks = words.iter().take_while(|word| *word != "--").any(|word| word == "--help");
        if asks { Self::Full } else { Self::Short }
    }
}

/// Parses a command line.
///
/// # Errors
/// The error, the help or the version to print.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Args, clap::Error> {
    let words = help_flag_last(words.collect());
    let mut command = command(Detail::of(&words));
    let matches = command.try_get_matches_from_mut(words)?;
    misplaced_token(&command, &matches, &["token"], "echo TOKEN | comity login -")
        .map_err(|error| command.error(ErrorKind::InvalidValue, error))?;
    let mut args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    args.global.prefer_flags(&matches);
    Ok(args)
}

/// `comity help lease list` as `comity lease list --help`.
fn help_flag_last(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// The command line with its help.
#[must_use]
pub fn command(detail: Detail) -> Command {
    let root = Args::command();
    let globals = root.get_arguments().filter(|arg| arg.is_global_set()).cloned();
    let hidden: Vec<Arg> = globals.map(|arg| arg.hide(true)).collect();
    // A subcommand's own copy of a global flag takes the place of the one that clap would show.
    let root = root.mut_subcommands(|sub| with_footer(sub.args(&hidden)));
    shaped(root, detail)
}

fn with_footer(command: Command) -> Command {
    let footed = |help: Option<&clap::builder::StyledStr>| match help {
        Some(help) => format!("{}\n\n{GLOBAL_FLAGS}\n", help.to_string().trim_end()),
        None => format!("{GLOBAL_FLAGS}\n"),
    };
    let short = footed(command.get_after_help());
    let long = command.get_after_long_help().map(|help| footed(Some(help)));
    let command = command.after_help(short).mut_subcommands(with_footer);
    match long {
        Some(long) => command.after_long_help(long),
        None => command,
    }
}

/// Renders `--help` as compactly as `-h`: one line for each flag, without clap's blank lines.
fn shaped(command: Command, detail: Detail) -> Command {
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort);
    let mut command = command.disable_help_flag(true).mut_subcommands(|sub| shaped(sub, detail));
    let more = command.get_arguments().any(Arg::is_hide_short_help_set) || command.get_after_long_help().is_some();
    command = command.arg(help.help(if more { "Print help (--help: more)" } else { "Print help" }));
    if detail == Detail::Full {
        if let Some(about) = command.get_long_about().cloned() {
            command = command.about(about);
        }
        if let Some(after) = command.get_after_long_help().cloned() {
            command = command.after_help(after);
        }
        command = command.mut_args(|arg| arg.hide_short_help(false));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal of the usual width.
    const COLUMNS: usize = 80;

    fn each(command: &mut Command, path: &str, visit: &mut impl FnMut(&str, &str)) {
        visit(path, &command.render_help().to_string());
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            each(sub, &path, visit);
        }
    }

    fn helps(detail: Detail) -> Vec<(String, String)> {
        let mut command = command(detail).term_width(COLUMNS);
        command.build();
        let mut helps = Vec::new();
        each(&mut command, "comity", &mut |path, help| helps.push((path.to_owned(), help.to_owned())));
        helps
    }

    #[test]
    fn short_help_fits_a_screen() {
        for (path, help) in helps(Detail::Short) {
            let most = match path.as_str() {
                "comity" => 60,
                "comity quote" | "comity request submit" => 50,
                path if path.ends_with(" list") => 24,
                _ => 40,
            };
            assert!(help.lines().count() <= most, "{path} has {} lines:\n{help}", help.lines().count());
        }
    }

    #[test]
    fn global_flags_are_in_the_help_of_comity_only() {
        for (path, help) in helps(Detail::Full) {
            assert_eq!(help.contains("Global options:"), path == "comity", "{path}:\n{help}");
            assert_eq!(help.ends_with(&format!("\n{GLOBAL_FLAGS}\n")), path != "comity", "{path}:\n{help}");
        }
        let args = parse("comity lease list --broker a:1 -vv".split(' ').map(OsString::from)).expect("good");
        assert_eq!((args.global.broker.as_deref(), args.global.verbose), (Some("a:1"), 2));
    }

    #[test]
    fn full_help_shows_every_flag_by_topic() {
        let helps = helps(Detail::Full);
        let (_, help) = helps.iter().find(|(path, _)| path == "comity request submit").expect("a command");
        for part in ["What:", "Where:", "When:", "Sharing:", "Topology:", "Failures:", "Output:", "--numa", "--grace"] {
            assert!(help.contains(part), "{part}:\n{help}");
        }
        assert!(!help.contains("\n\n\n"), "{help}");
    }

    #[test]
    fn help_as_a_command_is_the_flag() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(help_flag_last(words("comity help lease list")), words("comity lease list --help"));
        assert_eq!(help_flag_last(words("comity lease list")), words("comity lease list"));
        assert_eq!(Detail::of(&words("comity lease -- --help")), Detail::Short);
    }
}
