//! A command line that cannot be read, told in the format that it asks for.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::Failure;
use crate::output::Format;

/// Tells what is wrong, or shows the help or the version that was asked for; the exit code for it.
pub(crate) fn report(error: &clap::Error, args: impl Iterator<Item = OsString>) -> std::process::ExitCode {
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if asked_for || format(args) == Format::Table {
        // Nobody is left to tell where neither output can be written.
        let _ = error.print();
    } else {
        eprintln!("{}", failure(error).json());
    }
    if asked_for { crate::Exit::Ok.into() } else { crate::Exit::Usage.into() }
}

/// The format that the command line asks for, as far as it can be read: the last one counts, as with clap.
fn format(args: impl Iterator<Item = OsString>) -> Format {
    let mut format = Format::Table;
    let mut value_follows = false;
    for arg in args {
        let Some(arg) = arg.to_str() else { continue };
        let value = match arg {
            "--" => break,
            _ if value_follows => Some(arg),
            _ => arg.strip_prefix("--output=").or_else(|| arg.strip_prefix("-o").filter(|value| !value.is_empty())),
        };
        value_follows = !value_follows && matches!(arg, "-o" | "--output");
        format = match value.map(|value| value.trim_start_matches('=')) {
            Some("json") => Format::Json,
            Some("yaml") => Format::Yaml,
            Some("table") => Format::Table,
            _ => format,
        };
    }
    format
}

/// The same error as scripts are told all others.
fn failure(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing").remedy("'comity --help' lists the commands");
    }
    let text = error.to_string();
    let mut paragraphs = text.split("\n\n");
    let reason = paragraphs.next().unwrap_or_default();
    let reason = reason.strip_prefix("error: ").unwrap_or(reason).split_whitespace().collect::<Vec<_>>().join(" ");
    let tips = paragraphs.filter_map(|part| part.trim().strip_prefix("tip: ")).collect::<Vec<_>>();
    let remedy = tips.into_iter().chain(["'--help' after the command shows its flags"]).collect::<Vec<_>>().join("; ");
    Failure::usage(reason)
        .field(&context(error, ContextKind::InvalidArg), context(error, ContextKind::InvalidValue))
        .remedy(remedy)
}

fn context(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn format_of(line: &str) -> Format {
        format(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_format_is_found_wherever_it_is_written() {
        for line in
            ["comity -o json x", "comity x --output json", "comity --output=json", "comity -ojson", "comity -o=json"]
        {
            assert_eq!(format_of(line), Format::Json, "{line}");
        }
        assert_eq!(format_of("comity -o yaml"), Format::Yaml);
        for line in ["comity", "comity -o", "comity -o nonsense", "comity -- -o json", "comity -o json -o table"] {
            assert_eq!(format_of(line), Format::Table, "{line}");
        }
    }

    #[test]
    fn field_value_and_what_is_allowed_are_named() {
        let line = "comity request submit --tenant t --origin o --class c --gpus -1";
        let error = crate::Args::try_parse_from(line.split(' ')).expect_err("no GPUs below zero");
        let failure = failure(&error);
        assert_eq!((failure.field.as_str(), failure.value.as_str()), ("--gpus <AMOUNT>", "-1"));
        assert!(failure.reason.contains("ask for whole GPUs (3)"), "{failure:?}");
        assert_eq!(failure.exit, crate::Exit::Usage);
    }
}
