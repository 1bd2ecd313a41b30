//! Reports a command line that clap rejects, in the format that it requests.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use comity_types::{printable, redact_secrets};

use crate::failure::Failure;
use crate::output::{Format, write_stderr};

/// Prints the error, the help or the version; returns the exit code.
pub(crate) fn report(error: &clap::Error, args: impl Iterator<Item = OsString>) -> std::process::ExitCode {
    let args: Vec<OsString> = args.collect();
    let failure = || match has_detailed_exitcode(&args) {
        true => usage_failure(error).with_detailed_exitcode(),
        false => usage_failure(error),
    };
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let format = if is_answer { Format::Table } else { requested_format(args.iter().cloned()) };
    let text = error.to_string();
    let redacted = redact_secrets(&text);
    // `to_string` drops escapes of arguments, but `print` writes them. Help repeats no argument.
    let is_plain = args.iter().all(|arg| arg.to_str().is_some_and(|arg| printable(arg) == arg));
    match (format, printable(&redacted)) {
        (Format::Json | Format::Yaml, _) => write_stderr(&(failure().json() + "\n")),
        (Format::Table | Format::Markdown, shown) if is_answer || (is_plain && shown == text) => {
            // With colours. If the output cannot be written, there is nobody to tell.
            let _ = error.print();
        }
        // The library repeats what was typed as it is.
        (Format::Table | Format::Markdown, shown) => write_stderr(&shown),
    }
    if is_answer { crate::Exit::Ok.into() } else { failure().exit.into() }
}

/// Whether the caller takes the exit code 2 for changes.
fn has_detailed_exitcode(args: &[OsString]) -> bool {
    args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--detailed-exitcode")
}

/// The last valid `--output` of the command line, as clap would take it.
fn requested_format(args: impl Iterator<Item = OsString>) -> Format {
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
            Some("table" | "markdown") => Format::Table,
            _ => format,
        };
    }
    format
}

/// The error in the form of all other failures.
fn usage_failure(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing").remedy("'comity --help' lists the commands");
    }
    // First, because an encrypted key has an empty line.
    let text = redact_secrets(&error.to_string());
    let mut paragraphs = text.split("\n\n");
    let reason = paragraphs.next().unwrap_or_default();
    let reason = reason.strip_prefix("error: ").unwrap_or(reason).split_whitespace().collect::<Vec<_>>().join(" ");
    let tips = paragraphs.filter_map(|part| part.trim().strip_prefix("tip: ")).collect::<Vec<_>>();
    let remedy =
        tips.into_iter().chain(["run the command with '--help' to see its flags"]).collect::<Vec<_>>().join("; ");
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
        requested_format(line.split(' ').map(OsString::from))
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
    fn field_value_and_allowed_values_are_named() {
        let line = "comity request submit --tenant t --origin o --class c --gpus -1";
        let error = crate::Args::try_parse_from(line.split(' ')).expect_err("no GPUs below zero");
        let failure = usage_failure(&error);
        assert_eq!((failure.field.as_str(), failure.value.as_str()), ("--gpus <AMOUNT>", "-1"));
        assert!(failure.reason.contains("give whole GPUs (3)"), "{failure:?}");
        assert_eq!(failure.exit, crate::Exit::Usage);
    }
}
