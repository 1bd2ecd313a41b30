//! The help of `comity`: as that of every program, and only `comity --help` shows the global flags.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory as _, FromArgMatches as _};
pub use comity_runtime::help::Detail;
use comity_runtime::help::{help_flag_last, shaped};
use comity_runtime::misplaced_secret;

use crate::args::Args;

/// The last line of every subcommand's help.
const GLOBAL_FLAGS: &str = "Global flags: comity --help";

/// Parses a command line.
///
/// # Errors
/// The error, the help or the version to print.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Args, clap::Error> {
    let words = help_flag_last(words.collect());
    let mut command = command(Detail::of(&words));
    let matches = command.try_get_matches_from_mut(words)?;
    misplaced_secret(&command, &matches, &["token"], "echo TOKEN | comity login -")
        .map_err(|error| command.error(ErrorKind::InvalidValue, error))?;
    let mut args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    args.global.prefer_flags(&matches);
    Ok(args)
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

    fn helps(program: Command) -> Vec<(String, String)> {
        let name = program.get_name().to_owned();
        let mut command = program.term_width(COLUMNS);
        command.build();
        let mut helps = Vec::new();
        each(&mut command, &name, &mut |path, help| helps.push((path.to_owned(), help.to_owned())));
        helps
    }

    #[test]
    fn short_help_fits_a_screen() {
        let agent = shaped(comity_agent::command_line::CommandLine::command(), Detail::Short);
        let broker = shaped(comity_broker::command_line::CommandLine::command(), Detail::Short);
        for (path, help) in [command(Detail::Short), agent, broker].into_iter().flat_map(helps) {
            let most = match path.as_str() {
                "comity" => 60,
                // All flags of a request, and its own.
                "comity run" => 64,
                "comity quote" | "comity request submit" => 50,
                path if path.ends_with(" list") || !path.starts_with("comity ") => 24,
                _ => 40,
            };
            assert!(help.lines().count() <= most, "{path} has {} lines:\n{help}", help.lines().count());
        }
    }

    #[test]
    fn full_help_shows_every_flag() {
        let agent = comity_agent::command_line::CommandLine::command();
        let broker = comity_broker::command_line::CommandLine::command();
        for program in [agent, broker] {
            let full = helps(shaped(program.clone(), Detail::Full));
            for sub in program.get_subcommands() {
                let path = format!("{} {}", program.get_name(), sub.get_name());
                let (_, help) = full.iter().find(|(of, _)| *of == path).expect("a command");
                for flag in sub.get_arguments().filter_map(Arg::get_long) {
                    assert!(help.contains(&format!("--{flag}")), "{path} --{flag}:\n{help}");
                }
            }
        }
    }

    #[test]
    fn no_line_of_a_paragraph_is_broken_twice() {
        let agent = shaped(comity_agent::command_line::CommandLine::command(), Detail::Full);
        let broker = shaped(comity_broker::command_line::CommandLine::command(), Detail::Full);
        for (path, help) in [command(Detail::Full), agent, broker].into_iter().flat_map(helps) {
            let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
            for (line, next) in help.lines().zip(help.lines().skip(1)).filter(|(a, b)| is_prose(a) && is_prose(b)) {
                let word = next.split(' ').next().unwrap_or_default();
                let room = COLUMNS.saturating_sub(line.chars().count() + 1);
                assert!(word.chars().count() >= room, "{path}: {word:?} has room after {line:?}");
            }
        }
    }

    #[test]
    fn every_full_help_has_an_example_of_its_command() {
        let agent = shaped(comity_agent::command_line::CommandLine::command(), Detail::Full);
        let broker = shaped(comity_broker::command_line::CommandLine::command(), Detail::Full);
        for (path, help) in [command(Detail::Full), agent, broker].into_iter().flat_map(helps) {
            let is_example = |line: &str| line.starts_with("  ") && line.contains(&path);
            assert!(help.lines().any(is_example), "{path}:\n{help}");
        }
    }

    #[test]
    fn global_flags_are_in_the_help_of_comity_only() {
        for (path, help) in helps(command(Detail::Full)) {
            assert_eq!(help.contains("Global options:"), path == "comity", "{path}:\n{help}");
            assert_eq!(help.ends_with(&format!("\n{GLOBAL_FLAGS}\n")), path != "comity", "{path}:\n{help}");
        }
        let args = parse("comity lease list --broker a:1 -vv".split(' ').map(OsString::from)).expect("good");
        assert_eq!((args.global.broker.as_deref(), args.global.verbose), (Some("a:1"), 2));
    }

    #[test]
    fn full_help_shows_every_flag_by_topic() {
        let helps = helps(command(Detail::Full));
        let (_, help) = helps.iter().find(|(path, _)| path == "comity request submit").expect("a command");
        for part in ["What:", "Where:", "When:", "Sharing:", "Topology:", "Failures:", "Output:", "--numa", "--grace"] {
            assert!(help.contains(part), "{part}:\n{help}");
        }
        assert!(!help.contains("\n\n\n"), "{help}");
    }
}
