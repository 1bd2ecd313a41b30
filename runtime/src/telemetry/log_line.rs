//! One line per event: what others say in a field can neither start a line of its own nor steer the terminal.

use std::borrow::Cow;
use std::io;

use comity_types::{is_steering, printable_json};

/// The formatter's colours and their end, after ESC.
const COLOURS: [&str; 10] = ["[0m", "[1m", "[2m", "[3m", "[31m", "[32m", "[33m", "[34m", "[35m", "[36m"];

/// Writes events, which the formatter hands over whole.
pub(super) struct LogLine<W> {
    writer: W,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    Plain,
    Coloured,
    Json,
}

impl<W> LogLine<W> {
    /// Text, with or without the formatter's colours.
    pub(super) const fn text(writer: W, coloured: bool) -> Self {
        Self { writer, form: if coloured { Form::Coloured } else { Form::Plain } }
    }

    /// A JSON object per line.
    pub(super) const fn json(writer: W) -> Self {
        Self { writer, form: Form::Json }
    }
}

impl<W: io::Write> io::Write for LogLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let shown = match self.form {
            Form::Json => printable_json(line),
            Form::Plain => escaped(line, &[]),
            Form::Coloured => escaped(line, &COLOURS),
        };
        // One write: lines of several threads do not mix.
        self.writer.write_all(format!("{shown}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Shows steering characters as escapes, but for those that begin one of the `colours`.
fn escaped<'a>(line: &'a str, colours: &[&str]) -> Cow<'a, str> {
    if !line.chars().any(is_steering) {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len() + 16);
    for (at, character) in line.char_indices() {
        let is_colour = || {
            let rest = line[at..].strip_prefix('\u{1b}');
            rest.is_some_and(|rest| colours.iter().any(|colour| rest.starts_with(colour)))
        };
        if is_steering(character) && !is_colour() {
            out.extend(character.escape_default())
        } else {
            out.push(character)
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use comity_types::is_printable_text;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::COLOURS;
    use crate::telemetry::{LogFormat, log_lines};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The log of one event whose values come from elsewhere.
    fn logged(format: LogFormat, coloured: bool) -> String {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::registry().with(log_lines(format, coloured, move || writer.clone()));
        let evil = "bad\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}\r\n2026-01-01T00:00:00Z  INFO everything is fine";
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("peering", name = evil, shown = %evil);
            span.in_scope(
                || tracing::warn!(message_text = evil, shown = %evil, debug = ?evil, "the peer says: {evil}"),
            );
        });
        let bytes = written.0.lock().expect("no panic").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn an_event_is_one_line_that_shows_what_it_was_given() {
        for (format, coloured) in [(LogFormat::Text, false), (LogFormat::Text, true), (LogFormat::Json, false)] {
            let log = logged(format, coloured);
            assert_eq!(log.lines().count(), 1, "{log:?}");
            let shown = COLOURS.iter().fold(log.clone(), |log, colour| log.replace(&format!("\u{1b}{colour}"), ""));
            let shown = if coloured { &shown } else { &log };
            assert!(is_printable_text(shown) && log.contains("everything is fine"), "{log:?}");
        }
        let log = logged(LogFormat::Json, false);
        let value: serde_json::Value = serde_json::from_str(&log).expect("an object");
        assert!(value["shown"].as_str().is_some_and(|text| text.contains("\u{1b}]0;owned")), "{log}");
    }
}
