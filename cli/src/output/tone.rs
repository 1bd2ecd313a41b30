//! Colours of states and labels.

use anstyle::{AnsiColor, Style};

/// Heads of tables and labels of fields.
pub(crate) const HEAD: Style = Style::new().bold();
/// Hints.
pub(crate) const FAINT: Style = Style::new().dimmed();

const GOOD: Style = AnsiColor::Green.on_default();
const WAITING: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default();

/// The colour of a state such as `active` or `ended (donor-failed)`.
pub(crate) fn of_state(text: &str) -> Style {
    let has_failed = |text: &str| ["failed", "expired", "lost"].iter().any(|word| text.ends_with(word));
    let (word, reason) = text.split_once(['(', ',']).unwrap_or((text, ""));
    match word.trim() {
        "active" | "connected" | "ready" | "established" | "healthy" | "leader" | "yes" | "completed" => GOOD,
        "queued" | "connecting" | "suspect" | "reclaiming" | "ending" | "proposed" | "keys" | "authenticating"
        | "establishing" | "draining" | "candidate" | "cordoned" | "quarantined" | "suspended" => WAITING,
        "failed" | "silent" | "unhealthy" | "not ready" | "no answer" | "error" => BAD,
        "ended" if has_failed(reason.trim_end_matches(')')) => BAD,
        "ended" | "cancelled" | "closed" | "not-submitted" | "evicted" => FAINT,
        _ => Style::new(),
    }
}

/// `text` in a style; unchanged on a page without colours.
pub(crate) fn paint(text: &str, style: Style, coloured: bool) -> String {
    if coloured && !style.is_plain() && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_colour_of_their_meaning() {
        for (state, style) in [
            ("active", GOOD),
            ("connected, 5m ago", GOOD),
            ("queued", WAITING),
            ("failed", BAD),
            ("ended (expired)", BAD),
            ("ended (donor-failed)", BAD),
            ("ended (released)", FAINT),
            ("placed", Style::new()),
        ] {
            assert_eq!(of_state(state), style, "{state}");
        }
        assert_eq!(paint("active", GOOD, false), "active");
        assert_eq!(paint("active", GOOD, true), "\u{1b}[32mactive\u{1b}[0m");
    }
}
